"""The queries for every reader and table, and their answers computed from the written rows (pure)."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from support.judges.served import plain

Row = Mapping[str, Any]
_UTC = datetime.UTC


def _column(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})


COLUMNS = pa.schema(
    [
        _column(1, "id", pa.int64()),
        _column(2, "text", pa.string()),
        _column(3, "price", pa.float64()),
        _column(4, "day", pa.date32()),
        _column(5, "amount", pa.decimal128(10, 2)),
        _column(6, "seen", pa.timestamp("us", tz="UTC")),
        _column(7, "ratio", pa.float32()),
        _column(8, "flag", pa.bool_()),
        _column(9, "point", pa.struct([_column(11, "x", pa.int32()), _column(12, "y", pa.float64())])),
        _column(10, "tags", pa.list_(_column(13, "element", pa.int64()))),
    ]
)
# Rows of each file.  All prices of the first file are 0.0, which is outside the bounds of the others: equal bounds of
# floats are omitted, because readers take them for the only value.  The last files are small.
FILES = (200, 200, 200, 8, 8)


def file_rows(number: int) -> list[Row]:
    """The rows of a file of :data:`FILES`; ids continue from file to file, other values are in no order."""
    first = sum(FILES[:number])
    return [_row(i, number) for i in range(first, first + FILES[number])]


def _row(i: int, file: int) -> Row:
    mixed = i * 7919 % 1009
    return {
        "id": i,
        "text": None if i % 11 == 3 else f"text {mixed}",
        "price": 0.0 if file == 0 else None if i % 50 == 49 else mixed / 4 + 1,
        "day": datetime.date(2024, 1, 1) + datetime.timedelta(days=mixed % 90),
        "amount": decimal.Decimal(25 * mixed).scaleb(-2),
        "seen": datetime.datetime(2024, 1, 1, tzinfo=_UTC) + datetime.timedelta(minutes=mixed),
        "ratio": math.nan if i % 40 == 7 else None if i % 40 == 8 else float(mixed % 64) / 8,
        "flag": None if i % 30 == 4 else mixed % 2 == 0,
        "point": {"x": None if i % 20 == 5 else mixed, "y": math.nan if i % 60 == 9 else mixed / 8},
        "tags": [mixed, None, i][: i % 4],
    }


def arrow_table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=COLUMNS)


@dataclass(frozen=True, slots=True)
class Question:
    """A query; ``wanted`` computes the rows that it finds, in any order unless ``ordered``.

    ``condition`` is the text after ``WHERE`` if the answer is ids.
    """

    sql: str
    wanted: Callable[[Sequence[Row]], Sequence[Sequence[Any]]]
    condition: str | None = None
    ordered: bool = False

    def problem(self, rows: Sequence[Row], answer: Sequence[Any]) -> str | None:
        """The difference between an answer and the expected answer, if any."""
        wanted = [[plain(value) for value in row] for row in self.wanted(rows)]
        found = list(answer) if self.ordered else sorted(answer, key=repr)
        expected = wanted if self.ordered else sorted(wanted, key=repr)
        if found == expected:
            return None
        return f"{self.sql}: {_short(found)} instead of {_short(expected)}"


def _short(rows: Sequence[Any]) -> str:
    return f"{len(rows)} rows {str(rows[:4])[:120]}"


def _where(condition: str, meets: Callable[[Row], Any]) -> Question:
    return Question(
        f"SELECT id FROM t WHERE {condition}", lambda rows: [[row["id"]] for row in rows if meets(row)], condition
    )


def _ordered(tail: str, key: Callable[[Row], Any], most: int, *, reverse: bool = False, of: str = "id") -> Question:
    def wanted(rows: Sequence[Row]) -> list[list[Any]]:
        kept = sorted((row for row in rows if row[of] is not None), key=key, reverse=reverse)
        return [[row["id"]] for row in kept[:most]]

    condition = f"{of} IS NOT NULL ORDER BY {tail} LIMIT {most}"
    return Question(f"SELECT id FROM t WHERE {condition}", wanted, condition, ordered=True)


def _all(rows: Sequence[Row]) -> list[list[Any]]:
    return [[row[name] for name in COLUMNS.names] for row in rows]


def _sums(rows: Sequence[Row]) -> list[list[Any]]:
    ids = [row["id"] for row in rows]
    prices = [row["price"] for row in rows if row["price"] is not None]
    days = [row["day"] for row in rows]
    texts = sum(row["text"] is not None for row in rows)
    return [[len(ids), min(ids), max(ids), min(prices), max(prices), min(days), max(days), texts]]


_SUMS = "count(*) AS a, min(id) AS b, max(id) AS c, min(price) AS d, max(price) AS e, min(day) AS f, max(day) AS g"
_LAST = sum(FILES) - 1
_DAY = datetime.date(2024, 1, 5)
QUESTIONS = (
    Question(f"SELECT {', '.join(COLUMNS.names)} FROM t", _all),
    Question(f"SELECT {_SUMS}, count(text) AS h FROM t", _sums),
    _where("id = 0", lambda row: row["id"] == 0),
    _where(f"id = {_LAST}", lambda row: row["id"] == _LAST),
    _where("id IN (3, 199, 200, 99999)", lambda row: row["id"] in (3, 199, 200)),
    _where("id BETWEEN 190 AND 211", lambda row: 190 <= row["id"] <= 211),
    _where("id < 0", lambda row: False),
    _where("price = 0.0", lambda row: row["price"] == 0.0),
    _where("price IN (0.0, 7.25, 8.5)", lambda row: row["price"] in (0.0, 7.25, 8.5)),
    _where("price > 250.5", lambda row: row["price"] is not None and row["price"] > 250.5),
    _where("price BETWEEN 0.0 AND 2.5", lambda row: row["price"] is not None and row["price"] <= 2.5),
    _where("price IS NULL", lambda row: row["price"] is None),
    _where("ratio = 0.5", lambda row: row["ratio"] == 0.5),
    _where("text = 'text 7'", lambda row: row["text"] == "text 7"),
    _where("text > 'text 99'", lambda row: (row["text"] or "") > "text 99"),
    _where("text IN ('text 1', 'text 100', 'none')", lambda row: row["text"] in ("text 1", "text 100")),
    _where("text IS NULL", lambda row: row["text"] is None),
    _where("flag = true", lambda row: row["flag"]),
    _where("flag IS NULL", lambda row: row["flag"] is None),
    _where("point.x = 7", lambda row: row["point"]["x"] == 7),
    _where("point.x > 1000", lambda row: (row["point"]["x"] or 0) > 1000),
    _where("point.x IS NULL", lambda row: row["point"]["x"] is None),
    _where("point.y = 1.5", lambda row: row["point"]["y"] == 1.5),
    _where("day = DATE '2024-01-05'", lambda row: row["day"] == _DAY),
    _where("day < DATE '2024-01-05'", lambda row: row["day"] < _DAY),
    _where("amount = 2.25", lambda row: row["amount"] == decimal.Decimal("2.25")),
    _ordered("id", lambda row: row["id"], 1000),
    _ordered("id DESC", lambda row: -row["id"], 7),
    _ordered("price, id", lambda row: (row["price"], row["id"]), 1000, of="price"),
    _ordered("price DESC, id DESC", lambda row: (row["price"], row["id"]), 9, of="price", reverse=True),
    _ordered("text DESC, id DESC", lambda row: (row["text"], row["id"]), 9, of="text", reverse=True),
)
"""Queries by equality, range, null, ``IN``, first and last value, and order; no range over a column with NaN
(platform: nan-filters-change)."""
