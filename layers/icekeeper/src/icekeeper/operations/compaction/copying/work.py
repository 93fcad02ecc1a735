"""Rewrites a group on a worker: what can be copied is copied, the rest is decoded into row groups beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa

from icekeeper.errors import RowsNotKept
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import DataFile
from icekeeper.operations.compaction.copying.live_row_groups import without_deleted_rows
from icekeeper.operations.compaction.copying.outputs import CopyableInput, PlannedOutput, plan_outputs
from icekeeper.operations.compaction.proven_write import write_proven
from icekeeper.operations.compaction.task import Copying, RewriteTask
from icekeeper.operations.compaction.writing.metrics_modes import metrics_modes
from icekeeper.operations.compaction.writing.parquet_options import codec_name, row_group_bytes
from icekeeper.operations.compaction.writing.write import write_data_file
from icekeeper.operations.compaction.written_settings import wanted_settings
from icekeeper.policy.choices import RewriteReason
from icekeeper.row_group_copy.copyable import CopyTarget, copy_target
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.merge import copyable_file, copyable_part, merge_files
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.rows.apply_deletes import DeletedRows
from icekeeper.rows.file_rows import reading
from icekeeper.rows.read import Tally
from icekeeper.rows.read_task import InputFile
from icekeeper.storage.storage import Storage

__all__ = ["CopiedGroup", "write_copied"]

_FOOTERS_AT_ONCE = 16


@dataclass(slots=True)
class CopiedGroup:
    """What was written for a group."""

    files: list[DataFile] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    bytes_copied: int = 0
    bytes_unread: int = 0
    """Of these, bytes that the store copied itself."""


def write_copied(
    task: RewriteTask, copying: Copying, deletes: DeletedRows | None, storage: Storage
) -> CopiedGroup | None:
    """Write the outputs of a task, each proven; ``None``, and no file, where all rows must be decoded.

    ``deletes`` is what :func:`.deleted_rows_of` found.

    Raises:
        StorageError: an input cannot be read or an output not written; no output of this attempt is left.
        RowsNotKept: an output does not hold the rows that went to it; it is left for inspection.
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
    """The pieces into which a large file is cut; none where not every one of its row groups can be copied."""
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
    """The inputs that can be copied as far as footers tell, by number."""
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
        """Write one output and note it in ``done``; ``False``: an input cannot be copied after all."""
        copied = [self.copyable[i] for i in output.copied]
        decoded = [self.task.inputs[i] for i in output.decoded] + [part for one in copied for part in one.decoded]
        if not copied:
            done.files += self._decode(decoded, path, done.tally)
            return True
        with tempfile.TemporaryDirectory(prefix="icekeeper-decoded-") as folder:
            parts = []
            beside = replace(self, storage=self.storage.with_scratch(folder))
            for entry in beside._decode_beside(decoded, Path(folder), done.tally):
                # Its row groups are as large as its rows allow.
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
        """As :meth:`_decode`, to a file that is copied from and then gone."""
        try:
            return self._decode(inputs, str(folder / "decoded.parquet"), tally)
        except RowsNotKept as error:
            raise RowsNotKept(error.problem, ()) from error

    def _decode(self, inputs: Sequence[InputFile], path: str, tally: Tally) -> list[DataFile]:
        """Write the live rows of some inputs to a file; no file if there are none."""
        if not inputs:
            return []
        part = replace(self.task, inputs=tuple(inputs))

        def write(rows: Iterator[pa.RecordBatch]) -> tuple[DataFile, ...]:
            file = write_data_file(path, rows, part, self.storage)
            return () if file is None else (file,)

        return list(write_proven(part, self.storage, tally, write, self.deletes) or ())
