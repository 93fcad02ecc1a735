"""Compressed bytes that unfold to much, made without ever holding that much."""

from __future__ import annotations

import bz2
import lzma
import zlib

import pyarrow as pa


def deflated(begin: bytes, piece: bytes = b"", size: int = 0, end: bytes = b"") -> bytes:
    """A piece repeated to so many bytes between two others, compressed without ever holding what it unfolds to."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    if piece:
        part = piece * max(1, 2**20 // len(piece))
        # After a full flush nothing refers to what came before, so that what follows may stand there many times.
        packed += (packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)) * -(-size // len(part))
    return packed + packer.compress(end) + packer.flush()


def gzipped(begin: bytes, piece: bytes = b"", size: int = 0, end: bytes = b"") -> bytes:
    """As :func:`deflated`, as a file of gzip, with the checksum that it should have."""
    part, crc, length = piece * max(1, 2**20 // max(1, len(piece))), zlib.crc32(begin), len(begin) + len(end)
    for _ in range(-(-size // len(part)) if piece else 0):
        crc, length = zlib.crc32(part, crc), length + len(part)
    trailer = zlib.crc32(end, crc).to_bytes(4, "little") + (length % 2**32).to_bytes(4, "little")
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + deflated(begin, piece, size, end) + trailer


def zstandard(size: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(bytes(2**24))
    return bytes(sink.getvalue()) * (size // 2**24)


def bzip2(size: int) -> bytes:
    """The same stream, again and again."""
    return bz2.compress(bytes(2**26 + 2**24)) * (size // 2**26)


def xz(size: int) -> bytes:
    return lzma.compress(bytes(2**26 + 2**24), preset=0) * (size // 2**26)
