"""Who does what in a table bucket that maintains its tables itself, and what its settings mean for ours."""

from __future__ import annotations

from collections.abc import Mapping
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
    BuiltInState,
    bucket_layers,
    decide_owners,
)

COMPACTION, SNAPSHOTS, FILES = BuiltIn
ON, OFF = BuiltInState(is_enabled=True), BuiltInState(is_enabled=False)
ALL_ON = BucketMaintenance(dict.fromkeys(BuiltIn, ON))


def test_what_the_bucket_has_enabled_is_the_buckets() -> None:
    assert decide_owners(ALL_ON, Ownership.AUTO).owned == {
        Operation.COMPACT: "owned by the table bucket",
        Operation.REWRITE_POSITION_DELETES: "owned by the table bucket",
        Operation.EXPIRE_SNAPSHOTS: "owned by the table bucket",
        Operation.REMOVE_ORPHANS: "owned by the table bucket",
    }
    assert decide_owners(ALL_ON, Ownership.AUTO).taken_over == {}


@pytest.mark.parametrize(
    ("enabled", "owned"),
    [
        (COMPACTION, {Operation.COMPACT, Operation.REWRITE_POSITION_DELETES}),
        (SNAPSHOTS, {Operation.EXPIRE_SNAPSHOTS}),
        (FILES, {Operation.REMOVE_ORPHANS}),
    ],
)
def test_each_built_in_owns_its_operations_alone(enabled: BuiltIn, owned: set[Operation]) -> None:
    states = {**dict.fromkeys(BuiltIn, OFF), enabled: ON}
    assert set(decide_owners(BucketMaintenance(states), Ownership.AUTO).owned) == owned


def test_where_storage_maintains_nothing_everything_is_ours() -> None:
    for ownership in Ownership:
        assert decide_owners(None, ownership) == decide_owners(
            BucketMaintenance(dict.fromkeys(BuiltIn, OFF)), ownership
        )
        assert decide_owners(None, ownership).owned == decide_owners(None, ownership).taken_over == {}


def test_taking_over_spares_what_is_set_for_the_whole_bucket() -> None:
    owners = decide_owners(ALL_ON, Ownership.ICEKEEPER)
    assert owners.taken_over == {
        Operation.COMPACT: COMPACTION,
        Operation.REWRITE_POSITION_DELETES: COMPACTION,
        Operation.EXPIRE_SNAPSHOTS: SNAPSHOTS,
    }
    assert owners.owned == {Operation.REMOVE_ORPHANS: OWNED_FOR_ALL_TABLES}
    assert OWNED_FOR_ALL_TABLES.startswith(OWNED)


@pytest.mark.parametrize("ownership", Ownership)
def test_what_cannot_be_read_is_nobodys_to_touch(ownership: Ownership) -> None:
    """Also where we were told to take over: who does not know what runs cannot switch it off."""
    bucket = BucketMaintenance({COMPACTION: OFF, SNAPSHOTS: OFF}, {FILES: "S3 Tables failed with 500"})
    assert decide_owners(bucket, ownership).owned == {
        Operation.REMOVE_ORPHANS: "whether the table bucket does this itself cannot be read (S3 Tables failed with "
        "500); allow s3tables:GetTableBucketMaintenanceConfiguration"
    }
    assert set(decide_owners(BucketMaintenance(), ownership).owned) == set(decide_owners(ALL_ON, Ownership.AUTO).owned)


def test_what_is_the_buckets_does_not_run_and_is_work_again_once_it_is_not() -> None:
    ours = resolve([])
    theirs = ours.owned_by(decide_owners(ALL_ON, Ownership.AUTO))
    assert [operation for operation in Operation if theirs.runs(operation)] == [Operation.REWRITE_MANIFESTS]
    assert theirs.why_not(Operation.COMPACT) == OWNED
    assert ours.owned_by(decide_owners(None, Ownership.AUTO)).fingerprint() == ours.fingerprint()
    assert theirs.fingerprint() != ours.fingerprint()


def stated(**settings: object) -> BucketMaintenance:
    """Settings by the API's names."""
    of = {
        COMPACTION: ("targetFileSizeMB", "strategy"),
        SNAPSHOTS: ("minSnapshotsToKeep", "maxSnapshotAgeHours"),
        FILES: ("unreferencedDays", "nonCurrentDays"),
    }
    return BucketMaintenance(
        {
            built_in: BuiltInState(False, {name: settings[name] for name in names if name in settings})
            for built_in, names in of.items()
        }
    )


@pytest.mark.parametrize(
    ("bucket", "sort_columns", "values"),
    [
        (
            stated(
                targetFileSizeMB=64,
                minSnapshotsToKeep=3,
                maxSnapshotAgeHours=200,
                unreferencedDays=3,
                nonCurrentDays=10,
            ),
            (),
            {
                "target_file_size_mb": 64,
                "max_snapshots_to_keep": 3,
                "snapshot_retention_hours": 200,
                "orphan_older_than_hours": 312,
            },
        ),
        (stated(unreferencedDays=2), (), {"orphan_older_than_hours": 48}),
        (stated(strategy="auto"), (), {"strategy": "auto"}),
        (stated(strategy="binpack"), ("a",), {"strategy": "binpack"}),
        (stated(strategy="sort"), ("a",), {"strategy": "sort"}),
        (stated(strategy="z-order"), ("a", "b"), {"strategy": "zorder", "zorder_columns": ("a", "b")}),
    ],
)
def test_stated_settings_are_a_layer(
    bucket: BucketMaintenance, sort_columns: tuple[str, ...], values: dict[str, object]
) -> None:
    assert bucket_layers(bucket, sort_columns) == [Layer(BUCKET_SOURCE, values)]
    resolve(bucket_layers(bucket, sort_columns))  # in the types of our keys


@pytest.mark.parametrize("bucket", [ALL_ON, BucketMaintenance(), stated(strategy="sort"), stated(strategy="z-order")])
def test_what_nobody_stated_is_no_layer(bucket: BucketMaintenance) -> None:
    """AWS's own five days must not expire what a deployment keeps for weeks."""
    assert bucket_layers(bucket, ()) == []


ARN = "arn:aws:s3tables:eu-west-1:123456789012:bucket/lake"


class Service:
    """The S3 Tables API, as far as it is about maintenance."""

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


def test_a_warm_function_sees_that_the_bucket_began_to_do_it_itself() -> None:
    """It knew less than the next function, so that every plan of its was stale, and no table maintained any more."""
    service, now_s = Service(), [1000.0]
    maintenance = TableBucketMaintenance(ARN, lambda: service, {}, lambda: now_s[0])

    def is_enabled() -> bool:
        return maintenance.read(TableName(("ns",), "t")).states[BuiltIn.UNREFERENCED_FILE_REMOVAL].is_enabled

    assert not is_enabled()
    service.of_bucket = {}
    assert not is_enabled()
    now_s[0] += 11
    assert is_enabled()


def test_what_is_switched_off_never_loses_its_settings() -> None:
    """They say how long snapshots are kept, and hold for us; without them more would expire."""
    service = Service()
    maintenance = TableBucketMaintenance(ARN, lambda: service, {})
    service.is_throttled = True
    with pytest.raises(StorageError, match=r"^its settings cannot be read: .*S3 Tables failed with TooManyReq"):
        maintenance.disable(TableName(("ns",), "t"), BuiltIn.SNAPSHOT_MANAGEMENT)
    assert service.puts == []
