"""Makes one data file of several by copying their row groups, proves it, and describes it for a manifest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from threading import Lock

from icekeeper.errors import OutputUnproved, RowsNotKept, StorageError
from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copied_input import WrittenCopy
from icekeeper.row_group_copy.copyable import CopyTarget, judge_file
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.entry_metrics import check_metrics, lacks_bounds, merged_metrics, with_lineage_bounds
from icekeeper.row_group_copy.float_facts import uncounted_floats, with_decoded_facts, with_found_facts, with_told_facts
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.layout import Layout, lay_out
from icekeeper.row_group_copy.part_metrics import completed_entry, part_entry
from icekeeper.row_group_copy.proof import disproof
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.store_copy import StoredCopy, copy_in_store
from icekeeper.row_group_copy.store_proof import store_disproof
from icekeeper.row_group_copy.write_copy import write_copy
from icekeeper.rows.lineage import InheritedLineage
from icekeeper.storage.storage import Storage

__all__ = ["copyable_file", "copyable_part", "merge_files"]

# Threads that wait for stores read footers together; an understood one takes twenty times its bytes, and Python
# understands no two of them faster than one after the other.
_ONE_AT_A_TIME = Lock()


def copyable_file(
    entry: DataFile, target: CopyTarget, storage: Storage, sequence_number: int | None = None
) -> CopyableFile | NotCopyable:
    """Whether a data file can be copied, by its manifest entry and its footer.

    ``sequence_number`` is the file's data sequence number; only targets with columns of row lineage need it, for what
    the rows inherit.

    Raises:
        ValueError: the target has such columns, and there is no number.
        StorageError: the file does not exist, or the store failed.
    """
    if entry.file_format.upper() != "PARQUET":
        return NotCopyable(entry.file_path, f"is {entry.file_format}, not Parquet")
    if entry.key_metadata is not None:
        return NotCopyable(entry.file_path, "is encrypted")
    lineage = None
    if target.schema.has_lineage and entry.first_row_id is not None:
        if sequence_number is None:
            raise ValueError("rows with ids need the data sequence number of their file")
        lineage = InheritedLineage(entry.first_row_id, sequence_number)
    footer = read_footer(entry.file_path, storage, entry.file_size_in_bytes)
    if isinstance(footer, NotCopyable):
        return footer
    without_nan = [i for i, count in (entry.nan_value_counts or {}).items() if count == 0]
    with _ONE_AT_A_TIME:
        judged = judge_file(footer, target, entry.record_count, lineage, without_nan)
    if isinstance(judged, NotCopyable):
        return judged
    try:
        return _with_facts(entry, judged, target, storage)
    except CannotCopy as refused:
        return NotCopyable(entry.file_path, str(refused))


def _with_facts(entry: DataFile, file: CopyableFile, target: CopyTarget, storage: Storage) -> CopyableFile:
    """The file with what its output's entry must tell, and neither its own entry nor its footer does."""
    leaves, modes = target.schema.data_leaves, target.modes
    completed = completed_entry(entry, file, leaves, modes)
    uncounted = uncounted_floats(completed, leaves, modes)
    if uncounted:
        unbound = {leaf.field_id for leaf in leaves if lacks_bounds(completed, leaf, modes[leaf.field_id])}
        with _ONE_AT_A_TIME:
            file = with_told_facts(file, leaves, uncounted - unbound)
        file = with_decoded_facts(file, leaves, uncounted, storage)
    check_metrics(with_found_facts(completed, file, leaves), leaves, modes)
    return file


def copyable_part(
    entry: DataFile, file: CopyableFile, row_groups: Collection[int], target: CopyTarget
) -> CopyableFile | NotCopyable:
    """The file, of which only these row groups are copied; refused where the manifest could not tell of them as much as
    of rows that were decoded.

    Raises:
        ValueError: one of them is not among the file's row groups to copy.
    """
    part = file.only(row_groups)
    try:
        _part_entry(entry, part, target)
    except CannotCopy as refused:
        return NotCopyable(file.path, str(refused))
    return part


def merge_files(
    inputs: Sequence[tuple[DataFile, CopyableFile]],
    path: str,
    target: CopyTarget,
    storage: Storage,
    note_unread: Callable[[int], None] = lambda size: None,
) -> DataFile | NotCopyable | None:
    """Copy the row groups of the inputs, in order, into a new file at ``path``; its entry, or ``None`` and no file
    where the inputs have no rows.  Each input is a whole file with its manifest entry, or a part of it with the same.

    The entry's partition is that of the first input.  After a :class:`NotCopyable` nothing is left at ``path``.
    ``note_unread`` is called with how many bytes the store has copied itself: checksums of their pages are kept, and
    verified by nobody.

    Raises:
        FileUnreadable: a page of an input has another checksum than its bytes; nothing is left.
        StorageError: the store failed, and nothing is left.
        RowsNotKept: the file does not hold what was read.
        OutputUnproved: the store failed before that was known; the file is left to the caller (rule 183).
    """
    layout = lay_out([file for _, file in inputs])
    if isinstance(layout, NotCopyable):
        return layout
    if not layout.row_groups:
        return None
    entries: list[DataFile] = []
    for entry, file in inputs:
        try:
            entries.append(_part_entry(entry, file, target))
        except CannotCopy as refused:
            return NotCopyable(file.path, str(refused))
    schema = target.schema.with_nullability(inputs[0][1].nullability)
    written = _proven(layout, path, schema, storage, target, note_unread)
    return written if isinstance(written, NotCopyable) else _entry(entries, written, target)


def _proven(
    layout: Layout,
    path: str,
    schema: ParquetSchema,
    storage: Storage,
    target: CopyTarget,
    note_unread: Callable[[int], None],
) -> WrittenCopy | NotCopyable:
    """The new file, assembled by its store where that can, else streamed, in both cases with its proof."""
    stored = copy_in_store(layout, path, schema, storage)
    if isinstance(stored, StoredCopy):
        written = stored.written
    else:
        streamed = stored or write_copy(layout, path, schema, storage, verify_checksums=target.verify_checksums)
        if isinstance(streamed, NotCopyable):
            return streamed
        written = streamed
    try:
        if isinstance(stored, StoredCopy):
            problem = store_disproof(stored, schema, storage)
        else:
            problem = disproof(written, schema, storage)
    except StorageError as error:
        raise OutputUnproved(error) from error
    if problem is not None:
        raise RowsNotKept(problem, [path])
    if isinstance(stored, StoredCopy):
        note_unread(sum(placement.file.copied_bytes for placement in layout.placements))
    return written


def _part_entry(entry: DataFile, file: CopyableFile, target: CopyTarget) -> DataFile:
    """The entry for what is copied of a file."""
    leaves = target.schema.data_leaves
    if file.row_count == entry.record_count:
        return with_found_facts(completed_entry(entry, file, leaves, target.modes), file, leaves)
    part = with_found_facts(part_entry(entry, file, leaves, target.modes), file, leaves)
    try:
        check_metrics(part, leaves, target.modes)
    except CannotCopy as refused:
        raise CannotCopy(f"{refused} in some of its row groups alone") from refused
    return part


def _entry(entries: Sequence[DataFile], written: WrittenCopy, target: CopyTarget) -> DataFile:
    row_groups = [group.facts for group in written.row_groups]
    metrics = merged_metrics(entries, row_groups, [column.leaf for column in target.schema.columns], target.modes)
    if target.schema.has_lineage:
        lineage = [group.lineage for group in written.row_groups]
        metrics = with_lineage_bounds(metrics, [facts for facts in lineage if facts is not None], target.modes)
    return DataFile(
        content=FileContent.DATA,
        file_path=written.path,
        file_format="PARQUET",
        partition=entries[0].partition,
        record_count=sum(group.rows for group in row_groups),
        file_size_in_bytes=written.size,
        split_offsets=written.split_offsets,
        **metrics,
    )
