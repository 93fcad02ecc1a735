"""A whole pass over a table in a bucket that, as on AWS, neither lists nor deletes objects."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from icekeeper.administration.pins import add_pin, declare_load, list_loads, list_pins, stage_load
from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError
from icekeeper.model import TableName
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.store import LoadState
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.aws_table_bucket import runtime_of_table_bucket

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


def test_a_failed_load_is_released_to_the_bucket(runtime: Runtime) -> None:
    """What cannot be deleted here, the bucket removes by itself."""
    table = runtime.table(TableName.parse("ns.t"))
    path = f"{table.load().metadata.location}/data/staged.parquet"
    Storage(table.load().io_properties).write(path, b"x")
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


def test_statistics_need_nothing_but_writing(runtime: Runtime) -> None:
    name = TableName.parse("ns.t")
    with open_engine(EngineName.LOCAL) as engine:
        (outcome,) = runtime.maintain(name, {"operations": "compute_statistics"}, engine).operations
        assert outcome.summary == "computed statistics of 1 column(s) over 30 row(s)"
        (again,) = runtime.maintain(name, {"operations": "compute_statistics"}, engine).operations
    assert again.reason == "statistics are up to date"
    (entry,) = runtime.catalog.load(name).metadata.statistics
    assert [blob["properties"]["ndv"] for blob in entry["blob-metadata"]] == ["5"]
    assert runtime.verify(name).ok
