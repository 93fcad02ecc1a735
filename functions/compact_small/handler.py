"""Rewrite data and delete files that are few enough for a function; a Glue job does larger work."""

from __future__ import annotations

from typing import Any

import icekeeper.operations.compaction.compact  # noqa: F401 - the first call would import it, with less CPU
from observability import function
from steps import carry_out, most_bytes


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``CompactSmall``."""
    return carry_out(event, context, "compact_small", max_bytes=most_bytes())
