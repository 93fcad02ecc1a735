"""The rows that ``erased`` counts: as DuckDB counts them, and as each row alone is judged."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.erasure.row_filter import RowFilter, Wanted, point, raw_value
from icekeeper.operations.compaction.plan.value_ranges import Values
from icekeeper.operations.compaction.plan.where import columns_of
from icekeeper.rows.arrow_schema import arrow_schema
from support.examples import examples

KINDS = {"i": "long", "s": "string", "d": "double", "f": "float", "t": "timestamp", "u": "uuid", "n": "decimal(9, 2)"}
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": number, "name": name, "required": False, "type": kind}
        for number, (name, kind) in enumerate(KINDS.items(), start=1)
    ],
}
UUIDS = [
    str(uuid.UUID(bytes=bytes([high]) + bytes(7) + bytes([low]) + bytes(7))) for high in (1, 200) for low in (1, 200)
]
VALUES: dict[str, list[Any]] = {
    "i": [-(2**63), -1, 0, 1, 5, 2**63 - 1],
    "s": ["", "a", "ab", "abc", "b", "\U0001f600", "é"],
    "d": [-1.5, 0.5, 1.5, 7.0],
    "t": [dt.datetime(1969, 12, 31, 23, 59), dt.datetime(1970, 1, 1), dt.datetime(2026, 1, 31, 12, 30)],
    "u": UUIDS,
    "n": [Decimal("-1.50"), Decimal("0.00"), Decimal("7.25")],
}
VALUES["f"] = VALUES["d"]
SPECIAL = {**VALUES, "d": [*VALUES["d"], float("nan"), -0.0, 0.0], "f": [*VALUES["f"], float("nan"), -0.0, 0.1]}


def rows(values: dict[str, list[Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    row = st.fixed_dictionaries({name: st.none() | st.sampled_from(found) for name, found in values.items()})
    return st.lists(row, max_size=40)


def literal(name: str, value: Any) -> str:
    if name == "t":
        return f"timestamp '{value}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        return draw(st.sampled_from([f"({left} and {right})", f"({left} or {right})", f"(not {left})"]))
    name = draw(st.sampled_from(sorted(VALUES)))
    values = [literal(name, value) for value in draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3))]
    signs = ["=", "!="] if name == "u" else ["=", "!=", "<", "<=", ">", ">="]
    plain = f"{name} {draw(st.sampled_from(signs))} {values[0]}"
    several = f"{name} {draw(st.sampled_from(['in', 'not in']))} ({', '.join(values)})"
    like = "s like 'a%'"
    return draw(st.sampled_from([plain, several, f"{name} is null", f"{name} is not null", like]))


def batch_of(found: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = {
        name: [uuid.UUID(row[name]).bytes if name == "u" and row[name] else row[name] for row in found]
        for name in KINDS
    }
    arrays = [
        pa.ExtensionArray.from_storage(field.type, pa.array(columns[field.name], field.type.storage_type))
        if isinstance(field.type, pa.BaseExtensionType)
        else pa.array(columns[field.name], field.type)
        for field in arrow_schema(SCHEMA)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(SCHEMA))


def filter_of(where: str) -> RowFilter:
    return RowFilter(Wanted(where), SCHEMA, 0)


IDS = range(1, len(KINDS) + 1)


@given(found=rows(VALUES), where=conditions())
@settings(max_examples=examples(60), deadline=None)
def test_duckdb_counts_the_same_rows(found: list[dict[str, Any]], where: str) -> None:
    batch = batch_of(found)
    plain = pa.table({name: batch.column(name) for name in KINDS if name != "u"}).append_column(
        "u", pa.array([row["u"] for row in found], pa.string())
    )
    with duckdb.connect() as session:
        session.register("t", plain)
        session.execute("SET threads = 1")
        answer = session.sql(f"SELECT count(*) FROM t WHERE {where}").fetchone()
    assert answer is not None
    assert filter_of(where).count(read(batch, where), IDS) == answer[0]


def read(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Only the columns that the filter reads."""
    return batch.select([field["name"] for field in filter_of(where).fields])


@given(found=rows(SPECIAL), where=conditions())
@settings(max_examples=examples(60), deadline=None)
def test_each_row_is_judged_alike_alone(found: list[dict[str, Any]], where: str) -> None:
    """Also NaN, zeros and rounded floats, of which engines disagree: then a row counts."""
    batch, judge = batch_of(found), filter_of(where)
    kinds = {column.name: column.kind for column in columns_of(SCHEMA)}
    expected = 0
    for number in range(len(found)):
        values = {name: point(raw_value(kind, batch.column(name)[number])) for name, kind in kinds.items()}
        for name in ("d", "f"):
            if values[name].low == 0.0:
                values[name] = Values(-0.0, 0.0, has_nulls=False)
        expected += judge.may_match(lambda column, v=values: v[column.name])  # type: ignore[misc]
    assert judge.count(read(batch, where), IDS) == expected


@given(found=rows(VALUES), data=st.data())
@settings(max_examples=examples(30), deadline=None)
def test_keys_are_a_list_in_a_filter(found: list[dict[str, Any]], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(set(VALUES) - {"t"})))
    keys = data.draw(st.lists(st.sampled_from(VALUES[name]), min_size=1))
    where = f"{name} in ({', '.join(literal(name, key) for key in keys)})"
    by_keys = RowFilter(Wanted(None, name, tuple(map(str, keys))), SCHEMA, 0)
    batch = read(batch_of(found), where)
    assert by_keys.count(batch, IDS) == filter_of(where).count(batch, IDS)


PAIR = conditions(1), st.sampled_from(["and", "or"]), conditions(1)


@given(found=rows(VALUES), where=st.builds("({} {} {})".format, *PAIR), data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_lacking_columns_may_have_any_value(found: list[dict[str, Any]], where: str, data: st.DataObject) -> None:
    """A key in a delete file, which lacks some columns, matches if the row from which it comes may match."""
    judge, batch = filter_of(where), batch_of(found)
    held = data.draw(st.sets(st.sampled_from([column.field_id for column in judge.columns])))
    kinds = {column.field_id: (column.name, column.kind) for column in judge.columns if column.field_id in held}
    expected = 0
    for number in range(len(found)):
        stored = {i: [point(raw_value(kind, batch.column(name)[number]))] for i, (name, kind) in kinds.items()}
        expected += judge.is_stored(stored)
    assert judge.count(read(batch, where), held) == expected
