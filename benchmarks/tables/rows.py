"""Parquet files as writers of event tables leave them, with the metrics that their manifest entries carry."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.write_properties import metrics_modes
from icekeeper.operations.compaction.work.file_entry import PassingCounts, entry_of_file

EVENT_COLUMNS: Sequence[tuple[str, str]] = (
    ("id", "long"),
    ("user_id", "int"),
    ("at", "timestamptz"),
    ("day", "date"),
    ("country", "string"),
    ("page", "string"),
    ("amount", "double"),
    ("score", "float"),
    ("price", "decimal(12, 2)"),
    ("flag", "boolean"),
)
_COUNTRIES = ("us", "de", "fr", "jp", "br", "in", "cn", "gb")
_FIRST_DAY = 19_000
_FIRST_US = 1_700_000_000_000_000


def schema_of(columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """An Iceberg schema of optional columns, whose ids count from 1."""
    fields = [{"id": i, "name": n, "required": False, "type": t} for i, (n, t) in enumerate(columns, start=1)]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def event_rows(first: int, count: int) -> pa.Table:
    """Rows with the ids from ``first`` on; other values are pseudo-random, so that they compress as real ones do."""
    pages = pa.array([f"/product/{i:05d}/{i * 7919 % 104729:x}" for i in range(5_000)])
    cents = _below(10**7, first, count, 8).cast(pa.decimal128(21, 2))
    columns = [
        pa.array(range(first, first + count), pa.int64()),
        _below(10**6, first, count, 1).cast(pa.int32()),
        pc.add(_below(86_400 * 10**6, first, count, 2), _FIRST_US).cast(pa.timestamp("us", "UTC")),
        pc.add(_below(400, first, count, 3), _FIRST_DAY).cast(pa.int32()).cast(pa.date32()),
        pa.array(_COUNTRIES).take(_below(len(_COUNTRIES), first, count, 4)),
        pages.take(_below(len(pages), first, count, 5)),
        pc.multiply(_random(first, count, 6), 1000.0),
        _random(first, count, 7).cast(pa.float32()),
        pc.multiply(cents, pa.scalar(decimal.Decimal("0.01"))).cast(pa.decimal128(12, 2), safe=False),
        pc.less(_random(first, count, 9), 0.1),
    ]
    return _with_ids([name for name, _ in EVENT_COLUMNS], columns)


def wide_rows(first: int, count: int, columns: int) -> pa.Table:
    """As many columns of numbers and words, of which a third is empty."""
    words = pa.array([f"word-{i:04d}" for i in range(500)])
    made: list[pa.Array] = [pa.array(range(first, first + count), pa.int64())]
    for number in range(1, columns):
        if number % 3 == 0:
            made.append(pa.nulls(count, pa.float64()))
        elif number % 3 == 1:
            made.append(_random(first, count, number))
        else:
            made.append(words.take(_below(len(words), first, count, number)))
    return _with_ids(["id", *(f"c{n:04d}" for n in range(1, columns))], made)


def _random(first: int, count: int, column: int) -> pa.Array:
    """Numbers from 0 to 1, the same for the same rows and column."""
    return pc.random(count, initializer=first * 4096 + column)


def _below(limit: int, first: int, count: int, column: int) -> pa.Array:
    return pc.floor(pc.multiply(_random(first, count, column), limit)).cast(pa.int64())


def _with_ids(names: Sequence[str], columns: Sequence[Any]) -> pa.Table:
    fields = [
        pa.field(name, column.type, metadata={b"PARQUET:field_id": str(i).encode()})
        for i, (name, column) in enumerate(zip(names, columns, strict=True), start=1)
    ]
    return pa.table(list(columns), schema=pa.schema(fields))


def write_file(path: Path, rows: pa.Table, row_group_rows: int | None = None) -> None:
    """As Iceberg's writers do: zstd, page index, decimals as integers (specification, "Parquet").

    ``row_group_rows``: rows per row group, by default one million.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        rows,
        path,
        row_group_size=row_group_rows,
        compression="zstd",
        compression_level=3,
        store_decimal_as_integer=True,
        write_page_index=True,
    )


def data_file(
    path: Path,
    schema: Mapping[str, Any],
    rows: pa.Table,
    *,
    partition: tuple[Any, ...] = (),
    sort_order_id: int | None = None,
) -> DataFile:
    """The manifest entry of a file that was just written with these rows."""
    counts = PassingCounts(schema)
    for batch in rows.to_batches():
        counts.add(batch)
    modes = metrics_modes(schema, {})
    entry = entry_of_file(str(path), path.stat().st_size, partition, pq.read_metadata(path), counts, modes)
    return replace(entry, sort_order_id=sort_order_id)
