"""MurmurHash3 (x64, 128 bits) of whole columns, in Arrow's wrapping 64-bit arithmetic.

The first half of the hash, shifted right by one, is what theta sketches keep (DataSketches,
``UpdateSketch.update``).  Source: Austin Appleby's MurmurHash3_x64_128, in the public domain.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.metadata.statistics import SEED

__all__ = ["hash_bytes", "hash_words"]

_U64 = pa.uint64()
_WORD = 2**64
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK = 16
# Values per step from which Arrow's fixed cost of a step is less than Python's of a value.
_FEW = 48
# Bytes at a time: padding copies the values.
_SLICE_BYTES = 4 * 1024 * 1024


def hash_words(words: pa.Array, length: int) -> pa.Array:
    """Hashes of values of at most eight bytes, each ``length`` long, as little-endian words without nulls."""
    seed = pa.repeat(_scalar(SEED), len(words))
    return _finished(pc.bit_wise_xor(seed, _mixed1(words)), seed, _scalar(length))


def hash_bytes(values: pa.Array) -> pa.Array:
    """Hashes of binary values without nulls."""
    step = max(1, len(values) * _SLICE_BYTES // max(1, values.nbytes))
    parts = [_hash_slice(values.slice(start, step)) for start in range(0, len(values), step)]
    return pa.concat_arrays(parts) if parts else pa.array([], _U64)


def _hash_slice(values: pa.Array) -> pa.Array:
    """Block after block of all values that still have one; the last few are finished one by one."""
    lengths = pc.binary_length(values).cast(pa.int64())
    blocks = pc.divide(lengths, _BLOCK)
    result = pa.repeat(_scalar(0), len(values))
    places = pa.arange(0, len(values))
    first, second = (pa.repeat(_scalar(SEED), len(values)) for _ in range(2))
    block = 0
    while len(places) > _FEW:
        start = block * _BLOCK
        k1, k2 = _words(pc.binary_slice(values, start, start + _BLOCK))
        has_more = pc.greater(blocks, block)
        ended = pc.invert(has_more)
        last1 = pc.bit_wise_xor(first, _mixed1(k1)).filter(ended)
        last2 = pc.bit_wise_xor(second, _mixed2(k2)).filter(ended)
        done = _finished(last1, last2, lengths.filter(ended).cast(_U64))
        result = _placed(result, places.filter(ended), done)
        first, second = _next(first, second, k1, k2)
        first, second, values, lengths, blocks, places = (
            array.filter(has_more) for array in (first, second, values, lengths, blocks, places)
        )
        block += 1
    rest = zip(values.to_pylist(), first.to_pylist(), second.to_pylist(), strict=True)
    return _placed(result, places, pa.array([_one(value, block, h1, h2) for value, h1, h2 in rest], _U64))


def _placed(result: pa.Array, places: pa.Array, hashes: pa.Array) -> pa.Array:
    if len(places) == len(result):
        return hashes
    if not len(places):
        return result
    mask = pc.is_in(pa.arange(0, len(result)), value_set=places)
    return pc.replace_with_mask(result, mask, hashes)


def _words(pieces: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Up to sixteen bytes of each value as two little-endian words, zeros where there are fewer."""
    zeros = pa.repeat(pa.scalar(bytes(_BLOCK), pieces.type), len(pieces))
    padded = pc.binary_slice(pc.binary_join_element_wise(pieces, zeros, pa.scalar(b"", pieces.type)), 0, _BLOCK)
    words = pa.Array.from_buffers(_U64, 2 * len(pieces), [None, padded.buffers()[2]], offset=2 * padded.offset)
    pairs = pa.FixedSizeListArray.from_arrays(words, 2)
    return pc.list_element(pairs, 0), pc.list_element(pairs, 1)


def _next(first: pa.Array, second: pa.Array, k1: pa.Array, k2: pa.Array) -> tuple[pa.Array, pa.Array]:
    first = pc.add(_rotated(pc.bit_wise_xor(first, _mixed1(k1)), 27), second)
    first = pc.add(pc.multiply(first, _scalar(5)), _scalar(0x52DCE729))
    second = pc.add(_rotated(pc.bit_wise_xor(second, _mixed2(k2)), 31), first)
    return first, pc.add(pc.multiply(second, _scalar(5)), _scalar(0x38495AB5))


def _finished(first: pa.Array, second: pa.Array, length: pa.Array | pa.Scalar) -> pa.Array:
    first, second = pc.bit_wise_xor(first, length), pc.bit_wise_xor(second, length)
    first = pc.add(first, second)
    second = pc.add(second, first)
    return pc.shift_right(pc.add(_avalanche(first), _avalanche(second)), _scalar(1))


def _mixed1(words: pa.Array) -> pa.Array:
    return pc.multiply(_rotated(pc.multiply(words, _scalar(_C1)), 31), _scalar(_C2))


def _mixed2(words: pa.Array) -> pa.Array:
    return pc.multiply(_rotated(pc.multiply(words, _scalar(_C2)), 33), _scalar(_C1))


def _rotated(words: pa.Array, bits: int) -> pa.Array:
    return pc.bit_wise_or(pc.shift_left(words, _scalar(bits)), pc.shift_right(words, _scalar(64 - bits)))


def _avalanche(words: pa.Array) -> pa.Array:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _scalar(33))), _scalar(factor))
    return pc.bit_wise_xor(words, pc.shift_right(words, _scalar(33)))


def _scalar(value: int) -> pa.Scalar:
    return pa.scalar(value, _U64)


# -- one value at a time


def _one(value: bytes, block: int, first: int, second: int) -> int:
    """The hash of a value of which some blocks have been taken in already."""
    whole = len(value) // _BLOCK * _BLOCK
    for k1, k2 in struct.iter_unpack("<QQ", memoryview(value)[block * _BLOCK : whole]):
        first = (_turn(first ^ _mix1(k1), 27) + second) * 5 + 0x52DCE729 & _WORD - 1
        second = (_turn(second ^ _mix2(k2), 31) + first) * 5 + 0x38495AB5 & _WORD - 1
    k1, k2 = struct.unpack("<QQ", value[whole:].ljust(_BLOCK, b"\0"))
    first, second = first ^ _mix1(k1) ^ len(value), second ^ _mix2(k2) ^ len(value)
    first = first + second & _WORD - 1
    second = second + first & _WORD - 1
    return (_spread(first) + _spread(second) & _WORD - 1) >> 1


def _mix1(word: int) -> int:
    return _turn(word * _C1 & _WORD - 1, 31) * _C2 & _WORD - 1


def _mix2(word: int) -> int:
    return _turn(word * _C2 & _WORD - 1, 33) * _C1 & _WORD - 1


def _turn(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _WORD - 1


def _spread(word: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word = (word ^ word >> 33) * factor & _WORD - 1
    return word ^ word >> 33
