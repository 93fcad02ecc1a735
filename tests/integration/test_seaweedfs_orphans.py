"""Orphans of a real table bucket: one table's, and those of all tables from one listing."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.storage import Storage
from support.maintained_table import same_clock

A, B = TableName(("ns",), "a"), TableName(("ns",), "b")


@pytest.fixture
def runtime(table_bucket: dict[str, str], tmp_path: Path) -> Runtime:
    """Two tables with two appends each, in a bucket whose clock is ours but in whole seconds."""
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


def plant(runtime: Runtime, name: TableName, key: str) -> str:
    loaded = runtime.catalog.load(name)
    path = f"{loaded.metadata.location}/{key}"
    Storage(loaded.io_properties).write(path, b"x")
    return path


def exists(runtime: Runtime, path: str) -> bool:
    return Storage(runtime.catalog.load(A).io_properties).status(path) is not None


def test_all_tables_of_a_bucket_are_swept_from_one_listing(runtime: Runtime) -> None:
    orphans = {plant(runtime, A, "data/k=1/o.parquet"), plant(runtime, B, "data/k=%41/o.parquet")}
    orphans.add(plant(runtime, B, "metadata/o.avro"))
    warehouse = runtime.catalog.warehouse.rstrip("/")
    grace = {"orphan_older_than_hours": "0"}
    dry = runtime.sweep_bucket(warehouse, grace, LocalEngine(1), dry_run=True, unsafe=True)
    assert {path for table in dry.tables.values() for path in table.files_planned} == orphans
    outcome = runtime.sweep_bucket(warehouse, grace, LocalEngine(1), unsafe=True)
    assert {path for table in outcome.tables.values() for path in table.files_deleted} == orphans
    assert outcome.outside.files == 0
    assert not any(exists(runtime, path) for path in orphans)
    assert all(runtime.verify(name).ok for name in (A, B))


def test_a_table_that_a_client_put_into_another_is_left_alone(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    """SeaweedFS takes any location, so what a table bucket of AWS rules out must be looked for."""
    outer = runtime.catalog.load(A).metadata.location
    schema = pa.schema([pa.field("id", pa.int64())])
    load_catalog("writer", **table_bucket).create_table("ns.inner", schema, location=f"{outer}/data/inner")
    ours, theirs = plant(runtime, A, "data/o.parquet"), plant(runtime, TableName(("ns",), "inner"), "data/o.parquet")
    settings = {"operations": "remove_orphans", "orphan_older_than_hours": "0"}
    (outcome,) = runtime.maintain(A, settings, LocalEngine(1), unsafe=True).operations
    assert outcome.files_deleted == (ours,)
    assert exists(runtime, theirs)


def test_two_tables_in_one_location_are_refused(runtime: Runtime, table_bucket: dict[str, str]) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    location = runtime.catalog.load(A).metadata.location
    twin = load_catalog("writer", **table_bucket).create_table("ns.twin", schema, location=location)
    orphan = plant(runtime, A, "data/o.parquet")
    settings = {"operations": "remove_orphans", "orphan_older_than_hours": "0"}
    (outcome,) = runtime.maintain(A, settings, LocalEngine(1), unsafe=True).operations
    assert outcome.status.value == "refused"
    assert str(twin.metadata.table_uuid) in (outcome.reason or "")
    assert exists(runtime, orphan)
