"""Checks of one manifest against its manifest list entry (pure).

Iceberg-Java reads manifests that fail any of them, so nobody else notices (rule 47, platform 22).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from icekeeper.model import EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.verification.findings import Problem, ProblemKind

__all__ = ["manifest_problems", "summary_problems"]


def manifest_problems(manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> Iterator[Problem]:
    """Checks counts, content and sequence numbers of a manifest; ``entries`` are all of its entries."""
    path = manifest.manifest_path
    files: Counter[EntryStatus] = Counter()
    rows: Counter[EntryStatus] = Counter()
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.file.record_count
    for status, file_count, row_count in (
        (EntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
        (EntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
        (EntryStatus.DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
    ):
        for said, found, what in ((file_count, files[status], "files"), (row_count, rows[status], "rows")):
            if said is not None and said != found:
                detail = f"the manifest list says {said} {status.name} {what}, the manifest holds {found}"
                yield Problem(ProblemKind.WRONG_COUNT, path, detail)
    least = min((e.sequence_number for e in entries if e.is_live and e.sequence_number is not None), default=None)
    if least is not None and least < manifest.min_sequence_number:
        detail = f"min_sequence_number is {manifest.min_sequence_number}, an entry has {least}"
        yield Problem(ProblemKind.SEQUENCE_NUMBER, path, detail)
    for entry in entries:
        if (entry.file.content is FileContent.DATA) != (manifest.content is ManifestContent.DATA):
            detail = (
                f"a {manifest.content.name} manifest holds the {entry.file.content.name} file {entry.file.file_path}"
            )
            yield Problem(ProblemKind.WRONG_COUNT, path, detail)


def summary_problems(
    manifests: Sequence[ManifestFile], summary: dict[str, str], snapshot_id: int, path: str
) -> Iterator[Problem]:
    """Compares the totals of a snapshot summary with the counts of its manifests, where both are known.

    ``path`` is the file that problems name.
    """
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    deletes = [m for m in manifests if m.content is ManifestContent.DELETES]
    for key, found in (
        ("total-data-files", _sum([m.added_files_count for m in data], [m.existing_files_count for m in data])),
        ("total-records", _sum([m.added_rows_count for m in data], [m.existing_rows_count for m in data])),
        ("total-delete-files", _sum([m.added_files_count for m in deletes], [m.existing_files_count for m in deletes])),
    ):
        said = summary.get(key)
        if said is not None and found is not None and said != str(found):
            detail = f"summary of snapshot {snapshot_id} says {key} {said}, its manifests add up to {found}"
            yield Problem(ProblemKind.SUMMARY, path, detail)


def _sum(*columns: Sequence[int | None]) -> int | None:
    values = [value for column in columns for value in column]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
