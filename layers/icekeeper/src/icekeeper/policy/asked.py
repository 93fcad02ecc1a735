"""What a request for a pass may ask for: nothing by which more is deleted than by the table's policy (rule 267; pure).

Who may ask for a pass need not be an operator.  So a request names operations that the policy has anyway, and settings
that are no looser than those under which an operation runs; the deployment's ``ICEKEEPER_REQUESTS_MAY`` admits more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from icekeeper.errors import PolicyError, RequestRefused
from icekeeper.operation_facts import Operation
from icekeeper.policy.keys import KEY_FACTS, POLICY_KEYS, Policy
from icekeeper.policy.layers import OVERRIDE_SOURCE
from icekeeper.policy.resolved_policy import ResolvedPolicy
from icekeeper.policy.values import did_you_mean, text_of

__all__ = ["REQUESTS_MAY", "UNRESTRICTED", "requests_may", "require_no_more"]

REQUESTS_MAY = "ICEKEEPER_REQUESTS_MAY"
"""The environment variable with what requests may ask for beyond a table's policy: operations, keys, or ``all``."""
_ALL = "all"

_EXPIRY = frozenset({Operation.EXPIRE_SNAPSHOTS})
_ORPHANS = frozenset({Operation.REMOVE_ORPHANS})
_PROTECTED = "orphan_protected_prefixes"
_PARTITIONS = frozenset({Operation.EXPIRE_PARTITIONS})
_REWRITES = frozenset({Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.COMPUTE_STATISTICS})
_EVERY = frozenset(Operation)
"""Every pass, also for what it cleans up after failed loads."""

_DECIDES: Mapping[str, frozenset[Operation]] = {
    "maintenance_enabled": _EVERY,
    "ownership": _EVERY,
    "table_settings": _EVERY,
    "orphan_older_than_hours": _EVERY,
    "rewrite_enabled": frozenset({Operation.COMPACT}),
    "delete_compaction_enabled": frozenset({Operation.COMPACT}),
    "manifest_rewrite_enabled": frozenset({Operation.REWRITE_MANIFESTS}),
    "proof": _REWRITES,
    "verify_page_checksums": _REWRITES,
    **dict.fromkeys(
        ("snapshot_expiry_enabled", "snapshot_retention_hours", "max_snapshots_to_keep", "snapshot_retain_max"), _EXPIRY
    ),
    **dict.fromkeys(
        ("snapshot_expire_limit", "snapshot_expire_ids", "snapshot_give_up_ids", "writer_mark_retention_hours"), _EXPIRY
    ),
    "clean_expired_metadata": _EXPIRY,
    **dict.fromkeys(
        ("orphan_sweep_enabled", "orphan_sweep_prefixes", "orphan_min_sightings", "orphan_inventory"), _ORPHANS
    ),
    **dict.fromkeys(("orphan_max_delete_ratio", "orphan_max_missing_ratio"), _ORPHANS),
    **dict.fromkeys(("partition_retention_hours", "partition_time_column", "partition_time_pattern"), _PARTITIONS),
    **dict.fromkeys(("partition_expire_limit", "branch", "where"), _PARTITIONS),
}
"""The keys that say whether an operation runs, what it deletes, or how it proves that no row was lost."""

UNRESTRICTED = frozenset(POLICY_KEYS) - _DECIDES.keys() - {"operations", _PROTECTED}
"""The keys that any request may set: by no value of theirs more is deleted."""


def requests_may(environment: Mapping[str, str]) -> frozenset[str]:
    """The operations and keys that the deployment admits in requests, whatever a table's policy says.

    Raises:
        PolicyError: the variable names anything else.
    """
    known = (_ALL, *(operation.value for operation in Operation), *_DECIDES, _PROTECTED)
    named = [name for name in (part.strip() for part in environment.get(REQUESTS_MAY, "").split(",")) if name]
    for name in named:
        if name not in known:
            raise PolicyError(
                f"environment variable {REQUESTS_MAY} has '{name}', which is no operation and no key that requests are "
                f"held to{did_you_mean(name, known)}; write a comma-separated list of them, or {_ALL}"
            )
    return frozenset(named)


def require_no_more(policy: ResolvedPolicy, asked: ResolvedPolicy, may: frozenset[str], table: str) -> None:
    """Check a request: ``policy`` is the table's own, ``asked`` the one with the request's settings.

    Raises:
        RequestRefused: by the request more would be deleted; the message says what, and which setting admits it.
    """
    if _ALL in may:
        return
    refused: dict[str, str] = {}
    for name in sorted(asked.schedules.keys() - policy.schedules.keys()):
        refused[_ALL] = f"have a schedule '{name}', which the policy does not have"
    own = list(_parts(policy))
    # Every pass cleans up after failed loads, even one without an operation of its own.
    refused |= _looser(policy.policy, asked.policy, None, may)
    for part in _parts(asked):
        for operation in part.operations:
            refused |= _loosest(own, part, operation, may)
    if refused:
        raise RequestRefused(
            f"a request for {table} cannot {', and cannot '.join(refused.values())}: it does no more than the table's "
            f"policy; to admit that, the operator sets RequestsMay ({REQUESTS_MAY}) to {','.join(refused)}"
        )


@dataclass(frozen=True, slots=True)
class _Part:
    schedule: str | None
    resolved: ResolvedPolicy

    @property
    def policy(self) -> Policy:
        return self.resolved.policy

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.policy.operations


def _parts(resolved: ResolvedPolicy) -> Iterator[_Part]:
    """What runs under settings of its own: as ``policy_parts``, due or not."""
    if not resolved.schedules or resolved.sources["operations"] == OVERRIDE_SOURCE:
        yield _Part(None, resolved)
        return
    yield _Part(None, resolved.unscheduled())
    for name in sorted(resolved.schedules):
        yield _Part(name, resolved.schedules[name].resolved)


def _loosest(own: list[_Part], part: _Part, operation: Operation, may: frozenset[str]) -> dict[str, str]:
    """What is refused of an operation of a request, by what admits it; nothing where a part of the policy allows it."""
    having = [one for one in own if operation in one.operations]
    if not having:
        is_admitted = operation.value in may
        told = {} if is_admitted else {operation.value: f"ask for {operation.value}, which the policy does not have"}
        return told | _looser(own[0].policy, part.policy, operation, may) | _waiver(own[0], part, operation, may)
    # Of its own schedule first: the sentence is about that.
    having.sort(key=lambda one: one.schedule != part.schedule)
    found = [_looser(one.policy, part.policy, operation, may) | _waiver(one, part, operation, may) for one in having]
    return {} if {} in found else found[0]


def _looser(own: Policy, asked: Policy, operation: Operation | None, may: frozenset[str]) -> dict[str, str]:
    """The keys that decide about an operation, and of which the request has a looser value, each with a sentence.

    ``None``: those that decide about every pass.
    """
    told: dict[str, str] = {}
    for key, operations in _DECIDES.items():
        is_meant = operations == _EVERY if operation is None else operation in operations
        if not is_meant or key in may:
            continue
        before, after, direction = getattr(own, key), getattr(asked, key), KEY_FACTS[key].tighter
        if before != after and (direction is None or not direction.holds(before, after)):
            told[key] = f"set {key} to {text_of(after)}, where the policy has {text_of(before)}"
    return told


def _waiver(own: _Part, asked: _Part, operation: Operation, may: frozenset[str]) -> dict[str, str]:
    """What is refused of a request that protects more: by it the data beside another table's metadata go (rule 263)."""
    more = [one for one in asked.resolved.waived_prefixes if one not in own.resolved.waived_prefixes]
    if operation is not Operation.REMOVE_ORPHANS or not more or _PROTECTED in may:
        return {}
    return {_PROTECTED: f"add {text_of(tuple(more))} to {_PROTECTED}, by which what another table has there is removed"}
