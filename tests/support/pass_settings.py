"""Settings of passes in tests."""

from __future__ import annotations

from typing import Any

EAGER = {
    "min_input_files": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_older_than_hours": "0",
    "min_manifests_to_rewrite": "2",
}
"""Everything that may go goes at once: one snapshot stays, orphans have no grace, two of anything are too many."""

KEEPING_SNAPSHOTS: dict[str, Any] = {"operations": "compact,remove_orphans,rewrite_manifests"}
