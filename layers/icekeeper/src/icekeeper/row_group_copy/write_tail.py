"""Writes what follows the copied bytes: new lineage columns, the page indexes, the footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from icekeeper.row_group_copy.copied_input import CopiedInput
from icekeeper.row_group_copy.footer import framed
from icekeeper.row_group_copy.footer_decisions import Lacks
from icekeeper.row_group_copy.layout import Layout
from icekeeper.row_group_copy.new_footer import footer_bytes
from icekeeper.row_group_copy.new_row_groups import IndexStarts, MovedRowGroups, move_row_groups
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.schema_fit import LINEAGE_COLUMNS, ParquetSchema
from icekeeper.row_group_copy.spliced_lineage import spliced
from icekeeper.row_group_copy.write_lineage import write_lineage
from icekeeper.storage.storage import Storage

__all__ = ["write_tail"]


def write_tail(
    sink: Any, layout: Layout, inputs: Sequence[CopiedInput], schema: ParquetSchema, storage: Storage
) -> tuple[Sequence[CopiedInput], tuple[int, ...]] | NotCopyable:
    """Write the end of the new file to ``sink``, which is at the end of the data.

    Returns:
        The inputs with their new lineage columns, and where each row group begins in the new file.

    Raises:
        StorageError: row ids of an input cannot be read, or the file not written.
    """
    copied, start, lacks = list(inputs), layout.data_end, layout.lacks
    parts: list[MovedRowGroups] = []
    current = copied[0]
    try:
        for number, current in enumerate(inputs):
            lineage = write_lineage(current.placement.file, sink, start, schema, lacks, storage)
            copied[number] = replace(current, lineage=lineage)
            start += sum(new.chunks.place.size for new in lineage if new is not None)
        offset_indexes = start + sum(_column_index_bytes(one, schema, lacks) for one in copied)
        for current in copied:
            parts.append(_moved(current, IndexStarts(start, offset_indexes), lacks))
            start += len(parts[-1].column_indexes)
            offset_indexes += len(parts[-1].offset_indexes)
        _write_end(sink, copied, parts, schema)
    except CannotCopy as error:
        return NotCopyable(current.placement.file.path, str(error))
    return copied, tuple(offset for moved in parts for offset in moved.split_offsets)


def _column_index_bytes(copied: CopiedInput, schema: ParquetSchema, lacks: Lacks) -> int:
    first = len(schema.columns) - LINEAGE_COLUMNS
    new = (piece.size for one in copied.lineage if one is not None for piece in one.chunks.indexes_kept(first, lacks))
    return copied.column_index_bytes + sum(new)


def _moved(copied: CopiedInput, starts: IndexStarts, lacks: Lacks) -> MovedRowGroups:
    """The row groups of an input in the new file, with their new lineage columns."""
    groups = copied.placement.file.carried()
    placement, indexes, pages = spliced(copied.placement, groups, copied.lineage)
    return move_row_groups(groups, placement, starts, lacks, copied.indexes | indexes, copied.pages | pages)


def _write_end(
    sink: Any, copied: Sequence[CopiedInput], parts: Sequence[MovedRowGroups], schema: ParquetSchema
) -> None:
    for part in parts:
        sink.write(part.column_indexes)
    for part in parts:
        sink.write(part.offset_indexes)
    files = [one.placement.file for one in copied]
    row_groups = [group for part in parts for group in part.row_groups]
    writers = {new.chunks.created_by for one in copied for new in one.lineage if new is not None}
    sink.write(framed(footer_bytes(files, row_groups, schema, writers)))
