"""Layers of settings become one checked policy that knows where each value came from (rule 114)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from icekeeper.errors import PolicyError
from icekeeper.policy.check_layer import check_layer, parse_values
from icekeeper.policy.choices import Strategy
from icekeeper.policy.keys import KEY_FACTS, POLICY_KEYS, Policy
from icekeeper.policy.layers import SCHEDULE_PREFIX, Layer
from icekeeper.policy.resolved_policy import DEFAULT_SOURCE, ResolvedPolicy, Schedule
from icekeeper.policy.schedules import (
    INTERVAL,
    layers_of_schedule,
    parse_interval,
    schedule_settings,
    without_schedules,
)
from icekeeper.policy.table_settings import without_ignored
from icekeeper.policy.tighter import MORE
from icekeeper.policy.values import text_of

__all__ = ["MIN_ORPHAN_GRACE_HOURS", "resolve"]

# Iceberg's own remove_orphan_files refuses less: younger files may belong to a commit that is under way.
MIN_ORPHAN_GRACE_HOURS = 24
_UNITED = tuple(key for key, facts in KEY_FACTS.items() if facts.tighter is MORE)
_RETENTION_KEYS = frozenset({"snapshot_retention_hours", "max_snapshots_to_keep"})


def resolve(layers: Sequence[Layer], *, unsafe: bool = False) -> ResolvedPolicy:
    """Apply the layers to the defaults, later ones winning; then apply the bounds among them.

    ``unsafe`` allows an orphan grace period below 24 hours, and to give snapshots up.

    Raises:
        PolicyError: an unknown key, a malformed or contradictory value; the message names key, value, source
            and what is allowed.
    """
    for layer in layers:
        # Each layer is checked by itself: a mistake is reported even where a later layer hides it.
        if not layer.is_table:
            check_layer(layer)
    layers, ignored = without_ignored(layers)
    own = schedule_settings(layers)
    general = [replace(layer, values=without_schedules(layer.values)) for layer in layers] if own else layers
    resolved = replace(_resolve(general, unsafe=unsafe), ignored=ignored)
    found = (_schedule(name, layers, its_layers, unsafe=unsafe) for name, its_layers in own.items())
    return replace(resolved, schedules={one.name: one for one in found if one is not None}) if own else resolved


def _schedule(name: str, layers: Sequence[Layer], own: Sequence[Layer], *, unsafe: bool) -> Schedule | None:
    """One schedule; ``None`` where its interval is ``none``."""
    told = [layer for layer in own if INTERVAL in layer.values]
    if not told:
        raise PolicyError(
            f"schedule {name} (from {own[-1].source}) has no interval; set {SCHEDULE_PREFIX}{name}.{INTERVAL}, for "
            "example 24h"
        )
    interval_ms = parse_interval(name, told[-1].values[INTERVAL], told[-1].source)
    if interval_ms is None:
        return None
    try:
        resolved = _resolve(list(layers_of_schedule(layers, own)), unsafe=unsafe)
    except PolicyError as error:
        raise PolicyError(f"schedule {name}: {error}") from None
    sources = {key: layer.source for layer in own for key in layer.values}
    said = tuple((key, sources[key]) for key in (INTERVAL, *POLICY_KEYS) if key in sources)
    return Schedule(name, interval_ms, resolved, said)


def _resolve(layers: Sequence[Layer], *, unsafe: bool) -> ResolvedPolicy:
    """The policy of layers without schedules, each of which was checked."""
    values: dict[str, object] = {}
    sources = dict.fromkeys(POLICY_KEYS, DEFAULT_SOURCE)
    for layer in layers:
        if not layer.is_bound:
            values.update(layer.values)
            sources.update(dict.fromkeys(layer.values, layer.source))
    policy = _unite(layers, parse_values(values, sources), sources)
    for layer in layers:
        if layer.is_bound:
            policy = _tighten(policy, layer, sources)
    if not unsafe:
        _check_safe(policy, sources)
    _check_contradictions(policy, sources)
    _check_bounds_hold(layers, policy, sources)
    # A bound can only be false.
    is_stopped = any(layer.is_bound and "maintenance_enabled" in layer.values for layer in layers)
    waived = _said_of("orphan_protected_prefixes", [layer for layer in layers if not layer.is_table])
    bounds = frozenset(layer.source for layer in layers if layer.is_bound)
    return ResolvedPolicy(policy, sources, is_stopped, bounds, waived_prefixes=waived)


def _unite(layers: Sequence[Layer], policy: Policy, sources: dict[str, str]) -> Policy:
    """The policy with the lists that are a union of all layers."""
    for key in _UNITED:
        said = [layer for layer in layers if key in layer.values and not layer.is_bound]
        if len(said) > 1:
            policy = policy.model_copy(update={key: _said_of(key, said)})
            sources[key] = ", ".join(one.source for one in said if _said_of(key, [one])) or sources[key]
    return policy


def _said_of(key: str, layers: Sequence[Layer]) -> tuple[str, ...]:
    """The entries of a list of all layers."""
    said = [layer for layer in layers if key in layer.values]
    parts = [getattr(parse_values({key: one.values[key]}, {key: one.source}), key) for one in said]
    return tuple(dict.fromkeys(value for part in parts for value in part))


def _tighten(policy: Policy, bound: Layer, sources: dict[str, str]) -> Policy:
    bounds = parse_values(bound.values, dict.fromkeys(bound.values, bound.source))
    changes: dict[str, object] = {}
    for key in bound.values:
        direction, limit, value = KEY_FACTS[key].tighter, getattr(bounds, key), getattr(policy, key)
        assert direction is not None  # BOUND_KEYS
        if limit in direction.loosest:
            raise PolicyError(
                f"policy key {key} cannot be bounded to '{text_of(limit)}' (from {bound.source}), its loosest value; "
                f"tighter is {direction.words}"
            )
        tightened = direction.meet(value, limit)
        if tightened != value:
            changes[key] = tightened
            sources[key] = bound.source if direction is not MORE or not value else f"{sources[key]}, {bound.source}"
    if "snapshot_retention_hours" in bound.values and policy.snapshot_retain_max is not None:
        changes["snapshot_retain_max"] = None  # by it young snapshots expire
        sources["snapshot_retain_max"] = bound.source
    return policy.model_copy(update=changes)


def _check_safe(policy: Policy, sources: Mapping[str, str]) -> None:
    key = "orphan_older_than_hours"
    if policy.orphan_older_than_hours < MIN_ORPHAN_GRACE_HOURS:
        raise PolicyError(
            f"policy key {key} is {text_of(policy.orphan_older_than_hours)} (from {sources[key]}), below "
            f"{MIN_ORPHAN_GRACE_HOURS}: files of commits that are under way could be deleted; --unsafe allows it"
        )
    key = "snapshot_give_up_ids"
    if policy.snapshot_give_up_ids:
        raise PolicyError(
            f"policy key {key} (from {sources[key]}) drops snapshots whose rows may still be recovered; --unsafe "
            "allows it"
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
    if policy.strategy is Strategy.ZORDER and not policy.zorder_columns:
        raise contradiction("strategy", "zorder_columns", "z-order needs the columns that it interleaves")


def _check_bounds_hold(layers: Sequence[Layer], policy: Policy, sources: Mapping[str, str]) -> None:
    """Refuse named snapshots, for which the retention does not count, where the deployment bounds the retention."""
    bounds = [layer for layer in layers if layer.is_bound and not _RETENTION_KEYS.isdisjoint(layer.values)]
    key, named = policy.named_snapshots
    if named and bounds:
        raise PolicyError(
            f"policy key {key} (from {sources[key]}) cannot be used: it would go below {bounds[0].source}"
        )
