"""Who maintains a table in a table bucket: its own jobs, or Icekeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from icekeeper.catalogs.bucket_maintenance import TableBucketMaintenance
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy import Layer, Operation, Ownership, resolve
from icekeeper.policy.ownership import (
    BUCKET_SOURCE,
    OWNED,
    OWNED_FOR_ALL_TABLES,
    BucketMaintenance,
    Owners,
    bucket_layers,
    decide_owners,
    why_bucket_expires,
)

# Which operations a table bucket runs itself, and how its settings affect ours.

COMPACTION, SNAPSHOTS, FILES = BuiltIn
ALL_ON = BucketMaintenance(dict.fromkeys(BuiltIn, True))
OPERATIONS = {
    COMPACTION: {Operation.COMPACT, Operation.REWRITE_POSITION_DELETES},
    SNAPSHOTS: {Operation.EXPIRE_SNAPSHOTS},
    FILES: {Operation.REMOVE_ORPHANS},
}


def test_operations_that_the_bucket_has_enabled_belong_to_the_bucket() -> None:
    theirs = decide_owners(ALL_ON, Ownership.AUTO)
    assert theirs.owned == dict.fromkeys(set.union(*OPERATIONS.values()), "owned by the table bucket")
    assert theirs.taken_over == {}
    nothing = dict.fromkeys(BuiltIn, False)
    for enabled, owned in OPERATIONS.items():
        found = decide_owners(BucketMaintenance({**nothing, enabled: True}), Ownership.AUTO)
        assert set(found.owned) == owned
    for ownership in Ownership:
        ours = decide_owners(None, ownership)
        assert ours == decide_owners(BucketMaintenance(nothing), ownership)
        assert ours.owned == ours.taken_over == {}


def test_taking_over_keeps_the_settings_of_the_whole_bucket() -> None:
    owners = decide_owners(ALL_ON, Ownership.ICEKEEPER)
    assert owners.taken_over == {
        Operation.COMPACT: COMPACTION,
        Operation.REWRITE_POSITION_DELETES: COMPACTION,
        Operation.EXPIRE_SNAPSHOTS: SNAPSHOTS,
    }
    assert owners.owned == {Operation.REMOVE_ORPHANS: OWNED_FOR_ALL_TABLES}
    assert OWNED_FOR_ALL_TABLES.startswith(OWNED)


@pytest.mark.parametrize("ownership", Ownership)
def test_operations_of_unreadable_settings_are_left_to_the_bucket(ownership: Ownership) -> None:
    """This includes ownership "icekeeper": a job cannot be switched off if it is unknown whether it runs."""
    bucket = BucketMaintenance({COMPACTION: False, SNAPSHOTS: False}, {FILES: "S3 Tables failed with 500"})
    assert decide_owners(bucket, ownership).owned == {
        Operation.REMOVE_ORPHANS: "it is unknown whether the table bucket does this itself (S3 Tables failed with "
        "500); allow s3tables:GetTableBucketMaintenanceConfiguration"
    }
    assert set(decide_owners(BucketMaintenance(), ownership).owned) == set(decide_owners(ALL_ON, Ownership.AUTO).owned)


def test_operations_of_the_bucket_do_not_run_until_they_belong_to_us_again() -> None:
    ours = resolve([])
    theirs = replace(ours, owners=decide_owners(ALL_ON, Ownership.AUTO))
    assert [operation for operation in Operation if theirs.runs(operation)] == [Operation.REWRITE_MANIFESTS]
    assert theirs.why_not(Operation.COMPACT) == OWNED
    assert replace(ours, owners=decide_owners(None, Ownership.AUTO)).fingerprint() == ours.fingerprint()
    assert theirs.fingerprint() != ours.fingerprint()


def stated(**settings: object) -> BucketMaintenance:
    """The settings of a bucket by the API's names."""
    of = {
        COMPACTION: ("targetFileSizeMB", "strategy"),
        SNAPSHOTS: ("minSnapshotsToKeep", "maxSnapshotAgeHours"),
        FILES: ("unreferencedDays", "nonCurrentDays"),
    }
    return BucketMaintenance(
        dict.fromkeys(of, False),
        settings={
            built_in: {name: settings[name] for name in names if name in settings} for built_in, names in of.items()
        },
    )


@pytest.mark.parametrize(
    ("bucket", "has_order", "values"),
    [
        (stated(targetFileSizeMB=64), False, {"target_file_size_mb": 64}),
        (stated(minSnapshotsToKeep=3), False, {"max_snapshots_to_keep": 3}),
        (stated(maxSnapshotAgeHours=200), False, {"snapshot_retention_hours": 200}),
        (stated(unreferencedDays=3, nonCurrentDays=10), False, {"orphan_older_than_hours": 312}),
        (stated(unreferencedDays=2), False, {"orphan_older_than_hours": 48}),
        (stated(strategy="auto"), False, {"strategy": "auto"}),
        (stated(strategy="binpack"), True, {"strategy": "binpack"}),
        (stated(strategy="sort"), True, {"strategy": "sort"}),
        (stated(strategy="z-order"), True, {"strategy": "zorder"}),
    ],
)
def test_stated_settings_are_a_layer(bucket: BucketMaintenance, has_order: bool, values: dict[str, object]) -> None:
    assert bucket_layers(bucket, has_order=has_order) == [Layer(BUCKET_SOURCE, values)]
    resolve(bucket_layers(bucket, has_order=has_order))  # with the types of our keys


@pytest.mark.parametrize("bucket", [ALL_ON, BucketMaintenance(), stated(strategy="sort"), stated(strategy="z-order")])
def test_default_and_inapplicable_settings_are_not_a_layer(bucket: BucketMaintenance) -> None:
    """AWS's default of five days must not expire snapshots that a deployment keeps for weeks."""
    assert bucket_layers(bucket, has_order=False) == []


ARN = "arn:aws:s3tables:eu-west-1:123456789012:bucket/lake"


class Service:
    """The maintenance part of the S3 Tables API."""

    def __init__(self) -> None:
        self.of_bucket: dict[str, Any] = {"icebergUnreferencedFileRemoval": {"status": "disabled"}}
        self.of_table: dict[str, Any] = {}
        self.is_throttled = False
        self.puts: list[Any] = []

    def get_table_maintenance_configuration(self, **_: str) -> Mapping[str, Any]:
        if self.is_throttled:
            raise ClientError({"Error": {"Code": "TooManyRequestsException"}}, "GetTableMaintenanceConfiguration")
        return {"configuration": self.of_table}

    def get_table_bucket_maintenance_configuration(self, **_: str) -> Mapping[str, Any]:
        return {"configuration": self.of_bucket}

    def put_table_maintenance_configuration(self, **value: Any) -> None:
        self.puts.append(value)


def test_a_warm_function_sees_that_the_bucket_switched_a_job_on() -> None:
    """Otherwise its plans would differ from those of the next function, and no table would be maintained."""
    service, now_s = Service(), [1000.0]
    maintenance = TableBucketMaintenance(ARN, lambda: service, {}, lambda: now_s[0])

    def is_enabled() -> bool:
        return maintenance.read(TableName(("ns",), "t")).is_enabled[BuiltIn.UNREFERENCED_FILE_REMOVAL]

    assert not is_enabled()
    service.of_bucket = {}
    assert not is_enabled()
    now_s[0] += 11
    assert is_enabled()


def test_the_bucket_keeps_the_settings_of_a_job_that_is_switched_off() -> None:
    """Its retention applies to our expiry; without it more snapshots would expire."""
    service = Service()
    maintenance = TableBucketMaintenance(ARN, lambda: service, {})
    service.is_throttled = True
    with pytest.raises(StorageError, match=r"^its settings cannot be read: .*S3 Tables failed with TooManyReq"):
        maintenance.disable(TableName(("ns",), "t"), BuiltIn.SNAPSHOT_MANAGEMENT)
    assert service.puts == []


# Who runs an operation if the bucket's own job is switched on but failed, is disabled, or has not run.
# The messages are quoted from the Amazon S3 user guide, "S3 Tables maintenance job status".
TAGS = "Iceberg Snapshot management does not currently support user defined tags or references."
PROPERTIES = (
    "Iceberg table maintenance configuration is incompatible with 'history.expire.max-snapshot-age-ms' and"
    " 'history.expire.min-snapshots-to-keep' table properties."
)
GC = (
    "Iceberg snapshot management and unreferenced file removal is not supported when the 'gc.enabled' table property is"
    " false."
)
PASSING = (
    "Failed to commit due to out-of-date metadata. Maintenance will be retried at the next available opportunity.",
    "Insufficient access to perform table maintenance.",
    "Encountered Iceberg validation exception when trying to read table.",
    "Internal error",
    "",
)


def owners(jobs: dict[BuiltIn, tuple[str, str]], ownership: Ownership = Ownership.AUTO) -> Owners:
    """The owners in a bucket with all jobs switched on, which is the default."""
    return decide_owners(BucketMaintenance(dict.fromkeys(BuiltIn, True), jobs=jobs), ownership)


@pytest.mark.parametrize("built_in", BuiltIn)
def test_running_jobs_belong_to_the_bucket_and_disabled_jobs_to_us(built_in: BuiltIn) -> None:
    """AWS disables snapshot management for a table with a retention of a branch or tag
    (platform: bucket-maintenance-may-stall)."""
    everything = set.union(*OPERATIONS.values())
    for status in ("Not_Yet_Run", "Successful", "A_Word_To_Come"):
        found = owners({built_in: (status, "")})
        assert (found.owned, found.warnings) == (dict.fromkeys(everything, OWNED), {})
    found = owners({built_in: ("Disabled", "")})
    assert set(found.owned) == everything - OPERATIONS[built_in]
    assert (found.taken_over, found.warnings) == ({}, {})


@pytest.mark.parametrize("message", [TAGS, PROPERTIES, TAGS.upper()])
def test_a_permanently_failing_job_belongs_to_us_and_is_reported(message: str) -> None:
    """Otherwise nothing would ever expire the snapshots of such a table."""
    found = owners({SNAPSHOTS: ("Failed", message)})
    assert set(found.owned) == {Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.REMOVE_ORPHANS}
    assert found.warnings == {
        "bucket_jobs_failed": "the table bucket's own maintenance: icebergSnapshotManagement failed: "
        f"{message} (it will fail again, so Icekeeper does it)"
    }


@pytest.mark.parametrize("message", [*PASSING, GC])
@pytest.mark.parametrize("built_in", BuiltIn)
def test_a_job_that_failed_once_belongs_to_the_bucket_and_is_reported(built_in: BuiltIn, message: str) -> None:
    """The job runs again; and if gc.enabled is false, we may not delete anything either."""
    found = owners({built_in: ("Failed", message)})
    reason = message or "it does not say why"
    why = f"{OWNED}; the bucket's own last run failed: {reason}"
    assert [found.owned[operation] for operation in OPERATIONS[built_in]] == [why] * len(OPERATIONS[built_in])
    warning = f"the table bucket's own maintenance: {built_in.value} failed: {reason}"
    assert found.warnings == {"bucket_jobs_failed": warning}
    if built_in is not SNAPSHOTS:  # the message is only about snapshots
        assert OPERATIONS[built_in] <= set(owners({built_in: ("Failed", TAGS)}).owned)


@pytest.mark.parametrize("job", [("Disabled", ""), ("Failed", TAGS), ("Successful", "")])
def test_taking_over_also_switches_off_jobs_that_do_not_run(job: tuple[str, str]) -> None:
    """The job would start again once the tag is removed."""
    found = owners({SNAPSHOTS: job}, Ownership.ICEKEEPER)
    assert found.taken_over[Operation.EXPIRE_SNAPSHOTS] is SNAPSHOTS
    assert found.owned == {Operation.REMOVE_ORPHANS: OWNED_FOR_ALL_TABLES}


def test_unreadable_settings_are_reported_and_jobs_are_assumed_to_run() -> None:
    bucket = BucketMaintenance({SNAPSHOTS: True}, jobs_unreadable="S3 Tables failed with AccessDenied")
    found = decide_owners(bucket, Ownership.AUTO)
    assert found.owned[Operation.EXPIRE_SNAPSHOTS] == OWNED
    assert found.warnings == {
        "bucket_jobs_unreadable": "the status of the table bucket's own maintenance cannot be read (S3 Tables failed "
        "with AccessDenied), so Icekeeper assumes that it works; allow s3tables:GetTableMaintenanceJobStatus"
    }
    found = decide_owners(BucketMaintenance(unreadable=dict.fromkeys(BuiltIn, "S3 Tables refused")), Ownership.AUTO)
    assert found.warnings == {
        "bucket_unreadable": "the table bucket's own maintenance settings cannot be read (S3 Tables refused); allow "
        "s3tables:GetTableMaintenanceConfiguration and s3tables:GetTableBucketMaintenanceConfiguration"
    }


@pytest.mark.parametrize(
    ("enabled", "job", "expires"),
    [
        (True, None, True),
        (True, ("Successful", ""), True),
        (True, ("Failed", "Internal error"), True),
        (True, ("Failed", TAGS), False),
        (True, ("Disabled", ""), False),
        (False, ("Disabled", ""), False),
    ],
)
def test_a_pin_holds_only_if_the_bucket_does_not_expire_snapshots(
    enabled: bool, job: tuple[str, str] | None, expires: bool
) -> None:
    jobs = {} if job is None else {SNAPSHOTS: job}
    bucket = BucketMaintenance({SNAPSHOTS: enabled}, jobs=jobs)
    assert (why_bucket_expires(bucket) is not None) is expires
    assert why_bucket_expires(None) is None


def test_a_pin_warns_of_unknown_expiry_by_the_bucket() -> None:
    bucket = BucketMaintenance(unreadable={SNAPSHOTS: "S3 Tables failed with AccessDenied"})
    assert why_bucket_expires(bucket) == (
        "it is unknown whether the table bucket expires snapshots itself (S3 Tables failed with AccessDenied); if it "
        "does, it ignores pins"
    )
