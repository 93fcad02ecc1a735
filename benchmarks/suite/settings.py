"""Settings that several rows share: a single output file, or a whole pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MB = 1024 * 1024
ONE_OUTPUT: Mapping[str, Any] = {"target_bytes": 2048 * MB}
WHOLE_PASS = "compact,rewrite_position_deletes,expire_snapshots,remove_orphans,rewrite_manifests"
# All files together, as small files of a partition at rest; rewrite_all would decode all of them.
ONE_OUTPUT_SETTINGS = {
    "target_file_size_mb": "2048",
    "min_input_files": "2",
    "partition_rest_hours": "0",
    "expected_scans": "none",
}
