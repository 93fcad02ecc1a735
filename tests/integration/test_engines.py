"""The engines: one work unit, the same results whoever runs it, and memory that does not grow with the group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.engine import DeferredEngine, Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine, local_session
from icekeeper.errors import StorageError
from support.engine_work import digits, double, end_process, end_process_in_split, numbers


@pytest.fixture(params=["local", "local-one", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "spark":
        session: SparkSession = request.getfixturevalue("spark_session")
        return SparkEngine(session.sparkContext)
    return LocalEngine(2 if request.param == "local" else 1)


def test_results_come_in_the_order_of_the_tasks_and_progress_ends_at_all(engine: Engine) -> None:
    """Results are in task order, and the last progress call says that every task is done."""
    seen: list[int] = []
    assert engine.map(double, list(range(7)), seen.append) == [0, 2, 4, 6, 8, 10, 12]
    assert seen[-1] == 7
    assert seen == sorted(seen)


def test_no_tasks_are_no_work(engine: Engine) -> None:
    """An empty list of tasks starts nothing."""
    assert engine.map(double, [], lambda done: None) == []


def test_an_exchange_brings_every_item_to_its_part(engine: Engine) -> None:
    """Results are in the order of the parts, a part that got nothing included, and progress ends at all work."""
    seen: list[int] = []
    parts = ["zero", "one", "two", "three"]
    found = engine.exchange(digits, [10, 11, 30, 130], numbers, parts, seen.append)
    assert found == [("zero", [10, 30, 130]), ("one", [10, 11, 11, 130]), ("two", []), ("three", [30, 130])]
    assert seen[-1] == 8


def test_an_exchange_of_nothing_merges_nothing(engine: Engine) -> None:
    assert engine.exchange(digits, [], numbers, [], lambda done: None) == []


def test_a_worker_that_dies_in_an_exchange_is_one_clear_error(spark_session: SparkSession) -> None:
    with pytest.raises(StorageError, match="a worker process died"):
        LocalEngine(2).exchange(end_process_in_split, [1, 1], numbers, ["a"], lambda done: None)
    with pytest.raises(StorageError, match="Spark could not run the work"):
        SparkEngine(spark_session.sparkContext).exchange(end_process_in_split, [1], numbers, ["a"], lambda done: None)


def test_a_dead_local_worker_is_one_clear_error() -> None:
    """A worker that dies (killed for memory, say) is reported, not waited for."""
    with pytest.raises(StorageError, match="a worker process died"):
        LocalEngine(2).map(end_process, [1, 1], lambda done: None)


def test_a_dead_spark_worker_is_one_clear_error(spark_session: SparkSession) -> None:
    """Spark's failure becomes one sentence, and the session is usable afterwards."""
    engine = SparkEngine(spark_session.sparkContext)
    with pytest.raises(StorageError, match="Spark could not run the work"):
        engine.map(end_process, [1], lambda done: None)
    assert engine.map(double, [1], lambda done: None) == [2]


def test_a_running_session_is_used_and_left_running(spark_session: SparkSession) -> None:
    """Inside a job that has a session, Icekeeper neither starts nor stops one."""
    with local_session() as session:
        assert session is spark_session
    assert spark_session.range(3).count() == 3


def test_a_session_of_another_thread_is_used_and_left_running(spark_session: SparkSession) -> None:
    """Spark's active session is known to the thread that started it only."""
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
    """A pass with nothing to rewrite starts no engine; the first work starts it once; leaving stops it."""
    events: list[str] = []

    class Started:
        def __enter__(self) -> LocalEngine:
            events.append("start")
            return LocalEngine(1)

        def __exit__(self, *reason: object) -> None:
            events.append("stop")

    start: Callable[[], Any] = Started
    with DeferredEngine("local", start) as engine:
        assert events == []
        engine.map(double, [1], lambda done: None)
        engine.map(double, [2], lambda done: None)
        assert engine.exchange(digits, [1], numbers, ["zero", "one"], lambda done: None)[1] == ("one", [1])
        assert events == ["start"]
    assert events == ["start", "stop"]
