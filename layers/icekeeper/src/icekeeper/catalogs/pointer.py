"""Commits of catalogs that hold a pointer to the newest metadata file; metadata files already read."""

from __future__ import annotations

import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias

from icekeeper.catalogs.addresses import file_io_properties
from icekeeper.catalogs.catalog import LoadedTable, TableBounds
from icekeeper.errors import (
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    LocationRefused,
    MaintenanceError,
    MetadataUnreadable,
    StorageError,
)
from icekeeper.machine.clock import TOLD_SKEW_MS, Clock, ahead_ms
from icekeeper.metadata.document import TableMetadata, apply_updates, check_requirements
from icekeeper.metadata.document_files import parse_document, render_document
from icekeeper.model import TableName
from icekeeper.storage.paths import is_under, normalise
from icekeeper.storage.storage import Storage, store_now_ms

# Metadata files that a pass has read: one that its catalog's pointer still names is not read again.
#
# The pointer itself is asked with every load.  A metadata file never changes (specification, "File System Operations"),
# so the one that it names is as it was.  A file that this process wrote is read from the store like everything else
# (rule: cache-only-immutable-metadata).  Stores of several catalogs may have files of one path
# (rule: key-caches-by-store).

Place: TypeAlias = tuple[str, str]
"""Of a store, as :attr:`.Storage.place`."""

_MOST_FILES = 16
_MOST_BYTES = 16 * 1024 * 1024


class _Documents:
    """The latest few, as bytes by place and location; safe to share between threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.files: OrderedDict[tuple[Place, str], bytes] = OrderedDict()
        self.size = 0


_current: ContextVar[_Documents | None] = ContextVar("icekeeper_kept_documents", default=None)


@contextmanager
def keeping_documents() -> Iterator[None]:
    """Read no metadata file twice inside of the block, or of one around it; outside of all, each load reads it."""
    before = _current.set(_current.get() or _Documents())
    try:
        yield
    finally:
        _current.reset(before)


@contextmanager
def reading_anew() -> Iterator[None]:
    """Read every metadata file from its store inside of the block, for who must know that it can still be read."""
    before = _current.set(None)
    try:
        yield
    finally:
        _current.reset(before)


def kept_document(place: Place, location: str) -> bytes | None:
    """The bytes of a metadata file that was read before; ``None``: it is to be read."""
    kept = _current.get()
    if kept is None:
        return None
    with kept.lock:
        data = kept.files.get((place, location))
        if data is not None:
            kept.files.move_to_end((place, location))
        return data


def keep_document(place: Place, location: str, data: bytes) -> None:
    """Remember a metadata file that was read from its store and understood."""
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


# Commits of catalogs that only hold a pointer to the newest metadata file: write a new file, then swap the pointer.
#
# The file is written under a unique name before the pointer names it.  When the swap surely did not happen, the file is
# deleted again; when the outcome is unknown, it stays, because it may be the table by now.  A catalog that says "no" is
# not believed until the pointer has shown it (rule: swap-pointers-conditionally).

Swap = Callable[[str], str]
"""Point the table at a new metadata location if it is still at its base; returns the new token.

Raises CommitConflict or CommitRefused when the catalog says no, another StorageError when nothing was sent, and
CommitStateUnknown when in doubt."""

_VERSION = re.compile(r"^(\d+)-")
# Files that fall off the log with one commit, each of which is read before it goes; orphan removal takes any others.
_MOST_DROPPED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerCatalog:
    """What a commit uses of a catalog that holds pointers."""

    storage: Storage
    """Where the metadata files are, within any table's bound."""
    load: Callable[[TableName], LoadedTable]
    """Loads a table's newest state."""
    clock: Clock
    conflict_is_proof: bool = False
    """Whether a CommitConflict of the swap proves that it lost: nothing in between can have repeated the swap, or
    answered in the catalog's place."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """How a catalog that holds pointers reaches its tables' files."""

    storage: Storage
    """Without any table's bound."""
    io_properties: Mapping[str, str]
    bounds: TableBounds

    @classmethod
    def of(cls, properties: Mapping[str, Any], bounds: TableBounds) -> TableFiles:
        """As the properties of the catalog say."""
        io_properties = file_io_properties(properties)
        return cls(Storage(io_properties), io_properties, bounds)


def load_bounded(
    files: TableFiles, table: TableName, location: str, token: str, home: str | None = None
) -> LoadedTable:
    """The table whose metadata file a pointer names, with its bound (rule: bound-every-table).

    ``home``: the table's location, where the catalog's service knows it.

    Raises:
        LocationRefused: the file lies where the table must not have any; it was not read.
        MetadataUnreadable, StorageError: as :func:`load_document`.
    """
    bound = files.bounds.of(table, location, home)
    storage = files.storage.within(bound)
    try:
        storage.require([location])  # also of a document that was kept
    except LocationRefused as error:
        error.pointer = location
        raise
    metadata = load_document(storage, location)
    return LoadedTable(table, metadata, location, token, bound.put_into(files.io_properties))


def load_document(storage: Storage, location: str) -> TableMetadata:
    """The metadata file that a pointer names; within a pass it is read once.

    Raises:
        MetadataUnreadable: it is missing or damaged.
        StorageError: the store cannot be reached.
    """
    try:
        return _read_document(storage, location)
    except StorageError as error:
        error.pointer = location
        raise


def _read_document(storage: Storage, location: str) -> TableMetadata:
    kept = kept_document(storage.place, location)
    if kept is not None:
        return parse_document(kept, location)
    try:
        data = storage.read(location)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise MetadataUnreadable(f"metadata file {location} does not exist") from error
        raise
    metadata = parse_document(data, location)
    keep_document(storage.place, location, data)
    return metadata


def next_metadata_location(metadata: TableMetadata, base_location: str) -> str:
    """A unique name for the next metadata file, numbered as Iceberg-Java numbers them.

    Source: ``BaseMetastoreTableOperations.newTableMetadataFilePath``: one more than the base's number, 0 after a name
    without one.
    """
    match = _VERSION.match(base_location.rpartition("/")[2])
    version = int(match.group(1)) + 1 if match else 0
    extension = ".gz.metadata.json" if _compressed(metadata) else ".metadata.json"
    return f"{metadata.metadata_directory}/{version:05d}-{uuid.uuid4()}{extension}"


def commit_document(
    catalog: PointerCatalog,
    base: LoadedTable,
    requirements: Sequence[Mapping[str, Any]],
    updates: Sequence[Mapping[str, Any]],
    *,
    swap: Swap,
) -> LoadedTable:
    """Write the metadata file that the updates make of ``base`` and swap the pointer to it; returns the new state.

    Raises:
        CommitConflict: a requirement does not hold, or the pointer had moved.  The new file is deleted, unless the
            pointer is still shown at ``base``.
        CommitRefused: the catalog refused.  If its pointer has moved to another commit, the new file is deleted; if
            the pointer is still at ``base``, the file stays and ``left`` names it.
        CommitStateUnknown: the swap may have happened; the new file stays.
        StorageError: the file could not be written, or the swap was never sent; nothing is left behind.
    """
    check_requirements(base.metadata, requirements)
    storage = catalog.storage.within(base.allowed)
    now_ms = _not_ahead(catalog.clock(), store_now_ms(storage, base.metadata.location, True))
    metadata = apply_updates(base.metadata, updates, metadata_location=base.metadata_location, now_ms=now_ms)
    location = next_metadata_location(metadata, base.metadata_location)
    try:
        storage.write(location, render_document(metadata, compress=_compressed(metadata)))
        token = swap(location)
    except (CommitConflict, StorageError) as no:
        doubtful = CommitRefused if catalog.conflict_is_proof else CommitRefused | CommitConflict
        if isinstance(no, doubtful) and (swapped := _swapped(base, location, catalog.load, no)):
            return swapped
        # In a table bucket, where nothing can be deleted, the bucket removes unreferenced files by itself.
        storage.delete([location])
        raise
    _delete_dropped_metadata(storage, base, metadata)
    return LoadedTable(base.name, metadata, location, token, base.io_properties)


def _swapped(
    base: LoadedTable, location: str, load: Callable[[TableName], LoadedTable], no: MaintenanceError
) -> LoadedTable | None:
    """The table as it is now, if our swap to ``location`` landed although the catalog said no; ``None`` if it did not.

    Raises:
        CommitConflict: the catalog said so, but shows the pointer still at ``base``; the new file may be the table.
        CommitRefused: likewise for a refusal: a replica that lags shows the same after our own success.
        CommitStateUnknown: whether the swap landed cannot be told.
    """
    try:
        now = load(base.name)
    except MaintenanceError as error:
        raise CommitStateUnknown(f"{no}; the table cannot be read to make sure of it: {error}") from no
    history = {normalise(entry["metadata-file"]) for entry in now.metadata.metadata_log}
    history.add(normalise(now.metadata_location))
    if normalise(location) in history:
        return now
    if isinstance(no, CommitConflict) and normalise(now.metadata_location) == normalise(base.metadata_location):
        raise no  # a pointer that did not move explains no conflict; a replica that lags shows it after our success
    if isinstance(no, CommitRefused) and normalise(now.metadata_location) == normalise(base.metadata_location):
        raise type(no)(str(no), left=(location,)) from no
    # The metadata log is one unbroken chain that ends at the pointer: if the base is in it, so is every file after it.
    if normalise(base.metadata_location) in history:
        return None
    raise CommitStateUnknown(
        f"{no}; whether it landed nevertheless cannot be told, because the table's metadata log reaches back no further"
    ) from no


def _not_ahead(ours_ms: int, stores_ms: int | None) -> int:
    """The time of a commit, in epoch milliseconds: ours, or the store's if ours is more than a minute ahead of it.

    A commit in the future would bar other writers until then: Iceberg-Java refuses to commit more than a minute before
    the last update (``TableMetadata``, "Invalid update timestamp").
    """
    ahead = ahead_ms(ours_ms, stores_ms)
    return ours_ms - ahead if ahead > TOLD_SKEW_MS else ours_ms


def _compressed(metadata: TableMetadata) -> bool:
    # A reader tells the codec by the file's name, which says gzip or nothing: any other codec is written uncompressed.
    return metadata.properties.get("write.metadata.compression-codec", "none").strip().lower() == "gzip"


def _delete_dropped_metadata(storage: Storage, base: LoadedTable, metadata: TableMetadata) -> None:
    """Delete the metadata files that fell off the log, as Iceberg-Java does after a commit; best effort.

    Pinned ones stay: whoever pinned them reads the table by them (rule: pin-is-a-horizon).  What the log names is what
    the table's writers wrote there; so a file goes only when it says itself that it is of this table, at this location
    (rule: metadata-deleted-only-if-own).
    """
    if not metadata.property_flag("write.metadata.delete-after-commit.enabled", default=False):
        return
    if not metadata.property_flag("gc.enabled", default=True):
        return
    # The base's own file is the newest entry of the log, so readers that still have it can finish.
    kept = {normalise(entry["metadata-file"]) for entry in metadata.metadata_log}
    kept.update(map(normalise, base.pinned_metadata))
    before = (entry["metadata-file"] for entry in base.metadata.metadata_log)
    dropped = [path for path in before if normalise(path) not in kept]
    owned = (metadata.location, metadata.metadata_directory)
    own = [path for path in dropped[-_MOST_DROPPED:] if any(is_under(path, location) for location in owned)]
    storage.delete([path for path in own if _is_former_state(storage, path, metadata)])


def _is_former_state(storage: Storage, path: str, metadata: TableMetadata) -> bool:
    """Whether a metadata file is one of this table at this location; what cannot be read is not."""
    try:
        former = parse_document(storage.read(path), path)
    except MaintenanceError:
        return False
    is_same_table = former.uuid is not None and former.uuid == metadata.uuid
    return is_same_table and normalise(former.location) == normalise(metadata.location)
