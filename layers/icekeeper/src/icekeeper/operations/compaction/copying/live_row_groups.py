"""Tells which row groups of an input keep all of their rows, so that deletes decode only the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from icekeeper.model import DataFile
from icekeeper.operations.compaction.copying.outputs import CopyableInput
from icekeeper.operations.compaction.task import RewriteTask
from icekeeper.row_group_copy.copyable import CopyTarget
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.merge import copyable_part
from icekeeper.row_group_copy.refusal import NotCopyable
from icekeeper.rows.apply_deletes import DeletedRows
from icekeeper.storage.storage import Storage

__all__ = ["without_deleted_rows"]


def without_deleted_rows(
    found: Mapping[int, CopyableFile],
    entries: Mapping[int, DataFile],
    task: RewriteTask,
    target: CopyTarget,
    storage: Storage,
) -> dict[int, CopyableInput]:
    """What can be copied of files that can, by their number among the inputs; left out: files of which nothing can.

    ``entries`` are their manifest entries.  Position deletes and deletion vectors are all that may apply to them.

    Raises:
        MetadataUnreadable, StorageError: a delete file cannot be read.
    """
    under_deletes = tuple(task.inputs[i] for i in found if task.inputs[i].deletes)
    live = {i: CopyableInput(file) for i, file in found.items() if not task.inputs[i].deletes}
    if not under_deletes:
        return live
    schema = {**task.schema, "fields": [*task.schema["fields"], *task.key_fields]}
    deletes = DeletedRows(replace(task, inputs=under_deletes), schema, storage)
    for i, file in found.items():
        if i in live:
            continue
        source = task.inputs[i]
        touched = [group for group in file.groups if deletes.are_deleted(source.path, group.positions)]
        kept = {group.number for group in file.groups} - {group.number for group in touched}
        part = copyable_part(entries[i], file, kept, target) if touched and kept else file
        if kept and not isinstance(part, NotCopyable):
            live[i] = CopyableInput(
                part,
                tuple(
                    replace(source, record_count=one.row_count, row_group=one.number, first_row=one.first_row)
                    for one in touched
                ),
            )
    return live
