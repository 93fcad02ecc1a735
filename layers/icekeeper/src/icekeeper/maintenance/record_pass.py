"""Ends a pass: writes what it did into the journal and remembers what it saw."""

from __future__ import annotations

import logging
from dataclasses import replace

from icekeeper.errors import StorageError
from icekeeper.maintenance.begin_pass import PassStart
from icekeeper.report.clock_skew import clock_warning
from icekeeper.report.outcome import PassOutcome
from icekeeper.state.store import LastSeen, PassRecord, StateStore

__all__ = ["conclude", "record_outcome", "with_warnings"]

log = logging.getLogger(__name__)


def with_warnings(outcome: PassOutcome) -> PassOutcome:
    """The outcome with warnings about what went wrong beside the operations: staged files, clocks."""
    staged = outcome.staged
    problem = () if staged is None or staged.problem is None else (staged.problem,)
    met = [*(part.metrics for part in outcome.operations), *(() if staged is None else (staged.metrics,))]
    return replace(outcome, warnings=(*outcome.warnings, *problem, *clock_warning(met)))


def conclude(
    state: StateStore,
    fingerprint: str,
    started: PassStart,
    outcome: PassOutcome,
    engine: str,
    finished_ms: int,
) -> PassOutcome:
    """Write a pass that changed something into the journal, remember what it saw.

    Never fails, because what was done must be told.
    """
    try:
        record_outcome(state, fingerprint, started, outcome, engine, finished_ms)
    except StorageError as error:
        log.warning("%s: the pass could not be recorded: %s", outcome.table, error)
        return replace(outcome, warnings=(*outcome.warnings, f"the pass could not be recorded: {error}"))
    return outcome


def record_outcome(
    state: StateStore,
    fingerprint: str,
    started: PassStart,
    outcome: PassOutcome,
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
    state.remember(
        started.identity,
        LastSeen(
            # From before the pass: a commit that came in between was perhaps not looked at, so it must be news.
            snapshot_id=started.head_id,
            fingerprint=fingerprint,
            finished_ms=finished_ms,
            idle=outcome.is_idle,
        ),
    )
