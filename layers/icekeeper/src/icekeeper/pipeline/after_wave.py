"""What became of the steps that a pass had left to its run's wave, and that have no outcome after it."""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.operation_facts import STEP_FACTS, Operation
from icekeeper.pipeline.choose_routes import may_be_in_wave
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.events import PlanEvent, Route
from icekeeper.pipeline.wave_document import left_key
from icekeeper.report.outcome import OperationOutcome, failed, skipped

__all__ = ["missed_by_wave"]

_NOT_REACHED = "the wave ended before it began with the table, which is due again"
_BROKEN_OFF = "the wave ended in the midst of it; what it had not committed is not done, and the table is due again"


def missed_by_wave(
    control: ControlBucket, event: PlanEvent, folder: str, routes: Mapping[str, Route]
) -> dict[str, OperationOutcome]:
    """What became of the steps that still need a job after the wave; none before it.

    ``folder`` is the table's in the control bucket.

    Raises:
        StorageError: the control bucket does not answer.
    """
    if not event.item.after_wave:
        return {}
    return {
        step.name: _outcome(control, folder, step.name)
        for step in STEP_FACTS
        if may_be_in_wave(step, event.item) and routes[step.name] == "glue"
    }


def _outcome(control: ControlBucket, folder: str, step: str) -> OperationOutcome:
    """Skipped where the wave left the table out or never got to it, failed where it ended in the midst of the step."""
    operation = Operation(step)
    left = control.find_hint(left_key(folder, step))
    if isinstance(left, dict) and left.get("why"):
        return skipped(operation, str(left["why"]))
    if control.find_hint(f"{folder}/{step}.begun.json") is not None:
        return failed(operation, _BROKEN_OFF)
    return skipped(operation, _NOT_REACHED)
