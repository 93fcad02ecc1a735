"""Whole passes on a real table bucket, beside a writer that does not stop for us."""

from __future__ import annotations

import threading
import time
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
from icekeeper.demo.measure import read_checksum, read_rows
from icekeeper.engines.engine import EngineName
from icekeeper.model import TableName
from icekeeper.report.outcome import PassStatus
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import LoadState, PinKind
from icekeeper.storage.storage import Storage
from support.scripted_catalog import ScriptedCatalog, once

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
            continue  # a writer that meets another commit tries again, as every engine does
    raise AssertionError("the appender was starved")


@pytest.fixture
def runtime(table_bucket: dict[str, str], tmp_path: Path) -> Runtime:
    catalog = load_catalog("lake", **table_bucket)
    catalog.create_namespace("ns")
    catalog.create_table("ns.t", _rows(0).schema)
    return Runtime(open_catalog("lake", table_bucket), SqliteStateStore(tmp_path / "state.db"), environment={})


def test_pins_tags_and_staged_loads_on_a_real_table_bucket(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    """The server writes the tag, an expiry honours the pin, a failed load goes from the record."""
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


def test_passes_beside_a_steady_appender_lose_no_row(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    """While a writer appends, every pass succeeds and every appended row is there afterwards.

    One append is sure to come between a pass and its swap; the others come when they come.
    """
    appends = 18
    failures: list[BaseException] = []

    def append_all() -> None:
        table = load_catalog("lake", **table_bucket).load_table("ns.t")
        try:
            for number in range(appends):
                began = time.monotonic()
                _append(table, number)
                # Steady, on busy machines too; without pause it would win every swap.
                time.sleep(max(0.1, 2 * (time.monotonic() - began)))
        except BaseException as error:
            failures.append(error)

    # PyIceberg cannot retry an append whose base snapshot has expired meanwhile.
    gentle = {**SETTINGS, "max_snapshots_to_keep": "12"}
    late = load_catalog("lake", **table_bucket).load_table("ns.t")
    overtaken = ScriptedCatalog(runtime.catalog, before_commit=once(lambda: _append(late, appends)))
    beside = Runtime(overtaken, runtime.state, environment={})
    writer = threading.Thread(target=append_all)
    writer.start()
    passes = []
    with open_engine(EngineName.LOCAL) as engine:
        while writer.is_alive():
            passes.append(beside.maintain(NAME, gentle, engine))
        writer.join()
        passes.append(runtime.maintain(NAME, SETTINGS, engine))
    assert failures == []
    assert len(passes) > 2
    assert [one.summary for one in passes if one.status is not PassStatus.SUCCEEDED] == []
    after = runtime.catalog.load(NAME)
    ids = sorted(row["id"] for row in read_rows(after.metadata_location, s3=table_bucket))
    assert ids == list(range((appends + 1) * 10))


def test_tags_survive_expiry_although_the_server_drops_refs_with_snapshots(
    runtime: Runtime, table_bucket: dict[str, str]
) -> None:
    """A tag and what it shows are there after everything else expired."""
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


def test_an_idle_table_is_not_proposed_again(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    """After a pass that found nothing to do, detection is silent until the table changes."""
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


def test_statistics_in_a_bucket_that_guards_its_metadata(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    """It takes ``*.stats`` and Avro there; the server keeps what is registered, and lets it be replaced."""
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


def test_unused_schemas_go_on_request(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    """The server takes what the REST specification calls remove-schemas."""
    writer = load_catalog("lake", **table_bucket)
    _append(writer.load_table("ns.t"), 0)
    with writer.load_table("ns.t").update_schema() as update:
        update.add_column("note", StringType())
    _append(writer.load_table("ns.t"), 1)
    assert len(runtime.catalog.load(NAME).metadata.schemas) == 2
    settings = {**SETTINGS, "operations": "expire_snapshots", "clean_expired_metadata": "true"}
    with open_engine(EngineName.LOCAL) as engine:
        outcome = runtime.maintain(NAME, settings, engine)
    assert outcome.operations[0].metrics["expire_snapshots.schemas_removed"] == 1, outcome.summary
    assert len(runtime.catalog.load(NAME).metadata.schemas) == 1
    assert runtime.verify(NAME).ok


def test_a_tag_that_the_server_drops_with_its_snapshot_is_held(
    runtime: Runtime, table_bucket: dict[str, str], tmp_path: Path
) -> None:
    """It is made when the commit is on its way: the server takes it away, and does not take the snapshot back."""
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
