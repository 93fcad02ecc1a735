"""Spark sessions and tasks, tested without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import invalidate_caches
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.sql import SparkSession

from icekeeper.engines import spark
from icekeeper.engines.spark import SparkEngine
from icekeeper.engines.spark_tasks import SparkTasks
from icekeeper.errors import StorageError
from icekeeper.machine.resources import on_cores, task_cores
from icekeeper.storage.paths import ATTEMPTS_PER_RUN, RUNS

# If a session retains too few stages, the error names the settings to raise
# (platform: spark-attempt-numbers-restart).  Without Spark.


class Session:
    """The context of a user's session and its only RDD; jobs succeed."""

    master = "yarn"

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.runs = 0
        self.dropped: list[tuple[int, bool]] = []
        """After how many runs the shuffled items were dropped, and whether the caller waited for it."""
        self._jrdd = SimpleNamespace(rdd=lambda: SimpleNamespace(cleanShuffleDependencies=self._drop))

    def _drop(self, blocking: bool) -> None:
        self.dropped.append((self.runs, blocking))
        raise Py4JError("the executor is gone")

    def parallelize(self, tasks: Any, count: int) -> Session:
        return self

    flatMap = partitionBy = mapPartitionsWithIndex = lambda self, *arguments: self  # noqa: N815  # Spark's names

    def setJobGroup(self, *group: str, **options: bool) -> None:  # noqa: N802  # Spark's name
        pass

    def collect(self) -> list[tuple[str, dict[str, int]]]:
        self.runs += 1
        return [("merged", {})]

    def getConf(self) -> dict[str, str]:  # noqa: N802  # Spark's name
        return {}

    def statusTracker(self) -> Any:  # noqa: N802  # Spark's name
        job = SimpleNamespace(status="SUCCEEDED", stageIds=[3, 4])
        return SimpleNamespace(
            getJobIdsForGroup=lambda group: [1],
            getJobInfo=lambda number: job,
            getStageInfo=lambda number: self.stage if number == 4 else None,
        )


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "inheritable_thread_target", lambda function: function)


def exchange(session: Session) -> list[Any]:
    def split(task: int) -> Iterator[tuple[int, int]]:
        yield 0, task

    def merge(part: int, items: Iterator[int]) -> int:
        return sum(items)

    return SparkEngine(session).exchange(split, [1], merge, [0], lambda done: None)  # type: ignore[arg-type]  # a fake


def test_a_stage_that_spark_has_dropped_raises_an_error_that_names_the_settings() -> None:
    session = Session(stage=None)
    with pytest.raises(StorageError, match=r"set spark\.ui\.retainedStages and spark\.ui\.retainedJobs"):
        exchange(session)
    assert session.runs == 1


def test_the_result_of_a_stage_with_a_single_attempt_is_used() -> None:
    session = Session(SimpleNamespace(currentAttemptId=0, numCompletedTasks=1))
    assert exchange(session) == ["merged"]
    assert session.runs == 1
    assert session.dropped == [(1, False)], "and an error of the removal changes nothing"


def test_the_work_of_a_restarted_stage_is_repeated() -> None:
    session = Session(SimpleNamespace(currentAttemptId=1, numCompletedTasks=1))
    with pytest.raises(StorageError, match="repeated the work too often"):
        exchange(session)
    assert session.runs == RUNS
    assert session.dropped == [(RUNS, False)]


@pytest.mark.parametrize(
    ("listed", "hosts"),
    [(("d",), 1), (("d", "d"), 1), (("d", "a"), 1), (("a", "d", "b", "a"), 2), (("d", "d", "a"), 2)],
)
def test_hosts_have_executors_and_the_driver_is_none(listed: tuple[str, ...], hosts: int) -> None:
    """Executors of a machine share its disks; the driver is listed once, alone only without a cluster."""
    tracker = SimpleNamespace(
        getExecutorInfos=lambda: [SimpleNamespace(host=lambda name=name: name) for name in listed]
    )
    context = SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker)),
        getConf=lambda: {"spark.driver.host": "d"},
    )
    assert SparkEngine(context).hosts == hosts  # type: ignore[arg-type]  # a fake


# The settings with which a local Spark session starts.

_FRUGAL = {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}


class _Started(Exception):
    """Raised instead of starting Java."""


def test_java_starts_with_frugal_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second compiler and parallel collector would double the CPU time of its process."""
    for variable in ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(variable, "")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(spark, "find_java_home", lambda: "")
    confs = []

    def start(conf: SparkConf) -> None:
        confs.append(conf)
        raise _Started

    monkeypatch.setattr(spark, "_start", start)
    with pytest.raises(_Started), spark.local_session():
        pass
    (conf,) = confs
    assert set((conf.get("spark.driver.extraJavaOptions") or "").split()) > _FRUGAL
    assert set((conf.get("spark.executor.extraJavaOptions") or "").split()) == _FRUGAL


# The functions that Spark's workers run, without Spark: the attempt and the cores that a work unit gets.


@dataclass(frozen=True)
class Written:
    attempt: int = -1

    def in_attempt(self, attempt: int) -> Written:
        return replace(self, attempt=attempt)


@dataclass(frozen=True)
class Running:
    """The part of ``pyspark.TaskContext`` that describes a task."""

    number: int = 0
    share: int = 1

    def attemptNumber(self) -> int:  # noqa: N802  # Spark's name
        return self.number

    def cpus(self) -> int:
        return self.share


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions disable ``importlib.invalidate_caches`` in their process."""
    monkeypatch.setattr("importlib.invalidate_caches", invalidate_caches)


def attempt_and_cores(task: Written) -> tuple[int, int]:
    return task.attempt, task_cores()


def split(task: Written) -> Iterator[tuple[int, int]]:
    yield attempt_and_cores(task)
    yield attempt_and_cores(task)


def merge(part: Written, items: Iterator[int]) -> tuple[tuple[int, int], list[int]]:
    return attempt_and_cores(part), list(items)


def test_a_task_has_the_cores_that_the_cluster_reserves_for_it() -> None:
    """It has no more cores, because other tasks run beside it."""
    tasks = SparkTasks(lambda: Running(number=2, share=3), own_cores=0, run=1)
    attempt = ATTEMPTS_PER_RUN + 2
    assert tasks.mapping(attempt_and_cores)(Written()) == ((attempt, 3), {})
    assert list(tasks.splitting(split)(Written())) == [(attempt, 3), (attempt, 3), (0, {})]
    merged = tasks.merging(merge, [Written(), Written()])(1, iter([(1, 10), (1, 20)]))
    assert list(merged) == [(((attempt, 3), [10, 20]), {})]
    assert task_cores() == 1


def test_a_task_shares_a_machine_that_spark_has_for_itself() -> None:
    assert SparkTasks(Running, own_cores=4).mapping(attempt_and_cores)(Written()) == ((0, 4), {})
    assert SparkTasks(Running, own_cores=0).mapping(attempt_and_cores)(Written()) == ((0, 1), {})
    assert SparkTasks(lambda: None, own_cores=0).mapping(attempt_and_cores)(Written()) == ((0, 1), {})


def test_cores_apply_only_within_their_block() -> None:
    with on_cores(4):
        with on_cores(0):
            assert task_cores() == 1
        assert task_cores() == 4
    assert task_cores() == 1
