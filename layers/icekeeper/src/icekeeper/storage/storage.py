"""Object storage: reads, writes, lists and deletes objects; sources of listings; the store's clock.

Most bytes are read through PyIceberg's ``PyArrowFileIO``, with PyIceberg's endpoints and authentication.  Listing and
batch deletion, which it lacks, use boto3 with the same properties.  So do reads of whole S3 objects, for which PyArrow
needs two requests (platform: pyarrow-s3-requests), and writes (platform: table-buckets-refuse-headers).  Both clients
are imported for the first remote object.

Writes never check whether a file exists: names are unique, and the check would send a listing, which AWS table buckets
refuse (platform: table-buckets-no-list-delete).
"""

from __future__ import annotations

import io
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.aws.settings import S3_ENDPOINT, region_of, with_endpoint
from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.errors import LocationRefused, StorageError
from icekeeper.machine.clock import ServerClock
from icekeeper.machine.foreign_bytes import require_fitting
from icekeeper.storage.allowed_locations import ALLOWED_LOCATIONS, ANYWHERE, AllowedLocations
from icekeeper.storage.arrow_files import ArrowFiles, etag_of
from icekeeper.storage.failures import describe_failure
from icekeeper.storage.listing import Level, Listed, ListedObject, divide, in_parallel
from icekeeper.storage.local_files import (
    checked_file,
    held,
    held_folder,
    listed_file,
    local_level,
    new_file,
    regular_file,
    unread_files,
    walk,
    write_whole,
)
from icekeeper.storage.paths import LOCAL_SCHEMES, S3_SCHEMES, is_local, is_s3, is_tidy, split_path
from icekeeper.storage.s3_objects import (
    can_delete_s3,
    can_list_s3,
    few_if_allowed,
    few_s3,
    is_lakefs_s3,
    list_s3,
    older_versions_s3,
    s3_directory,
    s3_level,
    s3_status,
)
from icekeeper.storage.s3_reads import (
    ONE_READ_BYTES,
    NoSuchObject,
    ObjectPart,
    ObjectVersion,
    can_boto3_read,
    read_beginning,
    read_end,
    read_object,
)
from icekeeper.text import mask, remember_secrets

_FOLDER_LOCKS = tuple(threading.Lock() for _ in range(16))
_IS_LINK = "is a symbolic link"
_VERSION_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """The result of :meth:`Storage.delete` for each path, in the order given."""

    deleted: tuple[str, ...]
    """Paths whose files are gone, including files that were already gone."""
    failed: Mapping[str, str]
    """Path → reason."""
    transient: frozenset[str] = frozenset()
    """Paths in ``failed`` that a later attempt may delete."""


class Storage:
    """A table's files, accessed with FileIO properties; safe to share between threads, cheap to pickle.

    If the properties name no endpoint, ``AWS_ENDPOINT_URL_S3`` or ``AWS_ENDPOINT_URL`` applies.  Paths may be
    ``s3://``, ``s3a://``, ``s3n://`` or local in any spelling.  PyArrow's other stores can only be read and written.

    The properties of a table contain its bound, outside which nothing is read, written, listed or deleted
    (rule: bound-every-table).

    Raises:
        LocationRefused: any method with a path outside the bound; only :meth:`delete` reports it instead.
        StorageError: any method that sends requests, if the store fails.  Its cause is a FileNotFoundError if the
            object does not exist.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        # The endpoint is resolved here, from the caller's environment: a worker may have another environment.
        self._bound = AllowedLocations.of(properties)
        self._opened_by: Storage | None = None
        self._properties = with_endpoint({k: v for k, v in properties.items() if k != ALLOWED_LOCATIONS})
        remember_secrets(self._properties)
        self._arrow = ArrowFiles(self._properties)
        self.s3_clock = ServerClock()
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], bool] = {}
        self.no_range_copies: set[str] = set()
        """Buckets that refused to copy ranges (``storage/multipart.py``)."""

    def __reduce__(self) -> tuple[type[Storage], tuple[dict[str, str]]]:
        properties = properties_for_workers(self._properties)
        carried = properties if self._bound is ANYWHERE else self._bound.put_into(properties)
        return Storage, (carried,)

    def __repr__(self) -> str:
        return f"Storage({self._properties.get('s3.endpoint', 'default endpoint')})"  # never the credentials

    def within(self, bound: AllowedLocations) -> Storage:
        """The same store, with the same clients, for the files of a table with this bound."""
        other = object.__new__(Storage)
        other.__dict__.update(self.__dict__)
        other._bound, other._opened_by = bound, self._opened_by or self
        return other

    def operators(self) -> Storage:
        """The same store without a bound, for the operator's own files, such as an inventory."""
        return self.within(ANYWHERE)

    def with_scratch(self, folder: str) -> Storage:
        """The same store, whose bound also includes the caller's temporary folder."""
        if self._bound is ANYWHERE:
            return self
        return self.within(replace(self._bound, prefixes=(*self._bound.prefixes, folder)))

    @property
    def place(self) -> tuple[str, str]:
        """Endpoint and region: equal paths in two places are different files (rule: cache-only-immutable-metadata)."""
        return self._properties.get(S3_ENDPOINT, ""), region_of(self._properties) or ""

    def require(self, paths: Iterable[str]) -> None:
        """Check that all these files or folders are inside the table's bound."""
        self._bound.require(paths)

    def allows(self, path: str) -> bool:
        """Whether a file or folder is inside the table's bound."""
        return self._bound.allows(path)

    def s3_at(self, *paths: str) -> Any:
        """The boto3 client, for requests about these paths; raises what boto3 raises without credentials."""
        self._bound.require(paths)
        return self.s3

    def read(self, path: str) -> bytes:
        """The bytes of the whole object; raises MetadataUnreadable if it is larger than the limit
        (:func:`.most_unpacked`)."""
        with self.translated(path):
            if self.uses_boto3(path):
                return read_object(self.s3_at(path), path)
            with self._open(path) as stream:
                require_fitting(path, int(stream.size()))
                return bytes(stream.read())

    def read_start(self, path: str) -> ObjectPart:
        """The first :data:`ONE_READ_BYTES` of an object, or the whole object if smaller; and the object's size."""
        with self.translated(path):
            if self.uses_boto3(path):
                return read_beginning(self.s3_at(path), path)
            with self._open(path) as stream:
                size = int(stream.size())
                return ObjectPart(bytes(stream.read_at(min(size, ONE_READ_BYTES), 0)), size, etag_of(stream))

    def read_end(self, path: str, length: int) -> ObjectPart:
        """The last ``length`` bytes of an object, such as a Parquet footer; and the object's size."""
        with self.translated(path):
            if self.uses_boto3(path):
                return read_end(self.s3_at(path), path, length)
            with self._open(path) as stream:
                size = int(stream.size())
                start = max(0, size - length)
                return ObjectPart(bytes(stream.read_at(size - start, start)), size, etag_of(stream))

    def write(self, path: str, data: bytes) -> None:
        """Write a whole object, which replaces an object of that name; on failure nothing is written."""
        with self.translated(path):
            if is_local(path) and self._arrow.is_plain:
                with self._local(path, make=True) as there:
                    write_whole(there, data)
                return
            if self.uses_boto3(path):  # PyArrow's client takes 25 MB of memory
                where = split_path(path)
                self.s3_at(path).put_object(Bucket=where.authority, Key=where.key, Body=data)
                return
            with self._create(path) as stream:
                stream.write(data)

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        """A seekable stream, for ``pyarrow.parquet.ParquetFile``; wrap later reads in :meth:`translated`.

        ``size`` is the object's size according to a manifest or listing.  A small S3 object is read into memory
        immediately.
        """
        with self.translated(path):
            if size is not None and size <= ONE_READ_BYTES and self.uses_boto3(path):
                found = read_beginning(self.s3_at(path), path)
                if len(found.data) == found.size:  # otherwise the object is larger than ``size``
                    return pa.BufferReader(found.data)
            return self._open(path)

    def older_versions(self, location: str) -> Sequence[ListedObject] | None:
        """The versions of objects under a location that are not current, also of deleted objects; ``None``: the store
        does not list versions.  Local files have none."""
        self._bound.require([location])
        if not is_s3(location):
            return () if is_local(location) else None
        with self.translated(location):
            return older_versions_s3(self.s3, location)

    def open_version(self, listed: ListedObject) -> pa.NativeFile:
        """A seekable stream of an older version; wrap later reads in :meth:`translated`."""
        with self.translated(listed.path):
            raw = ObjectVersion(self.s3_at(listed.path), listed.path, listed.version, listed.size)
            return pa.PythonFile(io.BufferedReader(raw, _VERSION_BUFFER_BYTES), mode="r")

    def open_output(self, path: str) -> pa.NativeFile:
        """A stream, also a context manager, that creates the object when closed; wrap writes in :meth:`translated`."""
        with self.translated(path):
            return self._create(path)

    def size(self, path: str) -> int | None:
        """The object's size in bytes; ``None`` if there is no such object."""
        with self.translated(path):
            try:
                # Opening requests a single object; FileInfo would send a listing if the object is missing.
                with self._open(path) as stream:
                    return int(stream.size())
            except FileNotFoundError:
                return None

    def shows_missing(self, path: str, error: StorageError) -> bool:
        """Whether a failed read shows that the object is missing, and not its whole bucket."""
        if not isinstance(error.__cause__, FileNotFoundError):
            return False
        if isinstance(error.__cause__, NoSuchObject) or not self.uses_boto3(path):
            return True
        try:
            self.read_end(path, 1)  # PyArrow raises the same error for both
        except StorageError as again:
            return isinstance(again.__cause__, NoSuchObject)
        return False

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Every object under a directory, in no particular order; paths have the spelling of the prefix.

        Objects are streamed, from several folders of S3 in parallel, without directory markers and symbolic links.  A
        missing directory is empty.

        Raises:
            StorageError: the store failed or refuses to list; the objects yielded so far are incomplete.
        """
        return (found for file in self.list_unread(prefix) if (found := file.read()) is not None)

    def list_unread(self, prefix: str) -> Iterator[Listed]:
        """Like :meth:`list`, but sizes and times of local files are read on demand."""
        self._require_listable(prefix)
        # Threads that list local folders block each other, and would take several times the CPU time.
        return unread_files(prefix) if is_local(prefix) else self._in_parallel(prefix)

    def list_if_allowed(self, prefix: str) -> Sequence[ListedObject] | None:
        """Like :meth:`list`; ``None`` if :meth:`can_list` is false, which the listing itself finds out."""
        self._bound.require([prefix])
        if is_local(prefix):
            return list(self.list(prefix))
        key = (can_list_s3.__name__, prefix)
        if not is_s3(prefix) or self._answers.get(key) is False:
            return None
        with self.translated(prefix):
            self._answers[key], few = few_if_allowed(self.s3, prefix)
        if not self._answers[key]:
            return None
        return list(self.list(prefix)) if few is None else few  # here a refusal is an error

    def divide(self, prefix: str) -> Level:
        """The first levels of a listing, and the remaining folders, for :meth:`list_folder`."""
        self._bound.require([prefix])
        with self.translated(prefix):
            if is_local(prefix):
                return divide(prefix, local_level)
            client = self.s3
            few = few_s3(client, prefix)  # enough for a small table
            if few is not None:
                return few, []
            return divide(prefix, lambda folder: s3_level(client, folder))

    def folders_in(self, prefix: str) -> frozenset[str] | None:
        """Names of the folders directly below a directory, with a single request; ``None``: the caller must check each
        folder."""
        self._bound.require([prefix])
        if is_local(prefix):
            return None  # a listing skips links to folders, but files can be read through them
        with self.translated(prefix):
            level = s3_level(self.s3, prefix)
        return None if level is None else frozenset(path.rstrip("/").rpartition("/")[2] for path in level[1])

    def list_folder(self, prefix: str) -> Iterator[ListedObject]:
        """Like :meth:`list`, but only in the calling thread."""
        self._bound.require([prefix])
        if is_local(prefix):
            yield from walk(prefix)
            return
        with self.translated(prefix):
            yield from list_s3(self.s3, prefix)

    def status(self, path: str) -> ListedObject | None:
        """Current size and modification time of an object; ``None`` if there is no such object."""
        self._require_listable(path)
        with self.translated(path):
            if not is_local(path):
                return s3_status(self.s3, path)
            try:
                with self._local(path, follow=False) as there:
                    return listed_file(path, os.lstat(there))
            except FileNotFoundError:
                return None

    def delete(self, paths: Iterable[str], *, links: bool = True) -> DeleteReport:
        """Delete local files and, in batches, S3 objects; a missing file counts as deleted.

        Never raises for single paths.  Reasons do not contain the secrets in the properties.  ``links``: whether to
        delete a local symbolic link; otherwise it counts as failed for a transient reason.
        """
        order = dict.fromkeys(paths)
        failed: dict[str, str] = {}
        transient: set[str] = set()
        keys: dict[str, dict[str, list[str]]] = {}
        names: dict[str, dict[str, str]] = {}
        for path in order:
            if is_tidy(path):
                folder, _, name = path.rpartition("/")
                names.setdefault(folder, {})[path] = name
                continue
            parts = split_path(path)
            if parts.scheme in LOCAL_SCHEMES:
                folder, name = os.path.split(os.path.abspath(parts.plain_key))
                names.setdefault(folder, {})[path] = name or "."
            elif not self._bound.allows(path):
                failed[path] = str(self._bound.refusal([path]))
            elif parts.scheme in S3_SCHEMES:
                # s3:// and s3a:// spellings of one object share a key
                keys.setdefault(parts.authority, {}).setdefault(parts.key, []).append(path)
            else:
                failed[path] = "only S3 objects and local files can be deleted"
        for folder, inside in names.items():
            remaining = self._unlink_in(folder, inside, links=links)
            failed |= remaining
            transient.update(path for path, reason in remaining.items() if reason == _IS_LINK)
        for bucket, spellings in keys.items():
            for_good, unable = self._delete_keys(bucket, list(spellings))
            transient.update(path for key in unable for path in spellings[key])
            for key, reason in (for_good | unable).items():
                failed.update(dict.fromkeys(spellings[key], mask(reason, self._properties)))
        return DeleteReport(tuple(path for path in order if path not in failed), failed, frozenset(transient))

    def _delete_keys(self, bucket: str, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """See :func:`.delete_keys`."""
        from icekeeper.storage.s3 import delete_keys

        try:
            client = self.s3
        except (BotoCoreError, ClientError) as error:  # for example, an unknown profile, or a role that is denied
            return dict.fromkeys(keys, describe_failure(error, None)), {}
        return delete_keys(client, bucket, keys)

    def remove_if_empty(self, folder: str) -> bool:
        """Remove a local folder; ``False`` if it is not empty or cannot be removed."""
        try:
            with self._local(folder, follow=False) as there:
                os.rmdir(there)
        except (OSError, LocationRefused):
            return False
        return True

    def can_list(self, location: str) -> bool:
        """Whether this store lists files under a table's location; S3 is tried once per location (can_list_s3).

        Raises:
            StorageError: the bucket does not exist, the credentials are wrong, or the endpoint does not answer.
        """
        return self._allowed(location, can_list_s3)

    def can_delete(self, location: str) -> bool:
        """Whether this store deletes files under a table's location; S3 is tried once per location (can_delete_s3)."""
        return self._allowed(location, can_delete_s3)

    def is_in_lakefs(self, location: str) -> bool:
        """Whether lakeFS serves the table's files; S3 is tried once per location (is_lakefs_s3), AWS never."""
        has_endpoint = bool(self._properties.get(S3_ENDPOINT))
        return has_endpoint and is_s3(location) and self._allowed(location, is_lakefs_s3)

    def _allowed(self, location: str, ask: Callable[[Any, str, str], bool]) -> bool:
        parts = split_path(location)
        self._bound.require([location])
        if parts.scheme not in S3_SCHEMES:
            return parts.scheme in LOCAL_SCHEMES
        with self._lock:
            key = (ask.__name__, location)
            if key not in self._answers:
                with self.translated(location):
                    self._answers[key] = ask(self.s3, parts.authority, s3_directory(parts.key))
            return self._answers[key]

    @contextmanager
    def translated(self, path: str) -> Iterator[None]:
        """Turn errors of PyArrow and boto3 about a path into a :class:`StorageError` with a single sentence."""
        try:
            yield
        except (OSError, pa.ArrowException, BotoCoreError, ClientError) as error:
            reason = describe_failure(error, self._properties.get("s3.endpoint"))
            raise StorageError(mask(f"{path} {reason}", self._properties)) from error

    @cached_property
    def s3(self) -> Any:
        """A boto3 client with the same properties; the first call may raise what boto3 raises.

        Other modules use :meth:`s3_at`, which checks the bound.
        """
        if self._opened_by is not None:
            return self._opened_by.s3
        from icekeeper.storage.s3 import s3_client

        client = s3_client(self._properties)
        self.s3_clock.listen(client)
        return client

    def uses_boto3(self, path: str) -> bool:
        """Whether boto3 reads and writes an object; PyArrow does if a FileIO is configured or boto3 finds no
        credentials."""
        return is_s3(path) and self._boto_may_read

    @cached_property
    def _boto_may_read(self) -> bool:
        return self._arrow.is_plain and can_boto3_read(self._properties)

    def _open(self, path: str) -> pa.NativeFile:
        if not is_local(path) or self._bound is ANYWHERE:
            self._bound.require([path])
            return self._arrow.open(path)
        with checked_file(os.path.abspath(split_path(path).plain_key), self._bound.allows_real) as checked:
            if checked is not None:
                return self._arrow.open(checked)
        with self._local(path) as there, regular_file(there) as opened:  # or the error
            return self._arrow.open(opened)

    def _create(self, path: str) -> pa.NativeFile:
        if not is_local(path) or self._bound is ANYWHERE:
            self._bound.require([path])
            return self._arrow.create(path)
        with self._local(path, make=True) as there, new_file(there) as opened:
            return self._arrow.create(opened)

    @contextmanager
    def _local(self, path: str, *, follow: bool = True, make: bool = False) -> Iterator[str]:
        """A name for a local file or folder that no link created later can redirect.

        ``follow``: a link as the last part is replaced by its target.  ``make``: create the folders above.

        Raises:
            LocationRefused: its real path is outside the table's bound.
            OSError: its folder cannot be opened.
        """
        name = os.path.abspath(split_path(path).plain_key)
        if self._bound is ANYWHERE:
            yield name
            return
        folder, base = os.path.split(name)
        try:
            real = os.path.realpath(name) if follow else os.path.join(os.path.realpath(folder), base)
        except ValueError:  # a character that no path may hold
            self._bound.require([path])
            raise
        if not self._bound.allows_real(real):
            raise self._bound.refusal([path])
        with held(real, make=make) as there:
            yield there

    def _unlink_in(self, folder: str, names: Mapping[str, str], *, links: bool) -> dict[str, str]:
        """Remove local files of a folder, which is opened once; return why some of them remain.

        ``names``: path → its name in the folder.
        """
        try:
            real = os.path.realpath(folder or "/")
        except ValueError:  # a character that no path may hold
            real = os.path.normpath(folder)
        inside = dict(names)
        if not self._bound.allows_real(real):
            inside = {path: name for path, name in names.items() if self._bound.allows_real(os.path.join(real, name))}
        reasons: dict[str, str | None] = {
            path: str(self._bound.refusal([path])) for path in names if path not in inside
        }
        try:
            if inside:
                # The kernel removes one file of a folder at a time; threads that wait for that use the processor.
                with _FOLDER_LOCKS[hash(real) % len(_FOLDER_LOCKS)], held_folder(real) as opened:
                    above = f"{real}/" if opened is None else ""
                    reasons |= {
                        path: self._unlink(path, f"{above}{name}", opened, links=links) for path, name in inside.items()
                    }
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            reasons |= dict.fromkeys(inside, _sentence(error))
        return {path: reason for path, reason in reasons.items() if reason}

    def _unlink(self, path: str, name: str, folder: int | None, *, links: bool) -> str | None:
        """Remove a file of an opened folder; return why it remains.  A link to a target outside the bound remains."""
        try:
            if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
                if not links:
                    return _IS_LINK
                if not self._bound.allows(path):
                    return str(self._bound.refusal([path]))
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return _sentence(error)
        return None

    def _in_parallel(self, prefix: str) -> Iterator[ListedObject]:
        objects, folders = self.divide(prefix)
        yield from objects
        yield from in_parallel([partial(self.list_folder, folder) for folder in folders])

    def _require_listable(self, path: str) -> None:
        self._bound.require([path])
        if not is_local(path) and not is_s3(path):
            raise StorageError(f"{path} cannot be listed: only S3 and local folders can be listed")


def _sentence(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


SourcePart: TypeAlias = Callable[[], Iterable[ListedObject]]
"""Reads a share of the files; picklable, so that an engine's worker can call it."""


class FileSource(Protocol):
    """The files under a location: the store's listing, or a list that was made earlier, such as an inventory."""

    @property
    def is_current(self) -> bool:
        """Whether this is the store's current state; otherwise each orphan must be looked up before it is deleted."""

    def objects(self) -> Iterator[Listed]:
        """All files, streamed; raises StorageError if they cannot be read."""

    def parts(self) -> Sequence[SourcePart]:
        """The same files in shares; reading a share raises what :meth:`objects` raises."""


@dataclass(frozen=True, slots=True)
class ListedLocations:
    """A :class:`FileSource` that lists locations, none of which is inside another, at the time of the call."""

    storage: Storage
    locations: tuple[str, ...]
    is_current: bool = True

    def objects(self) -> Iterator[Listed]:
        return chain.from_iterable(map(self.storage.list_unread, self.locations))

    def parts(self) -> Sequence[SourcePart]:
        parts: list[SourcePart] = []
        for objects, folders in map(self.storage.divide, self.locations):
            parts += [partial(tuple, objects), *(partial(self.storage.list_folder, folder) for folder in folders)]
        return parts


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """A :class:`FileSource` of old orphans that an earlier listing found; sizes and ages are 0.

    Each file is looked up before it is deleted.
    """

    paths: tuple[str, ...]
    is_current: bool = False

    def objects(self) -> Iterator[ListedObject]:
        return (ListedObject(path, 0, 0) for path in self.paths)

    def parts(self) -> Sequence[SourcePart]:
        return [partial(tuple, tuple(self.objects()))]


StoreClock: TypeAlias = Callable[[Storage, str, bool], int | None]
"""The type of :func:`store_now_ms`."""


def store_now_ms(storage: Storage, location: str, may_write: bool) -> int | None:
    """Epoch milliseconds by the clock of a location's store, which also dates its files; ``None``: not known
    (rule: age-by-store-clock).

    Every answer of S3 contains its time.  If there was no answer yet, this checks whether files can be listed, which
    code that deletes needs to know anyway.  On a file system a new file shows the time, on a network file system the
    time of the server.  ``may_write``: a named file may be created for a moment if a nameless file is impossible.
    """
    parts = split_path(location)
    if not storage.allows(location):
        return None
    if is_local(location):
        # Linux, open(2), O_TMPFILE: the file is gone once it is closed, and its folder does not change.
        found = _creation_ms(parts.key, os.O_TMPFILE | os.O_WRONLY) if hasattr(os, "O_TMPFILE") else None
        if found or not may_write:
            return found or None
        probe = os.path.join(parts.key, "metadata", f".clock-{uuid.uuid4()}")
        found = _creation_ms(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        if found is not None:
            with suppress(OSError):
                os.unlink(probe)
        return found
    if parts.scheme not in S3_SCHEMES:
        return None
    if storage.s3_clock.now_ms() is None:
        with suppress(StorageError):
            storage.can_list(location)  # even a refusal contains the time
    return storage.s3_clock.now_ms()


def _creation_ms(path: str, flags: int) -> int | None:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_mtime_ns // 1_000_000
    except OSError:
        return None
    finally:
        os.close(descriptor)
