"""The pass: the operations of a policy over one table, in canonical order, one failing not stopping the next."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.machine.metering import RequestCount, joined_count
from icekeeper.maintenance.begin_pass import PassStart, begin, head_id
from icekeeper.maintenance.interrupted_pass import PassInterrupted, interrupted_outcome
from icekeeper.maintenance.not_due import of_part, remembered_turns, why_waiting
from icekeeper.maintenance.other_state import other_state_warning
from icekeeper.maintenance.record_pass import DonePart, conclude, with_warnings
from icekeeper.maintenance.run_operation import run_operation
from icekeeper.operations.staging.clean import clean_staged_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.counted_engine import CountedEngine
from icekeeper.pass_context.planned_table import PlannedTable
from icekeeper.policy import Operation
from icekeeper.policy.unused_settings import unused_settings
from icekeeper.policy_parts import PolicyPart, due_parts, forced_part, why_not_now
from icekeeper.report.outcome import EngineTaken, OperationOutcome, PassOutcome, skipped
from icekeeper.report.planned_order import looks_at_the_table
from icekeeper.report.request_metrics import request_metrics
from icekeeper.state.schedules import ScheduleRun

__all__ = ["run_pass"]

log = logging.getLogger(__name__)


def run_pass(context: OperationContext, schedule: str | None = None) -> PassOutcome:
    """Run every operation that the policy asks for now; the journal gets every pass that did something.

    Of a policy with schedules these are the ones that are due, and what no schedule names; with ``schedule`` that one
    alone, due or not.

    Raises:
        PolicyError: there is no such table or schedule, or the policy does not fit it.
        StorageError: the table cannot be loaded at all, or the state not be read.
        PassInterrupted: by Ctrl-C, once the pass had begun; the journal has an entry for it.
    """
    with joined_count() as sent, keeping_documents():
        return _run_pass(context, schedule, sent)


def _run_pass(context: OperationContext, schedule: str | None, sent: RequestCount) -> PassOutcome:
    resolved = context.resolved
    runs = remembered_turns(context)
    if schedule is None:
        parts = due_parts(resolved, runs, context.started_ms)
    else:
        parts = (forced_part(resolved, schedule, str(context.table)),)
    loaded = begin(context, [part.resolved for part in parts])
    warnings = other_state_warning(context, loaded)
    started = PassStart(context.memory.identity, head_id(context, loaded), context.started_ms)
    log.info("pass over %s started, run %s", context.table, context.run_id)
    done: list[OperationOutcome] = []
    try:
        for outcome_of_one in _operations(context, parts, runs):
            done.append(outcome_of_one)  # one by one: Ctrl-C may come between two of them
        # Not an operation that anybody asks for or switches off (rule 104).
        staged = clean_staged_files(context)
    except KeyboardInterrupt:
        planned = [operation for part in parts for operation in part.operations]
        interrupted, told = interrupted_outcome(context, loaded, planned, done)
        raise PassInterrupted(told, _recorded(context, started, interrupted, ())) from None
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=(*done, *_left_out(context, parts, runs)),
        staged=staged,
        around=request_metrics("pass", sent.counts),
        # A real pass runs often, and may leave an operation to another one.
        warnings=(*warnings, *(unused_settings(context.resolved) if context.dry_run else ())),
    )
    # A pass that lost its lease, or was told to stop, has not seen what is left to do: the next one must look anew.
    if context.why_stop() is not None or (context.lease is not None and context.lease.is_lost):
        return _recorded(context, started, outcome, () if schedule else (DonePart(None, ""),))
    ended = [
        DonePart(part.schedule, part.resolved.fingerprint(), resolved.schedules[part.schedule].interval_ms)
        for part in parts
        if part.schedule is not None and resolved.why_disabled() is None
    ]
    if schedule is None:
        ended.append(DonePart(None, resolved.fingerprint()))
    return _recorded(context, started, outcome, ended)


def _recorded(
    context: OperationContext, started: PassStart, outcome: PassOutcome, parts: Sequence[DonePart]
) -> PassOutcome:
    reason = context.engine.reason if isinstance(context.engine, CountedEngine) else None
    outcome = replace(with_warnings(outcome), engine=EngineTaken(context.engine.name, reason))
    log.info("pass over %s %s: %s", context.table, outcome.status.value, outcome.summary)
    if context.dry_run:
        return outcome
    return conclude(context.state, started, outcome, parts, context.engine.name, context.clock())


def _operations(
    context: OperationContext, parts: Sequence[PolicyPart], runs: Mapping[str, ScheduleRun]
) -> Iterator[OperationOutcome]:
    planned = PlannedTable()
    for part in parts:
        settings = of_part(context, part.resolved, part.schedule)
        for operation in part.operations:
            waiting = why_waiting(context, part, operation, runs)
            if waiting is not None:
                outcome = skipped(operation, waiting)
            elif context.dry_run:
                outcome = _planned(operation, settings, planned)
            else:
                outcome = run_operation(operation, settings)
            yield replace(outcome, schedule=part.schedule)


def _planned(operation: Operation, context: OperationContext, planned: PlannedTable) -> OperationOutcome:
    """What a dry run says of an operation: on the table as it is, and on what those before it would leave."""
    if not looks_at_the_table(operation):
        return run_operation(operation, context)
    on_head = None if planned.is_as_it_is else run_operation(operation, context)
    in_turn = run_operation(operation, replace(context, planned=planned))
    return in_turn if on_head is None else replace(on_head, in_turn=in_turn)


def _left_out(
    context: OperationContext, parts: Sequence[PolicyPart], runs: Mapping[str, ScheduleRun]
) -> Iterator[OperationOutcome]:
    reasons = why_not_now(context.resolved, parts, runs, context.started_ms)
    return (skipped(operation, reason) for operation, reason in reasons.items())
