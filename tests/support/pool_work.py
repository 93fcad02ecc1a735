"""Work for Spark's workers that reports its pool and name; it imports little, because each worker imports it."""

from __future__ import annotations

from pyspark import TaskContext


def pool_of(name: str) -> tuple[str, str | None, str | None]:
    """The task, the pool in which Spark runs it, and what Spark's UI shows for it; the task ``broken`` fails."""
    if name == "broken":
        raise ValueError("this table only")
    task = TaskContext.get()
    assert task is not None
    return name, task.getLocalProperty("spark.scheduler.pool"), task.getLocalProperty("spark.job.description")
