"""What every Glue job does: its stage of many tables' passes, on Spark.

One driver maintains many tables at once, whose tasks share the workers of one engine.  Each table goes its own way: its
lease, its plan on the newest head, its commits, its outcomes.  What befalls one is told in its own documents and stops
no other.  A second attempt finds the outcomes of those that ended and does only the rest.
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
from threading import Lock
from types import TracebackType

from icekeeper.aws.worker_keys import WORKER_CREDENTIALS
from icekeeper.engines.engine import Engine, EngineName, in_pool
from icekeeper.engines.shared_tasks import SharedTasks
from icekeeper.errors import LeaseHeld, LeaseLost, MaintenanceError, OperationRefused, StorageError
from icekeeper.machine.clock import in_limited_time
from icekeeper.machine.metering import WorkThreads
from icekeeper.operation_facts import operations_of_job, stage_of_job
from icekeeper.pipeline.control_bucket import ControlBucket, PassDocuments, Work, WorkTable, stage_key
from icekeeper.pipeline.deployment import CONTROL_BUCKET, Deployment, PipelineSettings
from icekeeper.pipeline.events import parse_event
from icekeeper.pipeline.run_leases import give_back
from icekeeper.pipeline.run_step import RETRIED, TableWork, run_steps, tell_error
from icekeeper.pipeline.wave import SMALL_BYTES, last_round_s, longest_s, may_begin, tables_at_once, usable_s
from icekeeper.report.activity import JsonLines, lines_about
from icekeeper.runtime import open_engine
from icekeeper.state.claims import CutWork, cut_again
from icekeeper.state.identity import STATE_VARIABLE, parse_address
from icekeeper.text import escaped_lines, masked

log = logging.getLogger(__name__)

NO_TIME = "the job had no time left for it; the table is due again"


class End(StrEnum):
    """How the job's part of a table's pass ended."""

    DONE = "done"
    """Every step has an outcome, whichever, or is left to a later run."""
    LEFT_OUT = "left out"
    """It did not begin, and is due again."""
    CUT_OFF = "cut off"
    """It took too long, and its thread is left to itself; every step has an outcome."""
    UNTOLD = "untold"
    """What became of it could not be written down: the job is to be tried again."""


def run_work(
    deployment: Deployment,
    work: Work,
    engine: Engine,
    *,
    shared: Engine | None = None,
    began_s: float | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> dict[str, End]:
    """Maintain the tables, and return how each ended, by its spelling; never raises for one of them.

    ``shared``: the engine of first attempts, whose tasks several tables share; a table that is tried again has tasks of
    its own.  ``began_s``: when the job began, by ``monotonic``; by default now.

    Raises:
        PolicyError: a setting of the deployment is malformed.
    """
    settings = deployment.settings_of_jobs
    began_s = monotonic() if began_s is None else began_s
    drivers, large = tables_at_once([table.size_bytes for table in work.tables], work.workers)
    wave = _Wave(
        deployment,
        work,
        engine if shared is None else shared,
        engine,
        large_at_once=large,
        # Once more at least: what failed in a task that other tables had a part in does not fail because of them.
        attempts=1 + max(1, settings.job_retry_limit),
        timeout_s=settings.job_timeout_s,
        elapsed_s=lambda: monotonic() - began_s,
        waiting=deque((table, 1) for table in work.tables),
    )
    with WorkThreads(drivers, thread_name_prefix="icekeeper-wave") as threads:
        for driver in [threads.submit(wave.drive) for _ in range(drivers)]:
            driver.result()
    return wave.ends


@dataclass(slots=True)
class _Wave:
    """What the threads that drive the tables share."""

    deployment: Deployment
    work: Work
    engine: Engine
    """Of a table's first attempt."""
    engine_alone: Engine
    """Of all others."""
    large_at_once: int
    attempts: int
    """How often a table is tried that failed for what may pass."""
    timeout_s: float
    """Of the Glue run."""
    elapsed_s: Callable[[], float]
    waiting: deque[tuple[WorkTable, int]]
    """Tables, each with the number of its next attempt."""
    ends: dict[str, End] = field(default_factory=dict)
    large_at_work: int = 0
    lock: Lock = field(default_factory=Lock)

    @property
    def limit_s(self) -> float:
        """How many seconds of the job tables may be at work."""
        return usable_s(self.timeout_s)

    def drive(self) -> None:
        """Take one table after the other until none is left."""
        while True:
            taken = self._next()
            if taken is None:
                return
            table, attempt = taken
            spelling = table.item.identity.spelling
            with lines_about(catalog=table.item.catalog, table=table.item.table), in_pool(spelling):
                end = self._in_time(table, attempt)
            with self.lock:
                self.large_at_work -= table.size_bytes > SMALL_BYTES
                if end is None:
                    self.waiting.append((table, attempt + 1))  # behind the others, which is pause enough
                else:
                    self.ends[spelling] = end

    def _next(self) -> tuple[WorkTable, int] | None:
        """The next table that may begin; ``None``: those that wait are for other threads."""
        with self.lock:
            has_room = self.large_at_work < self.large_at_once
            for number, (table, attempt) in enumerate(self.waiting):
                is_large = table.size_bytes > SMALL_BYTES
                if has_room or not is_large:
                    del self.waiting[number]
                    self.large_at_work += is_large
                    return table, attempt
            return None

    def _in_time(self, table: WorkTable, attempt: int) -> End | None:
        """One attempt, which is cut off where it takes too long: nothing in Python ends a thread that hangs."""
        begun_s = self.elapsed_s()
        limit_s = longest_s(
            table.size_bytes,
            self.work.workers,
            elapsed_s=begun_s,
            limit_s=self.limit_s,
            is_alone=len(self.work.tables) == 1,
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
        """One attempt at a table; ``None``: it failed for what may pass, and is to be tried again."""
        size = table.size_bytes, self.work.workers
        try:
            if not may_begin(*size, elapsed_s=self.elapsed_s(), limit_s=self.limit_s):
                return self._leave_out(table, NO_TIME)
            return self._steps(table, attempt, time_left_s)
        except StorageError as error:  # of the state or the control bucket
            log.warning("%s: %s", table.item.table, error)
            return None if attempt < self.attempts else End.UNTOLD
        except Exception:  # a bug, or what no one thought of: the other tables go on
            log.exception("%s broke", table.item.table)
            return End.UNTOLD

    def _steps(self, table: WorkTable, attempt: int, time_left_s: Callable[[], float]) -> End | None:
        try:
            for step, told in run_steps(self._work(table, attempt, time_left_s), table.steps).items():
                log.info("%s: %s", step, told)
        except LeaseHeld as held:
            # Also where the run was to wait for the table: here all workers would wait with it, and they are paid.
            return self._leave_out(table, f"another run maintained the table: {held}")
        except LeaseLost as lost:
            return self._leave_out(table, str(lost))
        except RETRIED as error:
            log.warning("%s: %s", type(error).__name__, error)
            if attempt < self.attempts:
                return None
            self._tell(table, error)
        return End.DONE

    def _cut_off(self, table: WorkTable, after_s: float) -> End:
        """Leave a table to itself.

        Its lease goes first: without it the thread that hangs commits and deletes nothing, should it wake up
        (rule: lost-lease-changes-nothing).
        """
        item = table.item
        why = f"its part of a wave did not end within {after_s:.0f} s of job_timeout_s {self.timeout_s:g}"
        log.error("cut off: %s", why)
        try:
            give_back(self.deployment, self.work.run_id, item)
            entry, now_ms = item.identity.entry, self.deployment.clock()
            why = cut_again(self.deployment.state.cut_offs, entry, CutWork.PASS, why, now_ms=now_ms).sentence
            self._tell(table, StorageError(f"cut off: {why}"))
        except StorageError as error:
            log.warning("that it was cut off cannot be written down: %s", error)
            return End.UNTOLD
        return End.CUT_OFF

    def _tell(self, table: WorkTable, error: Exception) -> None:
        """Write the outcome of every step that has none: it raised."""
        documents = self._documents(table)
        for step in table.steps:
            if documents.outcome(step) is None and documents.left(step) is None:
                tell_error(documents, self.work.run_id, step, error)

    def _leave_out(self, table: WorkTable, why: str) -> End:
        """Write down why, for the report of the run; a table whose steps all have their outcomes is done."""
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


# What every job does with its arguments → exit code.

_lines = JsonLines()


def run_job(arguments: Sequence[str], script: str) -> int:
    """Do the work that the arguments name, which must be that of ``glue_jobs/SCRIPT.py``.

    Returns the exit code: 0 when every table's end is written down.  Arguments that Glue adds itself are ignored.

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
        raise OperationRefused(f"{given.work_key!r} is not the {stage.value} of run {given.run_id}")
    control = ControlBucket(PipelineSettings.read(here).control_address)
    work = parse_event(Work, control.read(given.work_key, given.work_digest))
    strange = {step for table in work.tables for step in table.steps} - {one.value for one in operations}
    if strange:
        raise OperationRefused(f"this job does not do {', '.join(sorted(strange))}")
    _hand_on_keys(work.environment)
    deployment = Deployment.open({**here, **work.environment, STATE_VARIABLE: given.state})
    with open_engine(EngineName.SPARK) as engine:
        engine.map(str, (), lambda done: None)  # starts it: should that fail, it is no table's failure
        ends = run_work(deployment, work, engine, shared=SharedTasks(engine), began_s=begun_s)
    told = Counter(ends.values())
    log.info("%d table(s): %s", len(work.tables), ", ".join(f"{n} {end.value}" for end, n in told.items()))
    if told[End.UNTOLD]:
        return _failed(StorageError(f"what became of {told[End.UNTOLD]} table(s) could not be written down"))
    if told[End.CUT_OFF]:
        _end_now()  # its thread would keep the process from ending
    return 0


def _end_now() -> None:
    """End the process with success, without waiting for threads that hang."""
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
    sys.excepthook = _tell_bug


def _tell_bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print an uncaught exception with its traceback, as Python does, but without secrets, and escaped."""
    sys.stderr.write(escaped_lines(masked("".join(traceback.format_exception(kind, error, where)))) + "\n")


def _hand_on_keys(environment: Mapping[str, str]) -> None:
    """Have workers get the driver's keys where the deployment says so."""
    if handed := environment.get(WORKER_CREDENTIALS):
        os.environ.setdefault(WORKER_CREDENTIALS, handed)


def _use_region_of(state: str) -> None:
    """Take the region of the state's address for all clients of this process: no document says that Glue sets one."""
    address = parse_address({STATE_VARIABLE: state})
    if address is not None and address.region is not None:
        os.environ.setdefault("AWS_REGION", address.region)
