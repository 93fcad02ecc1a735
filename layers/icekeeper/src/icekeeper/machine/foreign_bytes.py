"""Decompresses and parses files of other writers within limits: 2 MB may unpack to several GB
(rule: bound-foreign-bytes).

The limits are for one file: its bytes after decompression, and four times as many for the objects made of them.  All
compressed data and JSON are read here; only the memory of the process limits what Arrow itself decodes.
"""

from __future__ import annotations

import bz2
import json
import lzma
import os
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from deflate import DeflateError, deflate_decompress
from pydantic_core import from_json

from icekeeper.errors import MetadataUnreadable, PolicyError
from icekeeper.machine.resources import this_machine

MAX_UNPACKED_MB = "ICEKEEPER_MAX_UNPACKED_MB"
"""The environment variable with the most megabytes that one file may have after decompression."""
GZIP_MAGIC = b"\x1f\x8b"
CODECS = frozenset({"null", "gzip", "deflate", "snappy", "zstd", "zstandard", "lz4", "bzip2", "xz", "zlib"})
"""Codecs by their names in Avro and Puffin; Icekeeper's own state uses zlib."""

_MB = 1024 * 1024
# With objects of four times its size, a file takes at most five eighths of the memory: 128 MB in a function of 1 GB.
_SHARE_OF_MEMORY = 8
_LEAST_DEFAULT = 64 * _MB
_OBJECTS_PER_BYTE = 4
# Metadata compresses to a tenth or a thirtieth, because ids and paths differ; the largest ratio of deflate is 1,032.
_RATIO_FROM = 64 * _MB
_LARGEST_RATIO = 200
# Threads unpack larger files one after the other, so that several decompression bombs at once do not add up.
_UNPACKED_AT_ONCE = 16 * _MB
_one_large_file = threading.Lock()
# libdeflate takes half of zlib's time, but must know the most bytes in advance.  Nearly all blocks of Avro have fewer.
_LIKELY_UNPACKED, _LIKELY_RATIO = 128 * 1024, 8
# Unpacking a stream copies all streams that follow it.
_MOST_STREAMS = 64
_SNAPPY_CHECKSUM_BYTES = 4
# The memory of CPython 3.11 and 3.12 for an item of a list or dict with a small value, and for a dict with one key.
_ITEM_BYTES = 72
_DICT_BYTES = 200


class FileLimits:
    """How much of one file may still be unpacked; each read of a file has its own."""

    __slots__ = ("_objects_left", "_ratio", "_unpacked_left", "path")

    def __init__(self, path: str, packed: int | None = None) -> None:
        """``packed``: the file's size in bytes, which bounds the ratio; ``None`` for data files: they may have any.

        Raises:
            PolicyError: the setting is malformed.
        """
        most = most_unpacked()
        self.path = path
        self._objects_left = _OBJECTS_PER_BYTE * most
        self._unpacked_left = most
        self._ratio = False
        if packed is not None and not _is_set() and most > (by_ratio := max(_RATIO_FROM, _LARGEST_RATIO * packed)):
            self._unpacked_left, self._ratio = by_ratio, True

    def unpack(self, codec: str, data: bytes) -> bytes:
        """Decompress one part of the file; codec ``null`` means uncompressed.

        Raises:
            MetadataUnreadable: the file unpacks to more than its limit.
            ValueError: the data are damaged or truncated, or the codec is unknown.
        """
        if codec == "null":
            return data
        if codec not in CODECS:
            raise ValueError(f"its codec {codec!r} is unknown; known are {', '.join(sorted(CODECS))}")
        try:
            plain = self._within_limits(codec, data)
        except _TooMuchError:
            what = f"unpacks to {_LARGEST_RATIO} times its size, more" if self._ratio else "unpacks to more"
            raise _refusal(self.path, what) from None
        except (OSError, EOFError, ValueError, MemoryError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"its {codec} data are damaged: {error}") from error
        self._unpacked_left -= len(plain)
        return plain

    def _within_limits(self, codec: str, data: bytes) -> bytes:
        if self._unpacked_left > _UNPACKED_AT_ONCE:
            try:
                return _unpacked(codec, data, _UNPACKED_AT_ONCE)
            except _TooMuchError:  # unpack again, alone
                with _one_large_file:
                    return _unpacked(codec, data, self._unpacked_left)
        return _unpacked(codec, data, self._unpacked_left)

    def hold(self, size: int) -> None:
        """Count ``size`` bytes of objects that are made of the file.

        Raises:
            MetadataUnreadable: the objects of the file exceed its limit.
        """
        self._objects_left -= size
        if self._objects_left < 0:
            raise _refusal(self.path, "holds more values")


def most_unpacked() -> int:
    """The most bytes that one file may have after decompression: as set, or an eighth of the process's memory.

    Raises:
        PolicyError: the variable is not a number of megabytes.
    """
    text = os.environ.get(MAX_UNPACKED_MB, "").strip()
    if not text:
        return _default()
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text)):
        raise PolicyError(
            f"environment variable {MAX_UNPACKED_MB} is '{text}', which is not a number of megabytes above 0"
        )
    return int(text) * _MB


def _is_set() -> bool:
    return bool(os.environ.get(MAX_UNPACKED_MB, "").strip())


@cache
def _default() -> int:
    return max(_LEAST_DEFAULT, this_machine().memory_bytes // _SHARE_OF_MEMORY)


def require_fitting(path: str, size: int) -> None:
    """Check the size of a file, in bytes, before it is read whole.

    Raises:
        MetadataUnreadable: it exceeds the limit for decompressed bytes.
        PolicyError: the setting is malformed.
    """
    if size > most_unpacked():
        raise _refusal(path, "is larger")


def _refusal(path: str, what: str) -> MetadataUnreadable:
    return MetadataUnreadable(
        f"{path} {what} than one file may here: {most_unpacked() // _MB} MB, and four times that for its values; if it "
        f"is valid, set {MAX_UNPACKED_MB} to more, in a process of eight times that"
    )


def parsed_json(data: bytes, limits: FileLimits) -> Any:
    """Parse a JSON document of at most 200 levels, in any Unicode encoding; of equal keys the last counts.

    Raises:
        MetadataUnreadable: it has too many values.
        ValueError: it is not JSON, has more levels, or holds a lone surrogate, NaN, or a number of 4,300 digits.
    """
    hold_values(data, limits)
    encoding = json.detect_encoding(data)
    if encoding != "utf-8":
        data = data.decode(encoding).encode()
    return from_json(data, allow_inf_nan=False, cache_strings="keys")


def hold_values(data: bytes, limits: FileLimits, each: int = 1) -> None:
    """Count the values of a JSON document before it is parsed, at ``each`` times the memory of plain Python values."""
    if len(data) > _LEAST_DEFAULT // 8:
        items = data.count(b",") + data.count(b"[")
        limits.hold(each * (_ITEM_BYTES * items + _DICT_BYTES * data.count(b"{")))


class _TooMuchError(Exception):
    pass


def _unpacked(codec: str, data: bytes, most: int) -> bytes:
    if codec == "deflate" and most:
        with suppress(DeflateError):  # it is larger, or damaged
            return bytes(deflate_decompress(data, min(most, max(_LIKELY_UNPACKED, _LIKELY_RATIO * len(data)))))
    if codec in _STREAMS:
        return _drained(_STREAMS[codec], data, most, trailing=codec == "deflate")
    if codec == "snappy":
        return _snappy(data, most)
    import pyarrow as pa  # takes half a second, for codecs that metadata files rarely have

    with pa.CompressedInputStream(pa.BufferReader(data), "lz4" if codec == "lz4" else "zstd") as stream:
        plain: bytes = stream.read(most + 1)
    if len(plain) > most:
        raise _TooMuchError
    return plain


_STREAMS: dict[str, Callable[[int], Any]] = {
    "zlib": lambda most: zlib.decompressobj(),
    "gzip": lambda most: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": lambda most: zlib.decompressobj(-zlib.MAX_WBITS),
    "bzip2": lambda most: bz2.BZ2Decompressor(),
    "xz": lambda most: lzma.LZMADecompressor(memlimit=max(most, _LEAST_DEFAULT)),
}


def _drained(begin: Callable[[int], Any], data: bytes, most: int, *, trailing: bool) -> bytes:
    """Decompress all streams in a row; with ``trailing``, ignore the bytes after the first stream."""
    parts: list[bytes] = []
    size = 0
    for _ in range(_MOST_STREAMS):
        stream = begin(most)
        part = stream.decompress(data, most + 1 - size)
        size += len(part)
        if size > most:
            raise _TooMuchError
        if not stream.eof:
            raise EOFError("they are cut off")
        parts.append(part)
        data = stream.unused_data
        if trailing or not data.strip(b"\0"):
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise ValueError(f"they are more than {_MOST_STREAMS} streams")


def _snappy(data: bytes, most: int) -> bytes:
    """Raw Snappy with Avro's checksum; starts with the decompressed length (format description, "Preamble")."""
    import pyarrow as pa

    size = 0
    for position, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            break
    if size > most:
        raise _TooMuchError
    plain: bytes = pa.Codec("snappy").decompress(data[:-_SNAPPY_CHECKSUM_BYTES], decompressed_size=size, asbytes=True)
    return plain
