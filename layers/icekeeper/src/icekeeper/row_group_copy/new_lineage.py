"""Encodes the two columns of row lineage for a row group of which the other columns are copied (rule 130).

Arrow encodes them as a small Parquet file in memory, whose column chunks and page indexes are taken out of it.  Row ids
are not put into a dictionary, for no two are the same; nor are they encoded as differences: these would take hardly any
bytes, but Iceberg's vectorized readers refused them for long (apache/iceberg, pull request 13391).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.chunk_checks import Piece, column_index, data_pages, offset_index
from icekeeper.row_group_copy.copyable import CODECS
from icekeeper.row_group_copy.evidence import RowGroupFacts, checksum, row_group_facts
from icekeeper.row_group_copy.footer import FRAME, MAGIC, Footer
from icekeeper.row_group_copy.footer_decisions import Lacks
from icekeeper.row_group_copy.footer_structs import ColumnChunk, RowGroup
from icekeeper.row_group_copy.lineage_facts import NOTHING, LineageFacts, values_checksum
from icekeeper.row_group_copy.pages import PageWalk
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import LINEAGE_COLUMNS, ParquetColumn, ParquetSchema
from icekeeper.row_group_copy.stored_lineage import stored_bounds
from icekeeper.rows.lineage import LAST_UPDATED_ID, LINEAGE_NAMES, ROW_ID_ID, InheritedLineage, resolved_lineage

__all__ = ["LineageChunks", "encoded_lineage"]

_CODEC_NAMES = {number: name for name, number in CODECS.items() if name != "lz4_raw"} | {0: "none"}
_OPTIONAL = 1
_ROWS = 128 * 1024
"""So many are resolved at once."""


@dataclass(frozen=True, slots=True)
class LineageChunks:
    """Both column chunks of one row group, in a small file of which only they and what describes them are kept."""

    footer: Footer
    pages: tuple[tuple[Piece, ...], ...]
    """Where the data pages of each column chunk lie in the small file."""
    column_indexes: tuple[tuple[Piece, bytes], ...]
    offset_indexes: tuple[tuple[Piece, bytes], ...]
    """Its page indexes, and where they lie in the small file."""
    facts: RowGroupFacts
    checksums: tuple[int, ...]
    lineage: LineageFacts

    @property
    def created_by(self) -> bytes:
        return self.footer.metadata().created_by or b""

    @property
    def place(self) -> Piece:
        """Where the column chunks lie in the small file, dictionary page included."""
        return Piece(len(MAGIC), self.facts.pieces[-1].end)

    def indexes_kept(self, first: int, lacks: Lacks) -> Iterator[Piece]:
        """The column indexes that are carried over; ``first`` is the number of the first of both columns."""
        for number, (piece, _) in enumerate(self.column_indexes, first):
            if lacks.has_column_index(number):
                yield piece

    def columns(self) -> list[ColumnChunk]:
        """The column chunks as the small file's footer describes them; the answer may be changed."""
        return self.footer.metadata().row_groups[0].columns


def encoded_lineage(
    group: RowGroup, inherited: InheritedLineage, stored: pa.Table | None, schema: ParquetSchema, page_index: bool
) -> tuple[LineageChunks, memoryview]:
    """Column chunks for a row group, in its codec, with or without page indexes; and their bytes.

    ``inherited`` is what the rows of this row group inherit, ``stored`` what they hold in columns of their own.

    Raises:
        CannotCopy: the row group has other rows than its columns, or too many.
    """
    columns = schema.columns[-LINEAGE_COLUMNS:]
    table = _resolved(group.num_rows, inherited, stored, _arrow_schema(columns))
    data = _encoded(table, group, page_index)
    start = len(data) - FRAME - int.from_bytes(data[-FRAME:-4], "little")
    footer = Footer("the row ids", len(data), start, bytes(data[start:-FRAME]))
    if len(footer.metadata().row_groups) != 1:
        raise CannotCopy(f"has a row group of {group.num_rows} rows, more than Arrow writes into one")
    (found,) = footer.metadata().row_groups
    (facts,) = row_group_facts(footer.seen_by_arrow())
    bounds = stored_bounds(found)
    if bounds is None:
        raise CannotCopy("has row ids that cannot be encoded without nulls")
    checksums = None
    if stored is not None:
        checksums = reduce(lambda before, batch: values_checksum(batch, before), table.to_batches(), NOTHING)
    chunks = LineageChunks(
        footer=footer,
        pages=tuple(_pages(chunk, data) for chunk in found.columns),
        column_indexes=_pieces(map(column_index, found.columns), data),
        offset_indexes=_pieces(map(offset_index, found.columns), data),
        facts=facts,
        checksums=tuple(checksum(data[piece.start : piece.end]) for piece in facts.pieces),
        lineage=LineageFacts(bounds, inherited if stored is None else None, checksums),
    )
    return chunks, data[chunks.place.start : chunks.place.end]


def _resolved(rows: int, inherited: InheritedLineage, stored: pa.Table | None, schema: pa.Schema) -> pa.Table:
    """What a reader finds in both columns: what is stored, else what is inherited."""
    found = _nulls(rows) if stored is None else (batch for batch in stored.to_batches(_ROWS) if batch.num_rows)
    batches, first_row = [], 0
    for batch in found:
        batch = resolved_lineage(batch, (ROW_ID_ID, LAST_UPDATED_ID), inherited, first_row)
        batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        first_row += batch.num_rows
    if first_row != rows:
        raise CannotCopy(f"has row ids of {first_row} rows in a row group of {rows}")
    return pa.Table.from_batches(batches, schema)


def _arrow_schema(columns: Sequence[ParquetColumn]) -> pa.Schema:
    fields = (pa.field(c.leaf.name, pa.int64(), nullable=c.element.repetition_type == _OPTIONAL) for c in columns)
    return pa.schema(fields)


def _pieces(found: Iterable[Piece | None], data: memoryview) -> tuple[tuple[Piece, bytes], ...]:
    return tuple((piece, bytes(data[piece.start : piece.end])) for piece in found if piece is not None)


def _nulls(rows: int) -> Iterator[pa.RecordBatch]:
    for first_row in range(0, rows, _ROWS):
        nulls = pa.nulls(min(_ROWS, rows - first_row), pa.int64())
        yield pa.RecordBatch.from_arrays([nulls] * LINEAGE_COLUMNS, names=list(LINEAGE_NAMES))


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
