"""What must stay, and what nobody could know (pure but for looking whether files are there).

A table is its UUID.  Its *newest* metadata file is the one its writers know; entries of catalogs point at it, or at an
older one.  The newest must be complete at all times: every snapshot that it retains, with the rows that it had.  So
must what pins and pending loads hold.

An *entry* of a served catalog needs the history of the metadata file at which it stands, newest or not, for as long as
it stands there.

What a pass can know (:func:`could_know`): every table of every served catalog, maintained or not, as it was when the
pass began.  A catalog is served once a pass or a scan has met a table of it.  Two things cannot be known, and a loss
through them is told apart: what a table references by a metadata file at which no entry of a served catalog stands; and
files outside its own folders that it has taken in while the pass was at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from pyiceberg.table.snapshots import Operation as SnapshotOperation

from icekeeper.policy import Operation
from support.ownership.witness import Rows, Sight, Witness, real_path


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
