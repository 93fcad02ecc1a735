"""What a request for a pass may set: nothing that makes the pass delete more than the table's policy does
(rule: requests-never-exceed-policy).

The sender of a request need not be an operator.  So a request may name operations of the policy, and settings that are
no looser than those with which the operation runs anyway.  ``ICEKEEPER_REQUESTS_MAY`` admits more.
"""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.errors import PolicyError, RequestRefused
from icekeeper.operation_facts import Operation
from icekeeper.policy.keys import KEY_FACTS, Policy
from icekeeper.policy.resolve import ResolvedPolicy
from icekeeper.policy.values import did_you_mean, text_of

REQUESTS_MAY = "ICEKEEPER_REQUESTS_MAY"
"""The environment variable that admits operations, keys, or ``all`` in requests beyond a table's policy."""
_ALL = "all"

_PROTECTED = "orphan_protected_prefixes"
_DECIDING: Mapping[Operation | None, tuple[str, ...]] = {
    None: ("maintenance_enabled", "paused_until", "ownership", "table_settings", "orphan_older_than_hours"),
    Operation.COMPACT: ("rewrite_enabled", "delete_compaction_enabled", "proof"),
    Operation.REWRITE_POSITION_DELETES: ("proof",),
    Operation.COMPUTE_STATISTICS: ("proof",),
    Operation.REWRITE_MANIFESTS: ("manifest_rewrite_enabled",),
    Operation.EXPIRE_SNAPSHOTS: (
        "snapshot_expiry_enabled",
        "snapshot_retention_hours",
        "max_snapshots_to_keep",
        "snapshot_retain_max",
        "snapshot_expire_limit",
        "snapshot_expire_ids",
        "snapshot_give_up_ids",
        "writer_mark_retention_hours",
        "clean_expired_metadata",
    ),
    Operation.REMOVE_ORPHANS: (
        "orphan_sweep_enabled",
        "orphan_sweep_prefixes",
        "orphan_inventory",
        "orphan_max_delete_ratio",
        "orphan_max_missing_ratio",
        "orphan_table_types",
        "orphan_file_endings",
    ),
    Operation.EXPIRE_PARTITIONS: ("partition_retention_hours", "partition_time", "branch", "where"),
}
"""The keys that decide whether an operation runs, what it deletes, or how it proves that no row was lost.

``None``: those of every pass, even without operations, because it cleans up after failed loads.
"""
_HELD = {key: None for keys in _DECIDING.values() for key in keys}


def requests_may(environment: Mapping[str, str]) -> frozenset[str]:
    """The operations and keys that the deployment admits in requests, whatever a table's policy says.

    Raises:
        PolicyError: the variable names anything else.
    """
    known = (_ALL, *(operation.value for operation in Operation), *_HELD, _PROTECTED)
    named = [name for name in (part.strip() for part in environment.get(REQUESTS_MAY, "").split(",")) if name]
    for name in named:
        if name not in known:
            raise PolicyError(
                f"environment variable {REQUESTS_MAY} has '{name}', which is neither an operation nor a key that "
                f"limits requests{did_you_mean(name, known)}; write a comma-separated list of these, or {_ALL}"
            )
    return frozenset(named)


def require_no_more(
    policy: ResolvedPolicy, asked: ResolvedPolicy, may: frozenset[str], table: str, *, asks: str = "a request"
) -> None:
    """Check a request: ``policy`` is the table's own, ``asked`` the policy with the request's settings.

    ``asks`` names in the message what asks for the pass.

    Raises:
        RequestRefused: the request would delete more; the message says what, and which setting admits it.
    """
    if _ALL in may:
        return
    refused = _looser(policy.policy, asked.policy, None, may)
    for operation in asked.policy.operations:
        refused |= _loosest(policy, asked, operation, may)
    if refused:
        raise RequestRefused(
            f"{asks} for {table} cannot {', and cannot '.join(refused.values())}: it does no more than the "
            f"table's policy; to admit that, the operator sets RequestsMay ({REQUESTS_MAY}) to {','.join(refused)}"
        )


def _loosest(own: ResolvedPolicy, asked: ResolvedPolicy, operation: Operation, may: frozenset[str]) -> dict[str, str]:
    """What is refused of a requested operation, by the setting that admits it; empty if the policy allows it."""
    found: dict[str, str] = {}
    if operation not in own.policy.operations and operation.value not in may:
        found[operation.value] = f"ask for {operation.value}, which the policy does not have"
    found |= _looser(own.policy, asked.policy, operation, may)
    more = [prefix for prefix in asked.waived_prefixes if prefix not in own.waived_prefixes]
    if operation is Operation.REMOVE_ORPHANS and more and _PROTECTED not in may:
        # A sweep would remove data beside another table's metadata (rule: unknown-metadata-stops-sweeps).
        what = f"add {text_of(tuple(more))} to {_PROTECTED}, which lets sweeps remove another table's files there"
        found[_PROTECTED] = what
    return found


def _looser(own: Policy, asked: Policy, operation: Operation | None, may: frozenset[str]) -> dict[str, str]:
    """The keys of an operation that the request sets to a looser value, each with a clause of the message."""
    looser: dict[str, str] = {}
    for key in _DECIDING[operation]:
        before, after, direction = getattr(own, key), getattr(asked, key), KEY_FACTS[key].tighter
        if key not in may and before != after and (direction is None or not direction.holds(before, after)):
            looser[key] = f"set {key} to {text_of(after)}, where the policy has {text_of(before)}"
    return looser
