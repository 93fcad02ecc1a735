"""Begins a pass (load, check the policy, choose what is due) and ends it (journal and records)."""

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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassStart:
    """The table of a pass, and its head before the first operation."""

    identity: TableIdentity
    head_id: int | None
    started_ms: int


def begin(
    context: OperationContext, policies: Sequence[ResolvedPolicy] = (), *, loaded: LoadedTable | None = None
) -> LoadedTable:
    """Load the table, check that the policy fits it, and record its folders.

    ``policies``: those of the pass's parts, if they differ from the context's; ``loaded``: the table if just loaded.

    Raises:
        PolicyError: there is no such table, or the policy does not fit it.
        PlanStale: it is not the table that the context was made for.
        StorageError: the table cannot be loaded.
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
    """Look at every table: another entry may point at a metadata file that a commit of this pass would delete."""
    from icekeeper.deletion.other_tables import know_every_table  # functions that begin no pass import this module

    try:
        know_every_table(context, loaded)
    except MaintenanceError as error:
        log.warning("%s: commits delete no old metadata files: %s", context.table, error)


def head_id(context: OperationContext, loaded: LoadedTable) -> int | None:
    """The snapshot at the head of the branch that the policy names."""
    head = loaded.metadata.head(context.policy.branch)
    return None if head is None else head.snapshot_id


def of_part(context: OperationContext, settings: ResolvedPolicy, schedule: str | None) -> OperationContext:
    """The context for a schedule's operations (``None``: those that no schedule names) with its settings.

    Operations that a schedule names run at each of its turns, as if a person had asked for them.
    """
    is_proposed = context.is_proposed and not context.resolved.names_operations(schedule)
    return replace(context, resolved=settings, is_proposed=is_proposed)


def remembered_turns(context: OperationContext) -> Mapping[str, ScheduleRun]:
    """The last turns of the table's schedules and sweeps; empty (and not read) if nothing depends on them.

    Raises:
        StorageError: the state cannot be read.
    """
    asks = bool(context.resolved.schedules) or context.is_proposed
    return context.state.schedules.of_table(context.memory.identity) if asks else {}


def why_waiting(
    context: OperationContext, part: PolicyPart, operation: Operation, turns: Mapping[str, ScheduleRun]
) -> str | None:
    """Why an orphan sweep that only detection proposed waits; ``None``: it is due, or it is another operation."""
    if operation is not Operation.REMOVE_ORPHANS or not context.is_proposed:
        return None
    if part.resolved.why_not(operation) or context.why_stop():  # the operation reports that reason
        return None
    return why_no_sweep(context.resolved, part.schedule, turns, context.memory.identity.key, context.started_ms)


def why_no_statistics(
    context: OperationContext, metadata: TableMetadata, part: PolicyPart, operation: Operation
) -> str | None:
    """Why the pass will not compute statistics, by the metadata document alone, so that no job is started for them.

    The operation itself decides again by the newest head.

    Raises:
        PolicyError: the policy names columns that the table does not have.
    """
    head = metadata.head(part.resolved.policy.branch)
    if operation is not Operation.COMPUTE_STATISTICS or head is None:
        return None
    is_proposed = of_part(context, part.resolved, part.schedule).is_proposed
    return why_not_planned(metadata, head, part.resolved.policy) if is_proposed else None


def remember_sweep(
    state: StateStore, identity: TableIdentity, outcome: OperationOutcome, started_ms: int, finished_ms: int
) -> None:
    """Record when a real pass swept a table; the next sweep counts from then (rule: only-whole-sweeps-count).

    A sweep that found nothing counts.  After a sweep that failed, was refused or could not delete a file, the table is
    still due.  Outcomes of other operations are ignored.

    Raises:
        StorageError: the state cannot be written.
    """
    if outcome.operation is not Operation.REMOVE_ORPHANS:
        return
    # Two reasons to skip a sweep are only found by trying it: a store that cannot list or delete, and metadata of a
    # dropped table at the same location.
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


def with_warnings(outcome: PassOutcome) -> PassOutcome:
    """The outcome with warnings about problems outside the operations: staged files, clocks."""
    staged = outcome.staged
    problem = () if staged is None or staged.problem is None else (staged.problem,)
    met = [*(part.metrics for part in outcome.operations), *(() if staged is None else (staged.metrics,))]
    return replace(outcome, warnings=(*outcome.warnings, *problem, *clock_warning(met)))


@dataclass(frozen=True, slots=True)
class DonePart:
    """A finished part of a pass: a schedule, or (``None``) the operations that no schedule names."""

    schedule: str | None
    fingerprint: str
    """Digest of the settings; empty: the pass is not evidence that the table needs nothing."""
    interval_ms: int = 0
    """The interval of the schedule."""


def conclude(
    state: StateStore,
    started: PassStart,
    outcome: PassOutcome,
    parts: Sequence[DonePart],
    engine: str,
    finished_ms: int,
) -> PassOutcome:
    """Record a pass; see :func:`record_outcome`.  Never fails, so that the outcome is reported."""
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
    """Write a pass that changed something into the journal, and record sweeps, turns of schedules and the head.

    Raises:
        StorageError: the state cannot be written; the caller can try again.
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
                # The head before the pass: a commit during the pass may not have been planned on, so it must be new.
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
    """Record the turn of a schedule; after a failed or unknown operation it stays due.

    A refusal counts as done, because its cause is in the table; the next turn tries again.
    """
    if not done.operations or any(part.status is Status.FAILED for part in done.operations):
        return
    last = state.schedules.of_table(started.identity).get(schedule)
    if last is not None and started.started_ms < last.finished_ms <= finished_ms:
        return  # this outcome has been recorded before
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
