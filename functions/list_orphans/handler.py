"""List a table's orphans, and leave the list in the control bucket."""

from __future__ import annotations

from typing import Any

from icekeeper.engines.local import LocalEngine
from icekeeper.pipeline.events import OperationEvent, parse_event
from icekeeper.pipeline.run_step import list_orphans
from observability import about, deployment, logger

__all__ = ["handle"]


@logger.inject_lambda_context
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``ListOrphans``."""
    asked = parse_event(OperationEvent, event)
    about(asked.run_id, asked.item)
    return dict(list_orphans(deployment(), asked, LocalEngine(processes=1)))
