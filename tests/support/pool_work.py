"""Work for Spark's workers that reports its pool; it imports little, because each worker imports it."""

from __future__ import annotations

from pyspark import TaskContext


def pool_of(name: str) -> tuple[str, str | None]:
    """The task, and the pool in which Spark runs it; the task ``broken`` fails."""
    if name == "broken":
        raise ValueError("this table only")
    task = TaskContext.get()
    return name, None if task is None else task.getLocalProperty("spark.scheduler.pool")
