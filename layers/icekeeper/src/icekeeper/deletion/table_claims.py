"""Records in which folders a table has files, and lets people list and forget such claims
(rule: ask-neighbours-before-deleting)."""

from __future__ import annotations

import getpass
import logging
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.neighbours import owned_locations, table_folders
from icekeeper.errors import MaintenanceError, MetadataUnreadable, OperationRefused, PolicyError, is_gone
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import portions
from icekeeper.metadata.table_reader import References, TableReader
from icekeeper.model import ManifestFile, TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.stores import Footprint, TableHandle, data_folders
from icekeeper.state.claims import Entry, TableClaims, touches
from icekeeper.state.store import PassRecord, StateStore
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

# Reads the manifests that were added since the last pass, to learn in which folders the table has files.
#
# A table may have files in another table's folder.  Whoever deletes there must know it, also when a pass over the guest
# only expires snapshots or does nothing.  Up to where manifests were read is recorded, so that each is read only once.

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")

# Below, the manifests of a pass fit into its cache, or nearly; above, its operations read most of them again anyway.
_BY_ENGINE_BYTES = 64 * 1024 * 1024
_TASK_BYTES = 8 * 1024 * 1024
# Entries are decoded in Python: a byte of them takes as long as so many of a data file.
_DATA_BYTES_PER_BYTE = 8


def read_new_manifests(context: OperationContext, loaded: LoadedTable, before: Iterable[TableClaims]) -> bool:
    """Take note in the pass's footprint of every file of the manifests that were added since ``before``: in this
    process, or of many manifests by all workers.

    Returns whether all of them were there: one that is gone stops neither readers of the others nor this
    (rule: read-each-guest-manifest-once).

    Raises:
        MetadataUnreadable: a manifest list or manifest is damaged.
        StorageError: a store or the engine broke.
    """
    reader = context.reader(loaded)
    known = list(before)
    sequence_number = max((one.seen_sequence_number for one in known), default=-1)
    seen_ms = max((one.seen_ms for one in known), default=-1)
    if _went_back(reader.metadata, sequence_number, seen_ms):
        sequence_number = seen_ms = -1
    seen = sequence_number
    snapshots = reader.metadata.snapshots
    new = [s for s in snapshots.values() if s.sequence_number > sequence_number or s.timestamp_ms > seen_ms]
    lists, listed = _that_are_there(lambda some: list(reader.manifests_of(some)), new)
    manifests = _new_manifests(reader, chain.from_iterable(lists), {snapshot.snapshot_id for snapshot in new}, seen)
    if context.planned is None and sum(m.manifest_length for m in manifests) > _BY_ENGINE_BYTES:
        return _see_by_engine(context, loaded, manifests) and listed
    return _see(reader, manifests) and listed


def _see(reader: TableReader, manifests: Sequence[ManifestFile]) -> bool:
    """Read the paths of all live entries; whether all manifests were there."""
    return _that_are_there(lambda some: deque(reader.live_paths(some), maxlen=0), manifests)[1]


def _that_are_there(read: Callable[[Sequence[_Item]], _Read], items: Sequence[_Item]) -> tuple[Sequence[_Read], bool]:
    """Read all items at once, and where a file is gone, one by one all that are there; whether none is gone.

    Raises:
        MetadataUnreadable: one is damaged.
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
            log.warning("%s: what it named is not known", error)
    return found, False


@dataclass(frozen=True, slots=True)
class _Look:
    """Some manifests to read; ``own``: the folders in which the table keeps data files and nothing else."""

    storage: Storage
    document: Mapping[str, Any]
    """What a reader asks of the table's metadata; not the snapshots, which can be many."""
    manifests: tuple[ManifestFile, ...]
    own: tuple[str, ...]

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return _DATA_BYTES_PER_BYTE * sum(manifest.manifest_length for manifest in self.manifests)


def _see_by_engine(context: OperationContext, loaded: LoadedTable, manifests: Sequence[ManifestFile]) -> bool:
    storage, own = context.storage(loaded), data_folders(loaded.metadata)
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
    """The roots of the files of live entries, whether all manifests were there, and what could not be read."""
    seen = Footprint()
    reader = TableReader(TableMetadata(look.document), look.storage.read, partial(seen.see, own=look.own))
    try:
        were_there = _see(reader, look.manifests)
    except MetadataUnreadable as error:
        return seen.roots(), True, str(error)
    return seen.roots(), were_there, None


def newest_marks(metadata: TableMetadata) -> tuple[int, int]:
    """The sequence number and the time (epoch milliseconds) up to which the table's manifests are read by now."""
    return metadata.last_sequence_number, max(metadata.snapshot_times_ms, default=-1)


def _went_back(metadata: TableMetadata, sequence_number: int, seen_ms: int) -> bool:
    """Whether the table is at another state than one that follows on what was seen up to these marks
    (rule: read-each-guest-manifest-once).

    Its catalog entry was restored or registered anew: its sequence numbers begin again below those that were seen.
    """
    return metadata.last_sequence_number < sequence_number or any(
        0 < s.sequence_number <= sequence_number and s.timestamp_ms > seen_ms for s in metadata.snapshots.values()
    )


def _new_manifests(
    reader: TableReader, listed: Iterable[ManifestFile], ids: Collection[int], sequence_number: int
) -> Sequence[ManifestFile]:
    """Those of the ``listed`` manifests that came since; ``ids``: of the snapshots that list them."""
    snapshots = reader.metadata.snapshots
    found: dict[str, ManifestFile] = {}
    for manifest in listed:
        adder = manifest.added_snapshot_id
        # Manifests of v1 have no sequence number; when one came whose snapshot is gone is not known.
        is_new_v1 = manifest.sequence_number == 0 and (adder in ids or adder not in snapshots)
        if manifest.may_have_live_files and (manifest.sequence_number > sequence_number or is_new_v1):
            found[manifest.manifest_path] = manifest
    return list(found.values())


# Records in which folders a table has files (its claims), for passes over other tables (``state/claims.py``).
#
# A pass over another table reads them before it deletes in one of these folders.

_NOT_RECORDED = "%s: where it has files could not be recorded: %s"


def entry_of(catalog: Catalog, loaded: LoadedTable) -> Entry:
    """The catalog entry through which a table was loaded."""
    return catalog.name, catalog.warehouse, loaded.name.key


def begin_claims(context: OperationContext, loaded: LoadedTable) -> None:
    """Read the table's new manifests at the beginning of a pass, dry runs too, and record where its files lie.

    Never fails: a table whose manifests cannot be read stays one that nobody has looked at.
    """
    try:
        known = _recorded(context.state, context.catalog, loaded)
        marks: tuple[int, int] | None = None
        try:
            if read_new_manifests(context, loaded, known[1]):
                marks = newest_marks(loaded.metadata)
        except MaintenanceError as error:
            log.warning("%s: where all of its files lie is not known: %s", context.table, error)
        _record(context.state, context.catalog, loaded, known, context.footprint.news(), marks)
    except MaintenanceError as error:
        log.warning(_NOT_RECORDED, context.table, error)


def is_seen(claims: TableClaims | None, loaded: LoadedTable) -> bool:
    """Whether the manifests of a table's newest state had been read when the claims of its entry were recorded."""
    if claims is None or claims.uuid != (loaded.metadata.uuid or ""):
        return False
    return (claims.seen_sequence_number, claims.seen_ms) == newest_marks(loaded.metadata)


def look_into(context: OperationContext, catalog: Catalog, loaded: LoadedTable) -> frozenset[str]:
    """Read the manifests that another table got since anybody looked at it, and record where its files lie.

    Returns the normalised folders outside of its location in which it has files.

    Raises:
        MetadataUnreadable: a manifest list or manifest is damaged; one that is gone protects nothing.
        StorageError: a store failed.
    """
    known, seen = _recorded(context.state, catalog, loaded), Footprint()
    is_whole = read_new_manifests(replace(context, catalog=catalog, footprint=seen, planned=None), loaded, known[1])
    marks = newest_marks(loaded.metadata) if is_whole else None
    return _record(context.state, catalog, loaded, known, seen.roots(), marks).folders


def remember_claims(context: OperationContext) -> None:
    """Record the folders in which an operation saw files first; never fails, so that its outcome is told."""
    roots = context.footprint.news()
    if not roots:
        return
    try:
        loaded = context.load()
        known = _recorded(context.state, context.catalog, loaded)
        _record(context.state, context.catalog, loaded, known, roots, None)
    except MaintenanceError as error:
        log.warning(_NOT_RECORDED, context.table, error)


def record_first_look(
    state: StateStore, catalog: Catalog, loaded: LoadedTable, before: Iterable[TableClaims] = ()
) -> None:
    """Record where a table has files by its document, and what is recorded of it under other names (``before``).

    Raises:
        StorageError: the state store failed.
    """
    state.claims.record(_claims(catalog, loaded, (), before))


def first_look(catalog: Catalog, loaded: LoadedTable, recorded: TableClaims | None) -> TableClaims | None:
    """What to record of where a table has files by its document alone; ``None``: the same as is ``recorded`` already.

    Of a table that is known only its own folders are compared: what its snapshots name, the next look records.
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
    """What is recorded of the tables of a catalog.

    Raises:
        StorageError: the state store failed.
    """
    return {one.table: one for one in state.claims.of_catalog(catalog.name, catalog.warehouse)}


def known_data_roots(state: StateStore, catalog: Catalog, loaded: LoadedTable) -> frozenset[str]:
    """Normalised folders inside the table's location in which any pass has found data files of it.

    Raises:
        StorageError: the state store failed.
    """
    _, before = _recorded(state, catalog, loaded)
    return frozenset().union(*(one.data_roots for one in before))


def _record(
    state: StateStore,
    catalog: Catalog,
    loaded: LoadedTable,
    known: tuple[TableClaims | None, Sequence[TableClaims]],
    roots: Iterable[str],
    marks: tuple[int, int] | None,
) -> TableClaims:
    """Record where a table has files by its document, and by the ``roots`` of data files that were seen.

    What is ``known`` of the same table is kept, because a file elsewhere may be older than the history that is left.
    ``marks``: the sequence number and the time (epoch milliseconds) up to which its manifests have been read.
    """
    entry, before = known
    now = _claims(catalog, loaded, roots, before)
    if marks is not None:
        now = replace(now, seen_sequence_number=marks[0], seen_ms=marks[1])
    if now != entry:
        state.claims.record(now, replaces=entry)
    return now


def _recorded(
    state: StateStore, catalog: Catalog, loaded: LoadedTable
) -> tuple[TableClaims | None, Sequence[TableClaims]]:
    """The claims of this catalog entry, and those of the same table under all its names."""
    identity = identity_of(catalog, loaded)
    entry = state.claims.of_entry(entry_of(catalog, loaded))
    if entry is not None and entry.copy == identity.copy and (entry.folders or entry.data_roots):
        return entry, (entry,)
    # A first look at this entry: the table may have had another name, or be known in another catalog.
    return entry, tuple(one for one in state.claims.touching(identity.location) if one.copy == identity.copy)


def _claims(catalog: Catalog, loaded: LoadedTable, roots: Iterable[str], before: Iterable[TableClaims]) -> TableClaims:
    identity, document = identity_of(catalog, loaded), table_folders(catalog, loaded)
    home, known = identity.location, tuple(before)
    inside = {root for root in roots if _is_inside(root, home)}
    outside = {folder for folder in (*roots, *document.folders, *document.files_in) if not _is_inside(folder, home)}
    return TableClaims(
        catalog=catalog.name,
        warehouse=catalog.warehouse,
        table=loaded.name,
        uuid=identity.uuid,
        location=home,
        folders=frozenset(outside).union(*(one.folders for one in known)),
        data_roots=frozenset(inside).union(*(one.data_roots for one in known)),
        seen_sequence_number=max((one.seen_sequence_number for one in known), default=-1),
        seen_ms=max((one.seen_ms for one in known), default=-1),
    )


def _is_inside(folder: str, home: str) -> bool:
    return touches(folder, home) and len(folder) >= len(home)


# Lets people see the claims of other tables near a table, forget those of catalogs that are gone, and exclude entries.
#
# While a table with such a claim cannot be loaded, no file in its folders is deleted.  That its catalog is gone for
# good only a person can say (rule: ask-neighbours-before-deleting), and so it is with an entry that cannot be read, and
# never was (rule: never-seen-tables-stop-their-bucket).

OpenCatalog = Callable[[str, str], Catalog | None]
"""Opens a catalog by name and warehouse; ``None`` if there is none.  Raises MaintenanceError if it does not answer."""


def claims_near(handle: TableHandle) -> Sequence[TableClaims]:
    """The claims of other entries, of any catalog, that touch the table's folders.

    Raises:
        PolicyError: there is no such table.
        StorageError: catalog or state store failed.
    """
    return _near(handle, handle.load())


def forget_claims(
    handle: TableHandle,
    catalog: str,
    table: TableName,
    warehouse: str | None,
    open_other: OpenCatalog,
    *,
    force: bool = False,
) -> TableClaims:
    """Forget the claim of an entry whose catalog is gone, and write who did it into the journal of the handle's table.

    ``force``: also when its catalog is configured, but does not answer or has no table of that name (perhaps renamed).

    Raises:
        PolicyError: no such claim, or several.
        OperationRefused: the table is still there, or may be.
        StorageError: catalog or state store failed.
    """
    loaded = handle.load()
    found = [one for one in _near(handle, loaded) if (one.catalog, one.table) == (catalog, table)]
    if warehouse is not None:
        found = [one for one in found if one.warehouse == warehouse]
    if not found:
        raise PolicyError(f"{table} of catalog {catalog} was not seen to have files at or around {handle.table}")
    if len(found) > 1:
        several = ", ".join(sorted(one.warehouse for one in found))
        raise PolicyError(f"catalogs of the name {catalog} have the warehouses {several}; choose one by --by-warehouse")
    (claims,) = found
    _require_gone(claims, open_other, force=force)
    handle.state.claims.forget(claims.entry)
    _tell(handle, loaded, claims)
    return claims


def exclude_entry(catalog: Catalog, table: TableName, state: StateStore) -> TableClaims:
    """Record that an entry which cannot be read needs no file of another table, until it can be read again.

    Raises:
        PolicyError: there is no such table.
        OperationRefused: it can be read, or was looked into before: what it needs is known.
        StorageError: the state store failed.
    """
    table = _as_listed(catalog, table)
    excluded = TableClaims(catalog=catalog.name, warehouse=catalog.warehouse, table=table, uuid="", location="")
    recorded = state.claims.of_entry(excluded.entry)
    if recorded is not None and recorded.is_looked_into:
        raise OperationRefused(f"{table} was looked into before, so what it needs is known; nothing was changed")
    try:
        loaded = catalog.load(table)
        reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
        deque(References().follow(reader, loaded.metadata.snapshots.values()), maxlen=0)
    except PolicyError:
        raise
    except (MaintenanceError, AttributeError, KeyError, TypeError, ValueError):
        state.claims.record(excluded)
        return excluded
    raise OperationRefused(f"{table} can be read, so every pass knows what it needs; nothing was changed")


def _as_listed(catalog: Catalog, table: TableName) -> TableName:
    """The name of the catalog that has this text: a person cannot write each part of every name."""
    if table.is_plain:
        return table
    listed = catalog.list_tables()
    return table if table in listed else next((one for one in listed if str(one) == str(table)), table)


def _near(handle: TableHandle, loaded: LoadedTable) -> Sequence[TableClaims]:
    own = entry_of(handle.catalog, loaded)
    folders = map(normalise, owned_locations(loaded.metadata))
    near = {one.entry: one for folder in folders for one in handle.state.claims.touching(folder)}
    return [one for entry, one in sorted(near.items()) if entry != own]


def _require_gone(claims: TableClaims, open_other: OpenCatalog, *, force: bool) -> None:
    name = f"{claims.table} of catalog {claims.catalog}"
    try:
        other = open_other(claims.catalog, claims.warehouse)
        if other is None:
            return
        other.load(claims.table)
    except MaintenanceError as error:
        if force:
            return
        raise OperationRefused(
            f"whether {name} is gone is not known: {error}; every pass asks a catalog that answers, and forgets "
            "what is gone; else take the catalog out of the configuration, or repeat this with --force"
        ) from error
    raise OperationRefused(
        f"{name} is still there, and may need files at this table's location; nothing was forgotten; drop it from its "
        "catalog first"
    )


def _tell(handle: TableHandle, loaded: LoadedTable, claims: TableClaims) -> None:
    now_ms = handle.clock()
    summary = (
        f"claims: {_who()} forgot that {claims.table} of catalog {claims.catalog} ({claims.warehouse}) had files in "
        f"{', '.join(sorted({claims.location, *claims.folders}))}"
    )
    handle.state.record_pass(
        PassRecord(
            identity=identity_of(handle.catalog, loaded),
            run_id=str(uuid.uuid4()),
            started_ms=now_ms,
            finished_ms=now_ms,
            status="succeeded",
            summary=summary,
            engine="none",
        )
    )


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"
