"""Checks of what format v3 added: row ids and deletion vectors (pure).

Iceberg-Java tolerates most of these and then gives one id to two rows, or none (specification, "Row Lineage", "Deletion
Vectors") (rule 13, rule 19).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import ManifestContent, ManifestEntry, ManifestFile
from icekeeper.verification.findings import Problem, ProblemKind

__all__ = ["manifest_row_id_problems", "row_id_problems", "two_vectors_problems", "vector_problems"]

_FIRST = "first-row-id"
_ADDED = "added-rows"
_PUFFIN = "PUFFIN"


def row_id_problems(metadata: TableMetadata, location: str) -> Iterator[Problem]:
    """Snapshots since the upgrade to v3 state the row ids that they gave out, and no two gave out the same."""
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
    """Every data manifest of a v3 snapshot starts at a row id, no delete manifest does."""
    if snapshot.raw.get(_FIRST) is None:
        return
    for manifest in manifests:
        is_data = manifest.content is ManifestContent.DATA
        if is_data == (manifest.first_row_id is None):
            detail = f"a {manifest.content.name} manifest of snapshot {snapshot.snapshot_id} has "
            detail += "no first_row_id" if is_data else f"first_row_id {manifest.first_row_id}"
            yield Problem(ProblemKind.ROW_LINEAGE, manifest.manifest_path, detail)


def vector_problems(entries: Iterable[ManifestEntry]) -> Iterator[Problem]:
    """A live deletion vector says of which data file it is and where in its Puffin file it lies."""
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


def two_vectors_problems(referenced: Iterable[str]) -> Iterator[Problem]:
    """A data file has at most one in a snapshot; ``referenced`` are the data files of all its vectors."""
    for path, count in Counter(referenced).items():
        if count > 1:
            yield Problem(
                ProblemKind.DELETION_VECTOR, path, f"a snapshot has {count} deletion vectors of this data file"
            )
