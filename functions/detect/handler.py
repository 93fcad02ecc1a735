"""Find the tables of a run: those of the fleet that need maintenance, or the requested table."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from cloudwatch import emit_detection
from icekeeper.pipeline.detect_tables import detect_tables
from icekeeper.pipeline.events import DetectEvent, parse_event
from idempotency import once
from observability import about, deployment, function, logger


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``Detect``."""
    asked = parse_event(DetectEvent, event)
    about(asked.run_id)

    def work() -> dict[str, Any]:
        answer, found = detect_tables(deployment(), asked)
        logger.info("%s", found.reason, extra={"proposals": len(found.items)})
        emit_detection(deployment(), found, is_scan=not answer["forced"])
        return dict(answer)

    return once("detect", asked.model_dump(mode="json"), context, work)
