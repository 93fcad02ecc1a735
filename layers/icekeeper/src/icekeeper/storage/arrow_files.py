"""PyArrow streams for any store, which never return truncated reads and count their requests.

:class:`ArrowFiles` opens them with the file systems that PyIceberg makes from properties.  A file system is made for
the first object that needs it, because its imports are slow (``storage/file_systems.py``).  An S3 file system keeps the
keys with which it was made, and keys expire.  So before each use the keys are requested from boto3, which renews them,
and new keys get a new file system.  A read continues with the new file system; a write
ends with the keys with which it began.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError
from pyarrow.fs import LocalFileSystem
from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO, PY_IO_IMPL, S3_RETRY_STRATEGY_IMPL

from icekeeper.aws.settings import ENDPOINT_OF_SERVER
from icekeeper.errors import StorageError
from icekeeper.machine.metering import RequestKind, current_count, note_request
from icekeeper.storage.failures import ShortAnswer
from icekeeper.storage.part_plan import ObjectRange
from icekeeper.storage.paths import is_local, is_s3, split_path
from icekeeper.storage.s3_reads import has_other_etag, known_error

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from icekeeper.aws.session import Keys


class WriteOnly:
    """The methods that Arrow calls on a Python object before it writes to it."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


# Ranges of S3 objects, each read with a single request, if the object has the expected ETag.  They are for code that
# knows the ranges to read: Arrow's streams request the size first and read one range at a time.  They also replace
# Arrow's streams for keys that Arrow refuses, and if an answer may redirect to any address: Arrow follows the redirect
# (platform: pyarrow-follows-redirects), boto3 raises an error.

_ATTEMPTS = 3


class ObjectChanged(Exception):
    """The object at this path does not have the expected ETag, or has too few bytes."""


def is_of_another_object(error: ClientError) -> bool:
    """Whether a request failed because the object has not the ETag that the request names, or ends before the range."""
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (412, 416)


def read_s3_range(client: Any, wanted: ObjectRange) -> bytes:
    """The bytes of a range, read with a single request.

    Raises:
        OSError: the store sent several truncated answers (rule: short-reads-are-errors).
        ObjectChanged: the object has another ETag, or ends before ``start``.
        ClientError: there is no such object, or the store refuses.
        BotoCoreError: the store does not answer.
    """
    parts, path, etag = split_path(wanted.path), wanted.path, wanted.etag
    request = {"Bucket": parts.authority, "Key": parts.key, "Range": f"bytes={wanted.start}-{wanted.end - 1}"}
    if etag is not None:
        request["IfMatch"] = etag
    for attempt in range(_ATTEMPTS):
        try:
            answer = client.get_object(**request)
        except ClientError as error:
            if is_of_another_object(error):
                raise ObjectChanged(path) from error
            raise
        if etag is not None and has_other_etag(answer, etag):
            raise ObjectChanged(path)
        try:
            data: bytes = answer["Body"].read(wanted.size + 1)  # not more, if the answer is longer
        except (HTTPClientError, IncompleteReadError):  # boto3 repeats a request only until its answer begins
            if attempt == _ATTEMPTS - 1:
                raise
            continue
        if len(data) == wanted.size:
            return data
    short = f"{len(data)} of the {wanted.size} bytes from {wanted.start} of {path}"
    raise ShortAnswer(f"the store answered with {short}")


class RangedObject:
    """An S3 object with the reading methods of a :class:`pyarrow.NativeFile`; each read sends a request."""

    closed = False

    def __init__(self, client: Any, path: str) -> None:
        """Request the object's size.

        Raises:
            FileNotFoundError, PermissionError: as from Arrow.
            ClientError, BotoCoreError: the store failed.
        """
        parts = split_path(path)
        try:
            answer = client.head_object(Bucket=parts.authority, Key=parts.key)
        except ClientError as error:
            raise known_error(error, path) from error
        self._client, self._path, self._position = client, path, 0
        self._size, self._etag = int(answer["ContentLength"]), str(answer["ETag"])

    def size(self) -> int:
        return self._size

    def metadata(self) -> dict[str, bytes]:
        return {"ETag": self._etag.encode()}

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer, or the part of it for which the object has bytes."""
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        try:
            data = read_s3_range(self._client, ObjectRange(self._path, self._etag, self._position, end))
        except ObjectChanged as error:
            raise ShortAnswer(f"{self._path} was replaced while it was read") from error
        buffer[: len(data)] = data
        self._position = end
        return len(data)

    def close(self) -> None:
        self.closed = True


Opener: TypeAlias = Callable[[], pa.NativeFile | None]
"""Returns a seekable stream at the first call; later ``None``, or a new stream that replaces the first."""

_MARK_BYTES = 8
_READ_ATTEMPTS = 2


def whole_reads(opener: Opener, path: str) -> pa.NativeFile:
    """The stream of ``opener``; a truncated read is repeated once, then raises ``OSError``
    (rule: short-reads-are-errors).

    Arrow 26 returns a buffer of the requested size even if the store or a proxy sent fewer bytes: the rest is
    uninitialised memory (platform: arrow-short-reads-unnoticed).  So a random mark is written to the end of each buffer
    before the read; if the mark remains, the answer was truncated.
    """
    stream = opener()
    assert stream is not None  # because this is the first call
    opened = _Stream(_WholeReads(stream, path, opener), mode="r")
    opened.etag = _etag_in_metadata(stream)
    return opened


def etag_of(stream: pa.NativeFile) -> str | None:
    """The ETag that an S3 object had when it was opened; ``None`` if the store is not S3 or sent no ETag."""
    return stream.etag if isinstance(stream, _Stream) else None


def _etag_in_metadata(stream: pa.NativeFile) -> str | None:
    found = stream.metadata() or {}
    return found["ETag"].decode() if "ETag" in found else None


class _Stream(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    etag: str | None = None


class _WholeReads:
    """The methods that :class:`pyarrow.PythonFile` calls on a reader."""

    def __init__(self, stream: pa.NativeFile, path: str, opener: Opener) -> None:
        self._stream = stream
        self._opener = opener
        self._path = path
        self._size = int(stream.size())
        self._count = current_count()  # here, because Arrow may read in its own threads

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
                if not any(self._filled(view, start) for _ in range(_READ_ATTEMPTS)):
                    short = f"fewer than the {size} bytes from {start} of {self._path}"
                    raise ShortAnswer(f"the store answered with {short}")
        return buffer

    def _renew(self) -> None:
        """Replace the stream if the opener returns a new stream of the same object."""
        stream = self._opener()
        if stream is None:
            return
        before, self._stream = self._stream, stream
        if (_etag_in_metadata(before), self._size) != (_etag_in_metadata(stream), int(stream.size())):
            raise ShortAnswer(f"{self._path} was replaced while it was read")
        before.close()

    def _filled(self, view: memoryview, start: int) -> bool:
        """Read from ``start`` into the view; return whether the store sent enough bytes to fill it."""
        mark = os.urandom(min(len(view), _MARK_BYTES))
        self._fill(view, start, mark)
        # In one of 256 reads, the last byte equals the mark's by chance: then the end is read again with another mark.
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


# Values of py-io-impl with which PyArrow's own file systems read and write.
_PLAIN_FILE_IO = (None, ARROW_FILE_IO, FSSPEC_FILE_IO)


class ArrowFiles:
    """Opens files by their paths, for reading or writing."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self.is_plain = properties.get(PY_IO_IMPL) in _PLAIN_FILE_IO
        """``False`` if the operator configured another FileIO, which may do more than read and write."""
        self._made: _FileSystems | None = None

    def open(self, path: str) -> pa.NativeFile:
        """A seekable stream.

        Raises:
            FileNotFoundError: there is no such file.
            OSError, pa.ArrowException: the store failed.
            BotoCoreError, ClientError: boto3 could not get keys.
            StorageError: PyArrow does not support the store.
        """
        if is_local(path):
            return self._local.open_input_file(os.path.abspath(split_path(path).key))
        if self._needs_boto3(path):
            note_request(RequestKind.GET)  # for the size
            opened: list[Any] = [RangedObject(self._s3, path)]
            return whole_reads(lambda: opened.pop() if opened else None, path)
        used: _FileSystems | None = None

        def opened_again() -> pa.NativeFile | None:
            """A stream, at the first call and after the keys were renewed; otherwise ``None``."""
            nonlocal used
            systems = self.current(path)
            if systems is used:
                return None
            note_request(RequestKind.GET)  # for the size (platform: pyarrow-s3-requests)
            stream = systems.of(path).open_input_file(_key(path))
            used = systems
            return stream

        return whole_reads(opened_again, path)

    def create(self, path: str) -> pa.NativeFile:
        """A stream that creates the file when it is closed; the folders of a local file are created at once.

        Uploads to S3 come here only where boto3 finds no credentials (``storage/multipart.py``).

        Raises:
            OSError, pa.ArrowException, StorageError: as from :meth:`open`.
        """
        if is_local(path):
            key = os.path.abspath(split_path(path).key)
            self._local.create_dir(os.path.dirname(key), recursive=True)
            return self._local.open_output_stream(key)
        if self._needs_boto3(path):
            raise StorageError(f"{path} can be written by boto3 only, which finds no credentials")
        # opening_late cannot copy a file system with a retry strategy.
        may_be_late = self.is_plain and not self._properties.get(S3_RETRY_STRATEGY_IMPL)
        systems = self.current(path)
        filesystem = systems.opening_late(path) if may_be_late else systems.of(path)
        note_request(RequestKind.PUT)
        return filesystem.open_output_stream(_key(path))

    def current(self, path: str) -> _FileSystems:
        """The file systems to use now; they change if keys were renewed since the last call."""
        from icekeeper.storage.file_systems import arrow_file_io, current_keys

        asks = self.is_plain and is_s3(path)
        keys = current_keys(self._properties) if asks else None
        made = self._made
        if made is None or (asks and made.keys != keys):
            made = self._made = _FileSystems(arrow_file_io(self._properties, keys), keys)
        return made

    def _needs_boto3(self, path: str) -> bool:
        """Whether the path needs boto3: a server chose the store, which may redirect PyArrow to any address; or the key
        has an empty part (platform: pyarrow-refuses-empty-parts)."""
        is_theirs = self._properties.get(ENDPOINT_OF_SERVER) == "true"
        return self.is_plain and is_s3(path) and (is_theirs or "//" in _key(path))

    @cached_property
    def _s3(self) -> Any:
        from icekeeper.storage.s3 import s3_client

        return s3_client(self._properties, counts=False)

    @cached_property
    def _local(self) -> Any:
        return LocalFileSystem() if self.is_plain else self.current("file:///").of("file:///")


class _FileSystems:
    """The file systems that use the same keys."""

    def __init__(self, file_io: PyArrowFileIO, keys: Keys | None) -> None:
        self._file_io = file_io
        self.keys = keys
        self._late: dict[tuple[str, str], Any] = {}

    def of(self, path: str) -> Any:
        """The file system of a path; raises StorageError if PyArrow or the properties have none for it."""
        parts = split_path(path)
        try:
            return self._file_io.fs_by_scheme(parts.scheme, parts.authority)
        except TypeError as error:  # for example from PyArrow's AzureFileSystem without an account
            raise StorageError(
                f"{path} cannot be reached with the properties of its catalog ({error}); set PyIceberg's properties "
                f"for {parts.scheme}://, for example adls.account-name"
            ) from error
        except ValueError as error:
            raise StorageError(f"{path} is on a kind of storage that PyArrow does not support") from error

    def opening_late(self, path: str) -> Any:
        """Like :meth:`of`, for small uploads (``file_systems.opening_late``)."""
        from icekeeper.storage.file_systems import opening_late

        parts = split_path(path)
        key = parts.scheme, parts.authority
        if key not in self._late:
            self._late[key] = opening_late(self.of(path))
        return self._late[key]


def _key(path: str) -> str:
    # PyIceberg's new_input() would cut a key at "?" and "#".
    parts = split_path(path)
    return parts.key if parts.scheme in ("hdfs", "viewfs") else f"{parts.authority}/{parts.key}"
