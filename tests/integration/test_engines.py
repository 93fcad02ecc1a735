"""The engines: one work unit, the same results whoever runs it, and memory that does not grow with the group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.deferred import DeferredEngine
from icekeeper.engines.engine import Engine
from icekeeper.engines.local import LocalEngine
from icekeeper.engines.spark import SparkEngine, local_session
from icekeeper.errors import StorageError
from icekeeper.storage.attempt_names import ATTEMPTS_PER_RUN


def _double(number: int) -> int:
    return number * 2


def _exit(number: int) -> int:
    os._exit(number)


@pytest.fixture(params=["local", "local-one", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "spark":
        session: SparkSession = request.getfixturevalue("spark_session")
        return SparkEngine(session.sparkContext)
    return LocalEngine(2 if request.param == "local" else 1)


def test_results_come_in_the_order_of_the_tasks_and_progress_ends_at_all(engine: Engine) -> None:
    """Results are in task order, and the last progress call says that every task is done."""
    seen: list[int] = []
    assert engine.map(_double, list(range(7)), seen.append) == [0, 2, 4, 6, 8, 10, 12]
    assert seen[-1] == 7
    assert seen == sorted(seen)


def test_no_tasks_are_no_work(engine: Engine) -> None:
    """An empty list of tasks starts nothing."""
    assert engine.map(_double, [], lambda done: None) == []


def _digits(number: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """To the part of each decimal digit."""
    for digit in str(number):
        yield int(digit), (number, b"x" * 1000)


def _numbers(part: str, items: Iterator[tuple[int, bytes]]) -> tuple[str, list[int]]:
    return part, sorted(number for number, data in items if len(data) == 1000)


def test_an_exchange_brings_every_item_to_its_part(engine: Engine) -> None:
    """Results are in the order of the parts, a part that got nothing included, and progress ends at all work."""
    seen: list[int] = []
    parts = ["zero", "one", "two", "three"]
    found = engine.exchange(_digits, [10, 11, 30, 130], _numbers, parts, seen.append)
    assert found == [("zero", [10, 30, 130]), ("one", [10, 11, 11, 130]), ("two", []), ("three", [30, 130])]
    assert seen[-1] == 8


def test_an_exchange_of_nothing_merges_nothing(engine: Engine) -> None:
    assert engine.exchange(_digits, [], _numbers, [], lambda done: None) == []


def _exit_in_split(number: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
    yield 0, (_exit(number), b"")


def test_a_worker_that_dies_in_an_exchange_is_one_clear_error(spark_session: SparkSession) -> None:
    with pytest.raises(StorageError, match="a worker process died"):
        LocalEngine(2).exchange(_exit_in_split, [1, 1], _numbers, ["a"], lambda done: None)
    with pytest.raises(StorageError, match="Spark could not run the work"):
        SparkEngine(spark_session.sparkContext).exchange(_exit_in_split, [1], _numbers, ["a"], lambda done: None)


@dataclass(frozen=True)
class NumberedPart:
    """Says which attempt it was; the first that is merged loses what all others were sent."""

    folder: str
    began: float
    attempt: int = 0

    def in_attempt(self, attempt: int) -> NumberedPart:
        return replace(self, attempt=attempt)


def _losing(part: NumberedPart, items: Iterator[tuple[int, bytes]]) -> tuple[int, list[int]]:
    found = _numbers("", items)[1]
    mark = Path(part.folder) / "lost"
    if not mark.exists():
        mark.touch()
        for path in Path(part.folder).parents[0].glob("**/shuffle_*"):
            if path.stat().st_mtime >= part.began:
                path.unlink()
    return part.attempt, found


def test_parts_that_lost_what_they_were_sent_are_begun_again_under_other_numbers(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    """Spark itself would begin the stage again and count its attempts from 0, while those of before may still run."""
    local = Path(spark_session.sparkContext.getConf().get("spark.local.dir") or "")
    folder = local / tmp_path.name
    folder.mkdir(parents=True)
    parts = [NumberedPart(str(folder), time.time() - 1) for _ in range(8)]
    engine = SparkEngine(spark_session.sparkContext)
    found = engine.exchange(_digits, [10, 21, 32, 43, 54, 65, 76], _losing, parts, lambda done: None)
    assert {attempt // ATTEMPTS_PER_RUN for attempt, _ in found} == {1}
    assert [numbers for _, numbers in found][:3] == [[10], [10, 21], [21, 32]]


def test_a_dead_local_worker_is_one_clear_error() -> None:
    """A worker that dies (killed for memory, say) is reported, not waited for."""
    with pytest.raises(StorageError, match="a worker process died"):
        LocalEngine(2).map(_exit, [1, 1], lambda done: None)


def test_a_dead_spark_worker_is_one_clear_error(spark_session: SparkSession) -> None:
    """Spark's failure becomes one sentence, and the session is usable afterwards."""
    engine = SparkEngine(spark_session.sparkContext)
    with pytest.raises(StorageError, match="Spark could not run the work"):
        engine.map(_exit, [1], lambda done: None)
    assert engine.map(_double, [1], lambda done: None) == [2]


def test_a_running_session_is_used_and_left_running(spark_session: SparkSession) -> None:
    """Inside a job that has a session, Icekeeper neither starts nor stops one."""
    with local_session() as session:
        assert session is spark_session
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
        engine.map(_double, [1], lambda done: None)
        engine.map(_double, [2], lambda done: None)
        assert engine.exchange(_digits, [1], _numbers, ["zero", "one"], lambda done: None)[1] == ("one", [1])
        assert events == ["start"]
    assert events == ["start", "stop"]
