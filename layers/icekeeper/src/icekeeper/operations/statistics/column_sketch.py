"""The theta sketch of one column, fed batch by batch (rule 108).

Each distinct value goes in as Iceberg's single-value serialization (Puffin specification, blob type
``apache-datasketches-theta-v1``).  Nulls do not count.  NaN is one value whatever its bits; -0.0 and 0.0 are two, as
their bytes are.  Empty strings and binaries do not count: DataSketches ignores empty input, so Spark and Trino do too.
"""

from __future__ import annotations

import re
import struct

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.metadata.single_value import encode
from icekeeper.metadata.statistics import ALL_HASHES, NOMINAL, ThetaSketch, sketch_of
from icekeeper.operations.statistics.murmur import hash_bytes, hash_words

__all__ = ["ColumnSketch", "can_sketch", "value_hashes"]

_U64 = pa.uint64()
_NARROW = frozenset({"int", "date", "float"})
_WIDE = frozenset({"long", "double", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_BYTES = frozenset({"string", "binary", "uuid"})
_DECIMAL = re.compile(r"decimal\(\s*\d+\s*,\s*\d+\s*\)")
_FIXED = re.compile(r"fixed\[\d+\]")
_NAN = {"float": struct.unpack("<I", struct.pack("<f", float("nan")))[0], "double": 0x7FF8000000000000}


def can_sketch(iceberg_type: object) -> bool:
    """Whether values of a type have a single-value serialization that this version knows."""
    if not isinstance(iceberg_type, str):
        return False
    known = iceberg_type == "boolean" or iceberg_type in _NARROW | _WIDE | _BYTES
    return known or _DECIMAL.fullmatch(iceberg_type) is not None or _FIXED.fullmatch(iceberg_type) is not None


class ColumnSketch:
    """Collects the hashes of a column; memory is bounded by one batch and twice the sketch."""

    def __init__(self, iceberg_type: str) -> None:
        self._type = iceberg_type
        self._kept = pa.array([], _U64)
        self._theta = ALL_HASHES

    def add(self, column: pa.Array) -> None:
        """Take in a batch of the column, in the Arrow type of its Iceberg type."""
        hashes = value_hashes(column, self._type)
        # DataSketches keeps no zero: it marks a free place in its hash table.
        low = pc.and_(pc.less(hashes, self._theta), pc.greater(hashes, 0))
        self._kept = pc.unique(pa.concat_arrays([self._kept, hashes.filter(low)]))
        if len(self._kept) > 2 * NOMINAL:
            self._keep(self.sketch())

    def sketch(self) -> ThetaSketch:
        """The sketch of all batches so far."""
        if len(self._kept) > NOMINAL:
            self._kept = self._kept.take(pc.select_k_unstable(self._kept, NOMINAL + 1, [("", "ascending")]))
        return sketch_of(self._kept.to_pylist(), self._theta)

    def _keep(self, sketch: ThetaSketch) -> None:
        self._kept, self._theta = pa.array(sketch.hashes, _U64), sketch.theta


def value_hashes(column: pa.Array, iceberg_type: str) -> pa.Array:
    """One hash for every distinct value of a column."""
    values = column.storage if isinstance(column, pa.ExtensionArray) else column
    values = pc.drop_null(pc.unique(values))
    if iceberg_type == "boolean":
        return hash_words(values.cast(pa.uint8()).cast(_U64), 1)
    if iceberg_type in _NARROW:
        return hash_words(_one_nan(values.view(pa.uint32()), values, iceberg_type).cast(_U64), 4)
    if iceberg_type in _WIDE:
        return hash_words(_one_nan(values.view(_U64), values, iceberg_type), 8)
    if _DECIMAL.fullmatch(iceberg_type):
        return _decimal_hashes(values, iceberg_type)
    values = values.cast(pa.binary())
    return hash_bytes(values.filter(pc.greater(pc.binary_length(values), 0)))


def _one_nan(bits: pa.Array, values: pa.Array, iceberg_type: str) -> pa.Array:
    if iceberg_type not in _NAN:
        return bits
    return pc.if_else(pc.is_nan(values), pa.scalar(_NAN[iceberg_type], bits.type), bits)


def _decimal_hashes(values: pa.Array, iceberg_type: str) -> pa.Array:
    """Hashes of decimals: of their unscaled value, big-endian in as few bytes as it needs."""
    words = pa.Array.from_buffers(_U64, 2 * len(values), [None, values.buffers()[1]], offset=2 * values.offset)
    pairs = pa.FixedSizeListArray.from_arrays(words, 2)
    low, high = pc.list_element(pairs, 0), pc.list_element(pairs, 1)
    number = low.view(pa.int64())
    sign = _sign(number)
    fits = pc.equal(high.view(pa.int64()), sign)
    parts = [
        hash_words(_big_endian(low.filter(chosen), length), length)
        for length, chosen in _by_length(pc.bit_wise_xor(number, sign), fits)
        if pc.any(chosen).as_py()
    ]
    long = [low_word | high_word << 64 for low_word, high_word in _pairs(low, high, pc.invert(fits))]
    signed = [value - (value >> 127 << 128) for value in long]
    parts.append(hash_bytes(pa.array([encode(iceberg_type, value) for value in signed], pa.binary())))
    return pa.concat_arrays(parts)


def _sign(number: pa.Array) -> pa.Array:
    """0 or -1; in two steps, as Arrow leaves signed numbers alone when it shall shift them by 63."""
    return pc.shift_right(pc.shift_right(number, 62), 1)


def _by_length(magnitude: pa.Array, fits: pa.Array) -> list[tuple[int, pa.Array]]:
    """For every length in bytes, which numbers need just that; ``magnitude`` is -1 - n for an n below 0."""
    chosen = []
    for length in range(1, 9):
        least = 0 if length == 1 else 2 ** (8 * (length - 1) - 1)
        needed = pc.and_(fits, pc.greater_equal(magnitude, least))
        if length < 8:
            needed = pc.and_(needed, pc.less(magnitude, 2 ** (8 * length - 1)))
        chosen.append((length, needed))
    return chosen


def _big_endian(words: pa.Array, length: int) -> pa.Array:
    """The lowest ``length`` bytes of each word, the highest of them first."""
    words = pc.shift_left(words, pa.scalar(64 - 8 * length, _U64))
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        every, shift = pa.scalar(mask, _U64), pa.scalar(bits, _U64)
        down, up = pc.shift_right(words, shift), pc.shift_left(pc.bit_wise_and(words, every), shift)
        words = pc.bit_wise_or(pc.bit_wise_and(down, every), up)
    return words


def _pairs(low: pa.Array, high: pa.Array, chosen: pa.Array) -> list[tuple[int, int]]:
    return list(zip(low.filter(chosen).to_pylist(), high.filter(chosen).to_pylist(), strict=True))
