"""Parquet files to copy, and copies of them."""

from __future__ import annotations

import datetime
import decimal
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copyable import CopyTarget, copy_target
from icekeeper.row_group_copy.footer import data_pages, framed
from icekeeper.row_group_copy.footer_structs import (
    FileMetaData,
    NotCopyable,
    PageHeader,
    read_exactly,
    read_struct,
    write_struct,
)
from icekeeper.row_group_copy.merge_files import copyable_file, merge_files
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.storage.storage import Storage
from support.rewrites import rows, struct

STORAGE = Storage({})
_PRICES = {
    "type": "map",
    "key-id": 7,
    "key": "string",
    "value-id": 8,
    "value": "decimal(10,2)",
    "value-required": False,
}
MIXED = struct(
    (1, "id", "long"),
    (2, "text", "string"),
    (3, "ratio", "double"),
    (4, "numbers", {"type": "list", "element-id": 5, "element": "int", "element-required": False}),
    (6, "prices", _PRICES),
    (9, "point", struct((10, "x.y", "timestamptz"), (11, "raw", "fixed[4]"))),
    (12, "key", "uuid"),
    (13, "day", "date"),
    (14, "flag", "boolean"),
)
"""Every shape of column, a name with a dot in it, and few rows, so that a copy takes milliseconds."""


def mixed_rows(first: int, count: int = 60) -> pa.Table:
    """Rows of :data:`MIXED` with ids from ``first``, with nulls, empty lists and repeated texts."""
    numbers = range(first, first + count)
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
    values: dict[str, list[Any]] = {
        "id": list(numbers),
        "text": [None if n % 5 == 0 else f"text {n % 7}" for n in numbers],
        "ratio": [n / 3 for n in numbers],
        "numbers": [[n, None, n + 1][: n % 4] for n in numbers],
        "prices": [[("a", decimal.Decimal("1.25"))] if n % 2 else [] for n in numbers],
        "point": [{"x.y": noon + datetime.timedelta(hours=n), "raw": b"%04d" % n} if n % 3 else None for n in numbers],
        "key": [n.to_bytes(16, "big") for n in numbers],
        "day": [datetime.date(2024, 1, 1) + datetime.timedelta(days=n) for n in numbers],
        "flag": [n % 2 == 0 for n in numbers],
    }
    return rows(MIXED, values)


def parquet_file(path: Path, table: pa.Table, **options: Any) -> Path:
    """A file as Arrow writes it: two or three row groups, several pages, page index."""
    usual = {"compression": "zstd", "row_group_size": 25, "max_rows_per_page": 10, "write_page_index": True}
    pq.write_table(table, path, **(usual | {"store_decimal_as_integer": True} | options))
    return path


def entry_of(path: Path, **more: Any) -> DataFile:
    """A manifest entry without metrics."""
    known: dict[str, Any] = {
        "file_path": str(path),
        "record_count": pq.read_metadata(path).num_rows,
        "file_size_in_bytes": os.path.getsize(path),
    }
    return DataFile(content=FileContent.DATA, file_format="PARQUET", partition=(), **(known | more))


def target_of(schema: Mapping[str, Any] = MIXED, codec: str = "zstd", least: int = 1, mode: str = "none") -> CopyTarget:
    """A target with the same metrics mode for every column."""
    return copy_target(schema, codec, least, {leaf.field_id: mode for leaf in leaf_columns(schema)})


def copied(
    inputs: Sequence[Path | DataFile], path: Path, target: CopyTarget | None = None
) -> DataFile | NotCopyable | None:
    """Copy files into one at ``path``, unless one of them cannot be copied."""
    wanted = target or target_of()
    judged = []
    for one in inputs:
        entry = one if isinstance(one, DataFile) else entry_of(one)
        file = copyable_file(entry, wanted, STORAGE)
        if isinstance(file, NotCopyable):
            return file
        judged.append((entry, file))
    return merge_files(judged, str(path), wanted, STORAGE)


def with_metadata(path: Path, change: Any) -> Path:
    """The file at ``path`` with another footer: ``change`` is given the old one to change."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    metadata = read_exactly(FileMetaData, data[-8 - length : -8])
    change(metadata)
    path.write_bytes(data[: -8 - length] + framed(write_struct(metadata)))
    return path


def pages(path: Path) -> Iterator[tuple[PageHeader, int, int]]:
    """The header of every page, and where its bytes begin and end."""
    data = path.read_bytes()
    footer = read_exactly(FileMetaData, data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    for chunk in (chunk for group in footer.row_groups for chunk in group.columns):
        place, end = data_pages(chunk.meta_data)
        while place < end:
            header, size = read_struct(PageHeader, data[place:end])
            begin, place = place + size, place + size + header.compressed_page_size
            yield header, begin, place


def flipped(path: Path, to: Path, bit: int) -> Path:
    """A copy of a file, with one bit of it changed."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    to.write_bytes(bytes(data))
    return to
