"""The Spark engine: the work unit as tasks of an RDD, on a local session or inside a Glue job.

Spark distributes and retries; the bytes are handled by the same Arrow code as everywhere (DESIGN 3).  This is the one
module besides ``glue_jobs/`` that imports pyspark.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

from icekeeper.engines.java import find_java_home
from icekeeper.errors import StorageError

__all__ = ["SparkEngine", "local_session"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")

_POLL_SECONDS = 0.2
# Set by spark-submit for the Python it starts (org.apache.spark.deploy.PythonRunner).
_UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT"
_LOGGING = Path(__file__).with_name("log4j2.properties")


@contextmanager
def local_session() -> Iterator[SparkSession]:
    """A local session bound to loopback, stopped on leaving; one that is already running is used and left alone.

    Under ``spark-submit``, as in a Glue job, it is the cluster's session.

    Raises:
        PolicyError: no Java that Spark can run on was found.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    if _UNDER_SUBMIT in os.environ:
        yield SparkSession.builder.getOrCreate()
        return
    os.environ["JAVA_HOME"] = find_java_home()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[*]")
        .appName("icekeeper")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        # A failed group is reported by the work unit itself; only a lost worker is worth another try.
        .config("spark.task.maxFailures", "2")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


class SparkEngine:
    """Runs tasks through a Spark context that somebody else owns."""

    name = "spark"

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.pass_context.context.Engine`; one Spark task per task, results in order."""
        if not tasks:
            return []
        rdd = self._context.parallelize(tasks, len(tasks)).map(_with_cheap_start(function))
        return self._collect(rdd, len(tasks), on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.pass_context.context.Engine`; a shuffle whose values are whatever ``split`` made."""
        if not parts:
            return []
        wanted = list(parts)

        def merged(number: int, items: Iterable[tuple[int, Item]]) -> Iterator[Result]:
            importlib.invalidate_caches = _do_nothing
            yield merge(wanted[number], (item for _, item in items))

        keyed = self._context.parallelize(tasks, max(1, len(tasks))).flatMap(_with_cheap_start(split))
        rdd = keyed.partitionBy(len(wanted), _itself).mapPartitionsWithIndex(merged)
        return self._collect(rdd, len(tasks) + len(wanted), on_done)

    def _collect(self, rdd: RDD[Result], total: int, on_done: Callable[[int], None]) -> list[Result]:
        stop = threading.Event()
        group = f"icekeeper-{id(rdd)}"
        self._context.setJobGroup(group, "icekeeper", interruptOnCancel=True)
        watcher = threading.Thread(target=self._watch, args=(group, total, on_done, stop), daemon=True)
        watcher.start()
        try:
            return list(rdd.collect())
        except Py4JError as error:
            first = str(getattr(error, "java_exception", error)).splitlines()[0]
            raise StorageError(f"Spark could not run the work: {first}") from error
        finally:
            stop.set()
            watcher.join()
            on_done(total)

    def _watch(self, group: str, total: int, on_done: Callable[[int], None], stop: threading.Event) -> None:
        tracker = self._context.statusTracker()
        last = 0
        while not stop.wait(_POLL_SECONDS):
            done = 0
            for job_id in tracker.getJobIdsForGroup(group):
                job = tracker.getJobInfo(job_id)
                stages = [] if job is None else [tracker.getStageInfo(stage) for stage in job.stageIds]
                done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
            if last < done < total:
                last = done
                on_done(done)


def _with_cheap_start(function: Callable[[Task], Result]) -> Callable[[Task], Result]:
    """Spare each later task in a worker about 60 ms: pyspark invalidates import caches before every task, which
    re-reads its own zip file, although the worker's modules never change (measured: 60 tasks 3.35 s → 1.77 s)."""

    def run(task: Task) -> Result:
        importlib.invalidate_caches = _do_nothing
        return function(task)

    return run


def _itself(part: int) -> int:
    return part


def _do_nothing() -> None:
    return None
