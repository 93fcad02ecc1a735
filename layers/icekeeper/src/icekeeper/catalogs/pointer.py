"""Catalogs that only hold a pointer to the newest metadata file: a commit writes a new file, then swaps the pointer.

The new file has a unique name.  If it is certain that the swap did not happen, the file is deleted.  If the outcome is
unknown, the file is kept, because the table may reference it.  A "no" of the catalog is believed only once its pointer
confirms it (rule: swap-pointers-conditionally).

The last part of this module caches metadata files that a pass has read.
"""

from __future__ import annotations

import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.configured import ConfiguredCatalog, file_io_properties
from icekeeper.errors import (
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    LocationRefused,
    MaintenanceError,
    MetadataUnreadable,
    StorageError,
)
from icekeeper.machine.clock import LOGGED_SKEW_MS, ahead_ms, system_clock
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document, render_document
from icekeeper.metadata.updates import apply_updates, check_requirements
from icekeeper.model import TableName
from icekeeper.storage.paths import is_under, normalise
from icekeeper.storage.storage import Storage, store_now_ms

Swap = Callable[[str], str]
"""Points the table at a new metadata location if it is still at its base; returns the new token.

Raises CommitConflict or CommitRefused if the catalog says no, another StorageError if nothing was sent, and
CommitStateUnknown if the outcome is not certain."""

_VERSION = re.compile(r"^(\d+)-")
# At most so many files that dropped off the log are deleted per commit, because each is read first; the rest become
# orphans.
_MOST_DROPPED = 100


class TableFiles:
    """The access of a catalog to its tables' files."""

    def __init__(self, catalog: ConfiguredCatalog) -> None:
        self._catalog = catalog
        self._io_properties = file_io_properties(catalog.properties)
        self.storage = Storage(self._io_properties)
        """Not limited by the bound of any table."""

    def load(self, table: TableName, location: str, token: str, home: str | None = None) -> LoadedTable:
        """The table whose metadata file a pointer names, with its bound (rule: bound-every-table).

        ``home``: the table's location, if the catalog's service knows it.

        Raises:
            LocationRefused: the file is outside of the table's bound; it was not read.
            MetadataUnreadable, StorageError: as :func:`load_document`.
        """
        bound = self._catalog.bound_of(table, location, home)
        storage = self.storage.within(bound)
        try:
            storage.require([location])  # here, because a cached file is not read again
        except LocationRefused as error:
            error.pointer = location
            raise
        metadata = load_document(storage, location)
        return LoadedTable(table, metadata, location, token, bound.put_into(self._io_properties))


def load_document(storage: Storage, location: str) -> TableMetadata:
    """The document of the metadata file that a pointer names; a pass reads the file once.

    Raises:
        MetadataUnreadable: it is missing or damaged.
        StorageError: the store cannot be reached.
    """
    kept = kept_document(storage.place, location)
    try:
        data = storage.read(location) if kept is None else kept
        metadata = parse_document(data, location)
    except StorageError as error:
        error.pointer = location
        if isinstance(error.__cause__, FileNotFoundError):
            missing = MetadataUnreadable(f"metadata file {location} does not exist")
            missing.pointer = location
            raise missing from error
        raise
    if kept is None:
        keep_document(storage.place, location, data)
    return metadata


def next_metadata_location(metadata: TableMetadata, base_location: str) -> str:
    """A unique name for the next metadata file, with a number as in Iceberg-Java.

    Source: ``BaseMetastoreTableOperations.newTableMetadataFilePath``: the base's number plus one, 0 after a name
    without a number.
    """
    match = _VERSION.match(base_location.rpartition("/")[2])
    version = int(match.group(1)) + 1 if match else 0
    extension = ".gz.metadata.json" if _compressed(metadata) else ".metadata.json"
    return f"{metadata.metadata_directory}/{version:05d}-{uuid.uuid4()}{extension}"


def commit_document(
    base: LoadedTable,
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
    *,
    swap: Swap,
    storage: Storage,
    load: Callable[[TableName], LoadedTable],
    conflict_is_proof: bool = False,
) -> LoadedTable:
    """Apply the updates to ``base``, write the new metadata file and swap the pointer to it; return the new state.

    Args:
        storage: the catalog's storage, not limited by the bound of any table.
        load: loads a table's newest state.
        conflict_is_proof: whether a CommitConflict proves that the swap lost, because no proxy can have repeated it or
            answered for the catalog.

    Raises:
        CommitConflict: a requirement does not hold, or the pointer had moved.  The new file is deleted, unless the
            catalog still shows the pointer at ``base``.
        CommitRefused: the catalog refused.  If its pointer has moved to another commit, the new file is deleted; if
            the pointer is still at ``base``, the file is kept and ``left`` names it.
        CommitStateUnknown: the swap may have happened; the new file is kept.
        StorageError: the file could not be written, or the swap was never sent; no file is left.
    """
    check_requirements(base.metadata, requirements)
    storage, now_ms = storage.within(base.allowed), system_clock()
    ahead = ahead_ms(now_ms, store_now_ms(storage, base.metadata.location, True))
    if ahead > LOGGED_SKEW_MS:
        # A commit in the future would block other writers until then: Iceberg-Java refuses to commit more than a minute
        # before the last update (``TableMetadata``, "Invalid update timestamp").
        now_ms -= ahead
    metadata = apply_updates(base.metadata, updates, metadata_location=base.metadata_location, now_ms=now_ms)
    location = next_metadata_location(metadata, base.metadata_location)
    try:
        storage.write(location, render_document(metadata, compress=_compressed(metadata)))
        token = swap(location)
    except (CommitConflict, StorageError) as no:
        doubtful = CommitRefused if conflict_is_proof else CommitRefused | CommitConflict
        if isinstance(no, doubtful) and (swapped := _swapped(base, location, load, no)):
            return swapped
        # A table bucket does not allow this, but removes unreferenced files itself.
        storage.delete([location])
        raise
    _delete_dropped_metadata(storage, base, metadata)
    return LoadedTable(base.name, metadata, location, token, base.io_properties)


def _swapped(
    base: LoadedTable, location: str, load: Callable[[TableName], LoadedTable], no: MaintenanceError
) -> LoadedTable | None:
    """The table's current state if our swap to ``location`` landed although the catalog said no; ``None`` if it lost.

    Raises:
        CommitConflict, CommitRefused: the catalog said so, but still shows the pointer at ``base``.  A lagging replica
            shows the same after our success, so the table may reference the new file.
        CommitStateUnknown: it is unknown whether the swap landed.
    """
    try:
        now = load(base.name)
    except MaintenanceError as error:
        raise CommitStateUnknown(f"{no}; the table cannot be read to confirm this: {error}") from no
    history = {normalise(entry["metadata-file"]) for entry in now.metadata.metadata_log}
    history.add(normalise(now.metadata_location))
    if normalise(location) in history:
        return now
    if isinstance(no, CommitConflict) and normalise(now.metadata_location) == normalise(base.metadata_location):
        raise no  # the pointer must have moved for a conflict, so a lagging replica may have answered
    if isinstance(no, CommitRefused) and normalise(now.metadata_location) == normalise(base.metadata_location):
        raise type(no)(str(no), left=(location,)) from no
    # The metadata log is an unbroken chain that ends at the pointer: if it contains the base, it contains every file
    # after the base.
    if normalise(base.metadata_location) in history:
        return None
    raise CommitStateUnknown(
        f"{no}; it is unknown whether it landed, because the table's metadata log does not reach back to its base"
    ) from no


def _compressed(metadata: TableMetadata) -> bool:
    # Readers take the codec from the file's name, where only gzip has an ending: with other codecs, write uncompressed.
    return metadata.properties.get("write.metadata.compression-codec", "none").strip().lower() == "gzip"


def _delete_dropped_metadata(storage: Storage, base: LoadedTable, metadata: TableMetadata) -> None:
    """Delete the metadata files that dropped off the log, as Iceberg-Java does after a commit; best effort.

    Pinned files are kept, because the pin's owner reads the table through them (rule: pin-is-a-horizon).  The table's
    writers choose the names in the log, so a file is deleted only if its own content names this table and this location
    (rule: delete-below-own-locations).
    """
    if not metadata.property_flag("write.metadata.delete-after-commit.enabled", default=False):
        return
    if not metadata.property_flag("gc.enabled", default=True):
        return
    try:
        if storage.is_in_lakefs(metadata.location):  # (rule: branches-outside-need-everything)
            return
    except StorageError:
        return
    # The base's own file is the newest entry of the log, so readers of the base can finish.
    kept = {normalise(entry["metadata-file"]) for entry in metadata.metadata_log}
    kept.update(map(normalise, base.pinned_metadata))
    before = (entry["metadata-file"] for entry in base.metadata.metadata_log)
    dropped = [path for path in before if normalise(path) not in kept]
    owned = (metadata.location, metadata.metadata_directory)
    own = [path for path in dropped[-_MOST_DROPPED:] if any(is_under(path, location) for location in owned)]
    storage.delete([path for path in own if _is_former_state(storage, path, metadata)])


def _is_former_state(storage: Storage, path: str, metadata: TableMetadata) -> bool:
    """Whether a metadata file belongs to this table at this location; ``False`` if it cannot be read."""
    try:
        former = parse_document(storage.read(path), path)
    except MaintenanceError:
        return False
    is_same_table = former.uuid is not None and former.uuid == metadata.uuid
    return is_same_table and normalise(former.location) == normalise(metadata.location)


# The cache of metadata files that a pass has read.  Each load asks the catalog for the pointer; a file that the pointer
# still names is not read again, because a metadata file never changes (specification, "File System Operations").  A
# file that this process wrote is also read from the store once (rule: cache-only-immutable-metadata).  Two stores may
# have different files at the same path (rule: cache-only-immutable-metadata).

Place: TypeAlias = tuple[str, str]
"""Identifies a store, like :attr:`.Storage.place`."""

_MOST_FILES = 16
_MOST_BYTES = 16 * 1024 * 1024


class _Documents:
    """The bytes of the latest few files, by place and location; safe to share between threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.files: OrderedDict[tuple[Place, str], bytes] = OrderedDict()
        self.size = 0


_current: ContextVar[_Documents | None] = ContextVar("icekeeper_kept_documents", default=None)


@contextmanager
def keeping_documents() -> Iterator[None]:
    """Inside the outermost such block, read no metadata file twice; outside, every load reads its file."""
    before = _current.set(_current.get() or _Documents())
    try:
        yield
    finally:
        _current.reset(before)


@contextmanager
def reading_anew() -> Iterator[None]:
    """Inside the block, read every metadata file from its store, to check that it can still be read."""
    before = _current.set(None)
    try:
        yield
    finally:
        _current.reset(before)


def kept_document(place: Place, location: str) -> bytes | None:
    """The cached bytes of a metadata file; ``None``: it must be read."""
    kept = _current.get()
    if kept is None:
        return None
    with kept.lock:
        data = kept.files.get((place, location))
        if data is not None:
            kept.files.move_to_end((place, location))
        return data


def keep_document(place: Place, location: str, data: bytes) -> None:
    """Cache a metadata file that was read from its store and parsed."""
    kept = _current.get()
    if kept is None or len(data) > _MOST_BYTES:
        return
    with kept.lock:
        if (place, location) in kept.files:
            return
        kept.files[place, location] = data
        kept.size += len(data)
        while len(kept.files) > _MOST_FILES or kept.size > _MOST_BYTES:
            kept.size -= len(kept.files.popitem(last=False)[1])
