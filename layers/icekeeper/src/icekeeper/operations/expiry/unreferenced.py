"""Which files, partition specs and schemas an expiry frees: those that only expired snapshots reference."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from icekeeper.deletion.neighbours import behind_authority, prefix_mismatch_error
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_reader import References, TableReader
from icekeeper.model import LiveFile, ManifestContent, ManifestFile
from icekeeper.pass_context.footprint import spelled_root
from icekeeper.storage.paths import (
    ComparedPath,
    FolderNames,
    any_spelling,
    compared,
    is_under,
    merged_spelling,
    normalise,
)

_MOST_FOLDERS = 10_000


class Candidates:
    """The files that an expiry may free: added from expired snapshots, removed if something retained needs them.

    A file that the table must not delete is never added.  To save memory, each path is stored once, and its normalised
    form only as a hash.  Paths with the same hash are compared as text.
    """

    def __init__(self, is_needed: Callable[[str], bool]) -> None:
        """``is_needed``: :meth:`.FileNeeds.need`."""
        self._is_needed, self._names = is_needed, FolderNames()
        # Hash of the normalised path without scheme and bucket → its index in the lists below, or several indexes.
        self._places: dict[int, tuple[int, ...] | int] = {}
        self._paths: list[str | None] = []
        self._sizes = array("q")
        self._holds_rows = bytearray()
        self._is_plain = bytearray()
        self.files_left = 0
        """The number of data and delete files; only manifest entries can still remove them."""
        self.size = 0
        """Bytes of all remaining candidates."""

    def add(self, path: str, size: int, *, holds_rows: bool = False) -> None:
        """Add a path once, whatever its spelling; ``holds_rows``: a data or delete file, not metadata."""
        now = compared(path, is_plain=self._names.is_plain(path))
        if self._is_needed(now):
            return
        key = hash(behind_authority(merged_spelling(now.normal)))
        found = self._at(key)
        if found and any(normalise(self._paths[place] or "") == now.normal for place in found):
            return
        place = len(self._paths)
        self._places[key] = (*found, place) if found else place
        self._paths.append(path)
        self._sizes.append(size)
        self._holds_rows.append(holds_rows)
        self._is_plain.append(now.is_plain)
        self.files_left += holds_rows
        self.size += size

    def spare(self, path: str) -> None:
        """Remove a path that something retained references.

        Raises:
            OperationRefused: a candidate is the same path under another scheme, bucket or host.
        """
        now = compared(path)
        merged = merged_spelling(now.normal)
        bare = behind_authority(merged)
        for place in self._at(hash(bare)):
            candidate = self._compared(place)
            if candidate is None:
                continue
            other = merged_spelling(candidate.normal)
            if behind_authority(other) != bare:
                continue
            if other != merged:
                raise prefix_mismatch_error(candidate, path)
            self._take_out(place)

    def leave_out_needed(self) -> None:
        """Remove every path that is needed by now."""
        for place in range(len(self._paths)):
            path = self._compared(place)
            if path is not None and self._is_needed(path):
                self._take_out(place)

    def size_of(self, paths: Collection[str]) -> int:
        """Bytes of the given remaining paths."""
        if len(paths) == sum(path is not None for path in self._paths):
            return self.size
        some = frozenset(paths)
        return sum(size for path, size in zip(self._paths, self._sizes, strict=True) if path in some)

    def paths(self) -> tuple[str, ...]:
        """The remaining paths, sorted."""
        return tuple(sorted(self))

    def __iter__(self) -> Iterator[str]:
        return (path for path in self._paths if path is not None)

    def of_each_folder(self) -> Iterator[str]:
        """At least one remaining path of each folder, and every path that may be a symbolic link."""
        seen = set[tuple[str, str]]()
        for path, is_plain in zip(self._paths, self._is_plain, strict=True):
            if path is None:
                continue
            folder, _, name = path.rpartition("/")
            place = (folder, spelled_root(path))
            if place in seen and is_plain and name:
                continue
            if len(seen) >= _MOST_FOLDERS:  # each file may have a folder of its own, as with hashes in paths
                seen.clear()
            seen.add(place)
            yield path

    def _compared(self, place: int) -> ComparedPath | None:
        path = self._paths[place]
        return None if path is None else compared(path, is_plain=bool(self._is_plain[place]))

    def _take_out(self, place: int) -> None:
        self._paths[place] = None
        self.files_left -= self._holds_rows[place]
        self.size -= self._sizes[place]

    def _at(self, key: int) -> tuple[int, ...]:
        found = self._places.get(key, ())
        return (found,) if isinstance(found, int) else found


# The partition spec id of a manifest that a v1 snapshot lists inline: unknown without opening it.
INLINE_SPEC = -1


def listed_manifests(
    reader: TableReader, snapshots: Iterable[Snapshot]
) -> Iterator[tuple[Snapshot, int, Sequence[ManifestFile]]]:
    """Each snapshot with the size of its manifest list and its manifests, unopened; inline manifests (v1) have only a
    path.

    Raises:
        MetadataUnreadable: a manifest list is missing or damaged.
    """
    with_list = []
    for snapshot in snapshots:
        if snapshot.manifest_list is not None:
            with_list.append(snapshot)
            continue
        inline = [
            ManifestFile(manifest_path=path, manifest_length=0, partition_spec_id=INLINE_SPEC, added_snapshot_id=None)
            for path in snapshot.inline_manifests
        ]
        yield snapshot, 0, inline
    yield from reader.manifest_lists(with_list)


# Which files an expiry frees: those that expired snapshots reference and no retained snapshot does.
#
# Snapshots share manifests, and manifests never change, so most of them need not be opened.  A manifest is *kept* if a
# retained snapshot lists it, and *dropped* if only expired snapshots do.
#
# 1. A file can become free only if a manifest with a live entry for it is dropped.  So if no dropped manifest has live
#    entries, no manifest is opened.
# 2. Only live entries of dropped manifests name candidates.  DELETED entries are history.
# 3.  A candidate is kept if a kept manifest has a live entry for it.  This is possible even for a kept manifest that an
# expired snapshot lists *beside* a dropped manifest.  A path should be live once per snapshot, but Java can add files
# again whose snapshot has expired, and ``add_files`` can skip its check.  Then a tag may keep one of the two manifests
# while the other expires.  Since that is rare, these manifests are opened last.
# 4.  As soon as no candidate is a data or delete file, no further manifest is opened.
# 5.  Readable old snapshots must not expire if the current snapshot is unreadable.  So the manifests that every
# retained snapshot of the current branch lists, and no expired snapshot does, are opened although they do not affect
# the result.  Usually this is a single manifest.
#
# Every manifest list of the table is read once.  If a file that these rules need cannot be read, nothing expires.
# Sources (rule: what-a-table-needs): specification, "Snapshots", "Deletion Vectors"; compare
# Iceberg-Java's ReachableFileCleanup.


@dataclass(slots=True)
class Unreferenced:
    """The files that an expiry frees, and the references that remain, for the check before each deletion."""

    candidates: Candidates
    references: References
    kept_specs: frozenset[int] | None = None
    """The partition specs of the kept manifests; ``None``: unknown without opening some manifests."""
    keeps_deletes: bool = True
    """Whether a delete manifest is kept."""
    unread: tuple[str, ...] = ()
    """Unreadable manifest lists and manifests of snapshots that were given up; files that only they name are
    unknown."""


def unreferenced_files(
    reader: TableReader, expired: Collection[int], is_needed: Callable[[str], bool], *, gives_up: bool = False
) -> Unreferenced:
    """The files that become free when the snapshots of these ids expire; ``is_needed``: :meth:`.FileNeeds.need`.

    ``gives_up``: skip metadata of expired snapshots that cannot be read; files that only it names are not freed.

    Raises:
        MetadataUnreadable: a needed manifest list or manifest cannot be read.
        OperationRefused: a file is referenced under another scheme, bucket or host.
    """
    metadata = reader.metadata
    gone = [s for i, s in metadata.snapshots.items() if i in expired]
    staying = [s for i, s in metadata.snapshots.items() if i not in expired]
    candidates = Candidates(is_needed)
    kept = _kept(reader, staying)
    unread: list[str] | None = [] if gives_up else None
    live, beside, shared = _dropped(_lists(reader, gone, unread), kept, candidates)
    for files in _live_files(reader, live, unread):
        for file in files:
            if _is_own(metadata, file):
                candidates.add(file.path, file.size, holds_rows=True)
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if int(statistics["snapshot-id"]) in expired:
            candidates.add(str(statistics["statistics-path"]), int(statistics.get("file-size-in-bytes") or 0))
    lists = (s.manifest_list for s in staying if s.manifest_list is not None)
    for path in chain(lists, kept.is_deletes, _kept_statistics(metadata, expired)):
        candidates.spare(path)
    new = kept.all_list - shared
    for _, files in reader.live_files(sorted(new)):
        for file in files:
            candidates.spare(file.path)
    if candidates.files_left:
        rest = [path for path in kept.is_deletes if path not in new]
        for _, files in reader.live_files(sorted(rest, key=beside.__contains__)):
            for file in files:
                candidates.spare(file.path)
            if not candidates.files_left:
                break
    # Manifests that were not opened hold no remaining candidate, so the check before deletions need not open them.
    references = References({s.snapshot_id for s in staying}, set(kept.is_deletes))
    return Unreferenced(
        candidates,
        references,
        None if INLINE_SPEC in kept.specs else frozenset(kept.specs),
        any(kept.is_deletes.values()),
        tuple(unread or ()),
    )


def lost_snapshots(reader: TableReader, error: str) -> list[int]:
    """The snapshots that need the unreadable metadata named in ``error``."""
    return [
        snapshot.snapshot_id for snapshot in reader.metadata.snapshots.values() if _is_lost(reader, snapshot, error)
    ]


def is_still_lost(reader: TableReader, snapshot_id: int, error: str) -> bool:
    """Whether the metadata of a snapshot that is named in ``error`` still cannot be read."""
    try:
        for _, _, manifests in listed_manifests(reader, [reader.metadata.snapshots[snapshot_id]]):
            named = [manifest.manifest_path for manifest in manifests if manifest.manifest_path in error]
            for _, files in reader.live_files(named):
                deque(files, maxlen=0)
    except MetadataUnreadable:
        return True
    return False


def way_out(metadata: TableMetadata, lost: Sequence[int]) -> str:
    """What a person can do about the unreadable metadata of the ``lost`` snapshots."""
    heads = {ref.snapshot_id: ref for ref in metadata.refs.values()}
    found = (ref for ref in map(heads.get, lost) if ref is not None)
    refs = [f"{'drop' if ref.type == 'tag' else 'roll back'} {ref.type} '{ref.name}'" for ref in found]
    if refs:
        return f"restore it, or first {', '.join(refs)}, whose head needs it"
    ids = ",".join(map(str, lost))
    return f"restore it, or give up the snapshots that need it: the setting snapshot_give_up_ids={ids} with --unsafe"


def _is_lost(reader: TableReader, snapshot: Snapshot, error: str) -> bool:
    try:
        listed = [manifest for _, _, manifests in listed_manifests(reader, [snapshot]) for manifest in manifests]
    except MetadataUnreadable:
        return True
    return any(manifest.manifest_path in error for manifest in listed)


def still_unreferenced(reader: TableReader, expired: Collection[int], before: Unreferenced) -> None:
    """Remove the files that the newest head references from ``before``, which was computed on an older head.

    Only new metadata is read: on a busy table there is no time for more.

    Raises:
        MetadataUnreadable: a new manifest list or manifest cannot be read.
        OperationRefused: as :func:`unreferenced_files`.
    """
    metadata = reader.metadata
    staying = [s for i, s in metadata.snapshots.items() if i not in expired]
    for path in chain(before.references.follow(reader, staying), _kept_statistics(metadata, expired)):
        before.candidates.spare(path)


@dataclass(slots=True)
class _Kept:
    """Manifests that a retained snapshot lists; two spellings of a path may be two objects."""

    is_deletes: dict[str, bool] = field(default_factory=dict)
    """Path as spelled → whether it is a delete manifest."""
    specs: set[int] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    """Normalised paths: a manifest with such a path is not dropped, whatever its spelling."""
    all_list: set[str] = field(default_factory=set)
    """Manifests that every retained snapshot of the current branch lists."""


def _kept(reader: TableReader, staying: Sequence[Snapshot]) -> _Kept:
    head = reader.metadata.current_snapshot
    line = set() if head is None else {s.snapshot_id for s in reader.metadata.ancestors(head.snapshot_id)}
    kept = _Kept()
    is_first = True
    for snapshot, _, manifests in listed_manifests(reader, staying):
        listed = set[str]()
        for manifest in manifests:
            listed.add(manifest.manifest_path)
            path = manifest.manifest_path
            if path not in kept.is_deletes:
                kept.keys.add(_key(path))
                kept.specs.add(manifest.partition_spec_id)
            kept.is_deletes[path] = manifest.content is ManifestContent.DELETES
        if snapshot.snapshot_id in line:
            kept.all_list = listed if is_first else kept.all_list & listed
            is_first = False
    return kept


def _lists(
    reader: TableReader, gone: Sequence[Snapshot], unread: list[str] | None
) -> Iterator[tuple[Snapshot, int, Sequence[ManifestFile]]]:
    """The manifests of the expired snapshots; unreadable lists are added to ``unread``, or raise if it is ``None``."""
    if unread is None:
        yield from listed_manifests(reader, gone)
        return
    for snapshot in gone:
        try:
            yield from listed_manifests(reader, [snapshot])
        except MetadataUnreadable:
            unread.append(str(snapshot.manifest_list))


def _live_files(
    reader: TableReader, manifests: Sequence[str], unread: list[str] | None
) -> Iterator[Iterable[LiveFile]]:
    """The live files of each manifest; ``unread`` as for :func:`_lists`; no entry of a damaged manifest counts."""
    if unread is None:
        yield from (files for _, files in reader.live_files(manifests))
        return
    for manifest in manifests:
        try:
            yield [file for _, files in reader.live_files([manifest]) for file in files]
        except MetadataUnreadable:
            unread.append(manifest)


def _dropped(
    listed: Iterable[tuple[Snapshot, int, Sequence[ManifestFile]]], kept: _Kept, candidates: Candidates
) -> tuple[list[str], set[str], set[str]]:
    """Find the manifests that only expired snapshots list; these and their manifest lists become candidates.

    Returns:
        The dropped manifests that may have live entries; the kept manifests that an expired snapshot lists together
        with such a manifest; and all kept manifests that an expired snapshot lists.
    """
    live: list[str] = []
    beside, shared = set[str](), set[str]()
    may_be_live: dict[str, bool] = {}
    for snapshot, size, manifests in listed:
        if snapshot.manifest_list is not None:
            candidates.add(snapshot.manifest_list, size)
        staying, has_live = [], False
        for manifest in manifests:
            path = manifest.manifest_path
            if path in kept.is_deletes:
                staying.append(path)
                continue
            if path not in may_be_live and _key(path) not in kept.keys:
                candidates.add(path, manifest.manifest_length)
                may_be_live[path] = manifest.may_have_live_files
                if manifest.may_have_live_files:
                    live.append(path)
            has_live |= may_be_live.get(path, False)
        shared.update(staying)
        if has_live:
            beside.update(staying)
    return live, beside, shared


def _is_own(metadata: TableMetadata, file: LiveFile) -> bool:
    """Whether the file is in the table's location, or a snapshot of this table added it.

    If the table's history is incomplete, an unknown snapshot counts as its own.
    """
    if file.snapshot_id is None or file.snapshot_id in metadata.snapshots or is_under(file.path, metadata.location):
        return True
    return any(s.parent_id is not None and s.parent_id not in metadata.snapshots for s in metadata.snapshots.values())


def _key(path: str) -> str:
    """The normalised path; the same object if it equals ``path``, to save memory."""
    normal = any_spelling(path)
    return path if normal == path else normal


def _kept_statistics(metadata: TableMetadata, expired: Collection[int]) -> Iterator[str]:
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if int(statistics["snapshot-id"]) not in expired:
            yield str(statistics["statistics-path"])


@dataclass(frozen=True, slots=True)
class UnusedMetadata:
    """Ids of partition specs and schemas to remove from the table's metadata."""

    spec_ids: tuple[int, ...] = ()
    schema_ids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.spec_ids or self.schema_ids)

    @property
    def updates(self) -> list[dict[str, Any]]:
        """REST ``TableUpdate`` objects."""
        updates: list[dict[str, Any]] = []
        if self.spec_ids:
            updates.append({"action": "remove-partition-specs", "spec-ids": list(self.spec_ids)})
        if self.schema_ids:
            updates.append({"action": "remove-schemas", "schema-ids": list(self.schema_ids)})
        return updates

    def requirements(self, metadata: TableMetadata) -> list[dict[str, Any]]:
        """The commit's requirements: the default spec and the current schema are still the same."""
        requirements: list[dict[str, Any]] = []
        if self.spec_ids:
            requirements.append({"type": "assert-default-spec-id", "default-spec-id": metadata.default_spec_id})
        if self.schema_ids:
            current = metadata.current_schema_id
            requirements.append({"type": "assert-current-schema-id", "current-schema-id": current})
        return requirements


def unused_metadata(
    metadata: TableMetadata, expired: Collection[int], used_specs: Collection[int] | None, has_deletes: bool
) -> UnusedMetadata:
    """The specs and schemas that nothing uses once the snapshots of these ids have expired.

    The model is ``cleanExpiredMetadata`` of Iceberg-Java's RemoveSnapshots.  In addition, all schemas are kept if a
    delete file, partition spec or sort order may refer to a dropped column, which only an old schema explains.

    ``used_specs``: the specs of the manifests that the other snapshots list, ``None`` if unknown; ``has_deletes``: such
    a manifest holds delete files.
    """
    if used_specs is None:
        return UnusedMetadata()
    specs = {i: spec for i, spec in metadata.specs.items() if i in used_specs or i == metadata.default_spec_id}
    unused_specs = tuple(sorted(metadata.specs.keys() - specs.keys()))
    used_schemas = {
        metadata.current_schema_id,
        *(s.schema_id for i, s in metadata.snapshots.items() if i not in expired),
    }
    if has_deletes or None in used_schemas:
        return UnusedMetadata(unused_specs)
    known = {i for schema_id in used_schemas for i in _column_ids(metadata.schemas.get(schema_id or 0, {}))}
    orders = metadata.document.get("sort-orders") or ()
    if {i for meaning in (*specs.values(), *orders) for i in _source_ids(meaning)} - known:
        return UnusedMetadata(unused_specs)
    return UnusedMetadata(unused_specs, tuple(sorted(metadata.schemas.keys() - used_schemas)))


def _source_ids(meaning: Mapping[str, Any]) -> Iterator[int]:
    """The columns of a partition spec or sort order."""
    for part in meaning.get("fields") or ():
        yield from part.get("source-ids") or [part["source-id"]]


def _column_ids(kind: Any) -> Iterator[int]:
    """The ids of a type's fields, including nested fields."""
    if not isinstance(kind, Mapping):
        return
    for nested in kind.get("fields") or ():
        yield int(nested["id"])
        yield from _column_ids(nested["type"])
    for part in ("element", "key", "value"):
        if f"{part}-id" in kind:
            yield int(kind[f"{part}-id"])
            yield from _column_ids(kind[part])
