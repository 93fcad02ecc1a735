"""What every Glue job does: one step of a planned pass, or a wave of many tables, on Spark."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from types import TracebackType
from typing import TypeVar

from icekeeper.aws.worker_keys import WORKER_CREDENTIALS
from icekeeper.engines.engine import Engine, EngineName, in_pool
from icekeeper.errors import (
    LeaseHeld,
    LeaseLost,
    LocationRefused,
    MaintenanceError,
    OperationRefused,
    PlanStale,
    PolicyError,
    StorageError,
)
from icekeeper.machine.clock import in_limited_time
from icekeeper.machine.metering import WorkThreads
from icekeeper.operation_facts import operations_of_waves
from icekeeper.pipeline.control_bucket import ControlBucket, read_plan, require_of_run, table_folder, write_job_failure
from icekeeper.pipeline.deployment import CONTROL_BUCKET, Deployment, PipelineSettings, note_job, record_use
from icekeeper.pipeline.events import OperationEvent, PlanReference, parse_event
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import RETRIED, run_step
from icekeeper.pipeline.wave import (
    WaveDocument,
    WaveTable,
    left_key,
    longest_s,
    may_begin,
    read_wave,
    tables_at_once,
    wave_key,
)
from icekeeper.policy import Operation
from icekeeper.report.activity import JsonLines, lines_about
from icekeeper.report.outcome import failed, operation_document, refused
from icekeeper.runtime import open_engine
from icekeeper.state.claims import CutWork, cut_again
from icekeeper.state.identity import STATE_VARIABLE, parse_address
from icekeeper.text import escaped_lines, masked

# Carry a wave out: one driver maintains many tables at once, whose groups share the workers of one engine.
#
# Each table goes its own way: its lease, its plan on the newest head, its commits, its outcomes.  What befalls one is
# told in its own documents and stops no other (rule: wave-tables-are-independent).  A second attempt at the wave finds
# the outcomes of those that ended and does only the rest (rule: wave-tables-are-independent).

log = logging.getLogger(__name__)
Result = TypeVar("Result")

NO_TIME = "the wave had no time left for it; the table is due again"


class End(StrEnum):
    """How the wave's part of a table's pass ended."""

    DONE = "done"
    """Every step has an outcome, whichever."""
    LEFT_OUT = "left out"
    """It did not begin, and is due again."""
    CUT_OFF = "cut off"
    """It took too long, and its thread is left to itself; every step has an outcome."""
    UNTOLD = "untold"
    """What became of it could not be written down: the wave is to be tried again."""


def run_wave(
    deployment: Deployment, wave: WaveDocument, engine: Engine, *, monotonic: Callable[[], float] = time.monotonic
) -> dict[str, End]:
    """Maintain the wave's tables, and return how each ended, by its spelling; never raises for one of them.

    Raises:
        PolicyError: a setting of the deployment is malformed.
    """
    settings = deployment.settings_of_jobs
    work = _Work(
        deployment,
        wave,
        engine,
        attempts=1 + settings.job_retry_limit,
        limit_s=settings.job_timeout_s,
        elapsed_s=_since(monotonic),
        waiting=deque((table, 1) for table in wave.tables),
    )
    drivers = tables_at_once(len(wave.tables), wave.workers)
    with WorkThreads(drivers, thread_name_prefix="icekeeper-wave") as threads:
        for driver in [threads.submit(work.drive) for _ in range(drivers)]:
            driver.result()
    return work.ends


def _since(monotonic: Callable[[], float]) -> Callable[[], float]:
    began_s = monotonic()
    return lambda: monotonic() - began_s


@dataclass(slots=True)
class _Work:
    """What the drivers share."""

    deployment: Deployment
    wave: WaveDocument
    engine: Engine
    attempts: int
    """How often a table is tried that failed for what may pass."""
    limit_s: float
    elapsed_s: Callable[[], float]
    waiting: deque[tuple[WaveTable, int]]
    """Tables, each with the number of its next attempt."""
    ends: dict[str, End] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def drive(self) -> None:
        """Take one table after the other until none is left."""
        while True:
            with self.lock:
                if not self.waiting:
                    return
                table, attempt = self.waiting.popleft()
            spelling = table.item.identity.spelling
            with lines_about(catalog=table.item.catalog, table=table.item.table), in_pool(spelling):
                end = self._in_time(table, attempt)
            with self.lock:
                if end is None:
                    self.waiting.append((table, attempt + 1))  # behind the others, which is pause enough
                else:
                    self.ends[spelling] = end

    def _in_time(self, table: WaveTable, attempt: int) -> End | None:
        """One attempt, which is cut off where it takes too long: nothing in Python ends a thread that hangs."""
        limit_s = longest_s(table.size_bytes, self.wave.workers, elapsed_s=self.elapsed_s(), limit_s=self.limit_s)
        try:
            return in_limited_time(lambda: self._maintain(table, attempt), limit_s, "icekeeper-wave-table")
        except TimeoutError:
            return self._cut_off(table, limit_s)

    def _cut_off(self, table: WaveTable, after_s: float) -> End:
        """Leave a table to itself.

        Its lease goes first: without it the thread that hangs commits and deletes nothing, should it wake up
        (rule: lost-lease-changes-nothing).
        """
        item = table.item
        why = f"its part of a wave did not end within {after_s:.0f} s of job_timeout_s {self.limit_s:g}"
        log.error("cut off: %s", why)
        try:
            release_table_lease(self.deployment, self.wave.run_id, item)
            entry = item.catalog, item.warehouse, item.name.key
            now_ms = self.deployment.clock()
            why = cut_again(self.deployment.state.cut_offs, entry, CutWork.PASS, why, now_ms=now_ms).sentence
            for step in table.steps:
                if not self._is_done(table, step):
                    self._tell(table, step, StorageError(f"cut off: {why}"))
        except StorageError as error:
            log.warning("that it was cut off cannot be written down: %s", error)
            return End.UNTOLD
        return End.CUT_OFF

    def _maintain(self, table: WaveTable, attempt: int) -> End | None:
        """One attempt at a table's part; ``None``: it failed for what may pass, and is to be tried again."""
        try:
            return self._held(table, attempt)
        except StorageError as error:  # of the state or the control bucket
            log.warning("%s: %s", table.item.table, error)
            return None if attempt < self.attempts else End.UNTOLD
        except Exception:  # a bug, or what no one thought of: the other tables go on
            log.exception("%s broke", table.item.table)
            return End.UNTOLD

    def _held(self, table: WaveTable, attempt: int) -> End | None:
        """The table's part under its lease."""
        todo = [step for step in table.steps if not self._is_done(table, step)]
        if not todo:
            return End.DONE
        if not may_begin(table.size_bytes, self.wave.workers, elapsed_s=self.elapsed_s(), limit_s=self.limit_s):
            return self._leave_out(table, todo, NO_TIME)
        try:
            acquire_table_lease(self.deployment, self.wave.run_id, table.item, in_wave=True)
        except LeaseHeld as held:
            return self._leave_out(table, todo, f"another run maintained the table: {held}")
        try:
            return self._steps(table, todo, attempt)
        except (PlanStale, LeaseLost) as error:
            return self._leave_out(table, todo, str(error))
        finally:
            with suppress(StorageError):  # it runs out by itself
                release_table_lease(self.deployment, self.wave.run_id, table.item)

    def _steps(self, table: WaveTable, todo: list[str], attempt: int) -> End | None:
        """Each step in order; one that failed for good stops the next no more than in a function
        (rule: canonical-operation-order)."""
        for step in todo:
            event = OperationEvent(run_id=self.wave.run_id, item=table.item, plan=table.plan, operation=Operation(step))
            try:
                answer = run_step(self.deployment, event, self.engine)
                log.info("%s: %s", answer["status"], answer["summary"])
            except (PlanStale, LeaseLost):
                raise
            except RETRIED as error:
                log.warning("%s: %s: %s", step, type(error).__name__, error)
                if attempt < self.attempts:
                    return None
                self._tell(table, step, error)
            except MaintenanceError as error:
                self._tell(table, step, error)
            except Exception as error:  # a bug at this table
                log.exception("%s broke", step)
                self._tell(table, step, error)
        return End.DONE

    def _is_done(self, table: WaveTable, step: str) -> bool:
        return self.deployment.control.find(f"{self._folder(table)}/{step}.json") is not None

    def _tell(self, table: WaveTable, step: str, error: Exception) -> None:
        """Write the outcome of a step that raised."""
        make = refused if isinstance(error, OperationRefused | LocationRefused) else failed
        outcome = make(Operation(step), f"{type(error).__name__}: {error}")
        folder = self._folder(table)
        document = operation_document(outcome, self.wave.run_id, self.deployment.control.listings(folder))
        self.deployment.control.write(f"{folder}/{step}.json", document)

    def _leave_out(self, table: WaveTable, steps: list[str], why: str) -> End:
        """Write down why, for the plan of the rest of the pass."""
        log.info("left out: %s", why)
        for step in steps:
            if not self._is_done(table, step):
                self.deployment.control.write(left_key(self._folder(table), step), {"why": why})
        return End.LEFT_OUT

    def _folder(self, table: WaveTable) -> str:
        return table_folder(self.wave.run_id, table.item.identity.spelling)


# What every Glue job does: arguments → one step of a planned pass, or a wave of many, on Spark → exit code.

_lines = JsonLines()


def run_job(arguments: Sequence[str], operations: frozenset[Operation]) -> int:
    """Run the step that the arguments name, or the wave.

    Returns the exit code: 0 when the step ended (also when it was refused or skipped), 1 when it failed; of a wave 0
    when every table's end is written down.  Why a step failed is written to the control bucket.  Arguments that Glue
    adds itself are ignored.

    Raises:
        Exception: a bug, written there too.
    """
    is_wave = "--wave-key" in arguments
    names = ("--wave-key", "--wave-digest") if is_wave else ("--plan-key", "--plan-digest", "--operation")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in (*names, "--run-id", "--control-bucket", "--state"):
        parser.add_argument(name, required=True)
    parser.add_argument("--JOB_RUN_ID")
    # What the run costs; definitions of earlier versions do not say it.
    parser.add_argument("--workers", type=int)
    parser.add_argument("--worker-type", default="G.1X")
    parser.add_argument("--execution-class", default="STANDARD")
    given, _ = parser.parse_known_args(list(arguments))
    _lines.about(run_id=given.run_id)
    _use_region_of(given.state)
    try:
        return _carry_out_wave(given, operations) if is_wave else _carry_out_step(given, operations)
    except Exception as error:
        if not is_wave:
            _leave_behind(given, error)
        if not isinstance(error, MaintenanceError):
            raise
        return _failed(error)


def _carry_out_step(given: argparse.Namespace, operations: frozenset[Operation]) -> int:
    _lines.about(operation=given.operation)
    event, deployment = _open(given)
    _lines.about(catalog=event.item.catalog, table=event.item.table)
    if event.operation not in operations:
        raise ValueError(f"this job does not do {event.step}")
    begun_s = time.monotonic()
    try:
        with open_engine(EngineName.SPARK) as engine:
            answer = run_step(deployment, event, engine)
    finally:
        _record_use(given, deployment, time.monotonic() - begun_s, is_wave=False)
    log.info("%s: %s", answer["status"], answer["summary"])
    return 0


def _carry_out_wave(given: argparse.Namespace, operations: frozenset[Operation]) -> int:
    here = _settings(given)
    if given.wave_key != wave_key(given.run_id):
        raise OperationRefused(f"{given.wave_key!r} is not the wave of run {given.run_id}")
    wave = read_wave(_control(given).read(given.wave_key, given.wave_digest))
    # The job that compacts also does what follows in a wave; no other job carries out waves.
    allowed = operations | operations_of_waves() if Operation.COMPACT in operations else frozenset[Operation]()
    strange = {step for table in wave.tables for step in table.steps} - {one.value for one in allowed}
    if strange:
        raise ValueError(f"this job does not do {', '.join(sorted(strange))}")
    _hand_on_keys(wave.environment)
    deployment = Deployment.open({**here, **wave.environment, STATE_VARIABLE: given.state})
    begun_s = time.monotonic()
    with open_engine(EngineName.SPARK) as engine:
        engine.map(str, (), lambda done: None)  # starts it: should that fail, it is no table's failure
        ends = run_wave(deployment, wave, engine)
    _record_use(given, deployment, time.monotonic() - begun_s, is_wave=True)
    told = Counter(ends.values())
    log.info("wave of %d table(s): %s", len(wave.tables), ", ".join(f"{n} {end.value}" for end, n in told.items()))
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


def _control(given: argparse.Namespace) -> ControlBucket:
    here = {**os.environ, CONTROL_BUCKET: given.control_bucket}
    return ControlBucket(PipelineSettings.read(here).control_address)


def _record_use(given: argparse.Namespace, deployment: Deployment, seconds: float, *, is_wave: bool) -> None:
    """Record what the run costs, for ``icekeeper cost``; what fails here must not fail the job."""
    if given.workers is None:
        return
    is_flex = given.execution_class == "FLEX"
    try:
        note_job(given.worker_type, given.workers, seconds, is_flex=is_flex, is_wave=is_wave)
        record_use(deployment)
    except (MaintenanceError, KeyError) as error:
        log.info("what this job used cannot be recorded: %s: %s", type(error).__name__, error)


def _leave_behind(given: argparse.Namespace, error: Exception) -> None:
    """Write why the run failed beside its plan; what fails here must not hide the error itself."""
    try:
        folder = require_of_run(given.plan_key, given.run_id).rpartition("/")[0]
        write_job_failure(_control(given), folder, _operation(given).value, error, job_run=given.JOB_RUN_ID)
    except MaintenanceError as failure:
        log.warning("why the job failed cannot be written: %s", failure)


def _open(given: argparse.Namespace) -> tuple[OperationEvent, Deployment]:
    """The step's event and its deployment: the arguments say where the plan is, the plan has the settings."""
    operation, here = _operation(given), _settings(given)
    plan = read_plan(_control(given).read(require_of_run(given.plan_key, given.run_id), given.plan_digest))
    _hand_on_keys(plan.environment)
    reference = PlanReference(bucket=given.control_bucket, key=given.plan_key, digest=given.plan_digest)
    named = {"run_id": given.run_id, "item": plan.item, "plan": reference, "operation": operation}
    event = parse_event(OperationEvent, named)
    return event, Deployment.open({**here, **plan.environment, STATE_VARIABLE: given.state})


def _operation(given: argparse.Namespace) -> Operation:
    try:
        return Operation(given.operation)
    except ValueError as error:
        raise PolicyError(f"--operation cannot be {given.operation!r}: {error}") from None


def _settings(given: argparse.Namespace) -> dict[str, str]:
    return {**os.environ, CONTROL_BUCKET: given.control_bucket, STATE_VARIABLE: given.state}


def _hand_on_keys(environment: Mapping[str, str]) -> None:
    """Have workers get the driver's keys where the deployment says so."""
    if handed := environment.get(WORKER_CREDENTIALS):
        os.environ.setdefault(WORKER_CREDENTIALS, handed)


def _use_region_of(state: str) -> None:
    """Take the region of the state's address for all clients of this process: no document says that Glue sets one."""
    address = parse_address({STATE_VARIABLE: state})
    if address is not None and address.region is not None:
        os.environ.setdefault("AWS_REGION", address.region)
