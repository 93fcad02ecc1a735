"""The files that must be kept although the newest state of the table does not reference them.

These are files held by pins and staged loads, files referenced by newer metadata that the catalog entry does not know,
and files of other tables that share a location (rule: one-object-decides-deletions).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.catalogs.pointer import reading_anew
from icekeeper.deletion.neighbours import (
    StrayMetadata,
    TableFolders,
    has_its_own_bucket,
    is_past,
    owned_locations,
    refuse_other_head,
)
from icekeeper.deletion.other_tables import follow_for_a_while
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.errors import (
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    StorageError,
    TableNotFound,
    is_gone,
)
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.table_reader import References, TableReader, metadata_files, reachable_paths, statistics_files
from icekeeper.model import CatalogId, TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.footprint import data_root
from icekeeper.pass_context.metadata_files import listed_metadata, metadata_folders, read_listed_metadata
from icekeeper.state.identity import TableIdentity
from icekeeper.state.staging import LoadOrigin, StagedLoad
from icekeeper.state.store import Pin, PinKind
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import PathSet, any_spelling, is_under, may_be_under, normalise, planned_file
from icekeeper.storage.storage import Storage

log = logging.getLogger(__name__)


class HeldFiles:
    """The files that pins and staged loads hold, as of the last :meth:`look`.

    A pin may be added after an expiry has read the pins and before it commits.  The expiry finds such a pin here
    before it deletes a file, with all snapshots that it expired behind the pin (rule: pin-is-a-horizon).
    """

    def __init__(self, memory: TableMemory, read: Callable[[str], bytes]) -> None:
        self._memory = memory
        self._read = read
        self._loads: tuple[StagedLoad, ...] = ()
        self._staged = PathSet()
        self._pinned: set[str] = set()
        self._documents: dict[str, TableMetadata] = {}
        self._followed: set[tuple[int, str]] = set()

    def look(self, now: TableMetadata) -> None:
        """Read the state store again.  ``now``: the table's newest state, whose snapshots are kept without a pin.

        Raises:
            MetadataUnreadable: the references of a pinned snapshot cannot be read.
            StorageError: the state store cannot be read.
        """
        loads = self._memory.staged_loads()
        if loads != self._loads:
            self._loads, self._staged = loads, PathSet(self._memory.staged_paths_of(loads))
        for pin in self._memory.pins():
            self._pinned.add(any_spelling(pin.metadata_location))
            try:
                self._pinned.update(map(any_spelling, self._needed(pin, now)))
            except StorageError as error:
                raise MetadataUnreadable(
                    f"the files that pin '{pin.name}' holds cannot be determined: {error}; nothing was deleted; remove "
                    "the pin if no reader needs it"
                ) from error

    @property
    def pinned(self) -> Set[str]:
        """Normalised paths of the files that pins hold."""
        return self._pinned

    def hold(self, path: str) -> bool:
        """Whether the file must not be deleted."""
        return (bool(self._pinned) and any_spelling(path) in self._pinned) or self._staged.may_contain(path)

    def _needed(self, pin: Pin, now: TableMetadata) -> Iterator[str]:
        """The files of the pinned snapshots that the table no longer has, and that were not followed before."""
        location, is_lost = pin.metadata_location, pin.snapshot_id not in now.snapshots
        metadata = self._documents.get(location) or self._document(location, may_be_gone=not is_lost)
        if metadata is None:
            return
        self._documents[location] = metadata
        # A lost ref named a single snapshot.
        behind = {pin.snapshot_id} if pin.kind is PinKind.LOST_REF else metadata.behind([pin.snapshot_id])
        for snapshot_id in sorted(behind & metadata.snapshots.keys() - now.snapshots.keys()):
            if (snapshot_id, location) in self._followed:
                continue
            try:
                snapshot = metadata.snapshots[snapshot_id]
                yield from statistics_files(metadata)
                yield from References().follow(TableReader(metadata, self._read), [snapshot])
            except MetadataUnreadable as error:
                if snapshot_id == pin.snapshot_id or not is_gone(error):
                    raise
                # Another engine, which does not know pins, has expired it with its files.
            self._followed.add((snapshot_id, location))

    def _document(self, location: str, *, may_be_gone: bool) -> TableMetadata | None:
        """A pin's metadata; ``None`` if its file is gone (only if it ``may_be_gone``, as after other engines)."""
        try:
            return parse_document(self._read(location), location)
        except StorageError as error:
            if may_be_gone and is_gone(error):
                return None
            raise


def recorded_files(memory: TableMemory, load: StagedLoad) -> Iterator[str]:
    """The paths of all files that a staged load may have left; for a job, a path for each possible attempt at a task.

    Raises:
        StorageError: the state store cannot be read.
    """
    for record in memory.staged_files(load):
        planned = planned_file(record) if load.origin is LoadOrigin.JOB else None
        yield from [record] if planned is None else planned.paths


# Stray metadata: metadata files of a table that its catalog entry does not know.

_PARALLEL_READS = 16


def list_beside(
    storage: Storage, table: LoadedTable, found: Iterable[ListedObject] | None = None
) -> Sequence[ListedObject]:
    """The metadata files in the table's metadata folders, for :func:`read_strays`; empty in a table bucket.

    ``found``: metadata files from a listing of the table's location, which is then not listed again.

    Raises:
        OperationRefused: a folder cannot be listed, or the listing is incomplete, so that a newer head could be missed.
        StorageError: the store does not answer.
    """
    home = table.metadata.location
    listed = listed_metadata(storage, table, apart_from=None if found is None else home)
    if listed is None and not has_its_own_bucket(home):
        folders = " and ".join(metadata_folders(table.metadata))
        raise OperationRefused(
            f"{table.name} may have newer metadata than its catalog entry knows, and {folders} cannot be listed to "
            "check this; nothing was deleted; allow s3:ListBucket there"
        )
    if listed is not None and (found is None or not is_under(table.metadata_location, home)):
        _require_current(storage, table, listed)
    return (*(found or ()), *(listed or ()))


def _require_current(storage: Storage, table: LoadedTable, listed: Iterable[ListedObject]) -> None:
    """Raises OperationRefused if a listing lacks the table's own metadata file (rule: trust-only-own-answers)."""
    current = normalise(table.metadata_location)
    folder = current.rpartition("/")[0]
    if folder not in map(normalise, metadata_folders(table.metadata)):
        return
    if all(normalise(file.path) != current for file in listed) and storage.size(table.metadata_location) is not None:
        raise OperationRefused(
            f"the listing of {folder} lacks {table.metadata_location}, which exists: newer metadata of {table.name} "
            "may be missing as well; nothing was deleted; repair the store, or the proxy that answers for it"
        )


def read_strays(storage: Storage, table: LoadedTable, listed: Iterable[ListedObject]) -> Sequence[StrayMetadata]:
    """Read the listed metadata files that belong to the table, are unknown to it and may be newer.

    Files outside the table's metadata folders are skipped: they belong to other tables.

    Raises:
        StorageError: the store does not answer.
    """
    metadata = table.metadata
    known = {normalise(path) for path in metadata_files(metadata, table.metadata_location)}
    folders = set(map(normalise, metadata_folders(metadata)))
    unknown = [
        found.path
        for found in listed
        if normalise(found.path).rpartition("/")[0] in folders
        and normalise(found.path) not in known
        and not is_past(table, found.path, found.modified_ms)
    ]

    def stray(path: str) -> StrayMetadata | None:
        found = read_listed_metadata(storage, path)  # ``None`` if damaged: orphan removal decides
        return StrayMetadata(path, found) if found is not None and _is_of(metadata, found) else None

    with WorkThreads(_PARALLEL_READS, thread_name_prefix="metadata-read") as pool:
        return [found for found in pool.map(stray, unknown) if found is not None]


def needed_by(storage: Storage, stray: StrayMetadata, known: References) -> Iterator[str]:
    """The stray metadata file and the paths that it references, without the paths in ``known``.

    A missing manifest is skipped: the table has expired it since then.

    Raises:
        MetadataUnreadable: an existing file cannot be read.
    """
    reader = TableReader(stray.metadata, storage.read)
    references = References(set(known.snapshots), set(known.manifests))
    yield from metadata_files(stray.metadata, stray.path)
    yield from statistics_files(stray.metadata)
    for snapshot in stray.metadata.snapshots.values():
        if snapshot.manifest_list is not None:
            yield snapshot.manifest_list
        try:
            manifests = references.listed(reader, [snapshot])
        except MetadataUnreadable as error:
            if not is_gone(error):
                raise
            continue
        yield from manifests
        for manifest in manifests.values():
            try:
                yield from references.held(reader, [manifest])
            except MetadataUnreadable as error:
                if not is_gone(error):
                    raise


def _is_of(table: TableMetadata, found: TableMetadata) -> bool:
    """Whether metadata belongs to the table, by UUID, or by location if either has no UUID (v1)."""
    if table.uuid and found.uuid:
        return table.uuid.lower() == found.uuid.lower()
    return normalise(table.location) == normalise(found.location)


class _Followed:
    """A table that shares a location, and its references that have been read."""

    def __init__(self, context: OperationContext, found: TableFolders, table: LoadedTable) -> None:
        self.found, self.catalog, self.table = found, found.catalog, table
        self.references = References()
        memory = TableMemory(context.state, self.identity, context.memory.clock)
        self.held = HeldFiles(memory, context.stores.storage(table).read)

    @property
    def identity(self) -> TableIdentity:
        return identity_of(self.catalog, self.table)

    def newest(self) -> LoadedTable | None:
        """The table as it is now; ``None``: it is missing, and its files are still kept in this pass."""
        try:
            with reading_anew():
                return self.catalog.load(self.table.name)
        except TableNotFound:
            return None

    def knows(self, metadata_file: str) -> bool:
        """Whether a (normalised) metadata file is current, or in the table's metadata log."""
        known = metadata_files(self.table.metadata, self.table.metadata_location)
        return metadata_file in map(normalise, known)


class SharedReferences:
    """The files that tables which share a location reference, pin or stage.

    The catalog entry of such a table may be out of date, so its folders are also searched for newer metadata.
    """

    def __init__(
        self, context: OperationContext, tables: Sequence[TableFolders], own: LoadedTable, known: References
    ) -> None:
        """``own``: the table whose files are deleted; ``known``: its references that the caller has read.

        Another entry of ``own`` needs everything that its metadata file references, even if that file is also
        ``own``'s head now, because that entry does not follow later commits (rule: stale-entries-delete-nothing).

        Raises:
            OperationRefused: a table has a newer head that its catalog entry does not know.
            MetadataUnreadable: references of a table cannot be read.
            StorageError: a store does not answer.
        """
        self._context = context
        self._paths, self._of_kept_apart = (ReferencedPaths(own.metadata.location) for _ in range(2))
        self._homes = tuple(map(normalise, owned_locations(own.metadata)))
        # The folders in which unreadable tables that the operator's rules separate were seen to have files.
        self._seen_below, self._seen_roots = PathSet(), set[str]()
        self.left: list[str] = []
        """Sentences about folders that are kept for tables that cannot be read."""
        self._followed: dict[tuple[CatalogId, TableName], _Followed] = {}
        for found in tables:
            key = (found.catalog.id, found.table.name)
            self._followed[key] = _Followed(context, found, found.table)
        identity = identity_of(context.catalogs.own, own)
        for followed in self._followed.values():
            if identity.uuid and followed.identity.copy == identity.copy:
                followed.references = References(set(known.snapshots), set(known.manifests))
            with self._reading(followed):
                self._follow(followed)
                followed.held.look(followed.table.metadata)
        for followed in _newest_entries(self._followed.values()):
            # The caller looks for newer metadata of the cleaned table itself.
            if followed.identity.copy != identity.copy:
                with self._reading(followed):
                    self._look_beside(followed)

    def spare_seen(self, name: str, folders: Iterable[str], reason: str, because: str = "cannot be read") -> None:
        """Keep files in the (normalised) folders of a table that is missing, or unreadable and separated by rules.

        A folder below the cleaned table is kept completely.  Of a folder that contains the cleaned table (for example a
        shared ``write.data.path``), only the files directly in it and in its partition and hash folders are kept.
        """
        homes, folders = self._homes, tuple(folders)
        below = sorted({path for path in folders for home in homes if path != home and may_be_under(path, home)})
        self._seen_below.add(below)
        self._seen_roots.update(folders)
        sentence = f"files in {' and '.join(below)} are kept: {name} had files there at its last look, and {because}"
        if below and sentence not in self.left:
            log.warning("%s: %s: %s", self._context.table, sentence, reason)
            self.left.append(sentence)

    def __contains__(self, path: str) -> bool:
        if not self._followed and not self._seen_roots:
            return False
        return (
            path in self._paths
            or path in self._of_kept_apart
            or self._seen_below.may_contain(path)
            or data_root(path) in self._seen_roots
            or any(followed.held.hold(path) for followed in self._followed.values())
        )

    def unreferenced(self, listed: Sequence[ListedObject]) -> list[ListedObject]:
        """The listed files that no table needs."""
        return [found for found in listed if found.path not in self]

    @property
    def tables(self) -> Sequence[LoadedTable]:
        """The tables as last loaded, without the tables that rules separate."""
        return [followed.table for followed in self._followed.values() if not followed.found.is_kept_apart]

    def has_prefix_mismatch(self, path: str) -> bool:
        """Like :meth:`ReferencedPaths.has_prefix_mismatch`; tables that rules separate may name any bucket."""
        return bool(self._followed) and self._paths.has_prefix_mismatch(path)

    @contextmanager
    def _reading(self, followed: _Followed) -> Iterator[None]:
        """An unreadable table stops the deletion; if rules separate it, only the folders of its last look are kept."""
        try:
            yield
        except (MaintenanceError, AttributeError, KeyError, TypeError, ValueError) as error:
            if not followed.found.is_kept_apart:
                raise
            name = f"{followed.table.name} of catalog {followed.catalog.id}"
            self.spare_seen(name, followed.found.files_in, str(error))

    def look_again(self) -> None:
        """Read every table's pointer, and add the new references.

        Raises:
            OperationRefused: a table can no longer be loaded.
            MetadataUnreadable: new references cannot be read.
        """
        for key, known in tuple(self._followed.items()):
            with self._reading(known):
                self._look_again(key, known)

    def _look_again(self, key: tuple[CatalogId, TableName], known: _Followed) -> None:
        try:
            now = known.newest()
        except MaintenanceError as error:
            raise OperationRefused(
                f"{known.table.name}, which shares this table's location, can no longer be loaded: {error}; nothing "
                "more was deleted"
            ) from error
        if now is None:
            return
        followed = known
        if now.metadata.uuid != known.table.metadata.uuid:
            followed = self._followed[key] = _Followed(self._context, known.found, now)
        has_moved = now.metadata_location != known.table.metadata_location
        followed.table = now
        if has_moved:
            self._follow(followed)
        followed.held.look(now.metadata)

    def _look_beside(self, followed: _Followed) -> None:
        """Add the references of newer metadata that a table's catalog entry does not know; errors as above."""
        storage = self._context.stores.storage(followed.table)
        listed = list_beside(storage, followed.table)
        if not read_strays(storage, followed.table, listed):
            return
        # Load after the listing, so that metadata of commits made since the first load are known.
        now, before = followed.newest(), followed.table
        if now is not None and (
            now.metadata.uuid == before.metadata.uuid and now.metadata_location != before.metadata_location
        ):
            followed.table = now
            self._follow(followed)
        strays = read_strays(storage, followed.table, listed)
        for stray in strays if followed.found.is_kept_apart else refuse_other_head(followed.table, strays):
            self._paths_of(followed).update(needed_by(storage, stray, followed.references))

    def _paths_of(self, followed: _Followed) -> ReferencedPaths:
        return self._of_kept_apart if followed.found.is_kept_apart else self._paths

    def _follow(self, followed: _Followed) -> None:
        table = followed.table
        reader = TableReader(table.metadata, self._context.stores.storage(table).read)

        def look() -> None:
            self._paths_of(followed).update(reachable_paths(reader, table.metadata_location, followed.references))

        follow_for_a_while(self._context, followed.catalog, table.name, look)


def _newest_entries(entries: Collection[_Followed]) -> Iterator[_Followed]:
    """The entries that are not outdated: no other entry of the same table has their metadata file in its log."""
    same: defaultdict[tuple[str, str], dict[str, _Followed]] = defaultdict(dict)
    for entry in entries:
        same[entry.identity.copy].setdefault(normalise(entry.table.metadata_location), entry)
    for heads in same.values():
        for head, entry in heads.items():
            if not any(other.knows(head) for other in heads.values() if other is not entry):
                yield entry
