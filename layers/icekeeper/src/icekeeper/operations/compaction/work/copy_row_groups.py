"""Rewrite a group by copying row groups if deletes and settings allow it.

All other row groups are decoded and written beside the copied row groups.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import RowsNotKept
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.types import decimal_unscaled
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.terms.rewrite_task import Copying, RewriteResult, RewriteTask, RowRun, Section
from icekeeper.operations.compaction.terms.write_properties import (
    codec_name,
    metrics_modes,
    row_group_bytes,
    settings_lacking,
    wanted_settings,
)
from icekeeper.operations.compaction.work.copied_outputs import CopyableInput, plan_outputs
from icekeeper.operations.compaction.work.proof import write_proven
from icekeeper.operations.compaction.work.write_file import write_data_file
from icekeeper.policy.values import RewriteReason
from icekeeper.row_group_copy.copyable import CopyableFile, CopyTarget, copy_target
from icekeeper.row_group_copy.footer_decisions import has_right_statistics
from icekeeper.row_group_copy.footer_structs import CannotCopy, NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, copyable_part, merge_files
from icekeeper.rows.apply_deletes import DeletedRows
from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.equality_deletes import ColumnRange
from icekeeper.rows.file_rows import reading
from icekeeper.rows.read_task import InputFile
from icekeeper.storage.storage import Storage

_FOOTERS_AT_ONCE = 16

_Output: TypeAlias = tuple[list[InputFile], list[tuple[DataFile, CopyableFile]]]
"""The inputs of an output that are decoded, and those that are copied, with their manifest entries."""


def write_copied(
    task: RewriteTask, copying: Copying, deletes: DeletedRows | None, storage: Storage
) -> RewriteResult | None:
    """Write and prove the outputs of a task; ``None``: all rows must be decoded, and no file was left behind.

    ``deletes`` is the result of :func:`.deleted_rows_of`.

    Raises:
        StorageError: an input cannot be read or an output cannot be written; no output of this attempt remains.
        RowsNotKept: an output does not hold its rows; it is kept for inspection.
    """
    codec = codec_name(task.table_properties)
    modes = metrics_modes(task.schema, task.table_properties)
    target = copy_target(task.schema, codec, copying.min_row_group_bytes, modes, copying.full_row_group_memory)
    judged = _copyable_files(task, copying, target, storage)
    if copying.pieces:
        outputs: list[_Output] = [([], [(copying.entries[0], part)]) for part in _pieces(judged, copying, target)]
    else:
        copyable = without_deleted_rows(judged, task, target, deletes, storage)
        row_group = row_group_bytes(task.table_properties)
        planned = plan_outputs(
            copying.sizes, task.output_count, copyable, copying, target.schema.nullability, row_group
        )
        outputs = [
            (
                [task.inputs[i] for i in decoded] + [part for i in copied for part in copyable[i].decoded],
                [(copying.entries[i], copyable[i].file) for i in copied],
            )
            for decoded, copied in planned
        ]
    if not outputs:
        return None
    result = RewriteResult(group_id=task.group_id)
    paths = [task.outputs.path(number) for number in range(len(outputs))]
    try:
        numbered = zip(outputs, paths, strict=True)
        if all(_write_output(*output, path, task, target, deletes, storage, result) for output, path in numbered):
            return result
    except RowsNotKept:
        raise
    except BaseException:
        storage.delete(paths)
        raise
    storage.delete(paths)
    return None


def _pieces(judged: Mapping[int, CopyableFile], copying: Copying, target: CopyTarget) -> list[CopyableFile]:
    """The pieces of a large file that is cut; empty if any of its row groups cannot be copied."""
    file = judged.get(0)
    if file is None or [group.number for group in file.groups] != list(range(sum(copying.pieces))):
        return []
    bounds = [0, *accumulate(copying.pieces)]
    parts: list[CopyableFile] = []
    for ends in pairwise(bounds):
        part = copyable_part(copying.entries[0], file, range(*ends), target)
        if isinstance(part, NotCopyable):
            return []
        parts.append(part)
    return parts


def _copyable_files(
    task: RewriteTask, copying: Copying, target: CopyTarget, storage: Storage
) -> dict[int, CopyableFile]:
    """Number of an input → the file, for inputs that can be copied according to their footers."""
    wanted = wanted_settings(task.schema, task.table_properties)
    _, bloom_columns = wanted

    def judge(number: int) -> CopyableFile | None:
        with reading(task.inputs[number].path, storage):
            found = copyable_file(copying.entries[number], target, storage, task.inputs[number].sequence_number)
        if isinstance(found, NotCopyable):
            return None
        must_agree = task.inputs[number].must_agree
        if not bloom_columns and not must_agree:
            return found
        try:
            footer = found.footer.seen_by_arrow()
        except CannotCopy:
            return None
        if must_agree and not _agrees(task.inputs[number], footer, target.schema.data_leaves):
            return None  # the rows must be read to find out
        return None if RewriteReason.BLOOM in settings_lacking(footer, wanted) else found

    asked = sorted(copying.entries)
    with WorkThreads(_FOOTERS_AT_ONCE, thread_name_prefix="footer") as pool:
        answers = pool.map(judge, asked)
        return {i: found for i, found in zip(asked, answers, strict=True) if found is not None}


def _agrees(source: InputFile, footer: pq.FileMetaData, leaves: Sequence[LeafColumn]) -> bool:
    """Whether statistics prove that a file's columns have the values of its identity partition
    (rule: leave-identity-only-with-equal-values)."""
    groups = [column_ranges(footer.row_group(number), leaves) for number in range(footer.num_row_groups)]
    for leaf in (leaf for leaf in leaves if leaf.field_id in source.identity_values):
        value: Any = source.identity_values[leaf.field_id]
        if value is not None and leaf.iceberg_type.startswith("decimal"):
            value = decimal_unscaled(value)
        value = value.encode() if isinstance(value, str) else value
        wanted = ColumnRange(may_have_values=False) if value is None else ColumnRange(value, value, may_be_null=False)
        # 0.0 and -0.0 are equal in statistics.
        if leaf.is_float or any(ranges[leaf.field_id] != wanted for ranges in groups):
            return False
    return True


def _write_output(
    decoded: Sequence[InputFile],
    copied: Sequence[tuple[DataFile, CopyableFile]],
    path: str,
    task: RewriteTask,
    target: CopyTarget,
    deletes: DeletedRows | None,
    storage: Storage,
    result: RewriteResult,
) -> bool:
    """Write an output and add it to ``result``; ``False``: an input turned out not to be copyable."""
    task = replace(task, inputs=tuple(decoded))
    runs = [RowRun(source.path, source.first_row, source.record_count) for source in decoded]
    runs += [
        RowRun(entry.file_path, group.first_row, group.row_count) for entry, file in copied for group in file.groups
    ]
    if not copied:
        files = _decoded(task, path, deletes, storage, result)
        result.written += files
        result.sections += (Section(len(files), tuple(runs)),)
        return True
    with tempfile.TemporaryDirectory(prefix="icekeeper-decoded-") as folder:
        storage = storage.with_scratch(folder)
        parts: list[tuple[DataFile, CopyableFile]] = []
        try:
            beside = _decoded(task, str(Path(folder) / "decoded.parquet"), deletes, storage, result)
        except RowsNotKept as error:
            raise RowsNotKept(error.problem, ()) from error
        for entry in beside:
            # Its row groups may be small, because these are all its rows.
            judged = copyable_file(entry, replace(target, min_row_group_bytes=0), storage)
            if isinstance(judged, NotCopyable):
                return False
            parts.append((entry, judged))
        unread: list[int] = []
        written = merge_files([*parts, *copied], path, target, storage, unread.append)
    if isinstance(written, NotCopyable):
        return False
    if written is not None:
        result.written += (replace(written, partition=task.partition),)
    result.sections += (Section(int(written is not None), tuple(runs)),)
    result.rows_read += sum(file.row_count for _, file in copied)
    result.bytes_copied += sum(file.copied_bytes for _, file in copied)
    result.bytes_unread += sum(unread)
    return True


def _decoded(
    task: RewriteTask, path: str, deletes: DeletedRows | None, storage: Storage, result: RewriteResult
) -> tuple[DataFile, ...]:
    """Write the live rows of a task to a file; no file if there are no rows."""

    def write(rows: Iterator[pa.RecordBatch]) -> tuple[DataFile, ...]:
        file = write_data_file(path, rows, task, storage)
        return () if file is None else (file,)

    return (write_proven(task, storage, result, write, deletes) or ()) if task.inputs else ()


# Only row groups with deleted rows are decoded (rule: copy-under-keys-only-if-none-match).  Position deletes and
# deletion vectors show their rows.  Keys of equality deletes are compared with the column statistics of a row group.
# If a row group may hold very few keys, its key columns are read to be certain.

# If keys are spread evenly and a row group holds two keys on average, one row group in seven (e ** -2) holds no key.
# The key columns are less than a seventh of a row group, so reading them is worth the cost.
_KEYS_A_ROW_GROUP = 2


def without_deleted_rows(
    found: Mapping[int, CopyableFile],
    task: RewriteTask,
    target: CopyTarget,
    deletes: DeletedRows | None,
    storage: Storage,
) -> dict[int, CopyableInput]:
    """Number of an input → its row groups that can be copied; inputs without such row groups are left out.

    ``found`` are the inputs that could be copied if they had no deletes; ``deletes`` is the result of
    :func:`.deleted_rows_of`.

    Raises:
        StorageError: key columns cannot be read.
    """
    live = {i: CopyableInput(file) for i, file in found.items() if not task.inputs[i].deletes}
    if deletes is None or task.copying is None:
        return live
    under_deletes = {i: file for i, file in found.items() if i not in live}
    groups = [(i, *part) for i, file in under_deletes.items() for part in _row_groups(i, file, task, target, deletes)]
    looked_at = worth_a_look([keys or 0 for _, _, keys in groups])
    decoded: dict[int, list[InputFile]] = {i: [] for i in under_deletes}
    for place, (i, part, keys) in enumerate(groups):
        if keys is None or (keys and (place not in looked_at or deletes.match_rows_of(part, storage))):
            decoded[i].append(part)
    for i, file in under_deletes.items():
        kept = {group.number for group in file.groups} - {part.row_group for part in decoded[i]}
        if kept:
            copied = copyable_part(task.copying.entries[i], file, kept, target) if decoded[i] else file
            if not isinstance(copied, NotCopyable):
                live[i] = CopyableInput(copied, tuple(decoded[i]))
    return live


def worth_a_look(keys: Sequence[int]) -> frozenset[int]:
    """The positions of row groups whose key columns are read; ``keys`` are the most keys that each may hold (pure)."""
    uncertain = sum(count > 0 for count in keys)
    return frozenset(place for place, count in enumerate(keys) if 0 < count <= _KEYS_A_ROW_GROUP * uncertain)


def _row_groups(
    number: int, file: CopyableFile, task: RewriteTask, target: CopyTarget, deletes: DeletedRows
) -> Iterator[tuple[InputFile, int | None]]:
    """Each row group as an input of its own, and how many deleted keys its rows may have.

    ``None`` instead of a number: a position in the row group is deleted.
    """
    source = task.inputs[number]
    by_keys = any(task.deletes[i].content is FileContent.EQUALITY_DELETES for i in source.deletes)
    try:
        # (rule: footer-bounds-by-known-writers): a key outside of wrong bounds would leave its rows undeleted.
        footer = file.footer.seen_by_arrow() if by_keys and has_right_statistics(file.created_by) else None
    except CannotCopy:
        footer = None
    for group in file.groups:
        keys: int | None = 0
        if deletes.are_deleted(source.path, group.positions):
            keys = None
        elif by_keys:
            ranges = {} if footer is None else column_ranges(footer.row_group(group.number), target.schema.data_leaves)
            keys = deletes.keys_within(source, ranges)
        yield replace(source, record_count=group.row_count, row_group=group.number, first_row=group.first_row), keys


def column_ranges(row_group: pq.RowGroupMetaData, leaves: Sequence[LeafColumn]) -> dict[int, ColumnRange]:
    """Field id → the range of the column by the row group's statistics; ``leaves`` are its first columns (pure).

    Arrow leaves out bounds of writers with known errors, and bounds in another order than the column's.
    """
    return {
        leaf.field_id: column_range(leaf, row_group.column(number).statistics) for number, leaf in enumerate(leaves)
    }


def column_range(leaf: LeafColumn, statistics: Any) -> ColumnRange:
    """The range of a column by the statistics of a row group; ``None``: there are none."""
    if statistics is None:
        return ColumnRange()
    may_be_null = not statistics.has_null_count or statistics.null_count > 0
    if not statistics.has_min_max:
        # Bounds are also missing if values are long, or NaN.
        may_have_values = not statistics.has_null_count or statistics.num_values > 0
        return ColumnRange(may_be_null=may_be_null, may_have_values=may_have_values)
    least, most = statistics.min_raw, statistics.max_raw
    if leaf.iceberg_type.startswith("decimal"):
        least, most = decimal_unscaled(least), decimal_unscaled(most)
    # NaN, or a least value above the greatest, shows that the writer compared in another order.
    if not leaf.has_bounds or not least <= most:
        return ColumnRange(may_be_null=may_be_null)
    return ColumnRange(least, most, may_be_null)
