"""Expire snapshots, and delete the files that only they referenced."""

from __future__ import annotations

from typing import Any

from observability import function
from steps import carry_out


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``ExpireSnapshots``."""
    return carry_out(event, context, "expire_snapshots")
