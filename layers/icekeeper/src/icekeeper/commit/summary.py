"""Writes snapshot summaries whose totals add up (rule 40)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from icekeeper.metadata.document import Snapshot
from icekeeper.metadata.writer_marks import carried_marks
from icekeeper.model import DataFile, FileContent, ManifestContent, ManifestFile, PartitionValue

__all__ = ["counted_totals", "snapshot_summary"]

# (total, what adds to it, what takes from it), as Java's SnapshotProducer.updateTotal pairs them.
_TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


def snapshot_summary(
    operation: str,
    parent: Snapshot,
    added: Iterable[tuple[int, DataFile]],
    removed: Iterable[tuple[int, DataFile]],
    extra: Mapping[str, str],
    counted: Mapping[str, int],
) -> dict[str, str]:
    """The summary of a ``replace`` or ``delete`` snapshot; files come with their spec id.

    A total that the parent does not state, or states so that it would fall below zero, is left out, as Java leaves out
    what it does not know: a guess would be carried on for ever.  The marks of streaming writers are copied from the
    parent, so that they are still found when the parent has expired.  ``counted`` are totals from the manifests
    themselves, which a writer's earlier mistake cannot spoil.
    """
    counters: dict[str, int] = {}
    partitions: set[tuple[int, tuple[PartitionValue, ...]]] = set()

    def count(key: str, amount: int) -> None:
        counters[key] = counters.get(key, 0) + amount

    for is_added, files in ((True, added), (False, removed)):
        for spec_id, file in files:
            partitions.add((spec_id, file.partition))
            count("added-files-size" if is_added else "removed-files-size", file.content_bytes)
            if file.content is FileContent.DATA:
                count("added-data-files" if is_added else "deleted-data-files", 1)
                count("added-records" if is_added else "deleted-records", file.record_count)
                continue
            kind = "position" if file.content is FileContent.POSITION_DELETES else "equality"
            verb = "added" if is_added else "removed"
            count(f"{verb}-delete-files", 1)
            count(f"{verb}-{kind}-deletes", file.record_count)
            count(f"{verb}-dvs", file.content_offset is not None)
    summary = {"operation": operation, **carried_marks(parent), **extra}
    summary.update({key: str(amount) for key, amount in counters.items() if amount})
    if partitions:
        summary["changed-partition-count"] = str(len(partitions))
    for total, plus, minus in _TOTALS:
        before = parent.summary.get(total)
        after = counters.get(plus, 0) - counters.get(minus, 0)
        if before is not None and before.isdecimal() and int(before) + after >= 0:
            summary[total] = str(int(before) + after)
    summary.update({total: str(amount) for total, amount in counted.items()})
    return summary


def counted_totals(manifests: Sequence[ManifestFile]) -> dict[str, int]:
    """The totals of a snapshot, summed over its manifests; empty where a v1 writer left counts out."""
    totals = dict.fromkeys(("total-data-files", "total-delete-files", "total-records"), 0)
    for manifest in manifests:
        files = (manifest.added_files_count, manifest.existing_files_count)
        rows = (manifest.added_rows_count, manifest.existing_rows_count)
        if None in files or None in rows:
            return {}
        is_data = manifest.content is ManifestContent.DATA
        totals["total-data-files" if is_data else "total-delete-files"] += sum(count or 0 for count in files)
        totals["total-records"] += sum(count or 0 for count in rows) if is_data else 0
    return totals
