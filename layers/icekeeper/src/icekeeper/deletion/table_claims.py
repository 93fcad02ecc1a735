"""Claims: the folders in which each table has files, recorded for passes over other tables (``state/claims.py``).

A pass over another table reads the claims before it deletes in these folders (rule: ask-neighbours-before-deleting).
This file reads the claims from manifests and records them; people can list and forget claims, and exclude an entry.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.neighbours import owned_locations, table_folders
from icekeeper.errors import (
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    PartlyListed,
    PolicyError,
    TableNotFound,
    is_gone,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import portions
from icekeeper.metadata.table_reader import References, TableReader
from icekeeper.model import CatalogId, ManifestFile, TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.footprint import Footprint, data_folders
from icekeeper.pass_context.table_handle import TableHandle, user_name
from icekeeper.state.claims import SeenHead, TableClaims, touches
from icekeeper.state.identity import Entry
from icekeeper.state.store import StateStore
from icekeeper.storage.paths import may_be_under, normalise
from icekeeper.storage.storage import Storage

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")

# Manifests of up to this total size fit into the cache of a pass; above it, the workers of the engine read them.
_BY_ENGINE_BYTES = 64 * 1024 * 1024
_TASK_BYTES = 8 * 1024 * 1024
# Entries are decoded in Python: one byte of a manifest costs as much time as this many bytes of a data file.
_DATA_BYTES_PER_BYTE = 8
# For v1 tables with more snapshots, all manifests are read at each new head.
_MOST_SEEN_SNAPSHOTS = 1_000


def read_new_manifests(context: OperationContext, loaded: LoadedTable, before: Iterable[TableClaims]) -> bool:
    """Read the manifests that were added since ``before``; the pass's footprint records the folders of their files.

    The claims record up to which commit manifests were read, so each manifest is read once
    (rule: look-at-every-served-table).  Returns whether all manifests exist; a missing manifest is no error.

    Raises:
        MetadataUnreadable: a manifest list or manifest is damaged.
        StorageError: a store or the engine failed.
    """
    reader = context.reader(loaded)
    known = [claims.seen for claims in before]
    number = max((seen.sequence_number for seen in known if _goes_on(loaded, seen)), default=-1)
    ids = frozenset[int]().union(*(seen.snapshots for seen in known))

    def is_new(sequence_number: int, snapshot_id: int | None) -> bool:
        return sequence_number > number if sequence_number else snapshot_id not in ids

    new = [s for s in reader.metadata.snapshots.values() if is_new(s.sequence_number, s.snapshot_id)]
    lists, listed = _that_are_there(lambda some: list(reader.manifests_of(some)), new)
    found = {
        manifest.manifest_path: manifest
        for manifest in chain.from_iterable(lists)
        if manifest.may_have_live_files and is_new(manifest.sequence_number, manifest.added_snapshot_id)
    }
    manifests = list(found.values())
    if context.planned is None and sum(m.manifest_length for m in manifests) > _BY_ENGINE_BYTES:
        return _see_by_engine(context, loaded, manifests) and listed
    return _see(reader, manifests) and listed


def _see(reader: TableReader, manifests: Sequence[ManifestFile]) -> bool:
    """Read the paths of all live entries; return whether all manifests exist."""
    return _that_are_there(lambda some: deque(reader.live_paths(some), maxlen=0), manifests)[1]


def _that_are_there(read: Callable[[Sequence[_Item]], _Read], items: Sequence[_Item]) -> tuple[Sequence[_Read], bool]:
    """Read all items at once, or one by one if a file is gone; return the results, and whether all files exist.

    Raises:
        MetadataUnreadable: a file is damaged.
    """
    try:
        return [read(items)], True
    except MetadataUnreadable as error:
        if not is_gone(error):
            raise
    found = []
    for item in items:
        try:
            found.append(read([item]))
        except MetadataUnreadable as error:
            if not is_gone(error):
                raise
            log.warning("%s: the files that it named are not known", error)
    return found, False


@dataclass(frozen=True, slots=True)
class _Look:
    """A task: manifests to read; ``own``: the folders in which the table keeps only data files."""

    storage: Storage
    document: Mapping[str, Any]
    """The part of the table's metadata that a reader needs, without the snapshots."""
    manifests: tuple[ManifestFile, ...]
    own: tuple[str, ...]

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return _DATA_BYTES_PER_BYTE * sum(manifest.manifest_length for manifest in self.manifests)


def _see_by_engine(context: OperationContext, loaded: LoadedTable, manifests: Sequence[ManifestFile]) -> bool:
    storage, own = context.stores.storage(loaded), data_folders(loaded.metadata)
    document = {key: loaded.metadata.document[key] for key in ("format-version", "location")}
    looks = [_Look(storage, document, portion, own) for portion in portions(manifests, _TASK_BYTES)]
    is_whole = True
    for roots, were_there, error in context.engine.map(_roots_of, looks, lambda done: None):
        context.footprint.add(roots)
        is_whole = is_whole and were_there
        if error is not None:
            raise MetadataUnreadable(error)
    return is_whole


def _roots_of(look: _Look) -> tuple[frozenset[str], bool, str | None]:
    """The roots of the files of live entries, whether all manifests exist, and the error if a manifest is damaged."""
    seen = Footprint()
    reader = TableReader(TableMetadata(look.document), look.storage.read, partial(seen.see, own=look.own))
    try:
        were_there = _see(reader, look.manifests)
    except MetadataUnreadable as error:
        return seen.roots(), True, str(error)
    return seen.roots(), were_there, None


def head_of(loaded: LoadedTable) -> SeenHead:
    """The table's newest state, which is recorded once its manifests have been read."""
    snapshots = loaded.metadata.snapshots.values()
    number = max((snapshot.sequence_number for snapshot in snapshots), default=0)
    ids = frozenset(snapshot.snapshot_id for snapshot in snapshots if snapshot.sequence_number in (0, number))
    return SeenHead(
        metadata_file=loaded.metadata_location,
        updated_ms=loaded.metadata.last_updated_ms,
        sequence_number=number,
        snapshots=ids if len(ids) <= _MOST_SEEN_SNAPSHOTS else frozenset(),
    )


def _follows(loaded: LoadedTable, seen: SeenHead) -> bool:
    """Whether a head is the table's current head, or is in its metadata log."""
    metadata = loaded.metadata
    logged = ((str(entry["metadata-file"]), int(entry["timestamp-ms"])) for entry in metadata.metadata_log)
    states = ((loaded.metadata_location, metadata.last_updated_ms), *logged)
    return any(at_ms == seen.updated_ms and _is_same(file, seen.metadata_file) for file, at_ms in states)


def _is_same(path: str, other: str) -> bool:
    return path == other or normalise(path) == normalise(other)


def _goes_on(loaded: LoadedTable, seen: SeenHead) -> bool:
    """Whether the table's history continues from a head, so that later sequence numbers are higher.

    If the catalog entry was restored or registered again, sequence numbers repeat, but snapshot ids do not.
    """
    snapshots = loaded.metadata.snapshots.values()
    newest = (snapshot for snapshot in snapshots if snapshot.sequence_number == seen.sequence_number)
    return any(snapshot.snapshot_id in seen.snapshots for snapshot in newest) or _follows(loaded, seen)


_NOT_RECORDED = "%s: the folders of its files could not be recorded: %s"


def entry_of(catalog: Catalog, loaded: LoadedTable) -> Entry:
    """The catalog entry through which a table was loaded."""
    return Entry(catalog.id, loaded.name.key)


def begin_claims(context: OperationContext, loaded: LoadedTable) -> None:
    """Read the table's new manifests at the beginning of a pass (dry runs too), and record its folders.

    Never fails: a table whose manifests cannot be read counts as never read.
    """
    try:
        known = _recorded(context.state, context.catalogs.own, loaded)
        seen: SeenHead | None = None
        try:
            if read_new_manifests(context, loaded, known[1]):
                seen = head_of(loaded)
        except MaintenanceError as error:
            log.warning("%s: not all folders of its files are known: %s", context.table, error)
        _record(context.state, context.catalogs.own, loaded, known, context.footprint.news(), seen)
    except MaintenanceError as error:
        log.warning(_NOT_RECORDED, context.table, error)


def is_seen(claims: TableClaims | None, loaded: LoadedTable) -> bool:
    """Whether the claims include the manifests of the table's newest state, and do not record it as missing."""
    if claims is None or claims.uuid != (loaded.metadata.uuid or "") or claims.missing_ms != -1:
        return False
    seen = claims.seen
    return seen.updated_ms == loaded.metadata.last_updated_ms and _is_same(seen.metadata_file, loaded.metadata_location)


def look_into(context: OperationContext, catalog: Catalog, loaded: LoadedTable) -> frozenset[str]:
    """Read the new manifests of another table, and record its folders.

    Returns the normalised folders outside its location in which it has files.

    Raises:
        MetadataUnreadable: a manifest list or manifest is damaged; missing files are ignored.
        StorageError: a store failed.
    """
    known, seen = _recorded(context.state, catalog, loaded), Footprint()
    is_whole = read_new_manifests(replace(context, footprint=seen, planned=None), loaded, known[1])
    head = head_of(loaded) if is_whole else None
    return _record(context.state, catalog, loaded, known, seen.roots(), head).folders


def remember_claims(context: OperationContext) -> None:
    """Record the folders in which an operation was the first to see files; never fails, so its outcome is reported."""
    roots = context.footprint.news()
    if not roots:
        return
    try:
        loaded = context.load()
        known = _recorded(context.state, context.catalogs.own, loaded)
        _record(context.state, context.catalogs.own, loaded, known, roots, None)
    except MaintenanceError as error:
        log.warning(_NOT_RECORDED, context.table, error)


def record_first_look(
    state: StateStore, catalog: Catalog, loaded: LoadedTable, before: Iterable[TableClaims] = ()
) -> None:
    """Record the folders that a table's document names, and those recorded under its other names (``before``).

    Raises:
        StorageError: the state store failed.
    """
    state.claims.record(_claims(catalog, loaded, (), before))


def first_look(catalog: Catalog, loaded: LoadedTable, recorded: TableClaims | None) -> TableClaims | None:
    """The claims to record from a table's document alone; ``None``: the ``recorded`` claims include its own folders.

    The next look records the folders that its snapshots name.
    """
    metadata = loaded.metadata
    if recorded is None or recorded.copy != identity_of(catalog, loaded).copy:
        return _claims(catalog, loaded, (), ())
    home = metadata.location
    own = (metadata.data_location, metadata.metadata_directory)
    outside = [normalise(place) for place in own if not place.startswith(f"{home}/") or "/." in place]
    if all(_is_inside(place, recorded.location) or place in recorded.folders for place in outside):
        return None
    return _claims(catalog, loaded, (), (recorded,))


def recorded_claims(state: StateStore, catalog: Catalog) -> Mapping[TableName, TableClaims]:
    """The claims of the tables of a catalog.

    Raises:
        StorageError: the state store failed.
    """
    return {claims.table: claims for claims in state.claims.of_catalog(catalog.id)}


def known_data_roots(context: OperationContext, loaded: LoadedTable) -> Iterable[str]:
    """Folders inside the table's location in which any pass, including this pass, has found its data files.

    Raises:
        StorageError: the state store failed.
    """
    _, before = _recorded(context.state, context.catalogs.own, loaded)
    known, home = frozenset().union(*(claims.data_roots for claims in before)), loaded.metadata.location
    return (*known, *(root for root in context.footprint.roots() if may_be_under(root, home)))


def _record(
    state: StateStore,
    catalog: Catalog,
    loaded: LoadedTable,
    known: tuple[TableClaims | None, Sequence[TableClaims]],
    roots: Iterable[str],
    seen: SeenHead | None,
) -> TableClaims:
    """Record the folders that a table's document names, and the ``roots`` of its data files that were seen.

    ``known``: claims of the same table, which are kept because a file elsewhere may be older than the remaining
    history.  ``seen``: the head, if all of its manifests have been read.
    """
    entry, before = known
    now = _claims(catalog, loaded, roots, before)
    if seen is not None:
        now = replace(now, seen=seen)
    if now != entry:
        state.claims.record(now, replaces=entry)
    if seen is not None and not (entry is not None and entry.is_looked_into):
        _forget_former_names(state, catalog, loaded, before)
    return now


def _forget_former_names(
    state: StateStore, catalog: Catalog, loaded: LoadedTable, before: Iterable[TableClaims]
) -> None:
    """Forget the former names of a table that was renamed (rule: gone-is-proven-twice).

    If two entries were known at the same time, the second is not a new name and proves nothing about the first.
    """
    for claims in before:
        if claims.catalog != catalog.id or claims.table == loaded.name:
            continue
        if not (claims.uuid and _follows(loaded, claims.seen)):
            continue
        try:
            catalog.load(claims.table)
        except TableNotFound:
            state.claims.forget(claims.entry)
        except MaintenanceError as error:
            log.warning("%s may have been renamed to %s: %s", claims.table, loaded.name, error)


def _recorded(
    state: StateStore, catalog: Catalog, loaded: LoadedTable
) -> tuple[TableClaims | None, Sequence[TableClaims]]:
    """The claims of this catalog entry, and those of the table under all its names."""
    identity = identity_of(catalog, loaded)
    entry = state.claims.of_entry(entry_of(catalog, loaded))
    if entry is not None and entry.copy == identity.copy and (entry.folders or entry.data_roots):
        return entry, (entry,)
    # This entry is read for the first time: the table may have had another name, or be known in another catalog.
    return entry, tuple(claims for claims in state.claims.touching(identity.location) if claims.copy == identity.copy)


def _claims(catalog: Catalog, loaded: LoadedTable, roots: Iterable[str], before: Iterable[TableClaims]) -> TableClaims:
    identity, document = identity_of(catalog, loaded), table_folders(catalog, loaded)
    home, known = identity.location, tuple(before)
    inside = {root for root in roots if _is_inside(root, home)}
    outside = {folder for folder in (*roots, *document.folders, *document.files_in) if not _is_inside(folder, home)}
    return TableClaims(
        catalog=catalog.id,
        table=loaded.name,
        uuid=identity.uuid,
        location=home,
        folders=frozenset(outside).union(*(claims.folders for claims in known)),
        data_roots=frozenset(inside).union(*(claims.data_roots for claims in known)),
        seen=next((claims.seen for claims in known if claims.is_looked_into), SeenHead()),
    )


def _is_inside(folder: str, home: str) -> bool:
    return touches(folder, home) and len(folder) >= len(home)


# Commands for people.  While a table with a claim cannot be loaded, no file in its folders is deleted.  Only a person
# can decide that its catalog is gone for good (``forget_claims``), or that an entry that was never read needs no files
# of other tables (``exclude_entry``) (rule: never-seen-tables-stop-their-bucket).

OpenCatalog = Callable[[CatalogId], Catalog | None]
"""Opens a catalog; ``None`` if there is none.  Raises MaintenanceError if it does not answer."""


def claims_near(handle: TableHandle) -> Sequence[TableClaims]:
    """The claims of other entries, of any catalog, that touch the table's folders.

    For a table that cannot be read, the recorded folders count; for an excluded table, only its own entry is known.

    Raises:
        PolicyError: there is no such table.
        StorageError: catalog or state store failed, and nothing is recorded of the table.
    """
    try:
        loaded = handle.load()
    except MaintenanceError:
        recorded = handle.state.claims.of_entry(Entry(handle.catalog.id, handle.table.key))
        if recorded is None:
            raise
        if recorded.is_excluded:
            return [recorded]
        return _touching(handle.state, recorded.entry, (recorded.location, *recorded.folders))
    return _near(handle, loaded)


def forget_claims(
    handle: TableHandle,
    catalog: str,
    table: TableName,
    warehouse: str | None,
    open_other: OpenCatalog,
    *,
    force: bool = False,
) -> TableClaims:
    """Forget the claim of an entry whose catalog is gone; the journal of the handle's table records who did this.

    ``force``: even if its catalog is configured but does not answer.

    Raises:
        PolicyError: there is no such claim, or there are several.
        OperationRefused: the table is still there, or may be.
        StorageError: catalog or state store failed.
    """
    loaded = handle.load()
    found = [claims for claims in _near(handle, loaded) if (claims.catalog.name, claims.table) == (catalog, table)]
    if warehouse is not None:
        found = [claims for claims in found if claims.catalog.warehouse == warehouse]
    if not found:
        raise PolicyError(f"there is no claim of {table} of catalog {catalog} at or around {handle.table}")
    if len(found) > 1:
        several = ", ".join(sorted(claims.catalog.warehouse for claims in found))
        raise PolicyError(f"several catalogs are named {catalog}: choose a warehouse with --by-warehouse: {several}")
    (claims,) = found
    _require_gone(claims, open_other, force=force)
    handle.state.claims.forget(claims.entry)
    _journal(handle, loaded, claims)
    return claims


def exclude_entry(catalog: Catalog, table: TableName, state: StateStore) -> TableClaims:
    """Record that an unreadable entry needs no file of another table, until it can be read again.

    Raises:
        PolicyError: there is no such table.
        OperationRefused: it can be read, or was read before, so its needs are known.
        StorageError: the state store failed.
    """
    table = _as_listed(catalog, table)
    excluded = TableClaims(catalog=catalog.id, table=table, uuid="", location="")
    recorded = state.claims.of_entry(excluded.entry)
    if recorded is not None and recorded.is_looked_into:
        raise OperationRefused(f"{table} was read before, so the files that it needs are known; nothing was changed")
    try:
        loaded = catalog.load(table)
        reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
        deque(References().follow(reader, loaded.metadata.snapshots.values()), maxlen=0)
    except (MaintenanceError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, PolicyError) and not (isinstance(error, TableNotFound) and table in _listed(catalog)):
            raise
        state.claims.record(excluded)
        return excluded
    raise OperationRefused(f"{table} can be read, so every pass knows which files it needs; nothing was changed")


def _as_listed(catalog: Catalog, table: TableName) -> TableName:
    """The listed table whose full name has this text, because a person cannot type every name part by part."""
    if table.is_plain or table in (listed := _listed(catalog)):
        return table
    return next((name for name in listed if str(name) == str(table)), table)


def _listed(catalog: Catalog) -> Sequence[TableName]:
    """The tables that a catalog lists, perhaps not all of them."""
    listed: list[TableName] = []
    with suppress(PartlyListed):
        listed.extend(catalog.list_tables())
    return listed


def _near(handle: TableHandle, loaded: LoadedTable) -> Sequence[TableClaims]:
    folders = map(normalise, owned_locations(loaded.metadata))
    return _touching(handle.state, entry_of(handle.catalog, loaded), folders)


def _touching(state: StateStore, own: Entry, folders: Iterable[str]) -> Sequence[TableClaims]:
    near = {claims.entry: claims for folder in folders for claims in state.claims.touching(folder)}
    return [claims for entry, claims in sorted(near.items()) if entry != own]


def _require_gone(claims: TableClaims, open_other: OpenCatalog, *, force: bool) -> None:
    name = f"{claims.table} of catalog {claims.catalog}"
    try:
        other = open_other(claims.catalog)
        if other is None:
            return
        other.load(claims.table)
    except TableNotFound:
        return  # passes wait for more proof; a person's decision counts at once
    except MaintenanceError as error:
        if force:
            return
        raise OperationRefused(
            f"it is unknown whether {name} is gone: {error}; remove the catalog from the configuration, or repeat this "
            "with --force"
        ) from error
    raise OperationRefused(
        f"{name} still exists, and may need files at this table's location; nothing was forgotten; drop it from its "
        "catalog first"
    )


def _journal(handle: TableHandle, loaded: LoadedTable, claims: TableClaims) -> None:
    handle.journal(
        loaded,
        f"claims: {user_name()} forgot that {claims.table} of catalog {claims.catalog} ({claims.catalog.warehouse}) "
        f"had files in {', '.join(sorted({claims.location, *claims.folders}))}",
    )
