"""The theta sketch of a column, from MurmurHash3 hashes of its distinct values.

Each distinct value is hashed in Iceberg's single-value serialization (Puffin specification, blob type
``apache-datasketches-theta-v1``).  Nulls do not count.  All NaNs are a single value; -0.0 and 0.0 are two values,
because their bytes differ.  Empty strings and binaries do not count, because DataSketches ignores empty input, and so
do Spark and Trino.

Theta sketches use the first half of MurmurHash3_x64_128, shifted right by one (DataSketches, ``UpdateSketch.update``).
The package mmh3 hashes bytes.  Numbers are hashed in Arrow's wrapping 64-bit arithmetic, which takes a ninth of its CPU
(Austin Appleby's MurmurHash3, public domain).
"""

from __future__ import annotations

import struct

import mmh3
import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.metadata.statistics import ALL_HASHES, NOMINAL, SEED, ThetaSketch, sketch_of
from icekeeper.metadata.types import NUMBERS, PRIMITIVES, decimal_of, encode, is_primitive, shape_of

_U64 = pa.uint64()
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def hash_words(words: pa.Array, length: int) -> pa.Array:
    """Hashes of values of ``length`` bytes (at most eight), given as little-endian words without nulls."""
    seed = pa.repeat(_scalar(SEED), len(words))
    return _finished(pc.bit_wise_xor(seed, _mixed1(words)), seed, _scalar(length))


def hash_bytes(values: pa.Array) -> pa.Array:
    """Hashes of binary values without nulls."""
    hashed = mmh3.mmh3_x64_128_utupledigest
    return pa.array([hashed(value, SEED)[0] >> 1 for value in values.to_pylist()], _U64)


def _finished(first: pa.Array, second: pa.Array, length: pa.Array | pa.Scalar) -> pa.Array:
    first, second = pc.bit_wise_xor(first, length), pc.bit_wise_xor(second, length)
    first = pc.add(first, second)
    second = pc.add(second, first)
    return pc.shift_right(pc.add(_avalanche(first), _avalanche(second)), _scalar(1))


def _mixed1(words: pa.Array) -> pa.Array:
    return pc.multiply(_rotated(pc.multiply(words, _scalar(_C1)), 31), _scalar(_C2))


def _rotated(words: pa.Array, bits: int) -> pa.Array:
    return pc.bit_wise_or(pc.shift_left(words, _scalar(bits)), pc.shift_right(words, _scalar(64 - bits)))


def _avalanche(words: pa.Array) -> pa.Array:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _scalar(33))), _scalar(factor))
    return pc.bit_wise_xor(words, pc.shift_right(words, _scalar(33)))


def _scalar(value: int) -> pa.Scalar:
    return pa.scalar(value, _U64)


_NAN = {"float": struct.unpack("<I", struct.pack("<f", float("nan")))[0], "double": 0x7FF8000000000000}


def can_sketch(iceberg_type: object) -> bool:
    """Whether values of a type have a single-value serialization that this version knows."""
    return isinstance(iceberg_type, str) and is_primitive(iceberg_type) and shape_of(iceberg_type) is None


class ColumnSketch:
    """Collects the hashes of a column; memory is bounded by a batch and twice the sketch."""

    def __init__(self, iceberg_type: str) -> None:
        self._type = iceberg_type
        self._kept = pa.array([], _U64)
        self._theta = ALL_HASHES

    def add(self, column: pa.Array) -> None:
        """Add a batch of the column, in the Arrow type of its Iceberg type."""
        hashes = value_hashes(column, self._type)
        # DataSketches drops the hash 0, because 0 marks a free slot in its hash table.
        low = pc.and_(pc.less(hashes, self._theta), pc.greater(hashes, 0))
        self._kept = pc.unique(pa.concat_arrays([self._kept, hashes.filter(low)]))
        if len(self._kept) > 2 * NOMINAL:
            sketch = self.sketch()
            self._kept, self._theta = pa.array(sketch.hashes, _U64), sketch.theta

    def sketch(self) -> ThetaSketch:
        """The sketch of all batches so far."""
        if len(self._kept) > NOMINAL:
            self._kept = self._kept.take(pc.select_k_unstable(self._kept, NOMINAL + 1, [("", "ascending")]))
        return sketch_of(self._kept.to_pylist(), self._theta)


def value_hashes(column: pa.Array, iceberg_type: str) -> pa.Array:
    """One hash per distinct value of a column."""
    values = column.storage if isinstance(column, pa.ExtensionArray) else column
    values = pc.drop_null(pc.unique(values))
    if iceberg_type == "boolean":
        return hash_words(values.cast(pa.uint8()).cast(_U64), 1)
    if iceberg_type in NUMBERS:
        if PRIMITIVES[iceberg_type].width == 4:
            return hash_words(_one_nan(values.view(pa.uint32()), values, iceberg_type).cast(_U64), 4)
        return hash_words(_one_nan(values.view(_U64), values, iceberg_type), 8)
    if decimal_of(iceberg_type):
        return _decimal_hashes(values, iceberg_type)
    values = values.cast(pa.binary())
    return hash_bytes(values.filter(pc.greater(pc.binary_length(values), 0)))


def _one_nan(bits: pa.Array, values: pa.Array, iceberg_type: str) -> pa.Array:
    if iceberg_type not in _NAN:
        return bits
    return pc.if_else(pc.is_nan(values), pa.scalar(_NAN[iceberg_type], bits.type), bits)


def _decimal_hashes(values: pa.Array, iceberg_type: str) -> pa.Array:
    """Hashes of the unscaled values, big-endian in as few bytes as possible."""
    words = pa.Array.from_buffers(_U64, 2 * len(values), [None, values.buffers()[1]], offset=2 * values.offset)
    pairs = pa.FixedSizeListArray.from_arrays(words, 2)
    low, high = pc.list_element(pairs, 0), pc.list_element(pairs, 1)
    number = low.view(pa.int64())
    # 0 or -1; in two steps, because Arrow does not shift signed numbers by 63.
    sign = pc.shift_right(pc.shift_right(number, 62), 1)
    fits = pc.equal(high.view(pa.int64()), sign)
    parts = [
        hash_words(_big_endian(low.filter(chosen), length), length)
        for length, chosen in _by_length(pc.bit_wise_xor(number, sign), fits)
        if pc.any(chosen).as_py()
    ]
    is_long = pc.invert(fits)
    words_of_long = zip(low.filter(is_long).to_pylist(), high.filter(is_long).to_pylist(), strict=True)
    long = [low_word | high_word << 64 for low_word, high_word in words_of_long]
    signed = [value - (value >> 127 << 128) for value in long]
    parts.append(hash_bytes(pa.array([encode(iceberg_type, value) for value in signed], pa.binary())))
    return pa.concat_arrays(parts)


def _by_length(magnitude: pa.Array, fits: pa.Array) -> list[tuple[int, pa.Array]]:
    """Length in bytes → which numbers need exactly this length; ``magnitude`` is -1 - n for a negative n."""
    chosen = []
    for length in range(1, 9):
        least = 0 if length == 1 else 2 ** (8 * (length - 1) - 1)
        needed = pc.and_(fits, pc.greater_equal(magnitude, least))
        if length < 8:
            needed = pc.and_(needed, pc.less(magnitude, 2 ** (8 * length - 1)))
        chosen.append((length, needed))
    return chosen


def _big_endian(words: pa.Array, length: int) -> pa.Array:
    """The lowest ``length`` bytes of each word in big-endian order."""
    words = pc.shift_left(words, pa.scalar(64 - 8 * length, _U64))
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        every, shift = pa.scalar(mask, _U64), pa.scalar(bits, _U64)
        down, up = pc.shift_right(words, shift), pc.shift_left(pc.bit_wise_and(words, every), shift)
        words = pc.bit_wise_or(pc.bit_wise_and(down, every), up)
    return words
