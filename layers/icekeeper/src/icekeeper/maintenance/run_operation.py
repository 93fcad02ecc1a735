"""Runs one operation of a pass; an error becomes its outcome.

With ``ownership=icekeeper``, the table bucket's own operation is switched off first (rule: leave-bucket-its-jobs).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.deletion.table_claims import remember_claims
from icekeeper.errors import (
    LocationRefused,
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    PolicyError,
    StorageError,
    TableUnsupported,
)
from icekeeper.machine.metering import counting
from icekeeper.model import TableName
from icekeeper.operation_facts import FACTS
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.activity import operation_finished, operation_started, progress_of
from icekeeper.report.outcome import OperationOutcome, failed, refused, request_metrics, skipped

log = logging.getLogger(__name__)


def take_over(operation: Operation, context: OperationContext) -> None:
    """Switch off the table bucket's own operation of the same kind, if any; does nothing in a dry run.

    Raises:
        OperationRefused: it could not be switched off, and two must not do the same work.
    """
    built_in = context.resolved.owners.taken_over.get(operation)
    maintenance = context.catalog.built_in_maintenance
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
    # No operation imports another one, so it gets compaction's filter as an argument.
    Operation.EXPIRE_PARTITIONS: ("expire_partitions.expire_partitions", "compaction.where.whole_partitions"),
    Operation.COMPACT: ("compaction.compact.compact",),
    Operation.REWRITE_POSITION_DELETES: ("position_deletes.rewrite_position_deletes.rewrite_position_deletes",),
    Operation.EXPIRE_SNAPSHOTS: ("expiry.expire_snapshots.expire_snapshots",),
    Operation.REMOVE_ORPHANS: ("orphans.remove_orphans.remove_orphans",),
    Operation.REWRITE_MANIFESTS: ("manifests.rewrite_manifests.rewrite_manifests",),
    Operation.COMPUTE_STATISTICS: ("statistics.compute_statistics.compute_statistics",),
}
"""The function of each operation below ``operations/``, and then the functions that it gets as arguments.

They are imported when they run: a function of the pipeline runs one operation and must not import all
(platform: function-import-time).
"""


def run_operation(
    operation: Operation,
    context: OperationContext,
    work: Callable[[OperationContext], OperationOutcome] | None = None,
    *,
    reraised: tuple[type[Exception], ...] = (),
) -> OperationOutcome:
    """Run one operation of a pass, unless it is switched off; an error becomes its outcome.

    ``work``: what a sweep of a whole bucket does as this operation; the sweep has checked whether it may.
    ``reraised``: errors that are raised to the caller, unless they are refusals.
    """
    if work is None and (reason := context.resolved.why_not(operation) or context.why_stop()):
        return skipped(operation, reason)
    names = str(context.table), operation.value, context.run_id
    operation_started(*names)
    started_s = time.perf_counter()
    context = replace(context, progress=progress_of(*names, context.progress))
    with counting() as sent, keeping_documents():
        try:
            if work is not None:
                outcome = work(context)
            else:
                context.require_lease()
                context.require_allowed()
                take_over(operation, context)
                function, *arguments = map(_imported, OPERATIONS[operation])
                outcome = function(replace(context, operation=operation), *arguments)
        except Exception as error:
            if isinstance(error, reraised) and not isinstance(error, (*_REFUSALS, MetadataUnreadable)):
                raise
            outcome = _outcome_of(error, operation, context.table)
        finally:
            remember_claims(context)
    seconds = time.perf_counter() - started_s
    operation_finished(*names, status=outcome.status.value, summary=outcome.summary, seconds=seconds)
    lost_lease = context.lease is not None and context.lease.is_lost
    metrics = {**outcome.metrics, **context.stores.metrics, **request_metrics(operation.value, sent.counts)}
    outcome = replace(outcome, metrics=metrics, lost_lease=lost_lease)
    return _only_planned(outcome, context) if context.dry_run else outcome


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"icekeeper.operations.{module}"), name)


_REFUSALS = (OperationRefused, LocationRefused, TableUnsupported)


def _outcome_of(error: Exception, operation: Operation, table: TableName) -> OperationOutcome:
    if isinstance(error, _REFUSALS):
        return refused(operation, str(error))
    if isinstance(error, MetadataUnreadable):
        is_refused = FACTS[operation].is_destructive or isinstance(error.__cause__, LocationRefused)
        return (refused if is_refused else failed)(operation, str(error))
    if isinstance(error, PolicyError):  # the table was dropped meanwhile, or a property is malformed
        return failed(operation, str(error))
    if not isinstance(error, MaintenanceError):  # a bug in one operation must not stop the others
        log.exception("%s: %s broke", table, operation.value)
    return failed(operation, f"{type(error).__name__}: {error}")


def _only_planned(outcome: OperationOutcome, context: OperationContext) -> OperationOutcome:
    # Files that an earlier operation would write have no name yet.
    written = tuple(filter(context.is_written, outcome.files_planned))
    after = () if context.planned is None else context.planned.before
    return replace(outcome, files_planned=written, files_deleted=(), snapshot_ids=(), planned_after=after)
