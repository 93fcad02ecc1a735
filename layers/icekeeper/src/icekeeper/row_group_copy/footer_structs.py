"""The Thrift structures of Parquet footers, page headers and page indexes (apache/parquet-format 2.12,
``parquet.thrift``), and how they are read and written.

Structures that a copy cannot contain (encrypted columns) are left out.  The reader drops fields that it does
not know, so :func:`read_exactly` checks that writing the structure gives the same bytes again.  For the same reason,
fields that the format requires have a default that is not ``None``: if such a field is missing, the bytes differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from thrift.protocol.fastbinary import decode_compact, encode_compact
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer


@dataclass(frozen=True, slots=True)
class NotCopyable:
    """A file whose rows must be decoded; its path and ``reason`` together are a sentence."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


class CannotCopy(Exception):
    """A check failed; public functions return a :class:`NotCopyable` with this message as its reason."""


class DamagedPage(CannotCopy):
    """A page has a wrong checksum, so decoding the file would not help."""


# Apache Thrift's compiled reader and writer of the compact protocol are fast enough.
# The reader descends at most 64 levels, and refuses a text or list longer than
# its input.

T = TypeVar("T")


def read_struct(kind: type[T], data: bytes) -> tuple[T, int]:
    """The structure at the beginning of ``data`` and its size in bytes; unknown fields are dropped.  Raises
    CannotCopy if it is damaged or does not end within ``data``."""
    buffer = TMemoryBuffer(data)
    # The attributes that the compiled function uses: making a Thrift protocol takes longer than reading a page.
    protocol = SimpleNamespace(trans=buffer, string_length_limit=len(data), container_length_limit=len(data))
    found = kind()
    description: Any = kind
    try:
        decode_compact(found, protocol, [kind, description.thrift_spec])
    except (EOFError, OverflowError, TypeError, ValueError, TProtocolException, MemoryError) as error:
        raise CannotCopy(f"is damaged: {error or 'it ends too early'}") from error
    return found, buffer.cstringio_buf.tell()


def read_exactly(kind: type[T], data: bytes) -> T:
    """The structure in ``data``; raises CannotCopy if it is damaged or has unknown fields."""
    found, _ = read_struct(kind, data)
    if write_struct(found) != data:
        raise CannotCopy("has fields that this version of Icekeeper does not know")
    return found


def write_struct(value: Any) -> bytes:
    """The bytes of a structure; raises CannotCopy if a number does not fit its field, or a value is missing in a
    list."""
    try:
        return bytes(encode_compact(value, [type(value), type(value).thrift_spec]))
    except (OverflowError, TypeError, ValueError) as error:
        raise CannotCopy(f"is damaged: {error}") from error


# Ids and types of fields, in the form that Thrift's compiled reader and writer need.

Kind: TypeAlias = tuple[int, Any]
BOOL: Kind = (TType.BOOL, None)
I8: Kind = (TType.BYTE, None)
I16: Kind = (TType.I16, None)
I32: Kind = (TType.I32, None)
I64: Kind = (TType.I64, None)
DOUBLE: Kind = (TType.DOUBLE, None)
# Names are also bytes, so that a name that is not UTF-8 needs no special case.
BYTES: Kind = (TType.STRING, "BINARY")


def struct(kind: type[Any]) -> Kind:
    """The type of a field that holds a structure."""
    return TType.STRUCT, [kind, kind.thrift_spec]


def list_of(kind: Kind) -> Kind:
    """The type of a field that holds a list."""
    return TType.LIST, (*kind, False)


def thrift(*types: Kind | None) -> Callable[[type[T]], type[T]]:
    """Give a dataclass the types of its fields; the first field has id 1, ``None`` skips an id."""

    def described(kind: type[T]) -> type[T]:
        made: Any = kind
        names = iter([field.name for field in fields(made)])
        numbered = enumerate(types, 1)
        made.thrift_spec = (None, *(t and (number, t[0], next(names), t[1], None) for number, t in numbered))
        return kind

    return described


@thrift()
@dataclass(slots=True)
class Empty:
    """A structure without fields: only its presence matters."""


EMPTY: Kind = struct(Empty)


# Page headers and page indexes.


@thrift(I64, I32, I64)
@dataclass(slots=True)
class PageLocation:
    """A data page: the offset of its header, its size with the header, its first row in the row group."""

    offset: int = 0
    compressed_page_size: int = 0
    first_row_index: int = 0


@thrift(list_of(struct(PageLocation)), list_of(I64))
@dataclass(slots=True)
class OffsetIndex:
    """The places of the data pages of a column chunk."""

    page_locations: list[PageLocation] = field(default_factory=list)
    unencoded_byte_array_data_bytes: list[int] | None = None


@thrift(I32)
@dataclass(slots=True)
class DataPageHeader:
    """The field that both kinds of data page headers begin with."""

    num_values: int = 0


@thrift(I32, I32, I32, I32, struct(DataPageHeader), None, None, struct(DataPageHeader))
@dataclass(slots=True)
class PageHeader:
    """The fields of a page header that :class:`.PageWalk` needs."""

    type: int = -1
    uncompressed_page_size: int = 0
    compressed_page_size: int = -1
    crc: int | None = None
    data_page_header: DataPageHeader | None = None
    data_page_header_v2: DataPageHeader | None = None


# The schema, without types that Iceberg columns do not have.


@thrift(I32, I32)
@dataclass(slots=True)
class DecimalType:
    """Annotation of decimals."""

    scale: int = 0
    precision: int = 0


@thrift(EMPTY, EMPTY, EMPTY)
@dataclass(slots=True)
class TimeUnit:
    """A union: exactly one is set."""

    millis: Empty | None = None
    micros: Empty | None = None
    nanos: Empty | None = None


@thrift(BOOL, struct(TimeUnit))
@dataclass(slots=True)
class TimeType:
    """Annotation of times and timestamps."""

    is_adjusted_to_utc: bool = False
    unit: TimeUnit = field(default_factory=TimeUnit)


@thrift(I8, BOOL)
@dataclass(slots=True)
class IntType:
    """Annotation of integers."""

    bit_width: int = 0
    is_signed: bool = False


@thrift(BYTES)
@dataclass(slots=True)
class GeometryType:
    """Annotation of geometries; without a reference system it is ``OGC:CRS84``."""

    crs: bytes | None = None


@thrift(BYTES, I32)
@dataclass(slots=True)
class GeographyType:
    """Annotation of geographies; the algorithm is an index of :data:`.EDGES`."""

    crs: bytes | None = None
    algorithm: int | None = None


@thrift(I8)
@dataclass(slots=True)
class VariantType:
    """Annotation of the group of a variant; without a version it is 1."""

    specification_version: int | None = None


@thrift(
    *(EMPTY, EMPTY, EMPTY, None, struct(DecimalType), EMPTY, struct(TimeType), struct(TimeType)),
    *(None, struct(IntType), None, None, None, EMPTY, None, struct(VariantType)),
    *(struct(GeometryType), struct(GeographyType)),
)
@dataclass(slots=True)
class LogicalType:
    """A union: exactly one is set."""

    string: Empty | None = None
    map: Empty | None = None
    list: Empty | None = None
    decimal: DecimalType | None = None
    date: Empty | None = None
    time: TimeType | None = None
    timestamp: TimeType | None = None
    integer: IntType | None = None
    uuid: Empty | None = None
    variant: VariantType | None = None
    geometry: GeometryType | None = None
    geography: GeographyType | None = None


@thrift(I32, I32, I32, BYTES, I32, I32, I32, I32, I32, struct(LogicalType))
@dataclass(slots=True)
class SchemaElement:
    """A group or column of the schema, which is a list in depth-first order, the root first."""

    type: int | None = None
    type_length: int | None = None
    repetition_type: int | None = None
    name: bytes = b""
    num_children: int | None = None
    converted_type: int | None = None
    scale: int | None = None
    precision: int | None = None
    field_id: int | None = None
    logical_type: LogicalType | None = None


# The footer.


@thrift(BYTES, BYTES, I64, I64, BYTES, BYTES, BOOL, BOOL, I64)
@dataclass(slots=True)
class Statistics:
    """Statistics of a column chunk; ``max`` and ``min`` are deprecated."""

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


@thrift(I64, list_of(I64), list_of(I64))
@dataclass(slots=True)
class SizeStatistics:
    """Sizes and level histograms of a column chunk."""

    unencoded_byte_array_data_bytes: int | None = None
    repetition_level_histogram: list[int] | None = None
    definition_level_histogram: list[int] | None = None


@thrift(DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE, DOUBLE)
@dataclass(slots=True)
class BoundingBox:
    """The box around the shapes of a column chunk; its least x may be above its greatest, across the antimeridian."""

    xmin: float = 0.0
    xmax: float = 0.0
    ymin: float = 0.0
    ymax: float = 0.0
    zmin: float | None = None
    zmax: float | None = None
    mmin: float | None = None
    mmax: float | None = None


@thrift(struct(BoundingBox), list_of(I32))
@dataclass(slots=True)
class GeospatialStatistics:
    """The box and the kinds of the shapes of a column chunk; they are as true of the chunk in another file."""

    bbox: BoundingBox | None = None
    geospatial_types: list[int] | None = None


@thrift(BYTES, BYTES)
@dataclass(slots=True)
class KeyValue:
    """An entry of the key-value metadata."""

    key: bytes = b""
    value: bytes | None = None


@thrift(I32, I32, I32)
@dataclass(slots=True)
class PageEncodingStats:
    """How many pages of a kind have an encoding."""

    page_type: int = 0
    encoding: int = 0
    count: int = 0


@thrift(
    *(I32, list_of(I32), list_of(BYTES), I32, I64, I64, I64, list_of(struct(KeyValue)), I64, I64, I64),
    *(struct(Statistics), list_of(struct(PageEncodingStats)), I64, I32, struct(SizeStatistics)),
    struct(GeospatialStatistics),
)
@dataclass(slots=True)
class ColumnMetaData:
    """Describes a column chunk; offsets and sizes are in bytes of the file."""

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
    geospatial_statistics: GeospatialStatistics | None = None


@thrift(BYTES, I64, struct(ColumnMetaData), I64, I32, I64, I32)
@dataclass(slots=True)
class ColumnChunk:
    """A column chunk and the places of its page indexes."""

    file_path: bytes | None = None
    file_offset: int = 0
    meta_data: ColumnMetaData = field(default_factory=ColumnMetaData)
    offset_index_offset: int | None = None
    offset_index_length: int | None = None
    column_index_offset: int | None = None
    column_index_length: int | None = None


@thrift(I32, BOOL, BOOL)
@dataclass(slots=True)
class SortingColumn:
    """A column that a row group is sorted by; ``column_idx`` counts leaf columns."""

    column_idx: int = 0
    descending: bool = False
    nulls_first: bool = False


@thrift(list_of(struct(ColumnChunk)), I64, I64, list_of(struct(SortingColumn)), I64, I64, I16)
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


@thrift(EMPTY)
@dataclass(slots=True)
class ColumnOrder:
    """A union; all of Iceberg's types have the order of their type."""

    type_order: Empty | None = None


@thrift(
    *(I32, list_of(struct(SchemaElement)), I64, list_of(struct(RowGroup)), list_of(struct(KeyValue)), BYTES),
    *(list_of(struct(ColumnOrder)), EMPTY),
)
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
    """Present if columns are encrypted."""
