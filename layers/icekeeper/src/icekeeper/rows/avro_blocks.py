"""Reads an Avro container file block by block, as a stream.

Source: Apache Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic_core import from_json

from icekeeper.errors import MaintenanceError
from icekeeper.machine.foreign_bytes import CODECS, FileLimits, require_fitting

__all__ = ["AvroContainer"]

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
# A schema of 2,000 columns has 0.2 MB.
_LONGEST_HEADER = 8 * 1024 * 1024
_BLOCK = "a block of it"
# Numbers are read byte by byte, and each read of an object store's stream is a request.
_BUFFER_BYTES = 1024 * 1024


class AvroContainer:
    """An open container file: its header is read when it is opened, each block when it is asked for."""

    def __init__(self, stream: pa.NativeFile) -> None:
        """Raises pa.ArrowInvalid where the stream is no container file or of an unknown codec."""
        self._stream = io.BufferedReader(stream, _BUFFER_BYTES)
        self._size = int(stream.size())
        self._start(_MAGIC)
        header: dict[str, bytes] = {}
        while count := self._long():
            if count < 0:  # then the size of the block in bytes follows
                self._long()
            for _ in range(abs(count)):
                key = self._header_text()
                header[key.decode()] = self._header_text()
        self._sync = self._exactly(_SYNC_BYTES)
        if "avro.schema" not in header:
            raise pa.ArrowInvalid("not an Avro file: its header has no schema")
        self.schema: Any = from_json(header["avro.schema"], allow_inf_nan=False)
        codec = header.get("avro.codec", b"null").decode()
        if codec not in CODECS:
            raise pa.ArrowInvalid(f"Avro codec {codec} is not known; known: {', '.join(sorted(CODECS))}")
        self._codec = codec

    def blocks(self) -> Iterator[tuple[int, Callable[[], bytes]]]:
        """Of every block in file order: its number of records, and what returns their bytes, decompressed.

        Raises:
            pa.ArrowInvalid: the file is damaged or truncated.
            MetadataUnreadable: a block is larger than one may be, here or when its payload is asked for.
        """
        while self._stream.tell() < self._size:
            count, size = self._long(), self._length()
            require_fitting(_BLOCK, size)
            data = self._exactly(size)
            if self._exactly(_SYNC_BYTES) != self._sync:
                raise pa.ArrowInvalid("damaged Avro file: a block does not end with the file's sync marker")
            yield count, partial(self._decompressed, data)

    def _decompressed(self, data: bytes) -> bytes:
        try:
            return FileLimits(_BLOCK).unpack(self._codec, data)
        except MaintenanceError:
            raise
        except Exception as error:  # every codec has errors of its own
            raise pa.ArrowInvalid(f"damaged Avro file: {error}") from error

    def _start(self, magic: bytes) -> None:
        if self._stream.read(len(magic)) != magic:
            raise pa.ArrowInvalid("not an Avro file")

    def _header_text(self) -> bytes:
        length = self._length()
        if self._stream.tell() + length > _LONGEST_HEADER:
            raise pa.ArrowInvalid(f"damaged Avro file: its header has more than {_LONGEST_HEADER} bytes")
        return self._exactly(length)

    def _length(self) -> int:
        length = self._long()
        if not 0 <= length <= self._size:
            raise pa.ArrowInvalid("damaged Avro file: a length is out of range")
        return length

    def _long(self) -> int:
        """A zig-zag variable-length integer."""
        value = shift = 0
        while True:
            byte = self._exactly(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise pa.ArrowInvalid("damaged Avro file: a number has too many bytes")

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        if len(data) != size:
            raise pa.ArrowInvalid("truncated Avro file")
        return data
