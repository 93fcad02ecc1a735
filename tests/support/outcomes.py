"""What passes report."""

from __future__ import annotations

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome


def outcome_of(outcome: PassOutcome, operation: Operation) -> OperationOutcome:
    """The part of a pass that one operation had."""
    return next(part for part in outcome.operations if part.operation is operation)
