"""Runs one operation of a pass; an error becomes its outcome.

With ``ownership=icekeeper``, the table bucket's own operation is switched off first (rule: leave-bucket-its-jobs).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeAlias

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


Work: TypeAlias = Callable[[OperationContext], OperationOutcome]


def _imported_when_run(module: str, **given: str) -> Work:
    """The operation with the name of its module below ``operations/``; ``given``: functions to pass to it.

    The import is lazy because a function of the pipeline runs one operation and must not import all
    (platform: function-import-time).
    """

    def function(path: str) -> Any:
        place, _, name = path.rpartition(".")
        return getattr(import_module(f"icekeeper.operations.{place}"), name)

    def work(context: OperationContext) -> OperationOutcome:
        operation = function(f"{module}.{module.rpartition('.')[2]}")
        outcome: OperationOutcome = operation(context, **{name: function(path) for name, path in given.items()})
        return outcome

    work.__module__ = f"icekeeper.operations.{module}"
    return work


OPERATIONS: Mapping[Operation, Work] = {
    # No operation imports another one, so it gets compaction's filter as an argument.
    Operation.EXPIRE_PARTITIONS: _imported_when_run("expire_partitions", matching="compaction.where.whole_partitions"),
    Operation.COMPACT: _imported_when_run("compaction.compact"),
    Operation.REWRITE_POSITION_DELETES: _imported_when_run("position_deletes.rewrite_position_deletes"),
    Operation.EXPIRE_SNAPSHOTS: _imported_when_run("expiry.expire_snapshots"),
    Operation.REMOVE_ORPHANS: _imported_when_run("orphans.remove_orphans"),
    Operation.REWRITE_MANIFESTS: _imported_when_run("manifests.rewrite_manifests"),
    Operation.COMPUTE_STATISTICS: _imported_when_run("statistics.compute_statistics"),
}


def run_operation(
    operation: Operation, context: OperationContext, *, reraised: tuple[type[Exception], ...] = ()
) -> OperationOutcome:
    """Run one operation of a pass, unless it is switched off; errors in ``reraised`` are raised to the caller."""
    reason = context.resolved.why_not(operation) or context.why_stop()
    if reason is not None:
        return skipped(operation, reason)

    def work(context: OperationContext) -> OperationOutcome:
        context.require_lease()
        context.require_allowed()
        take_over(operation, context)
        return OPERATIONS[operation](replace(context, operation=operation))

    return run_guarded(operation, context, work, reraised=reraised)


def run_guarded(
    operation: Operation,
    context: OperationContext,
    work: Callable[[OperationContext], OperationOutcome],
    *,
    reraised: tuple[type[Exception], ...] = (),
) -> OperationOutcome:
    """Run ``work`` as an operation; an error becomes its outcome, except errors in ``reraised``."""
    names = str(context.table), operation.value, context.run_id
    operation_started(*names)
    started_s = time.perf_counter()
    context = replace(context, progress=progress_of(*names, context.progress))
    with counting() as sent, keeping_documents():
        outcome = _outcome(operation, context, work, reraised)
    seconds = time.perf_counter() - started_s
    operation_finished(*names, status=outcome.status.value, summary=outcome.summary, seconds=seconds)
    lost_lease = context.lease is not None and context.lease.is_lost
    metrics = {**outcome.metrics, **context.stores.metrics, **request_metrics(operation.value, sent.counts)}
    outcome = replace(outcome, metrics=metrics, lost_lease=lost_lease)
    return _only_planned(outcome, context) if context.dry_run else outcome


def _outcome(
    operation: Operation,
    context: OperationContext,
    work: Callable[[OperationContext], OperationOutcome],
    reraised: tuple[type[Exception], ...],
) -> OperationOutcome:
    try:
        return work(context)
    except (OperationRefused, LocationRefused, TableUnsupported) as error:
        return refused(operation, str(error))
    except MetadataUnreadable as error:
        is_refused = FACTS[operation].is_destructive or isinstance(error.__cause__, LocationRefused)
        return (refused if is_refused else failed)(operation, str(error))
    except reraised:
        raise
    except PolicyError as error:  # the table was dropped meanwhile, or a property is malformed
        return failed(operation, str(error))
    except MaintenanceError as error:
        return failed(operation, f"{type(error).__name__}: {error}")
    except Exception as error:  # a bug in one operation must not stop the others
        log.exception("%s: %s broke", context.table, operation.value)
        return failed(operation, f"{type(error).__name__}: {error}")
    finally:
        remember_claims(context)


def _only_planned(outcome: OperationOutcome, context: OperationContext) -> OperationOutcome:
    # Files that an earlier operation would write have no name yet.
    written = tuple(filter(context.is_written, outcome.files_planned))
    after = () if context.planned is None else context.planned.before
    return replace(outcome, files_planned=written, files_deleted=(), snapshot_ids=(), planned_after=after)
