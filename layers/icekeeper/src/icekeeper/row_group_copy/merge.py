"""Makes one data file of several by copying their row groups, proves it, and describes it for a manifest."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.errors import StorageError
from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copyable import CopyableFile, CopyTarget, judge_file
from icekeeper.row_group_copy.entry_metrics import check_metrics, merged_metrics
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.layout import Layout, lay_out
from icekeeper.row_group_copy.proof import disproof
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.store_copy import StoredCopy, copy_in_store
from icekeeper.row_group_copy.store_proof import store_disproof
from icekeeper.row_group_copy.write_copy import WrittenCopy, write_copy
from icekeeper.storage.storage import Storage

__all__ = ["copyable_file", "merge_files"]


def copyable_file(entry: DataFile, target: CopyTarget, storage: Storage) -> CopyableFile | NotCopyable:
    """Whether a data file can be copied, by its manifest entry and its footer.

    Raises:
        StorageError: the file does not exist, or the store failed.
    """
    if entry.file_format.upper() != "PARQUET":
        return NotCopyable(entry.file_path, f"is {entry.file_format}, not Parquet")
    if entry.key_metadata is not None:
        return NotCopyable(entry.file_path, "is encrypted")
    try:
        check_metrics(entry, [column.leaf for column in target.schema.columns], target.modes)
    except CannotCopy as refused:
        return NotCopyable(entry.file_path, str(refused))
    footer = read_footer(entry.file_path, storage, entry.file_size_in_bytes)
    return footer if isinstance(footer, NotCopyable) else judge_file(footer, target, entry.record_count)


def merge_files(
    inputs: Sequence[tuple[DataFile, CopyableFile]],
    path: str,
    target: CopyTarget,
    storage: Storage,
) -> DataFile | NotCopyable | None:
    """Copy the row groups of the inputs, in order, into a new file at ``path``; its entry, or ``None`` and no file
    where the inputs have no rows.

    The entry's partition is that of the first input.  After a :class:`NotCopyable` nothing is left at ``path``.

    Raises:
        StorageError: the store failed, and nothing is left; or the file does not hold what was read, and it is kept
            for inspection.
    """
    layout = lay_out([file for _, file in inputs])
    if isinstance(layout, NotCopyable):
        return layout
    if not layout.row_groups:
        return None
    schema = target.schema.with_nullability(inputs[0][1].nullability)
    written = _proven(layout, path, schema, storage)
    return written if isinstance(written, NotCopyable) else _entry([entry for entry, _ in inputs], written, target)


def _proven(layout: Layout, path: str, schema: ParquetSchema, storage: Storage) -> WrittenCopy | NotCopyable:
    """The new file, assembled by its store where that can, else streamed, in both cases with its proof."""
    stored = copy_in_store(layout, path, schema, storage)
    if isinstance(stored, StoredCopy):
        written, problem = stored.written, store_disproof(stored, schema, storage)
    else:
        streamed = stored or write_copy(layout, path, schema, storage)
        if isinstance(streamed, NotCopyable):
            return streamed
        written, problem = streamed, disproof(streamed, schema, storage)
    if problem is not None:
        raise StorageError(f"rows were not kept: {problem}; {path} was written and is kept for inspection")
    return written


def _entry(entries: Sequence[DataFile], written: WrittenCopy, target: CopyTarget) -> DataFile:
    leaves = [column.leaf for column in target.schema.columns]
    row_groups = [group.facts for group in written.row_groups]
    return DataFile(
        content=FileContent.DATA,
        file_path=written.path,
        file_format="PARQUET",
        partition=entries[0].partition,
        record_count=sum(group.rows for group in row_groups),
        file_size_in_bytes=written.size,
        split_offsets=written.split_offsets,
        **merged_metrics(entries, row_groups, leaves, target.modes),
    )
