"""Streams of PyArrow's file systems, which PyIceberg makes of properties, for objects of any store and local files.

A file system is made with the first object that needs it: to make one imports much (:mod:`.file_systems`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem
from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO, PY_IO_IMPL, S3_RETRY_STRATEGY_IMPL

from icekeeper.errors import StorageError
from icekeeper.request_count import RequestKind, note_request
from icekeeper.storage.paths import is_local, split_path
from icekeeper.storage.uploads import counted_upload
from icekeeper.storage.whole_reads import whole_reads

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

__all__ = ["ArrowFiles"]

# Values of py-io-impl with which files are read and written by PyArrow's own file systems.
_PLAIN_FILE_IO = (None, ARROW_FILE_IO, FSSPEC_FILE_IO)


class ArrowFiles:
    """Opens files by their paths, for reading or writing."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self.is_plain = properties.get(PY_IO_IMPL) in _PLAIN_FILE_IO
        """Whether nobody has set a FileIO of his own, which may see to more than reading and writing."""
        self._late: dict[tuple[str, str], Any] = {}

    def open(self, path: str) -> pa.NativeFile:
        """A seekable stream.

        Raises:
            FileNotFoundError: there is no such file.
            OSError, pa.ArrowException: the store failed.
            StorageError: PyArrow knows no such store.
        """
        filesystem, key = self._filesystem(path)
        if is_local(path):
            return filesystem.open_input_file(key)
        note_request(RequestKind.GET)  # for the size (platform 50)
        return whole_reads(filesystem.open_input_file(key), path)

    def read_end(self, path: str, length: int) -> tuple[bytes, int]:
        """The last ``length`` bytes of a file, or all of a smaller one, and its size.

        Raises:
            OSError, pa.ArrowException, StorageError: as :meth:`open`.
        """
        with self.open(path) as stream:
            size = int(stream.size())
            start = max(0, size - length)
            return bytes(stream.read_at(size - start, start)), size

    def create(self, path: str) -> pa.NativeFile:
        """A stream that creates the file when it is closed; folders of a local one are made.

        Raises:
            OSError, pa.ArrowException, StorageError: as :meth:`open`.
        """
        filesystem, key = self._filesystem(path)
        if is_local(path):
            filesystem.create_dir(os.path.dirname(key), recursive=True)
            return filesystem.open_output_stream(key)
        return counted_upload(self._opening_late(path, filesystem).open_output_stream(key))

    def _opening_late(self, path: str, filesystem: Any) -> Any:
        from icekeeper.storage.file_systems import opening_late

        # A strategy for repetitions cannot be carried over.
        if not self.is_plain or self._properties.get(S3_RETRY_STRATEGY_IMPL):
            return filesystem
        parts = split_path(path)
        key = parts.scheme, parts.authority
        if key not in self._late:
            self._late[key] = opening_late(filesystem)
        return self._late[key]

    @cached_property
    def _file_io(self) -> PyArrowFileIO:
        from icekeeper.storage.file_systems import arrow_file_io

        return arrow_file_io(self._properties)

    @cached_property
    def _local(self) -> Any:
        return LocalFileSystem() if self.is_plain else self._file_io.fs_by_scheme("file", "")

    def _filesystem(self, path: str) -> tuple[Any, str]:
        # Not new_input(): it cuts a key at "?" and "#".
        parts = split_path(path)
        if is_local(path):
            return self._local, os.path.abspath(parts.key)
        try:
            filesystem = self._file_io.fs_by_scheme(parts.scheme, parts.authority)
        except ValueError as error:
            raise StorageError(f"{path} is on a kind of storage that PyArrow does not know") from error
        return filesystem, parts.key if parts.scheme in ("hdfs", "viewfs") else f"{parts.authority}/{parts.key}"
