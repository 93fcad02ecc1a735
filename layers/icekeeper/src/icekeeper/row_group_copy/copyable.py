"""Judges by its footer whether the row groups of a file can be copied into an output as they are (rule 129)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from icekeeper.row_group_copy.chunk_checks import (
    Piece,
    bloom_filter,
    check_apart,
    check_chunk,
    check_statistics,
    column_index,
    data_pages,
    joined,
    offset_index,
)
from icekeeper.row_group_copy.copyable_file import CopyableFile, CopyableRowGroup, counted_bytes, ranges_of
from icekeeper.row_group_copy.footer import MAGIC, Footer
from icekeeper.row_group_copy.footer_decisions import lacks_of, refuse
from icekeeper.row_group_copy.footer_structs import ColumnChunk, ColumnMetaData, FileMetaData, RowGroup
from icekeeper.row_group_copy.known_writers import check_writer
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.schema_fit import (
    LINEAGE_COLUMNS,
    ParquetColumn,
    ParquetSchema,
    fitted_schema,
    parquet_schema,
)
from icekeeper.row_group_copy.stored_lineage import stored_bounds
from icekeeper.rows.lineage import InheritedLineage
from icekeeper.rows.row_memory import value_bytes

__all__ = ["CODECS", "CopyTarget", "copy_target", "judge_file"]

# Values of write.parquet.compression-codec → CompressionCodec of the format.  LZ4 (5) is the deprecated framing.
CODECS = {"uncompressed": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7, "lz4_raw": 7}
_NEVER_FULL = 2**62
_MOST_INDEX_BYTES = 64 * 1024 * 1024
"""The page indexes of all inputs are kept in memory until the data are written."""
# Spark's marks of values in the old calendar; only Spark knows what they mean for a whole file.
_CALENDAR_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """What an output must be: its schema, its codec (the format's number), how large row groups must be, and how much
    its manifest entry tells of each column (``none``, ``counts``, ``truncate(n)`` or ``full``, by field id).

    ``min_row_group_bytes`` is the least average size of a file's row groups, compressed.  An average, because writers
    end a file with a small one; and outputs made of copyable files are copyable again.  Rows that take
    ``full_row_group_memory`` bytes in memory stand for as many (:func:`.counted_bytes`).
    """

    schema: ParquetSchema
    codec: int
    min_row_group_bytes: int
    modes: Mapping[int, str]
    full_row_group_memory: int
    verify_checksums: bool = True
    """Whether pages that are copied and have a checksum must have that of their bytes."""


def copy_target(
    schema: Mapping[str, Any],
    codec: str,
    min_row_group_copy_bytes: int,
    modes: Mapping[int, str],
    full_row_group_memory: int = _NEVER_FULL,
) -> CopyTarget:
    """The target for outputs of an Iceberg schema; ``codec`` as in ``write.parquet.compression-codec``, ``modes`` by
    ``write.metadata.metrics.*``; without ``full_row_group_memory`` the bytes in the file alone count.

    Raises:
        TableUnsupported: a column type is not rewritten by this version.
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
) -> CopyableFile | NotCopyable:
    """Whether a file can be copied; ``record_count`` is what its manifest entry says, ``None``: there is none.

    ``lineage`` is what its rows inherit, for targets with columns of row lineage; ``None``: all of them must be stored.
    ``without_nan`` are the ids of the float columns that hold no NaN by the manifest.
    """
    try:
        return _copyable(footer, target, record_count, lineage, without_nan)
    except CannotCopy as refused:
        return NotCopyable(footer.path, str(refused))


def _copyable(
    footer: Footer,
    target: CopyTarget,
    record_count: int | None,
    lineage: InheritedLineage | None,
    without_nan: Collection[int],
) -> CopyableFile:
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
    indexes = [piece for chunk in chunks for piece in _indexes(chunk)]
    check_apart(sorted([*(piece for chunk in chunks for piece in _copied(chunk)), *indexes]), len(MAGIC), footer.start)
    _check_row_group_sizes(groups, columns, target)
    if sum(piece.size for piece in indexes) > _MOST_INDEX_BYTES:
        raise CannotCopy(f"has page indexes of more than {_MOST_INDEX_BYTES} bytes")
    keys = {pair.key: pair.value for pair in metadata.key_value_metadata or ()}
    parts = tuple(_row_groups(metadata.row_groups, columns, schema, without_nan))
    if lineage is None and schema.has_lineage and any(part.columns < len(schema.columns) for part in parts):
        # They must not share a file with others (rule 18).
        raise CannotCopy("has rows without ids, which get theirs from a commit")
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
    groups: Sequence[RowGroup], columns: Sequence[ParquetColumn], schema: ParquetSchema, without_nan: Collection[int]
) -> Iterator[CopyableRowGroup]:
    """The row groups that have rows."""
    first_row = 0
    for number, group in enumerate(groups):
        if group.num_rows:
            is_new = schema.has_lineage and (len(columns) < len(schema.columns) or stored_bounds(group) is None)
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
    """At least what the rows of a row group take as Arrow has them."""
    return sum(_memory_of(chunk.meta_data, column) for chunk, column in zip(group.columns, columns, strict=True))


def _memory_of(meta: ColumnMetaData, column: ParquetColumn) -> int:
    sizes = meta.size_statistics
    texts = 0 if sizes is None else sizes.unencoded_byte_array_data_bytes or 0
    # Of texts whose size nobody wrote down only what they take in the file is certain.
    return max(meta.total_uncompressed_size, int(meta.num_values * value_bytes(column.leaf.iceberg_type)) + texts)


def _check_row_group(group: RowGroup, columns: Sequence[ParquetColumn], codec: int) -> int:
    """Where the row group begins in the file, after all checks of what its chunks say."""
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


def _indexes(chunk: ColumnChunk) -> Iterator[Piece]:
    yield from (piece for piece in (column_index(chunk), offset_index(chunk)) if piece is not None)
