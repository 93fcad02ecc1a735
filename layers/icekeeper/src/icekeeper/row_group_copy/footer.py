"""Reads a Parquet footer and checks its schema, its column chunks and their pages (rule: copy-only-checked-footers).

All but :func:`read_footer` is pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.annotations import shape_in, with_annotations
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    ColumnChunk,
    ColumnMetaData,
    DamagedPage,
    FileMetaData,
    LogicalType,
    OffsetIndex,
    PageHeader,
    RowGroup,
    SchemaElement,
    TimeType,
    read_exactly,
    read_struct,
)
from icekeeper.rows.arrow_schema import LeafColumn, arrow_schema, leaf_columns
from icekeeper.rows.read_task import LAST_UPDATED_ID, LINEAGE_NAMES, ROW_ID_ID
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
FRAME = 8
"""The bytes after a footer: its length in four bytes, and the magic bytes."""
_FIRST_READ = 64 * 1024
_MOST = 8 * 1024 * 1024
"""A decoded footer takes twenty times its bytes in memory; 2,000 columns take 0.3 MB a row group."""
_LARGE = 1024 * 1024
_LEAST_GROUP, _LEAST_CHUNK = 64, 32
"""Bytes of a row group and of a column chunk with only the required fields."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file, encoded to save memory; ``start`` is its offset in the file."""

    path: str
    file_size: int
    start: int
    thrift: bytes
    etag: str | None = None
    """The ETag of the file when its footer was read, on S3."""
    before: bytes = b""
    """Bytes just before the footer that came with it, kept to save a request for page indexes."""

    def with_bytes_from(self, first: int) -> Footer:
        """The same with only the bytes from offset ``first`` on; with no bytes if some of these did not come with the
        footer."""
        kept = self.start - first
        return replace(self, before=self.before[-kept:] if 0 < kept <= len(self.before) else b"")

    @property
    def before_start(self) -> int:
        """The offset of :attr:`before` in the file."""
        return self.start - len(self.before)

    def metadata(self) -> FileMetaData:
        """The footer, decoded at every call, so that the caller may change it.  Raises CannotCopy if it is damaged or
        has fields that this version does not know."""
        return read_exactly(FileMetaData, self.thrift)

    def seen_by_arrow(self) -> pq.FileMetaData:
        """The footer, decoded by Arrow; raises CannotCopy if Arrow cannot read it."""
        try:
            return pq.read_metadata(pa.BufferReader(MAGIC + framed(self.thrift)))
        except (pa.ArrowException, OSError) as error:
            raise CannotCopy(f"has a footer that Arrow cannot read: {str(error).splitlines()[0]}") from error


def framed(thrift: bytes) -> bytes:
    """The end of a Parquet file with this footer."""
    return thrift + len(thrift).to_bytes(4, "little") + MAGIC


def read_footer(path: str, storage: Storage, promised: int | None = None) -> Footer:
    """The footer of a file, by a single ranged read unless it is large; ``promised``: the size in the manifest entry.

    Raises:
        CannotCopy: a file with this footer cannot be copied.
        StorageError: the file does not exist, or the store failed.
    """
    tail, size, etag = storage.read_end(path, _FIRST_READ)
    if promised is not None and size != promised:
        raise CannotCopy(f"has {size} bytes, but its manifest entry says {promised}")
    if size < len(MAGIC) + FRAME:
        raise CannotCopy("is too short for a Parquet file")
    if tail[-4:] == _ENCRYPTED_MAGIC:
        raise CannotCopy("has an encrypted footer")
    if tail[-4:] != MAGIC:
        raise CannotCopy("does not end as a Parquet file")
    length = int.from_bytes(tail[-FRAME:-4], "little")
    start = size - FRAME - length
    if start < len(MAGIC):
        raise CannotCopy(f"claims a footer of {length} bytes, more than the file has")
    if length > _MOST:
        raise CannotCopy(f"has a footer of {length} bytes; up to {_MOST} are copied")
    if length + FRAME > len(tail):
        tail, *found = storage.read_end(path, length + FRAME)
        if found != [size, etag]:
            raise CannotCopy("was replaced while it was read")
    before = b"" if is_local(path) else tail[: -FRAME - length]
    footer = Footer(path, size, start, tail[-FRAME - length : -FRAME], etag, before)
    if length > _LARGE:
        _require_filled(footer)
    return footer


def _require_filled(footer: Footer) -> None:
    """Check that a large footer has no empty parts: each takes a byte, but a hundred bytes once decoded.

    Arrow reads no list with more than a million items.
    """
    seen = footer.seen_by_arrow()
    groups = seen.num_row_groups
    chunks = (
        0 if groups * _LEAST_GROUP > len(footer.thrift) else sum(seen.row_group(n).num_columns for n in range(groups))
    )
    if max(groups * _LEAST_GROUP, chunks * _LEAST_CHUNK) > len(footer.thrift):
        raise CannotCopy(f"claims {groups} row groups in a footer of {len(footer.thrift)} bytes")


# Schemas.  The levels and values in pages depend on the schema, so a file must have the schema of the output: columns,
# field ids, types, nullability.  Annotations of the same type may differ: older writers only write ``converted_type``,
# and some annotate plain integers.

# FieldRepetitionType
_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_PLAIN_INTEGERS = (("integer", 32, True), ("integer", 64, True))
# ConvertedType → logical type.  MAP_KEY_VALUE (2) is left out, because its place in the schema shows it.
_CONVERTED: Mapping[int, tuple[Any, ...]] = {
    0: ("string",),
    1: ("map",),
    3: ("list",),
    6: ("date",),
    7: ("time", True, "millis"),
    8: ("time", True, "micros"),
    9: ("timestamp", True, "millis"),
    10: ("timestamp", True, "micros"),
    **{11 + i: ("integer", 8 << i, False) for i in range(4)},
    **{15 + i: ("integer", 8 << i, True) for i in range(4)},
}
_DECIMAL = 5
LINEAGE_COLUMNS = len(LINEAGE_NAMES)
"""The number of lineage columns, which are the last columns of a schema that has them."""


class ParquetColumn(NamedTuple):
    """A leaf column: the Iceberg column with its Parquet element, path and highest levels."""

    leaf: LeafColumn
    element: SchemaElement
    path: list[bytes]
    definition: int
    repetition: int


@dataclass(frozen=True, slots=True)
class ParquetSchema:
    """The Parquet schema of outputs, and its leaf columns in order."""

    elements: tuple[SchemaElement, ...]
    columns: tuple[ParquetColumn, ...]

    @property
    def nullability(self) -> bytes:
        """The repetition types of all elements; the levels in pages depend on them."""
        return bytes([0, *(element.repetition_type or 0 for element in self.elements[1:])])

    @property
    def has_lineage(self) -> bool:
        """Whether the last two columns are the lineage columns (rule: rows-keep-their-lineage)."""
        return _has_lineage(self.elements)

    @property
    def data_leaves(self) -> list[LeafColumn]:
        """The leaf columns without the lineage columns."""
        leaves = [column.leaf for column in self.columns]
        return leaves[:-LINEAGE_COLUMNS] if self.has_lineage else leaves

    def with_nullability(self, wanted: bytes) -> ParquetSchema:
        """The same schema with another nullability."""
        if wanted == self.nullability:
            return self
        pairs = zip(self.elements[1:], wanted[1:], strict=True)
        elements = [self.elements[0], *(replace(element, repetition_type=kind) for element, kind in pairs)]
        return _with_columns(elements, [column.leaf for column in self.columns])


def parquet_schema(schema: Mapping[str, Any]) -> ParquetSchema:
    """The Parquet schema of rewritten files of an Iceberg schema.

    Raises:
        TableUnsupported: this version does not rewrite a column's type.
    """
    sink = pa.BufferOutputStream()
    arrow = arrow_schema(schema)
    pq.ParquetWriter(sink, arrow, store_schema=False, store_decimal_as_integer=True).close()
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-8:-4], "little")
    elements = with_annotations(read_struct(FileMetaData, data[-8 - length : -8])[0].schema, arrow)
    return _with_columns(elements, leaf_columns(schema))


def _with_columns(elements: Sequence[SchemaElement], leaves: Sequence[LeafColumn]) -> ParquetSchema:
    columns = []
    for leaf, path in zip(leaves, _leaf_paths(iter(elements), ()), strict=True):
        kinds = [element.repetition_type for element in path]
        levels = sum(kind != _REQUIRED for kind in kinds), kinds.count(_REPEATED)
        columns.append(ParquetColumn(leaf, path[-1], [element.name for element in path], *levels))
    return ParquetSchema(tuple(elements), tuple(columns))


def _leaf_paths(
    elements: Iterator[SchemaElement], above: tuple[SchemaElement, ...]
) -> Iterator[tuple[SchemaElement, ...]]:
    """The path to every leaf below the next element, without the root."""
    element = next(elements)
    path = (*above, element)
    if element.num_children is None:
        yield path[1:]
    for _ in range(element.num_children or 0):
        yield from _leaf_paths(elements, path)


def fitted_schema(found: Sequence[SchemaElement], wanted: ParquetSchema) -> ParquetSchema:
    """The wanted schema with the nullability of a file; only lineage columns may be missing in the file.

    An optional column of the table may be required in a file: Spark writes it as required if it cannot be null in the
    query.

    Raises:
        CannotCopy: the file has another schema; the message names the first column that differs.
    """
    expected = wanted.elements
    if wanted.has_lineage and not _has_lineage(found):
        root = replace(expected[0], num_children=(expected[0].num_children or 0) - LINEAGE_COLUMNS)
        expected = (root, *expected[1:-LINEAGE_COLUMNS])
    if not found or found[0].num_children != expected[0].num_children:
        raise CannotCopy("does not have the table's current columns")
    for theirs, ours in zip_longest(found[1:], expected[1:]):
        difference = _difference(theirs, ours)
        if difference is not None:
            name = (theirs or ours).name.decode(errors="replace")
            raise CannotCopy(f"has a column '{name}' that differs from the table's current schema: {difference}")
    nullability = bytes([0, *(element.repetition_type or 0 for element in found[1:])])
    return wanted.with_nullability(nullability + wanted.nullability[len(nullability) :])


def _has_lineage(elements: Sequence[SchemaElement]) -> bool:
    last = [element.field_id for element in elements[-LINEAGE_COLUMNS:]]
    return last == [ROW_ID_ID, LAST_UPDATED_ID]


_FACETS = ("name", "field id", "nullability", "children", "type", "length", "annotation")


def _difference(theirs: SchemaElement | None, ours: SchemaElement | None) -> str | None:
    """How two elements differ; ``None``: a file with ``theirs`` can be copied."""
    if theirs is None or ours is None:
        return "the numbers of columns differ"
    found, expected = _meaning(theirs), _meaning(ours)
    is_stricter = (theirs.repetition_type, ours.repetition_type) == (_REQUIRED, _OPTIONAL)
    fitted = _meaning(replace(theirs, repetition_type=_OPTIONAL)) if is_stricter else found
    if fitted == expected:
        return None
    return next(f"another {facet}" for facet, a, b in zip(_FACETS, found, expected, strict=True) if a != b)


def _meaning(element: SchemaElement) -> tuple[Any, ...]:
    """The facts about the column and the encoding of its pages in an element, in the order of ``_FACETS``."""
    return (
        element.name,
        element.field_id,
        element.repetition_type,
        element.num_children or 0,
        element.type,
        element.type_length if element.type == _FIXED_LENGTH else None,
        _annotation(element),
    )


def _annotation(element: SchemaElement) -> tuple[Any, ...] | None:
    logical = element.logical_type
    found: tuple[Any, ...] | None = None
    if logical is not None:
        found = _logical(logical)
    elif element.converted_type == _DECIMAL:
        found = ("decimal", element.precision, element.scale or 0)
    elif element.converted_type is not None:
        found = _CONVERTED.get(element.converted_type)
    return None if found in _PLAIN_INTEGERS else found


def _logical(logical: LogicalType) -> tuple[Any, ...]:
    if logical.decimal is not None:
        return "decimal", logical.decimal.precision, logical.decimal.scale
    if logical.integer is not None:
        return "integer", logical.integer.bit_width, logical.integer.is_signed
    if logical.time is not None:
        return "time", *_time(logical.time)
    if logical.timestamp is not None:
        return "timestamp", *_time(logical.timestamp)
    if logical.variant is not None:
        return "variant", logical.variant.specification_version or 1
    if logical.geometry is not None or logical.geography is not None:
        return shape_in(logical)
    return tuple(name for name in ("string", "map", "list", "date", "uuid") if getattr(logical, name) is not None)


def _time(kind: TimeType) -> tuple[bool, str]:
    unit = kind.unit
    return kind.is_adjusted_to_utc, next((n for n in ("millis", "micros", "nanos") if getattr(unit, n)), "")


# Column chunks: their places according to the footer, and whether these are possible.

# Type of the format → bytes of a value; texts and binaries have any length.
_WIDTHS = {0: 1, 1: 4, 2: 8, 4: 4, 5: 8}
_BYTE_ARRAY, _FIXED_LENGTH = 6, 7


class Piece(NamedTuple):
    """Bytes of a file from ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def data_pages(meta: ColumnMetaData) -> Piece:
    """The place of a column chunk's pages, including the dictionary page."""
    start = meta.dictionary_page_offset or meta.data_page_offset
    return Piece(start, start + meta.total_compressed_size)


def bloom_filter(meta: ColumnMetaData) -> Piece | None:
    """The place of a column chunk's Bloom filter."""
    return _piece(meta.bloom_filter_offset, meta.bloom_filter_length, "a Bloom filter")


def column_index(chunk: ColumnChunk) -> Piece | None:
    """The place of a column chunk's column index, which has the bounds of its pages."""
    return _piece(chunk.column_index_offset, chunk.column_index_length, "a column index")


def offset_index(chunk: ColumnChunk) -> Piece | None:
    """The place of a column chunk's offset index, which has the places of its pages."""
    return _piece(chunk.offset_index_offset, chunk.offset_index_length, "an offset index")


def _piece(offset: int | None, length: int | None, what: str) -> Piece | None:
    if offset is None and length is None:
        return None
    if offset is None or length is None:
        raise CannotCopy(f"has {what} without an offset or a length")
    if length <= 0:
        raise CannotCopy(f"claims {what} of {length} bytes")
    return Piece(offset, offset + length)


def check_chunk(chunk: ColumnChunk, column: ParquetColumn, group: RowGroup, codec: int) -> None:
    """Raise CannotCopy where a column chunk of a row group with rows contradicts itself, the schema or the wanted
    codec."""
    meta = chunk.meta_data
    name = column.leaf.name
    if meta.type != column.element.type or meta.path_in_schema != column.path:
        raise CannotCopy(f"has another column chunk in the place of column {name}")
    if meta.codec != codec:
        raise CannotCopy(f"has column {name} compressed with another codec than the table's")
    enough = meta.num_values >= group.num_rows if column.leaf.repeated else meta.num_values == group.num_rows
    if not enough:
        raise CannotCopy(f"claims {meta.num_values} values of column {name} in a row group of {group.num_rows} rows")
    nulls = None if meta.statistics is None else meta.statistics.null_count
    if nulls is not None and not 0 <= nulls <= meta.num_values:
        raise CannotCopy(f"claims {nulls} nulls among {meta.num_values} values of column {name}")
    if meta.total_compressed_size <= 0 or meta.total_uncompressed_size < 0:
        raise CannotCopy(f"claims a column chunk of {meta.total_compressed_size} bytes for column {name}")
    if meta.index_page_offset or (meta.dictionary_page_offset or 0) < 0:
        raise CannotCopy(f"has pages of column {name} that no reader reads")
    if not data_pages(meta).start <= meta.data_page_offset < data_pages(meta).end:
        raise CannotCopy(f"claims data pages of column {name} outside of its column chunk")


def check_statistics(meta: ColumnMetaData, column: ParquetColumn) -> None:
    """Raise CannotCopy unless statistics fit the type of their column, because other statistics can make Arrow abort
    the process (platform: arrow-aborts-on-statistics)."""
    name, kind = column.leaf.name, column.element.type or 0
    found, sizes = meta.statistics, meta.size_statistics
    width = column.element.type_length if kind == _FIXED_LENGTH else _WIDTHS.get(kind)
    if found is not None and width is not None:
        for bound in (found.min, found.max, found.min_value, found.max_value):
            if bound is not None and len(bound) != width:
                raise CannotCopy(f"has a bound of {len(bound)} bytes for column {name}, whose values have {width}")
    if sizes is None:
        return
    levels = (
        (sizes.definition_level_histogram, column.definition),
        (sizes.repetition_level_histogram, column.repetition),
    )
    if any(histogram and len(histogram) != highest + 1 for histogram, highest in levels) or (
        sizes.unencoded_byte_array_data_bytes is not None and kind != _BYTE_ARRAY
    ):
        raise CannotCopy(f"has sizes of column {name} that its type does not have")


def joined(pieces: Iterable[Piece], gap: int = 0) -> Iterator[Piece]:
    """Join ascending pieces with at most ``gap`` bytes between them."""
    current: Piece | None = None
    for piece in pieces:
        if current is None:
            current = piece
        elif piece.start - current.end <= gap:
            current = Piece(current.start, max(current.end, piece.end))
        else:
            yield current
            current = piece
    if current is not None:
        yield current


def check_apart(pieces: list[Piece], first: int, end: int) -> None:
    """Raise CannotCopy unless ascending pieces are between ``first`` and ``end`` and do not overlap."""
    if pieces and (pieces[0].start < first or pieces[-1].end > end):
        raise CannotCopy("claims column chunks outside the file")
    for before, after in pairwise(pieces):
        if after.start < before.end:
            raise CannotCopy(f"claims two things at byte {after.start}")


# Pages.

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_USUAL_HEADER = 512
_LONGEST_HEADER = 1024 * 1024
"""Headers may contain the smallest and largest value of their page."""


class PageWalk:
    """Walks over the pages of a column chunk and checks that they fill it and have the promised number of values.

    It takes the bytes in order, in parts of any size; ``pages`` are the data pages so far.  A page's checksum covers
    the compressed bytes after its header, for pages of every kind and version (apache/parquet-format,
    "Checksumming") (rule: verify-page-checksums).
    """

    def __init__(self, meta: ColumnMetaData) -> None:
        self.pages: list[Piece] = []
        self._meta = meta
        self._chunk = data_pages(meta)
        self._position = self._chunk.start
        self._body = 0
        """Bytes left of the current page."""
        self._head = b""
        """The beginning of an incomplete header."""
        self._values = 0
        self._promised: int | None = None
        """The checksum of the current page; ``None``: it has none."""
        self._crc = 0

    def feed(self, part: memoryview) -> None:
        """Take the next bytes.

        Raises:
            CannotCopy: they are not pages, or not the pages that the footer describes.
            DamagedPage: a page has a wrong checksum.
        """
        while len(part):
            if self._body:
                step = min(self._body, len(part))
                self._body -= step
                if self._promised is not None:
                    self._crc = zlib.crc32(part[:step], self._crc)
                    if not self._body:
                        self._check()
                part = part[step:]
                continue
            header = self._header(part)
            if header is None:
                return
            found, taken = header
            part = part[taken - len(self._head) :]
            self._head = b""
            self._begin(found, taken)

    def end(self) -> None:
        """Raise CannotCopy unless the bytes ended with a page and had the promised number of values."""
        name = self._name
        if self._body or self._head:
            raise CannotCopy(f"claims a column chunk of column {name} that ends within a page")
        if self._values != self._meta.num_values:
            raise CannotCopy(f"claims {self._meta.num_values} values of column {name}, its pages have {self._values}")

    def _check(self) -> None:
        if self._crc != self._promised:
            raise DamagedPage(f"a page of column {self._name} has a checksum that does not match its bytes")

    @property
    def _name(self) -> str:
        return b".".join(self._meta.path_in_schema).decode(errors="replace")

    def _header(self, part: memoryview) -> tuple[PageHeader, int] | None:
        """The next header and its size; ``None``: more bytes are needed."""
        for most in (_USUAL_HEADER, _LONGEST_HEADER):
            seen = self._head + bytes(part[: max(0, most - len(self._head))])
            # Keeping the error would keep this frame, and with it the block of ``part``.
            with suppress(CannotCopy):
                return read_struct(PageHeader, seen)
        if len(seen) >= _LONGEST_HEADER:
            raise CannotCopy(f"has no page of column {self._name} where a page should begin")
        self._head = seen
        return None

    def _begin(self, header: PageHeader, size: int) -> None:
        start = self._position
        self._body = header.compressed_page_size
        self._position += size + self._body
        if self._body < 0 or self._position > self._chunk.end:
            raise CannotCopy(f"has a page of column {self._name} outside of its column chunk")
        described = header.data_page_header if header.type == _DATA_PAGE else header.data_page_header_v2
        if header.type == _DICTIONARY_PAGE:
            if start != self._meta.dictionary_page_offset:
                raise CannotCopy(f"has a dictionary of column {self._name} that the footer does not name")
        elif header.type not in (_DATA_PAGE, _DATA_PAGE_V2) or described is None or described.num_values < 0:
            raise CannotCopy(f"has a page of column {self._name} of a kind that is not copied")
        else:
            if not self.pages and start != self._meta.data_page_offset:
                raise CannotCopy(f"claims a wrong place for the first data page of column {self._name}")
            self.pages.append(Piece(start, self._position))
            self._values += described.num_values
        # Thrift has no unsigned numbers.
        is_checked = header.crc is not None
        self._promised, self._crc = (header.crc or 0) & 0xFFFFFFFF if is_checked else None, 0
        if is_checked and not self._body:
            self._check()


# Column chunks that a store copies, so that we do not read them, are checked only by footer and page indexes
# (rule: store-copies-the-judged-object).  A footer may claim that a chunk ends before the end of its last page.
# Readers can still read the file, because the rest of the page follows; in a copy, other bytes follow.  So the end of
# each chunk must be certain: an offset index has pages that fill the chunk, or another part of the file begins there.


def ends_are_certain(groups: Sequence[RowGroup], footer_start: int) -> bool:
    """Whether every column chunk without an offset index ends where another part of the file begins."""
    chunks = [chunk for group in groups for chunk in group.columns]
    begins = {footer_start}
    for chunk in chunks:
        others = bloom_filter(chunk.meta_data), column_index(chunk), offset_index(chunk)
        begins.update(piece.start for piece in (data_pages(chunk.meta_data), *others) if piece is not None)
    return all(offset_index(chunk) is not None or data_pages(chunk.meta_data).end in begins for chunk in chunks)


def claimed_pages(groups: Sequence[RowGroup], indexes: Mapping[Piece, bytes]) -> dict[Piece, list[Piece]]:
    """The data pages of each chunk that has an offset index; raises CannotCopy unless they fill their chunk."""
    found = {}
    for group in groups:
        for chunk in group.columns:
            places = offset_index(chunk)
            if places is not None:
                found[data_pages(chunk.meta_data)] = _pages(chunk, indexes[places])
    return found


def _pages(chunk: ColumnChunk, data: bytes) -> list[Piece]:
    meta = chunk.meta_data
    locations = read_exactly(OffsetIndex, data).page_locations
    pages = [Piece(place.offset, place.offset + place.compressed_page_size) for place in locations]
    if (
        not pages
        or pages[0].start != meta.data_page_offset
        or pages[-1].end != data_pages(meta).end
        or any(page.size <= 0 for page in pages)
        or any(before.end != after.start for before, after in pairwise(pages))
    ):
        raise CannotCopy("has an offset index whose pages do not fill their column chunk")
    return pages
