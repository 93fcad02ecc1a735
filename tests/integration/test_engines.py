"""All engines run a work unit alike: cores, retries, lost exchanges, and late attempts."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import TaskContext
from pyspark.sql import SparkSession

from icekeeper.engines.engine import DeferredSpark, Engine, Payload, local_cores
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine, drop_items, local_session
from icekeeper.engines.spark_tasks import WritesFiles
from icekeeper.errors import StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.machine.metering import RequestKind, counting
from icekeeper.machine.resources import this_machine
from icekeeper.model import ManifestContent
from icekeeper.operations.compaction.terms.output_names import Layout, OutputNames
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask, Routing, planned_files
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.operations.compaction.work.sort_files import LaneTask, SplitTask, lane_files, merge_lane, split_rows
from icekeeper.operations.manifests.lanes import Lane, ManifestsOfTable, split_entries, write_lane
from icekeeper.operations.manifests.lanes import SplitTask as ManifestSplit
from icekeeper.operations.position_deletes.merge import MergeTask, PositionDeletes, merge_deletes
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import Strategy
from icekeeper.report.outcome import PassStatus
from icekeeper.state.staging import LoadState
from icekeeper.storage.paths import ATTEMPTS_PER_RUN, PathSet, PlannedFile, normalise
from icekeeper.storage.storage import Storage
from support.command import CATALOG, Command
from support.engine_work import (
    Reads,
    cores_of,
    cores_of_both,
    cores_of_split,
    digits,
    double,
    end_process,
    end_process_in_split,
    end_process_or_sleep,
    numbers,
    reads_nothing,
    sends,
    sends_each,
    sends_one,
)
from support.iceberg_java import IcebergJava
from support.maintained_table import NAME, new_table
from support.rewrites import input_file, rows, struct, task


def test_results_arrive_in_the_order_of_tasks_and_parts(engine: Engine) -> None:
    """The last progress call reports all work as done; without work, nothing starts."""
    assert engine.map(double, [], lambda done: None) == []
    assert engine.exchange(digits, [], numbers, [], lambda done: None) == []
    seen: list[int] = []
    assert engine.map(double, list(range(7)), seen.append) == [0, 2, 4, 6, 8, 10, 12]
    assert seen[-1] == 7
    assert seen == sorted(seen)

    seen = []
    parts = ["zero", "one", "two", "three"]  # a part without items is returned, too
    found = engine.exchange(digits, [10, 11, 30, 130], numbers, parts, seen.append)
    assert found == [("zero", [10, 30, 130]), ("one", [10, 11, 11, 130]), ("two", []), ("three", [30, 130])]
    assert seen[-1] == 8

    with counting() as count:
        assert engine.map(sends, [1, 2, 3], lambda done: None) == [-1, -2, -3]
        exchanged = engine.exchange(sends_each, [3, 4], sends_one, [0, 1], lambda done: None)
        assert exchanged == [[0, 0, 2, 2], [1, 1, 3]]
    assert count.counts == {RequestKind.GET: 6 + 7, RequestKind.PUT: 2}
    with counting() as count:
        assert engine.exchange(sends_each, [3], reads_nothing, [0, 1], lambda done: None) == [0, 1]
    assert count.counts == {RequestKind.GET: 3}


def test_a_dead_local_worker_raises_a_clear_error() -> None:
    """A worker killed for memory, say, is reported at once, although the other workers ignore SIGTERM."""
    begun = time.monotonic()
    with pytest.raises(StorageError, match="a worker process died"):
        LocalEngine(2).map(end_process_or_sleep, [60, 0], lambda done: None)
    assert time.monotonic() - begun < 30
    with pytest.raises(StorageError, match="a worker process died"):
        LocalEngine(2).exchange(end_process_in_split, [1, 1], numbers, ["a"], lambda done: None)


def test_a_dead_spark_worker_raises_a_clear_error(spark_session: SparkSession) -> None:
    """Spark's failure becomes a single sentence, and the session remains usable."""
    engine = SparkEngine(spark_session.sparkContext)
    with pytest.raises(StorageError, match="Spark could not run the work"):
        engine.map(end_process, [1], lambda done: None)
    with pytest.raises(StorageError, match="Spark could not run the work"):
        engine.exchange(end_process_in_split, [1], numbers, ["a"], lambda done: None)
    assert engine.map(double, [1], lambda done: None) == [2]


def test_a_running_session_is_used_and_left_running(spark_session: SparkSession) -> None:
    """So is a session of another thread, although Spark shows the active session only to the thread that started it."""
    with local_session() as session:
        assert session is spark_session
    found = []

    def use() -> None:
        with local_session() as session:
            found.append(session.sparkContext)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [spark_session.sparkContext]
    assert spark_session.range(3).count() == 3


def test_a_deferred_engine_starts_with_its_first_work() -> None:
    """A pass without rewrites starts no engine; the first work starts it once, and leaving the context stops it."""
    events: list[str] = []

    class Started:
        def __enter__(self) -> LocalEngine:
            events.append("start")
            return LocalEngine(1)

        def __exit__(self, *reason: object) -> None:
            events.append("stop")

    start: Callable[[], Any] = Started
    with DeferredSpark(start) as engine:
        assert events == []
        engine.map(double, [1], lambda done: None)
        engine.map(double, [2], lambda done: None)
        assert engine.exchange(digits, [1], numbers, ["zero", "one"], lambda done: None)[1] == ("one", [1])
        assert events == ["start"]
    assert events == ["start", "stop"]


# The command chooses its engine, reports the choice and its reason, and records the name in the journal.

CALLS = """
import json, sys
from icekeeper.cli import main
codes = [main(call) for call in json.loads(sys.argv[1])]
print(json.dumps({"codes": codes, "spark": "pyspark" in sys.modules}), file=sys.stderr)
"""
HERE = "no Spark session or cluster is available"


def test_a_pass_uses_this_machine_without_a_cluster(command: Command) -> None:
    """In a separate process, where no test has started a Spark session."""
    command.table(appends=6)
    document = command("maintain", "ns.t", "--engine", "local", "--dry-run", "--json").json
    assert document["engine"] == {"name": "local", "reason": None}
    assert "engine:" not in command("plan", "ns.t", "--engine", "local").out
    compact = ("ns.t", "--operations", "compact", "--catalog", CATALOG)
    calls = json.dumps([("plan", *compact), ("maintain", *compact, "--json")])
    done = subprocess.run([sys.executable, "-c", CALLS, calls], capture_output=True, text=True, check=True)
    planned, _, passed = done.stdout.partition("\n{")
    assert f"engine: local; {HERE}" in planned.splitlines()
    assert json.loads(f"{{{passed}")["engine"] == {"name": "local", "reason": HERE}
    assert json.loads(done.stderr.splitlines()[-1]) == {"codes": [0, 0], "spark": False}
    assert command("history", "ns.t", "--json").json["passes"][0]["engine"] == "local"
    for name in ("maintain", "plan", "orphans", "run", "demo"):
        text = " ".join(command(name, "--help", catalog=None).out.split())
        assert "[default: auto]" in text
        assert "[auto|spark|local]" in text or "<auto|spark|local>" in text


# A late attempt fails, or writes, after another attempt at the same task has been committed.

SCHEMA = struct((1, "id", "long"), (2, "part", "string"))
PARTS = ["a", "b"]
RECIPE = ClusterRecipe(Strategy.SORT, (KeyColumn(1),), 1_000, 500)


@dataclass(frozen=True)
class Writer:
    """A task that writes, its work unit as an engine calls it, and the recorded files that it plans to write."""

    task: Any
    run: Callable[[Any], Any]
    planned: Sequence[PlannedFile]


def merging(folder: Path, **more: Any) -> RewriteTask:
    """Three files with rows of two partitions."""
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
    spec = {"spec-id": 1, "fields": [{"source-id": 2, "field-id": 1000, "name": "part", "transform": "identity"}]}
    schema = {**SCHEMA, "schema-id": 0}
    names = OutputNames(str(folder / "out"), "out", layout=layout)
    made = merging(folder, routing=Routing(1, spec, [schema]), outputs=names)
    return Writer(made, rewrite_group, list(planned_files(made)))


def lane(folder: Path) -> Writer:
    made = merging(folder, recipe=RECIPE)
    items = [item for _, item in split_rows(SplitTask(made, 0, 0, None, (), (0,), range(1)))]
    part = LaneTask(replace(made, inputs=()), 0, None, 1.0)
    return Writer(part, lambda task: merge_lane(task, iter(items)), list(lane_files(part, 10)))


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
    table = new_table(catalog, folder, appends=3)
    metadata = table.metadata
    snapshot = metadata.current_snapshot
    assert snapshot is not None
    kind = ManifestsOfTable(metadata.document, 0, ManifestContent.DATA, {})
    parts = [part for _, part in split_entries(ManifestSplit(kind, tuple(table.reader.manifests(snapshot)), (), 0))]
    catalog.close()
    outputs = tuple(PlannedFile(str(folder / "out" / f"m0-{number}"), "avro") for number in range(3))
    return Writer(Lane(kind, outputs, 1), lambda lane: write_lane(lane, iter(parts)), outputs)


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
    """From the ``last``-th output on, a write fails halfway."""
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


def test_a_late_attempt_keeps_the_files_of_another_attempt(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repeated attempt has finished, and its files are committed."""
    surplus = writer.run(writer.task.in_attempt(8))
    assert "was started more than" in (surplus.error or "")
    assert (surplus.written, outputs(tmp_path)) == ((), {})

    done = writer.run(writer.task.in_attempt(1))
    assert done.error is None
    committed = outputs(tmp_path)
    assert committed
    with monkeypatch.context() as patch:
        breaking_at(patch, tmp_path, last=len(committed))
        late = writer.run(writer.task)
    assert "was not written" in (late.error or "")
    assert outputs(tmp_path) == committed, "it removes only what it wrote itself"

    assert writer.run(writer.task).error is None
    assert outputs(tmp_path).items() > committed.items(), "it writes over nothing"
    assert len(outputs(tmp_path)) == 2 * len(committed)
    # The record from before the first attempt protects every file of every attempt.
    recorded = PathSet(file.record for file in writer.planned)
    assert [path for path in outputs(tmp_path) if not recorded.may_contain(path)] == []


# -- through Spark


def fails_first_attempt(function: Callable[[Any], Any], folder: Path) -> Callable[[Any], Any]:
    """The first attempt at a task writes its files, stores its argument, and dies."""

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
    """A worker dies during every task, and Spark begins the task again."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        super().__init__(session.sparkContext)
        self._folder = folder

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], on_done: Callable[[int], None]) -> list[Any]:
        return super().map(fails_first_attempt(function, self._folder), tasks, on_done)


def test_a_hung_executor_that_fails_after_its_task_was_repeated_and_committed_harms_nothing(
    local_catalog: SqlCatalog, tmp_path: Path, iceberg_java: IcebergJava
) -> None:
    """The files that only its record names are deleted; the committed files are kept."""
    table = new_table(local_catalog, tmp_path, appends=3)
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
    # It resumes long after, when an input has already expired.
    late: RewriteTask = pickle.loads((tmp_path / "late.pickle").read_bytes())
    Path(normalise(late.inputs[-1].path)).unlink()
    assert (rewrite_group(late).error or "").endswith(" does not exist")
    assert (memory.staged_loads(), table.unreferenced() & {left}, Path(committed).exists()) == ((), set(), True)
    assert sorted(row["id"] for row in iceberg_java.rows(table.loaded.metadata_location)) == ids


# If Spark loses shuffle files, the parts are begun again, and the session remains usable.


@pytest.fixture
def context_that_loses_shuffles(spark_session: SparkSession) -> Iterator[Any]:
    """The session's context; its block manager is registered again afterwards.

    On a local master Spark itself never registers it, but tries and logs every ten seconds.
    """
    yield spark_session.sparkContext
    jvm: Any = spark_session._jvm
    manager = jvm.org.apache.spark.SparkEnv.get().blockManager()
    heap, off_heap, endpoint = (
        _private(manager, name) for name in ("maxOnHeapMemory", "maxOffHeapMemory", "storageEndpoint")
    )
    folders = manager.diskBlockManager().localDirsString()
    manager.master().registerBlockManager(manager.blockManagerId(), folders, heap, off_heap, endpoint, False)


def _private(java_object: Any, name: str) -> Any:
    field = java_object.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java_object)


@dataclass(frozen=True)
class NumberedPart:
    """Returns its attempt; the first part that is merged deletes the shuffle files of all parts."""

    folder: str
    began: float
    attempt: int = 0

    def in_attempt(self, attempt: int) -> NumberedPart:
        return replace(self, attempt=attempt)


def _losing(part: NumberedPart, items: Iterator[tuple[int, Payload]]) -> tuple[int, list[int]]:
    found = numbers("", items)[1]
    mark = Path(part.folder) / "lost"
    if not mark.exists():
        mark.touch()
        for path in Path(part.folder).parents[0].glob("**/shuffle_*"):
            if path.stat().st_mtime >= part.began:
                path.unlink()
    return part.attempt, found


def _bytes(count: int) -> bytes:
    return b"x" * count


def test_parts_that_lost_shuffle_files_are_begun_again_with_new_attempt_numbers(
    context_that_loses_shuffles: Any, tmp_path: Path
) -> None:
    """Spark itself would count attempts from 0 again, while earlier attempts may still run.

    Afterwards the session still returns results so large that Spark sends them through its block manager.
    """
    local = Path(context_that_loses_shuffles.getConf().get("spark.local.dir") or "")
    folder = local / tmp_path.name
    folder.mkdir(parents=True)
    parts = [NumberedPart(str(folder), time.time() - 1) for _ in range(8)]
    engine = SparkEngine(context_that_loses_shuffles)
    found = engine.exchange(digits, [10, 21, 32, 43, 54, 65, 76], _losing, parts, lambda done: None)
    assert {attempt // ATTEMPTS_PER_RUN for attempt, _ in found} == {1}
    assert [numbers for _, numbers in found][:3] == [[10], [10, 21], [21, 32]]
    (large,) = engine.map(_bytes, [2_000_000], lambda done: None)
    assert len(large) == 2_000_000


def shuffled_files(local: Path) -> set[Path]:
    return set(local.glob("**/shuffle_*"))


def _files_during(local: str, items: Iterator[tuple[int, Payload]]) -> set[Path]:
    numbers("", items)
    return shuffled_files(Path(local))


def gone_within(seconds: float, files: set[Path]) -> bool:
    """Whether all files disappear; Spark removes them in the background."""
    deadline = time.monotonic() + seconds
    while any(path.exists() for path in files) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(path.exists() for path in files)


def test_an_exchange_leaves_no_shuffled_items_on_disk(spark_session: SparkSession) -> None:
    """If this fails, Spark or PySpark has changed a name that ``drop_items`` uses; dropped items are sent again."""
    context = spark_session.sparkContext
    local = Path(context.getConf().get("spark.local.dir") or "")
    before = shuffled_files(local)
    sent = context.parallelize([1, 2, 3], 2).map(lambda number: (number % 2, number)).partitionBy(2, lambda part: part)
    for _ in range(2):
        assert sorted(sent.values().collect()) == [1, 2, 3]
        made = shuffled_files(local) - before
        assert sum(path.suffix == ".data" for path in made) == 2
        drop_items(sent)
        assert gone_within(20, made)

    during = SparkEngine(context).exchange(digits, [10, 21, 32], _files_during, [str(local)] * 4, lambda done: None)
    made = set().union(*during) - before
    assert made
    assert gone_within(20, made)


def test_a_machine_is_a_single_host(engine: Engine) -> None:
    """If this fails on Spark, the name that PySpark lacks has changed (``SparkEngine.hosts``)."""
    assert engine.hosts == 1


# Every engine gives a task its share of all cores, and no core to two tasks.


def mapped(engine: Engine, tasks: int) -> list[int]:
    return engine.map(cores_of, list(range(tasks)), lambda done: None)


def exchanged(engine: Engine, tasks: int) -> tuple[list[int], int]:
    return engine.exchange(cores_of_split, list(range(tasks)), cores_of_both, ["part"], lambda done: None)[0]


def test_tasks_of_the_local_engine_share_its_cores() -> None:
    engine = LocalEngine(2, cores=4)
    assert mapped(engine, 1) == [4]
    assert engine.map(cores_of, [Reads(1)] * 3, lambda done: None) == [4, 4, 4]
    assert exchanged(engine, 1) == ([4], 4)
    assert mapped(LocalEngine(2, cores=5), 3) == [2, 2, 2]
    assert mapped(LocalEngine(2), 2) == [1, 1]
    assert exchanged(LocalEngine(2, cores=4), 2) == ([2, 2], 2)
    assert mapped(LocalEngine(1), 2) == [1, 1], "so it is in a function, which may have less than one core"


def test_tasks_of_a_local_spark_session_share_its_cores(spark_session: SparkSession) -> None:
    engine = SparkEngine(spark_session.sparkContext)
    cores = local_cores(spark_session.sparkContext.master or "", this_machine().cores)
    assert cores >= 1
    assert mapped(engine, 1) == [cores]
    assert mapped(engine, cores + 1) == [1] * (cores + 1)
    assert exchanged(engine, 1) == ([cores], cores)
