"""Reads that fail when a store answers with fewer bytes than it was asked for (rule 123, platform 39).

Arrow 26 returns a buffer of the size that it asked for, also when a store or proxy answered with fewer bytes: the rest
is whatever was in memory.  So a random mark is written to the end of each buffer beforehand; if it is still there, the
answer was short.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from icekeeper.machine.metering import RequestKind, current_count
from icekeeper.storage.failures import ShortAnswer

__all__ = ["Opener", "etag_of", "whole_reads"]

Opener: TypeAlias = Callable[[], pa.NativeFile | None]
"""Gives a seekable stream when it is first called, and another one when that must not be used any more."""

_MARK_BYTES = 8
_ATTEMPTS = 2


def whole_reads(opener: Opener, path: str) -> pa.NativeFile:
    """The stream that ``opener`` gives; a read that is answered short is repeated once, then raises ``OSError``.

    Before each read the opener is asked whether there is another stream by now.
    """
    stream = opener()
    assert stream is not None  # the first time there is one
    opened = _Stream(_WholeReads(stream, path, opener), mode="r")
    opened.etag = _told_etag(stream)
    return opened


def etag_of(stream: pa.NativeFile) -> str | None:
    """The ETag that an S3 object had when it was opened; ``None``: the store is another one, or did not tell."""
    return stream.etag if isinstance(stream, _Stream) else None


def _told_etag(stream: pa.NativeFile) -> str | None:
    found = stream.metadata() or {}
    return found["ETag"].decode() if "ETag" in found else None


class _Stream(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    etag: str | None = None


class _WholeReads:
    """The methods that :class:`pyarrow.PythonFile` calls on a file."""

    def __init__(self, stream: pa.NativeFile, path: str, opener: Opener) -> None:
        self._stream = stream
        self._opener = opener
        self._path = path
        self._size = int(stream.size())
        self._count = current_count()  # Arrow may read in threads of its own

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        self._stream.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def tell(self) -> int:
        return int(self._stream.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._stream.seek(offset, whence))

    def read(self, size: int = -1) -> pa.Buffer:
        start = self.tell()
        self._renew()
        left = max(0, self._size - start)
        size = left if size < 0 else min(size, left)
        buffer = pa.allocate_buffer(size)
        if size:
            with memoryview(buffer).cast("B") as view:
                if not any(self._filled(view, start) for _ in range(_ATTEMPTS)):
                    short = f"fewer than the {size} bytes from {start} of {self._path}"
                    raise ShortAnswer(f"the store answered with {short}")
        return buffer

    def _renew(self) -> None:
        """Go on with another stream of the same object, if there is one."""
        stream = self._opener()
        if stream is None:
            return
        before, self._stream = self._stream, stream
        if (_told_etag(before), self._size) != (_told_etag(stream), int(stream.size())):
            raise ShortAnswer(f"{self._path} was replaced while it was read")
        before.close()

    def _filled(self, view: memoryview, start: int) -> bool:
        """Read from ``start`` into the view; returns whether the store sent enough bytes to fill it."""
        mark = os.urandom(min(len(view), _MARK_BYTES))
        self._fill(view, start, mark)
        # By chance, one last byte in 256 equals that of the mark: then the end is read again with another mark.
        return view[-1] != mark[-1] or self._is_end(view[-len(mark) :], start + len(view) - len(mark))

    def _fill(self, view: memoryview, start: int, mark: bytes) -> None:
        if self._count is not None:
            self._count.add(RequestKind.GET)
        view[-len(mark) :] = mark
        self._stream.seek(start)
        self._stream.readinto(view)

    def _is_end(self, found: memoryview, start: int) -> bool:
        """Whether the store has these bytes at ``start``, read again with another mark."""
        again = bytearray(len(found))
        self._fill(memoryview(again), start, bytes(byte ^ 0xFF for byte in found))
        return found == again
