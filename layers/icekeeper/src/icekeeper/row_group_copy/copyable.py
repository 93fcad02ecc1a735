"""Judges by its footer whether a file's row groups can be copied unchanged, and plans the layout of the new file
(pure) (rule: copy-only-checked-footers).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import accumulate, pairwise
from operator import or_
from typing import Any

from icekeeper.row_group_copy.footer import (
    LINEAGE_COLUMNS,
    MAGIC,
    Footer,
    ParquetColumn,
    ParquetSchema,
    Piece,
    bloom_filter,
    check_apart,
    check_chunk,
    check_statistics,
    column_index,
    data_pages,
    fitted_schema,
    joined,
    offset_index,
    parquet_schema,
)
from icekeeper.row_group_copy.footer_decisions import (
    NOTHING_LACKS,
    Lacks,
    check_writer,
    has_right_statistics,
    lacks_of,
    refuse,
)
from icekeeper.row_group_copy.footer_structs import CannotCopy, ColumnChunk, FileMetaData, NotCopyable, RowGroup
from icekeeper.rows.arrow_schema import value_bytes
from icekeeper.rows.read_task import InheritedLineage


@dataclass(frozen=True, slots=True)
class FloatFacts:
    """The NaN count of a column chunk and, if it was decoded, its bounds; ``None``: it has no numbers."""

    nans: int
    bounds: tuple[float, float] | None = None
    is_decoded: bool = False


@dataclass(frozen=True, slots=True)
class CopyableRowGroup:
    """A row group that has rows."""

    number: int
    """Its index among all row groups of the footer, from 0."""
    first_row: int
    """The position of its first row in the file."""
    row_count: int
    lacks: Lacks
    """Optional fields that it lacks; in an output, either all row groups have such a field or none has it."""
    ranges: tuple[Piece, ...]
    """The bytes to copy, ascending: column chunks and Bloom filters."""
    column_index_bytes: int
    memory_bytes: int
    """The least memory that its rows take in Arrow."""
    columns: int
    """The number of columns to copy; lineage columns after them, if any, are encoded again."""
    floats: Mapping[int, FloatFacts] = field(default_factory=dict)
    """By field id, for float columns without a NaN count in the file's manifest entry."""

    @property
    def positions(self) -> range:
        """The positions of its rows in the file, as in position deletes."""
        return range(self.first_row, self.first_row + self.row_count)

    @property
    def copied_bytes(self) -> int:
        return sum(piece.size for piece in self.ranges)


@dataclass(frozen=True, slots=True)
class CopyableFile:
    """A file of which all or some row groups can be copied; takes little memory besides the footer's bytes."""

    footer: Footer
    groups: tuple[CopyableRowGroup, ...]
    """The row groups to copy, in order, without empty row groups."""
    ranges: tuple[Piece, ...]
    """The bytes to copy, ascending: column chunks and Bloom filters."""
    nullability: bytes
    """The :attr:`.ParquetSchema.nullability`: only files with equal nullability can share an output."""
    created_by: bytes
    iceberg_schema: bytes | None
    """Iceberg-Java's key-value metadata ``iceberg.schema``."""
    lineage: InheritedLineage | None
    """The lineage that the file's rows inherit, if outputs have lineage columns."""
    stores_lineage: bool
    """Whether the file itself has lineage columns; a null in them means that the row inherits the value."""

    @property
    def path(self) -> str:
        return self.footer.path

    @property
    def gets_lineage(self) -> bool:
        """Whether lineage columns are added."""
        return self.lineage is not None and not self.stores_lineage

    @property
    def row_groups(self) -> int:
        return len(self.groups)

    @property
    def row_count(self) -> int:
        return sum(group.row_count for group in self.groups)

    @property
    def has_page_index(self) -> bool:
        """Whether every column chunk to copy has an offset index."""
        return not any(group.lacks.offset_index for group in self.groups)

    @property
    def column_index_bytes(self) -> int:
        """Bytes of all column indexes; the new file may not have all of them."""
        return sum(group.column_index_bytes for group in self.groups)

    @property
    def copied_bytes(self) -> int:
        return sum(piece.size for piece in self.ranges)

    @property
    def memory_bytes(self) -> int:
        """The least memory that the rows to copy take in Arrow."""
        return sum(group.memory_bytes for group in self.groups)

    def carried(self) -> list[RowGroup]:
        """New descriptions of the row groups and columns to copy, as in the footer; the caller may change them."""
        found = self.footer.metadata().row_groups
        groups = []
        for wanted in self.groups:
            group = found[wanted.number]
            dropped = sum(chunk.meta_data.total_uncompressed_size for chunk in group.columns[wanted.columns :])
            groups.append(
                replace(group, columns=group.columns[: wanted.columns], total_byte_size=group.total_byte_size - dropped)
            )
        return groups

    def only(self, numbers: Collection[int]) -> CopyableFile:
        """The same file with only these row groups to copy, by number; raises ValueError if a row group is not among
        the row groups to copy."""
        wanted = set(numbers)
        groups = tuple(group for group in self.groups if group.number in wanted)
        if len(groups) != len(wanted):
            missing = min(wanted - {group.number for group in groups})
            raise ValueError(f"{self.path} has no row group {missing} to copy")
        return replace(self, groups=groups, ranges=ranges_of(groups))


def counted_bytes(size: int, memory: int, least: int, full: int) -> int:
    """The bytes of row groups to compare with the limit ``least`` for each.

    ``full`` bytes of ``memory`` count as ``least`` bytes in the file.  A writer ends a row group that fills its memory,
    even if it is small in the file; decoding would not give larger row groups.
    """
    return max(size, memory * least // full)


def ranges_of(groups: Sequence[CopyableRowGroup]) -> tuple[Piece, ...]:
    """The bytes of row groups, ascending, in as few ranges as possible."""
    return tuple(joined(sorted(piece for group in groups for piece in group.ranges)))


# Values of write.parquet.compression-codec → CompressionCodec of the format.  LZ4 (5) is the deprecated framing.
CODECS = {"uncompressed": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7, "lz4_raw": 7}
_NEVER_FULL = 2**62
_MOST_INDEX_BYTES = 64 * 1024 * 1024
"""Limit of the page indexes of an input; those of all inputs are in memory until the data are written."""
# Spark's marks of values in the old calendar: they apply to a whole file.
_CALENDAR_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """The requirements for an output."""

    schema: ParquetSchema
    codec: int
    """The codec's number in the Parquet format."""
    min_row_group_bytes: int
    """The least average size of an input's row groups, compressed.  It is an average because writers end a file with a
    small row group, and because outputs of copyable files must be copyable again."""
    modes: Mapping[int, str]
    """Metrics of the manifest entry by field id: ``none``, ``counts``, ``truncate(n)`` or ``full``."""
    full_row_group_memory: int
    """Rows that take this much memory count as a row group of ``min_row_group_bytes`` (:func:`counted_bytes`)."""


def copy_target(
    schema: Mapping[str, Any],
    codec: str,
    min_row_group_copy_bytes: int,
    modes: Mapping[int, str],
    full_row_group_memory: int = _NEVER_FULL,
) -> CopyTarget:
    """The target for outputs of an Iceberg schema.

    ``codec`` is a value of ``write.parquet.compression-codec``; ``modes`` follow ``write.metadata.metrics.*``.  Without
    ``full_row_group_memory`` only the bytes in the file count.

    Raises:
        TableUnsupported: this version does not rewrite a column's type.
        KeyError: there is no such codec.
    """
    return CopyTarget(
        parquet_schema(schema), CODECS[codec.lower()], min_row_group_copy_bytes, modes, full_row_group_memory
    )


def judge_file(
    footer: Footer,
    target: CopyTarget,
    record_count: int | None = None,
    lineage: InheritedLineage | None = None,
    without_nan: Collection[int] = (),
) -> CopyableFile:
    """Describe a file to copy; ``record_count``: from its manifest entry; ``None``: it has no entry.

    ``lineage``: the lineage that its rows inherit, for targets with lineage columns; ``None``: all ids must be stored.
    ``without_nan``: the ids of the float columns that have no NaN according to the manifest.

    Raises:
        CannotCopy: it must be decoded.
    """
    metadata = footer.metadata()
    check_writer(metadata.created_by)
    schema = fitted_schema(metadata.schema, target.schema)
    columns = schema.columns[: len(schema.columns) + len(metadata.schema) - len(schema.elements)]
    _check_whole_file(metadata, columns, record_count)
    groups = [group for group in metadata.row_groups if group.num_rows]
    places = [_check_row_group(group, columns, target.codec) for group in groups]
    for before, after in pairwise(places):
        if after < before:
            raise CannotCopy("has its row groups in another order than its rows")
    chunks = [chunk for group in groups for chunk in group.columns]
    indexes = [piece for chunk in chunks for piece in (column_index(chunk), offset_index(chunk)) if piece is not None]
    check_apart(sorted([*(piece for chunk in chunks for piece in _copied(chunk)), *indexes]), len(MAGIC), footer.start)
    _check_row_group_sizes(groups, columns, target)
    if sum(piece.size for piece in indexes) > _MOST_INDEX_BYTES:
        raise CannotCopy(f"has page indexes of more than {_MOST_INDEX_BYTES} bytes")
    keys = {pair.key: pair.value for pair in metadata.key_value_metadata or ()}
    parts = tuple(_row_groups(metadata, columns, schema, without_nan))
    if lineage is None and schema.has_lineage and any(part.columns < len(schema.columns) for part in parts):
        # Such rows must not share a file with rows that have ids (rule: rows-keep-their-lineage).
        raise CannotCopy("has rows without ids, which will get ids from a commit")
    return CopyableFile(
        footer=footer.with_bytes_from(min((piece.start for piece in indexes), default=footer.start)),
        groups=parts,
        ranges=ranges_of(parts),
        nullability=schema.nullability,
        created_by=metadata.created_by or b"",
        iceberg_schema=keys.get(b"iceberg.schema"),
        lineage=lineage if schema.has_lineage else None,
        stores_lineage=schema.has_lineage and len(columns) == len(schema.columns),
    )


def _row_groups(
    metadata: FileMetaData, columns: Sequence[ParquetColumn], schema: ParquetSchema, without_nan: Collection[int]
) -> Iterator[CopyableRowGroup]:
    is_right = has_right_statistics(metadata.created_by)
    first_row = 0
    for number, group in enumerate(metadata.row_groups):
        if group.num_rows:
            may_be_stored = is_right and len(columns) == len(schema.columns)
            is_new = schema.has_lineage and (not may_be_stored or stored_bounds(group) is None)
            carried = group.columns[: len(schema.columns) - LINEAGE_COLUMNS] if is_new else group.columns
            yield CopyableRowGroup(
                number=number,
                first_row=first_row,
                row_count=group.num_rows,
                ranges=tuple(joined(sorted(piece for chunk in carried for piece in _copied(chunk)))),
                column_index_bytes=sum(piece.size for chunk in carried if (piece := column_index(chunk)) is not None),
                memory_bytes=_memory_bytes(group, columns),
                columns=len(carried),
                lacks=lacks_of(carried, columns, without_nan),
            )
        first_row += group.num_rows


def _check_whole_file(metadata: FileMetaData, columns: Sequence[ParquetColumn], record_count: int | None) -> None:
    refuse(metadata)
    for pair in metadata.key_value_metadata or ():
        if pair.key in _CALENDAR_KEYS:
            raise CannotCopy(f"has values in another calendar ({pair.key.decode()})")
    orders = metadata.column_orders or []
    if len(orders) != len(columns) or any(order.type_order is None for order in orders):
        raise CannotCopy("orders its bounds otherwise than by the type of each column")
    if any(group.num_rows < 0 for group in metadata.row_groups):
        raise CannotCopy("claims a row group with less than no rows")
    rows = sum(group.num_rows for group in metadata.row_groups)
    if rows != metadata.num_rows:
        raise CannotCopy(f"has row groups of {rows} rows in all, but claims {metadata.num_rows}")
    if record_count is not None and rows != record_count:
        raise CannotCopy(f"has {rows} rows, its manifest entry says {record_count}")
    for number, group in enumerate(metadata.row_groups):
        if group.ordinal not in (None, number):
            raise CannotCopy(f"claims that row group {number} is number {group.ordinal}")


def _check_row_group_sizes(groups: Sequence[RowGroup], columns: Sequence[ParquetColumn], target: CopyTarget) -> None:
    size = sum(data_pages(chunk.meta_data).size for group in groups for chunk in group.columns)
    memory = sum(_memory_bytes(group, columns) for group in groups)
    least = target.min_row_group_bytes
    if counted_bytes(size, memory, least, target.full_row_group_memory) < least * len(groups):
        raise CannotCopy(f"has row groups of {size // len(groups)} bytes on average, below {least}")


def _memory_bytes(group: RowGroup, columns: Sequence[ParquetColumn]) -> int:
    total = 0
    for chunk, column in zip(group.columns, columns, strict=True):
        meta, sizes = chunk.meta_data, chunk.meta_data.size_statistics
        texts = 0 if sizes is None else sizes.unencoded_byte_array_data_bytes or 0
        # If the writer did not record the size of texts, only their size in the file is known.
        values = int(meta.num_values * value_bytes(column.leaf.iceberg_type)) + texts
        total += max(meta.total_uncompressed_size, values)
    return total


def _check_row_group(group: RowGroup, columns: Sequence[ParquetColumn], codec: int) -> int:
    """Check the descriptions of all column chunks; the offset at which the row group begins."""
    if len(group.columns) != len(columns):
        raise CannotCopy(f"has a row group of {len(group.columns)} columns, the schema has {len(columns)}")
    for chunk, column in zip(group.columns, columns, strict=True):
        refuse(chunk)
        check_chunk(chunk, column, group, codec)
        check_statistics(chunk.meta_data, column)
    if any(not 0 <= sorting.column_idx < len(columns) for sorting in group.sorting_columns or ()):
        raise CannotCopy("claims that rows are sorted by a column that it does not have")
    size = sum(chunk.meta_data.total_compressed_size for chunk in group.columns)
    if group.total_compressed_size not in (None, 0, size):
        raise CannotCopy(f"claims a row group of {group.total_compressed_size} bytes, its columns have {size}")
    return min((data_pages(chunk.meta_data).start for chunk in group.columns), default=0)


def _copied(chunk: ColumnChunk) -> Iterator[Piece]:
    yield data_pages(chunk.meta_data)
    bloom = bloom_filter(chunk.meta_data)
    if bloom is not None:
        yield bloom


def stored_bounds(group: RowGroup) -> tuple[tuple[int, int], ...] | None:
    """The smallest and largest value of both lineage columns of a row group that has them; ``None``: do not copy them.

    Copied columns must have a value for every row, and bounds for the manifest.  A null means that the row inherits
    from its file; in the new file it would inherit another value (rule: rows-keep-their-lineage).
    """
    found = []
    for chunk in group.columns[-LINEAGE_COLUMNS:]:
        stats = chunk.meta_data.statistics
        if stats is None or stats.null_count != 0 or stats.min_value is None or stats.max_value is None:
            return None
        if False in (stats.is_min_value_exact, stats.is_max_value_exact):
            return None
        found.append((struct.unpack("<q", stats.min_value)[0], struct.unpack("<q", stats.max_value)[0]))
    return tuple(found)


# Layout of the new file:
#
#     PAR1 | row groups and Bloom filters of input 1, of input 2, … | new lineage columns | column indexes |
#     offset indexes | footer
#
# Each input's bytes keep their order.  The new lineage columns of all row groups are together, so that the copied
# ranges remain large: if a store copies ranges, each of our own pieces between them becomes a part of 5 MiB.  The
# format requires contiguous column chunks, but not contiguous row groups.  Page indexes of all inputs are next to the
# footer, because readers fetch them together.

_MOST_ROW_GROUPS = 2**15 - 1
"""``RowGroup.ordinal`` has 16 bits."""
_MOST_FOOTER_BYTES = 64 * 1024 * 1024
"""Arrow refuses a footer with a text or list above 100 MB, and every reader reads the whole footer."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranges of an input begin in the new file, and the number of its first row group there."""

    file: CopyableFile
    starts: tuple[int, ...]
    first_row_group: int

    def moved(self, offset: int) -> int:
        """The new offset of a byte of the file; raises CannotCopy if it is not copied."""
        ranges = self.file.ranges
        found = bisect_right(ranges, offset, key=lambda piece: piece.start) - 1
        if found < 0 or offset >= ranges[found].end:
            raise CannotCopy(f"refers to byte {offset}, which is not copied")
        return self.starts[found] + offset - ranges[found].start


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of the inputs in the new file, in order."""

    placements: tuple[Placement, ...]
    data_end: int
    """The end of the copied ranges."""
    row_groups: int
    lacks: Lacks
    """Optional fields that the new footer omits for all row groups, because at least one row group lacks them."""


def lay_out(files: Sequence[CopyableFile]) -> Layout | NotCopyable:
    """The layout of a file with the row groups of these files in order."""
    data_end = len(MAGIC) + sum(file.copied_bytes for file in files)
    placements: list[Placement] = []
    position, row_groups, footer_bytes = len(MAGIC), 0, 0
    for file in files:
        if file.nullability != files[0].nullability:
            return NotCopyable(file.path, f"has other required columns than {files[0].path}")
        starts = tuple(accumulate((piece.size for piece in file.ranges), initial=position))
        placements.append(Placement(file, starts[:-1], row_groups))
        position = starts[-1]
        row_groups += file.row_groups
        footer_bytes += len(file.footer.thrift)
        if row_groups > _MOST_ROW_GROUPS:
            return NotCopyable(file.path, f"would bring an output to more than {_MOST_ROW_GROUPS} row groups")
        if footer_bytes > _MOST_FOOTER_BYTES:
            return NotCopyable(file.path, f"would bring an output to a footer of more than {_MOST_FOOTER_BYTES} bytes")
    lacks = reduce(or_, (group.lacks for file in files for group in file.groups), NOTHING_LACKS)
    return Layout(tuple(placements), data_end, row_groups, lacks)
