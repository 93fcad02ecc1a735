"""Reads the footer of a Parquet file: its end, in one ranged read unless the footer is unusually large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.footer_structs import FileMetaData
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.thrift_bytes import read_exactly
from icekeeper.storage.storage import Storage
from icekeeper.storage.whole_reads import etag_of

__all__ = ["FRAME", "MAGIC", "Footer", "framed", "read_footer"]

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
FRAME = 8
"""The bytes after a footer: its length in four, and the magic."""
_FIRST_READ = 64 * 1024
_MOST = 8 * 1024 * 1024
"""A footer takes some twenty times as much memory once it is understood; 2,000 columns have 0.3 MB a row group."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file as bytes, which take little room; ``start`` is where it begins in the file."""

    path: str
    file_size: int
    start: int
    thrift: bytes
    etag: str | None = None
    """What the file had before its footer was read, if its store is S3."""

    def metadata(self) -> FileMetaData:
        """The footer, understood anew with every call: the answer may be changed.

        Raises:
            CannotCopy: it is damaged, or holds what this version does not know.
        """
        return read_exactly(FileMetaData, self.thrift)

    def seen_by_arrow(self) -> pq.FileMetaData:
        """The footer as Arrow understands it.

        Raises:
            CannotCopy: Arrow does not.
        """
        try:
            return pq.read_metadata(pa.BufferReader(MAGIC + framed(self.thrift)))
        except (pa.ArrowException, OSError) as error:
            raise CannotCopy(f"has a footer that Arrow cannot read: {str(error).splitlines()[0]}") from error


def framed(thrift: bytes) -> bytes:
    """The end of a Parquet file with that footer."""
    return thrift + len(thrift).to_bytes(4, "little") + MAGIC


def read_footer(path: str, storage: Storage, file_size: int | None = None) -> Footer | NotCopyable:
    """The footer of a file; ``file_size`` is what its manifest entry says, ``None``: there is none.

    Raises:
        StorageError: the file does not exist, or the store failed.
    """
    with storage.translated(path), storage.open_input(path) as stream:
        try:
            return _read(path, stream, file_size)
        except CannotCopy as refused:
            return NotCopyable(path, str(refused))


def _read(path: str, stream: Any, promised: int | None) -> Footer:
    size = int(stream.size())
    if promised is not None and size != promised:
        raise CannotCopy(f"has {size} bytes, its manifest entry says {promised}")
    if size < len(MAGIC) + FRAME:
        raise CannotCopy("is too short for a Parquet file")
    tail = _range(stream, max(0, size - _FIRST_READ), size)
    if tail[-4:] == _ENCRYPTED_MAGIC:
        raise CannotCopy("has an encrypted footer")
    if tail[-4:] != MAGIC:
        raise CannotCopy("does not end as a Parquet file")
    length = int.from_bytes(tail[-FRAME:-4], "little")
    start = size - FRAME - length
    if start < len(MAGIC):
        raise CannotCopy(f"claims a footer of {length} bytes, more than the file has")
    if length > _MOST:
        raise CannotCopy(f"has a footer of {length} bytes; up to {_MOST} are copied")
    if length + FRAME > len(tail):
        tail = _range(stream, start, size)
    return Footer(path, size, start, tail[-FRAME - length : -FRAME], etag_of(stream))


def _range(stream: Any, start: int, end: int) -> bytes:
    stream.seek(start)
    found = bytes(stream.read(end - start))
    if len(found) != end - start:
        raise CannotCopy("became shorter while it was read")
    return found
