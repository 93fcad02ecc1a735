"""Ends a pass: writes what it did into the journal and remembers what it saw."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from icekeeper.errors import StorageError
from icekeeper.maintenance.begin_pass import PassStart
from icekeeper.maintenance.remember_sweep import remember_sweep
from icekeeper.policy_parts import next_count_ms
from icekeeper.report.clock_skew import clock_warning
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.state.schedules import ScheduleRun
from icekeeper.state.store import LastSeen, PassRecord, StateStore

__all__ = ["DonePart", "conclude", "record_outcome", "with_warnings"]

log = logging.getLogger(__name__)


def with_warnings(outcome: PassOutcome) -> PassOutcome:
    """The outcome with warnings about what went wrong beside the operations: staged files, clocks."""
    staged = outcome.staged
    problem = () if staged is None or staged.problem is None else (staged.problem,)
    met = [*(part.metrics for part in outcome.operations), *(() if staged is None else (staged.metrics,))]
    return replace(outcome, warnings=(*outcome.warnings, *problem, *clock_warning(met)))


@dataclass(frozen=True, slots=True)
class DonePart:
    """One part of a pass that has ended; which operations it had, their outcomes say."""

    schedule: str | None
    """``None``: what no schedule names."""
    fingerprint: str
    """Digest of the settings that held; empty: they say nothing of what was seen."""
    interval_ms: int = 0
    """Of the schedule."""


def conclude(
    state: StateStore,
    started: PassStart,
    outcome: PassOutcome,
    parts: Sequence[DonePart],
    engine: str,
    finished_ms: int,
) -> PassOutcome:
    """Write a pass that changed something into the journal, remember what it saw.

    Never fails, because what was done must be told.
    """
    try:
        record_outcome(state, started, outcome, parts, engine, finished_ms)
    except StorageError as error:
        log.warning("%s: the pass could not be recorded: %s", outcome.table, error)
        return replace(outcome, warnings=(*outcome.warnings, f"the pass could not be recorded: {error}"))
    return outcome


def record_outcome(
    state: StateStore,
    started: PassStart,
    outcome: PassOutcome,
    parts: Sequence[DonePart],
    engine: str,
    finished_ms: int,
) -> None:
    """As :func:`conclude`, for a caller who can try again.

    Raises:
        StorageError: the state cannot be written.
    """
    if not outcome.changed_nothing:
        state.record_pass(
            PassRecord(
                identity=started.identity,
                run_id=outcome.run_id,
                started_ms=started.started_ms,
                finished_ms=finished_ms,
                status=outcome.status.value,
                summary=outcome.summary,
                metrics=outcome.metrics,
                engine=engine,
            )
        )
    for operation in outcome.operations:
        remember_sweep(state, started.identity, operation, started.started_ms, finished_ms)
    for part in parts:
        done = outcome.of_schedule(part.schedule)
        if part.schedule is not None:
            _record_schedule(state, started, part, part.schedule, done, finished_ms)
            continue
        state.remember(
            started.identity,
            LastSeen(
                # From before the pass: a commit that came in between was perhaps not looked at, so it must be news.
                snapshot_id=started.head_id,
                fingerprint=part.fingerprint,
                finished_ms=finished_ms,
                idle=done.is_idle,
                slack={one.operation.value: one.slack for one in done.operations if one.slack is not None},
            ),
        )


def _record_schedule(
    state: StateStore, started: PassStart, part: DonePart, schedule: str, done: PassOutcome, finished_ms: int
) -> None:
    """Record the turn of a schedule, unless an operation of it failed or is not known: then it stays due.

    A refusal counts as done: its cause is in the table, and the next turn asks again.
    """
    if not done.operations or any(part.status is Status.FAILED for part in done.operations):
        return
    last = state.schedules.of_table(started.identity).get(schedule)
    if last is not None and started.started_ms < last.finished_ms <= finished_ms:
        return  # a report that is repeated
    state.schedules.record(
        started.identity,
        ScheduleRun(
            schedule=schedule,
            counted_ms=next_count_ms(part.interval_ms, last, started.started_ms),
            finished_ms=finished_ms,
            snapshot_id=started.head_id,
            fingerprint=part.fingerprint,
            idle=done.is_idle,
        ),
    )
