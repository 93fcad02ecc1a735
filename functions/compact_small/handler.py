"""Rewrite data and delete files that are few enough for a function; larger work is a Glue job's."""

from __future__ import annotations

from typing import Any

from observability import deployment, function
from steps import carry_out

__all__ = ["handle"]

STEPS = frozenset({"compact", "rewrite_position_deletes", "compute_statistics"})


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``CompactSmall``."""
    return carry_out(event, context, STEPS, max_bytes=2 * deployment().settings.thresholds.compaction_bytes)
