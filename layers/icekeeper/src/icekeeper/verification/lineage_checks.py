"""Checks of what format v3 added: row ids and deletion vectors (pure).

Iceberg-Java reads most tables that fail them, and then gives one row id to two rows, or a row no id (specification,
"Row Lineage", "Deletion Vectors") (rule 13, rule 19).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import ManifestContent, ManifestEntry, ManifestFile
from icekeeper.verification.findings import Problem, ProblemKind

__all__ = ["duplicate_vector_problems", "manifest_row_id_problems", "row_id_problems", "vector_problems"]

_FIRST = "first-row-id"
_ADDED = "added-rows"
_PUFFIN = "PUFFIN"


def row_id_problems(metadata: TableMetadata, location: str) -> Iterator[Problem]:
    """Checks that every snapshot since the upgrade to v3 says which row ids it assigned, no two of them the same."""
    taken: int | None = None
    for snapshot in sorted(metadata.snapshots.values(), key=lambda s: s.sequence_number):
        first, added = snapshot.raw.get(_FIRST), snapshot.raw.get(_ADDED)
        if first is None or added is None:
            if taken is not None:
                detail = f"snapshot {snapshot.snapshot_id} does not say which row ids it gave out"
                yield Problem(ProblemKind.ROW_LINEAGE, location, detail)
            continue
        if taken is not None and int(first) < taken:
            detail = f"snapshot {snapshot.snapshot_id} starts at row id {first}, an earlier one ended at {taken}"
            yield Problem(ProblemKind.ROW_LINEAGE, location, detail)
        taken = max(taken or 0, int(first) + int(added))
    if taken is not None and taken > metadata.next_row_id:
        detail = f"next-row-id is {metadata.next_row_id}, ids below {taken} were given out"
        yield Problem(ProblemKind.ROW_LINEAGE, location, detail)


def manifest_row_id_problems(snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> Iterator[Problem]:
    """Checks that every data manifest of a v3 snapshot has a first row id, and no delete manifest has one."""
    if snapshot.raw.get(_FIRST) is None:
        return
    for manifest in manifests:
        is_data = manifest.content is ManifestContent.DATA
        if is_data == (manifest.first_row_id is None):
            detail = f"a {manifest.content.name} manifest of snapshot {snapshot.snapshot_id} has "
            detail += "no first_row_id" if is_data else f"first_row_id {manifest.first_row_id}"
            yield Problem(ProblemKind.ROW_LINEAGE, manifest.manifest_path, detail)


def vector_problems(entries: Iterable[ManifestEntry]) -> Iterator[Problem]:
    """Checks that every live deletion vector names its data file, and its place within its Puffin file."""
    for entry in entries:
        file = entry.file
        if not entry.is_live or file.file_format.upper() != _PUFFIN:
            continue
        offset, size = file.content_offset, file.content_size_in_bytes
        if file.referenced_data_file is None or offset is None or size is None:
            detail = "a deletion vector lacks its data file, its offset or its size"
            yield Problem(ProblemKind.DELETION_VECTOR, file.file_path, detail)
        elif offset + size > file.file_size_in_bytes:
            detail = f"a deletion vector ends at byte {offset + size} of {file.file_size_in_bytes}"
            yield Problem(ProblemKind.DELETION_VECTOR, file.file_path, detail)


def duplicate_vector_problems(referenced: Iterable[str]) -> Iterator[Problem]:
    """Checks that no data file has two deletion vectors in a snapshot.

    ``referenced`` are the paths of the data files of all vectors of the snapshot.
    """
    for path, count in Counter(referenced).items():
        if count > 1:
            yield Problem(
                ProblemKind.DELETION_VECTOR, path, f"a snapshot has {count} deletion vectors of this data file"
            )
