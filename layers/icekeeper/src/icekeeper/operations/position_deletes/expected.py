"""The files that merging position deletes is expected to write, for later plans of a dry run (pure)."""

from __future__ import annotations

from icekeeper.metadata.delete_scope import named_file
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.position_deletes.plan import DeleteGroup
from icekeeper.operations.position_deletes.task import MergeResult

__all__ = ["expected_result"]


def expected_result(metadata: TableMetadata, snapshot_id: int, group: DeleteGroup) -> MergeResult:
    """What a worker is expected to make of a group, as if no row were dangling.

    In v3 that is a deletion vector for each data file that may have one: which of them the rows name, only they tell.
    """
    rows = sum(entry.file.record_count for entry in group.deletes)
    size = sum(entry.file.file_size_in_bytes for entry in group.deletes)
    stem = f"{metadata.data_location}/expected-deletes-{snapshot_id}-{group.group_id:05d}"
    if metadata.format_version < 3:
        written = (_file(group, f"{stem}.parquet", "PARQUET", rows, size),) if group.targets else ()
        return MergeResult(group_id=group.group_id, written=written, rows_read=rows, rows_written=rows)
    named = {named_file(entry.file) for entry in group.deletes}
    targets = [target.path for target in group.targets if None in named or target.path in named]
    vectors = tuple(
        _file(group, f"{stem}.puffin", "PUFFIN", max(1, rows // len(targets)), size, (path, number))
        for number, path in enumerate(targets)
    )
    return MergeResult(group_id=group.group_id, written=vectors, rows_read=rows, rows_written=rows)


def _file(
    group: DeleteGroup, path: str, file_format: str, rows: int, size: int, vector_of: tuple[str, int] | None = None
) -> DataFile:
    """``vector_of``: the data file of a deletion vector, and its number in the Puffin file."""
    named, number = (None, None) if vector_of is None else vector_of
    return DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=path,
        file_format=file_format,
        partition=group.partition,
        record_count=rows,
        file_size_in_bytes=size,
        referenced_data_file=named,
        content_offset=number,
        content_size_in_bytes=None if number is None else 1,
    )
