"""Rewrite manifests that are few enough for a function, and count the distinct values of small tables."""

from __future__ import annotations

from typing import Any

from observability import function
from steps import carry_out


@function
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """The state machine's ``RewriteManifests``."""
    return carry_out(event, context, "rewrite_manifests")
