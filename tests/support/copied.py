"""Parquet files to copy, by this machine or by the store, and their copies."""

from __future__ import annotations

import datetime
import decimal
import functools
import io
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from botocore.awsrequest import AWSResponse

from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copyable import CopyableFile, CopyTarget, copy_target
from icekeeper.row_group_copy.footer import data_pages, framed, read_footer
from icekeeper.row_group_copy.footer_decisions import states_bounds
from icekeeper.row_group_copy.footer_structs import (
    ColumnMetaData,
    FileMetaData,
    NotCopyable,
    PageHeader,
    RowGroup,
    read_exactly,
    read_struct,
    write_struct,
)
from icekeeper.row_group_copy.merge_files import copyable_file, merge_files
from icekeeper.rows.arrow_schema import arrow_schema, leaf_columns
from icekeeper.rows.read_task import with_lineage
from icekeeper.storage.storage import Storage
from support.plans import data_file
from support.rewrites import rows, struct

# Parquet files to copy, and copies of them.

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
"""A schema with every shape of column and a name with a dot."""


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
    """Write a file with Arrow: two or three row groups, several pages, page index."""
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
    """Copy files into a file at ``path``, if all can be copied."""
    entries = [item if isinstance(item, DataFile) else entry_of(item) for item in inputs]
    return merged([Input(entry, None) for entry in entries], path, target or target_of())


def with_metadata(path: Path, change: Any) -> Path:
    """Rewrite the footer of the file at ``path`` after ``change``."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    metadata = read_exactly(FileMetaData, data[-8 - length : -8])
    change(metadata)
    path.write_bytes(data[: -8 - length] + framed(write_struct(metadata)))
    return path


def pages(path: Path) -> Iterator[tuple[PageHeader, int, int]]:
    """The header of every page, and the begin and end of its bytes."""
    data = path.read_bytes()
    footer = read_exactly(FileMetaData, data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    for chunk in (chunk for group in footer.row_groups for chunk in group.columns):
        place, end = data_pages(chunk.meta_data)
        while place < end:
            header, size = read_struct(PageHeader, data[place:end])
            begin, place = place + size, place + size + header.compressed_page_size
            yield header, begin, place


def footer_of(path: Path | str) -> FileMetaData:
    return read_footer(str(path), STORAGE).metadata()


def flipped(path: Path, to: Path, bit: int) -> Path:
    """Write a copy of a file with one changed bit."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    to.write_bytes(bytes(data))
    return to


# Parquet files of a v3 table to copy, with and without lineage columns, and the rows that a reader finds.

LINEAGE = with_lineage(MIXED)
LINEAGE_COLUMNS = ("_row_id", "_last_updated_sequence_number")


class Input(NamedTuple):
    """A data file with its entry and data sequence number; ``only`` selects row groups to copy."""

    entry: DataFile
    sequence_number: int | None
    only: Collection[int] | None = None


def lineage_target(schema: Mapping[str, Any] = MIXED, mode: str = "none", **more: Any) -> CopyTarget:
    """A target for rows with row lineage."""
    return target_of(with_lineage(schema), mode=mode, **more)


def plain_file(path: Path, first: int, first_row_id: int, number: int, rows: int = 60, **options: Any) -> Input:
    """Write a file without lineage columns, as most writers do."""
    parquet_file(path, mixed_rows(first, rows), **options)
    return Input(entry_of(path, first_row_id=first_row_id), number)


def lineage_file(
    path: Path,
    first: int,
    stored: tuple[Sequence[int | None], Sequence[int | None]],
    inherits: tuple[int, int] = (0, 0),
    **options: Any,
) -> Input:
    """Write a file with row ids and last updated sequence numbers, which may be null; ``inherits`` has
    ``first_row_id`` and the data sequence number."""
    table = mixed_rows(first, len(stored[0]))
    wanted = arrow_schema(LINEAGE)
    for field, values in zip(list(wanted)[-2:], stored, strict=True):
        table = table.append_column(field, pa.array(values, pa.int64()))
    parquet_file(path, table, **options)
    return Input(entry_of(path, first_row_id=inherits[0]), inherits[1])


def merged(inputs: Sequence[Input], path: Path, target: CopyTarget | None = None) -> DataFile | NotCopyable | None:
    """Copy the inputs into a file at ``path``, if all can be copied."""
    wanted = target or lineage_target()
    judged = []
    for item in inputs:
        file = copyable_file(item.entry, wanted, STORAGE, item.sequence_number)
        if isinstance(file, NotCopyable):
            return file
        judged.append((item.entry, file if item.only is None else file.only(item.only)))
    return merge_files(judged, str(path), wanted, STORAGE)


def resolved(source: Input) -> list[dict[str, Any]]:
    """The rows of an input as the specification reads them, with ``_row_id`` and ``_last_updated_sequence_number``."""
    path, first = source.entry.file_path, source.entry.first_row_id
    assert first is not None
    footer = pq.read_metadata(path)
    wanted = set(range(footer.num_row_groups)) if source.only is None else set(source.only)
    groups = [number for number in range(footer.num_row_groups) for _ in range(footer.row_group(number).num_rows)]
    found = []
    for position, row in enumerate(pq.read_table(path).to_pylist()):
        if groups[position] not in wanted:
            continue
        row_id, changed = row.get("_row_id"), row.get("_last_updated_sequence_number")
        row["_row_id"] = first + position if row_id is None else row_id
        row["_last_updated_sequence_number"] = source.sequence_number if changed is None else changed
        found.append(row)
    return found


def row_ids(path: str) -> list[tuple[int, int, int]]:
    """``id``, row id and last updated sequence number of every row, as stored."""
    table = pq.read_table(path, columns=["id", "_row_id", "_last_updated_sequence_number"])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


# Facts that a footer states only for some row groups, which readers take for the whole file
# (platform: rust-readers-need-uniform-footers).


def mixed_fields(metadata: FileMetaData) -> list[str]:
    """Descriptions of facts that the footer states only for some row groups, or wrongly (pure)."""
    groups = [group for group in metadata.row_groups if group.num_rows]
    return list(_mixed_fields(groups)) if len(groups) > 1 else []


def _mixed_fields(groups: Sequence[RowGroup]) -> Iterator[str]:
    chunks = [chunk for group in groups for chunk in group.columns]
    if _differ(group.ordinal is not None for group in groups):
        yield "ordinals of some row groups"
    if _differ(chunk.offset_index_offset is not None for chunk in chunks):
        yield "page indexes of some column chunks"
    if any(group.sorting_columns for group in groups):
        yield "row groups of several inputs that are called sorted"
    for column in zip(*(group.columns for group in groups), strict=False):
        metas = [chunk.meta_data for chunk in column]
        name = b".".join(metas[0].path_in_schema).decode(errors="replace")
        if _differ(states_bounds(meta) for meta in metas if not _is_null(meta)):
            yield f"bounds of some row groups of column {name}"
        if _differ(meta.statistics is not None and meta.statistics.null_count is not None for meta in metas):
            yield f"null counts of some row groups of column {name}"


def _is_null(meta: ColumnMetaData) -> bool:
    return meta.statistics is not None and meta.statistics.null_count == meta.num_values


def _differ(answers: Iterable[bool]) -> bool:
    return len(set(answers)) > 1


# Parquet files that are large enough for the store to copy, merged by the store, and its requests.

FLAT = struct((1, "id", "long"), (2, "noise", "long"), (3, "text", "string"))
_TARGET = target_of(FLAT)


@functools.cache
def large_file(first: int, count: int = 700_000, seed: int = 0, *, page_index: bool = True) -> bytes:
    """A file of rows with ids from ``first`` and 8 bytes of incompressible noise per row, in two row groups."""
    some = random.Random(first + seed).randbytes(8 * count)
    noise = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(some)])
    ids = pa.arange(first, first + count)
    table = rows(FLAT, {"id": ids, "noise": noise, "text": pc.cast(pc.divide(ids, 100_000), pa.string())})
    sink = io.BytesIO()
    usual = {"compression": "zstd", "use_dictionary": ["text"], "row_group_size": count // 2 + 1}
    pq.write_table(table, sink, write_page_index=page_index, **usual)
    return sink.getvalue()


def stored_entry(storage: Storage, path: str, data: bytes) -> DataFile:
    """Write the file to the store and return its manifest entry without metrics."""
    storage.write(path, data)
    return data_file(path, len(data), records=pq.read_metadata(io.BytesIO(data)).num_rows)


def judged(
    storage: Storage, entries: Sequence[DataFile], target: CopyTarget = _TARGET
) -> list[tuple[DataFile, CopyableFile]]:
    """The files, all of which can be copied."""
    found = []
    for entry in entries:
        file = copyable_file(entry, target, storage)
        assert isinstance(file, CopyableFile), file
        found.append((entry, file))
    return found


def merged_by_the_store(
    storage: Storage,
    inputs: Sequence[tuple[DataFile, CopyableFile]],
    path: str,
    target: CopyTarget = _TARGET,
    note_unread: Callable[[int], None] = lambda size: None,
) -> DataFile | NotCopyable | None:
    """Merge the inputs into a file at ``path``."""
    return merge_files(inputs, path, target, storage, note_unread)


@contextmanager
def answering(storage: Storage, call: str, status: int, code: str, first: int = 1) -> Iterator[None]:
    """Answer requests with this name with an error, from number ``first`` on, without sending them to the store."""
    count = 0
    lock = threading.Lock()

    def answer(request: Any, **_: Any) -> AWSResponse | None:
        nonlocal count
        with lock:
            count += 1
            if count < first:
                return None
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        return AWSResponse(request.url, status, {}, _Raw(body))

    storage.s3.meta.events.register(f"before-send.s3.{call}", answer)
    try:
        yield
    finally:
        storage.s3.meta.events.unregister(f"before-send.s3.{call}", answer)


class _Raw(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()
