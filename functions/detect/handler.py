"""Find the tables of a run: those of the fleet that need maintenance, or the one that was asked for."""

from __future__ import annotations

from typing import Any

from icekeeper.pipeline.detect_tables import detect_tables
from icekeeper.pipeline.events import DetectEvent, parse_event
from observability import about, deployment, logger, tell_detection

__all__ = ["handle"]


@logger.inject_lambda_context
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Detect``."""
    asked = parse_event(DetectEvent, event)
    about(asked.run_id)
    answer, found = detect_tables(deployment(), asked)
    tell_detection(found)
    return dict(answer)
