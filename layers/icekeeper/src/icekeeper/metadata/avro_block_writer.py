"""Writes container files of records that are encoded already, in deflated blocks.

Source: Apache Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deflate import deflate_compress

__all__ = ["BLOCK_BYTES", "SYNC_BYTES", "avro_block", "avro_long", "container_of"]

BLOCK_BYTES = 64_000
"""The encoded records of a block, before compression (Java's ``DataFileConstants.DEFAULT_SYNC_INTERVAL``)."""
SYNC_BYTES = 16
"""The length of the marker behind each block, with which a file's header ends too."""
# As small as zlib's own level, in half of its time (platform 88).
_DEFLATE_LEVEL = 6


def avro_long(value: int) -> bytes:
    """An int or long as Avro encodes it: zig-zag, in groups of seven bits, in as few bytes as it needs."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def avro_block(records: Sequence[bytes]) -> bytes:
    """A block of these encoded records, without the marker behind it."""
    payload = deflate_compress(b"".join(records), _DEFLATE_LEVEL)
    return avro_long(len(records)) + avro_long(len(payload)) + payload


def container_of(header: bytes, records: Iterable[bytes]) -> bytes:
    """A container file; ``header`` is one with the codec ``deflate`` that has no block yet."""
    marker = header[-SYNC_BYTES:]
    parts, waiting, size = [header], [], 0
    for record in records:
        waiting.append(record)
        size += len(record)
        if size >= BLOCK_BYTES:
            parts += (avro_block(waiting), marker)
            waiting, size = [], 0
    if waiting:
        parts += (avro_block(waiting), marker)
    return b"".join(parts)
