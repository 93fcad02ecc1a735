"""Passes over a table bucket as on AWS, with its own maintenance on or off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moto.core.exceptions import JsonRESTError
from moto.s3tables.responses import S3TablesResponse
from pyiceberg.table import StaticTable

from icekeeper.administration.pins import add_pin, declare_load, list_loads, list_pins, stage_load
from icekeeper.catalogs.bucket_maintenance import maintenance_behind
from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.metering import RequestKind, counting
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.ownership import OWNED, OWNED_FOR_ALL_TABLES
from icekeeper.policy.sweep_rhythm import NOT_POSSIBLE
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.staging import LoadState
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from support.aws_table_bucket import runtime_of_table_bucket
from support.command import Command
from support.deletes import commit_deletes, position_delete
from support.maintained_table import MaintainedTable
from support.v3 import data_files

NAME = TableName.parse("ns.t")
COMPACTION, SNAPSHOTS, FILES = (built_in.value for built_in in BuiltIn)
TAGS = "Iceberg Snapshot management does not currently support user defined tags or references."
EAGER = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "min_input_files": "2"}
BLIND = "objects cannot be listed in this storage; it removes unreferenced files itself"


@dataclass(frozen=True)
class Lake:
    """A table bucket whose own maintenance is switched off, with a table of six small files."""

    runtime: Runtime

    @property
    def address(self) -> tuple[str, ...]:
        return self.runtime.catalog.id.warehouse, "ns", "t"

    def answers(self, of_table: dict[str, Any], of_bucket: dict[str, Any]) -> None:
        """Configure the bucket's maintenance; jobs that are not named are enabled."""
        moto_s3tables.ANSWERS[self.address] = of_table
        moto_s3tables.ANSWERS[self.address[:1]] = of_bucket

    def went(self, **jobs: dict[str, str]) -> None:
        """Set the results of the bucket's own jobs."""
        moto_s3tables.JOBS[self.address] = jobs

    @property
    def puts(self) -> list[tuple[str, Any]]:
        return [(kind, value) for address, kind, value in moto_s3tables.PUTS if address == self.address]

    def maintain(self, *, dry_run: bool = False, unsafe: bool = False, **settings: str) -> PassOutcome:
        with open_engine(EngineName.LOCAL) as engine:
            return self.runtime.maintain(NAME, {**EAGER, **settings}, engine, dry_run=dry_run, unsafe=unsafe)

    def run(self, operation: str, **settings: Any) -> OperationOutcome:
        (outcome,) = self.maintain(operations=operation, **settings).operations
        return outcome

    @property
    def loaded(self) -> LoadedTable:
        return self.runtime.catalog.load(NAME)


@pytest.fixture
def lake(moto_server: MotoServer, tmp_path: Path) -> Iterator[Lake]:
    yield Lake(runtime_of_table_bucket(moto_server, tmp_path, appends=6))
    for known in (moto_s3tables.ANSWERS, moto_s3tables.JOBS, moto_s3tables.PUTS):
        known.clear()


def endings(outcome: PassOutcome) -> dict[str, tuple[str, str | None]]:
    return {part.operation.value: (part.status.value, part.reason) for part in outcome.operations}


def test_failed_jobs_of_the_bucket_are_reported_and_lasting_failures_taken_over(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's tag stops the bucket's expiry for good, although its configuration remains enabled."""
    lake.answers({}, {})
    requested: list[str] = []
    response: Any = S3TablesResponse
    answered = response.get_table_maintenance_job_status

    def count(self: S3TablesResponse) -> Any:
        requested.append(self.raw_path)
        return answered(self)

    # The status of jobs is read only if an operation is left to the bucket.
    with monkeypatch.context() as patch:
        patch.setattr(S3TablesResponse, "get_table_maintenance_job_status", count)
        loaded = lake.loaded
        lake.runtime.policy(loaded, {"operations": "rewrite_manifests"})
        lake.runtime.policy(loaded, {"operations": "compact,expire_snapshots", "ownership": "icekeeper"})
        lake.runtime.policy(loaded, {"maintenance_enabled": "false"})
        assert requested == []
        lake.runtime.policy(loaded, {"operations": "rewrite_manifests,expire_snapshots"})
        assert len(requested) == 1

    # If the bucket does not answer, no operation is skipped: moto without the operation returns HTTP 500.
    with monkeypatch.context() as patch:
        patch.delattr(S3TablesResponse, "get_table_maintenance_configuration")
        with pytest.raises(StorageError, match=r"^the maintenance of table bucket arn:\S+ cannot be read: S3 Tables "):
            lake.maintain()
        (skip,) = lake.runtime.detect({}).skipped
        assert (skip.table, skip.is_error) == ("ns.t", True)
        assert skip.reason.startswith("the maintenance of table bucket ")

    lake.went(**{COMPACTION: {"status": "Failed", "failureMessage": "Internal error"}})
    assert endings(lake.maintain(operations="compact,expire_snapshots")) == {
        "compact": ("skipped", f"{OWNED}; the bucket's own last run failed: Internal error"),
        "expire_snapshots": ("skipped", OWNED),
    }
    lake.went(**{SNAPSHOTS: {"status": "Failed", "failureMessage": TAGS}})
    found = endings(lake.maintain(operations="compact,expire_snapshots"))
    assert found == {"compact": ("skipped", OWNED), "expire_snapshots": ("succeeded", None)}
    assert len(lake.loaded.metadata.snapshots) == 1
    assert lake.runtime.afresh.health(NAME).warnings["bucket_jobs_failed"] == (
        f"the table bucket's own maintenance: icebergSnapshotManagement failed: {TAGS} "
        "(it will fail again, so Icekeeper does it)"
    )


def test_a_pin_that_the_bucket_would_ignore_warns(
    lake: Lake, command: Command, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.answers({}, {})
    properties = {
        "type": "s3tables",
        "warehouse": lake.address[0],
        "s3tables.endpoint": moto_server.endpoint,
        **moto_server.s3_properties,
    }
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__AWS__{key.replace('.', '__').replace('-', '_').upper()}", value)
    sentence = (
        "the table bucket expires snapshots itself, and ignores pins: the pinned snapshot may expire earlier; set "
        "ownership=icekeeper, or switch the bucket's snapshot management off for this table"
    )
    add = ("pin", "add", "ns.t", "--snapshot", "current", "--ttl", "1h", "--name", "p")
    shown = command(*add, "--json", catalog="aws")
    assert (shown.code, shown.json["warnings"], shown.json["pin"]["name"]) == (0, [sentence], "p")
    assert f"warning: {sentence}\n" in command(*add, catalog="aws").out

    lake.went(**{SNAPSHOTS: {"status": "Disabled"}})
    shown = command(*add, "--json", catalog="aws")
    assert (shown.code, "warnings" in shown.json) == (0, False)
    assert "warning" not in command(*add, catalog="aws").out


# Passes over a table bucket that, as on AWS, maintains its tables itself.


def test_moto_still_lacks_the_patched_operations(moto_server: MotoServer) -> None:
    """Once moto has these operations, remove local_stack/moto_s3tables.py."""
    assert {getattr(S3TablesResponse, name).__module__ for name in moto_s3tables.OPERATIONS} == {
        "local_stack.moto_s3tables"
    }
    assert moto_s3tables.MOTOS_OWN == ()


def test_operations_that_aws_does_by_default_are_left_to_it(lake: Lake) -> None:
    """With an empty configuration every job of the bucket is enabled."""
    lake.answers({}, {})
    settings = {**EAGER, "min_manifests_to_rewrite": "100"}
    assert lake.runtime.detect(settings).proposals == ()
    (proposal,) = lake.runtime.detect({**settings, "ownership": "icekeeper"}).proposals
    assert proposal.reasons[0] == "6 snapshots exceed max_snapshots_to_keep 1"
    location = lake.loaded.metadata.location
    with open_engine(EngineName.LOCAL) as engine:
        swept = lake.runtime.sweep_bucket(location, {}, engine)
    assert {name: (found.status.value, found.reason) for name, found in swept.tables.items()} == {
        "ns.t": ("skipped", OWNED)
    }
    for dry_run in (True, False):
        before = lake.loaded.token
        outcome = lake.maintain(dry_run=dry_run)
        assert endings(outcome) == {
            "compact": ("skipped", OWNED),
            "rewrite_position_deletes": ("skipped", OWNED),
            "expire_snapshots": ("skipped", OWNED),
            "remove_orphans": ("skipped", OWNED),
            "rewrite_manifests": ("succeeded", None),
        }
        assert outcome.status.value == "succeeded"
        assert (lake.loaded.token == before) is dry_run
    assert lake.puts == []


def test_each_operation_has_its_own_owner(lake: Lake) -> None:
    lake.answers(
        {COMPACTION: {"status": "enabled"}, SNAPSHOTS: {"status": "disabled"}}, {FILES: {"status": "disabled"}}
    )
    found = endings(lake.maintain(operations="compact,expire_snapshots,remove_orphans"))
    assert found == {
        "compact": ("skipped", OWNED),
        "expire_snapshots": ("succeeded", None),
        "remove_orphans": ("skipped", BLIND),
    }


def _denied(_: S3TablesResponse) -> Any:
    error = JsonRESTError("ForbiddenException", "not authorized")
    error.code = 403
    raise error


def test_without_rights_to_the_configuration_operations_are_skipped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary error fails the pass instead (see above)."""
    before = lake.loaded.token
    with monkeypatch.context() as patch:
        for name in moto_s3tables.OPERATIONS:
            patch.setattr(S3TablesResponse, name, _denied)
        for ownership in ("auto", "icekeeper"):
            outcome = lake.maintain(ownership=ownership, operations="compact,expire_snapshots,remove_orphans")
            needed = {
                "compact": "s3tables:GetTableMaintenanceConfiguration",
                "expire_snapshots": "s3tables:GetTableMaintenanceConfiguration",
                "remove_orphans": "s3tables:GetTableBucketMaintenanceConfiguration",
            }
            assert endings(outcome) == {
                operation: (
                    "skipped",
                    "it is unknown whether the table bucket does this itself (S3 Tables failed with "
                    f"ForbiddenException: not authorized); allow {action}",
                )
                for operation, action in needed.items()
            }
            assert outcome.status.value == "succeeded"
    assert lake.loaded.token == before

    # Icekeeper refuses if the bucket's job cannot be switched off.
    lake.answers({}, {})
    with monkeypatch.context() as patch:
        patch.delattr(S3TablesResponse, "put_table_maintenance_configuration")
        outcome = lake.maintain(ownership="icekeeper", operations="compact,expire_snapshots")
    assert endings(outcome) == {
        operation: (
            "refused",
            f"the table bucket's own {built_in} could not be switched off (S3 Tables failed with 500), so nothing was "
            "done; allow s3tables:PutTableMaintenanceConfiguration, or set ownership=auto",
        )
        for operation, built_in in (("compact", COMPACTION), ("expire_snapshots", SNAPSHOTS))
    }
    assert lake.loaded.token == before

    # Only operations that are about to run are taken over.
    off: dict[str, Any] = {"rewrite_enabled": "false", "delete_compaction_enabled": "false"}
    lake.maintain(ownership="icekeeper", operations="expire_snapshots,compact", **off)
    assert lake.puts == [(SNAPSHOTS, {"status": "disabled"})]


def test_taking_over_switches_off_the_buckets_jobs_first(lake: Lake) -> None:
    lake.answers({COMPACTION: {"status": "enabled", "settings": {COMPACTION: {"targetFileSizeMB": 64}}}}, {})
    before = lake.loaded.token
    dry = lake.maintain(dry_run=True, ownership="icekeeper")
    assert (lake.puts, lake.loaded.token) == ([], before)

    outcome = lake.maintain(ownership="icekeeper")
    found = endings(outcome)
    assert found["compact"] == found["expire_snapshots"] == ("succeeded", None)
    assert found["remove_orphans"] == ("skipped", OWNED_FOR_ALL_TABLES)
    # The settings of the bucket are kept and apply to Icekeeper.
    kept = {"status": "disabled", "settings": {COMPACTION: {"targetFileSizeMB": 64}}}
    assert lake.puts == [(COMPACTION, kept), (COMPACTION, kept), (SNAPSHOTS, {"status": "disabled"})]
    assert {part.operation: part.files_planned for part in dry.operations if part.operation.value == "compact"} == {
        part.operation: part.files_planned for part in outcome.operations if part.operation.value == "compact"
    }
    resolved = lake.runtime.policy(lake.loaded, {})
    assert resolved.policy.target_file_size_mb == 64
    assert resolved.sources["target_file_size_mb"] == "S3 Tables maintenance configuration"
    # Compaction now belongs to Icekeeper without ``ownership=icekeeper``.
    assert "compact" not in {operation.value for operation in resolved.owners.owned}


def test_the_rest_endpoint_of_a_table_bucket_is_recognised_by_its_arn(
    lake: Lake, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.answers({COMPACTION: {"status": "disabled"}}, {FILES: {"status": "disabled"}})
    properties = {**moto_server.s3_properties, "s3tables.endpoint": moto_server.endpoint}
    arn = lake.runtime.catalog.id.warehouse
    maintenance = maintenance_behind({**properties, "warehouse": arn})
    assert maintenance is not None
    found = maintenance.read(NAME)
    assert [(kind.value, is_enabled) for kind, is_enabled in found.is_enabled.items()] == [
        (COMPACTION, False),
        (SNAPSHOTS, True),
        (FILES, False),
    ]
    with pytest.raises(StorageError, match="switched off for all tables of a bucket"):
        maintenance.disable(NAME, BuiltIn.UNREFERENCED_FILE_REMOVAL)
    for warehouse in ("", "lake", "s3://lake/", "arn:aws:s3:::lake", "arn:aws:s3tables:us-east-1:1:table/x"):
        assert maintenance_behind({**properties, "warehouse": warehouse}) is None

    # Without credentials ownership is unknown.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for more in ({}, {"s3tables.profile-name": "nobody"}):
        maintenance = maintenance_behind({"warehouse": arn, **more})
        assert maintenance is not None
        assert set(maintenance.read(NAME).unreadable) == set(BuiltIn)


# Passes over a table in a bucket that, as on AWS, neither lists nor deletes objects.


def test_a_pin_keeps_its_snapshot_but_cannot_be_a_tag(lake: Lake) -> None:
    """A tag would switch off the bucket's own snapshot management."""
    table = lake.runtime.table(NAME)
    first = next(iter(table.load().metadata.snapshots))
    with pytest.raises(PolicyError) as caught:
        add_pin(table, snapshot=str(first), ttl_ms=60_000, with_tag=True)
    assert str(caught.value) == ("a tag would switch off the table bucket's own snapshot management; pin without a tag")
    assert list_pins(table) == ()
    add_pin(table, snapshot=str(first), ttl_ms=60_000)
    lake.maintain(operations="compact,expire_snapshots")
    assert len(table.load().metadata.snapshots) == 7


def test_statistics_and_a_file_in_parts_need_only_writes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed load is released: the bucket itself removes its files, which cannot be deleted here."""
    assert lake.run("compute_statistics").summary == "computed statistics of 1 column(s) over 30 row(s)"
    assert lake.run("compute_statistics").reason == "statistics are up to date"
    (entry,) = lake.loaded.metadata.statistics
    assert [blob["properties"]["ndv"] for blob in entry["blob-metadata"]] == ["5"]
    assert lake.runtime.verify(NAME).ok

    # The bucket accepts the headers of an upload in parts; there is room for two parts of S3's smallest size.
    loaded, part = lake.loaded, 5 * 1024 * 1024
    monkeypatch.setattr("icekeeper.storage.multipart._MOST_ROOM", 4 * part)
    storage, path = Storage(loaded.io_properties), f"{loaded.metadata.location}/data/parts"
    with counting() as count, bounded_output(storage, path, 4 * part) as stream:
        stream.write(bytes(4 * part + 1))
    assert count.counts == {RequestKind.PUT: 7}  # five parts between beginning and end
    assert storage.size(path) == 4 * part + 1

    table = lake.runtime.table(NAME)
    stage_load(table, "L", [path], [])
    declare_load(table, "L", LoadState.FAILED)
    staged = lake.maintain(operations="rewrite_position_deletes", orphan_older_than_hours="0", unsafe=True).staged
    assert staged is not None
    assert (staged.metrics["staged.files_left_to_bucket"], staged.metrics["staged.loads_settled"]) == (1, 1)
    assert list_loads(table) == ()


def test_deletions_that_the_bucket_does_not_allow_are_left_to_it(lake: Lake, moto_server: MotoServer) -> None:
    """Compaction and expiry commit; their files remain, and the removal of orphans reports why."""
    before = lake.loaded
    outcome = lake.maintain()
    by_name = {operation.operation.value: operation for operation in outcome.operations}
    assert outcome.status.value == "succeeded"
    assert by_name["compact"].summary == "compacted 6 files into 1 (across 1 bins)"
    expiry = by_name["expire_snapshots"]
    assert expiry.summary == "expired 6 snapshot(s), deleted 0 unreferenced file(s)"
    assert expiry.files_deleted == ()
    assert expiry.metrics["expire_snapshots.files_left_to_bucket"] == len(expiry.files_planned) > 0
    assert expiry.metrics["expire_snapshots.bytes_reclaimable"] > 0
    # No pass could finish these deletions, so none is pending.
    assert lake.runtime.state.pending_deletions.lists(identity_of(lake.runtime.catalog, before)) == ()
    assert (by_name["remove_orphans"].status, by_name["remove_orphans"].reason) == (Status.SKIPPED, BLIND)
    assert NOT_POSSIBLE in by_name["remove_orphans"].metrics
    after = lake.loaded
    assert after.token != before.token
    assert lake.runtime.verify(NAME).ok
    # Unreferenced files still exist for the bucket to remove.
    old_list = next(iter(before.metadata.snapshots.values())).manifest_list
    assert old_list is not None
    assert Storage(after.io_properties).size(old_list) is not None
    read = StaticTable.from_metadata(after.metadata_location, dict(moto_server.s3_properties)).scan().to_arrow()
    assert sorted(read["id"].to_pylist()) == sorted([*range(5)] * 6)


def test_every_operation_writes_with_headers_that_table_buckets_list(lake: Lake, tmp_path: Path) -> None:
    """PyArrow's CRC64NVME is not among them; the bucket refuses requests with other headers
    (platform: table-buckets-refuse-headers)."""
    table = MaintainedTable(lake.runtime.catalog, tmp_path / "deletes")
    for file in data_files(table)[:3]:
        content, facts = position_delete(file.file_path, 0, "")
        commit_deletes(table, [(content, {**facts, "partition": ()})])
    for operation, settings in {
        "rewrite_position_deletes": {},
        "compute_statistics": {},
        "compact": {},
        "rewrite_manifests": {"min_manifests_to_rewrite": "2"},
        "expire_snapshots": {},
    }.items():
        outcome = lake.run(operation, **settings)
        assert (operation, outcome.status.value, outcome.reason) == (operation, "succeeded", None)
    assert lake.runtime.verify(NAME).problems == ()
