"""What keys of other maintenance services are called here: Modak's policy, Iceberg's procedures and properties (pure).

A name that is merely similar may mean the opposite: ``snapshot_min_retained`` are snapshots that are always kept,
``snapshot_retain_max`` those beyond which everything expires.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["name_here"]

_KEPT = "max_snapshots_to_keep, the newest snapshots that are always kept"
_TARGET = "target_file_size_mb, in MB (2^20 bytes)"
_ALWAYS = "no setting: it is always done"
# Modak, "Policy"; Iceberg's Spark procedures and their options; Iceberg's table properties.  Case, hyphens and dots are
# written as underscores.
_NAMES: Mapping[str, str] = {
    "rewrite_target_bytes": _TARGET,
    "rewrite_min_input_files": "min_input_files",
    "manifest_rewrite_min_manifests": "min_manifests_to_rewrite",
    "snapshot_min_retained": _KEPT,
    "orphan_grace_hours": "orphan_older_than_hours",
    "retain_last": _KEPT,
    "min_snapshots_to_keep": _KEPT,
    "history_expire_min_snapshots_to_keep": _KEPT,
    "max_snapshot_age_ms": "snapshot_retention_hours, in hours",
    "history_expire_max_snapshot_age_ms": "snapshot_retention_hours, in hours",
    "older_than": "snapshot_retention_hours for snapshots, orphan_older_than_hours for orphans; both in hours",
    "snapshot_ids": "snapshot_expire_ids",
    "target_file_size_bytes": _TARGET,
    "write_target_file_size_bytes": _TARGET,
    "min_file_size_bytes": "min_file_size_ratio, a share of target_file_size_mb",
    "max_file_size_bytes": "no setting: outputs are at most a quarter above target_file_size_mb",
    "max_file_group_size_bytes": "max_file_group_size_mb, in MB (2^20 bytes)",
    "delete_file_threshold": "delete_compaction_min_deletes",
    "delete_ratio_threshold": "delete_compaction_min_ratio",
    "partial_progress_enabled": "partial_progress, file groups per commit; 0 is off",
    "partial_progress_max_commits": "partial_progress, file groups per commit",
    "output_spec_id": "output_spec: current or keep",
    "remove_dangling_deletes": _ALWAYS,
    "use_starting_sequence_number": _ALWAYS,
    "prefix_listing": _ALWAYS,
    "max_concurrent_deletes": "delete_threads",
    "dry_run": "--dry-run, an option of the command",
    "zorder": "strategy=zorder with zorder_columns",
}


def name_here(key: str) -> str | None:
    """What a key of another service is called here, with its unit; ``None``: no such name is known."""
    return _NAMES.get(re.sub(r"[-.]", "_", key.strip().lower()))
