"""Writes container files of records that are encoded already, in deflated blocks.

Source: Apache Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from deflate import deflate_compress

from icekeeper.metadata.avro_container import SYNC_BYTES

__all__ = ["BLOCK_BYTES", "avro_block", "avro_blocks", "avro_long", "container_of"]

BLOCK_BYTES = 64_000
"""The encoded records of a block, before compression (Java's ``DataFileConstants.DEFAULT_SYNC_INTERVAL``)."""
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
    """A deflated block of these encoded records, without the marker behind it."""
    payload = deflate_compress(b"".join(records), _DEFLATE_LEVEL)
    return avro_long(len(records)) + avro_long(len(payload)) + payload


def avro_blocks(records: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of about :data:`BLOCK_BYTES`, each as by :func:`avro_block`."""
    waiting, size = [], 0
    for record in records:
        waiting.append(record)
        size += len(record)
        if size >= BLOCK_BYTES:
            yield avro_block(waiting)
            waiting, size = [], 0
    if waiting:
        yield avro_block(waiting)


def container_of(header: bytes, blocks: Iterable[bytes]) -> bytes:
    """A container file of these blocks; ``header`` is one with the codec ``deflate`` that has no block yet."""
    marker = header[-SYNC_BYTES:]
    return header + b"".join(part for block in blocks for part in (block, marker))
