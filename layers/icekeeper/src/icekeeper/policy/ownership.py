"""Who maintains a table: the table bucket's own maintenance, or Icekeeper (rule 115).

In table buckets AWS itself compacts tables, expires snapshots and removes unreferenced files unless that is switched
off.  If both did the same work they would undo and overtake each other, so Icekeeper leaves to the bucket what the
bucket does, or what it may do where that cannot be read.  Types and their defaults: Amazon S3 API reference,
"PutTableMaintenanceConfiguration" and
"PutTableBucketMaintenanceConfiguration"; Amazon S3 user guide, "Maintenance for tables" and "Maintenance for table
buckets".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icekeeper.operation_facts import FACTS, BuiltIn, Operation
from icekeeper.policy.choices import Ownership

__all__ = [
    "OWNED",
    "OWNED_FOR_ALL_TABLES",
    "BucketMaintenance",
    "BuiltInState",
    "Owners",
    "decide_owners",
]

OWNED = "owned by the table bucket"
OWNED_FOR_ALL_TABLES = (
    f"{OWNED}: unreferenced file removal is one setting for all its tables, which ownership=icekeeper does not change"
)


_GET_ACTION: Mapping[BuiltIn, str] = {
    BuiltIn.COMPACTION: "s3tables:GetTableMaintenanceConfiguration",
    BuiltIn.SNAPSHOT_MANAGEMENT: "s3tables:GetTableMaintenanceConfiguration",
    BuiltIn.UNREFERENCED_FILE_REMOVAL: "s3tables:GetTableBucketMaintenanceConfiguration",
}


@dataclass(frozen=True, slots=True)
class BuiltInState:
    """One of a bucket's own operations: whether it is enabled, and the settings that somebody configured."""

    is_enabled: bool
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BucketMaintenance:
    """What a table bucket does for one table: each :class:`BuiltIn` has a state, or a reason why that is not known."""

    states: Mapping[BuiltIn, BuiltInState] = field(default_factory=dict)
    unreadable: Mapping[BuiltIn, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Owners:
    """Which operations Icekeeper leaves to the bucket, with the reason, and which it takes over.

    Before an operation that is taken over runs, the bucket's own is switched off.
    """

    owned: Mapping[Operation, str] = field(default_factory=dict)
    taken_over: Mapping[Operation, BuiltIn] = field(default_factory=dict)


def decide_owners(bucket: BucketMaintenance | None, ownership: Ownership) -> Owners:
    """Decide who runs each operation; ``bucket`` is ``None`` where nobody but Icekeeper maintains tables."""
    if bucket is None:
        return Owners()
    owned: dict[Operation, str] = {}
    taken_over: dict[Operation, BuiltIn] = {}
    for operation, facts in FACTS.items():
        built_in = facts.built_in
        if built_in is None:
            continue
        state = bucket.states.get(built_in)
        if state is None:
            owned[operation] = _unknown(built_in, bucket.unreadable.get(built_in, "nothing was answered"))
        elif not state.is_enabled:
            continue
        elif ownership is not Ownership.ICEKEEPER:
            owned[operation] = OWNED
        elif built_in is BuiltIn.UNREFERENCED_FILE_REMOVAL:
            owned[operation] = OWNED_FOR_ALL_TABLES
        else:
            taken_over[operation] = built_in
    return Owners(owned, taken_over)


def _unknown(built_in: BuiltIn, why: str) -> str:
    return f"whether the table bucket does this itself cannot be read ({why}); allow {_GET_ACTION[built_in]}"
