"""Merges data files into one by copying row groups, proves the new file, and describes it for a manifest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import BoundedSemaphore, Lock

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import OutputUnproved, RowsNotKept, StorageError
from icekeeper.metadata.types import encode
from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copy_proof import disproof, store_disproof
from icekeeper.row_group_copy.copyable import CopyableFile, CopyTarget, FloatFacts, Layout, judge_file, lay_out
from icekeeper.row_group_copy.entry_metrics import (
    check_metrics,
    completed_entry,
    lacks_bounds,
    merged_metrics,
    part_entry,
    with_lineage_bounds,
)
from icekeeper.row_group_copy.footer import ParquetSchema, read_footer
from icekeeper.row_group_copy.footer_decisions import has_right_statistics
from icekeeper.row_group_copy.footer_structs import CannotCopy, NotCopyable, RowGroup
from icekeeper.row_group_copy.write_copy import WrittenCopy, copy_in_store, write_copy
from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.file_rows import BATCH_ROWS, ParquetRows, open_parquet
from icekeeper.rows.read_task import InheritedLineage
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

# Threads read footers from stores in parallel but decode them one at a time: a decoded footer takes twenty times its
# bytes in memory, and Python decodes two footers in parallel no faster.
_ONE_AT_A_TIME = Lock()


def copyable_file(
    entry: DataFile, target: CopyTarget, storage: Storage, sequence_number: int | None = None
) -> CopyableFile | NotCopyable:
    """Whether a data file can be copied, by its manifest entry and its footer.

    ``sequence_number`` is the file's data sequence number; targets with lineage columns need it.

    Raises:
        ValueError: the target has lineage columns, and ``sequence_number`` is ``None``.
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
    without_nan = [i for i, count in (entry.nan_value_counts or {}).items() if count == 0]
    try:
        footer = read_footer(entry.file_path, storage, entry.file_size_in_bytes)
        with _ONE_AT_A_TIME:
            file = judge_file(footer, target, entry.record_count, lineage, without_nan)
        return _with_facts(entry, file, target, storage)
    except CannotCopy as refused:
        return NotCopyable(entry.file_path, str(refused))


def _with_facts(entry: DataFile, file: CopyableFile, target: CopyTarget, storage: Storage) -> CopyableFile:
    """The file with the metrics that the output's entry needs and that its own entry and footer lack."""
    leaves, modes = target.schema.data_leaves, target.modes
    completed = completed_entry(entry, file, leaves, modes)
    counted = completed.nan_value_counts or {}
    uncounted = {
        leaf.field_id
        for leaf in leaves
        if leaf.is_float and not leaf.repeated and modes[leaf.field_id] != "none" and leaf.field_id not in counted
    }
    if uncounted:
        unbound = {leaf.field_id for leaf in leaves if lacks_bounds(completed, leaf, modes[leaf.field_id])}
        with _ONE_AT_A_TIME:
            if has_right_statistics(file.created_by):
                file = _with_footer_facts(file, leaves, uncounted - unbound)
        file = _with_decoded_facts(file, leaves, uncounted, storage)
    check_metrics(_with_found_facts(completed, file, leaves), leaves, modes)
    return file


def copyable_part(
    entry: DataFile, file: CopyableFile, row_groups: Collection[int], target: CopyTarget
) -> CopyableFile | NotCopyable:
    """The file restricted to these row groups; refused if the new entry would have fewer metrics than after decoding.

    Raises:
        ValueError: a row group is not among the file's row groups to copy.
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
    """Copy the row groups of the inputs, in order, into a new file at ``path``, and return its manifest entry.

    Each input is a whole file or a part of a file, with the manifest entry of the whole file.  If the inputs have no
    rows, no file is written and ``None`` is returned.  The partition is that of the first input.  If a
    :class:`NotCopyable` is returned, no file remains at ``path``.  ``note_unread`` is called with the number of bytes
    that the store copied itself, whose page checksums are kept but not verified.

    Raises:
        FileUnreadable: a page of an input has a wrong checksum; no file remains.
        StorageError: the store failed; no file remains.
        RowsNotKept: the file does not contain the copied rows.
        OutputUnproved: the store failed before the proof ended; the caller must handle the file
            (rule: prove-before-commit).
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
    written = _proven(layout, path, schema, storage, note_unread)
    return written if isinstance(written, NotCopyable) else _entry(entries, written, target)


def _proven(
    layout: Layout, path: str, schema: ParquetSchema, storage: Storage, note_unread: Callable[[int], None]
) -> WrittenCopy | NotCopyable:
    """The new file, assembled by its store if possible, otherwise streamed; it is proved in both cases."""
    written = copy_in_store(layout, path, schema, storage) or write_copy(layout, path, schema, storage)
    if isinstance(written, NotCopyable):
        return written
    assembled = written.assembled
    try:
        if assembled is None:
            problem = disproof(written, schema, storage)
        else:
            problem = store_disproof(written, assembled, schema, storage)
    except StorageError as error:
        raise OutputUnproved(error) from error
    if problem is not None:
        raise RowsNotKept(problem, [path])
    if assembled is not None:
        note_unread(sum(placement.file.copied_bytes for placement in layout.placements))
    return written


def _part_entry(entry: DataFile, file: CopyableFile, target: CopyTarget) -> DataFile:
    """The entry for the copied row groups of a file."""
    leaves = target.schema.data_leaves
    if file.row_count == entry.record_count:
        return _with_found_facts(completed_entry(entry, file, leaves, target.modes), file, leaves)
    part = _with_found_facts(part_entry(entry, file, leaves, target.modes), file, leaves)
    try:
        check_metrics(part, leaves, target.modes)
    except CannotCopy as refused:
        raise CannotCopy(f"{refused} for a part of its row groups") from refused
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


# NaN counts of float columns whose manifest entries have none, such as PyIceberg's
# (rule: footer-bounds-by-known-writers).  A count in the footer is used, such as DuckDB's from 2.0 on;
# otherwise that column is decoded.  Decoding also finds missing bounds: DuckDB writes
# none for a column with NaN.

# Decoding the columns of one row group may take 32 MiB.
_FILES_AT_ONCE = BoundedSemaphore(4)


def _with_footer_facts(file: CopyableFile, leaves: Sequence[LeafColumn], wanted: Collection[int]) -> CopyableFile:
    """The file with the footer's NaN counts of these float columns (by id) in each row group (pure)."""
    footer = file.footer.metadata()
    columns = [(number, leaf.field_id) for number, leaf in enumerate(leaves) if leaf.field_id in wanted]
    groups = []
    for group in file.groups:
        counted = {i: _nans_in_footer(footer.row_groups[group.number], number) for number, i in columns}
        groups.append(replace(group, floats={i: facts for i, facts in counted.items() if facts is not None}))
    return replace(file, groups=tuple(groups))


def _with_decoded_facts(
    file: CopyableFile, leaves: Sequence[LeafColumn], wanted: Collection[int], storage: Storage
) -> CopyableFile:
    """The file with the facts of these float columns (by id) in each row group; unknown facts are decoded."""
    unknown = {
        group.number: [leaf for leaf in leaves if leaf.field_id in {*wanted} - {*group.floats}] for group in file.groups
    }
    unknown = {number: columns for number, columns in unknown.items() if columns}
    if not unknown:
        return file
    found = dict(_decoded(file, unknown, storage))
    groups = (replace(group, floats={**group.floats, **found.get(group.number, {})}) for group in file.groups)
    return replace(file, groups=tuple(groups))


def _with_found_facts(entry: DataFile, file: CopyableFile, leaves: Sequence[LeafColumn]) -> DataFile:
    """The entry with the NaN counts and bounds of float columns that were found for ``file`` (pure)."""
    nans = dict(entry.nan_value_counts or {})
    lower, upper = dict(entry.lower_bounds or {}), dict(entry.upper_bounds or {})
    for leaf in leaves:
        i = leaf.field_id
        found = [group.floats[i] for group in file.groups if i in group.floats]
        if not found:
            continue
        nans[i] = sum(facts.nans for facts in found)
        bounds = [facts.bounds for facts in found if facts.bounds is not None]
        if bounds and i not in lower and all(facts.is_decoded for facts in found):
            # A zero may have either sign.
            least, most = min(low for low, _ in bounds) or -0.0, max(high for _, high in bounds) or 0.0
            lower[i], upper[i] = encode(leaf.iceberg_type, least), encode(leaf.iceberg_type, most)
    return replace(entry, nan_value_counts=nans, lower_bounds=lower, upper_bounds=upper)


def _nans_in_footer(group: RowGroup, column: int) -> FloatFacts | None:
    """The NaN count of a column chunk by the footer; ``None``: it is not certain."""
    meta = group.columns[column].meta_data
    stats = meta.statistics
    if stats is None:
        return None
    if stats.null_count == meta.num_values:
        return FloatFacts(0)
    most = meta.num_values - (stats.null_count or 0)
    return None if stats.nan_count is None or not 0 <= stats.nan_count <= most else FloatFacts(stats.nan_count)


def _decoded(
    file: CopyableFile, columns: Mapping[int, Sequence[LeafColumn]], storage: Storage
) -> Iterator[tuple[int, dict[int, FloatFacts]]]:
    """Row group number → field id → decoded facts, for some columns."""
    path = file.path
    try:
        with _FILES_AT_ONCE, storage.open_input(path, file.footer.file_size) as stream:
            opened = open_parquet(stream, not is_local(path), None, BATCH_ROWS)
            for group, leaves in columns.items():
                yield group, _facts(opened, group, leaves)
    except (pa.ArrowException, OSError, ValueError) as error:
        if failed_by_store(error):
            with storage.translated(path):
                raise
        raise CannotCopy(f"cannot be read: {str(error).splitlines()[0]}") from error


def _facts(opened: ParquetRows, group: int, leaves: Sequence[LeafColumn]) -> dict[int, FloatFacts]:
    found = {leaf.field_id: FloatFacts(0, is_decoded=True) for leaf in leaves}
    batches = opened.file.iter_batches(
        batch_size=opened.batch_rows,
        row_groups=[group],
        columns=[leaf.parquet_path for leaf in leaves],
        use_threads=False,
    )
    for batch in batches:
        columns = list(_without_structs(batch.columns))
        if len(columns) != len(leaves):  # pyarrow may find two columns by a path
            raise CannotCopy("has columns whose paths are the same for Arrow")
        for leaf, values in zip(leaves, columns, strict=True):
            found[leaf.field_id] = _with_values(found[leaf.field_id], values.drop_null())
    return found


def _without_structs(columns: Sequence[pa.Array]) -> Iterator[pa.Array]:
    """The values of leaf columns; a value in a null struct is null."""
    for column in columns:
        if pa.types.is_struct(column.type):
            yield from _without_structs(column.flatten())
        else:
            yield column


def _with_values(known: FloatFacts, values: pa.Array) -> FloatFacts:
    numbers = values.filter(pc.invert(pc.is_nan(values)))
    nans = known.nans + len(values) - len(numbers)
    if not len(numbers):
        return replace(known, nans=nans)
    ends = pc.min_max(numbers).as_py()
    least, most = known.bounds or (ends["min"], ends["max"])
    return FloatFacts(nans, (min(least, ends["min"]), max(most, ends["max"])), is_decoded=True)
