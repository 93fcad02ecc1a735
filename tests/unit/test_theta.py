"""Theta sketches: Apache's own hashes and bytes, exact below the nominal entries, damage by name."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.statistics import NOMINAL, ThetaSketch, decode_theta, encode_theta, sketch_of, union
from icekeeper.operations.statistics.column_sketch import ColumnSketch, hash_bytes, hash_words

# From datasketches 5.2.0, the Apache library in C++: update() and the one retained hash.
LONGS = {
    0: 2325124908111195109,
    1: 405753591161026837,
    -1: 1043656188210950764,
    2**62: 2101392338783816263,
    -(2**63): 8761660703898668218,
    2**31: 636626271136228076,
}
TEXTS = [("ß" * (length // 2) + "x" * (length % 2)).encode() for length in range(1, 200)]
TEXTS_SHA256 = "3ebc33df3b35f8f5686d21179fd143bdf60dd0038fe44824cf704e38c063658c"
# From Iceberg-Java 1.10.2's shaded library: UpdateSketch of the Alpha family, compacted, to byte arrays.
JAVA = {
    (): "01030300001e0000",
    (1,): "01030300003acc9315f97dcbbd86a105",
    (1, 2): "02030300001acc93020000000000803f15f97dcbbd86a105c397fc1281709d1e",
}
MANY = sketch_of(range(1, 10_000))


def sketch_of_longs(*values: int) -> ThetaSketch:
    sketch = ColumnSketch("long")
    sketch.add(pa.array(values, pa.int64()))
    return sketch.sketch()


def test_hashes_are_apaches() -> None:
    words = pa.array(list(LONGS), pa.int64()).view(pa.uint64())
    assert hash_words(words, 8).to_pylist() == list(LONGS.values())


@pytest.mark.parametrize("repeats", [1, 100], ids=["one by one", "in Arrow"])
def test_hashes_of_bytes_are_apaches(repeats: int) -> None:
    """Every length from one byte to a dozen blocks; few values are finished in Python, many in Arrow."""
    hashes = hash_bytes(pa.array(TEXTS * repeats, pa.binary()).slice(0, None)).to_pylist()
    for start in range(0, len(hashes), len(TEXTS)):
        one = hashes[start : start + len(TEXTS)]
        assert hashlib.sha256(",".join(map(str, one)).encode()).hexdigest() == TEXTS_SHA256


@pytest.mark.parametrize("values", JAVA, ids=len)
def test_bytes_are_javas(values: tuple[int, ...]) -> None:
    assert encode_theta(sketch_of_longs(*values)).hex() == JAVA[values]


@pytest.mark.parametrize("values", [0, 1, 2, NOMINAL, NOMINAL + 1, 50_000])
def test_a_sketch_comes_back(values: int) -> None:
    sketch = sketch_of(range(1, values + 1))
    assert decode_theta(encode_theta(sketch), "x") == sketch


def test_exact_up_to_the_nominal_entries() -> None:
    assert sketch_of(range(1, NOMINAL + 1)).estimate == NOMINAL
    over = sketch_of(range(1, NOMINAL + 2))
    assert (len(over.hashes), over.theta) == (NOMINAL, NOMINAL + 1)


def test_the_estimate_of_many_is_close() -> None:
    """Its standard error is 1/√4096."""
    assert sketch_of_longs(*range(100_000)).estimate == pytest.approx(100_000, rel=3 / 64)


def test_theta_of_a_union_is_the_least() -> None:
    """What one of them left out, the other must not bring back."""
    high = ThetaSketch((MANY.theta + 5,))
    assert union((MANY, high)) == MANY
    assert union((high, MANY)) == MANY


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:4], "requires a buffer"),
        (lambda data: data[:-8], "requires a buffer"),
        (lambda data: data + bytes(8), "do not fit"),
        (lambda data: data[:1] + b"\2" + data[2:], "no compact sketch"),
        (lambda data: data[:2] + b"\2" + data[3:], "no compact sketch"),
        (lambda data: data[:5] + bytes([data[5] | 1]) + data[6:], "no compact sketch"),
        (lambda data: data[:6] + b"\0\0" + data[8:], "another seed"),
        (lambda data: data[:16] + struct.pack("<q", 5) + data[24:], "do not fit"),
    ],
)
def test_damage_is_found(damage: Callable[[bytes], bytes], said: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"a theta sketch in x.stats cannot be read: .*{said}"):
        decode_theta(damage(encode_theta(MANY)), "x.stats")
