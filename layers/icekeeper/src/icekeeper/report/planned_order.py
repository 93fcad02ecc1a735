"""On which state of the table the operations of a dry run are planned (pure).

Each is planned on the table as those before it would leave it, as the pass runs them.  Where that cannot be told, it is
planned on the table as it is, and the pass plans it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from icekeeper.operation_facts import FACTS, Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status

__all__ = ["in_turn", "looks_at_the_table", "order_json", "planned_anew", "told_anew", "told_order"]

# What lies in the store no plan changes: orphans are what nothing references, before and after.
_LOOKS_AT_THE_STORE = frozenset({Operation.REMOVE_ORPHANS})


def looks_at_the_table(operation: Operation) -> bool:
    """Whether an operation is planned on the table's head or snapshots, which those before it may change."""
    return operation not in _LOOKS_AT_THE_STORE


def in_turn(outcome: PassOutcome) -> PassOutcome:
    """What a dry run says of every operation on what those before it would leave."""
    answers = (replace(one.in_turn or one, schedule=one.schedule) for one in outcome.operations)
    return replace(outcome, operations=tuple(answers))


def planned_anew(outcomes: Sequence[OperationOutcome]) -> Mapping[Operation, tuple[Operation, ...]]:
    """By operation, those before it that would commit first and that its plan does not reckon with."""
    found: dict[Operation, tuple[Operation, ...]] = {}
    before: tuple[Operation, ...] = ()
    for outcome in outcomes:
        operation = outcome.operation
        unknown = tuple(one for one in before if one not in outcome.planned_after)
        if unknown and looks_at_the_table(operation) and outcome.status in (Status.SUCCEEDED, Status.SKIPPED):
            found[operation] = unknown
        if outcome.status is Status.SUCCEEDED and FACTS[operation].commits:
            before = (*before, operation)
    return found


def told_order(outcomes: Sequence[OperationOutcome]) -> str | None:
    """The sentence for people about plans that reckon with earlier ones; ``None`` where none does."""
    later = [outcome.operation.value for outcome in outcomes if outcome.planned_after]
    if not later:
        return None
    return f"planned on the table as the operations before would leave it: {', '.join(dict.fromkeys(later))}"


def told_anew(outcomes: Sequence[OperationOutcome]) -> str | None:
    """The sentence about it for people; ``None`` where every operation finds what it was planned on."""
    anew = planned_anew(outcomes)
    if not anew:
        return None
    first = next(iter(anew.values()))[0].value
    named = ", ".join(operation.value for operation in anew)
    return f"planned here on the table as it is; the pass plans anew after {first}: {named}"


def order_json(outcomes: Sequence[OperationOutcome]) -> dict[str, list[str]]:
    """``planned_anew`` in the document of a dry run: operation → those that change the table before it."""
    return {operation.value: [one.value for one in before] for operation, before in planned_anew(outcomes).items()}
