"""A session that keeps few stages is told which settings to raise (platform 6), without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from icekeeper.engines import spark
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import StorageError
from icekeeper.storage.paths import RUNS


class Session:
    """A context of somebody's session, and its one RDD; jobs succeed."""

    master = "yarn"

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self.runs = 0

    def parallelize(self, tasks: Any, count: int) -> Session:
        return self

    flatMap = partitionBy = mapPartitionsWithIndex = lambda self, *arguments: self  # noqa: N815  # Spark's names

    def setJobGroup(self, *group: str, **options: bool) -> None:  # noqa: N802  # Spark's name
        pass

    def collect(self) -> list[str]:
        self.runs += 1
        return ["merged"]

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


def test_a_stage_that_spark_has_forgotten_names_the_setting_after_one_run() -> None:
    session = Session(stage=None)
    with pytest.raises(StorageError, match=r"set spark\.ui\.retainedStages and spark\.ui\.retainedJobs"):
        exchange(session)
    assert session.runs == 1


def test_a_stage_that_was_begun_once_is_believed() -> None:
    session = Session(SimpleNamespace(currentAttemptId=0, numCompletedTasks=1))
    assert exchange(session) == ["merged"]
    assert session.runs == 1


def test_a_stage_that_was_begun_again_is_done_anew() -> None:
    session = Session(SimpleNamespace(currentAttemptId=1, numCompletedTasks=1))
    with pytest.raises(StorageError, match="again and again"):
        exchange(session)
    assert session.runs == RUNS
