"""The engine that chooses: which of its two engines gets the work, and what it says about that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from icekeeper.engines.choose import AutoEngine, Surroundings, product_engine
from icekeeper.engines.engine import EngineName
from icekeeper.runtime import open_engine

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
    """An engine that does nothing but note what it was asked for."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self._calls = name, calls

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
    return AutoEngine(found, Noting("local", calls), Noting("spark", calls))


def test_work_goes_to_the_engine_that_fits_it(calls: list[str]) -> None:
    engine = auto(HERE, calls)
    assert (engine.name, engine.reason) == ("local", "no Spark session or cluster is at hand")
    engine.map(abs, [1], lambda done: None)
    sort(engine, 5 * MB, 5 * MB)
    assert (calls, engine.name) == (["local map", "local exchange"], "local")
    sort(engine, 5 * MB, 5 * MB + 1)
    assert (calls[2:], engine.name) == (["spark exchange"], "local+spark")
    assert engine.reason == (
        "no Spark session or cluster is at hand; a sort keeps about 30 MB meanwhile, this machine's memory is 30 MB"
    )


def test_a_cluster_gets_all_work(calls: list[str]) -> None:
    engine = auto(CLUSTER, calls)
    engine.map(abs, [1], lambda done: None)
    sort(engine, 1)
    assert (calls, engine.name, engine.reason) == (["spark map", "spark exchange"], "spark", "started by spark-submit")


def test_each_pass_remembers_its_own_work(calls: list[str]) -> None:
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


def test_the_demonstration_shows_the_engine_that_is_deployed() -> None:
    """It is Spark's wherever PySpark is installed, as it is for these tests."""
    asked = (EngineName.AUTO, EngineName.SPARK, EngineName.LOCAL)
    assert [product_engine(name).value for name in asked] == ["spark", "spark", "local"]
