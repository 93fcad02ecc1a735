"""What must stay, and what a metadata file needs, as PyIceberg reads it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation as SnapshotOperation
from pyiceberg.table.snapshots import Snapshot

from icekeeper.policy import Operation

# What a metadata file needs and says, as PyIceberg reads it; none of our own code is asked.

Rows = tuple[int, ...]
"""The ids that a snapshot holds, sorted."""


@functools.lru_cache(maxsize=50_000)
def real_path(path: str) -> str:
    """Where a file lies, whatever its address looks like and through whatever links it is reached.

    The links of a case are there before its first table, and nothing changes them.
    """
    if path.startswith("file:"):
        path = unquote("/" + path.removeprefix("file:").lstrip("/"))
    return os.path.realpath(path)


@dataclass(frozen=True, slots=True)
class Sight:
    """One metadata file, read once: files keep what they hold for as long as they are there."""

    metadata: TableMetadata
    needed: frozenset[str]
    """Real paths of all that its snapshots and statistics need, its own included."""
    of_snapshot: dict[int, frozenset[str]]
    rows: dict[int, Rows]
    """By snapshot; one that needs a file that is gone is missing."""

    @property
    def missing(self) -> frozenset[str]:
        return frozenset(path for path in self.needed if not os.path.exists(path))

    @property
    def current(self) -> int | None:
        return self.metadata.current_snapshot_id

    @property
    def ancestors(self) -> frozenset[str]:
        """Real paths of the metadata files that this one came from, as far as its log goes."""
        return frozenset(real_path(entry.metadata_file) for entry in self.metadata.metadata_log)


class Witness:
    """Reads; remembers what immutable files said, so that a case does not read them at every step."""

    def __init__(self) -> None:
        self._sights: dict[str, Sight] = {}
        self._lists: dict[str, frozenset[str]] = {}
        self._entries: dict[str, tuple[str, ...]] = {}
        self._ids: dict[str, Rows] = {}

    def look(self, location: str) -> Sight | None:
        """``None``: the metadata file itself is gone."""
        path = real_path(location)
        if path not in self._sights:
            if not os.path.exists(path):
                return None
            self._sights[path] = self._read(path)
        return self._sights[path]

    def _read(self, path: str) -> Sight:
        table = StaticTable.from_metadata(Path(path).as_uri())
        of_snapshot, rows = {}, {}
        for snapshot in table.metadata.snapshots:
            needed, data = self._snapshot(table, snapshot)
            of_snapshot[snapshot.snapshot_id] = frozenset(needed)
            if data is not None:
                rows[snapshot.snapshot_id] = data
        statistics = (*table.metadata.statistics, *table.metadata.partition_statistics)
        named = {real_path(file.statistics_path) for file in statistics}
        needed_by_all = frozenset({path}).union(named, *of_snapshot.values())
        return Sight(table.metadata, needed_by_all, of_snapshot, rows)

    def _snapshot(self, table: StaticTable, snapshot: Snapshot) -> tuple[set[str], Rows | None]:
        """What it needs, and its rows; the rows of one that is broken are not known."""
        list_path = real_path(snapshot.manifest_list)
        needed, is_broken = {list_path}, False
        ids: list[int] = []
        if list_path not in self._lists:
            if not os.path.exists(list_path):
                return needed, None
            self._lists[list_path] = frozenset(self._read_list(table, snapshot))
        for manifest in self._lists[list_path]:
            needed.add(manifest)
            is_broken |= manifest not in self._entries
            for file in self._entries.get(manifest, ()):
                needed.add(file)
                found = self._ids_in(file)
                is_broken |= found is None
                ids += found or ()
        return needed, None if is_broken else tuple(sorted(ids))

    def _read_list(self, table: StaticTable, snapshot: Snapshot) -> set[str]:
        found = set()
        for manifest in snapshot.manifests(table.io):
            path = real_path(manifest.manifest_path)
            found.add(path)
            if path not in self._entries and os.path.exists(path):
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                files = [entry.data_file for entry in entries]
                assert all(file.content is DataFileContent.DATA for file in files), "no writer here writes deletes"
                self._entries[path] = tuple(real_path(file.file_path) for file in files)
        return found

    def _ids_in(self, path: str) -> Rows | None:
        if path not in self._ids:
            if not os.path.exists(path):
                return None
            self._ids[path] = tuple(pq.read_table(path, columns=["id"])["id"].to_pylist())
        return self._ids[path]

    def live_ids(self, path: str) -> Rows:
        """The rows of a data file that is there."""
        found = self._ids_in(path)
        assert found is not None, f"{path} is gone"
        return found

    @staticmethod
    def scan(location: str) -> Rows:
        """The rows at the head, by a real scan that trusts nothing remembered."""
        table = StaticTable.from_metadata(location)
        return tuple(sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()))

    @staticmethod
    def number(location: str) -> int:
        """Its generation: the number that every commit counts up in the name of the metadata file."""
        return int(real_path(location).rpartition("/")[2].partition("-")[0])


# What must stay, and what nobody could know (pure but for looking whether files are there).
#
# A table is its UUID.  Its *newest* metadata file is the one its writers know; entries of catalogs point at it, or at
# an older one.  The newest must be complete at all times: every snapshot that it retains, with the rows that it had.
# So must what pins and pending loads hold.
#
# An *entry* of a served catalog needs the history of the metadata file at which it stands, newest or not, for as long
# as it stands there.
#
# What a pass can know (:func:`could_know`): every table of every served catalog, maintained or not, as it was when the
# pass began.  A catalog is served once a pass or a scan has met a table of it.  Two things cannot be known, and a loss
# through them is told apart: what a table references by a metadata file at which no entry of a served catalog stands;
# and files outside its own folders that it has taken in while the pass was at work.


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a catalog."""

    catalog: int
    name: str


@dataclass(slots=True)
class Lineage:
    """One table, whatever it is called."""

    uuid: str
    home: str
    """Its location, by its real path."""
    newest: str
    """Address of the metadata file that its writers know."""
    rows: Rows = ()
    roots: set[str] = field(default_factory=set)
    """Folders that a pass over it may sweep: metadata, data, and every data path that it had."""
    roots_now: set[str] = field(default_factory=set)
    """Those that its newest metadata file names."""
    rows_of: dict[int, Rows] = field(default_factory=dict)
    """By snapshot, from when it was new."""
    referenced: set[str] = field(default_factory=set)
    """All that any of its metadata files ever named."""
    needed_before: frozenset[str] = frozenset()
    """What its newest metadata file needed when the step began."""
    is_off: bool = False
    """Whether no pass over it does anything, or records where its files are."""
    keeps_files: bool = False
    """Whether no pass over it deletes anything."""
    seen: set[str] = field(default_factory=set)
    """What the newest metadata file needed whenever a pass looked at it."""
    is_seen: bool = False
    seen_at: str = ""
    """Real path of the newest metadata file that a pass has looked at."""
    is_lonely: bool = True
    """Nothing but its own writers and passes has ever touched it or its folders."""
    history: list[str] = field(default_factory=list)
    """Addresses that were the newest once, oldest first."""

    def moves(self, location: str, sight: Sight) -> None:
        """Take a metadata file for the newest."""
        if real_path(location) != real_path(self.newest) or not self.history:
            self.history.append(location)
        self.newest = location
        self.roots_now = _roots(sight)
        self.roots |= self.roots_now
        self.knows(sight)

    def knows(self, sight: Sight) -> None:
        """Remember what is new; a rewrite must read as what it rewrote."""
        self.referenced |= sight.needed
        for snapshot in sight.metadata.snapshots:
            rows = sight.rows.get(snapshot.snapshot_id)
            if rows is None or snapshot.snapshot_id in self.rows_of:
                continue
            self.rows_of[snapshot.snapshot_id] = rows
            before = self.rows_of.get(snapshot.parent_snapshot_id or 0)
            if (
                snapshot.summary is not None
                and snapshot.summary.operation is SnapshotOperation.REPLACE
                and before is not None
            ):
                assert rows == before, f"ROWS a rewrite made {rows} of {before}"


@dataclass(frozen=True, slots=True)
class Hold:
    """A pin or a pending load, and what it holds."""

    uuid: str
    name: str
    entry: Entry
    door: int
    paths: frozenset[str]
    is_pin: bool


@dataclass(slots=True)
class PassReport:
    """One pass: over which table, and what it says that it deleted."""

    entry: Entry
    door: int
    table: Lineage
    start: str
    """The pointer that it found."""
    was_newest: bool
    behind: int
    """So many generations older than the newest metadata file."""
    is_alone: bool
    """Whether no entry names the newest metadata file, as after a swap that crashed."""
    deleted: dict[str, Operation | None] = field(default_factory=dict)
    """Real paths; ``None`` for files of failed loads."""
    moved: bool = False


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Of real paths."""
    return any(path.startswith(f"{folder}/") for folder in folders)


def _roots(sight: Sight) -> set[str]:
    location, properties = sight.metadata.location, sight.metadata.properties
    data = properties.get("write.data.path", f"{location}/data")
    metadata = properties.get("write.metadata.path", f"{location}/metadata")
    return {real_path(data), real_path(metadata), real_path(f"{location}/data"), real_path(f"{location}/metadata")}


def could_know(
    path: str,
    victim: Lineage,
    report: PassReport,
    entries: Mapping[Entry, str],
    served: Set[int],
) -> bool:
    """Whether a pass could know that ``victim`` needs a file.

    ``entries`` are the pointers of the victim as they are now; what passes of this very step have seen of it does not
    count yet.  ``served``: the catalogs that were known when the step began.
    """
    culprit = report.table
    catalogs = {entry.catalog for entry, at in entries.items() if real_path(at) == real_path(victim.newest)}
    if victim is culprit:
        if report.entry.catalog in catalogs or victim.seen_at == real_path(victim.newest):
            return True
        # Of a single newer metadata file nobody can tell a swap that crashed from another entry's commit.
        if report.moved and Witness.number(victim.newest) - Witness.number(report.start) <= 1:
            return False
        return report.deleted.get(path) is not Operation.EXPIRE_SNAPSHOTS  # which lists nothing
    if not (is_below(path, culprit.roots) or path in culprit.referenced):
        return True  # no business of its
    if path in victim.needed_before and catalogs & {*served, report.entry.catalog}:
        return True
    if path in victim.seen:
        return True
    if report.entry.catalog in catalogs and is_below(path, (victim.home, *victim.roots_now)):
        return True
    # An entry that is out of date leads to the victim's folder, where its newest metadata file lies.
    if report.entry.catalog in {entry.catalog for entry in entries} and is_below(path, [victim.home]):
        return True
    return victim.is_seen and is_below(path, [victim.home])
