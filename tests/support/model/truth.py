"""Files that must be kept, files that a metadata file needs, and what a pass could know."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyiceberg.table import StaticTable

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile
from icekeeper.policy import Operation
from support.model.reader import NaiveReader
from support.model.writers import Writers

# Files and rows of a metadata file, as the naive reader sees them, without Icekeeper's code.

Rows = tuple[int, ...]
"""The sorted ids of a snapshot."""


@functools.lru_cache(maxsize=50_000)
def real_path(path: str) -> str:
    """The real path of a file with any spelling of its address and through any links.

    The links of a case are folders; they exist before its first table and never change.
    """
    if path.startswith("file:"):
        path = unquote("/" + path.removeprefix("file:").lstrip("/"))
    folder, _, name = path.rpartition("/")
    return f"{_real_folder(folder)}/{name}" if "." in name else os.path.realpath(path)


_real_folder = functools.lru_cache(maxsize=10_000)(os.path.realpath)


@dataclass(frozen=True, slots=True)
class Sight:
    """A metadata file, read once, because files never change."""

    document: Mapping[str, Any]
    needed: frozenset[str]
    """Real paths of all files that its snapshots and statistics need, and of the metadata file itself."""
    of_snapshot: dict[int, frozenset[str]]
    rows: dict[int, Rows]
    """Rows by snapshot, without snapshots that lack a file."""

    @property
    def missing(self) -> frozenset[str]:
        return frozenset(path for path in self.needed if not os.path.exists(path))

    @property
    def current(self) -> int | None:
        found = self.document.get("current-snapshot-id")
        return None if found in (None, -1) else int(found)

    @property
    def ancestors(self) -> frozenset[str]:
        """Real paths of the metadata files in its log."""
        return frozenset(real_path(entry["metadata-file"]) for entry in self.document.get("metadata-log") or ())

    @property
    def location(self) -> str:
        return str(self.document["location"])

    @property
    def properties(self) -> Mapping[str, str]:
        return self.document.get("properties") or {}


class Witness:
    """Reads and caches immutable files, so that a case does not read them at every step."""

    def __init__(self) -> None:
        self.reader = NaiveReader(resolve=real_path)
        self._sights: dict[str, Sight] = {}
        self._whole: dict[str, tuple[frozenset[str], Rows]] = {}
        """The files and rows of a snapshot by manifest list."""

    def look(self, location: str) -> Sight | None:
        """The content of a metadata file; ``None`` if the file is gone."""
        path = real_path(location)
        if path not in self._sights:
            if not os.path.exists(path):
                return None
            self._sights[path] = self._read(path)
        return self._sights[path]

    def _read(self, path: str) -> Sight:
        document = json.loads(Path(path).read_bytes())
        of_snapshot, rows = {}, {}
        for snapshot in document["snapshots"]:
            of_snapshot[snapshot["snapshot-id"]], found = self._snapshot(snapshot["manifest-list"])
            if found is not None:
                rows[snapshot["snapshot-id"]] = found
        kinds = ("statistics", "partition-statistics")
        named = {real_path(item["statistics-path"]) for kind in kinds for item in document.get(kind) or ()}
        return Sight(document, frozenset({path}).union(named, *of_snapshot.values()), of_snapshot, rows)

    def _snapshot(self, manifest_list: str) -> tuple[frozenset[str], Rows | None]:
        """The files and rows of a snapshot; the rows of a broken snapshot are unknown."""
        if manifest_list in self._whole:
            return self._whole[manifest_list]
        reader, needed, is_broken = self.reader, {real_path(manifest_list)}, False
        try:
            for manifest in reader.manifests(manifest_list):
                needed.add(real_path(manifest["manifest_path"]))
                try:
                    needed |= {real_path(file.path) for file in reader.entries(manifest)}
                except FileNotFoundError:
                    is_broken = True
            rows = None if is_broken else tuple(sorted(row.id for row in reader.rows(manifest_list, {})))
        except FileNotFoundError:
            return frozenset(needed), None
        if rows is not None:
            self._whole[manifest_list] = frozenset(needed), rows
        return frozenset(needed), rows

    @staticmethod
    def scan(location: str) -> Rows:
        """The rows at the head by a real scan of PyIceberg, without any cache."""
        table = StaticTable.from_metadata(location)
        return tuple(sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()))

    @staticmethod
    def number(location: str) -> int:
        """The generation: the number in the name of the metadata file, which every commit increments."""
        return int(real_path(location).rpartition("/")[2].partition("-")[0])


# Files that must be kept, and needs that no pass could know (pure, except that it checks whether files exist).
#
# A table is its UUID.  Its *newest* metadata file is known to its writers; entries of catalogs point at it, or at
# an older file.  The newest must be complete at all times: every retained snapshot, with its original rows.  So must
# the files of pins and pending loads.
#
# An *entry* of a served catalog needs the history of its metadata file, newest or not, as long as it points at that
# file.
#
# What a pass can know (:func:`could_know`): every table of every served catalog, maintained or not, as it was when the
# pass began.  A catalog is served once a pass or a scan has read a table of it.  Two things cannot be known, and a loss
# of such files is excused: references of a metadata file at which no entry of a served catalog points; and files
# outside the table's folders that the table has added during the pass.


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a catalog."""

    catalog: int
    name: str


@dataclass(slots=True)
class Lineage:
    """A table under any name."""

    uuid: str
    home: str
    """The real path of the location."""
    writers: Writers
    """The writers of the table, which know its newest metadata file."""
    rows: Rows = ()
    roots: set[str] = field(default_factory=set)
    """Folders that a pass over it may sweep: metadata, data, and every data path so far."""
    roots_now: set[str] = field(default_factory=set)
    """The folders that the newest metadata file names."""
    rows_of: dict[int, Rows] = field(default_factory=dict)
    """The rows of each snapshot when it was new."""
    referenced: set[str] = field(default_factory=set)
    """All files that any of its metadata files has named."""
    needed_before: frozenset[str] = frozenset()
    """The files that its newest metadata file needed at the start of the step."""
    is_off: bool = False
    """Whether passes over it change nothing and record no claims."""
    keeps_files: bool = False
    """Whether passes over it delete no files."""
    seen: set[str] = field(default_factory=set)
    """The files that the newest metadata file needed whenever a pass looked at it."""
    is_seen: bool = False
    seen_at: str = ""
    """The real path of the newest metadata file that a pass has looked at."""
    is_lonely: bool = True
    """Whether only its own writers and passes have ever used its folders."""
    history: list[str] = field(default_factory=list)
    """Addresses of all newest metadata files, oldest first."""

    @property
    def newest(self) -> str:
        """The address of the metadata file that its writers know."""
        return self.writers.world.location

    def moves(self, location: str, sight: Sight) -> None:
        """Make a metadata file the newest."""
        if not self.history or real_path(location) != real_path(self.history[-1]):
            self.history.append(location)
        world = self.writers.world
        world.location, world.metadata = location, TableMetadata(sight.document)
        self.roots_now = _roots(sight)
        self.roots |= self.roots_now
        self.knows(sight)

    def knows(self, sight: Sight) -> None:
        """Record new files and rows; a rewrite must have the rows of its parent."""
        self.referenced |= sight.needed
        for snapshot in sight.document["snapshots"]:
            snapshot_id = snapshot["snapshot-id"]
            rows = sight.rows.get(snapshot_id)
            if rows is None or snapshot_id in self.rows_of:
                continue
            self.rows_of[snapshot_id] = rows
            before = self.rows_of.get(snapshot.get("parent-snapshot-id"))
            if snapshot["summary"]["operation"] == "replace" and before is not None:
                assert rows == before, f"ROWS a rewrite made {rows} of {before}"


@dataclass(frozen=True, slots=True)
class Hold:
    """A pin or a pending load, and its files."""

    uuid: str
    name: str
    entry: Entry
    door: int
    paths: frozenset[str]
    staged: DataFile | None = None
    """The file of a pending load."""

    @property
    def is_pin(self) -> bool:
        return self.staged is None


@dataclass(slots=True)
class PassReport:
    """A pass: its table, and the files that it reports as deleted."""

    entry: Entry
    door: int
    table: Lineage
    start: str
    """The metadata location at the start of the pass."""
    was_newest: bool
    behind: int
    """By how many generations it is older than the newest metadata file."""
    is_alone: bool
    """Whether no entry names the newest metadata file, as after a crash during a swap."""
    deleted: dict[str, Operation | None] = field(default_factory=dict)
    """Operations by the real paths of deleted files; ``None`` for files of failed loads."""
    moved: bool = False


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a real path is below a folder."""
    return any(path.startswith(f"{folder}/") for folder in folders)


def _roots(sight: Sight) -> set[str]:
    location, properties = sight.location, sight.properties
    data = properties.get("write.data.path", f"{location}/data")
    metadata = properties.get("write.metadata.path", f"{location}/metadata")
    return {real_path(data), real_path(metadata), real_path(f"{location}/data"), real_path(f"{location}/metadata")}


def could_know(path: str, victim: Lineage, report: PassReport, entries: Mapping[Entry, str], served: Set[int]) -> bool:
    """Whether a pass could know that ``victim`` needs a file.

    ``entries`` are the current pointers of the victim; what passes of this step have seen of it does not count yet.
     ``served``: the catalogs that were known when the step began.
    """
    culprit = report.table
    catalogs = {entry.catalog for entry, at in entries.items() if real_path(at) == real_path(victim.newest)}
    if victim is culprit:
        if report.entry.catalog in catalogs or victim.seen_at == real_path(victim.newest):
            return True
        # A single newer metadata file of a crashed swap looks like the commit of another entry.
        if report.moved and Witness.number(victim.newest) - Witness.number(report.start) <= 1:
            return False
        return report.deleted.get(path) is not Operation.EXPIRE_SNAPSHOTS  # expiry lists no files
    if not (is_below(path, culprit.roots) or path in culprit.referenced):
        return True  # the path is outside its folders
    if path in victim.needed_before and catalogs & {*served, report.entry.catalog}:
        return True
    if path in victim.seen:
        return True
    if report.entry.catalog in catalogs and is_below(path, (victim.home, *victim.roots_now)):
        return True
    # An outdated entry leads to the victim's folder, which has its newest metadata file.
    if report.entry.catalog in {entry.catalog for entry in entries} and is_below(path, [victim.home]):
        return True
    return victim.is_seen and is_below(path, [victim.home])
