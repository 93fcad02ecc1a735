"""Encodes the lineage columns of row groups whose other columns are copied (rule: rows-keep-their-lineage).

Arrow encodes ``_row_id`` and ``_last_updated_sequence_number`` of a row group as a small Parquet file in memory.  Its
column chunks and page indexes are then put into the new file.  Row ids get no dictionary, because all are different.
They are not delta-encoded either: this would take hardly any bytes, but Iceberg's vectorized readers could not read it
for a long time (apache/iceberg, pull request 13391).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.copyable import CODECS, CopyableFile, Placement, stored_bounds
from icekeeper.row_group_copy.footer import (
    FRAME,
    LINEAGE_COLUMNS,
    MAGIC,
    Footer,
    PageWalk,
    ParquetSchema,
    Piece,
    column_index,
    data_pages,
    offset_index,
)
from icekeeper.row_group_copy.footer_decisions import Lacks, RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    ColumnChunk,
    OffsetIndex,
    RowGroup,
    read_exactly,
    write_struct,
)
from icekeeper.rows.read_task import LAST_UPDATED_ID, LINEAGE_NAMES, ROW_ID_ID, InheritedLineage, resolved_lineage
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.storage import Storage

NOTHING = (0, 0)
"""The checksums of no values."""


@dataclass(frozen=True, slots=True)
class LineageFacts:
    """Content of the lineage columns of a row group, to compare with the decoded new file; no value is null."""

    bounds: tuple[tuple[int, int], ...]
    """The smallest and the largest value of each column."""
    inherited: InheritedLineage | None = None
    """Known if all values are inherited."""
    checksums: tuple[int, int] | None = None
    """The checksum of all values of each column; known if they were encoded from stored values."""


def values_checksum(batch: pa.RecordBatch, before: tuple[int, int]) -> tuple[int, int]:
    """The checksums of the values of both columns, which are not null, continued from ``before``."""
    found = []
    for column, crc in zip(batch.columns, before, strict=True):
        start, end = column.offset * 8, (column.offset + len(column)) * 8
        found.append(zlib.crc32(memoryview(column.buffers()[1])[start:end], crc))
    return found[0], found[1]


def write_lineage(
    file: CopyableFile, sink: Any, start: int, schema: ParquetSchema, lacks: Lacks, storage: Storage
) -> tuple[LineageChunks | None, ...]:
    """Write new lineage columns for the row groups of ``file`` to ``sink``, which is at byte ``start``.

    The result has an item per row group, ``None`` if it needs no new columns.  The columns have page indexes unless the
    new file has none (``lacks``).  Only the values of a single row group are in memory.  If the file has lineage
    columns, only these are decoded.

    Raises:
        StorageError: the file cannot be read.
        CannotCopy: its lineage columns cannot be decoded.
    """
    inherited = file.lineage
    wanted = [group.columns < len(schema.columns) for group in file.groups]
    if inherited is None or not any(wanted):
        return tuple(None for _ in wanted)
    with storage.translated(file.path), _opened(file, storage) as stored:
        found: list[LineageChunks | None] = []
        for copied, group, is_wanted in zip(file.groups, file.carried(), wanted, strict=True):
            if not is_wanted:
                found.append(None)
                continue
            values = None if stored is None else _stored_values(stored, copied.number)
            chunks, data = encoded_lineage(
                group, inherited.after(copied.first_row), values, schema, not lacks.offset_index, start
            )
            sink.write(data)
            found.append(chunks)
            start += len(data)
    return tuple(found)


@contextmanager
def _opened(file: CopyableFile, storage: Storage) -> Iterator[pq.ParquetFile | None]:
    """The file, if it has lineage columns; ``None`` otherwise."""
    if not file.stores_lineage:
        yield None
        return
    with (
        storage.open_input(file.path) as stream,
        pq.ParquetFile(stream, metadata=file.footer.seen_by_arrow(), page_checksum_verification=True) as opened,
    ):
        yield opened


def _stored_values(file: pq.ParquetFile, number: int) -> pa.Table:
    try:
        return file.read_row_group(number, columns=list(LINEAGE_NAMES), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        if failed_by_store(error):
            raise
        problem = str(error).splitlines()[0]
        raise CannotCopy(f"has row ids in row group {number} that cannot be read: {problem}") from error


_CODEC_NAMES = {number: name for name, number in CODECS.items() if name != "lz4_raw"} | {0: "none"}
_OPTIONAL = 1
_ROWS = 128 * 1024
"""Rows that are resolved together."""


@dataclass(frozen=True, slots=True)
class LineageChunks:
    """Describes both column chunks of a row group; all places except ``start`` refer to the small file."""

    start: int
    """The offset of the column chunks in the new file."""
    footer: Footer
    pages: tuple[tuple[Piece, ...], ...]
    """The data pages of each column chunk."""
    column_indexes: tuple[tuple[Piece, bytes], ...]
    offset_indexes: tuple[tuple[Piece, bytes], ...]
    facts: RowGroupFacts
    checksums: tuple[int, ...]
    lineage: LineageFacts

    @property
    def created_by(self) -> bytes:
        return self.footer.metadata().created_by or b""

    @property
    def place(self) -> Piece:
        """The place of the column chunks, dictionary page included."""
        return Piece(len(MAGIC), self.facts.pieces[-1].end)

    def columns(self) -> list[ColumnChunk]:
        """New descriptions of the column chunks; the caller may change them."""
        return self.footer.metadata().row_groups[0].columns


def encoded_lineage(
    group: RowGroup,
    inherited: InheritedLineage,
    stored: pa.Table | None,
    schema: ParquetSchema,
    page_index: bool,
    start: int,
) -> tuple[LineageChunks, memoryview]:
    """Column chunks for a row group, in its codec, with or without page indexes; and their bytes.

    ``inherited``: the lineage that the rows of this row group inherit; ``stored``: their lineage columns, if any;
    ``start``: the offset of the column chunks in the new file.

    Raises:
        CannotCopy: ``stored`` has another number of rows, or there are too many rows.
    """
    columns = schema.columns[-LINEAGE_COLUMNS:]
    fields = (pa.field(c.leaf.name, pa.int64(), nullable=c.element.repetition_type == _OPTIONAL) for c in columns)
    table = _resolved(group.num_rows, inherited, stored, pa.schema(fields))
    data = _encoded(table, group, page_index)
    end = len(data) - FRAME - int.from_bytes(data[-FRAME:-4], "little")
    footer = Footer("the row ids", len(data), end, bytes(data[end:-FRAME]))
    if len(footer.metadata().row_groups) != 1:
        raise CannotCopy(f"has a row group of {group.num_rows} rows, more than Arrow can write")
    (found,) = footer.metadata().row_groups
    (facts,) = row_group_facts(footer.seen_by_arrow())
    bounds = stored_bounds(found)
    if bounds is None:
        raise CannotCopy("has row ids that cannot be encoded without nulls")
    checksums = None
    if stored is not None:
        checksums = reduce(lambda before, batch: values_checksum(batch, before), table.to_batches(), NOTHING)
    chunks = LineageChunks(
        start=start,
        footer=footer,
        pages=tuple(_pages(chunk, data) for chunk in found.columns),
        column_indexes=_pieces(map(column_index, found.columns), data),
        offset_indexes=_pieces(map(offset_index, found.columns), data),
        facts=facts,
        checksums=tuple(zlib.crc32(data[piece.start : piece.end]) for piece in facts.pieces),
        lineage=LineageFacts(bounds, inherited if stored is None else None, checksums),
    )
    return chunks, data[chunks.place.start : chunks.place.end]


def _resolved(rows: int, inherited: InheritedLineage, stored: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """Both columns with the stored values, or the inherited values where these are null."""
    if stored is None:
        columns = [pa.nulls(min(_ROWS, rows), pa.int64())] * LINEAGE_COLUMNS
        nulls = pa.RecordBatch.from_arrays(columns, names=list(LINEAGE_NAMES))
        found = (nulls.slice(0, rows - done) for done in range(0, rows, _ROWS))
    else:
        found = (batch for batch in stored.to_batches(_ROWS) if batch.num_rows)
    batches, first_row = [], 0
    for batch in found:
        batch = resolved_lineage(batch, (ROW_ID_ID, LAST_UPDATED_ID), inherited, first_row)
        batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        first_row += batch.num_rows
    if first_row != rows:
        raise CannotCopy(f"has row ids of {first_row} rows in a row group of {rows}")
    return pa.Table.from_batches(batches, schema)


def _pieces(found: Iterable[Piece | None], data: memoryview) -> tuple[tuple[Piece, bytes], ...]:
    return tuple((piece, bytes(data[piece.start : piece.end])) for piece in found if piece is not None)


def _encoded(table: pa.Table, group: RowGroup, page_index: bool) -> memoryview:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=table.num_rows,
        compression=_CODEC_NAMES[group.columns[0].meta_data.codec],
        use_dictionary=[LINEAGE_NAMES[1]],
        write_page_index=page_index,
        store_schema=False,
        write_page_checksum=True,
    )
    return memoryview(sink.getvalue())


def _pages(chunk: ColumnChunk, data: memoryview) -> tuple[Piece, ...]:
    here = data_pages(chunk.meta_data)
    walk = PageWalk(chunk.meta_data)
    walk.feed(data[here.start : here.end])
    walk.end()
    return tuple(walk.pages)


# New lineage columns are described as if they were part of the input: the small file gets a place after the end of the
# input, and the input's placement maps that place to the new file, as it does for all other bytes.


def spliced(
    placement: Placement, groups: Sequence[RowGroup], written: Sequence[LineageChunks | None]
) -> tuple[Placement, dict[Piece, bytes], dict[Piece, list[Piece]]]:
    """Add the new lineage columns to the copied row groups of an input.

    ``written`` has the new columns of each row group, ``None`` if it needs none.

    Returns:
        The placement of the input with these columns, their page indexes and their pages, each by its place.
    """
    ranges, starts = list(placement.file.ranges), list(placement.starts)
    indexes: dict[Piece, bytes] = {}
    pages: dict[Piece, list[Piece]] = {}
    base = placement.file.footer.file_size
    for group, new in zip(groups, written, strict=True):
        if new is None:
            continue
        columns = new.columns()
        for chunk, found in zip(columns, new.pages, strict=True):
            _shift(chunk, base)
            pages[data_pages(chunk.meta_data)] = [_moved(piece, base) for piece in found]
        indexes.update((_moved(piece, base), data) for piece, data in new.column_indexes)
        indexes.update((_moved(piece, base), _moved_index(data, base)) for piece, data in new.offset_indexes)
        ranges.append(_moved(new.place, base))
        starts.append(new.start)
        group.columns = [*group.columns, *columns]
        group.total_byte_size += sum(chunk.meta_data.total_uncompressed_size for chunk in columns)
        base += new.footer.file_size
    file = replace(placement.file, ranges=tuple(ranges))
    return replace(placement, file=file, starts=tuple(starts)), indexes, pages


def _moved(piece: Piece, by: int) -> Piece:
    return Piece(piece.start + by, piece.end + by)


def _moved_index(data: bytes, by: int) -> bytes:
    index = read_exactly(OffsetIndex, data)
    moved = [replace(place, offset=place.offset + by) for place in index.page_locations]
    return write_struct(replace(index, page_locations=moved))


def _shift(chunk: ColumnChunk, by: int) -> None:
    meta = chunk.meta_data
    meta.data_page_offset += by
    if meta.dictionary_page_offset:
        meta.dictionary_page_offset += by
    if column_index(chunk) is not None:
        chunk.column_index_offset = (chunk.column_index_offset or 0) + by
    if offset_index(chunk) is not None:
        chunk.offset_index_offset = (chunk.offset_index_offset or 0) + by
