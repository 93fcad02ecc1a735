"""Looks at every object of a table for rows that match, and says which places still store them.

The metadata are read before the listing, so a file that moves meanwhile is in one of them.  Then the head is read
again: if it moved, or an object vanished before it was read, what is new is looked at, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.neighbours import owned_locations
from icekeeper.engines.engine import Engine
from icekeeper.erasure.objects import ObjectKey, ObjectReader, Sighting, key_of
from icekeeper.erasure.places import Holder, Place, PlaceKey, Terms, What, certificate
from icekeeper.erasure.row_filter import RowFilter, Wanted
from icekeeper.erasure.search import FileToRead, Searched, checksum, search_files, search_tasks
from icekeeper.erasure.traces import Trace, entry_trace, partition_names, shortest_bound, summary_trace, text_trace
from icekeeper.errors import MaintenanceError, MetadataUnreadable, OperationRefused, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata, schema_digest
from icekeeper.metadata.table_reader import TableReader, delete_index, documents
from icekeeper.model import FileContent, ManifestEntry, ManifestFile
from icekeeper.operations.statistics.plan_statistics import RowFile
from icekeeper.policy import Policy
from icekeeper.report.activity import Progress
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import ReadableFile, identity_values, make_read_task, name_mapping
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import PathSet, is_local, is_under
from icekeeper.storage.storage import Storage

_MOST_ROUNDS = 5
_AT_ONCE = 16
# What a file is read with does not include what makes entries large.
_NO_METRICS: Mapping[str, Any] = dict.fromkeys(
    (
        *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
        *("lower_bounds", "upper_bounds", "split_offsets"),
    )
)


def prove(
    load: Callable[[], LoadedTable],
    wanted: Wanted,
    engine: Engine,
    *,
    policy_of: Callable[[LoadedTable], Policy],
    memory_of: Callable[[LoadedTable], TableMemory],
    catalog: str,
    read_all: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Look at every object of a table; returns the certificate of what still stores the wanted rows.

    Raises:
        PolicyError: the filter or the keys do not fit the table.
        OperationRefused: another table took its name meanwhile.
        StorageError: the catalog, the state or the engine failed.
    """
    search = Search(load, wanted, engine, progress, memory_of(load()).clock, read_all=read_all)
    search.run()
    loaded = search.loaded
    memory = memory_of(loaded)
    loads = {load.name: load for load in memory.staged_loads()}
    staged = {name: PathSet((*load.prefixes, *memory.staged_files(load))) for name, load in loads.items()}
    deletions = {name: PathSet(memory.files_to_delete(name)) for name in memory.unfinished_deletions()}
    terms = Terms(
        table=str(loaded.name),
        catalog=catalog,
        metadata=loaded.metadata,
        policy=policy_of(loaded),
        now_ms=memory.clock(),
        pinned=[(pin.snapshot_id, pin.expires_ms) for pin in memory.pins()],
        loads=loads,
        wanted=wanted,
    )
    return certificate(
        terms,
        search.places(staged, deletions),
        search.unknown(),
        search.objects(),
        at_ms=search.at_ms,
        lists_versions=search.lists_versions,
        facts={
            "metadata_location": loaded.metadata_location,
            "moved": search.moved,
            "rows_read": search.rows_read,
            "rows_excluded": search.rows_excluded,
        },
    )


class Search:
    """The objects of a table, and what was found in them."""

    def __init__(
        self,
        load: Callable[[], LoadedTable],
        wanted: Wanted,
        engine: Engine,
        progress: Progress,
        now_ms: Callable[[], int],
        *,
        read_all: bool,
    ) -> None:
        self._load, self._engine, self._progress = load, engine, progress
        self._now_ms, self._read_all = now_ms, read_all
        self.loaded = load()
        self.at_ms = now_ms()
        self.filter = RowFilter(wanted, self.loaded.metadata.current_schema, self.at_ms)
        self.filter.require_columns()
        self.moved = self.rows_read = self.rows_excluded = 0
        self.lists_versions = True
        self.listing: dict[ObjectKey, ListedObject] = {}
        self.entries: dict[ObjectKey, tuple[int, ManifestEntry]] = {}
        self.live: dict[ObjectKey, set[str]] = defaultdict(set)
        """Data or delete file → the manifests in which it is live."""
        self.manifests: dict[int, dict[str, ManifestFile]] = {}
        """Snapshot id → its manifests by path."""
        self._decoded: set[str] = set()
        self.lost: dict[str, str] = {}
        """Manifest lists and manifests that cannot be read: path → why."""
        self.found: dict[ObjectKey, Sighting] = defaultdict(Sighting)

    @property
    def storage(self) -> Storage:
        return Storage(self.loaded.io_properties)

    def run(self) -> None:
        """Look at everything, again at what is new until nothing moved meanwhile.

        Raises:
            OperationRefused: another table took its name.
            StorageError: the catalog or the engine failed.
        """
        for number in range(_MOST_ROUNDS):
            self._follow()
            self.at_ms = self._now_ms()
            self._list()
            vanished = self._look()
            now, before = self._load(), self.loaded
            for what, digest in (("its schema was changed", schema_digest), ("it was replaced", _uuid)):
                if digest(now.metadata) != digest(before.metadata):
                    raise OperationRefused(f"{now.name}: {what} while its objects were read; call again")
            has_moved = now.metadata_location != before.metadata_location
            self.moved += has_moved
            if (not has_moved and not vanished) or number == _MOST_ROUNDS - 1:
                break
            self.loaded = now
        # A file that the listing lacks may have moved to where nothing was looked at, or is behind a link.
        lacking = [path for path in self._unlisted() if has_moved or self._is_there(path)]
        for path in [*vanished, *lacking]:
            self.listing[key_of(path)] = ListedObject(path, 0, None)
            self._unknown(path, f"{path} is not listed, or vanished before it was read")

    # What the metadata say.

    def _follow(self) -> None:
        """Read the manifests of snapshots that are new, and the traces in them."""
        metadata = self.loaded.metadata
        reader = TableReader(metadata, self.storage.read)
        self.lost = {}
        for snapshot in metadata.snapshots.values():
            if snapshot.snapshot_id in self.manifests:
                continue
            try:
                listed = reader.manifests(snapshot)
            except MetadataUnreadable as error:
                self.lost[snapshot.manifest_list or self.loaded.metadata_location] = str(error)
                continue
            self.manifests[snapshot.snapshot_id] = {manifest.manifest_path: manifest for manifest in listed}
            for manifest in listed:
                spec = metadata.specs.get(manifest.partition_spec_id)
                if spec is not None and snapshot.manifest_list and summary_trace(self.filter, manifest, spec):
                    self.found[key_of(snapshot.manifest_list)].whats[What.BOUNDS] = 0
        listed_now = (self.manifests[i] for i in metadata.snapshots if i in self.manifests)
        new = {path: m for listed_ in listed_now for path, m in listed_.items() if path not in self._decoded}
        with WorkThreads(_AT_ONCE, thread_name_prefix="erased") as pool:
            for start in range(0, len(new), _AT_ONCE):
                some = list(new.values())[start : start + _AT_ONCE]
                for manifest, entries in zip(some, pool.map(self._entries, some), strict=True):
                    if isinstance(entries, str):
                        self.lost[manifest.manifest_path] = entries
                    else:
                        self._decoded.add(manifest.manifest_path)
                        self._note(manifest.manifest_path, "", manifest.partition_spec_id, entries)

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry] | str:
        """The entries of a manifest, or why it cannot be read."""
        try:
            reader = TableReader(self.loaded.metadata, self.storage.read)
            return [entry for _, entries in reader.entries([manifest]) for entry in entries]
        except MetadataUnreadable as error:
            return str(error)

    def _note(self, manifest: str, version: str, spec_id: int, entries: Iterable[ManifestEntry]) -> None:
        """Note the files of a manifest, or of an older version of it, and the traces in its entries."""
        metadata, sighting = self.loaded.metadata, self.found[key_of(manifest, version)]
        spec, shortest = metadata.specs[spec_id], shortest_bound(metadata)
        names = partition_names(metadata, self.filter)
        for entry in entries:
            key = key_of(entry.file.file_path)
            if entry.is_live or key not in self.entries:
                self.entries[key] = spec_id, replace(entry, file=replace(entry.file, **_NO_METRICS))
            if entry.is_live and manifest in self._decoded and not version:
                self.live[key].add(manifest)
            trace = entry_trace(self.filter, entry.file, spec, shortest)
            if trace is Trace.CERTAIN or text_trace(self.filter, names, entry.file.file_path):
                sighting.whats[What.BOUNDS] = 0
            elif trace is Trace.POSSIBLE:
                sighting.possible.add(key)

    # What the store has.

    def _list(self) -> None:
        """List the table's locations, and look up what metadata name elsewhere."""
        metadata, storage = self.loaded.metadata, self.storage
        self.listing, locations = {}, owned_locations(metadata)
        for location in locations:
            try:
                if not storage.can_list(location):
                    raise StorageError(f"{location} cannot be listed here, so objects that no metadata name are unseen")
                found = list(storage.list(location))
                older = storage.older_versions(location)
            except StorageError as error:
                self.listing[key_of(location)] = ListedObject(location, 0, None)
                self._unknown(location, str(error))
                continue
            self.lists_versions &= older is not None
            self.listing.update((key_of(o.path, o.version), o) for o in (*found, *(older or ())))
        self._listed = [location for location in locations if key_of(location) not in self.listing]
        elsewhere = {key: path for key, path in self._named() if not any(is_under(path, at) for at in self._listed)}
        with WorkThreads(_AT_ONCE, thread_name_prefix="erased") as pool:
            for key, status in zip(elsewhere, pool.map(self._status, elsewhere.values()), strict=True):
                if status is not None:
                    self.listing[key] = status

    def _named(self) -> Iterator[tuple[ObjectKey, str]]:
        """What the metadata name and no listing has."""
        of_files = (entry.file.file_path for _, entry in self.entries.values())
        documents_ = documents(self.loaded.metadata, self.loaded.metadata_location)
        for path in (*documents_, *self._decoded, *of_files):
            if (key := key_of(path)) not in self.listing:
                yield key, path

    def _unlisted(self) -> Iterator[str]:
        """The data and delete files that the head needs, and that no listing has."""
        kept = {path for i in self.loaded.metadata.snapshots for path in self.manifests.get(i, ())}
        return (path for key, path in self._named() if not kept.isdisjoint(self.live.get(key, ())))

    def _is_there(self, path: str) -> bool:
        try:
            return self.storage.size(path) is not None
        except StorageError:
            return True

    def _status(self, path: str) -> ListedObject | None:
        try:
            return self.storage.status(path)
        except StorageError as error:
            self._unknown(path, str(error))
            return ListedObject(path, 0, None)

    def _look(self) -> list[str]:
        """Look at the objects of the listing that are new; returns the paths that vanished before."""
        storage, metadata = self.storage, self.loaded.metadata
        reader = ObjectReader(metadata, storage, self.filter, self._note)
        files, vanished = list[FileToRead](), list[str]()
        new = [key for key in self.listing if self._is_new(key)]
        for done, key in enumerate(new):
            listed = self.listing[key]
            sighting = self.found[key]
            try:
                if not listed.version and is_local(listed.path):
                    sighting.etag = checksum(listed.path, storage)
                file = self._known(key, listed)
                if file is None and (listed.version or listed.path not in self._decoded):
                    file = reader.look(listed, sighting)
                files += [] if file is None else [file]
            except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
                self._failed(listed, str(error), vanished)
            sighting.signature = (listed.size, listed.etag, listed.modified_ms)
            self._progress("erased: objects", done + 1, len(new))
        tasks = search_tasks(files, self.filter, self.loaded.io_properties, read_all=self._read_all)
        whole = len(tasks)
        for found in self._engine.map(search_files, tasks, lambda done: self._progress("erased: files", done, whole)):
            for searched in found:
                self._searched(searched, vanished)
        return vanished

    def _is_new(self, key: ObjectKey) -> bool:
        """Whether an object was not looked at; what was found in an object that it replaced is forgotten."""
        listed, before = self.listing[key], self.found[key].signature
        if before is None:
            return not self.found[key].unknown
        if before != (listed.size, listed.etag, listed.modified_ms):
            self.found[key] = Sighting()
        return self.found[key].signature is None

    def _known(self, key: ObjectKey, listed: ListedObject) -> FileToRead | None:
        """How to read a file that a manifest names; ``None``: none does, or it holds vectors.

        Raises:
            StorageError: it is encrypted.
        """
        found = self.entries.get((*key[:2], ""))
        if found is None or found[1].file.file_format.upper() == "PUFFIN":
            return None
        spec_id, entry = found
        if entry.file.key_metadata is not None:
            raise StorageError(f"{listed.path} is encrypted")
        metadata, is_data = self.loaded.metadata, entry.file.content is FileContent.DATA
        readable = ReadableFile(
            listed.path,
            entry.file.file_format,
            identity_values(metadata, spec_id, entry.file.partition) if is_data else {},
            name_mapping=name_mapping(metadata),
            by_position=metadata.current_schema["fields"] if is_data else (),
            file_size_in_bytes=listed.size,
        )
        return FileToRead(readable, listed.size, is_data, listed.version)

    def _searched(self, searched: Searched, vanished: list[str]) -> None:
        key = key_of(searched.path, searched.version)
        self.rows_read += searched.read
        self.rows_excluded += searched.excluded
        if searched.rows:
            entry = self.entries.get((*key[:2], ""))
            is_delete = entry is not None and entry[1].file.content is not FileContent.DATA
            self.found[key].whats[What.KEYS if is_delete else What.ROWS] = searched.rows
        if searched.unknown:
            self._failed(self.listing[key], searched.unknown, vanished)

    def _failed(self, listed: ListedObject, why: str, vanished: list[str]) -> None:
        """Note that an object could not be read, or that it is gone."""
        status: ListedObject | None = listed
        if not listed.version:
            try:
                status = self.storage.status(listed.path)
            except StorageError as error:
                why = str(error)
        if status is None:
            vanished.append(listed.path)
        else:
            self._unknown(listed.path, why, listed.version)

    def _unknown(self, path: str, why: str, version: str = "") -> None:
        self.found[key_of(path, version)].unknown = why if path in why else f"{path} cannot be read: {why}"

    # What it means.

    def objects(self) -> list[dict[str, Any]]:
        """The objects that were looked at, by path, as in the certificate."""
        return [
            {"path": o.path, "size": o.size, "etag": (o.etag or self.found[key].etag).strip('"')}
            | ({"version": o.version} if o.version else {})
            for key, o in sorted(self.listing.items())
            if o.modified_ms is not None or o.size
        ]

    def unknown(self) -> dict[str, str]:
        """The objects of which it is unknown what they hold, or what they name: path → why."""
        return self.lost | {o.path: why for key, o in self.listing.items() if (why := self.found[key].unknown)}

    def places(self, loads: Mapping[str, PathSet], deletions: Mapping[str, PathSet]) -> dict[PlaceKey, Place]:
        """The places that store matching rows, or values of them.

        ``loads`` and ``deletions``: the files of staged loads and of unfinished deletions, by name.
        """
        self._settle()
        kept_by, places = self._kept_by(), dict[PlaceKey, Place]()
        log = {key_of(str(entry["metadata-file"])) for entry in self.loaded.metadata.metadata_log}
        staged = [(Holder.STAGED, name, paths) for name, paths in loads.items()]
        waiting = [(Holder.DELETION, name, paths) for name, paths in deletions.items()]

        def apart(key: ObjectKey, path: str) -> tuple[Holder, str]:
            """What holds an object that no snapshot needs."""
            if key == key_of(self.loaded.metadata_location):
                return Holder.CURRENT, ""
            if key in log:
                return Holder.LOG, ""
            held = ((holder, name) for holder, name, paths in (*staged, *waiting) if paths.may_contain(path))
            return next(held, (Holder.ORPHAN, ""))

        for key, listed in self.listing.items():
            for what, rows in self.found[key].whats.items():
                for place_key, snapshot_ids, count in self._holders(key, listed, what, rows, kept_by, apart):
                    place = places.setdefault(place_key, Place())
                    place.objects[listed.path] = count
                    place.snapshot_ids.update(snapshot_ids)
                    times = (place.newest_ms, listed.modified_ms)
                    place.newest_ms = None if None in times else max(t for t in times if t is not None)
        return places

    def _settle(self) -> None:
        """Decide about traces that depend on other objects."""
        metadata = self.loaded.metadata
        holding = [key for key in self.listing if What.ROWS in self.found[key].whats]
        clean = {key for key in self.listing if not self.found[key].whats and not self.found[key].unknown}
        lists = set().union(*(self.live[key] for key in holding))
        dirty = {i for i, listed in self.manifests.items() if not lists.isdisjoint(listed)}
        names = partition_names(metadata, self.filter)
        for key, listed in self.listing.items():
            sighting = self.found[key]
            if sighting.possible - clean:
                sighting.whats[What.BOUNDS] = 0
            if any(i in dirty or i not in metadata.snapshots for i in sighting.sketches):
                sighting.whats[What.SKETCH] = 0
            if text_trace(self.filter, names, listed.path.removeprefix(metadata.location)):
                sighting.whats.setdefault(What.NAME, 0)

    def _kept_by(self) -> dict[ObjectKey, set[int]]:
        """Manifest list, manifest or statistics file → the snapshots of the head that need it."""
        metadata, kept = self.loaded.metadata, defaultdict[ObjectKey, set[int]](set)
        for snapshot_id, listed in self.manifests.items():
            if (snapshot := metadata.snapshots.get(snapshot_id)) is not None:
                for path in (*listed, *([snapshot.manifest_list] if snapshot.manifest_list else [])):
                    kept[key_of(path)].add(snapshot_id)
        for raw in (*metadata.statistics, *metadata.partition_statistics):
            if int(raw["snapshot-id"]) in metadata.snapshots:
                kept[key_of(str(raw["statistics-path"]))].add(int(raw["snapshot-id"]))
        return kept

    def _holders(
        self,
        key: ObjectKey,
        listed: ListedObject,
        what: What,
        rows: int,
        kept_by: Mapping[ObjectKey, set[int]],
        apart: Callable[[ObjectKey, str], tuple[Holder, str]],
    ) -> Iterator[tuple[PlaceKey, Iterable[int], int]]:
        """Each place of an object, with the snapshots that keep it, and its rows there."""
        if listed.version:
            yield PlaceKey(Holder.VERSION, "", what), (), rows
            return
        keeping = set(kept_by.get(key, ())).union(*(kept_by.get(key_of(m), ()) for m in self.live.get(key, ())))
        refs = {ref.name: ref.snapshot_id for ref in self.loaded.metadata.refs.values() if ref.snapshot_id in keeping}
        for name, snapshot_id in refs.items():
            if what is not What.ROWS:
                yield PlaceKey(Holder.REF, name, what), [snapshot_id], rows
                continue
            seen = self._visible(key, snapshot_id)
            if seen:
                yield PlaceKey(Holder.REF, name, What.VISIBLE), [snapshot_id], seen
            if seen < rows:
                yield PlaceKey(Holder.REF, name, What.HIDDEN), [snapshot_id], rows - seen
        if others := keeping.difference(refs.values()):
            yield PlaceKey(Holder.SNAPSHOTS, "", what), others, rows
        if not keeping:
            yield PlaceKey(*apart(key, listed.path), what), (), rows

    def _visible(self, key: ObjectKey, snapshot_id: int) -> int:
        """The matching rows of a data file that readers of a snapshot see; all, if its deletes cannot be read."""
        metadata, rows = self.loaded.metadata, self.found[key].whats[What.ROWS]
        spec_id, entry = self.entries[key]
        file, number = entry.file, entry.sequence_number or 0
        try:
            reader = TableReader(metadata, self.storage.read)
            deletes = delete_index(reader, list(self.manifests[snapshot_id].values()))
            applying = tuple(deletes.applying_to(file, spec_id, number))
            if not applying:
                return rows
            sizes = file.record_count, file.file_size_in_bytes, file.first_row_id
            planned = RowFile(file.file_path, file.file_format, file.partition, *sizes, spec_id, number, applying)
            schema = {"type": "struct", "fields": self.filter.fields}
            task = make_read_task(metadata, [planned], schema, self.loaded.io_properties)
            ids = [column.field_id for column in self.filter.columns]
            with closing(read_rows(task, self.storage, Tally())) as batches:
                return sum(self.filter.count(batch, ids) for batch in batches)
        except (MaintenanceError, pa.ArrowException, OSError, ValueError):
            return rows


def _uuid(metadata: TableMetadata) -> str:
    return metadata.uuid or ""
