"""Reads the footer of a Parquet file: its end, in one ranged read unless the footer is unusually large."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.footer_structs import FileMetaData
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.thrift_bytes import read_exactly
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["FRAME", "MAGIC", "Footer", "framed", "read_footer"]

MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
FRAME = 8
"""The bytes after a footer: its length in four, and the magic."""
_FIRST_READ = 64 * 1024
_MOST = 8 * 1024 * 1024
"""A footer takes some twenty times as much memory once it is understood; 2,000 columns have 0.3 MB a row group."""
_LARGE = 1024 * 1024
_LEAST_GROUP, _LEAST_CHUNK = 64, 32
"""Bytes of a row group and of a column chunk with all that the format requires of them."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file as bytes, which take little room; ``start`` is where it begins in the file."""

    path: str
    file_size: int
    start: int
    thrift: bytes
    etag: str | None = None
    """What the file had when its footer was read, if its store is S3."""
    before: bytes = b""
    """What lies just before the footer, as far as it came with it and asking again would be a request: page indexes."""

    def with_bytes_from(self, first: int) -> Footer:
        """The same, with the bytes from ``first`` on; with none of them where the first did not come with it."""
        kept = self.start - first
        return replace(self, before=self.before[-kept:] if 0 < kept <= len(self.before) else b"")

    @property
    def before_start(self) -> int:
        """Where the bytes before the footer begin in the file."""
        return self.start - len(self.before)

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
    try:
        return _read(path, storage, file_size)
    except CannotCopy as refused:
        return NotCopyable(path, str(refused))


def _read(path: str, storage: Storage, promised: int | None) -> Footer:
    tail, size, etag = storage.read_end(path, _FIRST_READ)
    if promised is not None and size != promised:
        raise CannotCopy(f"has {size} bytes, its manifest entry says {promised}")
    if size < len(MAGIC) + FRAME:
        raise CannotCopy("is too short for a Parquet file")
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
        tail, *found = storage.read_end(path, length + FRAME)
        if found != [size, etag]:
            raise CannotCopy("became another file while it was read")
    before = b"" if is_local(path) else tail[: -FRAME - length]
    footer = Footer(path, size, start, tail[-FRAME - length : -FRAME], etag, before)
    if length > _LARGE:
        _require_filled(footer)
    return footer


def _require_filled(footer: Footer) -> None:
    """Check that a large footer is filled with what it describes: empty parts take a byte, and a hundred each once
    they are understood.

    Raises:
        CannotCopy: it is not, or Arrow, which takes no list of more than a million, cannot read it.
    """
    seen = footer.seen_by_arrow()
    groups = seen.num_row_groups
    chunks = (
        0 if groups * _LEAST_GROUP > len(footer.thrift) else sum(seen.row_group(n).num_columns for n in range(groups))
    )
    if max(groups * _LEAST_GROUP, chunks * _LEAST_CHUNK) > len(footer.thrift):
        raise CannotCopy(f"claims {groups} row groups in a footer of {len(footer.thrift)} bytes")
