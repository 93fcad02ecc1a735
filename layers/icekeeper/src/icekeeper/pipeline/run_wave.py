"""Carry a wave out: one driver maintains many tables at once, whose groups share the workers of one engine.

Each table goes its own way: its lease, its plan on the newest head, its commits, its outcomes.  What befalls one is
told in its own documents and stops no other (rule 144).  A second attempt at the wave finds the outcomes of those that
ended and does only the rest (rule 145).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import TypeVar

from icekeeper.engines.engine import Engine, in_pool
from icekeeper.errors import (
    LeaseHeld,
    LeaseLost,
    LocationRefused,
    MaintenanceError,
    OperationRefused,
    PlanStale,
    StorageError,
)
from icekeeper.machine.clock import in_limited_time
from icekeeper.machine.metering import WorkThreads
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import OperationEvent
from icekeeper.pipeline.job_log import lines_about
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import RETRIED, run_step
from icekeeper.pipeline.wave_document import WaveDocument, WaveTable, left_key
from icekeeper.pipeline.wave_limits import longest_s, may_begin, tables_at_once
from icekeeper.policy import Operation
from icekeeper.report.outcome import failed, refused
from icekeeper.report.outcome_document import operation_document
from icekeeper.state.cut_offs import CutWork, cut_again

__all__ = ["End", "run_wave"]

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

        Its lease goes first: without it the thread that hangs commits and deletes nothing, should it wake up (rule 70).
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
        """Each step in order; one that failed for good stops the next no more than in a function (rule 58)."""
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
