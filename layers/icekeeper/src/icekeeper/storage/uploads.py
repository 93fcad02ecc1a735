"""Counts the requests with which PyArrow uploads what is written to a stream (platform 50)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from icekeeper.machine.metering import RequestKind, current_count

__all__ = ["UPLOAD_PART_BYTES", "WriteOnly", "counted_upload", "upload_requests"]

UPLOAD_PART_BYTES = 10 * 1024 * 1024
"""What is smaller is sent as one object, the rest as an upload of parts of this size."""


def counted_upload(stream: pa.NativeFile) -> pa.NativeFile:
    """The same stream, whose requests are counted when it is closed; nobody is told where nobody counts."""
    return stream if current_count() is None else pa.PythonFile(_CountedUpload(stream), mode="w")


def upload_requests(size: int) -> int:
    """How many requests an object of ``size`` bytes takes: one, or those for the parts and two around them."""
    return 1 if size < UPLOAD_PART_BYTES else 2 - (-size // UPLOAD_PART_BYTES)


class WriteOnly:
    """What Arrow asks a Python object before it writes to it."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class _CountedUpload(WriteOnly):
    """The methods that :class:`pyarrow.PythonFile` calls on a file that is written."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._count = current_count()

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def close(self) -> None:
        if self.closed:
            return
        size = int(self._stream.tell())
        try:
            self._stream.close()
        finally:
            if self._count is not None:
                self._count.add(RequestKind.PUT, upload_requests(size))

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def write(self, data: Any) -> int:
        self._stream.write(data)
        return len(data)
