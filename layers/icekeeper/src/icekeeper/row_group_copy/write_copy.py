"""Writes the new file: ranges of every input, new lineage columns, page indexes, one footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.row_group_copy.chunk_checks import Piece, data_pages
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.evidence import RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer import MAGIC, framed
from icekeeper.row_group_copy.footer_structs import RowGroup
from icekeeper.row_group_copy.layout import Layout, Placement
from icekeeper.row_group_copy.lineage_facts import LineageFacts
from icekeeper.row_group_copy.new_footer import footer_bytes
from icekeeper.row_group_copy.new_row_groups import MovedRowGroups, indexes_of, move_row_groups
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.spliced_lineage import WrittenLineage, spliced
from icekeeper.row_group_copy.stored_lineage import stored_bounds
from icekeeper.row_group_copy.stream import copy_ranges, read_pieces
from icekeeper.row_group_copy.write_lineage import write_lineage
from icekeeper.storage.storage import Storage

__all__ = ["CopiedRowGroup", "WrittenCopy", "write_copy"]


@dataclass(frozen=True, slots=True)
class CopiedRowGroup:
    """A row group as it was read: what Arrow says of it, and the checksum of every column chunk.

    Of lineage columns that were encoded anew, this is about what was written.
    """

    source: str
    facts: RowGroupFacts
    checksums: tuple[int, ...]
    lineage: LineageFacts | None = None
    """What its lineage columns hold, if it has some."""


@dataclass(frozen=True, slots=True)
class WrittenCopy:
    """A new file, and what was read for it."""

    path: str
    size: int
    row_groups: tuple[CopiedRowGroup, ...]
    split_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Copied:
    """What was copied of one input, what is known of its pages, and the lineage columns written for it."""

    placement: Placement
    row_groups: tuple[CopiedRowGroup, ...]
    indexes: dict[Piece, bytes]
    pages: dict[Piece, list[Piece]]
    lineage: tuple[WrittenLineage | None, ...] = ()

    @property
    def column_index_bytes(self) -> int:
        new = (one.chunks.column_index_bytes for one in self.lineage if one is not None)
        return self.placement.file.column_index_bytes + sum(new)


def write_copy(layout: Layout, path: str, schema: ParquetSchema, storage: Storage) -> WrittenCopy | NotCopyable:
    """Write the row groups of a layout's inputs to ``path``; nothing is left there unless all were copied.

    Raises:
        StorageError: an input cannot be read or the file not written; nothing is left of it.
    """
    placement: Placement | None = None
    copied: list[_Copied] = []
    parts: list[MovedRowGroups] = []
    try:
        with storage.translated(path), storage.open_output(path) as sink:
            sink.write(MAGIC)
            for placement in layout.placements:
                copied.append(_copy_input(placement, sink, schema, storage))
            start = layout.column_indexes_start
            for number, one in enumerate(copied):
                placement = one.placement
                lineage = write_lineage(placement.file, sink, start, schema, storage)
                copied[number] = replace(one, lineage=lineage)
                start += sum(new.chunks.place.size for new in lineage if new is not None)
            offset_indexes = start + sum(one.column_index_bytes for one in copied)
            for one in copied:
                placement = replace(one.placement, column_indexes_start=start)
                parts.append(_moved(replace(one, placement=placement), offset_indexes, schema))
                start += len(parts[-1].column_indexes)
                offset_indexes += len(parts[-1].offset_indexes)
            _write_end(sink, copied, parts, schema)
            size = int(sink.tell())
    except BaseException as error:
        storage.delete([path])
        if isinstance(error, CannotCopy) and placement is not None:
            return NotCopyable(placement.file.path, str(error))
        raise
    return WrittenCopy(
        path,
        size,
        tuple(group for one in copied for group in _with_lineage(one)),
        tuple(offset for moved in parts for offset in moved.split_offsets),
    )


def _copy_input(placement: Placement, sink: Any, schema: ParquetSchema, storage: Storage) -> _Copied:
    file = placement.file
    groups = file.carried()
    chunks = {data_pages(chunk.meta_data): chunk.meta_data for group in groups for chunk in group.columns}
    facts = _agreed(file, groups, schema)
    with storage.translated(file.path), storage.open_input(file.path) as stream:
        indexes = read_pieces(stream, [piece for group in groups for piece in indexes_of(group, schema)])
        crcs, pages = copy_ranges(stream, sink, file.ranges, chunks)
    copied = (
        CopiedRowGroup(file.path, one, tuple(crcs[piece] for piece in one.pieces), _stored(group, schema))
        for one, group in zip(facts, groups, strict=True)
    )
    return _Copied(placement, tuple(copied), indexes, pages)


def _agreed(file: CopyableFile, groups: Sequence[RowGroup], schema: ParquetSchema) -> list[RowGroupFacts]:
    """What Arrow says of what is copied, if it sees the same column chunks in the same places."""
    numbers = [group.number for group in file.groups]
    found = row_group_facts(file.footer.seen_by_arrow(), schema.columns, numbers)
    facts = [one.columns(len(group.columns)) for one, group in zip(found, groups, strict=True)]
    pieces = [[data_pages(chunk.meta_data) for chunk in group.columns] for group in groups]
    if [list(one.pieces) for one in facts] != pieces:
        raise CannotCopy("has column chunks elsewhere for Arrow than by its footer")
    return facts


def _stored(group: RowGroup, schema: ParquetSchema) -> LineageFacts | None:
    """What the lineage columns hold that are copied."""
    bounds = stored_bounds(group) if schema.has_lineage and len(group.columns) == len(schema.columns) else None
    return None if bounds is None else LineageFacts(bounds)


def _moved(copied: _Copied, offset_indexes_start: int, schema: ParquetSchema) -> MovedRowGroups:
    """The row groups of an input in the new file, with their new lineage columns."""
    groups = copied.placement.file.carried()
    new = spliced(copied.placement, groups, copied.lineage)
    indexes, pages = copied.indexes | new.indexes, copied.pages | new.pages
    return move_row_groups(groups, new.placement, offset_indexes_start, schema, indexes, pages)


def _with_lineage(copied: _Copied) -> list[CopiedRowGroup]:
    """The row groups of an input with what is known of their new lineage columns."""
    return [
        group
        if new is None
        else CopiedRowGroup(
            group.source,
            group.facts.and_columns(new.chunks.facts),
            group.checksums + new.chunks.checksums,
            new.chunks.lineage,
        )
        for group, new in zip(copied.row_groups, copied.lineage, strict=True)
    ]


def _write_end(sink: Any, copied: Sequence[_Copied], parts: Sequence[MovedRowGroups], schema: ParquetSchema) -> None:
    for part in parts:
        sink.write(part.column_indexes)
    for part in parts:
        sink.write(part.offset_indexes)
    files = [one.placement.file for one in copied]
    row_groups = [group for part in parts for group in part.row_groups]
    writers = {new.chunks.created_by for one in copied for new in one.lineage if new is not None}
    sink.write(framed(footer_bytes(files, row_groups, schema, writers)))
