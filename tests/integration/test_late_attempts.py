"""An attempt that comes late: it fails, or writes, after another attempt at the same task was committed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import TaskContext
from pyspark.sql import SparkSession

from icekeeper.engines.spark import SparkEngine
from icekeeper.engines.spark_tasks import WritesFiles
from icekeeper.errors import StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.model import ManifestContent
from icekeeper.operations.compaction.clustering.range_tasks import LaneTask, SplitTask
from icekeeper.operations.compaction.clustering.work import lane_files, merge_lane, split_rows
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.rewrite_task import Layout, OutputNames, RewriteTask, Routing, planned_files
from icekeeper.operations.manifests.lanes import Lane, ManifestsOfTable, split_entries, write_lane
from icekeeper.operations.manifests.lanes import SplitTask as ManifestSplit
from icekeeper.operations.position_deletes.merge import MergeTask, PositionDeletes, merge_deletes
from icekeeper.pass_context.stores import TableHandle
from icekeeper.policy import Strategy
from icekeeper.report.outcome import PassStatus
from icekeeper.state.store import LoadState
from icekeeper.storage.paths import PathSet, PlannedFile, normalise
from icekeeper.storage.storage import Storage
from support.iceberg_java import IcebergJava
from support.maintained_table import NAME, new_table
from support.rewrites import input_file, rows, struct, task

SCHEMA = struct((1, "id", "long"), (2, "part", "string"))
PARTS = ["a", "b"]
RECIPE = ClusterRecipe(Strategy.SORT, (KeyColumn(1),), 1_000, 500)


@dataclass(frozen=True)
class Writer:
    """A task that writes, and its work unit as an engine would call it; what it plans to write, as recorded."""

    task: Any
    run: Callable[[Any], Any]
    planned: Sequence[PlannedFile]


def merging(folder: Path, **more: Any) -> RewriteTask:
    """Three files of rows of two parts."""
    ids = [list(range(number * 200, number * 200 + 200)) for number in range(3)]
    tables = [rows(SCHEMA, {"id": some, "part": PARTS * 100}) for some in ids]
    inputs = [input_file(folder / f"in-{number}.parquet", table) for number, table in enumerate(tables)]
    return task(SCHEMA, inputs, folder / "out", **more)


def even(folder: Path) -> Writer:
    made = merging(folder, output_count=2)
    return Writer(made, rewrite_group, list(planned_files(made)))


def sorted_whole(folder: Path) -> Writer:
    made = merging(folder, recipe=RECIPE)
    return Writer(made, rewrite_group, list(planned_files(made)))


def dealt_out(folder: Path, layout: Layout = Layout.PLAIN) -> Writer:
    spec = {
        "spec-id": 1,
        "fields": [{"source-id": 2, "field-id": 1000, "name": "part", "transform": "identity"}],
    }
    schema = {**SCHEMA, "schema-id": 0}
    names = OutputNames(str(folder / "out"), "out", layout=layout)
    made = merging(folder, routing=Routing(1, spec, [schema]), outputs=names)
    return Writer(made, rewrite_group, list(planned_files(made)))


def lane(folder: Path) -> Writer:
    made = merging(folder, recipe=RECIPE)
    items = [item for _, item in split_rows(SplitTask(made, 0, 0, None, (), (0,)))]
    part = LaneTask(replace(made, inputs=()), 0, None, 1.0)
    return Writer(part, lambda one: merge_lane(one, iter(items)), list(lane_files(part, 10)))


def deletes(folder: Path, *, into_vectors: bool = False) -> Writer:
    inputs = []
    for number in range(2):
        path = folder / f"in-{number}.parquet"
        pq.write_table(pa.table({"file_path": ["d"], "pos": pa.array([number], pa.int64())}), path)
        inputs.append(PositionDeletes(str(path), "PARQUET", 1, 1))
    made = MergeTask(
        group_id=0,
        deletes=tuple(inputs),
        targets={"d": 1},
        into_vectors=into_vectors,
        partition=(),
        output=PlannedFile(str(folder / "out" / "deletes"), "puffin" if into_vectors else "parquet"),
        io_properties={},
    )
    return Writer(made, merge_deletes, [made.output])


def manifests(folder: Path) -> Writer:
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=(folder / "warehouse").as_uri())
    table = new_table(catalog, folder)
    table.fill(3)
    metadata = table.metadata
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    kind = ManifestsOfTable(metadata.document, 0, ManifestContent.DATA, {})
    parts = [part for _, part in split_entries(ManifestSplit(kind, tuple(table.reader.manifests(snapshot)), (), 0))]
    catalog.close()
    outputs = tuple(PlannedFile(str(folder / "out" / f"m0-{number}"), "avro") for number in range(3))
    return Writer(Lane(kind, outputs, 1), lambda one: write_lane(one, iter(parts)), outputs)


WRITERS: dict[str, Callable[[Path], Writer]] = {
    "even": even,
    "sorted": sorted_whole,
    "dealt out": dealt_out,
    "dealt out, hashed": lambda folder: dealt_out(folder, Layout.HASHED),
    "dealt out, flat": lambda folder: dealt_out(folder, Layout.HASHED_FLAT),
    "lane": lane,
    "deletes": deletes,
    "vectors": lambda folder: deletes(folder, into_vectors=True),
    "manifests": manifests,
}


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    (tmp_path / "out").mkdir()
    made = WRITERS[request.param](tmp_path)
    assert isinstance(made.task, WritesFiles), "an engine would not tell it which attempt it is"
    return made


def outputs(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}


def breaking_at(monkeypatch: pytest.MonkeyPatch, folder: Path, last: int) -> None:
    """From the ``last``-th output on, a file is begun and the machine is lost."""
    begun: list[str] = []

    def begin(storage: Storage, path: str) -> None:
        if path.startswith(str(folder / "out")):
            begun.append(path)
            if len(begun) >= last:
                with original(storage, path) as stream:
                    stream.write(b"half of it")
                raise StorageError(f"{path} was not written")

    def open_output(self: Storage, path: str) -> Any:
        begin(self, path)
        return original(self, path)

    def write(self: Storage, path: str, data: bytes) -> None:
        with open_output(self, path) as stream:
            stream.write(data)

    original = Storage.open_output
    monkeypatch.setattr(Storage, "open_output", open_output)
    monkeypatch.setattr(Storage, "write", write)


def test_an_attempt_that_fails_late_removes_only_what_it_wrote_itself(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeat is done, and its files are in the table by now."""
    done = writer.run(writer.task.in_attempt(1))
    assert done.error is None
    committed = outputs(tmp_path)
    assert committed
    breaking_at(monkeypatch, tmp_path, last=len(committed))
    late = writer.run(writer.task)
    assert "was not written" in (late.error or "")
    assert outputs(tmp_path) == committed


def test_an_attempt_that_is_done_late_writes_over_nothing(writer: Writer, tmp_path: Path) -> None:
    """And every file of every attempt is protected by what was recorded before the first."""
    writer.run(writer.task.in_attempt(1))
    committed = outputs(tmp_path)
    assert writer.run(writer.task).error is None
    assert outputs(tmp_path).items() > committed.items()
    assert len(outputs(tmp_path)) == 2 * len(committed)
    recorded = PathSet(file.record for file in writer.planned)
    assert [path for path in outputs(tmp_path) if not recorded.may_contain(path)] == []


def test_one_attempt_too_many_fails_and_writes_nothing(writer: Writer, tmp_path: Path) -> None:
    late = writer.run(writer.task.in_attempt(8))
    assert "was begun more than" in (late.error or "")
    assert late.written == ()
    assert outputs(tmp_path) == {}


# -- through Spark


def dying_once(function: Callable[[Any], Any], folder: Path) -> Callable[[Any], Any]:
    """The first attempt at a task writes its files, leaves what it was told, and is taken for dead."""

    def run(given: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber():
            return function(given)
        function(given)
        (folder / "late.pickle").write_bytes(pickle.dumps(given))
        os._exit(1)

    return run


class DyingOnce(SparkEngine):
    """A worker dies in the middle of every task, and Spark begins the task again."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        super().__init__(session.sparkContext)
        self._folder = folder

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], on_done: Callable[[int], None]) -> list[Any]:
        return super().map(dying_once(function, self._folder), tasks, on_done)


def test_a_hung_executor_that_fails_after_its_repeat_has_committed_harms_nothing(
    local_catalog: SqlCatalog, tmp_path: Path, iceberg_java: IcebergJava
) -> None:
    """What it had written until then, which nothing else knows of, is cleaned from the record; what landed stays."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    ids = table.ids()
    engine = DyingOnce(iceberg_java.session, tmp_path)
    outcome = table.maintain("compact", engine=engine, orphan_older_than_hours="24")
    assert outcome.status is PassStatus.SUCCEEDED
    (committed,) = (normalise(file.file_path) for file in table.data_files())
    (left,) = table.unreferenced()
    assert left == committed.replace("-a1.parquet", "-a0.parquet")
    memory = TableHandle(table.catalog, NAME, table.state, system_clock).memory(table.loaded)
    assert [load.state for load in memory.staged_loads()] == [LoadState.FAILED]
    staged = table.maintain("rewrite_position_deletes").staged
    assert staged is not None
    assert [normalise(path) for path in staged.files_deleted] == [left]
    assert staged.metrics["staged.files_referenced"] == 1
    # It wakes up long after, when an input has expired already.
    late: RewriteTask = pickle.loads((tmp_path / "late.pickle").read_bytes())
    Path(normalise(late.inputs[-1].path)).unlink()
    assert (rewrite_group(late).error or "").endswith(" does not exist")
    assert (memory.staged_loads(), table.unreferenced() & {left}, Path(committed).exists()) == ((), set(), True)
    assert sorted(row["id"] for row in iceberg_java.rows(table.loaded.metadata_location)) == ids
