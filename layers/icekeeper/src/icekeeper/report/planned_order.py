"""Which plans of a dry run an earlier operation of the same pass would change (pure).

A dry run plans every operation on the table as it is; the pass runs each on what those before have left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icekeeper.operation_facts import FACTS, Operation
from icekeeper.report.outcome import OperationOutcome, Status

__all__ = ["order_json", "planned_anew", "told_anew"]

# What an operation looks at: the head's files and manifests, or the snapshots.  Orphans are what nothing references,
# before and after.
_LOOKS_AT_THE_HEAD = frozenset(
    {
        Operation.COMPACT,
        Operation.REWRITE_POSITION_DELETES,
        Operation.EXPIRE_SNAPSHOTS,
        Operation.REWRITE_MANIFESTS,
        Operation.COMPUTE_STATISTICS,
    }
)


def planned_anew(outcomes: Sequence[OperationOutcome]) -> Mapping[Operation, tuple[Operation, ...]]:
    """By operation, those before it that would commit first, so that it is planned anew after them."""
    found: dict[Operation, tuple[Operation, ...]] = {}
    before: tuple[Operation, ...] = ()
    for outcome in outcomes:
        operation = outcome.operation
        if before and operation in _LOOKS_AT_THE_HEAD and outcome.status in (Status.SUCCEEDED, Status.SKIPPED):
            found[operation] = before
        if outcome.status is Status.SUCCEEDED and FACTS[operation].commits:
            before = (*before, operation)
    return found


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
