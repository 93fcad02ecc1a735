"""Object storage: read, write, list and delete objects, and find out what a store allows.

Bytes are read and written through PyIceberg's ``PyArrowFileIO``, so endpoints and authentication are PyIceberg's.
Listing and batch deletion, which it lacks, use boto3 with the same properties.  Both are imported with the first object
that is not on this machine.  Writes never ask whether a file exists: names are unique, and the question would list,
which AWS table buckets refuse (platform 16).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError
from pyarrow.fs import LocalFileSystem
from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO, PY_IO_IMPL

from icekeeper.clock import ServerClock
from icekeeper.errors import StorageError
from icekeeper.masking import mask, remember_secrets
from icekeeper.storage.capabilities import can_delete_s3, can_list_s3
from icekeeper.storage.delete_report import DeleteReport
from icekeeper.storage.failures import describe_failure
from icekeeper.storage.listing import LISTING_THREADS, Division, ListedObject, divide, in_parallel
from icekeeper.storage.local import local_level, local_status, unlink, walk
from icekeeper.storage.paths import S3_SCHEMES, is_local, split_path
from icekeeper.storage.s3_listing import list_s3, s3_directory, s3_level, s3_status
from icekeeper.storage.s3_settings import with_endpoint
from icekeeper.storage.whole_reads import whole_reads

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from icekeeper.storage.s3 import FailedKeys

__all__ = ["Storage"]

# Values of py-io-impl with which local files are read by PyArrow's own file system.
_PLAIN_FILE_IO = (None, ARROW_FILE_IO, FSSPEC_FILE_IO)


class Storage:
    """A table's files.  Built from FileIO properties and, where they name no endpoint, ``AWS_ENDPOINT_URL_S3`` or
    ``AWS_ENDPOINT_URL``; cheap to pickle: clients are opened on first use.

    Paths may be ``s3://``, ``s3a://``, ``s3n://``, local in every spelling, or, for reading and writing only, whatever
    else PyArrow reads.  Safe to share between threads.
    """

    def __init__(self, properties: Mapping[str, str], listing_threads: int = LISTING_THREADS) -> None:
        # Resolved here, where the environment is the caller's: workers may have another one.
        self._properties = with_endpoint(properties)
        remember_secrets(self._properties)
        self._listing_threads = listing_threads
        self.s3_clock = ServerClock()
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], bool] = {}
        self.no_range_copies: set[str] = set()
        """Buckets that refused to copy ranges (:mod:`.range_copies`)."""

    def __reduce__(self) -> tuple[type[Storage], tuple[dict[str, str], int]]:
        return Storage, (self._properties, self._listing_threads)

    def __repr__(self) -> str:
        return f"Storage({self._properties.get('s3.endpoint', 'default endpoint')})"  # never the credentials

    def read(self, path: str) -> bytes:
        """The whole object.

        Raises:
            StorageError: it does not exist, or the store failed.
        """
        with self.translated(path), self._open(path) as stream:
            return bytes(stream.read())

    def write(self, path: str, data: bytes) -> None:
        """Write a whole object, replacing one of that name.

        Raises:
            StorageError: the store failed; part of a local file may remain.
        """
        with self.translated(path), self._create(path) as stream:
            stream.write(data)

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable stream, for ``pyarrow.parquet.ParquetFile``; wrap later reads in :meth:`translated`.

        Raises:
            StorageError: the object does not exist, or the store failed.
        """
        with self.translated(path):
            return self._open(path)

    def open_output(self, path: str) -> pa.NativeFile:
        """A stream that creates an object when it is closed, also as a context manager; wrap writes in
        :meth:`translated`.

        Raises:
            StorageError: the store failed.
        """
        with self.translated(path):
            return self._create(path)

    def size(self, path: str) -> int | None:
        """The object's size in bytes, ``None`` when there is no such object.

        Raises:
            StorageError: the store could not tell.
        """
        with self.translated(path):
            try:
                # Opening asks for the one object; a FileInfo would list when the object is missing.
                with self._open(path) as stream:
                    return int(stream.size())
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Every object under a directory, in no particular order; paths are spelled as the prefix is.

        Streams, several folders at a time.  Directory markers and symbolic links are left out.  Nothing under a missing
        directory.

        Raises:
            StorageError: the store failed or refuses to list; what came before is then incomplete.
        """
        self._require_listable(prefix)
        return self._list(prefix)

    def divide(self, prefix: str) -> Division:
        """The first levels of a listing, and the folders whose :meth:`list_folder` completes it.

        Raises:
            StorageError: as :meth:`list` does.
        """
        with self.translated(prefix):
            if is_local(prefix):
                return divide(prefix, lambda folder: local_level(folder, split_path(folder).key), self._listing_threads)
            client = self.s3
            return divide(prefix, lambda folder: s3_level(client, folder), self._listing_threads)

    def list_folder(self, prefix: str) -> Iterator[ListedObject]:
        """As :meth:`list`, by this thread alone."""
        if is_local(prefix):
            for name, size, modified_ms in walk(split_path(prefix).key):
                yield ListedObject(f"{prefix.rstrip('/')}/{name}", size, modified_ms)
            return
        with self.translated(prefix):
            yield from list_s3(self.s3, prefix)

    def status(self, path: str) -> ListedObject | None:
        """Size and age of one object as they are now, ``None`` when there is no such object.

        Raises:
            StorageError: the store could not tell.
        """
        self._require_listable(path)
        with self.translated(path):
            if not is_local(path):
                return s3_status(self.s3, path)
            found = local_status(split_path(path).key)
            return None if found is None else ListedObject(path, *found)

    def delete(self, paths: Iterable[str]) -> DeleteReport:
        """Delete objects; a path already gone counts as deleted.  Never raises for single paths."""
        order = dict.fromkeys(paths)
        failed: dict[str, str] = {}
        transient: set[str] = set()
        keys: dict[str, dict[str, list[str]]] = {}
        for path in order:
            parts = split_path(path)
            if is_local(path):
                if reason := unlink(parts.key):
                    failed[path] = reason
            elif parts.scheme in S3_SCHEMES:
                # s3:// and s3a:// spellings of one object share a key
                keys.setdefault(parts.authority, {}).setdefault(parts.key, []).append(path)
            else:
                failed[path] = "only S3 objects and local files can be deleted"
        for bucket, spellings in keys.items():
            unable = self._delete_s3(bucket, list(spellings))
            transient.update(path for key in unable.transient for path in spellings[key])
            for key, reason in (unable.for_good | unable.transient).items():
                failed.update(dict.fromkeys(spellings[key], mask(reason, self._properties)))
        return DeleteReport(tuple(path for path in order if path not in failed), failed, frozenset(transient))

    def can_list(self, location: str) -> bool:
        """Whether this store lists files under a table's location; asked once per location.

        Local folders can be listed; S3 is asked (:func:`can_list_s3`).

        Raises:
            StorageError: the bucket does not exist, the credentials are wrong, or the endpoint does not answer.
        """
        return self._allowed(location, can_list_s3)

    def can_delete(self, location: str) -> bool:
        """Whether this store deletes files under a table's location; asked once per location, leaving no trace.

        Local folders can be deleted from; S3 is asked (:func:`can_delete_s3`).

        Raises:
            StorageError: as :meth:`can_list`.
        """
        return self._allowed(location, can_delete_s3)

    def _allowed(self, location: str, ask: Callable[[Any, str, str], bool]) -> bool:
        parts = split_path(location)
        if is_local(location):
            return True
        if parts.scheme not in S3_SCHEMES:
            return False
        with self._lock:
            key = (ask.__name__, location)
            if key not in self._answers:
                with self.translated(location):
                    self._answers[key] = ask(self.s3, parts.authority, s3_directory(parts.key))
            return self._answers[key]

    @contextmanager
    def translated(self, path: str) -> Iterator[None]:
        """Turn what PyArrow and boto3 raise about a path into a :class:`StorageError` of one sentence."""
        try:
            yield
        except (OSError, pa.ArrowException, BotoCoreError, ClientError) as error:
            reason = describe_failure(error, self._properties.get("s3.endpoint"))
            raise StorageError(mask(f"{path} {reason}", self._properties)) from error

    @cached_property
    def _file_io(self) -> PyArrowFileIO:
        from icekeeper.storage.file_systems import arrow_file_io

        return arrow_file_io(self._properties)

    @cached_property
    def _local(self) -> LocalFileSystem:
        if self._properties.get(PY_IO_IMPL) in _PLAIN_FILE_IO:
            return LocalFileSystem()
        return self._file_io.fs_by_scheme("file", "")

    @cached_property
    def s3(self) -> Any:
        """A boto3 client with the same properties; the first call may raise what boto3 raises."""
        from icekeeper.storage.s3 import s3_client

        client = s3_client(self._properties)
        self.s3_clock.listen(client)
        return client

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

    def _open(self, path: str) -> pa.NativeFile:
        filesystem, key = self._filesystem(path)
        stream = filesystem.open_input_file(key)
        return stream if is_local(path) else whole_reads(stream, path)

    def _create(self, path: str) -> pa.NativeFile:
        filesystem, key = self._filesystem(path)
        if is_local(path):
            filesystem.create_dir(os.path.dirname(key), recursive=True)
        return filesystem.open_output_stream(key)

    def _list(self, prefix: str) -> Iterator[ListedObject]:
        objects, folders = self.divide(prefix)
        yield from objects
        yield from in_parallel([partial(self.list_folder, folder) for folder in folders], self._listing_threads)

    def _require_listable(self, path: str) -> None:
        if not is_local(path) and split_path(path).scheme not in S3_SCHEMES:
            raise StorageError(f"{path} cannot be listed: only S3 and local folders can")

    def _delete_s3(self, bucket: str, keys: Sequence[str]) -> FailedKeys:
        from icekeeper.storage.s3 import FailedKeys, delete_keys

        try:
            client = self.s3
        except (BotoCoreError, ClientError) as error:  # an unknown profile, a role that may not be assumed
            return FailedKeys(dict.fromkeys(keys, describe_failure(error, None)))
        return delete_keys(client, bucket, keys)
