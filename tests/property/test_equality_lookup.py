"""Equality deletes and row-group statistics against oracles that know the rows
(rule: copy-under-keys-only-if-none-match)."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.operations.compaction.work.copy_row_groups import column_ranges, worth_a_look
from icekeeper.rows.arrow_schema import arrow_type, leaf_columns
from icekeeper.rows.equality_deletes import EqualityLookup, keys_within
from support.examples import examples
from support.model.oracle import same
from support.rewrites import struct

# Equality deletes against an oracle that compares every row with every deleted key.

NUMBERS = st.sampled_from([None, 1.0, 2.0, 0.0, -0.0, float("nan")])
TEXTS = st.sampled_from([None, "", "a", "b", "ü"])
LONGS = st.sampled_from([None, 0, 1, -1, 2**62])
ROWS = st.lists(st.tuples(NUMBERS, TEXTS, LONGS), max_size=25)
KEYS = st.lists(st.tuples(NUMBERS, TEXTS, LONGS, st.integers(1, 4)), min_size=1, max_size=25)
TYPES = (pa.float64(), pa.string(), pa.int64())


@given(rows=ROWS, keys=KEYS, start=st.integers(0, 2), width=st.integers(1, 3), number=st.integers(0, 4))
def test_exactly_the_rows_that_a_newer_key_equals_are_deleted(
    rows: list[tuple[Any, ...]], keys: list[tuple[Any, ...]], start: int, width: int, number: int
) -> None:
    """By a single column, sorted if it has an order, or by several columns."""
    chosen = range(start, min(start + width, 3))

    def columns(tuples: list[tuple[Any, ...]]) -> list[pa.Array]:
        return [pa.array([values[i] for values in tuples], TYPES[i]) for i in chosen]

    newest = pa.array([key[3] for key in keys], pa.int64())
    lookup = EqualityLookup.build(chosen, columns(keys), newest)
    found = lookup.deleted_rows(columns(rows), number).to_pylist()
    assert found == [any(key[3] > number and all(same(row[i], key[i]) for i in chosen) for key in keys) for row in rows]


# Which deleted keys a row group may contain by its statistics, against an oracle that knows its rows
# (rule: copy-under-keys-only-if-none-match).

DAY = datetime.date(1970, 1, 1)
VALUES: dict[str, Sequence[Any]] = {
    "int": [-(2**31), -1, 0, 1, 2**31 - 1],
    "long": [-(2**63), -1, 0, 1, 2**63 - 1],
    "string": ["", "a", "aa", "z", "ü", "\U0001f600", "\uffee"],
    "binary": [b"", b"\x00", b"a", b"\x7f", b"\x80", b"\xff"],
    "fixed[2]": [b"aa", b"\x7fa", b"\x80a", b"zz"],
    "uuid": [b"\x00" * 16, b"\x7f" * 16, b"\x80" * 16, b"\xff" * 16],
    "date": [DAY + datetime.timedelta(days) for days in (-2, -1, 0, 1)],
    "timestamptz": [datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1969, 1970, 2030)],
    "decimal(5, 2)": [Decimal(text) for text in ("-999.99", "-0.01", "0.00", "0.01", "999.99")],
    "decimal(30, 2)": [Decimal(text) for text in ("-0.01", "0.00", "9999999999999999999999999999.99")],
    "double": [math.nan, 0.0, -0.0, -1.5, math.inf],
    "float": [math.nan, 0.0, -0.0, 1.5, -math.inf],
    "boolean": [False, True],
}


def ordered(value: Any) -> Any:
    """The value in Iceberg's order: strings by their bytes."""
    return value.encode() if isinstance(value, str) else value


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def may_have(kind: str, column: Sequence[Any], key: Any) -> bool:
    """Whether the bounds and null counts of these values allow a key."""
    values = [ordered(value) for value in column if value is not None and not is_nan(value)]
    if key is None:
        return None in column
    if is_nan(key) or (any(is_nan(value) for value in column) and not values):
        return any(value is not None for value in column)
    # Readers disagree on the order of uuids.
    return bool(values) and (kind == "uuid" or min(values) <= ordered(key) <= max(values))


def distinct(keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The keys without duplicates: NaN equals NaN, the zeros differ."""
    return list({tuple(map(repr, key)): key for key in keys}.values())


@pytest.mark.parametrize("kind", list(VALUES))
@settings(max_examples=examples(30))
@given(data=st.data())
def test_exactly_the_keys_within_the_bounds_are_counted(kind: str, data: st.DataObject) -> None:
    kinds = [kind, *data.draw(st.lists(st.sampled_from(list(VALUES)), max_size=2))]
    row = st.tuples(*(st.none() | st.sampled_from(VALUES[kind]) for kind in kinds))
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    keys = data.draw(st.lists(st.tuples(row, st.integers(1, 3)), min_size=1, max_size=6))
    number, has_statistics = data.draw(st.integers(0, 3)), data.draw(st.booleans())

    schema = struct(*((i, f"c{i}", kind) for i, kind in enumerate(kinds, 1)))
    lookup = EqualityLookup.build(
        range(1, len(kinds) + 1),
        [stored([key[i] for key, _ in keys], kind) for i, kind in enumerate(kinds)],
        pa.array([newer for _, newer in keys], pa.int64()),
    )
    found = keys_within(lookup, ranges_of(schema, kinds, rows, has_statistics), number)

    newer = distinct([key for key, sequence_number in keys if sequence_number > number])
    columns = list(zip(*rows, strict=True))
    expected = [
        key
        for key in newer
        if not has_statistics or all(map(may_have, kinds, columns, key))  # without statistics: all keys
    ]
    assert found == len(expected)
    # No key of a row is missing, whatever the bounds.
    assert found >= sum(any(tuple(map(repr, key)) == tuple(map(repr, row)) for row in rows) for key in newer)


def stored(values: Sequence[Any], kind: str) -> pa.Array:
    found = arrow_type(kind)
    return pa.array(values, found.storage_type if isinstance(found, pa.BaseExtensionType) else found)


def ranges_of(schema: dict[str, Any], kinds: Sequence[str], rows: Sequence[tuple[Any, ...]], stats: bool) -> Any:
    columns = [
        pa.ExtensionArray.from_storage(arrow_type(kind), stored(values, kind))
        if kind == "uuid"
        else stored(values, kind)
        for kind, values in zip(kinds, zip(*rows, strict=True), strict=True)
    ]
    sink = pa.BufferOutputStream()
    names = [f"c{i}" for i in range(1, len(kinds) + 1)]
    pq.write_table(pa.table(columns, names), sink, write_statistics=stats, store_decimal_as_integer=True)
    footer = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    return column_ranges(footer.row_group(0), leaf_columns(schema))


@pytest.mark.parametrize(
    ("keys", "looked_at"),
    [
        ([], set()),
        ([0, 0], set()),
        ([2], {0}),
        ([3], set()),
        ([3, 0], set()),  # a row group without keys does not count
        ([4, 1, 0], {0, 1}),
        ([5, 1, 0], {1}),
        ([8, 8, 8, 8], {0, 1, 2, 3}),
        ([9, 9, 9, 9], set()),
    ],
)
def test_keys_are_looked_up_if_some_row_groups_probably_have_none(keys: list[int], looked_at: set[int]) -> None:
    assert worth_a_look(keys) == looked_at
