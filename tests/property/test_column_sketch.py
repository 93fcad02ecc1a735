"""Sketches of columns: exact while small, and the union of any parts is the sketch of the whole."""

from __future__ import annotations

import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.metadata.statistics import NOMINAL, ThetaSketch, union
from icekeeper.metadata.types import encode
from icekeeper.operations.statistics.column_sketch import ColumnSketch, can_sketch, hash_bytes
from support.examples import examples

LONGS = st.integers(-(2**63), 2**63 - 1)
# Every length in bytes, and both sides of each limit.
EDGES = [sign * (2 ** (8 * size - 1) + step) for size in range(1, 16) for sign in (1, -1) for step in (-1, 0, 1)]
UNSCALED = st.sampled_from(EDGES) | st.integers(-(10**38) + 1, 10**38 - 1) | LONGS
COLUMNS: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "boolean": (st.booleans(), pa.bool_()),
    "int": (st.integers(-(2**31), 2**31 - 1), pa.int32()),
    "long": (LONGS, pa.int64()),
    "float": (st.floats(width=32, allow_nan=False), pa.float32()),
    "double": (st.floats(allow_nan=False), pa.float64()),
    "date": (st.integers(-(2**31), 2**31 - 1), pa.date32()),
    "time": (st.integers(0, 86_399_999_999), pa.time64("us")),
    "timestamptz": (LONGS, pa.timestamp("us", tz="UTC")),
    "timestamp_ns": (LONGS, pa.timestamp("ns")),
    "string": (st.text(max_size=40), pa.string()),
    "binary": (st.binary(max_size=60), pa.binary()),
    "fixed[5]": (st.binary(min_size=5, max_size=5), pa.binary(5)),
    "uuid": (st.binary(min_size=16, max_size=16), pa.binary(16)),
    "decimal(38, 4)": (UNSCALED, pa.decimal128(38, 4)),
}


def arrow(kind: str, values: list[Any]) -> pa.Array:
    target = COLUMNS[kind][1]
    if pa.types.is_decimal(target):
        return pa.array([None if v is None else Decimal(v).scaleb(-4, Context(prec=76)) for v in values], target)
    if pa.types.is_temporal(target):
        return pa.array(values, pa.int32() if pa.types.is_date(target) else pa.int64()).cast(target)
    return pa.array(values, target)


def sketch(kind: str, *batches: pa.Array) -> ThetaSketch:
    collected = ColumnSketch(kind)
    for batch in batches:
        collected.add(batch)
    return collected.sketch()


@given(st.data(), st.sampled_from(sorted(COLUMNS)))
def test_each_distinct_value_is_hashed_by_its_single_value_bytes(data: st.DataObject, kind: str) -> None:
    values = data.draw(st.lists(st.none() | COLUMNS[kind][0], max_size=60))
    column = arrow(kind, [None, *values]).slice(1)
    encoded = {encode(kind, value) for value in values if value is not None} - {b""}
    expected = hash_bytes(pa.array(sorted(encoded), pa.binary())).to_pylist()
    assert can_sketch(kind)
    assert sketch(kind, column) == ThetaSketch(tuple(sorted(expected)))
    assert sketch(kind, column).estimate == len(encoded)


@settings(max_examples=examples(20))
@given(st.lists(st.integers(0, 20_000), max_size=4), st.integers(1, 5))
def test_the_union_of_parts_is_the_sketch_of_the_whole(ends: list[int], step: int) -> None:
    """This also holds above the nominal entries, and for any division of the rows."""
    bounds = sorted({0, *ends})
    whole = pa.array(range(0, 20_000, step), pa.int64())
    parts = [whole.slice(a, b - a) for a, b in zip(bounds, [*bounds[1:], len(whole)], strict=True) if a < len(whole)]
    together = sketch("long", whole)
    assert union(sketch("long", part) for part in parts) == together
    assert sketch("long", *parts) == together
    assert (together.estimate == len(whole)) == (len(whole) <= NOMINAL)


@given(st.lists(st.integers(0, 2**52 - 1), min_size=1), st.booleans())
def test_all_nan_are_a_single_value(payloads: list[int], negative: bool) -> None:
    sign = int(negative) << 63
    bits = [sign | 0x7FF8000000000000 | payload for payload in payloads]
    column = pa.array([struct.unpack("<d", struct.pack("<Q", b))[0] for b in bits], pa.float64())
    assert sketch("double", column, pa.array([float("nan"), 0.0, -0.0])).estimate == 3
