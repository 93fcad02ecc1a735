"""Writes the new file: ranges of every input, page indexes, one footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.row_group_copy.chunk_checks import Piece, data_pages
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.evidence import RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer import MAGIC, framed
from icekeeper.row_group_copy.input_streams import OpenInput, input_streams
from icekeeper.row_group_copy.layout import Layout, Placement
from icekeeper.row_group_copy.new_footer import footer_bytes
from icekeeper.row_group_copy.new_row_groups import MovedRowGroups, indexes_of, move_row_groups
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.stream import copy_ranges, read_pieces
from icekeeper.storage.part_upload import bounded_output
from icekeeper.storage.storage import Storage

__all__ = ["CopiedRowGroup", "WrittenCopy", "agreed_facts", "write_copy", "write_end"]


@dataclass(frozen=True, slots=True)
class CopiedRowGroup:
    """A row group as it was read: what Arrow says of it, and the checksum of every column chunk."""

    source: str
    facts: RowGroupFacts
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WrittenCopy:
    """A new file, and what was read for it."""

    path: str
    size: int
    row_groups: tuple[CopiedRowGroup, ...]
    split_offsets: tuple[int, ...]


def write_copy(layout: Layout, path: str, schema: ParquetSchema, storage: Storage) -> WrittenCopy | NotCopyable:
    """Write the row groups of a layout's inputs to ``path``; nothing is left there unless all were copied.

    Raises:
        StorageError: an input cannot be read or the file not written; nothing is left of it.
    """
    placement: Placement | None = None
    parts: list[tuple[MovedRowGroups, list[CopiedRowGroup]]] = []
    try:
        files = [one.file for one in layout.placements]
        with storage.translated(path), bounded_output(storage, path) as sink, input_streams(files, storage) as opened:
            sink.write(MAGIC)
            start = layout.offset_indexes_start
            for placement in layout.placements:
                with storage.translated(placement.file.path):
                    parts.append(_copy_input(placement, sink, start, schema, opened))
                start += len(parts[-1][0].offset_indexes)
            write_end(sink, files, [moved for moved, _ in parts], schema)
            size = int(sink.tell())
    except BaseException as error:
        storage.delete([path])
        if isinstance(error, CannotCopy) and placement is not None:
            return NotCopyable(placement.file.path, str(error))
        raise
    return WrittenCopy(
        path,
        size,
        tuple(group for _, copied in parts for group in copied),
        tuple(offset for moved, _ in parts for offset in moved.split_offsets),
    )


def _copy_input(
    placement: Placement, sink: Any, offset_indexes_start: int, schema: ParquetSchema, opened: OpenInput
) -> tuple[MovedRowGroups, list[CopiedRowGroup]]:
    file = placement.file
    groups = [group for group in file.footer.metadata().row_groups if group.num_rows]
    chunks = {data_pages(chunk.meta_data): chunk.meta_data for group in groups for chunk in group.columns}
    facts = agreed_facts(file, list(chunks), schema)
    with opened(file) as stream:
        indexes = read_pieces(stream, [piece for group in groups for piece in indexes_of(group, schema)])
        crcs, pages = copy_ranges(stream, sink, file.ranges, chunks)
    copied = [CopiedRowGroup(file.path, one, tuple(crcs[piece] for piece in one.pieces)) for one in facts]
    return move_row_groups(groups, placement, offset_indexes_start, schema, indexes, pages), copied


def agreed_facts(file: CopyableFile, pieces: list[Piece], schema: ParquetSchema) -> list[RowGroupFacts]:
    """What Arrow says of the input, if it sees the same column chunks in the same places.

    Raises:
        CannotCopy: it does not.
    """
    facts = list(row_group_facts(file.footer.seen_by_arrow(), schema.columns))
    if [piece for one in facts for piece in one.pieces] != pieces:
        raise CannotCopy("has column chunks elsewhere for Arrow than by its footer")
    return facts


def write_end(sink: Any, files: Sequence[CopyableFile], parts: Sequence[MovedRowGroups], schema: ParquetSchema) -> None:
    """Write what follows the data: the page indexes, and the footer.

    Raises:
        CannotCopy: the rows are more than a footer can count.
    """
    for part in parts:
        sink.write(part.column_indexes)
    for part in parts:
        sink.write(part.offset_indexes)
    sink.write(framed(footer_bytes(files, [group for part in parts for group in part.row_groups], schema)))
