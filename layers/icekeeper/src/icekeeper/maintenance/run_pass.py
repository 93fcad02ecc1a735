"""The pass: the operations of a policy over one table, in canonical order, one failing not stopping the next."""

from __future__ import annotations

import logging

from icekeeper.maintenance.begin_pass import PassStart, begin, head_id
from icekeeper.maintenance.record_pass import conclude, with_warnings
from icekeeper.maintenance.run_operation import run_operation
from icekeeper.operations.staging.clean import clean_staged_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.report.outcome import PassOutcome

__all__ = ["run_pass"]

log = logging.getLogger(__name__)


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
        # Not an operation that anybody asks for or switches off (rule 104).
        staged=clean_staged_files(context),
    )
    outcome = with_warnings(outcome)
    log.info("pass over %s %s: %s", context.table, outcome.status.value, outcome.summary)
    if context.dry_run:
        return outcome
    # A pass that lost its lease, or was told to stop, has not seen what is left to do: the next one must look anew.
    is_cut_short = context.why_stop() is not None or (context.lease is not None and context.lease.is_lost)
    seen_under = "" if is_cut_short else context.resolved.fingerprint()
    return conclude(context.state, seen_under, started, outcome, context.engine.name, context.clock())
