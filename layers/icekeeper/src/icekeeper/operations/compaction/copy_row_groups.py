"""Rewrites a group by copying row groups where deletes and settings allow it (rule: copy-only-unchanged-row-groups).

All other row groups are decoded and written beside the copied ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import RowsNotKept
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.copied_outputs import CopyableInput, PlannedOutput, plan_outputs
from icekeeper.operations.compaction.proof import write_proven
from icekeeper.operations.compaction.rewrite_task import Copying, RewriteTask
from icekeeper.operations.compaction.write_file import write_data_file
from icekeeper.operations.compaction.write_properties import codec_name, metrics_modes, row_group_bytes, wanted_settings
from icekeeper.policy.values import RewriteReason
from icekeeper.row_group_copy.copyable import CopyableFile, CopyableRowGroup, CopyTarget, copy_target
from icekeeper.row_group_copy.footer_structs import CannotCopy, NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, copyable_part, merge_files
from icekeeper.rows.apply_deletes import DeletedRows
from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.equality_deletes import ColumnRange
from icekeeper.rows.file_rows import reading
from icekeeper.rows.read import Tally
from icekeeper.rows.read_task import InputFile
from icekeeper.storage.storage import Storage

_FOOTERS_AT_ONCE = 16


@dataclass(slots=True)
class CopiedGroup:
    """The files that were written for a group."""

    files: list[DataFile] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    bytes_copied: int = 0
    bytes_unread: int = 0
    """Those of these bytes that the store itself copied."""


def write_copied(
    task: RewriteTask, copying: Copying, deletes: DeletedRows | None, storage: Storage
) -> CopiedGroup | None:
    """Write and prove the outputs of a task; ``None``: all rows must be decoded, and no file is left.

    ``deletes`` is the result of :func:`.deleted_rows_of`.

    Raises:
        StorageError: an input cannot be read or an output cannot be written; no output of this attempt remains.
        RowsNotKept: an output does not hold its rows; it is kept for inspection.
    """
    codec = codec_name(task.table_properties)
    modes = metrics_modes(task.schema, task.table_properties)
    target = replace(
        copy_target(task.schema, codec, copying.min_row_group_bytes, modes, copying.full_row_group_memory),
        verify_checksums=task.verify_checksums,
    )
    judged = _judged(task, copying, target, storage)
    if copying.pieces:
        parts = _pieces(judged.get(0), copying, target)
        cuts = [_Writer(task, copying, target, {0: CopyableInput(part)}, None, storage) for part in parts]
        return _write_all([(writer, PlannedOutput((), (0,))) for writer in cuts], task, storage) if cuts else None
    copyable = without_deleted_rows(judged, task, target, deletes, storage)
    outputs = plan_outputs(
        copying.sizes,
        task.output_count,
        copyable,
        copying,
        target.schema.nullability,
        row_group_bytes(task.table_properties),
    )
    if outputs is None:
        return None
    writer = _Writer(task, copying, target, copyable, deletes, storage)
    return _write_all([(writer, output) for output in outputs], task, storage)


def _write_all(
    outputs: Sequence[tuple[_Writer, PlannedOutput]], task: RewriteTask, storage: Storage
) -> CopiedGroup | None:
    done = CopiedGroup()
    paths = [task.outputs.path(number) for number in range(len(outputs))]
    try:
        is_whole = all(writer.write(one, path, done) for (writer, one), path in zip(outputs, paths, strict=True))
    except RowsNotKept:
        raise
    except BaseException:
        storage.delete(paths)
        raise
    if not is_whole:
        storage.delete(paths)
        return None
    return done


def _pieces(file: CopyableFile | None, copying: Copying, target: CopyTarget) -> list[CopyableFile]:
    """The pieces of a large file that is cut; empty if one of its row groups cannot be copied."""
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


def _judged(task: RewriteTask, copying: Copying, target: CopyTarget, storage: Storage) -> dict[int, CopyableFile]:
    """Number of an input → the file, for inputs that can be copied according to their footers."""
    wanted = wanted_settings(task.schema, task.table_properties)

    def judge(number: int) -> CopyableFile | None:
        with reading(task.inputs[number].path, storage):
            found = copyable_file(copying.entries[number], target, storage, task.inputs[number].sequence_number)
        if isinstance(found, NotCopyable):
            return None
        if not wanted.bloom_columns:
            return found
        try:
            lacks_filters = RewriteReason.BLOOM in wanted.lacking(found.footer.seen_by_arrow())
        except CannotCopy:
            return None
        return None if lacks_filters else found

    asked = sorted(copying.entries)
    with WorkThreads(_FOOTERS_AT_ONCE, thread_name_prefix="footer") as pool:
        answers = pool.map(judge, asked)
        return {i: found for i, found in zip(asked, answers, strict=True) if found is not None}


@dataclass(frozen=True, slots=True)
class _Writer:
    task: RewriteTask
    copying: Copying
    target: CopyTarget
    copyable: dict[int, CopyableInput]
    deletes: DeletedRows | None
    storage: Storage

    def write(self, output: PlannedOutput, path: str, done: CopiedGroup) -> bool:
        """Write one output and add it to ``done``; ``False``: an input cannot be copied after all."""
        copied = [self.copyable[i] for i in output.copied]
        decoded = [self.task.inputs[i] for i in output.decoded] + [part for one in copied for part in one.decoded]
        if not copied:
            done.files += self._decode(decoded, path, done.tally)
            return True
        with tempfile.TemporaryDirectory(prefix="icekeeper-decoded-") as folder:
            parts = []
            beside = replace(self, storage=self.storage.with_scratch(folder))
            for entry in beside._decode_beside(decoded, Path(folder), done.tally):
                # Its row groups may be small: it has no more rows.
                judged = copyable_file(entry, replace(self.target, min_row_group_bytes=0), beside.storage)
                if isinstance(judged, NotCopyable):
                    return False
                parts.append((entry, judged))
            parts += [(self.copying.entries[i], self.copyable[i].file) for i in output.copied]
            unread: list[int] = []
            written = merge_files(parts, path, self.target, beside.storage, unread.append)
        if isinstance(written, NotCopyable):
            return False
        if written is not None:
            done.files.append(replace(written, partition=self.task.partition))
        done.tally.read += sum(one.file.row_count for one in copied)
        done.bytes_copied += sum(one.file.copied_bytes for one in copied)
        done.bytes_unread += sum(unread)
        return True

    def _decode_beside(self, inputs: Sequence[InputFile], folder: Path, tally: Tally) -> list[DataFile]:
        """As :meth:`_decode`, to a temporary file in ``folder``."""
        try:
            return self._decode(inputs, str(folder / "decoded.parquet"), tally)
        except RowsNotKept as error:
            raise RowsNotKept(error.problem, ()) from error

    def _decode(self, inputs: Sequence[InputFile], path: str, tally: Tally) -> list[DataFile]:
        """Write the live rows of ``inputs`` to a file; no file if there are none."""
        if not inputs:
            return []
        part = replace(self.task, inputs=tuple(inputs))

        def write(rows: Iterator[pa.RecordBatch]) -> tuple[DataFile, ...]:
            file = write_data_file(path, rows, part, self.storage)
            return () if file is None else (file,)

        return list(write_proven(part, self.storage, tally, write, self.deletes) or ())


# Only row groups with deleted rows are decoded (rule: copy-under-keys-only-if-none-match).  Position deletes and
# deletion vectors show their rows.  Keys of equality deletes are compared with the column statistics of a row group.
# If a row group may hold very few keys, its key columns are read to be certain.

# If keys are spread evenly and a row group holds two on average, one of seven (e ** -2) holds none.  The key columns
# are a smaller share of a row group than that, so reading them is worth it.
_KEYS_A_ROW_GROUP = 2


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A row group of a file with deletes."""

    number: int
    """The number of its file among the inputs."""
    group: CopyableRowGroup
    input: InputFile
    """The row group as an input of its own."""
    is_deleted_at: bool
    """Whether a position in it is deleted."""
    keys: int
    """The number of deleted keys that its rows may have; 0 also if a position is deleted."""


def without_deleted_rows(
    found: Mapping[int, CopyableFile],
    task: RewriteTask,
    target: CopyTarget,
    deletes: DeletedRows | None,
    storage: Storage,
) -> dict[int, CopyableInput]:
    """Number of an input → its row groups that can be copied; inputs without any are left out.

    ``found`` are the inputs that can be copied but for their deletes; ``deletes`` is the result of
    :func:`.deleted_rows_of`.

    Raises:
        StorageError: key columns cannot be read.
    """
    live = {i: CopyableInput(file) for i, file in found.items() if not task.inputs[i].deletes}
    if deletes is None or task.copying is None:
        return live
    under_deletes = {i: file for i, file in found.items() if i not in live}
    groups = [group for i, file in under_deletes.items() for group in _row_groups(i, file, task, target, deletes)]
    looked_at = worth_a_look([group.keys for group in groups])
    touched: dict[int, list[_RowGroup]] = {}
    for place, group in enumerate(groups):
        if group.is_deleted_at or (
            group.keys and (place not in looked_at or deletes.match_rows_of(group.input, storage))
        ):
            touched.setdefault(group.number, []).append(group)
    for i, file in under_deletes.items():
        part = _live_part(i, file, touched.get(i, ()), target, task.copying)
        if part is not None:
            live[i] = part
    return live


def worth_a_look(keys: Sequence[int]) -> frozenset[int]:
    """The places of row groups whose key columns are read; ``keys`` are the most keys that each may hold (pure)."""
    uncertain = sum(count > 0 for count in keys)
    return frozenset(place for place, count in enumerate(keys) if 0 < count <= _KEYS_A_ROW_GROUP * uncertain)


def _row_groups(
    number: int, file: CopyableFile, task: RewriteTask, target: CopyTarget, deletes: DeletedRows
) -> Iterator[_RowGroup]:
    source = task.inputs[number]
    by_keys = any(task.deletes[i].content is FileContent.EQUALITY_DELETES for i in source.deletes)
    try:
        footer = file.footer.seen_by_arrow() if by_keys else None
    except CannotCopy:
        footer = None
    for group in file.groups:
        is_deleted_at = deletes.are_deleted(source.path, group.positions)
        ranges = {} if footer is None else column_ranges(footer.row_group(group.number), target.schema.data_leaves)
        yield _RowGroup(
            number,
            group,
            replace(source, record_count=group.row_count, row_group=group.number, first_row=group.first_row),
            is_deleted_at,
            deletes.keys_within(source, ranges) if by_keys and not is_deleted_at else 0,
        )


def _live_part(
    number: int, file: CopyableFile, touched: Sequence[_RowGroup], target: CopyTarget, copying: Copying
) -> CopyableInput | None:
    """The copied and the decoded row groups of a file; ``None``: all are decoded."""
    kept = {group.number for group in file.groups} - {one.group.number for one in touched}
    if not kept:
        return None
    part = copyable_part(copying.entries[number], file, kept, target) if touched else file
    return None if isinstance(part, NotCopyable) else CopyableInput(part, tuple(one.input for one in touched))


def column_ranges(row_group: pq.RowGroupMetaData, leaves: Sequence[LeafColumn]) -> dict[int, ColumnRange]:
    """Field id → the range of the column by the row group's statistics; ``leaves`` are its first columns (pure).

    Arrow leaves out bounds of writers with known errors, and bounds in another order than the column's.
    """
    return {leaf.field_id: _range(leaf, row_group.column(number).statistics) for number, leaf in enumerate(leaves)}


def _range(leaf: LeafColumn, statistics: Any) -> ColumnRange:
    if statistics is None:
        return ColumnRange()
    may_be_null = not statistics.has_null_count or statistics.null_count > 0
    if not statistics.has_min_max:
        # Bounds are also missing if values are long, or NaN.
        may_have_values = not statistics.has_null_count or statistics.num_values > 0
        return ColumnRange(may_be_null=may_be_null, may_have_values=may_have_values)
    least, most = _raw(leaf, statistics.min_raw), _raw(leaf, statistics.max_raw)
    # NaN, or a least value above the greatest, shows that the writer compared in another order.
    if not leaf.has_bounds or not least <= most:
        return ColumnRange(may_be_null=may_be_null)
    return ColumnRange(least, most, may_be_null)


def _raw(leaf: LeafColumn, bound: Any) -> Any:
    return decimal_unscaled(bound) if leaf.iceberg_type.startswith("decimal") else bound
