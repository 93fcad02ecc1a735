"""Bounds in Iceberg's binary form: the vectors of Iceberg's own tests, PyIceberg, and truncation."""

from __future__ import annotations

import json
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.types import BinaryType, DecimalType, DoubleType, FloatType, IntegerType, LongType, StringType

from icekeeper.metadata.types import comparable, encode, truncated_lower, truncated_upper
from support.corpus import corpus_root, require_corpus

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
LENGTHS = st.integers(1, 20)
# No surrogates, which UTF-8 cannot encode; characters where rounding up is hard are common.
HARD = st.sampled_from("a\x7f\u07ff\ud7ff\ue000\uffff\U00010000\U0010ffff")
TEXTS = st.text(st.one_of(HARD, st.characters(codec="utf-8")), max_size=24)


def vectors() -> list[Any]:
    if corpus_root() is None:
        return [pytest.param("absent", None, "", marks=pytest.mark.skip(reason="the corpus is not here"))]
    rows = json.loads((require_corpus() / "vectors" / "spec_vectors.json").read_text())["single_value"]["rows"]
    return [pytest.param(*row, id=f"{row[0]}-{row[1]}") for row in rows]


def spelled(kind: str) -> str:
    """The first of the types that share a vector, in the specification's spelling."""
    return kind.partition("/")[0].replace("fixed(", "fixed[").replace("fixed[2)", "fixed[2]")


def raw(kind: str, value: Any) -> Any:
    """A vector's value as Avro stores it."""
    if kind == "uuid":
        return uuid.UUID(value).bytes
    if kind.startswith("decimal"):
        return int(Decimal(value).scaleb(int(kind.rpartition(",")[2].rstrip(")"))))
    if kind.startswith("fixed") or kind == "binary":
        return value.encode()
    return value


@pytest.mark.parametrize(("kind", "value", "wanted"), vectors())
def test_values_are_encoded_like_the_vectors_of_iceberg_java(kind: str, value: Any, wanted: str) -> None:
    assert encode(spelled(kind), raw(spelled(kind), value)).hex() == wanted.replace(" ", "")


@given(INTS, LONGS, st.floats(width=32), st.floats(), TEXTS, st.binary())
def test_pyiceberg_encodes_values_alike(a: int, b: int, c: float, d: float, e: str, f: bytes) -> None:
    assert encode("int", a) == encode("date", a) == to_bytes(IntegerType(), a)
    assert encode("long", b) == encode("timestamptz", b) == encode("time", b) == to_bytes(LongType(), b)
    assert encode("float", c) == to_bytes(FloatType(), c)
    assert encode("double", d) == to_bytes(DoubleType(), d)
    assert encode("string", e) == to_bytes(StringType(), e)
    assert encode("binary", f) == to_bytes(BinaryType(), f)


@given(st.integers(-(10**38) + 1, 10**38 - 1))
@example(0)
@example(127)
@example(128)
@example(-128)
@example(-129)
def test_decimals_take_as_few_bytes_as_they_need(unscaled: int) -> None:
    encoded = encode("decimal(38,3)", unscaled)
    assert int.from_bytes(encoded, "big", signed=True) == unscaled
    assert encoded == to_bytes(DecimalType(38, 3), Decimal(f"{unscaled}e-3"))
    for width in range(len(encoded), 17):  # as Avro and Parquet store it, in any number of bytes
        stored = unscaled.to_bytes(width, "big", signed=True)
        assert encode("decimal(38,3)", stored) == encoded
        assert comparable("decimal(38,3)", stored) == unscaled


@given(st.lists(st.floats(allow_nan=False), min_size=2))
@example([0.0, -0.0])
def test_negative_zero_comes_first(numbers: list[float]) -> None:
    found = sorted(numbers, key=lambda number: comparable("double", number))
    assert found == sorted(numbers)
    zeros = [math.copysign(1, number) for number in found if number == 0]
    assert zeros == sorted(zeros)


@given(TEXTS, TEXTS)
def test_text_orders_by_its_bytes(left: str, right: str) -> None:
    assert (comparable("string", left) < comparable("string", right)) == (left.encode() < right.encode())
    assert comparable("string", left.encode()) == comparable("string", left)


@given(TEXTS, LENGTHS)
@example("0123456789abcde\ud7ff…", 16)
@example("\U0010ffff" * 20, 16)
@example("a" + "\U0010ffff" * 20, 3)
def test_truncated_text_contains_the_value(text: str, length: int) -> None:
    value = text.encode()
    lower, upper = truncated_lower("string", value, length), truncated_upper("string", value, length)
    assert lower <= value
    assert len(lower.decode()) == min(len(text), length)
    assert value.startswith(lower)
    if upper is None:
        assert len(text) > length
        assert set(text[:length]) == {"\U0010ffff"}
    else:
        assert upper >= value
        assert len(upper.decode()) <= length
        assert (upper == value) == (len(text) <= length)


@given(TEXTS, st.text(st.characters(codec="utf-8")), LENGTHS)
def test_truncated_text_contains_all_texts_with_the_same_prefix(text: str, more: str, length: int) -> None:
    upper = truncated_upper("string", text.encode(), length)
    if upper is not None and len(text) > length:
        assert upper > (text[:length] + more).encode()


@given(st.binary(max_size=24), LENGTHS)
@example(b"\xff" * 20, 16)
@example(b"\x01" + b"\xff" * 20, 3)
def test_truncated_bytes_contain_the_value(value: bytes, length: int) -> None:
    lower, upper = truncated_lower("binary", value, length), truncated_upper("binary", value, length)
    assert lower == value[:length] <= value
    if upper is None:
        assert len(value) > length
        assert set(value[:length]) == {0xFF}
    else:
        assert value <= upper
        assert len(upper) <= length


@pytest.mark.parametrize("kind", ["int", "uuid", "fixed[20]", "decimal(38,2)", "timestamptz"])
def test_values_of_other_types_are_not_truncated(kind: str) -> None:
    value = struct.pack("<5i", 1, 2, 3, 4, 5)
    assert truncated_lower(kind, value, 2) == value == truncated_upper(kind, value, 2)
