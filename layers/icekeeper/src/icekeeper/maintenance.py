"""The pass: the operations of a policy over one table, in canonical order, one failing not stopping the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import (
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    PolicyError,
    TableUnsupported,
)
from icekeeper.operations.compaction.clustering.recipe import choose_recipe
from icekeeper.operations.compaction.compact import compact
from icekeeper.operations.compaction.where import row_filter
from icekeeper.operations.context import OperationContext, branch_head
from icekeeper.operations.expire_snapshots import expire_snapshots
from icekeeper.operations.manifests.rewrite_manifests import rewrite_manifests
from icekeeper.operations.partitions.expire_partitions import expire_partitions
from icekeeper.operations.position_deletes.rewrite_position_deletes import rewrite_position_deletes
from icekeeper.operations.remove_orphans import remove_orphans
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status, failed, refused, skipped
from icekeeper.state.store import LastSeen, PassRecord, TableIdentity
from icekeeper.state.table_memory import TableMemory

__all__ = ["OPERATIONS", "identity_of", "run_pass"]

log = logging.getLogger(__name__)

OPERATIONS: Mapping[Operation, Callable[[OperationContext], OperationOutcome]] = {
    Operation.EXPIRE_PARTITIONS: expire_partitions,
    Operation.COMPACT: compact,
    Operation.REWRITE_POSITION_DELETES: rewrite_position_deletes,
    Operation.EXPIRE_SNAPSHOTS: expire_snapshots,
    Operation.REMOVE_ORPHANS: remove_orphans,
    Operation.REWRITE_MANIFESTS: rewrite_manifests,
}
# These delete files or rows: what they cannot read is a reason to refuse, not merely a failure.
_DELETING = frozenset({Operation.EXPIRE_PARTITIONS, Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS})


def identity_of(catalog: Catalog, loaded: LoadedTable) -> TableIdentity:
    """Which table this is, for good (DESIGN 1)."""
    return TableIdentity(catalog.name, catalog.warehouse, loaded.name, loaded.metadata.uuid or "")


def run_pass(context: OperationContext) -> PassOutcome:
    """Run every operation that the policy asks for; the journal gets every pass that did something.

    Raises:
        PolicyError: there is no such table, or the policy does not fit it.
        StorageError: the table cannot be loaded at all, or the state store cannot be written.
    """
    loaded = context.load()
    if context.resolved.why_disabled() is None:
        _check_fit(context, loaded)
    context.memory = TableMemory(context.state, identity_of(context.catalog, loaded), context.clock)
    started_ms = context.clock()
    log.info("pass over %s started, run %s", context.table, context.run_id)
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=tuple(_run(operation, context) for operation in context.policy.operations),
    )
    log.info("pass over %s %s: %s", context.table, outcome.status.value, outcome.summary)
    if not context.dry_run:
        _remember(context, loaded, started_ms, outcome)
    return outcome


def _check_fit(context: OperationContext, loaded: LoadedTable) -> None:
    """A branch, filter or order that does not fit the table is a mistake of the policy: nothing runs."""
    branch_head(loaded.metadata, context.policy.branch)
    row_filter(context.policy.where, loaded.metadata)
    if Operation.COMPACT in context.policy.operations:
        with suppress(TableUnsupported):  # that is for the operation to report
            choose_recipe(loaded.metadata, context.policy)


def _run(operation: Operation, context: OperationContext) -> OperationOutcome:
    reason = context.resolved.why_disabled() or context.resolved.why_switched_off(operation)
    if reason is not None:
        return skipped(operation, reason)
    log.info("%s: %s started", context.table, operation.value)
    try:
        work = OPERATIONS.get(operation)
        if work is None:
            return skipped(operation, f"{operation.value} is not available in this version")
        outcome = work(context)
    except (OperationRefused, TableUnsupported) as error:
        outcome = refused(operation, str(error))
    except MetadataUnreadable as error:
        outcome = (refused if operation in _DELETING else failed)(operation, str(error))
    except PolicyError as error:  # a table dropped meanwhile, a malformed property: what was done is still reported
        outcome = failed(operation, str(error))
    except MaintenanceError as error:
        outcome = failed(operation, f"{type(error).__name__}: {error}")
    except Exception as error:  # a bug in one operation must not keep the others from running
        log.exception("%s: %s broke", context.table, operation.value)
        outcome = failed(operation, f"{type(error).__name__}: {error}")
    log.info("%s: %s %s: %s", context.table, operation.value, outcome.status.value, outcome.summary)
    return _only_planned(outcome) if context.dry_run else outcome


def _only_planned(outcome: OperationOutcome) -> OperationOutcome:
    return replace(outcome, files_deleted=(), snapshot_ids=())


def _remember(context: OperationContext, loaded: LoadedTable, started_ms: int, outcome: PassOutcome) -> None:
    identity, state = context.memory.identity, context.state
    finished_ms = context.clock()
    if any(operation.status is not Status.SKIPPED for operation in outcome.operations):
        state.record_pass(
            PassRecord(
                identity=identity,
                run_id=context.run_id,
                started_ms=started_ms,
                finished_ms=finished_ms,
                status=outcome.status.value,
                summary=outcome.summary,
                metrics=outcome.metrics,
                engine=context.engine.name,
            )
        )
    # The head from before the pass: a commit that came in between was perhaps not looked at, so it must be news.
    head = loaded.metadata.head(context.policy.branch)
    state.remember(
        identity,
        LastSeen(
            snapshot_id=None if head is None else head.snapshot_id,
            fingerprint=context.resolved.fingerprint(),
            finished_ms=finished_ms,
            idle=outcome.is_idle,
        ),
    )
