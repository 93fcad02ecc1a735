"""Clean up the files of failed loads, from their record."""

from __future__ import annotations

from typing import Any

from observability import function
from steps import carry_out


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``CleanStaged``."""
    return carry_out(event, context, "clean_staged")
