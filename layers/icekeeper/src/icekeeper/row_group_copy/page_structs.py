"""The Thrift structures of page headers and page indexes (apache/parquet-format 2.12, ``parquet.thrift``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from icekeeper.row_group_copy.thrift_fields import I32, I64, describe, list_of, struct

__all__ = [
    "DataPageHeader",
    "OffsetIndex",
    "PageHeader",
    "PageLocation",
]


@dataclass(slots=True)
class PageLocation:
    """A data page: where its header begins, its size with the header, its first row within the row group."""

    offset: int = 0
    compressed_page_size: int = 0
    first_row_index: int = 0
    thrift_spec: ClassVar[Any] = ()


describe(PageLocation, I64, I32, I64)


@dataclass(slots=True)
class OffsetIndex:
    """Where the data pages of a column chunk lie."""

    page_locations: list[PageLocation] = field(default_factory=list)
    unencoded_byte_array_data_bytes: list[int] | None = None
    thrift_spec: ClassVar[Any] = ()


describe(OffsetIndex, list_of(struct(PageLocation)), list_of(I64))


@dataclass(slots=True)
class DataPageHeader:
    """What headers of both kinds of data pages begin with."""

    num_values: int = 0
    thrift_spec: ClassVar[Any] = ()


describe(DataPageHeader, I32)


@dataclass(slots=True)
class PageHeader:
    """The header of a page: what walking over the pages needs of it."""

    type: int = -1
    uncompressed_page_size: int = 0
    compressed_page_size: int = -1
    crc: int | None = None
    data_page_header: DataPageHeader | None = None
    data_page_header_v2: DataPageHeader | None = None
    thrift_spec: ClassVar[Any] = ()


describe(
    PageHeader,
    *(I32, I32, I32, I32, struct(DataPageHeader), None, None, struct(DataPageHeader)),
)
