"""List a table's orphans, and write the list to the control bucket."""

from __future__ import annotations

from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.pipeline.events import OperationEvent, parse_event
from icekeeper.pipeline.run_step import LISTED_ORPHANS, list_orphans
from idempotency import once
from observability import about, deployment, function
from steps import step_key


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``ListOrphans``."""
    asked = parse_event(OperationEvent, event)
    about(asked.run_id, asked.item, step=LISTED_ORPHANS)

    def work() -> dict[str, Any]:
        return dict(list_orphans(deployment(), asked, LocalEngine(processes=1)))

    return once(LISTED_ORPHANS, step_key(asked), context, work)
