"""What every Glue job does: one stage of the passes of many tables, on Spark.

One driver maintains many tables at once; their tasks share the workers of one engine. Each table has its own lease,
plan, commits and outcomes.  Its result is written to its own documents, and a failure does not stop the other tables. A
second attempt finds the outcomes of the steps that ended and does only the rest.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Condition
from types import TracebackType

from icekeeper.aws.worker_keys import WORKER_CREDENTIALS
from icekeeper.engines.engine import Engine, EngineName, in_pool
from icekeeper.engines.shared_tasks import SharedTasks
from icekeeper.errors import LeaseHeld, LeaseLost, MaintenanceError, OperationRefused, StorageError
from icekeeper.machine.clock import in_limited_time
from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import this_machine
from icekeeper.operation_facts import Stage, operations_of_job, stage_of_job
from icekeeper.pipeline.control_bucket import ControlBucket, PassDocuments, Work, WorkTable, stage_key
from icekeeper.pipeline.deployment import CONTROL_BUCKET, Deployment, PipelineSettings
from icekeeper.pipeline.events import parse_event
from icekeeper.pipeline.run_leases import give_back
from icekeeper.pipeline.run_step import RETRIED, TableWork, run_steps, write_error
from icekeeper.pipeline.wave import (
    SMALL_BYTES,
    cores_of,
    driver_need,
    last_round_s,
    longest_s,
    may_begin,
    memory_for_tables,
    tables_at_once,
    usable_s,
)
from icekeeper.report.activity import JsonLines, lines_about
from icekeeper.runtime import open_engine
from icekeeper.state.claims import CutWork, cut_again
from icekeeper.state.identity import STATE_VARIABLE, parse_address
from icekeeper.text import escaped_lines, masked

log = logging.getLogger(__name__)

NO_TIME = "the job had no time left for this table; the table stays due"


class End(StrEnum):
    """How the job's part of a table's pass ended."""

    DONE = "done"
    """Every step has an outcome of any kind, or is left to a later run."""
    LEFT_OUT = "left out"
    """The table's part did not begin; the table stays due."""
    CUT_OFF = "cut off"
    """The table took too long and its thread was abandoned; every step has an outcome."""
    UNRECORDED = "unrecorded"
    """The outcome could not be stored; the job must be tried again."""


def run_work(
    deployment: Deployment,
    work: Work,
    engine: Engine,
    *,
    shared: Engine | None = None,
    began_s: float | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, End]:
    """Maintain the tables and return how each ended, by its spelling; a table's failure is never raised.

    ``shared``: the engine of first attempts, in which tables share tasks; a table that is tried again has tasks of its
    own.  ``began_s``: when the job began, by ``monotonic``; by default now.

    Raises:
        PolicyError: a setting of the deployment is malformed.
    """
    settings = deployment.settings_of_jobs
    began_s = monotonic() if began_s is None else began_s
    drivers, large = tables_at_once([table.size_bytes for table in work.tables], _cores(deployment, work))
    memory_bytes = memory_for_tables(this_machine().memory_bytes)
    needed_bytes = sum(driver_need(table.manifest_bytes) for table in work.tables)
    begin_at_once = len(work.tables) <= drivers and needed_bytes <= memory_bytes
    wave = _Wave(
        deployment,
        work,
        engine if shared is None else shared,
        engine,
        large_at_once=large,
        # The tables of a compaction take workers from each other.
        is_each_alone=len(work.tables) == 1 or (begin_at_once and work.stage is not Stage.COMPACTION),
        # Retry at least once, in tasks of its own: a shared task may have failed because of another table.
        attempts=1 + max(1, settings.job_retry_limit),
        timeout_s=settings.job_timeout_s,
        elapsed_s=lambda: monotonic() - began_s,
        waiting=deque((table, 1) for table in work.tables),
        memory_bytes=memory_bytes,
    )
    with WorkThreads(drivers, thread_name_prefix="icekeeper-wave") as threads:
        for driver in [threads.submit(wave.drive) for _ in range(drivers)]:
            driver.result()
    return wave.ends


def _cores(deployment: Deployment, work: Work) -> int:
    return cores_of(work.workers, deployment.settings.worker_type)


@dataclass(slots=True)
class _Wave:
    """What the threads that drive the tables share."""

    deployment: Deployment
    work: Work
    engine: Engine
    """The engine of a table's first attempt."""
    engine_alone: Engine
    """The engine of all further attempts."""
    large_at_once: int
    is_each_alone: bool
    """Whether each table may take all the time that is left, because it keeps no other one waiting."""
    attempts: int
    """How often a table with a transient failure is tried."""
    timeout_s: float
    """The time limit of the Glue run."""
    elapsed_s: Callable[[], float]
    waiting: deque[tuple[WorkTable, int]]
    """Tables, each with the number of its next attempt."""
    memory_bytes: int
    """The memory that the tables in work may need together; a table that needs more is in work alone."""
    ends: dict[str, End] = field(default_factory=dict)
    in_work: list[WorkTable] = field(default_factory=list)
    changed: Condition = field(default_factory=Condition)
    """Guards the fields that threads change; notified when a table leaves the work."""

    @property
    def limit_s(self) -> float:
        """How many seconds after the start of the job tables may still be in work."""
        return usable_s(self.timeout_s)

    def drive(self) -> None:
        """Maintain one table after another until none is left."""
        while True:
            taken = self._next()
            if taken is None:
                return
            table, attempt = taken
            spelling = table.item.identity.spelling
            end: End | None = End.UNRECORDED
            try:
                with lines_about(catalog=table.item.catalog, table=table.item.table), in_pool(spelling):
                    end = self._in_time(table, attempt)
            finally:
                with self.changed:
                    self.in_work.remove(table)
                    if end is None:
                        self.waiting.append((table, attempt + 1))  # behind the others: the retry waits for them
                    else:
                        self.ends[spelling] = end
                    self.changed.notify_all()

    def _next(self) -> tuple[WorkTable, int] | None:
        """The next table that may begin, as soon as there is room for it; ``None`` if no table waits."""
        with self.changed:
            while self.waiting:
                for number, (table, attempt) in enumerate(self.waiting):
                    if self._has_room(table):
                        del self.waiting[number]
                        self.in_work.append(table)
                        return table, attempt
                self.changed.wait()
            return None

    def _has_room(self, table: WorkTable) -> bool:
        if not self.in_work:
            return True
        large = sum(each.size_bytes > SMALL_BYTES for each in self.in_work)
        if table.size_bytes > SMALL_BYTES and large >= self.large_at_once:
            return False
        return sum(driver_need(each.manifest_bytes) for each in (*self.in_work, table)) <= self.memory_bytes

    def _in_time(self, table: WorkTable, attempt: int) -> End | None:
        """Make one attempt; cut it off when it takes too long, because Python cannot end a thread that hangs."""
        begun_s = self.elapsed_s()
        limit_s = longest_s(
            table.size_bytes,
            _cores(self.deployment, self.work),
            elapsed_s=begun_s,
            limit_s=self.limit_s,
            is_alone=self.is_each_alone,
        )
        ends_s = begun_s + last_round_s(limit_s)
        try:
            return in_limited_time(
                lambda: self._maintain(table, attempt, lambda: ends_s - self.elapsed_s()),
                limit_s,
                "icekeeper-wave-table",
            )
        except TimeoutError:
            return self._cut_off(table, limit_s)

    def _maintain(self, table: WorkTable, attempt: int, time_left_s: Callable[[], float]) -> End | None:
        """Make one attempt at a table; ``None``: the failure is transient, and the table is to be tried again."""
        size = table.size_bytes, _cores(self.deployment, self.work)
        try:
            if not may_begin(*size, elapsed_s=self.elapsed_s(), limit_s=self.limit_s):
                return self._leave_out(table, NO_TIME)
            return self._steps(table, attempt, time_left_s)
        except StorageError as error:  # of the state or the control bucket
            log.warning("%s: %s", table.item.table, error)
            return None if attempt < self.attempts else End.UNRECORDED
        except Exception:  # a bug: the other tables continue
            log.exception("%s failed unexpectedly", table.item.table)
            return End.UNRECORDED

    def _steps(self, table: WorkTable, attempt: int, time_left_s: Callable[[], float]) -> End | None:
        try:
            for step, result in run_steps(self._work(table, attempt, time_left_s), table.steps).items():
                log.info("%s: %s", step, result)
        except LeaseHeld as held:
            # Do not wait here even if the run's input says so: all workers, which cost money, would wait too.
            return self._leave_out(table, f"another run maintained the table: {held}")
        except LeaseLost as lost:
            return self._leave_out(table, str(lost))
        except RETRIED as error:
            log.warning("%s: %s", type(error).__name__, error)
            if attempt < self.attempts:
                return None
            self._write_error(table, error)
        return End.DONE

    def _cut_off(self, table: WorkTable, after_s: float) -> End:
        """Abandon a table's thread.

        Give its lease back first: without the lease the thread commits and deletes nothing if it continues
        (rule: lost-lease-changes-nothing).
        """
        item = table.item
        why = f"its part of the wave did not end within {after_s:.0f} s (job_timeout_s is {self.timeout_s:g})"
        log.error("cut off: %s", why)
        try:
            give_back(self.deployment, self.work.run_id, item)
            entry, now_ms = item.identity.entry, self.deployment.clock()
            why = cut_again(self.deployment.state.cut_offs, entry, CutWork.PASS, why, now_ms=now_ms).sentence
            self._write_error(table, StorageError(f"cut off: {why}"))
        except StorageError as error:
            log.warning("cannot store that the table was cut off: %s", error)
            return End.UNRECORDED
        return End.CUT_OFF

    def _write_error(self, table: WorkTable, error: Exception) -> None:
        """Write the error as outcome of every step that has none."""
        documents = self._documents(table)
        for step in table.steps:
            if documents.outcome(step) is None and documents.left(step) is None:
                write_error(documents, self.work.run_id, step, error)

    def _leave_out(self, table: WorkTable, why: str) -> End:
        """Record why the table is left out, for the report of the run; a table whose steps all have outcomes is
        done."""
        documents, end = self._documents(table), End.DONE
        for step in table.steps:
            if documents.outcome(step) is None:
                documents.write_left(step, why)
                end = End.LEFT_OUT
        if end is End.LEFT_OUT:
            log.info("left out: %s", why)
        return end

    def _documents(self, table: WorkTable) -> PassDocuments:
        return PassDocuments(self.deployment.control, self.work.run_id, table.item)

    def _work(self, table: WorkTable, attempt: int, time_left_s: Callable[[], float]) -> TableWork:
        return TableWork(
            deployment=self.deployment,
            run_id=self.work.run_id,
            started_ms=self.work.started_ms,
            item=table.item,
            engine=self.engine if attempt == 1 else self.engine_alone,
            in_job=True,
            time_left_s=time_left_s,
        )


# From a job's arguments to its exit code.

_lines = JsonLines()


def run_job(arguments: Sequence[str], script: str) -> int:
    """Do the work that the arguments name; it must belong to ``glue_jobs/SCRIPT.py``.

    Returns the exit code: 0 when the outcome of every table is stored.  Arguments that Glue adds itself are ignored.

    Raises:
        Exception: a bug.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--work-key", "--work-digest", "--run-id", "--control-bucket", "--state"):
        parser.add_argument(name, required=True)
    given, _ = parser.parse_known_args(list(arguments))
    _lines.about(run_id=given.run_id)
    _use_region_of(given.state)
    try:
        return _carry_out(given, script)
    except MaintenanceError as error:
        return _failed(error)


def _carry_out(given: argparse.Namespace, script: str) -> int:
    begun_s, stage, operations = time.monotonic(), stage_of_job(script), operations_of_job(script)
    here = {**os.environ, CONTROL_BUCKET: given.control_bucket, STATE_VARIABLE: given.state}
    if given.work_key != stage_key(given.run_id, stage):
        raise OperationRefused(f"{given.work_key!r} is not the {stage.value} work of run {given.run_id}")
    control = ControlBucket(PipelineSettings.read(here).control_address)
    work = parse_event(Work, control.read(given.work_key, given.work_digest))
    strange = {step for table in work.tables for step in table.steps} - {operation.value for operation in operations}
    if strange:
        raise OperationRefused(f"this job does not do {', '.join(sorted(strange))}")
    _hand_on_keys(work.environment)
    deployment = Deployment.open({**here, **work.environment, STATE_VARIABLE: given.state})
    with open_engine(EngineName.SPARK) as engine:
        engine.map(str, (), lambda done: None)  # start it now: if that fails, the failure is not a table's
        ends = run_work(deployment, work, engine, shared=SharedTasks(engine), began_s=begun_s)
    ends_by_kind = Counter(ends.values())
    log.info("%d table(s): %s", len(work.tables), ", ".join(f"{n} {end.value}" for end, n in ends_by_kind.items()))
    if ends_by_kind[End.UNRECORDED]:
        return _failed(StorageError(f"the outcome of {ends_by_kind[End.UNRECORDED]} table(s) could not be stored"))
    if ends_by_kind[End.CUT_OFF]:
        _end_now()  # an abandoned thread would keep the process alive
    return 0


def _end_now() -> None:
    """End the process successfully without waiting for threads that hang."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _failed(error: MaintenanceError) -> int:
    log.error("%s: %s", type(error).__name__, error)
    return 1


def start_logging() -> None:
    """Send all log lines and uncaught errors of this process to standard error, which Glue 5 keeps in PREFIX/output."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_lines)
    logging.basicConfig(level=(os.environ.get("ICEKEEPER_LOG") or "INFO").upper(), handlers=[handler])
    logging.captureWarnings(capture=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    sys.excepthook = _print_bug


def _print_bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print an uncaught exception with its traceback, as Python does, but without secrets, and escaped."""
    sys.stderr.write(escaped_lines(masked("".join(traceback.format_exception(kind, error, where)))) + "\n")


def _hand_on_keys(environment: Mapping[str, str]) -> None:
    """Pass the driver's keys to workers if the deployment says so."""
    if handed := environment.get(WORKER_CREDENTIALS):
        os.environ.setdefault(WORKER_CREDENTIALS, handed)


def _use_region_of(state: str) -> None:
    """Use the region of the state's address for all clients of this process: no documentation says that Glue sets a
    region."""
    address = parse_address({STATE_VARIABLE: state})
    if address is not None and address.region is not None:
        os.environ.setdefault("AWS_REGION", address.region)
