"""The operations of a pass in canonical order, as the state machine calls them, and a step that fails."""

from __future__ import annotations

from typing import Any

OPERATIONS = [
    "expire_partitions",
    "compact",
    "rewrite_position_deletes",
    "expire_snapshots",
    "list_orphans",
    "remove_orphans",
    "rewrite_manifests",
    "compute_statistics",
    "clean_staged",
]
WHOLE_PASS = ["detect", "lease", "plan", *OPERATIONS, "report", "release", "report_run"]


def failing(*errors: Exception) -> Any:
    """Raise one after the other, and nothing after the last; a single one every time."""
    rest = iter(errors)

    def fail(event: Any) -> None:
        if error := (errors[0] if len(errors) == 1 else next(rest, None)):
            raise error

    return fail
