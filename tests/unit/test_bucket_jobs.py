"""Whose an operation is when the bucket's own job failed, is disabled, or has not run, although it is switched on."""

from __future__ import annotations

import pytest

from icekeeper.operation_facts import BuiltIn
from icekeeper.policy import Operation, Ownership
from icekeeper.policy.ownership import (
    OWNED,
    OWNED_FOR_ALL_TABLES,
    BucketJobs,
    BucketMaintenance,
    BuiltInState,
    Job,
    Owners,
    decide_owners,
    why_bucket_expires,
)

COMPACTION, SNAPSHOTS, FILES = BuiltIn
OPERATIONS = {
    COMPACTION: {Operation.COMPACT, Operation.REWRITE_POSITION_DELETES},
    SNAPSHOTS: {Operation.EXPIRE_SNAPSHOTS},
    FILES: {Operation.REMOVE_ORPHANS},
}
# Amazon S3 user guide, "S3 Tables maintenance job status", word for word.
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


def owners(jobs: dict[BuiltIn, Job], ownership: Ownership = Ownership.AUTO) -> Owners:
    """Of a bucket in which everything is switched on, as AWS begins."""
    on = BuiltInState(is_enabled=True)
    return decide_owners(BucketMaintenance(dict.fromkeys(BuiltIn, on), jobs=BucketJobs(jobs)), ownership)


@pytest.mark.parametrize("built_in", BuiltIn)
@pytest.mark.parametrize("status", ["Not_Yet_Run", "Successful", "A_Word_To_Come"])
def test_what_runs_is_the_buckets(built_in: BuiltIn, status: str) -> None:
    found = owners({built_in: Job(status)})
    assert (set(found.owned), found.warnings) == (set.union(*OPERATIONS.values()), {})
    assert set(found.owned.values()) == {OWNED}


@pytest.mark.parametrize("built_in", BuiltIn)
def test_what_is_disabled_is_ours_although_it_is_configured(built_in: BuiltIn) -> None:
    """AWS disables snapshot management for a table with a retention of a branch or tag (platform 58)."""
    found = owners({built_in: Job("Disabled")})
    assert set(found.owned) == set.union(*OPERATIONS.values()) - OPERATIONS[built_in]
    assert (found.taken_over, found.warnings) == ({}, {})


@pytest.mark.parametrize("message", [TAGS, PROPERTIES, TAGS.upper()])
def test_what_fails_for_good_is_ours_and_told(message: str) -> None:
    """Otherwise nobody ever expires the snapshots of such a table (rule 140)."""
    found = owners({SNAPSHOTS: Job("Failed", message)})
    assert set(found.owned) == {Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.REMOVE_ORPHANS}
    assert found.warnings == {
        "bucket_jobs_failed": "of the table bucket's own maintenance icebergSnapshotManagement failed: "
        f"{message} (that lasts, so Icekeeper does it)"
    }


@pytest.mark.parametrize("message", [*PASSING, GC])
@pytest.mark.parametrize("built_in", BuiltIn)
def test_what_failed_once_stays_the_buckets_and_is_told(built_in: BuiltIn, message: str) -> None:
    """It comes again; and where gc.enabled is false, we may delete nothing either."""
    found = owners({built_in: Job("Failed", message)})
    told = message or "it does not say why"
    assert {operation: found.owned[operation] for operation in OPERATIONS[built_in]} == dict.fromkeys(
        OPERATIONS[built_in], f"{OWNED}; the bucket's own last run failed: {told}"
    )
    assert found.warnings == {
        "bucket_jobs_failed": f"of the table bucket's own maintenance {built_in.value} failed: {told}"
    }


@pytest.mark.parametrize("built_in", [COMPACTION, FILES])
def test_a_message_lasts_only_for_what_it_is_about(built_in: BuiltIn) -> None:
    assert OPERATIONS[built_in] <= set(owners({built_in: Job("Failed", TAGS)}).owned)


@pytest.mark.parametrize("job", [Job("Disabled"), Job("Failed", TAGS), Job("Successful")])
def test_taking_over_switches_off_also_what_stands_still(job: Job) -> None:
    """It begins again when the tag is gone."""
    found = owners({SNAPSHOTS: job}, Ownership.ICEKEEPER)
    assert found.taken_over[Operation.EXPIRE_SNAPSHOTS] is SNAPSHOTS
    assert found.owned == {Operation.REMOVE_ORPHANS: OWNED_FOR_ALL_TABLES}


def test_jobs_that_may_not_be_read_are_taken_to_run() -> None:
    on = BuiltInState(is_enabled=True)
    bucket = BucketMaintenance({SNAPSHOTS: on}, jobs=BucketJobs(unreadable="S3 Tables failed with AccessDenied"))
    found = decide_owners(bucket, Ownership.AUTO)
    assert found.owned[Operation.EXPIRE_SNAPSHOTS] == OWNED
    assert found.warnings == {
        "bucket_jobs_unreadable": "whether the table bucket's own maintenance works cannot be read (S3 Tables failed "
        "with AccessDenied), so it is taken to; allow s3tables:GetTableMaintenanceJobStatus"
    }


def test_what_may_not_be_read_is_told_in_one_sentence() -> None:
    found = decide_owners(BucketMaintenance(unreadable=dict.fromkeys(BuiltIn, "S3 Tables refused")), Ownership.AUTO)
    assert found.warnings == {
        "bucket_unreadable": "what the table bucket maintains itself cannot be read (S3 Tables refused); allow "
        "s3tables:GetTableMaintenanceConfiguration and s3tables:GetTableBucketMaintenanceConfiguration"
    }


@pytest.mark.parametrize(
    ("enabled", "job", "expires"),
    [
        (True, None, True),
        (True, Job("Successful"), True),
        (True, Job("Failed", "Internal error"), True),
        (True, Job("Failed", TAGS), False),
        (True, Job("Disabled"), False),
        (False, Job("Disabled"), False),
    ],
)
def test_a_pin_holds_only_where_the_bucket_does_not_expire(enabled: bool, job: Job | None, expires: bool) -> None:
    jobs = BucketJobs({} if job is None else {SNAPSHOTS: job})
    bucket = BucketMaintenance({SNAPSHOTS: BuiltInState(enabled)}, jobs=jobs)
    assert (why_bucket_expires(bucket) is not None) is expires
    assert why_bucket_expires(None) is None


def test_a_pin_is_warned_of_what_is_not_known() -> None:
    bucket = BucketMaintenance(unreadable={SNAPSHOTS: "S3 Tables failed with AccessDenied"})
    assert why_bucket_expires(bucket) == (
        "whether the table bucket expires snapshots itself cannot be read (S3 Tables failed with AccessDenied); if it "
        "does, no pin keeps it"
    )
