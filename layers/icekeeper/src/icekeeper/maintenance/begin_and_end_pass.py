"""Begins a pass (load, check the policy, choose what is due) and ends it (journal and memory)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.deletion.table_claims import begin_claims
from icekeeper.errors import MaintenanceError, PlanStale, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.policy_fit import fitting
from icekeeper.operations.statistics.staleness import why_not_planned
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.metadata_listing import deletes_after_commit
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.policy.due import FORMER_TABLES, SWEPT, TRIED, PolicyPart, next_count_ms, why_no_sweep
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status, clock_warning
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LastSeen, PassRecord, ScheduleRun, StateStore

# Begins a pass: loads the table, checks the policy against it, records where it has files.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassStart:
    """What a pass found: which table, and its head before the first operation."""

    identity: TableIdentity
    head_id: int | None
    started_ms: int


def begin(
    context: OperationContext, policies: Sequence[ResolvedPolicy] = (), *, loaded: LoadedTable | None = None
) -> LoadedTable:
    """Load the table, check that the policy fits it, and record that it is known here.

    ``policies`` are those of the pass's parts, where these are not the one of the context.  ``loaded`` is the table
    where it was loaded just now.

    Raises:
        PolicyError: there is no such table, or the policy does not fit it.
        PlanStale: it is not the table that the context was made for.
        StorageError: the table cannot be loaded at all.
    """
    loaded = loaded or context.load()
    for resolved in policies or (context.resolved,):
        fitting(loaded.metadata, resolved)
    if not identity_of(context.catalog, loaded).is_same_table(context.memory.identity):
        raise PlanStale(f"{context.table} was replaced by another table just now; run the pass again")
    if context.resolved.why_disabled() is None:
        begin_claims(context, loaded)
        if deletes_after_commit(loaded.metadata) and not context.dry_run:
            _know_other_entries(context, loaded)
    return loaded


def _know_other_entries(context: OperationContext, loaded: LoadedTable) -> None:
    """Look at every table: another entry may stand at a metadata file that a commit of this pass would delete."""
    from icekeeper.deletion.other_tables import know_every_table  # functions that begin no pass import this module

    try:
        know_every_table(context, loaded)
    except MaintenanceError as error:
        log.warning("%s: commits delete no old metadata files: %s", context.table, error)


def head_id(context: OperationContext, loaded: LoadedTable) -> int | None:
    """The snapshot at the head of the branch that the policy names."""
    head = loaded.metadata.head(context.policy.branch)
    return None if head is None else head.snapshot_id


# Which operations a pass leaves out because they are not due, where nobody asked for the pass but detection.


def of_part(context: OperationContext, settings: ResolvedPolicy, schedule: str | None) -> OperationContext:
    """The context of what a schedule does (``None``: of what no schedule names) under its settings.

    A schedule that names its operations has asked for them: each turn does them.
    """
    is_proposed = context.is_proposed and not context.resolved.names_operations(schedule)
    return replace(context, resolved=settings, is_proposed=is_proposed)


def remembered_turns(context: OperationContext) -> Mapping[str, ScheduleRun]:
    """The last turns of the table's schedules and sweeps; not read, and empty, where nothing goes by them.

    Raises:
        StorageError: the state cannot be read.
    """
    asks = bool(context.resolved.schedules) or context.is_proposed
    return context.state.schedules.of_table(context.memory.identity) if asks else {}


def why_waiting(
    context: OperationContext, part: PolicyPart, operation: Operation, turns: Mapping[str, ScheduleRun]
) -> str | None:
    """Why the sweep of a part waits; ``None``: it is due, as in every pass that a person asked for, or no sweep."""
    if operation is not Operation.REMOVE_ORPHANS or not context.is_proposed:
        return None
    if part.resolved.why_not(operation) or context.why_stop():  # then that is the reason
        return None
    return why_no_sweep(context.resolved, part.schedule, turns, context.memory.identity.key, context.started_ms)


def why_no_statistics(
    context: OperationContext, metadata: TableMetadata, part: PolicyPart, operation: Operation
) -> str | None:
    """Why the pass will compute no statistics, as far as the metadata document tells: so no job is started for them.

    The operation itself decides by the newest head.

    Raises:
        PolicyError: the policy names columns that the table does not have.
    """
    head = metadata.head(part.resolved.policy.branch)
    if operation is not Operation.COMPUTE_STATISTICS or head is None:
        return None
    is_proposed = of_part(context, part.resolved, part.schedule).is_proposed
    return why_not_planned(metadata, head, part.resolved.policy) if is_proposed else None


# Remembers when a table was swept, or that it was tried in vain: the next sweep is counted from it
# (rule: only-whole-sweeps-count).


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


# Ends a pass: writes what it did into the journal and remembers what it saw.


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
                idle_since={
                    one.operation.value: one.idle_since for one in done.operations if one.idle_since is not None
                },
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
