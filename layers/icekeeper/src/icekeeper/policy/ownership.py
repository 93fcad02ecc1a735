"""Who maintains a table: the table bucket's own maintenance or Icekeeper.

In table buckets, AWS compacts tables, expires snapshots and removes unreferenced files unless this is switched off or
its jobs have stalled.  If both did the same work, they would conflict.  So Icekeeper leaves to the bucket what the
bucket does, and what it may do if its configuration cannot be read.

Sources: Amazon S3 API reference, "PutTableMaintenanceConfiguration", "PutTableBucketMaintenanceConfiguration" and
"TableMaintenanceJobStatusValue"; Amazon S3 user guide, "Maintenance for tables", "Maintenance for table buckets",
"S3 Tables maintenance job status" and "Considerations and limitations for maintenance jobs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from icekeeper.operation_facts import FACTS, BuiltIn, Operation
from icekeeper.policy.layers import Layer
from icekeeper.policy.values import Ownership

# Parts of the messages of failures that last until the table changes (platform: bucket-maintenance-may-stall).  Other
# failures are temporary: time limits, conflicts, missing keys, internal errors.  gc.enabled=false lasts too, but
# forbids our own deletions as well.
_LASTING: Mapping[BuiltIn, tuple[str, ...]] = {
    BuiltIn.SNAPSHOT_MANAGEMENT: ("user defined tags or references", "history.expire.")
}


# States of a run, as the S3 Tables API names them.
_FAILED, _DISABLED = "Failed", "Disabled"


def lasts(built_in: BuiltIn, status: str, message: str) -> bool:
    """Whether a run failed in a way that lasts, so that the bucket does not maintain the table."""
    lowered = message.lower()
    return status == _FAILED and any(part in lowered for part in _LASTING.get(built_in, ()))


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
class BucketMaintenance:
    """A bucket's own maintenance of one table: each :class:`BuiltIn` is known, or unreadable for a reason."""

    is_enabled: Mapping[BuiltIn, bool] = field(default_factory=dict)
    unreadable: Mapping[BuiltIn, str] = field(default_factory=dict)
    settings: Mapping[BuiltIn, Mapping[str, object]] = field(default_factory=dict)
    """The explicit settings of each known operation."""
    jobs: Mapping[BuiltIn, tuple[str, str]] = field(default_factory=dict)
    """The last runs of the enabled operations, if they were read: status and message.

    The status is ``Not_Yet_Run``, ``Successful``, ``Failed`` or ``Disabled``; a newer word of the API is ignored.  The
    message says why the run failed.
    """
    jobs_unreadable: str = ""
    """Why the runs could not be read; empty: they were read, or no read was tried."""

    def does(self, built_in: BuiltIn) -> bool:
        """Whether the bucket is known to run this operation on the table: it is enabled, and has not stalled."""
        if not self.is_enabled.get(built_in):
            return False
        status, message = self.jobs.get(built_in, ("", ""))
        return status != _DISABLED and not lasts(built_in, status, message)


@dataclass(frozen=True, slots=True)
class Owners:
    """The operations that Icekeeper leaves to the bucket, with the reason, and those that it takes over.

    Before an operation that is taken over runs, the bucket's own operation is switched off.
    """

    owned: Mapping[Operation, str] = field(default_factory=dict)
    taken_over: Mapping[Operation, BuiltIn] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Kind → sentence about a problem of the bucket's own maintenance."""


def decide_owners(bucket: BucketMaintenance | None, ownership: Ownership) -> Owners:
    """Decide who runs each operation; ``bucket`` is ``None`` if only Icekeeper maintains tables.

    A stalled operation of the bucket is taken over as well, because it may start again.
    """
    if bucket is None:
        return Owners()
    owned: dict[Operation, str] = {}
    taken_over: dict[Operation, BuiltIn] = {}
    for operation, facts in FACTS.items():
        built_in = facts.built_in
        if built_in is None:
            continue
        is_enabled = bucket.is_enabled.get(built_in)
        if is_enabled is None:
            why = bucket.unreadable.get(built_in, "there was no answer")
            owned[operation] = (
                f"it is unknown whether the table bucket does this itself ({why}); allow {_GET_ACTION[built_in]}"
            )
        elif not is_enabled:
            continue
        elif ownership is Ownership.ICEKEEPER and built_in is not BuiltIn.UNREFERENCED_FILE_REMOVAL:
            taken_over[operation] = built_in
        elif bucket.does(built_in):
            owned[operation] = _owned(bucket, built_in, ownership)
    return Owners(owned, taken_over, dict(_warnings(bucket)))


def why_bucket_expires(bucket: BucketMaintenance | None) -> str | None:
    """Why a snapshot that Icekeeper keeps may expire, as a sentence; ``None``: only Icekeeper expires snapshots."""
    if bucket is None:
        return None
    built_in = BuiltIn.SNAPSHOT_MANAGEMENT
    if built_in not in bucket.is_enabled:
        why = bucket.unreadable.get(built_in, "there was no answer")
        return f"it is unknown whether the table bucket expires snapshots itself ({why}); if it does, it ignores pins"
    if not bucket.does(built_in):
        return None
    return (
        "the table bucket expires snapshots itself, and ignores pins: the pinned snapshot may expire earlier; set"
        " ownership=icekeeper, or switch the bucket's snapshot management off for this table"
    )


def _owned(bucket: BucketMaintenance, built_in: BuiltIn, ownership: Ownership) -> str:
    status, message = bucket.jobs.get(built_in, ("", ""))
    reason = OWNED_FOR_ALL_TABLES if ownership is Ownership.ICEKEEPER else OWNED
    if status != _FAILED:
        return reason
    return f"{reason}; the bucket's own last run failed: {message or 'it does not say why'}"


def _warnings(bucket: BucketMaintenance) -> Iterator[tuple[str, str]]:
    if bucket.unreadable:
        whys = "; ".join(dict.fromkeys(bucket.unreadable.values()))
        rights = " and ".join(dict.fromkeys(_GET_ACTION[built_in] for built_in in bucket.unreadable))
        yield (
            "bucket_unreadable",
            f"the table bucket's own maintenance settings cannot be read ({whys}); allow {rights}",
        )
    if bucket.jobs_unreadable:
        yield (
            "bucket_jobs_unreadable",
            f"the status of the table bucket's own maintenance cannot be read ({bucket.jobs_unreadable}), so Icekeeper "
            "assumes that it works; allow s3tables:GetTableMaintenanceJobStatus",
        )
    failed = [
        f"{built_in.value} failed: {message or 'it does not say why'}"
        + (" (it will fail again, so Icekeeper does it)" if lasts(built_in, status, message) else "")
        for built_in, (status, message) in bucket.jobs.items()
        if status == _FAILED
    ]
    if failed:
        yield "bucket_jobs_failed", f"the table bucket's own maintenance: {'; '.join(failed)}"


BUCKET_SOURCE = "S3 Tables maintenance configuration"


def bucket_layers(bucket: BucketMaintenance, *, has_order: bool) -> list[Layer]:
    """The explicit settings of the bucket's maintenance as policy keys, in one layer; an empty list if there are none
    (rule: properties-never-loosen).

    They still apply when Icekeeper takes the maintenance over.  AWS's defaults do not: snapshots that the deployment
    keeps for weeks must not expire after AWS's five days.  ``has_order``: the table has a sort order, which S3 Tables'
    ``sort`` and ``z-order`` strategies use (Amazon S3 user guide, "Maintenance for tables"); else these two are
    ignored.
    """
    compaction, snapshots, files = (
        bucket.settings.get(built_in, {})
        for built_in in (BuiltIn.COMPACTION, BuiltIn.SNAPSHOT_MANAGEMENT, BuiltIn.UNREFERENCED_FILE_REMOVAL)
    )
    values: dict[str, object] = {}
    if "targetFileSizeMB" in compaction:
        values["target_file_size_mb"] = compaction["targetFileSizeMB"]
    strategy = compaction.get("strategy")
    if strategy in ("auto", "binpack") or (strategy == "sort" and has_order):
        values["strategy"] = strategy
    elif strategy == "z-order" and has_order:
        values["strategy"] = "zorder"
    if "minSnapshotsToKeep" in snapshots:
        values["max_snapshots_to_keep"] = snapshots["minSnapshotsToKeep"]
    if "maxSnapshotAgeHours" in snapshots:
        values["snapshot_retention_hours"] = snapshots["maxSnapshotAgeHours"]
    if "unreferencedDays" in files:
        # S3 Tables marks an unreferenced file after the first period and deletes it after the second.
        days = [files["unreferencedDays"], files.get("nonCurrentDays", 0)]
        values["orphan_older_than_hours"] = 24 * sum(day for day in days if isinstance(day, int))
    return [Layer(BUCKET_SOURCE, values)] if values else []
