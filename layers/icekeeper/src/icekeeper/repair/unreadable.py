"""Finds snapshots whose manifest list or manifests cannot be read, and the lost files that can be made again.

A file that is gone is taken from an older version of the object, or from a file of the same name below the table's
locations, if its content fits what refers to it.  Else a manifest list is rebuilt where that is proven
(:mod:`.lists`).  A manifest is never rebuilt.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.neighbours import owned_locations
from icekeeper.errors import MetadataUnreadable, is_damage
from icekeeper.machine.clock import HOUR_MS
from icekeeper.machine.foreign_bytes import require_fitting
from icekeeper.metadata.avro_files import open_avro
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest, decode_manifest_list, manifest_from_file
from icekeeper.metadata.table_reader import ReadBytes, TableReader
from icekeeper.model import EntryStatus, ManifestContent, ManifestFile, Nothing
from icekeeper.operations.expiry.unreferenced import way_out
from icekeeper.repair.lists import ReadManifest, of_file, proven_by_child, proven_by_parent, rebuilt_list
from icekeeper.repair.plan import FileMend, Unmended
from icekeeper.repair.rollback import plan_rollback
from icekeeper.storage.copies import versions_of
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage
from icekeeper.text import counted
from icekeeper.verification.checks import ProblemKind, manifest_problems, summary_problems
from icekeeper.verification.verify import sizes_of

# A search for the manifests of a lost list reads at most this many files, those nearest to the commit.
_MOST_READ = 1_000
_NO_SNAPSHOT = -1
_SEARCHED_MS = 24 * HOUR_MS


@dataclass(slots=True)
class _Table:
    """A table with the lost files that were found or rebuilt."""

    loaded: LoadedTable
    storage: Storage
    stored: ReadBytes
    """Reads a file of the store."""
    made: dict[str, FileMend] = field(default_factory=dict)
    lists: dict[int, list[ManifestFile]] = field(default_factory=dict)
    """Snapshot id → the manifests of its list, if that can be read."""
    damage: dict[str, str] = field(default_factory=dict)
    """Path of a manifest that cannot be read → why."""
    present: set[str] = field(default_factory=set)
    """The listed manifests that exist."""
    why: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Snapshot id → the first file of it that cannot be read, and why."""

    @property
    def metadata(self) -> TableMetadata:
        return self.loaded.metadata

    @property
    def reader(self) -> TableReader:
        return TableReader(self.metadata, self.read)

    def read(self, path: str) -> bytes:
        made = self.made.get(path)
        return self.stored(path) if made is None else made.data

    def make(self, path: str, data: bytes, sentence: str) -> None:
        self.made[path] = FileMend(path=path, data=data, sentence=sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """What a search found."""

    files: tuple[FileMend, ...] = ()
    unmended: tuple[Unmended, ...] = ()
    states: tuple[tuple[int, str], ...] = ()
    """The snapshots that need a lost file: id, and ``mended`` or ``unmended``."""


def find_unreadable(loaded: LoadedTable, storage: Storage, read: ReadBytes, catalog: str) -> Unreadable:
    """Search every snapshot of a table for metadata that cannot be read.

    Lists are read, manifests only of the heads of branches and tags; of others, existence and size are checked.

    Raises:
        StorageError: the store does not answer.
    """
    table = _Table(loaded, storage, read)
    broken = [s for s in loaded.metadata.in_commit_order if not _read_list(table, s)]
    damaged = _damaged_manifests(table)
    if not broken and not damaged:
        return Unreadable()
    namesakes = _namesakes(table)
    for path, manifest in damaged.items():
        if path not in table.present:
            _find_again(table, namesakes, path, _fits_manifest(table, manifest))
    lost = [s for s in broken if s.manifest_list and storage.allows(s.manifest_list) and _is_gone(table, s)]
    for snapshot in lost:
        if _find_again(table, namesakes, str(snapshot.manifest_list), _fits_list(snapshot)):
            _read_list(table, snapshot)
    while any(_rebuild(table, namesakes, s) for s in lost if s.snapshot_id not in table.lists):
        pass
    if table.made:  # a list that was found again may name other manifests
        damaged = _damaged_manifests(table)
    states = dict(_states(table, damaged))
    return Unreadable(
        files=tuple(table.made.values()),
        unmended=tuple(_left(table, [i for i, state in states.items() if state != "mended"], catalog)),
        states=tuple(states.items()),
    )


def _damaged_manifests(table: _Table) -> dict[str, ManifestFile]:
    """The manifests that are gone or too short, and those of heads that cannot be decoded; notes why."""
    listed = {m.manifest_path: m for manifests in table.lists.values() for m in manifests}
    listed = {path: manifest for path, manifest in listed.items() if table.storage.allows(path)}
    sizes = sizes_of(table.loaded, table.storage, listed)
    table.present.update(path for path, size in sizes.items() if size is not None)
    for path, manifest in listed.items():
        if (size := sizes[path]) is None:
            table.damage[path] = f"manifest {path} is gone"
        elif size < manifest.manifest_length:
            table.damage[path] = f"manifest {path} has {size} bytes instead of {manifest.manifest_length}"
    heads = (table.lists.get(ref.snapshot_id, ()) for ref in table.metadata.refs.values())
    for path in dict.fromkeys(m.manifest_path for found in heads for m in found):
        if path in listed and path not in table.damage:
            try:
                deque(_read(table, [listed[path]]), maxlen=0)
            except MetadataUnreadable as error:
                if not is_damage(error):
                    raise
                table.damage[path] = str(error)
    return {path: listed[path] for path in table.damage}


def _read_list(table: _Table, snapshot: Snapshot) -> bool:
    try:
        table.lists[snapshot.snapshot_id] = table.reader.manifests(snapshot)
    except MetadataUnreadable as error:
        if not is_damage(error) and table.storage.allows(snapshot.manifest_list or table.metadata.location):
            raise  # a store that fails shows no damage
        table.why[snapshot.snapshot_id] = snapshot.manifest_list or table.loaded.metadata_location, str(error)
        return False
    return True


def _is_gone(table: _Table, snapshot: Snapshot) -> bool:
    return snapshot.manifest_list is not None and table.storage.size(snapshot.manifest_list) is None


def _namesakes(table: _Table) -> Mapping[str, Sequence[ListedObject]]:
    """The Avro files below the table's locations, by base name."""
    found: dict[str, list[ListedObject]] = defaultdict(list)
    for location in filter(table.storage.allows, owned_locations(table.metadata)):
        for listed in table.storage.list_if_allowed(location) or ():
            if listed.path.endswith(".avro"):
                found[listed.path.rpartition("/")[2]].append(listed)
    return found


def _find_again(
    table: _Table, namesakes: Mapping[str, Sequence[ListedObject]], path: str, fits: Callable[[bytes], bool]
) -> bool:
    """Take a lost file from an older version of the object, or from a file of the same name elsewhere."""
    others = (listed for listed in namesakes.get(path.rpartition("/")[2], ()) if listed.path != path)
    for found in (*versions_of(table.storage, path), *others):
        name = f"version {found.version} of it" if found.version else found.path
        try:
            require_fitting(found.path, found.size)
            with table.storage.translated(found.path):
                data = table.storage.open_version(found).read() if found.version else table.storage.read(found.path)
            if fits(data):
                table.make(path, data, f"{path} is gone; {name} has its content, and is copied")
                return True
        except MetadataUnreadable:
            continue
    return False


def _fits_list(snapshot: Snapshot) -> Callable[[bytes], bool]:
    def fits(data: bytes) -> bool:
        path, header = str(snapshot.manifest_list), open_avro(data, str(snapshot.manifest_list)).header
        manifests = decode_manifest_list(data, path)
        stated = (header.get("snapshot-id"), header.get("sequence-number", "0"))
        wanted = (str(snapshot.snapshot_id), str(snapshot.sequence_number))
        return stated == wanted and not any(summary_problems(snapshot, manifests, path))

    return fits


def _fits_manifest(table: _Table, manifest: ManifestFile) -> Callable[[bytes], bool]:
    def fits(data: bytes) -> bool:
        metadata = table.metadata
        if len(data) != manifest.manifest_length or manifest.partition_spec_id not in metadata.specs:
            return False
        spec = metadata.specs[manifest.partition_spec_id]
        entries = list(decode_manifest(data, manifest, spec, metadata.schemas_current_first))
        changes = [entry for entry in entries if entry.status is not EntryStatus.EXISTING]
        is_of_commit = all(entry.snapshot_id == manifest.added_snapshot_id for entry in changes)
        return is_of_commit and not any(manifest_problems(manifest, entries))

    return fits


def _rebuild(table: _Table, namesakes: Mapping[str, Sequence[ListedObject]], snapshot: Snapshot) -> bool:
    """Rebuild the list of a snapshot if that is proven by what can be read by now."""
    reasons: list[str] = []
    for proof in _proofs(table, namesakes, snapshot):
        if isinstance(proof, Nothing):
            reasons.append(proof.reason)
            continue
        path = str(snapshot.manifest_list)
        manifests = counted(len(proof), "manifest")
        sentence = (
            f"{path}, the manifest list of snapshot {snapshot.snapshot_id}, is gone; all its {manifests} are proven"
        )
        table.make(path, rebuilt_list(table.metadata, snapshot, proof), sentence)
        return _read_list(table, snapshot)
    if reasons:
        path, _ = table.why[snapshot.snapshot_id]
        table.why[snapshot.snapshot_id] = path, f"{path} is gone, and is not rebuilt: {'; '.join(reasons)}"
    return False


def _proofs(
    table: _Table, namesakes: Mapping[str, Sequence[ListedObject]], snapshot: Snapshot
) -> Iterator[Sequence[ManifestFile] | Nothing]:
    ours = snapshot.snapshot_id
    if snapshot.raw.get("key-id") is not None:
        yield Nothing("it is encrypted")
        return
    for child in table.metadata.snapshots.values():
        if child.parent_id == ours and (listed := table.lists.get(child.snapshot_id)) is not None:
            added = [manifest for manifest in listed if manifest.added_snapshot_id == child.snapshot_id]
            try:
                yield proven_by_child(snapshot, child, listed, list(_read(table, added)))
            except MetadataUnreadable as error:
                yield Nothing(str(error))
    before = [] if snapshot.parent_id is None else table.lists.get(snapshot.parent_id)
    if before is None:
        yield Nothing(f"the manifest list of its parent {snapshot.parent_id} cannot be read")
        return
    known = {m.manifest_path: m for found in table.lists.values() for m in found}
    try:
        own = list(_read(table, [m for m in known.values() if m.added_snapshot_id == ours]))
        own += _search(table, namesakes, snapshot, known)
        yield proven_by_parent(snapshot, list(_read(table, before)), own)
    except MetadataUnreadable as error:
        yield Nothing(str(error))


def _read(table: _Table, manifests: Sequence[ManifestFile]) -> Iterator[ReadManifest]:
    for manifest, entries in table.reader.entries(manifests):
        yield ReadManifest(manifest, tuple(entries))


def _search(
    table: _Table,
    namesakes: Mapping[str, Sequence[ListedObject]],
    snapshot: Snapshot,
    known: Mapping[str, ManifestFile],
) -> Iterator[ReadManifest]:
    """The manifests in the store that no readable list has, and with an entry that states the snapshot's id."""
    metadata, ours = table.metadata, snapshot.snapshot_id
    lists = {s.manifest_list for s in metadata.snapshots.values()}
    files = [f for found in namesakes.values() for f in found if f.path not in known and f.path not in lists]
    away = {f.path: abs((f.modified_ms or snapshot.timestamp_ms) - snapshot.timestamp_ms) for f in files}
    near = sorted((path for path, ms in away.items() if ms < _SEARCHED_MS), key=away.__getitem__)
    if len(near) > _MOST_READ:
        raise MetadataUnreadable(
            f"more than {_MOST_READ} files that no manifest list has are from the day of its commit"
        )
    for path in near:
        try:
            data = table.storage.read(path)
            header = open_avro(data, path).header
            # An entry without an id inherits one that no snapshot has.
            described = replace(
                manifest_from_file(data, path, _NO_SNAPSHOT),
                content=ManifestContent.DELETES if header.get("content") == "deletes" else ManifestContent.DATA,
                sequence_number=snapshot.sequence_number,
            )
            spec = metadata.specs[described.partition_spec_id]
            entries = tuple(decode_manifest(data, described, spec, metadata.schemas_current_first))
        except (MetadataUnreadable, KeyError):
            continue  # no manifest, or not of this table: what it lacks then is missing in the proof
        if any(entry.snapshot_id == ours and entry.status is not EntryStatus.EXISTING for entry in entries):
            yield of_file(metadata, described, snapshot, entries)


def _states(table: _Table, damaged: Mapping[str, ManifestFile]) -> Iterator[tuple[int, str]]:
    for snapshot in table.metadata.in_commit_order:
        number, listed = snapshot.snapshot_id, table.lists.get(snapshot.snapshot_id)
        lacking = [] if listed is None else [m.manifest_path for m in listed if m.manifest_path in damaged]
        gone = [path for path in lacking if path not in table.made]
        if gone:
            table.why[number] = gone[0], table.damage[gone[0]]
        if listed is None or gone:
            yield number, "unmended"
        elif lacking or snapshot.manifest_list in table.made:
            yield number, "mended"


def _left(table: _Table, lost: Sequence[int], catalog: str) -> Iterator[Unmended]:
    """What can be done about snapshots that stay unreadable: each branch for itself, then all that no ref needs."""
    metadata, name, kind = table.metadata, table.loaded.name, ProblemKind.UNREADABLE_METADATA.value
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    for ref in metadata.refs.values():
        if ref.snapshot_id not in lost:
            continue
        path, why = table.why[ref.snapshot_id]
        whole = next((s.snapshot_id for s in metadata.ancestors(ref.snapshot_id) if s.snapshot_id not in lost), None)
        if ref.type != "branch" or whole is None:
            what = "no ancestor of it can be read" if ref.type == "branch" else way_out(metadata, [ref.snapshot_id])
            yield Unmended(kind=kind, path=path, sentence=f"{ref.type} '{ref.name}': {why}; {what}")
            continue
        plan = plan_rollback(metadata, str(name), ref.name, str(whole))
        drops = "" if isinstance(plan, Nothing) else f"; a rollback would set {plan.sentence}: acknowledged rows go"
        option = f"icekeeper rollback {name} --branch {ref.name} --to {whole} --catalog {catalog}"
        yield Unmended(kind=kind, path=path, sentence=f"{why}{drops}", option=option)
    old = [number for number in lost if number not in heads]
    if old:
        path, why = table.why[old[0]]
        ids = ",".join(map(str, old))
        option = (
            f"icekeeper maintain {name} --catalog {catalog} --operations expire_snapshots "
            f"--set snapshot_give_up_ids={ids} --unsafe"
        )
        yield Unmended(kind=kind, path=path, sentence=f"{why}; {way_out(metadata, old)}", option=option)
