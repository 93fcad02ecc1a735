"""Every engine tells a task how many cores it may use: all that are there, and never another task's."""

from __future__ import annotations

from contextlib import nullcontext

from pyspark.sql import SparkSession

from icekeeper.engines.choose import local_cores
from icekeeper.engines.engine import DeferredEngine, Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.machine.resources import this_machine
from support.engine_work import Reads, cores_of, cores_of_both, cores_of_split


def mapped(engine: Engine, tasks: int) -> list[int]:
    return engine.map(cores_of, list(range(tasks)), lambda done: None)


def exchanged(engine: Engine, tasks: int) -> tuple[list[int], int]:
    return engine.exchange(cores_of_split, list(range(tasks)), cores_of_both, ["part"], lambda done: None)[0]


def test_a_single_task_has_every_core_of_the_local_engine() -> None:
    engine = LocalEngine(2, cores=4)
    assert mapped(engine, 1) == [4]
    assert engine.map(cores_of, [Reads(1)] * 3, lambda done: None) == [4, 4, 4]
    assert exchanged(engine, 1) == ([4], 4)


def test_processes_share_the_cores() -> None:
    assert mapped(LocalEngine(2, cores=5), 3) == [2, 2, 2]
    assert mapped(LocalEngine(2), 2) == [1, 1]
    assert exchanged(LocalEngine(2, cores=4), 2) == ([2, 2], 2)


def test_one_process_without_a_number_of_cores_has_one() -> None:
    """So it is in a function, which may have less than one."""
    assert mapped(LocalEngine(1), 2) == [1, 1]


def test_a_deferred_engine_tells_what_the_engine_tells_that_it_starts() -> None:
    with DeferredEngine("local", lambda: nullcontext(LocalEngine(1, cores=3))) as engine:
        assert mapped(engine, 1) == [3]
        assert exchanged(engine, 1) == ([3], 3)


def test_tasks_of_a_local_spark_session_share_its_cores(spark_session: SparkSession) -> None:
    engine = SparkEngine(spark_session.sparkContext)
    cores = local_cores(spark_session.sparkContext.master or "", this_machine().cores)
    assert cores >= 1
    assert mapped(engine, 1) == [cores]
    assert mapped(engine, cores + 1) == [1] * (cores + 1)
    assert exchanged(engine, 1) == ([cores], cores)
