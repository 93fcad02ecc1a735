"""Unpacks and parses what others wrote, within limits: a file of 2 MB may unfold to several GB
(rule: bound-foreign-bytes).

The limit holds for one file: its bytes after decompression, and four times as many for the objects that are made of
them.  Compressed data and JSON enter here and nowhere else; what Arrow decodes itself is bounded by the process.
"""

from __future__ import annotations

import bz2
import json
import lzma
import os
import threading
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic_core import from_json

from icekeeper.errors import MetadataUnreadable, PolicyError
from icekeeper.machine.resources import this_machine

MAX_UNPACKED_MB = "ICEKEEPER_MAX_UNPACKED_MB"
"""The variable with the most megabytes that one file may have after decompression."""
GZIP_MAGIC = b"\x1f\x8b"
CODECS = frozenset({"null", "gzip", "deflate", "snappy", "zstd", "zstandard", "lz4", "bzip2", "xz", "zlib"})
"""Codecs by the names that Avro and Puffin give them; zlib is that of our own state."""

_MB = 1024 * 1024
# With objects of four times its size, a file may take five eighths of the process: in a function of 1 GB, 128 MB.
_SHARE_OF_MEMORY = 8
_LEAST_DEFAULT = 64 * _MB
_OBJECTS_PER_BYTE = 4
# Metadata compress to a tenth or a thirtieth, since ids and paths differ; deflate itself ends at 1,032.
_RATIO_FROM = 64 * _MB
_LARGEST_RATIO = 200
# Several threads read tables: what is larger is unpacked one after the other, or seven bombs would take sevenfold.
_UNPACKED_AT_ONCE = 16 * _MB
_one_large_file = threading.Lock()
# Each of many streams in one file would be copied with all that follow it.
_MOST_STREAMS = 64
_SNAPPY_CHECKSUM_BYTES = 4
# What CPython 3.11 and 3.12 take for an item of a list or dict with a small value, and for a dict with its first key.
_ITEM_BYTES = 72
_DICT_BYTES = 200


class FileLimits:
    """What one file may still unfold to; one reader of the file uses it."""

    __slots__ = ("_objects_left", "_ratio", "_unpacked_left", "path")

    def __init__(self, path: str, packed: int | None = None) -> None:
        """``packed``: the file's size in bytes; ``None``: text of any ratio is honest, as in data files.

        Raises:
            PolicyError: the setting is malformed.
        """
        most = most_unpacked()
        self.path = path
        """The file, for people."""
        self._objects_left = _OBJECTS_PER_BYTE * most
        self._unpacked_left = most
        self._ratio = False
        if packed is not None and not _is_set() and most > (by_ratio := max(_RATIO_FROM, _LARGEST_RATIO * packed)):
            self._unpacked_left, self._ratio = by_ratio, True

    def unpack(self, codec: str, data: bytes) -> bytes:
        """The bytes of one compressed part of the file; those of ``null`` are the data themselves.

        Raises:
            MetadataUnreadable: the file unfolds to more than it may.
            ValueError: the data are damaged or cut off, or the codec is unknown.
        """
        if codec == "null":
            return data
        if codec not in CODECS:
            raise ValueError(f"its codec {codec} is not known; known are {', '.join(sorted(CODECS))}")
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
            except _TooMuchError:  # begun anew, when it is the only one
                with _one_large_file:
                    return _unpacked(codec, data, self._unpacked_left)
        return _unpacked(codec, data, self._unpacked_left)

    def hold(self, size: int) -> None:
        """Count objects that are made of the file, in bytes.

        Raises:
            MetadataUnreadable: they are more than may be made of one file.
        """
        self._objects_left -= size
        if self._objects_left < 0:
            raise _refusal(self.path, "holds more values")


def most_unpacked() -> int:
    """The most bytes that one file may have after decompression: as set, or an eighth of the process' memory.

    Raises:
        PolicyError: the variable is no number of megabytes.
    """
    text = os.environ.get(MAX_UNPACKED_MB, "").strip()
    if not text:
        return _default()
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 10 and int(text)):
        raise PolicyError(
            f"environment variable {MAX_UNPACKED_MB} is '{text}', which is no number of megabytes above 0"
        )
    return int(text) * _MB


def _is_set() -> bool:
    return bool(os.environ.get(MAX_UNPACKED_MB, "").strip())


@cache
def _default() -> int:
    return max(_LEAST_DEFAULT, this_machine().memory_bytes // _SHARE_OF_MEMORY)


def require_fitting(path: str, size: int) -> None:
    """Check the size of a file before it is read whole, in bytes.

    Raises:
        MetadataUnreadable: it is larger than one file may be after decompression.
        PolicyError: the setting is malformed.
    """
    if size > most_unpacked():
        raise _refusal(path, "is larger")


def _refusal(path: str, what: str) -> MetadataUnreadable:
    return MetadataUnreadable(
        f"{path} {what} than one file may here: {most_unpacked() // _MB} MB, and four times that for its values; if it "
        f"is honest, set {MAX_UNPACKED_MB} (MaxUnpackedMb of the stack) to more, in a process of eight times that"
    )


def parsed_json(data: bytes, limits: FileLimits) -> Any:
    """A JSON document of at most 200 levels, in UTF-8 or another encoding of Unicode; of equal keys the last counts.

    Raises:
        MetadataUnreadable: it holds more values than may be made of one file.
        ValueError: it is no JSON, is nested more deeply, or holds a lone surrogate, NaN, or a number of 4,300 digits.
    """
    hold_values(data, limits)
    encoding = json.detect_encoding(data)
    if encoding != "utf-8":
        data = data.decode(encoding).encode()
    return from_json(data, allow_inf_nan=False, cache_strings="keys")


def hold_values(data: bytes, limits: FileLimits, each: int = 1) -> None:
    """Count the values of a JSON document before they are made; ``each``: so many times what Python takes for them.

    Raises:
        MetadataUnreadable: it holds more values than may be made of one file.
    """
    if len(data) > _LEAST_DEFAULT // 8:
        items = data.count(b",") + data.count(b"[")
        limits.hold(each * (_ITEM_BYTES * items + _DICT_BYTES * data.count(b"{")))


class _TooMuchError(Exception):
    pass


def _unpacked(codec: str, data: bytes, most: int) -> bytes:
    if codec in _STREAMS:
        return _drained(_STREAMS[codec], data, most, trailing=codec == "deflate")
    if codec == "snappy":
        return _snappy(data, most)
    import pyarrow as pa  # half a second, for codecs that metadata hardly ever have

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
    """All streams, one after the other; ``trailing``: what follows the first one is no stream, and passed over."""
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
    """Raw Snappy with Avro's checksum; it begins with the decompressed length (its format description, "Preamble")."""
    import pyarrow as pa  # as above

    size = 0
    for position, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            break
    if size > most:
        raise _TooMuchError
    plain: bytes = pa.Codec("snappy").decompress(data[:-_SNAPPY_CHECKSUM_BYTES], decompressed_size=size, asbytes=True)
    return plain
