"""Remembers when a table was swept, or that it was tried in vain: the next sweep is counted from it (rule 128)."""

from __future__ import annotations

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.identity import TableIdentity
from icekeeper.state.schedules import ScheduleRun
from icekeeper.state.store import StateStore
from icekeeper.sweep_rhythm import FORMER_TABLES, SWEPT, TRIED

__all__ = ["remember_sweep"]


def remember_sweep(
    state: StateStore, identity: TableIdentity, outcome: OperationOutcome, started_ms: int, finished_ms: int
) -> None:
    """Record a sweep of a real pass (epoch milliseconds); the outcome of another operation, or of none begun, is none.

    One that found nothing is whole.  One that failed, was refused or could not delete a file leaves the table due.

    Raises:
        StorageError: the state cannot be written.
    """
    if outcome.operation is not Operation.REMOVE_ORPHANS:
        return
    # Of the reasons to skip a sweep two are found out by trying it: a store that neither lists nor deletes, and what a
    # dropped table has left at the same location.
    is_former = FORMER_TABLES in outcome.metrics
    is_impossible = outcome.status is Status.SKIPPED and (
        is_former or "remove_orphans.orphans_known" in outcome.metrics
    )
    if outcome.status is Status.SKIPPED and not is_impossible:
        return
    is_whole = outcome.status is Status.SUCCEEDED and not outcome.metrics.get("remove_orphans.files_failed", 0)
    state.schedules.record(
        identity,
        ScheduleRun(
            schedule=SWEPT if is_whole else TRIED,
            counted_ms=started_ms,
            finished_ms=finished_ms,
            snapshot_id=None,
            fingerprint=FORMER_TABLES if is_former else "",
            idle=is_impossible,
        ),
    )
