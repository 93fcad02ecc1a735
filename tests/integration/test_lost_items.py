"""Spark loses what workers sent each other: the parts are begun again, and the session goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.spark import SparkEngine
from icekeeper.storage.paths import ATTEMPTS_PER_RUN
from support.engine_work import digits, numbers


@pytest.fixture
def context_that_loses(spark_session: SparkSession) -> Iterator[Any]:
    """The session's context, whose block manager is put back on Spark's list afterwards.

    Spark itself does not do so on a local master (platform 41), and would try, and log, every ten seconds.
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
    """Says which attempt it was; the first that is merged loses what all others were sent."""

    folder: str
    began: float
    attempt: int = 0

    def in_attempt(self, attempt: int) -> NumberedPart:
        return replace(self, attempt=attempt)


def _losing(part: NumberedPart, items: Iterator[tuple[int, bytes]]) -> tuple[int, list[int]]:
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


def test_parts_that_lost_what_they_were_sent_are_begun_again_under_other_numbers(
    context_that_loses: Any, tmp_path: Path
) -> None:
    """Spark itself would begin the stage again and count its attempts from 0, while those of before may still run.

    Afterwards the session still brings results that are larger than what Spark sends without its block manager.
    """
    local = Path(context_that_loses.getConf().get("spark.local.dir") or "")
    folder = local / tmp_path.name
    folder.mkdir(parents=True)
    parts = [NumberedPart(str(folder), time.time() - 1) for _ in range(8)]
    engine = SparkEngine(context_that_loses)
    found = engine.exchange(digits, [10, 21, 32, 43, 54, 65, 76], _losing, parts, lambda done: None)
    assert {attempt // ATTEMPTS_PER_RUN for attempt, _ in found} == {1}
    assert [numbers for _, numbers in found][:3] == [[10], [10, 21], [21, 32]]
    (large,) = engine.map(_bytes, [2_000_000], lambda done: None)
    assert len(large) == 2_000_000
