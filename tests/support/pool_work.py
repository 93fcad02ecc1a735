"""Work for Spark's workers that tells which pool it ran in; it imports little, because each worker imports it."""

from __future__ import annotations

from pyspark import TaskContext


def pool_of(name: str) -> tuple[str, str | None]:
    """The task, and the pool that Spark runs it in; the task ``broken`` breaks."""
    if name == "broken":
        raise ValueError("this table only")
    task = TaskContext.get()
    return name, None if task is None else task.getLocalProperty("spark.scheduler.pool")
