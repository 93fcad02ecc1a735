"""Which values of a policy contradict each other, and which are not safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icekeeper.errors import PolicyError
from icekeeper.policy.age_floors import require_orphan_age
from icekeeper.policy.keys import Policy
from icekeeper.policy.layers import Layer
from icekeeper.policy.values import text_of

_RETENTION_KEYS = frozenset({"snapshot_retention_hours", "max_snapshots_to_keep"})


def check_policy(policy: Policy, sources: Mapping[str, str], layers: Sequence[Layer], *, unsafe: bool) -> None:
    """Check the values of these layers against each other.

    Raises:
        PolicyError: two values contradict each other, or a value is not safe and the call is not ``unsafe``.
    """
    if not unsafe:
        _check_safe(policy, sources)
    _check_contradictions(policy, sources)
    _check_bounds_hold(layers, policy, sources)


def _check_safe(policy: Policy, sources: Mapping[str, str]) -> None:
    require_orphan_age(policy, sources)
    if policy.snapshot_give_up_ids:
        raise PolicyError(
            f"policy key snapshot_give_up_ids (from {sources['snapshot_give_up_ids']}) drops snapshots whose rows may "
            "still be recovered; --unsafe allows it"
        )


def _check_contradictions(policy: Policy, sources: Mapping[str, str]) -> None:
    def contradiction(first: str, second: str, rule: str) -> PolicyError:
        named = [f"{key} {text_of(getattr(policy, key))} (from {sources[key]})" for key in (first, second)]
        return PolicyError(f"{named[0]} contradicts {named[1]}: {rule}")

    retain_max, files_max = policy.snapshot_retain_max, policy.max_files_to_rewrite
    if retain_max is not None and retain_max < policy.max_snapshots_to_keep:
        raise contradiction("snapshot_retain_max", "max_snapshots_to_keep", "the most kept is below the least kept")
    limit, (key, named) = policy.snapshot_expire_limit, policy.named_snapshots
    if limit is not None and limit < len(named):
        raise contradiction("snapshot_expire_limit", key, "more snapshots are named than may expire")
    if policy.snapshot_give_up_ids and policy.snapshot_expire_ids:
        raise contradiction("snapshot_give_up_ids", "snapshot_expire_ids", "only the snapshots of one of them expire")
    if policy.max_file_group_size_mb < policy.target_file_size_mb:
        raise contradiction("max_file_group_size_mb", "target_file_size_mb", "a group could not fill one file")
    if files_max is not None and files_max < policy.min_input_files and not policy.rewrite_all:
        raise contradiction("max_files_to_rewrite", "min_input_files", "no group would ever be rewritten")


def _check_bounds_hold(layers: Sequence[Layer], policy: Policy, sources: Mapping[str, str]) -> None:
    """Refuse named snapshots, which ignore the retention, if the deployment bounds the retention."""
    bounds = [layer for layer in layers if layer.is_bound and not _RETENTION_KEYS.isdisjoint(layer.values)]
    key, named = policy.named_snapshots
    if named and bounds:
        raise PolicyError(
            f"policy key {key} (from {sources[key]}) cannot be used: it would go below {bounds[0].source}"
        )
