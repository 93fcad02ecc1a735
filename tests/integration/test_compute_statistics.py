"""Statistics of a table that lives on: what is read, what is carried over, and nothing wrong is ever registered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import PolicyError, StorageError
from icekeeper.metadata.puffin import PuffinFile, decode_footer
from icekeeper.metadata.statistics import decode_theta
from icekeeper.operations.statistics import compute_statistics as sketches
from icekeeper.operations.statistics import sketch_task as task
from icekeeper.report.outcome import Status
from icekeeper.storage.storage import Storage
from support.deletes import create_by_region, rows_of
from support.maintained_table import NAME, MaintainedTable, local_path, maintained_table
from support.table_statistics import UP_TO_DATE, computed, entry, ndv, previewed, rows_read, true_ndv
from support.v3 import data_files


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region, two files of ten rows each in us and in eu: forty ids."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 2)
        yield made


def test_the_first_time_all_is_read(table: MaintainedTable) -> None:
    before = table.loaded.metadata
    preview = previewed(table)
    assert table.loaded.metadata.document == before.document
    outcome = computed(table)
    assert outcome.summary == (
        "computed statistics of 2 column(s) over 40 row(s); partition statistics of 2 partition(s)"
    )
    assert preview.summary == "would compute statistics of 2 column(s) from 4 file(s); would count partitions"
    assert preview.files_planned == outcome.files_planned
    assert set(outcome.files_planned) == {f.file_path for f in data_files(table)}
    assert outcome.metrics.keys() == {
        f"compute_statistics.{key}"
        for key in (
            ["columns", "columns_unsupported", "blobs_carried", "rows_read", "files_read", "partitions", "duration_ms"]
        )
    }
    assert rows_read(outcome) == (Status.SUCCEEDED, 40, 4)
    after = table.loaded.metadata
    assert (after.refs, after.snapshots.keys()) == (before.refs, before.snapshots.keys())
    assert ndv(table) == true_ndv(table) == {1: 40, 2: 2}
    table.assert_sound()
    assert computed(table).reason == previewed(table).reason == UP_TO_DATE


def test_the_file_is_what_the_specification_says(table: MaintainedTable) -> None:
    computed(table)
    told = entry(table)
    data = local_path(told["statistics-path"]).read_bytes()
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    assert told["statistics-path"].rpartition("/")[2].startswith(f"{head.snapshot_id}-")
    blobs = decode_footer(data[-told["file-footer-size-in-bytes"] :], "x")
    assert PuffinFile(data, blobs).footer_size == told["file-footer-size-in-bytes"]
    assert told["file-size-in-bytes"] == len(data)
    for blob in blobs:
        assert (blob.snapshot_id, blob.sequence_number) == (head.snapshot_id, head.sequence_number)
        sketch = decode_theta(data[blob.offset : blob.offset + blob.length], "x")
        assert sketch.estimate == int(blob.properties["ndv"])
    assert b'"created-by": "icekeeper ' in data


def test_columns_can_be_chosen(table: MaintainedTable) -> None:
    assert computed(table, statistics_columns="region").summary.startswith("computed statistics of 1 column(s)")
    assert ndv(table) == {2: 2}
    outcome = computed(table)
    assert (outcome.metrics["compute_statistics.columns"], outcome.metrics["compute_statistics.blobs_carried"]) == (
        1,
        1,
    )
    assert ndv(table) == {2: 2, 1: 40}
    with pytest.raises(PolicyError, match="statistics_columns names 'nobody', which is no column"):
        computed(table, statistics_columns="nobody")


def test_columns_in_structs_by_their_dotted_name(tmp_path: Path) -> None:
    """Where the struct is null, so is the column."""
    with maintained_table(tmp_path) as table:
        points = [{"x": 1, "y": 1}, {"x": 1, "y": 2}, None, {"x": None, "y": 3}]
        schema = pa.schema([("point", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
        table.create(schema).append(pa.table({"point": points}, schema=schema))
        assert computed(table).reason == "no column is of a type that statistics are kept of"
        assert computed(table).metrics["compute_statistics.columns_unsupported"] == 1
        computed(table, statistics_columns="point.y,point.x")
        names = {"x": 2, "y": 3}
        assert ndv(table) == {names["x"]: 1, names["y"]: 3}


def test_where_parquet_is_refused_partitions_go_into_avro(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Storage.write

    def guarded(storage: Storage, path: str, data: bytes) -> None:
        if path.endswith(".parquet"):
            raise StorageError(f"{path} is refused")
        write(storage, path, data)

    monkeypatch.setattr(Storage, "write", guarded)
    assert computed(table).status is Status.SUCCEEDED
    (counted,) = table.loaded.metadata.partition_statistics
    assert counted["statistics-path"].endswith(".avro")
    assert local_path(counted["statistics-path"]).stat().st_size == counted["file-size-in-bytes"]
    table.assert_sound()


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_parts_make_the_same_whole(
    table: MaintainedTable, engine: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A task for every file, two at a time, by other processes."""
    monkeypatch.setattr(task, "_TASK_BYTES", 1)
    monkeypatch.setattr(sketches, "_WAVE", 2)
    told: list[tuple[str, int, int]] = []
    session: SparkSession | None = request.getfixturevalue("spark_session") if engine == "spark" else None
    chosen = LocalEngine(2) if session is None else SparkEngine(session.sparkContext)
    outcome = table.runtime.maintain(
        NAME, {"operations": "compute_statistics"}, chosen, progress=lambda *step: told.append(step)
    )
    assert rows_read(outcome.operations[0]) == (Status.SUCCEEDED, 40, 4)
    assert ndv(table) == {1: 40, 2: 2}
    steps = [(done, total) for what, done, total in told if what == "compute_statistics: file groups"]
    assert steps == sorted(steps)
    assert {(0, 4), (2, 4), (4, 4)} <= set(steps)


def test_another_branch(table: MaintainedTable) -> None:
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    table.table.manage_snapshots().create_branch(snapshot.snapshot_id, "audit").commit()
    table.table.append(rows_of(5, 10, "us"))
    assert rows_read(computed(table, branch="audit")) == (Status.SUCCEEDED, 40, 4)
    assert [e["snapshot-id"] for e in table.loaded.metadata.statistics] == [snapshot.snapshot_id]
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 10, 1)
