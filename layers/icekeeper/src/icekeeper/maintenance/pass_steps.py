"""The steps of a pass: begin it, run an operation, and record how it ended.

The command runs all of them in one process; the pipeline runs each in a function or job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.deletion.table_claims import begin_claims, remember_claims
from icekeeper.engines.engine import named_work
from icekeeper.errors import (
    DeletionsWait,
    LocationRefused,
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    PlanStale,
    PolicyError,
    StorageError,
    SwitchedOff,
    TableUnsupported,
)
from icekeeper.machine.metering import counting
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.operation_facts import FACTS
from icekeeper.operations.policy_fit import fitting
from icekeeper.operations.statistics.staleness import why_not_planned
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.metadata_files import deletes_after_commit
from icekeeper.policy import Operation
from icekeeper.policy.sweep_rhythm import FORMER_TABLES, NOT_POSSIBLE, why_no_sweep
from icekeeper.report.activity import Spent, operation_finished, operation_started, progress_of
from icekeeper.report.outcome import (
    OperationOutcome,
    PassOutcome,
    Status,
    clock_warning,
    failed,
    refused,
    request_metrics,
    skipped,
)
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LastSeen, PassRecord, StateStore
from icekeeper.state.sweeps import SweepKind, SweepRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassStart:
    """The table of a pass, and its head before the first operation."""

    identity: TableIdentity
    head_id: int | None
    started_ms: int
    digest: str | None = None
    """Digest of the settings that decide the pass (:meth:`.ResolvedPolicy.digest_over`); ``None``: the pass did not do
    all that the settings ask for, so what it saw is not recorded."""
    looked_ms: int | None = None
    """When files were looked at; ``None``: at ``started_ms``."""


def begin(context: OperationContext, *, loaded: LoadedTable | None = None) -> LoadedTable:
    """Load the table, check that the policy fits it, and record its folders.

    ``loaded``: the table if just loaded.

    Raises:
        PolicyError: the table does not exist, or the policy does not fit it.
        PlanStale: another table has replaced the table of the context.
        StorageError: the table cannot be loaded.
    """
    loaded = loaded or context.load()
    fitting(loaded.metadata, context.resolved)
    if not identity_of(context.catalogs.own, loaded).is_same_table(context.memory.identity):
        raise PlanStale(f"{context.table} was replaced by another table just now; run the pass again")
    if context.resolved.why_disabled() is None:
        begin_claims(context, loaded)
        if deletes_after_commit(loaded.metadata) and not context.dry_run:
            from icekeeper.deletion.other_tables import know_every_table  # not every function begins a pass

            try:  # another entry may point at a metadata file that a commit of this pass would delete
                know_every_table(context, loaded)
            except MaintenanceError as error:
                log.warning("%s: commits delete no old metadata files: %s", context.table, error)
    return loaded


def head_id(context: OperationContext, loaded: LoadedTable) -> int | None:
    """The snapshot at the head of the branch that the policy names."""
    head = loaded.metadata.head(context.policy.branch)
    return None if head is None else head.snapshot_id


def remembered_sweeps(context: OperationContext) -> Mapping[SweepKind, SweepRecord]:
    """The records of the table's sweeps; empty (and not read) if nothing depends on them.

    Raises:
        StorageError: the state cannot be read.
    """
    return context.state.sweeps.of_table(context.memory.identity) if context.is_proposed else {}


def why_waiting(context: OperationContext, operation: Operation, sweeps: Mapping[SweepKind, SweepRecord]) -> str | None:
    """Why an orphan sweep that only detection proposed waits; ``None``: it is due, or it is another operation."""
    if operation is not Operation.REMOVE_ORPHANS or not context.is_proposed:
        return None
    if context.resolved.why_not(operation) or context.limits.why_stop():  # the operation reports that reason
        return None
    return why_no_sweep(context.policy, sweeps, context.memory.identity.key, context.started_ms)


def why_no_statistics(context: OperationContext, metadata: TableMetadata, operation: Operation) -> str | None:
    """Why the pass will not compute statistics, by the metadata document alone, so that no job is started for them.

    The operation itself decides again by the newest head.

    Raises:
        PolicyError: the policy names columns that the table does not have.
    """
    head = metadata.head(context.policy.branch)
    if operation is not Operation.COMPUTE_STATISTICS or head is None:
        return None
    return why_not_planned(metadata, head, context.policy) if context.is_proposed else None


def take_over(operation: Operation, context: OperationContext) -> None:
    """Switch off the table bucket's own operation of the same kind, if any.

    Does nothing in a dry run.

    Raises:
        OperationRefused: it could not be switched off, and bucket and pass must not do the same work.
    """
    built_in = context.resolved.owners.taken_over.get(operation)
    maintenance = context.catalogs.own.built_in_maintenance
    if built_in is None or maintenance is None or context.dry_run:
        return
    try:
        maintenance.disable(context.table, built_in)
    except StorageError as error:
        raise OperationRefused(
            f"the table bucket's own {built_in.value} could not be switched off ({error}), so nothing was done; allow "
            "s3tables:PutTableMaintenanceConfiguration, or set ownership=auto"
        ) from error
    log.info("%s: the table bucket's own %s was switched off", context.table, built_in.value)


OPERATIONS: Mapping[Operation, tuple[str, ...]] = {
    # Operations do not import each other, so this operation gets compaction's filter as an argument.
    Operation.EXPIRE_PARTITIONS: ("expire_partitions.expire_partitions", "compaction.plan.where.whole_partitions"),
    Operation.COMPACT: ("compaction.compact.compact",),
    Operation.REWRITE_POSITION_DELETES: ("position_deletes.rewrite_position_deletes.rewrite_position_deletes",),
    Operation.EXPIRE_SNAPSHOTS: ("expiry.expire_snapshots.expire_snapshots",),
    Operation.REMOVE_ORPHANS: ("orphans.remove_orphans.remove_orphans",),
    Operation.REWRITE_MANIFESTS: ("manifests.rewrite_manifests.rewrite_manifests",),
    Operation.COMPUTE_STATISTICS: ("statistics.compute_statistics.compute_statistics",),
}
"""The function of each operation, below ``operations/``, followed by the functions that it gets as arguments.

They are imported when they run: a function of the pipeline runs a single operation and must not import all
(platform: function-import-time).
"""


def run_operation(
    operation: Operation,
    context: OperationContext,
    work: Callable[[OperationContext], OperationOutcome] | None = None,
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    reraised: tuple[type[Exception], ...] = (),
) -> OperationOutcome:
    """Run an operation of a pass unless it is switched off; an error becomes its outcome.

    ``options``: keyword arguments of this operation's function.

    ``work``: replaces the operation in a sweep of a whole bucket, which has checked whether the operation may run.
    ``reraised``: errors that are raised to the caller, unless they are refusals.
    """
    if work is None and (reason := context.resolved.why_not(operation) or context.limits.why_stop()):
        return skipped(operation, reason)
    names = str(context.table), operation.value, context.run_id
    operation_started(*names)
    started_s = time.perf_counter()
    spent = Spent()
    progress = progress_of(*names, spent.noting(context.progress), context.share)
    context = replace(context, progress=progress, spent=spent)
    context.progress(f"{operation.value}: planning", 0, 0)
    with counting() as sent, keeping_documents(), named_work(f"{context.table}, {operation.value}"):
        try:
            working = replace(context, operation=operation, may_be_stopped=True)
            if work is not None:
                outcome = work(working)
            else:
                context.limits.require_lease()
                context.require_allowed()
                take_over(operation, context)
                function, *arguments = map(_imported, OPERATIONS[operation])
                outcome = function(working, *arguments, **options)
        except Exception as error:
            if isinstance(error, reraised) and not isinstance(error, (*_REFUSALS, MetadataUnreadable)):
                raise
            outcome = _outcome_of(error, operation, context.table)
        finally:
            remember_claims(context)
    seconds = time.perf_counter() - started_s
    shown = {"status": outcome.status.value, "summary": outcome.summary}
    operation_finished(*names, **shown, seconds=seconds, spent=spent.fields())
    metrics = {**outcome.metrics, **context.stores.metrics, **request_metrics(operation.value, sent.counts)}
    outcome = replace(outcome, metrics=metrics, lost_lease=context.limits.has_lost_lease)
    return _only_planned(outcome, context) if context.dry_run else outcome


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"icekeeper.operations.{module}"), name)


_REFUSALS = (OperationRefused, LocationRefused, TableUnsupported)


def _outcome_of(error: Exception, operation: Operation, table: TableName) -> OperationOutcome:
    if isinstance(error, SwitchedOff):
        return skipped(operation, str(error))
    if isinstance(error, _REFUSALS):
        return refused(operation, str(error), waits=isinstance(error, DeletionsWait))
    if isinstance(error, MetadataUnreadable):
        is_refused = FACTS[operation].is_destructive or isinstance(error.__cause__, LocationRefused)
        return (refused if is_refused else failed)(operation, str(error))
    if isinstance(error, PolicyError):  # the table was dropped meanwhile, or a property is malformed
        return failed(operation, str(error))
    if not isinstance(error, MaintenanceError):  # a bug in one operation must not stop the others
        log.exception("%s: %s failed unexpectedly", table, operation.value)
    return failed(operation, f"{type(error).__name__}: {error}")


def _only_planned(outcome: OperationOutcome, context: OperationContext) -> OperationOutcome:
    # Files that an earlier operation would write have no name yet.
    written = tuple(filter(context.is_written, outcome.files_planned))
    after = () if context.planned is None else context.planned.before
    return replace(outcome, files_planned=written, files_deleted=(), snapshot_ids=(), planned_after=after)


def remember_sweep(
    state: StateStore, identity: TableIdentity, outcome: OperationOutcome, started_ms: int, finished_ms: int
) -> None:
    """Record when a real pass swept a table; the next sweep counts from then.

    A sweep that found nothing counts.  After a sweep that failed, was refused or could not delete a file, the table is
    still due.  Outcomes of other operations are ignored.

    Raises:
        StorageError: the state cannot be written.
    """
    if outcome.operation is not Operation.REMOVE_ORPHANS:
        return
    # Only an attempt shows two reasons to skip a sweep: a store that cannot list or delete, and metadata of a dropped
    # table at the same location.
    is_former = FORMER_TABLES in outcome.metrics
    is_impossible = outcome.status is Status.SKIPPED and (is_former or NOT_POSSIBLE in outcome.metrics)
    if outcome.status is Status.SKIPPED and not is_impossible:
        return
    is_whole = outcome.status is Status.SUCCEEDED and not outcome.metrics.get("remove_orphans.files_failed", 0)
    state.sweeps.record(
        identity,
        SweepRecord(
            kind=SweepKind.SWEPT if is_whole else SweepKind.TRIED,
            counted_ms=started_ms,
            finished_ms=finished_ms,
            is_impossible=is_impossible,
            has_former_table=is_former,
        ),
    )


def with_warnings(outcome: PassOutcome) -> PassOutcome:
    """The outcome with warnings about problems outside the operations: staged files, clocks."""
    staged = outcome.staged
    problem = () if staged is None or staged.problem is None else (staged.problem,)
    met = [*(part.metrics for part in outcome.operations), *(() if staged is None else (staged.metrics,))]
    return replace(outcome, warnings=(*outcome.warnings, *problem, *clock_warning(met)))


def conclude(
    state: StateStore, started: PassStart, outcome: PassOutcome, engine: str, finished_ms: int, *, is_whole: bool = True
) -> PassOutcome:
    """Record a pass; see :func:`record_outcome`.  Never fails, so that the outcome is reported."""
    try:
        record_outcome(state, started, outcome, engine, finished_ms, is_whole=is_whole)
    except StorageError as error:
        log.warning("%s: cannot record the pass: %s", outcome.table, error)
        return replace(outcome, warnings=(*outcome.warnings, f"cannot record the pass: {error}"))
    return outcome


def record_outcome(
    state: StateStore, started: PassStart, outcome: PassOutcome, engine: str, finished_ms: int, *, is_whole: bool = True
) -> Mapping[str, int]:
    """Write a pass that changed something into the journal, and record sweeps and what it saw.

    ``is_whole``: whether the pass is evidence that the table needs nothing more; else the next pass looks again.
    Return, for each operation that failed, in how many consecutive passes it has failed.

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
        _count(state, started, outcome, finished_ms)
    for operation in outcome.operations:
        remember_sweep(state, started.identity, operation, started.started_ms, finished_ms)
    if started.digest is None:
        return {}
    return state.remember(
        started.identity,
        started.digest,
        LastSeen(
            # The head before the pass: the pass may not have seen a commit that landed meanwhile, so that commit must
            # count as new.
            snapshot_id=started.head_id,
            looked_ms=started.started_ms if started.looked_ms is None else started.looked_ms,
            finished_ms=finished_ms,
            is_done=is_whole and outcome.is_done,
        ),
        started_ms=started.started_ms,
        failed={done.operation.value: done.status is Status.FAILED for done in outcome.operations},
    )


def _count(state: StateStore, started: PassStart, outcome: PassOutcome, finished_ms: int) -> None:
    """Add a recorded pass to the totals of its catalog."""
    from icekeeper.report.metrics import amounts_of  # few functions record passes

    identity = started.identity
    try:
        state.totals.add(identity.catalog, amounts_of(outcome, finished_ms - started.started_ms))
    except StorageError as error:  # the totals are only statistics
        log.warning("%s: the pass is missing in the totals: %s", outcome.table, error)
