"""The settings of a table bucket's own maintenance, as a layer of policy (rule 113).

What somebody configured for the bucket's maintenance still holds when Icekeeper takes that maintenance over.  AWS's
defaults, which hold where nobody configured anything, are no layer: snapshots that the deployment keeps for weeks must
not expire after AWS's five days.
"""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.layers import Layer
from icekeeper.policy.ownership import BucketMaintenance

__all__ = ["BUCKET_SOURCE", "bucket_layers"]

BUCKET_SOURCE = "S3 Tables maintenance configuration"


def bucket_layers(bucket: BucketMaintenance, sort_columns: Sequence[str]) -> list[Layer]:
    """The settings of the bucket's maintenance as policy keys: one layer, or none where nothing is configured.

    ``sort_columns`` are the columns of the table's own sort order, which S3 Tables' ``sort`` and ``z-order`` strategies
    use (Amazon S3 user guide, "Maintenance for tables"); without any, these two strategies are ignored.
    """
    compaction, snapshots, files = (
        bucket.states[built_in].settings if built_in in bucket.states else {}
        for built_in in (BuiltIn.COMPACTION, BuiltIn.SNAPSHOT_MANAGEMENT, BuiltIn.UNREFERENCED_FILE_REMOVAL)
    )
    values: dict[str, object] = {}
    if "targetFileSizeMB" in compaction:
        values["target_file_size_mb"] = compaction["targetFileSizeMB"]
    strategy = compaction.get("strategy")
    if strategy in ("auto", "binpack") or (strategy == "sort" and sort_columns):
        values["strategy"] = strategy
    elif strategy == "z-order" and sort_columns:
        values |= {"strategy": "zorder", "zorder_columns": tuple(sort_columns)}
    if "minSnapshotsToKeep" in snapshots:
        values["max_snapshots_to_keep"] = snapshots["minSnapshotsToKeep"]
    if "maxSnapshotAgeHours" in snapshots:
        values["snapshot_retention_hours"] = snapshots["maxSnapshotAgeHours"]
    if "unreferencedDays" in files:
        # S3 Tables marks an unreferenced file after the first period, and deletes it after the second.
        days = [files["unreferencedDays"], files.get("nonCurrentDays", 0)]
        values["orphan_older_than_hours"] = 24 * sum(day for day in days if isinstance(day, int))
    return [Layer(BUCKET_SOURCE, values)] if values else []
