"""Which operations a pass leaves out because they are not due, where nobody asked for the pass but detection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.statistics.staleness import why_not_planned
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.policy_parts import PolicyPart
from icekeeper.state.schedules import ScheduleRun
from icekeeper.sweep_rhythm import why_no_sweep

__all__ = ["of_part", "remembered_turns", "why_no_statistics", "why_waiting"]


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
