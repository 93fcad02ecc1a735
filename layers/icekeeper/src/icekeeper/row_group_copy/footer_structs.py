"""The Thrift structures of a Parquet footer (apache/parquet-format 2.12, ``parquet.thrift``).

Fields that the format requires have a default that is not ``None``, so that a structure that lacks one is written
differently from how it was read: :mod:`.thrift_bytes` sees that.  What a copy cannot carry over (encrypted columns,
geometry) is left out, and is seen in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from icekeeper.row_group_copy.schema_structs import SchemaElement
from icekeeper.row_group_copy.thrift_fields import BOOL, BYTES, EMPTY, I16, I32, I64, Empty, describe, list_of, struct

__all__ = [
    "ColumnChunk",
    "ColumnMetaData",
    "ColumnOrder",
    "FileMetaData",
    "KeyValue",
    "PageEncodingStats",
    "RowGroup",
    "SizeStatistics",
    "SortingColumn",
    "Statistics",
]


@dataclass(slots=True)
class Statistics:
    """Statistics of a column chunk; ``max`` and ``min`` are the deprecated ones."""

    max: bytes | None = None
    min: bytes | None = None
    null_count: int | None = None
    distinct_count: int | None = None
    max_value: bytes | None = None
    min_value: bytes | None = None
    is_max_value_exact: bool | None = None
    is_min_value_exact: bool | None = None
    nan_count: int | None = None
    """DuckDB writes it from 2.0 on."""
    thrift_spec: ClassVar[Any] = ()


describe(Statistics, BYTES, BYTES, I64, I64, BYTES, BYTES, BOOL, BOOL, I64)


@dataclass(slots=True)
class SizeStatistics:
    """Sizes and level histograms of a column chunk."""

    unencoded_byte_array_data_bytes: int | None = None
    repetition_level_histogram: list[int] | None = None
    definition_level_histogram: list[int] | None = None
    thrift_spec: ClassVar[Any] = ()


describe(SizeStatistics, I64, list_of(I64), list_of(I64))


@dataclass(slots=True)
class KeyValue:
    """An entry of the key-value metadata."""

    key: bytes = b""
    value: bytes | None = None
    thrift_spec: ClassVar[Any] = ()


describe(KeyValue, BYTES, BYTES)


@dataclass(slots=True)
class PageEncodingStats:
    """How many pages of a kind have an encoding."""

    page_type: int = 0
    encoding: int = 0
    count: int = 0
    thrift_spec: ClassVar[Any] = ()


describe(PageEncodingStats, I32, I32, I32)


@dataclass(slots=True)
class ColumnMetaData:
    """Describes a column chunk; offsets and sizes in bytes of the file."""

    type: int = 0
    encodings: list[int] = field(default_factory=list)
    path_in_schema: list[bytes] = field(default_factory=list)
    codec: int = 0
    num_values: int = 0
    total_uncompressed_size: int = 0
    total_compressed_size: int = 0
    key_value_metadata: list[KeyValue] | None = None
    data_page_offset: int = 0
    index_page_offset: int | None = None
    dictionary_page_offset: int | None = None
    statistics: Statistics | None = None
    encoding_stats: list[PageEncodingStats] | None = None
    bloom_filter_offset: int | None = None
    bloom_filter_length: int | None = None
    size_statistics: SizeStatistics | None = None
    thrift_spec: ClassVar[Any] = ()


describe(
    ColumnMetaData,
    *(I32, list_of(I32), list_of(BYTES), I32, I64, I64, I64, list_of(struct(KeyValue)), I64, I64, I64),
    *(struct(Statistics), list_of(struct(PageEncodingStats)), I64, I32, struct(SizeStatistics)),
)


@dataclass(slots=True)
class ColumnChunk:
    """A column chunk and where its page index lies."""

    file_path: bytes | None = None
    file_offset: int = 0
    meta_data: ColumnMetaData = field(default_factory=ColumnMetaData)
    offset_index_offset: int | None = None
    offset_index_length: int | None = None
    column_index_offset: int | None = None
    column_index_length: int | None = None
    thrift_spec: ClassVar[Any] = ()


describe(ColumnChunk, BYTES, I64, struct(ColumnMetaData), I64, I32, I64, I32)


@dataclass(slots=True)
class SortingColumn:
    """A column that a row group is sorted by; ``column_idx`` counts leaf columns."""

    column_idx: int = 0
    descending: bool = False
    nulls_first: bool = False
    thrift_spec: ClassVar[Any] = ()


describe(SortingColumn, I32, BOOL, BOOL)


@dataclass(slots=True)
class RowGroup:
    """A row group."""

    columns: list[ColumnChunk] = field(default_factory=list)
    total_byte_size: int = 0
    num_rows: int = 0
    sorting_columns: list[SortingColumn] | None = None
    file_offset: int | None = None
    total_compressed_size: int | None = None
    ordinal: int | None = None
    thrift_spec: ClassVar[Any] = ()


describe(RowGroup, list_of(struct(ColumnChunk)), I64, I64, list_of(struct(SortingColumn)), I64, I64, I16)


@dataclass(slots=True)
class ColumnOrder:
    """A union; Iceberg's types all have the order of their type."""

    type_order: Empty | None = None
    thrift_spec: ClassVar[Any] = ()


describe(ColumnOrder, EMPTY)


@dataclass(slots=True)
class FileMetaData:
    """The footer."""

    version: int = 0
    schema: list[SchemaElement] = field(default_factory=list)
    num_rows: int = 0
    row_groups: list[RowGroup] = field(default_factory=list)
    key_value_metadata: list[KeyValue] | None = None
    created_by: bytes | None = None
    column_orders: list[ColumnOrder] | None = None
    encryption_algorithm: Empty | None = None
    """Present where columns are encrypted."""
    thrift_spec: ClassVar[Any] = ()


describe(
    FileMetaData,
    *(I32, list_of(struct(SchemaElement)), I64, list_of(struct(RowGroup)), list_of(struct(KeyValue)), BYTES),
    *(list_of(struct(ColumnOrder)), EMPTY),
)
