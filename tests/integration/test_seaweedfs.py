"""SeaweedFS as a real table bucket: the server, its rights, orphans, and whole passes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icekeeper.administration.pins import add_pin, declare_load, list_pins, remove_pin, stage_load
from icekeeper.catalogs.load import open_catalog
from icekeeper.demo import seaweedfs as module
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from icekeeper.engines.engine import EngineName
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.report.outcome import PassStatus
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.staging import LoadState
from icekeeper.state.store import PinKind
from icekeeper.storage.storage import Storage
from local_stack.credential_server import CredentialServer
from local_stack.judged_lake import JudgedLake, judged_lake
from local_stack.rights.callers import DENIED, StackRights
from local_stack.rights.evaluate import Role, statements_of
from support.interrupted_process import wait_until
from support.maintained_table import same_clock
from support.readers import read_checksum
from support.scripted_catalog import ScriptedCatalog, once

# The server: several run side by side, and none is left afterwards.

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def bucket_names(server: SeaweedFSServer) -> list[str]:
    answer = server.client("s3tables").list_table_buckets()
    return [bucket["name"] for bucket in answer.get("tableBuckets", [])]


def test_a_bucket_name_can_be_taken_only_once(seaweedfs: SeaweedFSServer) -> None:
    seaweedfs.create_table_bucket("taken-name")
    with pytest.raises(StorageError, match="taken-name could not be created"):
        seaweedfs.create_table_bucket("taken-name")


def test_a_second_server_shares_nothing_and_leaves_only_its_tables(seaweedfs: SeaweedFSServer, tmp_path: Path) -> None:
    with running_seaweedfs(tmp_path) as server:
        assert not set(server.ports) & set(seaweedfs.ports)
        assert bucket_names(server) == []
        server.create_table_bucket("only-here")
        catalog = load_catalog("first", **server.catalog_properties("only-here"))
        catalog.create_namespace("ns")
        catalog.create_table("ns.t", schema=ROWS.schema).append(ROWS)
        assert "only-here" not in bucket_names(seaweedfs)
    assert not alive(server.pid)
    assert not any(listening(port + offset) for port in server.ports for offset in (0, 10_000))
    assert not [path for path in Path("/tmp").glob("seaweedfs-*.sock") if str(server.ports[0] + 10_000) in path.name]
    with running_seaweedfs(tmp_path) as server:
        table = load_catalog("second", **server.catalog_properties("only-here")).load_table("ns.t")
        assert table.scan().to_arrow().num_rows == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from icekeeper.demo.seaweedfs import running_seaweedfs\n"
        "with running_seaweedfs(pathlib.Path(sys.argv[1])) as server:\n"
        "    print(server.pid, *server.ports, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, *ports = map(int, parent.stdout.readline().split())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not alive(pid), 60)
    module._remove_grpc_sockets(tuple(ports))  # the killed parent could not


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "weed"
    broken.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(module, "weed_binary", lambda: str(broken))
    with (
        pytest.raises(StorageError, match=r"(?s)ended with code 3 while starting.*out of luck"),
        running_seaweedfs(tmp_path / "data"),
    ):
        pass


def test_a_server_that_never_answers_is_reported_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "weed"
    silent.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(module, "weed_binary", lambda: str(silent))
    monkeypatch.setattr(module, "_START_TIMEOUT_S", 1.0)
    with pytest.raises(StorageError, match="did not get ready within 1 s"), running_seaweedfs(tmp_path / "data"):
        pass
    assert not alive(int((tmp_path / "data" / "pid").read_text()))


# The proxy in front of SeaweedFS rejects a request without a role or beyond the role's rights
# (rule: least-privilege-roles).

ROLE = "arn:aws:iam::123456789012:role/reader"
LARGE = bytes(12 << 20)  # it is uploaded in parts


@pytest.fixture
def lake(seaweedfs: SeaweedFSServer, table_bucket: dict[str, str]) -> Iterator[JudgedLake]:
    with judged_lake(seaweedfs, table_bucket["warehouse"].removeprefix("s3://").rstrip("/")) as judged:
        yield judged


def signed_with(lake: JudgedLake, table_bucket: dict[str, str], key: str) -> dict[str, str]:
    """Properties of a catalog whose requests are signed with a key."""
    properties = {name: key if name.endswith("access-key-id") else value for name, value in table_bucket.items()}
    return {**properties, "uri": lake.iceberg_uri, "s3.endpoint": lake.s3_endpoint}


def test_a_role_can_do_only_what_it_may(
    lake: JudgedLake, table_bucket: dict[str, str], seaweedfs: SeaweedFSServer
) -> None:
    # SeaweedFS refuses objects in a table bucket outside tables.
    bucket = f"objects-{lake.bucket}"
    seaweedfs.client("s3").create_bucket(Bucket=bucket)
    _, catalog = lake.arns
    allowed = [
        {"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"arn:aws:s3:::{bucket}/mine/*"},
        {"Effect": "Allow", "Action": ["s3tables:GetTableBucket", "s3tables:ListNamespaces"], "Resource": catalog},
    ]
    role = Role("ReaderRole", statements_of("Policy", {"Statement": allowed}))
    with StackRights({ROLE: role}, CredentialServer()).enforced() as rights:
        properties = signed_with(lake, table_bucket, rights.key_of(ROLE))
        storage, folder = Storage(properties), f"s3://{bucket}/mine"
        for name, content in (("small", b"x"), ("lärge ünd spaced", LARGE)):
            storage.write(f"{folder}/{name}", content)
            assert storage.read(f"{folder}/{name}") == content
        assert list(open_catalog("lake", properties).list_tables()) == []
        assert lake.let_in == {"ReaderRole"}
        assert DENIED == []
        with pytest.raises(StorageError, match="AccessDenied"):
            storage.write(f"s3://{bucket}/theirs/f", b"x")
        assert storage.delete([f"{folder}/small"]).failed
        assert storage.read(f"{folder}/small") == b"x"
        assert [str(item.need.action) for item in DENIED] == ["s3:PutObject", "s3:DeleteObject"]
        DENIED.clear()


def test_the_keys_of_the_server_itself_are_rejected(lake: JudgedLake, table_bucket: dict[str, str]) -> None:
    properties = signed_with(lake, table_bucket, table_bucket["s3.access-key-id"])
    with pytest.raises(StorageError, match="AccessDenied"):
        Storage(properties).write(f"s3://{lake.bucket}/f", b"x")
    with pytest.raises(StorageError):
        open_catalog("lake", properties)
    assert lake.let_in == set()


# Orphans of a real table bucket: of one table, and of all tables from one listing.

A, B = TableName(("ns",), "a"), TableName(("ns",), "b")


@pytest.fixture
def runtime_of_two_tables(table_bucket: dict[str, str], tmp_path: Path) -> Runtime:
    """Two tables with two appends each, in a bucket that records times in whole seconds."""
    writer = load_catalog("writer", **table_bucket)
    writer.create_namespace("ns")
    rows = pa.table({"id": pa.array(range(5), pa.int64())})
    for name in (A, B):
        table = writer.create_table(str(name), rows.schema)
        for _ in range(2):
            table.append(rows)
    now_ms = int(time.time() * 1000) + 60_000
    state = SqliteStateStore(tmp_path / "state.db")
    return Runtime(
        open_catalog("sw", table_bucket), state, environment={}, clock=lambda: now_ms, store_clock=same_clock
    )


def plant(runtime_of_two_tables: Runtime, name: TableName, key: str) -> str:
    loaded = runtime_of_two_tables.catalog.load(name)
    path = f"{loaded.metadata.location}/{key}"
    Storage(loaded.io_properties).write(path, b"x")
    return path


def exists(runtime_of_two_tables: Runtime, path: str) -> bool:
    return Storage(runtime_of_two_tables.catalog.load(A).io_properties).status(path) is not None


def test_all_tables_of_a_bucket_are_swept_from_one_listing(runtime_of_two_tables: Runtime) -> None:
    orphans = {
        plant(runtime_of_two_tables, A, "data/k=1/o.parquet"),
        plant(runtime_of_two_tables, B, "data/k=%41/o.parquet"),
    }
    orphans.add(plant(runtime_of_two_tables, B, "metadata/o.avro"))
    warehouse = runtime_of_two_tables.catalog.id.warehouse.rstrip("/")
    grace = {"orphan_older_than_hours": "0"}
    dry = runtime_of_two_tables.sweep_bucket(warehouse, grace, LocalEngine(1), dry_run=True, unsafe=True)
    assert {path for table in dry.tables.values() for path in table.files_planned} == orphans
    outcome = runtime_of_two_tables.sweep_bucket(warehouse, grace, LocalEngine(1), unsafe=True)
    assert {path for table in outcome.tables.values() for path in table.files_deleted} == orphans
    assert outcome.outside["files"] == 0
    assert not any(exists(runtime_of_two_tables, path) for path in orphans)
    assert all(runtime_of_two_tables.verify(name).ok for name in (A, B))


def test_files_of_tables_inside_another_table_are_kept(
    runtime_of_two_tables: Runtime, table_bucket: dict[str, str]
) -> None:
    """SeaweedFS accepts any location, so a pass checks for nested tables, which AWS rules out."""
    outer = runtime_of_two_tables.catalog.load(A).metadata.location
    schema, writer = pa.schema([pa.field("id", pa.int64())]), load_catalog("writer", **table_bucket)
    settings = {"operations": "remove_orphans", "orphan_older_than_hours": "0"}
    writer.create_table("ns.inner", schema, location=f"{outer}/data/inner")
    ours, theirs = (plant(runtime_of_two_tables, TableName(("ns",), name), "data/o.parquet") for name in ("a", "inner"))
    (outcome,) = runtime_of_two_tables.maintain(A, settings, LocalEngine(1), unsafe=True).operations
    assert outcome.files_deleted == (ours,)
    assert exists(runtime_of_two_tables, theirs)

    twin = writer.create_table("ns.twin", schema, location=outer)
    orphan = plant(runtime_of_two_tables, A, "data/o.parquet")
    (outcome,) = runtime_of_two_tables.maintain(A, settings, LocalEngine(1), unsafe=True).operations
    assert outcome.status.value == "refused"
    assert str(twin.metadata.table_uuid) in (outcome.reason or "")
    assert exists(runtime_of_two_tables, orphan)


# Whole passes on a real table bucket.

NAME = TableName.parse("ns.t")
SETTINGS = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "min_input_files": "2"}


def _rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "name": [f"row {first}"] * count})


def _append(table: Table, number: int) -> None:
    for _ in range(50):
        try:
            table.refresh().append(_rows(number * 10))
            return
        except CommitFailedException:
            continue  # a writer that meets another commit retries, as every engine does
    raise AssertionError("the appender was starved")


@pytest.fixture
def runtime(table_bucket: dict[str, str], tmp_path: Path) -> Runtime:
    catalog = load_catalog("lake", **table_bucket)
    catalog.create_namespace("ns")
    catalog.create_table("ns.t", _rows(0).schema)
    return Runtime(open_catalog("lake", table_bucket), SqliteStateStore(tmp_path / "state.db"), environment={})


def test_pins_tags_and_staged_loads_hold_on_a_table_bucket(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    """The server writes the tag, expiry keeps the pinned snapshot, and a failed load is cleaned from its record."""
    client = load_catalog("lake", **table_bucket)
    for number in range(3):
        client.load_table("ns.t").append(_rows(number))
    table = runtime.table(NAME)
    first = next(iter(table.load().metadata.snapshots))
    pin = add_pin(table, snapshot=str(first), ttl_ms=3_600_000, name="reader", with_tag=True)
    tag = client.load_table("ns.t").metadata.refs["reader"]
    assert (tag.snapshot_id, tag.snapshot_ref_type.value) == (first, "tag")
    assert tag.max_ref_age_ms == pin.expires_ms - table.load().metadata.snapshots[first].timestamp_ms
    location = table.load().metadata.location
    paths = [f"{location}/data/load/{number}.parquet" for number in range(2)]
    for path in paths:
        Storage(table.load().io_properties).write(path, b"PAR1")
    stage_load(table, "L", paths, [])
    with open_engine(EngineName.LOCAL) as engine:
        runtime.maintain(NAME, SETTINGS, engine, unsafe=True)
        assert first in table.load().metadata.snapshots
        storage = Storage(table.load().io_properties)
        assert [storage.size(path) for path in paths] == [4, 4]
        declare_load(table, "L", LoadState.FAILED)
        settings = {"operations": "rewrite_position_deletes", "orphan_older_than_hours": "0"}
        staged = runtime.maintain(NAME, settings, engine, unsafe=True).staged
        assert staged is not None
        assert list(staged.files_deleted) == paths
        assert [storage.size(path) for path in paths] == [None, None]
        remove_pin(table, "reader")
        assert "reader" not in client.load_table("ns.t").metadata.refs
        runtime.maintain(NAME, SETTINGS, engine, unsafe=True)
        assert first not in table.load().metadata.snapshots
    assert runtime.verify(NAME).ok


def test_tags_survive_expiry_although_the_server_drops_refs_with_snapshots(
    runtime: Runtime, table_bucket: dict[str, str]
) -> None:
    """A tag and its rows remain after everything else has expired."""
    table = load_catalog("lake", **table_bucket).load_table("ns.t")
    for number in range(4):
        table.append(_rows(number * 10))
        if number == 1:
            snapshot = table.current_snapshot()
            assert snapshot is not None
            table.manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    before = runtime.catalog.load(NAME)
    tagged = before.metadata.refs["audit"].snapshot_id
    expected = read_checksum(before.metadata_location, s3=table_bucket, snapshot_id=tagged)
    with open_engine(EngineName.LOCAL) as engine:
        outcome = runtime.maintain(NAME, SETTINGS, engine)
    assert outcome.status is PassStatus.SUCCEEDED
    after = runtime.catalog.load(NAME)
    assert after.metadata.refs["audit"].snapshot_id == tagged
    assert len(after.metadata.snapshots) == 2
    assert read_checksum(after.metadata_location, s3=table_bucket, snapshot_id=tagged) == expected
    assert runtime.verify(NAME).problems == ()


def test_an_idle_table_is_not_proposed_and_unused_schemas_are_removed(
    runtime: Runtime, table_bucket: dict[str, str]
) -> None:
    """After a pass that found nothing to do, detection proposes the table again only when it changes.

    The server accepts the update remove-schemas of the REST specification.
    """
    table = load_catalog("lake", **table_bucket).load_table("ns.t")
    for number in range(2):
        table.append(_rows(number * 10))
    with open_engine(EngineName.LOCAL) as engine:
        runtime.maintain(NAME, SETTINGS, engine)
        runtime.maintain(NAME, SETTINGS, engine)
    assert runtime.detect(SETTINGS).proposals == ()
    table.refresh().append(_rows(100))
    table.append(_rows(110))
    assert [proposal.table for proposal in runtime.detect(SETTINGS).proposals] == ["ns.t"]
    with table.update_schema() as update:
        update.add_column("note", StringType())
    _append(table, 12)
    assert len(runtime.catalog.load(NAME).metadata.schemas) == 2
    settings = {**SETTINGS, "operations": "expire_snapshots", "clean_expired_metadata": "true"}
    with open_engine(EngineName.LOCAL) as engine:
        outcome = runtime.maintain(NAME, settings, engine)
    assert outcome.operations[0].metrics["expire_snapshots.schemas_removed"] == 1, outcome.summary
    assert len(runtime.catalog.load(NAME).metadata.schemas) == 1
    assert runtime.verify(NAME).ok


def test_statistics_in_a_bucket_that_checks_names_of_metadata_files(
    runtime: Runtime, table_bucket: dict[str, str]
) -> None:
    """It accepts ``*.stats`` and Avro there, keeps registered statistics, and lets them be replaced."""
    catalog = load_catalog("lake", **table_bucket)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = catalog.create_table("ns.parts", schema, partition_spec=spec)
    table.append(_rows(0))
    table.append(_rows(5))
    name = TableName.parse("ns.parts")
    settings = {"operations": "compute_statistics", "statistics_columns": "id"}
    with open_engine(EngineName.LOCAL) as engine:
        (outcome,) = runtime.maintain(name, settings, engine).operations
        assert outcome.summary == (
            "computed statistics of 1 column(s) over 20 row(s); partition statistics of 2 partition(s)"
        )
        (more,) = runtime.maintain(name, {**settings, "statistics_columns": "id,name"}, engine).operations
        assert more.summary == "computed statistics of 1 column(s) over 20 row(s)"
        (again,) = runtime.maintain(name, settings, engine).operations
    assert again.reason == "statistics are up to date"
    metadata = runtime.catalog.load(name).metadata
    (entry,), (counted,) = metadata.statistics, metadata.partition_statistics
    assert {blob["fields"][0]: blob["properties"]["ndv"] for blob in entry["blob-metadata"]} == {1: "15", 2: "2"}
    assert counted["statistics-path"].endswith(".avro")
    assert runtime.verify(name).ok


def test_a_tag_that_the_server_drops_with_its_snapshot_is_pinned(
    runtime: Runtime, table_bucket: dict[str, str], tmp_path: Path
) -> None:
    """It is created just before the commit: the server drops it with its snapshot and restores neither."""
    client = load_catalog("lake", **table_bucket)
    client.load_table("ns.t").append(_rows(0))
    client.load_table("ns.t").overwrite(_rows(1))
    first = next(iter(runtime.catalog.load(NAME).metadata.snapshots))

    def tag() -> None:
        client.load_table("ns.t").manage_snapshots().create_tag(first, "late").commit()

    beside = Runtime(ScriptedCatalog(runtime.catalog, before_commit=once(tag)), runtime.state, environment={})
    with open_engine(EngineName.LOCAL) as engine:
        outcome = beside.maintain(NAME, {**SETTINGS, "operations": "expire_snapshots"}, engine, unsafe=True)
        assert outcome.status is PassStatus.PARTIAL
        (pin,) = list_pins(runtime.table(NAME))
        assert (pin.kind, pin.snapshot_id) == (PinKind.LOST_REF, first)
        assert "late" not in runtime.catalog.load(NAME).metadata.refs
        assert outcome.operations[0].files_deleted
        settings = {"operations": "remove_orphans", "orphan_older_than_hours": "0"}
        assert beside.maintain(NAME, settings, engine, unsafe=True).status is PassStatus.SUCCEEDED
    kept = StaticTable.from_metadata(pin.metadata_location, {k: v for k, v in table_bucket.items() if "s3." in k})
    assert kept.scan(snapshot_id=kept.refs()["late"].snapshot_id).to_arrow().num_rows == 10
