"""The pass: the operations of a policy over one table, in canonical order, one failing not stopping the next."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from icekeeper.activity import operation_finished, operation_started, progress_of
from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.claims import begin_claims, remember_claims
from icekeeper.errors import (
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    PolicyError,
    StorageError,
    TableUnsupported,
)
from icekeeper.operations.compaction.clustering.recipe import choose_recipe
from icekeeper.operations.compaction.compact import compact
from icekeeper.operations.compaction.where import row_filter
from icekeeper.operations.expiry.expire_snapshots import expire_snapshots
from icekeeper.operations.expiry.retention import check_retention
from icekeeper.operations.manifests.rewrite_manifests import rewrite_manifests
from icekeeper.operations.orphans.remove_orphans import remove_orphans
from icekeeper.operations.partitions.expire_partitions import expire_partitions
from icekeeper.operations.position_deletes.rewrite_position_deletes import rewrite_position_deletes
from icekeeper.operations.staging.clean import clean_staged_files
from icekeeper.operations.statistics.columns import statistics_columns
from icekeeper.operations.statistics.compute_statistics import compute_statistics
from icekeeper.operations.take_over import take_over
from icekeeper.pass_context.context import OperationContext, branch_head
from icekeeper.policy import Operation
from icekeeper.report.clock_skew import clock_warning
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status, failed, refused, skipped
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LastSeen, PassRecord, StateStore

__all__ = [
    "OPERATIONS",
    "PassStart",
    "Passing",
    "attempt",
    "begin",
    "conclude",
    "head_id",
    "record_outcome",
    "run_operation",
    "run_pass",
    "why_not",
]

log = logging.getLogger(__name__)

Passing: TypeAlias = tuple[type[Exception], ...]

OPERATIONS: Mapping[Operation, Callable[[OperationContext], OperationOutcome]] = {
    Operation.EXPIRE_PARTITIONS: expire_partitions,
    Operation.COMPACT: compact,
    Operation.REWRITE_POSITION_DELETES: rewrite_position_deletes,
    Operation.EXPIRE_SNAPSHOTS: expire_snapshots,
    Operation.REMOVE_ORPHANS: remove_orphans,
    Operation.REWRITE_MANIFESTS: rewrite_manifests,
    Operation.COMPUTE_STATISTICS: compute_statistics,
}
# These delete files or rows: what they cannot read is a reason to refuse, not merely a failure.
_DELETING = frozenset({Operation.EXPIRE_PARTITIONS, Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS})


@dataclass(frozen=True, slots=True)
class PassStart:
    """What a pass found: which table, and its head before the first operation."""

    identity: TableIdentity
    head_id: int | None
    started_ms: int


def run_pass(context: OperationContext) -> PassOutcome:
    """Run every operation that the policy asks for; the journal gets every pass that did something.

    Raises:
        PolicyError: there is no such table, or the policy does not fit it.
        StorageError: the table cannot be loaded at all.
    """
    loaded = begin(context)
    started = PassStart(context.memory.identity, head_id(context, loaded), context.clock())
    log.info("pass over %s started, run %s", context.table, context.run_id)
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=tuple(run_operation(operation, context) for operation in context.policy.operations),
        # Not an operation that anybody asks for or switches off (seed 002: "separately and always on").
        staged=clean_staged_files(context),
    )
    outcome = with_warnings(outcome)
    log.info("pass over %s %s: %s", context.table, outcome.status.value, outcome.summary)
    if context.dry_run:
        return outcome
    return conclude(
        context.state, context.resolved.fingerprint(), started, outcome, context.engine.name, context.clock()
    )


def begin(context: OperationContext) -> LoadedTable:
    """Load the table, check that the policy fits it, and know what is remembered about it.

    Raises:
        PolicyError: there is no such table, or the policy does not fit it.
        StorageError: the table cannot be loaded at all.
    """
    loaded = context.load()
    is_maintained = context.resolved.why_disabled() is None
    if is_maintained:
        _check_fit(context, loaded)
    context.memory = context.memory_of(loaded)
    if is_maintained:
        begin_claims(context, loaded)
    return loaded


def head_id(context: OperationContext, loaded: LoadedTable) -> int | None:
    """The snapshot at the head of the branch that the policy names."""
    head = loaded.metadata.head(context.policy.branch)
    return None if head is None else head.snapshot_id


def _check_fit(context: OperationContext, loaded: LoadedTable) -> None:
    """A branch, filter, order or column that does not fit the table is a mistake of the policy: nothing runs."""
    branch_head(loaded.metadata, context.policy.branch)
    row_filter(context.policy.where, loaded.metadata)
    if Operation.EXPIRE_SNAPSHOTS in context.policy.operations:
        check_retention(loaded.metadata, context.policy)
    if Operation.COMPUTE_STATISTICS in context.policy.operations:
        statistics_columns(loaded.metadata, context.policy.statistics_columns)
    if Operation.COMPACT in context.policy.operations:
        with suppress(TableUnsupported):  # that is for the operation to report
            choose_recipe(loaded.metadata, context.policy)


def why_not(operation: Operation, context: OperationContext) -> str | None:
    """The reason an operation is skipped before it looks at anything; ``None`` to go on."""
    return context.resolved.why_not(operation)


def run_operation(operation: Operation, context: OperationContext, *, passing: Passing = ()) -> OperationOutcome:
    """Run one operation of a pass that has begun; ``passing`` are errors for the caller, who tries again."""
    reason = why_not(operation, context)
    if reason is not None:
        return skipped(operation, reason)

    def work(context: OperationContext) -> OperationOutcome:
        if context.resolved.allowed_prefixes is not None:
            metadata = context.load().metadata
            context.require_allowed((metadata.location, metadata.metadata_directory))
        take_over(operation, context)
        return OPERATIONS[operation](context)

    return attempt(operation, context, work, passing=passing)


def attempt(
    operation: Operation,
    context: OperationContext,
    work: Callable[[OperationContext], OperationOutcome],
    *,
    passing: Passing = (),
) -> OperationOutcome:
    """Run one operation; whatever it raises becomes its outcome, but for ``passing`` errors."""
    told = str(context.table), operation.value, context.run_id
    operation_started(*told)
    started_s, report = time.perf_counter(), context.progress
    context.progress = progress_of(*told, report)
    try:
        outcome = work(context)
    except (OperationRefused, TableUnsupported) as error:
        outcome = refused(operation, str(error))
    except MetadataUnreadable as error:
        outcome = (refused if operation in _DELETING else failed)(operation, str(error))
    except passing:
        raise
    except PolicyError as error:  # a table dropped meanwhile, a malformed property: what was done is still reported
        outcome = failed(operation, str(error))
    except MaintenanceError as error:
        outcome = failed(operation, f"{type(error).__name__}: {error}")
    except Exception as error:  # a bug in one operation must not keep the others from running
        log.exception("%s: %s broke", context.table, operation.value)
        outcome = failed(operation, f"{type(error).__name__}: {error}")
    finally:
        context.progress = report
        remember_claims(context)
    seconds = time.perf_counter() - started_s
    operation_finished(*told, status=outcome.status.value, summary=outcome.summary, seconds=seconds)
    outcome = replace(outcome, metrics={**outcome.metrics, **context.store_time.metrics})
    return _only_planned(outcome) if context.dry_run else outcome


def with_warnings(outcome: PassOutcome) -> PassOutcome:
    """What went wrong beside the operations, as far as their outcomes and metrics say."""
    staged = outcome.staged
    problem = () if staged is None or staged.problem is None else (staged.problem,)
    met = [*(part.metrics for part in outcome.operations), *(() if staged is None else (staged.metrics,))]
    return replace(outcome, warnings=(*outcome.warnings, *problem, *clock_warning(met)))


def _only_planned(outcome: OperationOutcome) -> OperationOutcome:
    return replace(outcome, files_deleted=(), snapshot_ids=())


def conclude(
    state: StateStore,
    fingerprint: str,
    started: PassStart,
    outcome: PassOutcome,
    engine: str,
    finished_ms: int,
) -> PassOutcome:
    """Write a pass into the journal and remember what it saw; never fails, because what was done must be told."""
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
    if outcome.staged is not None or any(part.status is not Status.SKIPPED for part in outcome.operations):
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
