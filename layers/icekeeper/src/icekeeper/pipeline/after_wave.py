"""What became of a step that a pass had left to its run's wave, and that has no outcome after it."""

from __future__ import annotations

from icekeeper.operation_facts import Operation
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.wave_document import left_key
from icekeeper.report.outcome import OperationOutcome, failed, skipped

__all__ = ["outcome_after_wave"]

_NOT_REACHED = "the wave ended before it began with the table, which is due again"
_BROKEN_OFF = "the wave ended in the midst of it; what it had not committed is not done, and the table is due again"


def outcome_after_wave(control: ControlBucket, folder: str, step: str) -> OperationOutcome:
    """Skipped where the wave left the table out or never got to it, failed where it ended in the midst of the step.

    ``folder`` is the table's in the control bucket.

    Raises:
        StorageError: the control bucket does not answer.
    """
    operation = Operation(step)
    left = control.find_hint(left_key(folder, step))
    if isinstance(left, dict) and left.get("why"):
        return skipped(operation, str(left["why"]))
    if control.find_hint(f"{folder}/{step}.begun.json") is not None:
        return failed(operation, _BROKEN_OFF)
    return skipped(operation, _NOT_REACHED)
