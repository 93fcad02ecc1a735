"""Passes over a table bucket as AWS has it, with its own maintenance on or off."""

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
from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.engine import EngineName
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.metering import RequestKind, counting
from icekeeper.metadata.table_reader import TableReader, reachable_files
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy import Operation
from icekeeper.policy.ownership import OWNED, OWNED_FOR_ALL_TABLES
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.staging import LoadState, StagedLoad
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from support.aws_table_bucket import runtime_of_table_bucket
from support.command import Command
from support.deletes import commit_deletes, position_delete
from support.maintained_table import MaintainedTable
from support.v3 import data_files

# Passes over a table bucket whose own maintenance is switched on, and stands still, fails, or does not answer.

NAME = TableName.parse("ns.t")
COMPACTION, SNAPSHOTS, FILES = (built_in.value for built_in in BuiltIn)
TAGS = "Iceberg Snapshot management does not currently support user defined tags or references."


class Lake:
    """One table bucket in which everything is switched on, with a table of two snapshots."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        address = runtime.catalog.id.warehouse, "ns", "t"
        self.address: tuple[str, ...] = address
        moto_s3tables.ANSWERS[address] = moto_s3tables.ANSWERS[address[:1]] = {}

    def went(self, **jobs: dict[str, str]) -> None:
        moto_s3tables.JOBS[self.address] = jobs

    def maintain(self, **settings: str) -> PassOutcome:
        eager = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "min_input_files": "2", **settings}
        with open_engine(EngineName.LOCAL) as engine:
            return self.runtime.maintain(NAME, eager, engine)


@pytest.fixture
def lake(moto_server: MotoServer, tmp_path: Path) -> Iterator[Lake]:
    yield Lake(runtime_of_table_bucket(moto_server, tmp_path, appends=2))
    for known in (moto_s3tables.ANSWERS, moto_s3tables.JOBS):
        known.clear()


def endings(outcome: PassOutcome) -> dict[str, tuple[str, str | None]]:
    return {part.operation.value: (part.status.value, part.reason) for part in outcome.operations}


def test_failed_jobs_of_the_bucket_are_reported_and_lasting_ones_taken_over(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person's tag stops the bucket's expiry for good, while its configuration says that it is on."""
    asked: list[str] = []
    response: Any = S3TablesResponse
    answered = response.get_table_maintenance_job_status

    def count(self: S3TablesResponse) -> Any:
        asked.append(self.raw_path)
        return answered(self)

    # Jobs are asked about only where the bucket is left something.
    with monkeypatch.context() as patch:
        patch.setattr(S3TablesResponse, "get_table_maintenance_job_status", count)
        loaded = lake.runtime.catalog.load(NAME)
        lake.runtime.policy(loaded, {"operations": "rewrite_manifests"})
        lake.runtime.policy(loaded, {"operations": "compact,expire_snapshots", "ownership": "icekeeper"})
        lake.runtime.policy(loaded, {"maintenance_enabled": "false"})
        assert asked == []
        lake.runtime.policy(loaded, {"operations": "rewrite_manifests,expire_snapshots"})
        assert len(asked) == 1

    # A bucket that does not answer lets no operation be skipped: moto without the operation says HTTP 500.
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
    assert len(lake.runtime.catalog.load(NAME).metadata.snapshots) == 1
    assert lake.runtime.afresh.health(NAME).warnings["bucket_jobs_failed"] == (
        f"the table bucket's own maintenance: icebergSnapshotManagement failed: {TAGS} "
        "(it will fail again, so Icekeeper does it)"
    )


def test_a_pin_says_when_the_bucket_would_not_keep_it(
    lake: Lake, command: Command, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    told = command(*add, "--json", catalog="aws")
    assert (told.code, told.json["warnings"], told.json["pin"]["name"]) == (0, [sentence], "p")
    assert f"warning: {sentence}\n" in command(*add, catalog="aws").out

    lake.went(**{SNAPSHOTS: {"status": "Disabled"}})
    told = command(*add, "--json", catalog="aws")
    assert (told.code, "warnings" in told.json) == (0, False)
    assert "warning" not in command(*add, catalog="aws").out


# Where objects can be neither listed nor deleted, people are told what is known: from history and from failed jobs.

ORPHANED = TableName(("ns",), "t")


@pytest.fixture
def runtime_with_orphans(moto_server: MotoServer, tmp_path: Path) -> Runtime:
    return runtime_of_table_bucket(moto_server, tmp_path, appends=3)


def run(runtime_with_orphans: Runtime, operation: str, **settings: str) -> OperationOutcome:
    (outcome,) = runtime_with_orphans.maintain(
        ORPHANED, {"operations": operation, **settings}, LocalEngine(1)
    ).operations
    return outcome


def reachable(runtime_with_orphans: Runtime) -> set[str]:
    loaded = runtime_with_orphans.catalog.load(ORPHANED)
    reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
    return reachable_files(reader, loaded.metadata_location)


def test_what_expiry_left_to_the_bucket_is_known_from_the_history(
    runtime_with_orphans: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = reachable(runtime_with_orphans)
    assert run(runtime_with_orphans, "remove_orphans").files_planned == ()
    run(runtime_with_orphans, "compact", min_input_files="2")
    run(runtime_with_orphans, "expire_snapshots", snapshot_retention_hours="0", max_snapshots_to_keep="1")
    outcome = run(runtime_with_orphans, "remove_orphans")
    assert (outcome.operation, outcome.status, outcome.files_deleted) == (Operation.REMOVE_ORPHANS, Status.SKIPPED, ())
    assert outcome.reason == BLIND
    gone = before - reachable(runtime_with_orphans)
    # Three appends: a data file, a manifest and a manifest list each.
    assert len(gone) == 9
    assert set(outcome.files_planned) == gone
    assert outcome.metrics["remove_orphans.orphans_known"] == 9
    # What the bucket has removed is left out.
    left = tuple(path for path in outcome.files_planned if "/snap-" not in path)
    status = Storage.status
    monkeypatch.setattr(Storage, "status", lambda self, path: None if "/snap-" in path else status(self, path))
    assert run(runtime_with_orphans, "remove_orphans").files_planned == left


def test_files_of_failed_loads_are_known_from_their_record(runtime_with_orphans: Runtime) -> None:
    """Not what was never written, nor what a load that may yet be adopted has staged."""
    loaded = runtime_with_orphans.catalog.load(ORPHANED)
    storage, location = Storage(loaded.io_properties), loaded.metadata.location
    failed, pending = f"{location}/data/failed.parquet", f"{location}/data/pending.parquet"
    live = next(path for path in reachable(runtime_with_orphans) if path.endswith(".parquet"))
    for path in (failed, pending):
        storage.write(path, b"x")
    identity = identity_of(runtime_with_orphans.catalog, loaded)
    for name, state, files in (
        ("a", LoadState.FAILED, [failed, f"{location}/data/never-written.parquet", live]),
        ("b", LoadState.PENDING, [pending]),
    ):
        runtime_with_orphans.state.staging.stage(
            StagedLoad(identity=identity, name=name, state=state, changed_ms=1), files
        )
    assert run(runtime_with_orphans, "remove_orphans").files_planned == (failed,)


# Passes over a table bucket that, as AWS does, maintains its tables itself.

OWNED_NAME = TableName.parse("ns.t")
EAGER = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "min_input_files": "2"}
COMPACTION, SNAPSHOTS, FILES = (built_in.value for built_in in BuiltIn)
BLIND = "objects cannot be listed in this storage; it removes unreferenced files itself"


@dataclass(frozen=True)
class MaintainedLake:
    """One table bucket with a table of six small files."""

    runtime: Runtime

    @property
    def address(self) -> tuple[str, str, str]:
        return self.runtime.catalog.id.warehouse, "ns", "t"

    def answers(self, of_table: dict[str, Any], of_bucket: dict[str, Any]) -> None:
        moto_s3tables.ANSWERS[self.address] = of_table
        moto_s3tables.ANSWERS[self.address[:1]] = of_bucket

    @property
    def puts(self) -> list[tuple[str, Any]]:
        return [(kind, value) for address, kind, value in moto_s3tables.PUTS if address == self.address]

    def maintain(self, *, dry_run: bool = False, **settings: str) -> PassOutcome:
        with open_engine(EngineName.LOCAL) as engine:
            return self.runtime.maintain(OWNED_NAME, {**EAGER, **settings}, engine, dry_run=dry_run)

    def token(self) -> str:
        return self.runtime.catalog.load(OWNED_NAME).token


@pytest.fixture
def maintained_lake(moto_server: MotoServer, tmp_path: Path) -> Iterator[MaintainedLake]:
    yield MaintainedLake(runtime_of_table_bucket(moto_server, tmp_path, appends=6))
    moto_s3tables.ANSWERS.clear()
    moto_s3tables.PUTS.clear()


def test_moto_still_lacks_what_is_patched_into_it(moto_server: MotoServer) -> None:
    """Once it has these operations, local_stack/moto_s3tables.py can go."""
    assert {getattr(S3TablesResponse, name).__module__ for name in moto_s3tables.OPERATIONS} == {
        "local_stack.moto_s3tables"
    }
    assert moto_s3tables.MOTOS_OWN == ()


def test_what_aws_does_by_default_is_left_to_it(maintained_lake: MaintainedLake) -> None:
    """An empty configuration: everything is enabled."""
    maintained_lake.answers({}, {})
    settings = {**EAGER, "min_manifests_to_rewrite": "100"}
    assert maintained_lake.runtime.detect(settings).proposals == ()
    (proposal,) = maintained_lake.runtime.detect({**settings, "ownership": "icekeeper"}).proposals
    assert proposal.reasons[0] == "6 snapshots exceed max_snapshots_to_keep 1"
    location = maintained_lake.runtime.catalog.load(OWNED_NAME).metadata.location
    with open_engine(EngineName.LOCAL) as engine:
        swept = maintained_lake.runtime.sweep_bucket(location, {}, engine)
    assert {name: (found.status.value, found.reason) for name, found in swept.tables.items()} == {
        "ns.t": ("skipped", OWNED)
    }
    for dry_run in (True, False):
        before = maintained_lake.token()
        outcome = maintained_lake.maintain(dry_run=dry_run)
        assert endings(outcome) == {
            "compact": ("skipped", OWNED),
            "rewrite_position_deletes": ("skipped", OWNED),
            "expire_snapshots": ("skipped", OWNED),
            "remove_orphans": ("skipped", OWNED),
            "rewrite_manifests": ("succeeded", None),
        }
        assert outcome.status.value == "succeeded"
        assert (maintained_lake.token() == before) is dry_run
    assert maintained_lake.puts == []


def test_each_operation_has_its_own_owner(maintained_lake: MaintainedLake) -> None:
    maintained_lake.answers(
        {COMPACTION: {"status": "enabled"}, SNAPSHOTS: {"status": "disabled"}}, {FILES: {"status": "disabled"}}
    )
    found = endings(maintained_lake.maintain(operations="compact,expire_snapshots,remove_orphans"))
    assert found == {
        "compact": ("skipped", OWNED),
        "expire_snapshots": ("succeeded", None),
        "remove_orphans": ("skipped", BLIND),
    }


def _denied(_: S3TablesResponse) -> Any:
    error = JsonRESTError("ForbiddenException", "not authorized")
    error.code = 403
    raise error


def test_missing_rights_keep_us_from_everything_that_the_bucket_may_do(
    maintained_lake: MaintainedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that may pass by waiting is an error instead (see above)."""
    before = maintained_lake.token()
    with monkeypatch.context() as patch:
        for name in moto_s3tables.OPERATIONS:
            patch.setattr(S3TablesResponse, name, _denied)
        for ownership in ("auto", "icekeeper"):
            outcome = maintained_lake.maintain(
                ownership=ownership, operations="compact,expire_snapshots,remove_orphans"
            )
            asked = {
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
                for operation, action in asked.items()
            }
            assert outcome.status.value == "succeeded"
    assert maintained_lake.token() == before

    # With a bucket that cannot be switched off we do not compete.
    maintained_lake.answers({}, {})
    with monkeypatch.context() as patch:
        patch.delattr(S3TablesResponse, "put_table_maintenance_configuration")
        outcome = maintained_lake.maintain(ownership="icekeeper", operations="compact,expire_snapshots")
    assert endings(outcome) == {
        operation: (
            "refused",
            f"the table bucket's own {built_in} could not be switched off (S3 Tables failed with 500), so nothing was "
            "done; allow s3tables:PutTableMaintenanceConfiguration, or set ownership=auto",
        )
        for operation, built_in in (("compact", COMPACTION), ("expire_snapshots", SNAPSHOTS))
    }
    assert maintained_lake.token() == before

    # Only what is about to run is taken over.
    off: dict[str, Any] = {"rewrite_enabled": "false", "delete_compaction_enabled": "false"}
    maintained_lake.maintain(ownership="icekeeper", operations="expire_snapshots,compact", **off)
    assert maintained_lake.puts == [(SNAPSHOTS, {"status": "disabled"})]


def test_taking_over_switches_the_buckets_own_off_and_then_runs(maintained_lake: MaintainedLake) -> None:
    maintained_lake.answers({COMPACTION: {"status": "enabled", "settings": {COMPACTION: {"targetFileSizeMB": 64}}}}, {})
    before = maintained_lake.token()
    dry = maintained_lake.maintain(dry_run=True, ownership="icekeeper")
    assert (maintained_lake.puts, maintained_lake.token()) == ([], before)

    outcome = maintained_lake.maintain(ownership="icekeeper")
    found = endings(outcome)
    assert found["compact"] == found["expire_snapshots"] == ("succeeded", None)
    assert found["remove_orphans"] == ("skipped", OWNED_FOR_ALL_TABLES)
    # What was stated there stays stated, and holds for us.
    kept = {"status": "disabled", "settings": {COMPACTION: {"targetFileSizeMB": 64}}}
    assert maintained_lake.puts == [(COMPACTION, kept), (COMPACTION, kept), (SNAPSHOTS, {"status": "disabled"})]
    assert {part.operation: part.files_planned for part in dry.operations if part.operation.value == "compact"} == {
        part.operation: part.files_planned for part in outcome.operations if part.operation.value == "compact"
    }
    resolved = maintained_lake.runtime.policy(maintained_lake.runtime.catalog.load(OWNED_NAME), {})
    assert resolved.policy.target_file_size_mb == 64
    assert resolved.sources["target_file_size_mb"] == "S3 Tables maintenance configuration"
    # From now on it is ours without being asked to take over.
    assert "compact" not in {operation.value for operation in resolved.owners.owned}


def test_the_rest_endpoint_of_a_table_bucket_is_known_by_its_arn(
    maintained_lake: MaintainedLake, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintained_lake.answers({COMPACTION: {"status": "disabled"}}, {FILES: {"status": "disabled"}})
    properties = {**moto_server.s3_properties, "s3tables.endpoint": moto_server.endpoint}
    arn = maintained_lake.runtime.catalog.id.warehouse
    maintenance = maintenance_behind({**properties, "warehouse": arn})
    assert maintenance is not None
    found = maintenance.read(OWNED_NAME)
    assert [(kind.value, is_enabled) for kind, is_enabled in found.is_enabled.items()] == [
        (COMPACTION, False),
        (SNAPSHOTS, True),
        (FILES, False),
    ]
    with pytest.raises(StorageError, match="switched off for all tables of a bucket"):
        maintenance.disable(OWNED_NAME, BuiltIn.UNREFERENCED_FILE_REMOVAL)
    for warehouse in ("", "lake", "s3://lake/", "arn:aws:s3:::lake", "arn:aws:s3tables:us-east-1:1:table/x"):
        assert maintenance_behind({**properties, "warehouse": warehouse}) is None

    # Without credentials ownership is not known.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for more in ({}, {"s3tables.profile-name": "nobody"}):
        maintenance = maintenance_behind({"warehouse": arn, **more})
        assert maintenance is not None
        assert set(maintenance.read(OWNED_NAME).unreadable) == set(BuiltIn)


# A whole pass over a table in a bucket that, as on AWS, neither lists nor deletes objects.

SETTINGS = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "min_input_files": "2"}


@pytest.fixture
def runtime(moto_server: MotoServer, tmp_path: Path) -> Runtime:
    return runtime_of_table_bucket(moto_server, tmp_path, appends=6)


def test_a_pin_holds_the_snapshot_but_may_not_be_a_tag(runtime: Runtime) -> None:
    """A tag would switch off the bucket's own snapshot management."""
    table = runtime.table(TableName.parse("ns.t"))
    first = next(iter(table.load().metadata.snapshots))
    with pytest.raises(PolicyError) as caught:
        add_pin(table, snapshot=str(first), ttl_ms=60_000, with_tag=True)
    assert str(caught.value) == ("a tag would switch off the table bucket's own snapshot management; pin without --tag")
    assert list_pins(table) == ()
    add_pin(table, snapshot=str(first), ttl_ms=60_000)
    with open_engine(EngineName.LOCAL) as engine:
        runtime.maintain(table.table, {**SETTINGS, "operations": "compact,expire_snapshots"}, engine)
    assert len(table.load().metadata.snapshots) == 7


def test_statistics_and_a_file_in_parts_need_nothing_but_writing(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed load is released: the bucket itself removes what cannot be deleted here."""
    with open_engine(EngineName.LOCAL) as engine:
        (outcome,) = runtime.maintain(NAME, {"operations": "compute_statistics"}, engine).operations
        assert outcome.summary == "computed statistics of 1 column(s) over 30 row(s)"
        (again,) = runtime.maintain(NAME, {"operations": "compute_statistics"}, engine).operations
    assert again.reason == "statistics are up to date"
    (entry,) = runtime.catalog.load(NAME).metadata.statistics
    assert [blob["properties"]["ndv"] for blob in entry["blob-metadata"]] == ["5"]
    assert runtime.verify(NAME).ok

    # Its headers are listed, too; room for two parts of the smallest size that S3 takes.
    loaded, part = runtime.catalog.load(NAME), 5 * 1024 * 1024
    monkeypatch.setattr("icekeeper.storage.multipart._MOST_ROOM", 4 * part)
    storage, path = Storage(loaded.io_properties), f"{loaded.metadata.location}/data/parts"
    with counting() as count, bounded_output(storage, path, 4 * part) as stream:
        stream.write(bytes(4 * part + 1))
    assert count.counts == {RequestKind.PUT: 7}  # five parts between beginning and end
    assert storage.size(path) == 4 * part + 1

    table = runtime.table(NAME)
    stage_load(table, "L", [path], [])
    declare_load(table, "L", LoadState.FAILED)
    with open_engine(EngineName.LOCAL) as engine:
        settings = {"operations": "rewrite_position_deletes", "orphan_older_than_hours": "0"}
        staged = runtime.maintain(table.table, settings, engine, unsafe=True).staged
    assert staged is not None
    assert (staged.metrics["staged.files_left_to_bucket"], staged.metrics["staged.loads_settled"]) == (1, 1)
    assert list_loads(table) == ()


def test_what_the_bucket_does_not_allow_is_left_to_it(runtime: Runtime, moto_server: MotoServer) -> None:
    """Compaction and expiry commit; bytes stay where objects cannot be deleted, and the orphan pass says why."""
    name = TableName.parse("ns.t")
    before = runtime.catalog.load(name)
    with open_engine(EngineName.LOCAL) as engine:
        outcome = runtime.maintain(name, SETTINGS, engine)
    by_name = {operation.operation.value: operation for operation in outcome.operations}
    assert outcome.status.value == "succeeded"
    assert by_name["compact"].summary == "compacted 6 files into 1 (across 1 bins)"
    expiry = by_name["expire_snapshots"]
    assert expiry.summary == "expired 6 snapshot(s), deleted 0 unreferenced file(s)"
    assert expiry.files_deleted == ()
    assert expiry.metrics["expire_snapshots.files_left_to_bucket"] == len(expiry.files_planned) > 0
    assert expiry.metrics["expire_snapshots.bytes_reclaimable"] > 0
    # Nobody will ever finish what cannot be deleted here: nothing waits for it.
    assert runtime.state.pending_deletions.lists(identity_of(runtime.catalog, before)) == ()
    assert by_name["remove_orphans"].status is Status.SKIPPED
    assert by_name["remove_orphans"].reason == (
        "objects cannot be listed in this storage; it removes unreferenced files itself"
    )
    after = runtime.catalog.load(name)
    assert after.token != before.token
    assert runtime.verify(name).ok
    # Every file that expiry left unreferenced is still there for the bucket to remove.
    old_list = next(iter(before.metadata.snapshots.values())).manifest_list
    assert old_list is not None
    assert Storage(after.io_properties).size(old_list) is not None
    read = StaticTable.from_metadata(after.metadata_location, dict(moto_server.s3_properties)).scan().to_arrow()
    assert sorted(read["id"].to_pylist()) == sorted([*range(5)] * 6)


def test_every_operation_writes_with_headers_that_table_buckets_list(runtime: Runtime, tmp_path: Path) -> None:
    """PyArrow's CRC64NVME is not among them; what is not listed is refused at the gate, so that nothing would succeed
    (platform: table-buckets-refuse-headers)."""
    table = MaintainedTable(runtime.catalog, tmp_path / "deletes")
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
        with open_engine(EngineName.LOCAL) as engine:
            (outcome,) = runtime.maintain(NAME, {**SETTINGS, "operations": operation, **settings}, engine).operations
        assert (operation, outcome.status.value, outcome.reason) == (operation, "succeeded", None)
    assert runtime.verify(NAME).problems == ()
