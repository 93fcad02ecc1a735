"""The settings of a table bucket's own maintenance, as a layer of policy (rule 113).

What somebody stated there goes on holding when the bucket's own is switched off and ours takes its place.  What AWS
assumes where nothing is stated is no setting of anybody, so it is no layer: snapshots that the deployment keeps for
weeks must not expire after AWS's five days.
"""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.layers import Layer
from icekeeper.policy.ownership import BucketMaintenance

__all__ = ["BUCKET_SOURCE", "bucket_layers"]

BUCKET_SOURCE = "S3 Tables maintenance configuration"


def bucket_layers(bucket: BucketMaintenance, sort_columns: Sequence[str]) -> list[Layer]:
    """What the bucket's maintenance is set to, in our keys.

    ``sort_columns`` are those of the table's own sort order: there S3 Tables' ``sort`` and ``z-order`` strategies take
    their columns from (Amazon S3 user guide, "Maintenance for tables"); without any both are left out.
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
        # A file is gone when both have passed.
        days = [files["unreferencedDays"], files.get("nonCurrentDays", 0)]
        values["orphan_older_than_hours"] = 24 * sum(day for day in days if isinstance(day, int))
    return [Layer(BUCKET_SOURCE, values)] if values else []
