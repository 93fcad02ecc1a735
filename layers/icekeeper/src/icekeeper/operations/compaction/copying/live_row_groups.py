"""Tells which row groups of an input keep all of their rows, so that deletes decode only the others (rule 151).

Position deletes and deletion vectors know their rows.  Keys of equality deletes are compared with what the statistics
of a row group say of its columns.  Row groups that may hold very few keys have only their key columns read, to be
certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from icekeeper.model import FileContent
from icekeeper.operations.compaction.copying.column_ranges import column_ranges
from icekeeper.operations.compaction.copying.outputs import CopyableInput
from icekeeper.operations.compaction.task import Copying, RewriteTask
from icekeeper.row_group_copy.copyable import CopyTarget
from icekeeper.row_group_copy.copyable_file import CopyableFile, CopyableRowGroup
from icekeeper.row_group_copy.merge import copyable_part
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.rows.apply_deletes import DeletedRows
from icekeeper.rows.read_task import InputFile
from icekeeper.storage.storage import Storage

__all__ = ["without_deleted_rows", "worth_a_look"]

_KEYS_A_ROW_GROUP = 2
"""If keys are of rows anywhere in the row groups, one of seven (e ** -2) has none where each may hold two on average;
the key columns are a smaller share of a row group than that."""


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A row group under deletes."""

    number: int
    """Of its file among the inputs."""
    group: CopyableRowGroup
    input: InputFile
    """It alone, as an input."""
    is_deleted_at: bool
    """Whether a position in it is deleted."""
    keys: int
    """How many deleted keys its rows may have; 0 where a position is deleted, too."""


def without_deleted_rows(
    found: Mapping[int, CopyableFile],
    task: RewriteTask,
    target: CopyTarget,
    deletes: DeletedRows | None,
    storage: Storage,
) -> dict[int, CopyableInput]:
    """What can be copied of files that can, by their number among the inputs; left out: files of which nothing can.

    ``deletes`` is what :func:`.deleted_rows_of` found.

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
    """The places of row groups in which their keys are looked up; ``keys`` is how many each may hold (pure)."""
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
    """What can be copied of a file, and what is decoded; ``None``: all of it is."""
    kept = {group.number for group in file.groups} - {one.group.number for one in touched}
    if not kept:
        return None
    part = copyable_part(copying.entries[number], file, kept, target) if touched else file
    return None if isinstance(part, NotCopyable) else CopyableInput(part, tuple(one.input for one in touched))
