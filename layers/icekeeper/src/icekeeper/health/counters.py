"""Counters of a table's files, snapshots and manifests, from its metadata document (pure).

Counters in snapshot summaries are optional in the specification, and every engine writes them in its own way.  So one
that is missing or no number is unknown: it is left out, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.model import ManifestContent, ManifestFile

__all__ = [
    "AGE_COUNTER",
    "DEPTH_COUNTER",
    "average_file_bytes",
    "lake_counters",
    "listed_manifests",
    "summary_counter",
    "summary_counters",
]

AGE_COUNTER = "lake_oldest_snapshot_age_hours"
"""The one counter that changes although the table does not."""

DEPTH_COUNTER = "lake_clustering_depth"
"""Files that a lookup in the clustering columns opens on average, as the last pass that clustered files left it."""

_FROM_SUMMARY: Mapping[str, str] = {
    "lake_data_files": "total-data-files",
    "lake_delete_files": "total-delete-files",
    "lake_position_deletes": "total-position-deletes",
    "lake_equality_deletes": "total-equality-deletes",
    "lake_records": "total-records",
    "lake_bytes": "total-files-size",
}
# A number with more digits is no long in Java.
_MAX_DIGITS = 19


def summary_counters(snapshot: Snapshot) -> Mapping[object, object]:
    """The summary of a snapshot as it stands, empty where there is none."""
    summary = snapshot.raw.get("summary")
    return summary if isinstance(summary, dict) else {}  # as JSON has it; any Mapping takes eight times as long


def summary_counter(counters: Mapping[Any, object], key: str) -> int | None:
    """One counter of a summary; ``None`` when it is missing or no whole number."""
    return _whole_number(counters.get(key))


def _whole_number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def average_file_bytes(counters: Mapping[object, object]) -> float | None:
    """The mean size of the files, delete files too, by a snapshot's summary; ``None``: it has none, or does not say.

    Java counts delete files into ``total-files-size``, but not into ``total-data-files``.
    """
    files, size = summary_counter(counters, "total-data-files"), summary_counter(counters, "total-files-size")
    deletes = summary_counter(counters, "total-delete-files") or 0
    return size / (files + deletes) if files and size is not None else None


def listed_manifests(counters: Mapping[object, object]) -> int | None:
    """How many manifests a snapshot has, by its summary; ``None``: it does not say."""
    created, kept = (summary_counter(counters, f"manifests-{name}") for name in ("created", "kept"))
    return None if created is None or kept is None else created + kept


def lake_counters(
    metadata: TableMetadata,
    head: Snapshot | None,
    *,
    now_ms: int,
    manifests: Sequence[ManifestFile] | None = None,
) -> dict[str, int | float]:
    """Counters by metric name; ``manifests`` are those of the head, where the caller has read its manifest list."""
    counters: dict[str, int | float] = {
        "lake_snapshots": len(metadata.snapshots),
        "lake_refs": len(metadata.refs),
        "lake_metadata_log": len(metadata.metadata_log),
        "lake_statistics_files": len(metadata.statistics) + len(metadata.partition_statistics),
    }
    if metadata.snapshots:
        counters[AGE_COUNTER] = round(max(0, now_ms - min(metadata.snapshot_times_ms)) / HOUR_MS, 1)
    if head is not None:
        counters |= _of_summary(metadata, summary_counters(head))
        counters |= _clustering_depth(metadata, head)
        if (history := _history_bytes(metadata, head)) is not None:
            counters["lake_history_bytes"] = history
    if manifests is not None:
        counters["lake_manifests"] = len(manifests)
        counters["lake_delete_manifests"] = sum(m.content is ManifestContent.DELETES for m in manifests)
    return counters


def _clustering_depth(metadata: TableMetadata, head: Snapshot) -> dict[str, float]:
    """Only files say how deep they lie now, and manifests are not read here."""
    if not any(DEPTH_KEY in summary_counters(one) for one in metadata.snapshots.values()):
        return {}  # as in most tables, whose history need not be walked
    for snapshot in metadata.ancestors(head.snapshot_id):
        text = summary_counters(snapshot).get(DEPTH_KEY)
        if text is not None and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", str(text)):
            return {DEPTH_COUNTER: float(str(text))}
    return {}


def _history_bytes(metadata: TableMetadata, head: Snapshot) -> int | None:
    """The size of the data and delete files that other snapshots than the head hold alone; ``None``: it is not told.

    What a snapshot removed, its parent still holds; of another branch, what its snapshots added.
    """
    size, own = 0, set[int]()
    removed: object = None
    for snapshot in metadata.ancestors(head.snapshot_id):
        if removed is not None:  # by the snapshot before this one, its child
            size += _whole_number(removed) or 0
        summary = summary_counters(snapshot)
        removed = summary.get("removed-files-size")  # nearly always absent, and this runs for every table of a scan
        own.add(snapshot.snapshot_id)
        if "total-files-size" not in summary:
            return None
    if summary_counter(summary_counters(head), "total-files-size") is None:
        return None
    if len(own) == len(metadata.snapshots):
        return size
    for snapshot_id, snapshot in metadata.snapshots.items():
        if snapshot_id in own:
            continue
        if snapshot.parent_id not in metadata.snapshots:
            return None  # which of its files were removed since, expired snapshots told
        size += summary_counter(summary_counters(snapshot), "added-files-size") or 0
    return size


def _of_summary(metadata: TableMetadata, summary: Mapping[object, object]) -> dict[str, int | float]:
    counters: dict[str, int | float] = {}
    for name, key in _FROM_SUMMARY.items():
        if (value := summary_counter(summary, key)) is not None:
            counters[name] = value
    if metadata.format_version == 1:  # which has no delete files
        counters["lake_delete_files"] = 0
    if "lake_delete_files" in counters and (average := average_file_bytes(summary)) is not None:
        counters["lake_average_file_bytes"] = round(average)
    if (listed := listed_manifests(summary)) is not None:
        counters["lake_manifests"] = listed
    return counters
