"""A checksum of rows that does not depend on their order: the sum of one 64-bit hash per row, over every column.

Arrow has no hash kernel and NumPy is no dependency, so hashes are made of Arrow's wrapping 64-bit arithmetic:
fixed-width values by the finaliser of SplitMix64 (Steele, Lea, Flood 2014), bytes and elements by multilinear hashing
(a sum of products with a fixed pseudo-random number per position).  The result is the same in every process.  It finds
mistakes, not adversaries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.rows.leaf_values import as_list

__all__ = ["WORD", "row_checksum"]

WORD = 2**64

# Hashing a slice of rows takes some 30 times its size; this bounds it to a few dozen MB.
_SLICE_BYTES = 1024 * 1024
# Longer values are hashed one by one, so that a single one cannot take much memory.
_LONG_BYTES = 64 * 1024
_GOLDEN = 0x9E3779B97F4A7C15
_NULL = 0x5D8E6B2C9A1F4703
_U64 = pa.uint64()


def row_checksum(batch: pa.RecordBatch) -> int:
    """The sum of the row hashes, modulo 2^64; sums of several batches add up to that of all their rows."""
    rows = max(1, batch.num_rows * _SLICE_BYTES // max(1, batch.nbytes))
    total = 0
    for start in range(0, batch.num_rows, rows):
        hashes = _mixed(_combined([_hashes(column) for column in batch.slice(start, rows).columns]))
        total += pc.sum(hashes).as_py() or 0
    return total % WORD


def _combined(columns: Sequence[pa.Array]) -> pa.Array:
    """One hash per row of the hashes in several columns; it changes when two columns are exchanged."""
    total = _mixed(pc.add(columns[0], _word(_GOLDEN)))
    for number, column in enumerate(columns[1:], start=2):
        total = pc.add(total, _mixed(pc.add(column, _word(number * _GOLDEN))))
    return total


def _hashes(array: pa.Array) -> pa.Array:
    """One hash per value; nulls have one too."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_struct(kind):
        hashes = _combined([_hashes(child) for child in array.flatten()])
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        lists = as_list(array)
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        hashes = _of_sequences(_mixed(_hashes(lists.flatten())), lengths)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        hashes = _of_bytes(array.cast(pa.binary()))
    else:
        hashes = _mixed(_bits(array))
    return pc.if_else(pc.is_null(array), _word(_NULL), hashes) if array.null_count else hashes


def _bits(array: pa.Array) -> pa.Array:
    """Fixed-width values as 64 bits that are equal only when the values are the same, bit for bit."""
    kind = array.type
    if pa.types.is_decimal(kind):
        words = pa.Array.from_buffers(_U64, 2 * len(array), [None, array.buffers()[1]], offset=2 * array.offset)
        pairs = pa.FixedSizeListArray.from_arrays(words, 2)
        return pc.add(pc.list_element(pairs, 0), _mixed(pc.list_element(pairs, 1)))
    if pa.types.is_boolean(kind):
        return array.cast(pa.uint8()).cast(_U64)
    narrow = kind.bit_width == 32
    return (array.view(pa.int32()).cast(pa.int64()) if narrow else array.view(pa.int64())).view(_U64)


def _of_bytes(array: pa.Array) -> pa.Array:
    array = pc.fill_null(array, b"")
    is_long = pc.greater(pc.binary_length(array), _LONG_BYTES)
    if not pc.any(is_long).as_py():
        return _of_short_bytes(array)
    digests = [hashlib.blake2b(value, digest_size=8).digest() for value in array.filter(is_long).to_pylist()]
    words = pa.array([int.from_bytes(digest, "little") for digest in digests], _U64)
    return pc.replace_with_mask(_of_short_bytes(pc.if_else(is_long, pa.scalar(b""), array)), is_long, words)


def _of_short_bytes(array: pa.Array) -> pa.Array:
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets_buffer], offset=array.offset)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if data_buffer is None or first == last:
        data = pa.array([], _U64)
    else:
        data = pa.Array.from_buffers(pa.uint8(), last - first, [None, data_buffer], offset=first).cast(_U64)
    return _of_sequences(data, pc.binary_length(array))


def _of_sequences(items: pa.Array, lengths: pa.Array) -> pa.Array:
    """One hash per sequence; ``items`` are those of all sequences, one after the other."""
    lengths = lengths.cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    starts = pc.subtract(ends, lengths)
    if not len(items):
        return _mixed(lengths.view(_U64))
    longest = pc.max(lengths).as_py()
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    owner = pc.list_parent_indices(pa.LargeListArray.from_arrays(offsets, items))
    place = pc.subtract(pa.arange(0, len(items)), starts.take(owner))
    factors = _mixed(pc.multiply(pa.arange(1, longest + 1).cast(_U64), _word(_GOLDEN)))
    products = pc.multiply(pc.add(items, _word(1)), factors.take(place))
    sums = pa.concat_arrays([pa.array([0], _U64), pc.cumulative_sum(products)])
    total = pc.subtract(sums.take(ends), sums.take(starts))
    return _mixed(pc.add(total, lengths.view(_U64)))


def _mixed(words: pa.Array) -> pa.Array:
    words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _word(30))), _word(0xBF58476D1CE4E5B9))
    words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _word(27))), _word(0x94D049BB133111EB))
    return pc.bit_wise_xor(words, pc.shift_right(words, _word(31)))


def _word(value: int) -> pa.Scalar:
    return pa.scalar(value % WORD, _U64)
