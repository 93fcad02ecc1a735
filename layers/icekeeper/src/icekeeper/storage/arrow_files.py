"""Streams of PyArrow's file systems, which PyIceberg makes of properties, for objects of any store and local files.

A file system is made with the first object that needs it: to make one imports much (:mod:`.file_systems`).  One for S3
has the keys with which it was made for ever, and keys expire.  So boto3, which renews them, is asked for the current
ones before each use, and others want a new file system (rule 137).  What is read goes on with it; what is being written
ends with the keys it was begun with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem
from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO, PY_IO_IMPL, S3_RETRY_STRATEGY_IMPL

from icekeeper.aws.settings import ENDPOINT_OF_SERVER
from icekeeper.errors import StorageError
from icekeeper.machine.metering import RequestKind, note_request
from icekeeper.storage.paths import S3_SCHEMES, is_local, split_path
from icekeeper.storage.uploads import counted_upload
from icekeeper.storage.whole_reads import etag_of, whole_reads

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from icekeeper.aws.session import Keys

__all__ = ["ArrowFiles", "end_of"]

# Values of py-io-impl with which files are read and written by PyArrow's own file systems.
_PLAIN_FILE_IO = (None, ARROW_FILE_IO, FSSPEC_FILE_IO)


class ArrowFiles:
    """Opens files by their paths, for reading or writing."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self.is_plain = properties.get(PY_IO_IMPL) in _PLAIN_FILE_IO
        """Whether nobody has set a FileIO of his own, which may see to more than reading and writing."""
        self._made: _FileSystems | None = None

    def open(self, path: str) -> pa.NativeFile:
        """A seekable stream.

        Raises:
            FileNotFoundError: there is no such file.
            OSError, pa.ArrowException: the store failed.
            BotoCoreError, ClientError: the keys cannot be had.
            StorageError: PyArrow knows no such store.
        """
        if is_local(path):
            return self._local.open_input_file(_local_path(path))
        if self._is_led(path):
            from icekeeper.storage.s3_ranges import RangedObject

            note_request(RequestKind.GET)  # for the size
            opened: list[Any] = [RangedObject(self._s3, path)]
            return whole_reads(lambda: opened.pop() if opened else None, path)
        return whole_reads(_Opener(self, path), path)

    def create(self, path: str) -> pa.NativeFile:
        """A stream that creates the file when it is closed; folders of a local one are made.

        Raises:
            OSError, pa.ArrowException, StorageError: as :meth:`open`.
        """
        if is_local(path):
            key = _local_path(path)
            self._local.create_dir(os.path.dirname(key), recursive=True)
            return self._local.open_output_stream(key)
        if self._is_led(path):
            from icekeeper.storage.s3_ranges import upload_at_close

            return counted_upload(upload_at_close(self._s3, path))
        # A strategy for repetitions cannot be carried over.
        may_be_late = self.is_plain and not self._properties.get(S3_RETRY_STRATEGY_IMPL)
        systems = self.current(path)
        filesystem = systems.opening_late(path) if may_be_late else systems.of(path)
        return counted_upload(filesystem.open_output_stream(_key(path)))

    def current(self, path: str) -> _FileSystems:
        """The file systems to use now; the same ones as before, unless keys were renewed since.

        Raises:
            BotoCoreError, ClientError: the keys cannot be had.
        """
        from icekeeper.storage.file_systems import arrow_file_io, current_keys

        asks = self.is_plain and split_path(path).scheme in S3_SCHEMES
        keys = current_keys(self._properties) if asks else None
        made = self._made
        if made is None or (asks and made.keys != keys):
            made = self._made = _FileSystems(arrow_file_io(self._properties, keys), keys)
        return made

    def _is_led(self, path: str) -> bool:
        """Whether who answers may lead PyArrow to any other address, which the operator's store would not."""
        is_theirs = self._properties.get(ENDPOINT_OF_SERVER) == "true"
        return self.is_plain and is_theirs and split_path(path).scheme in S3_SCHEMES

    @cached_property
    def _s3(self) -> Any:
        from icekeeper.storage.s3 import s3_client

        return s3_client(self._properties, counts=False)

    @cached_property
    def _local(self) -> Any:
        return LocalFileSystem() if self.is_plain else self.current("file:///").of("file:///")


def end_of(stream: pa.NativeFile, length: int) -> tuple[bytes, int, str | None]:
    """The last ``length`` bytes of an opened file, or all of a smaller one, its size and, of S3, its ETag.

    Raises:
        OSError, pa.ArrowException: the store failed.
    """
    size = int(stream.size())
    start = max(0, size - length)
    return bytes(stream.read_at(size - start, start)), size, etag_of(stream)


class _FileSystems:
    """Those of one set of keys."""

    def __init__(self, file_io: PyArrowFileIO, keys: Keys | None) -> None:
        self._file_io = file_io
        self.keys = keys
        self._late: dict[tuple[str, str], Any] = {}

    def of(self, path: str) -> Any:
        """The file system that a path is on.

        Raises:
            StorageError: PyArrow knows none, or the properties do not say enough of it.
        """
        parts = split_path(path)
        try:
            return self._file_io.fs_by_scheme(parts.scheme, parts.authority)
        except TypeError as error:  # as PyArrow's AzureFileSystem without an account
            raise StorageError(
                f"{path} cannot be reached by the properties of its catalog ({error}); set those that PyIceberg has "
                f"for {parts.scheme}://, as adls.account-name"
            ) from error
        except ValueError as error:
            raise StorageError(f"{path} is on a kind of storage that PyArrow does not know") from error

    def opening_late(self, path: str) -> Any:
        """As :meth:`of`, for small uploads (:func:`.opening_late`)."""
        from icekeeper.storage.file_systems import opening_late

        parts = split_path(path)
        key = parts.scheme, parts.authority
        if key not in self._late:
            self._late[key] = opening_late(self.of(path))
        return self._late[key]


class _Opener:
    """Opens one file for reading, and again when the keys with which it was opened are no longer the current ones."""

    def __init__(self, files: ArrowFiles, path: str) -> None:
        self._files, self._path = files, path
        self._systems: _FileSystems | None = None

    def __call__(self) -> pa.NativeFile | None:
        """A stream, the first time and after each renewal; else ``None``."""
        systems = self._files.current(self._path)
        if systems is self._systems:
            return None
        note_request(RequestKind.GET)  # for the size (platform 50)
        stream = systems.of(self._path).open_input_file(_key(self._path))
        self._systems = systems
        return stream


def _local_path(path: str) -> str:
    return os.path.abspath(split_path(path).key)


def _key(path: str) -> str:
    # Not new_input(): it cuts a key at "?" and "#".
    parts = split_path(path)
    return parts.key if parts.scheme in ("hdfs", "viewfs") else f"{parts.authority}/{parts.key}"
