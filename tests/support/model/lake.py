"""Tables of several catalogs on one disk that may share files: actions of writers, and invariants."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileContent, TableName
from support.model.actions import append
from support.model.truth import Entry, Hold, Lineage, PassReport, Sight, Witness, could_know, real_path
from support.model.world import World
from support.model.writers import MAIN, WRITER, Writers

CATALOGS = ("lake0", "lake1", "lake2")
_NAMESPACE = ("ns",)
_OLD_DAYS = 10
SPELLINGS = ("file:///{root}/wh", "file:///{root}/wh", "/{root}/wh", "file:///{root}/link")
"""Spellings of the same location; ``link`` leads to ``wh``."""


def table_name(entry: Entry) -> TableName:
    return TableName(_NAMESPACE, entry.name)


class Lake:
    """A warehouse, and the entries of its catalogs."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=folder))
        self.warehouse = self.folder / "wh"
        self.warehouse.mkdir()
        (self.folder / "link").symlink_to("wh")
        self.entries: dict[Entry, str] = {}
        """Metadata locations."""
        self._aged: set[str] = set()

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def spelled(self, real: str, spelling: int) -> str:
        """An address of a real path below the warehouse."""
        root = str(self.folder).lstrip("/")
        relative = os.path.relpath(real, real_path(str(self.warehouse)))
        return f"{SPELLINGS[spelling % len(SPELLINGS)].format(root=root)}/{relative}".removesuffix("/.")

    def lose(self, entry: Entry, like: str) -> None:
        """Register a new table with a copy of another table's metadata, and remove its metadata file."""
        home = self.warehouse / entry.name
        document = {**json.loads(Path(real_path(like)).read_text()), "table-uuid": str(uuid.uuid4())}
        path = home / "metadata" / "00000-lost.metadata.json"
        path.parent.mkdir(parents=True)
        self.entries[entry] = path.as_uri()
        path.write_text(json.dumps({**document, "location": home.as_uri()}))
        path.unlink()

    def files(self) -> frozenset[str]:
        """Real paths of all files in the warehouse."""
        root = real_path(str(self.warehouse))
        return frozenset(os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)

    def age(self) -> None:
        """Date all new files back by days."""
        then = time.time() - _OLD_DAYS * 86_400
        for path in self.files() - self._aged:
            os.utime(path, (then, then))
            self._aged.add(path)


@dataclass(frozen=True)
class Shelf:
    """The entries of a catalog of a lake, as a client sees them (:class:`support.model.world.Entries`)."""

    lake: Lake
    catalog: int
    late: list[Callable[[], object]] = field(default_factory=list)

    @property
    def warehouse(self) -> str:
        return self.lake.warehouse.as_uri()

    def names(self) -> Iterable[TableName]:
        return [table_name(entry) for entry in sorted(self.lake.entries, key=str) if entry.catalog == self.catalog]

    def at(self, name: TableName) -> str | None:
        return self.lake.entries.get(Entry(self.catalog, name.name))

    def put(self, name: TableName, location: str, document: TableMetadata, by: str) -> None:
        self.lake.entries[Entry(self.catalog, name.name)] = location

    def deliver(self, commit: Callable[[], object] | None = None) -> None:
        raise NotImplementedError("every answer comes at once")


# Tables, entries, holds, and their invariants after every step.


class LakeWorld:
    """All tables, entries and holds; ``tell`` gets a line for every event."""

    def __init__(self, lake: Lake, tell: Callable[[str], object], tally: Counter[str]) -> None:
        self.lake = lake
        self.witness = Witness()
        self.tell = tell
        self.tally = tally
        self.lineages: dict[str, Lineage] = {}
        self.uuids: dict[Entry, str] = {}
        """The UUID of an entry's table."""
        self.served: set[int] = set()
        """Catalogs of which a pass or a scan of an earlier step has read a table."""
        self.lost: set[Entry] = set()
        """Entries whose metadata file is gone; their tables are unreadable and not checked."""
        self._complete: dict[Entry, str] = {}
        """Entries at metadata files whose history was complete when the step began."""
        self.holds: list[Hold] = []
        self.reports: list[PassReport] = []
        """The passes of the current step."""

    # -- state

    def pointers(self) -> dict[Entry, str]:
        return {entry: location for entry, location in self.lake.entries.items() if entry not in self.lost}

    def pointers_of(self, uuid: str) -> dict[Entry, str]:
        return {entry: at for entry, at in self.pointers().items() if self.uuids.get(entry) == uuid}

    def entries_at_newest(self, lineage: Lineage) -> list[Entry]:
        newest = real_path(lineage.newest)
        return [entry for entry, at in self.pointers_of(lineage.uuid).items() if real_path(at) == newest]

    def newest(self, lineage: Lineage) -> Sight:
        sight = self.witness.look(lineage.newest)
        if sight is None:
            raise self.loss("newest", lineage, real_path(lineage.newest))
        return sight

    def name(self, lineage: Lineage) -> str:
        return f"table {list(self.lineages).index(lineage.uuid)}" if lineage.uuid in self.lineages else "a lost table"

    def short(self, path: str) -> str:
        return path.removeprefix(f"{real_path(str(self.lake.warehouse))}/")

    # -- events

    def adopt(self, entry: Entry, lineage: Lineage) -> None:
        """Record a new table."""
        at = lineage.newest
        self.lake.entries[entry], self.uuids[entry] = at, lineage.uuid
        self.lineages[lineage.uuid] = lineage
        sight = self.newest(lineage)
        lineage.is_off = sight.properties.get("icekeeper.maintenance_enabled") == "false"
        lineage.keeps_files = lineage.is_off or sight.properties.get("gc.enabled") == "false"
        lineage.moves(at, sight)

    def wrote(self, lineage: Lineage, entry: Entry) -> None:
        """Record a writer's commit through an entry; from now on, the table must have its current rows."""
        self.lake.entries[entry] = lineage.newest
        sight = self.newest(lineage)
        lineage.rows = () if sight.current is None else sight.rows.get(sight.current, ())
        lineage.moves(lineage.newest, sight)

    def advance(self) -> None:
        """Make a metadata file that a pass derived from a table's newest metadata file the newest."""
        for entry, at in self.pointers().items():
            lineage = self.lineages[self.uuids[entry]]
            sight = self.witness.look(at)
            if sight is None:
                continue
            lineage.knows(sight)
            if real_path(lineage.newest) in sight.ancestors:
                lineage.moves(at, sight)

    def is_whole(self) -> bool:
        """Whether every entry can be loaded."""
        return all(self.witness.look(at) is not None for at in self.pointers().values())

    # -- invariants

    def check(self) -> None:
        """After a step, check that every table is complete by its newest metadata file, and so is every hold."""
        self.advance()
        self._forfeit()
        pointers = self.pointers()
        for lineage in list(self.lineages.values()):
            self._check_rows(lineage)
            self._check_complete(lineage, pointers)
        self._check_entries(pointers)
        for hold in list(self.holds):
            gone = sorted(path for path in hold.paths if not os.path.exists(path))
            kind = "pin" if hold.is_pin else "load"
            if gone and self._blame(kind, self.lineages[hold.uuid], gone, pointers, hold):
                self.holds.remove(hold)
        self._look()
        self._begin_step()

    def _forfeit(self) -> None:
        """Drop a single newer metadata file that no entry names once the table has continued without it: its swap
        crashed."""
        for report in self.reports:
            lineage = report.table
            if report.moved and report.behind == 1 and report.is_alone:
                at = self.pointers()[report.entry]
                sight = self.witness.look(at)
                assert sight is not None, f"{report.entry} is at {at}, which is gone"
                lineage.rows = () if sight.current is None else lineage.rows_of.get(sight.current, lineage.rows)
                lineage.moves(at, sight)

    def _check_rows(self, lineage: Lineage) -> None:
        sight = self.newest(lineage)
        if sight.current is not None and sight.current in sight.rows:
            found = sight.rows[sight.current]
            assert found == lineage.rows, f"ROWS {self.name(lineage)} reads {found}, not {lineage.rows}"
        for at in self.pointers_of(lineage.uuid).values():
            if (seen := self.witness.look(at)) is not None:
                for snapshot, rows in seen.rows.items():
                    known = lineage.rows_of.get(snapshot)
                    assert rows == known, f"ROWS snapshot {snapshot} reads {rows}, not {known}"

    def _check_complete(self, lineage: Lineage, pointers: Mapping[Entry, str]) -> None:
        gone = sorted(self.newest(lineage).missing)
        if gone and self._blame("newest", lineage, gone, pointers):
            self._retire(lineage)

    def _check_entries(self, pointers: Mapping[Entry, str]) -> None:
        """An entry needs the whole history of its metadata file, as long as it points at that file."""
        for entry, at in pointers.items():
            sight = self.witness.look(at)
            if self._complete.get(entry) != at or sight is None or not sight.missing:
                continue
            for path in sorted(sight.missing):
                suspects = [r for r in self.reports if path in r.deleted] or self.reports
                if all(entry.catalog in {*self.served, report.entry.catalog} for report in suspects):
                    raise self.loss(f"history of {self.where(entry)}", self.lineages[self.uuids[entry]], path)
            self.tally["histories that no pass could know"] += 1

    def _begin_step(self) -> None:
        for lineage in self.lineages.values():
            lineage.needed_before = self.newest(lineage).needed
        sights = {entry: (at, self.witness.look(at)) for entry, at in self.pointers().items()}
        self._complete = {entry: at for entry, (at, sight) in sights.items() if sight is not None and not sight.missing}

    def _blame(
        self, what: str, victim: Lineage, gone: Sequence[str], pointers: Mapping[Entry, str], hold: Hold | None = None
    ) -> bool:
        """Return whether no pass could know of the need; otherwise raise the loss."""
        entries = {entry: at for entry, at in pointers.items() if self.uuids.get(entry) == victim.uuid}
        for path in gone:
            suspects = [r for r in self.reports if path in r.deleted] or self.reports
            if not any(self._is_excused(path, victim, report, entries, hold) for report in suspects):
                raise self.loss(what, victim, path, hold)
        self.tally["losses that no pass could foresee"] += 1
        self.tell(f"  excused: {self.name(victim)} lost {', '.join(map(self.short, gone))}")
        return True

    def _is_excused(
        self, path: str, victim: Lineage, report: PassReport, entries: Mapping[Entry, str], hold: Hold | None
    ) -> bool:
        if hold is not None and report.table is victim:
            return False
        return not could_know(path, victim, report, entries, self.served)

    def loss(self, what: str, victim: Lineage, path: str, hold: Hold | None = None) -> AssertionError:
        """An error with the table, the lost file, and the passes."""
        lines = [f"LOST {what}: {self.name(victim)} lost {self.short(path)}"]
        for report in [r for r in self.reports if path in r.deleted] or self.reports:
            by = (report.deleted[path] or "staged files") if path in report.deleted else "unreported"
            relation = f"{report.behind} generations behind, door {report.door}"
            lines.append(
                f"by {by} of the pass over {self.name(report.table)} as {self.where(report.entry)}, {relation}"
            )
        return AssertionError("\n".join(lines if hold is None else [*lines, f"held by {hold}"]))

    def where(self, entry: Entry) -> str:
        return f"{CATALOGS[entry.catalog]}:{entry.name}"

    def _retire(self, lineage: Lineage) -> None:
        """Stop checking a table that no pass could keep complete."""
        for entry in self.pointers_of(lineage.uuid):
            del self.lake.entries[entry]
            del self.uuids[entry]
        self.holds = [hold for hold in self.holds if hold.uuid != lineage.uuid]
        del self.lineages[lineage.uuid]

    def _look(self) -> None:
        """Remember which tables passes have looked at, because later passes know them."""
        for report in self.reports:
            lineage = report.table
            sight = self.witness.look(report.start)
            if lineage.is_off:
                continue
            self.served.add(report.entry.catalog)
            if report.was_newest and sight is not None:
                lineage.seen |= sight.needed
                lineage.is_seen = True
                lineage.seen_at = real_path(report.start)
        self.reports = []


# Actions of writers, owners and restores on the tables of a world; impossible actions are skipped.

_Chosen = TypeVar("_Chosen")
_MOST_TABLES = 4
_MOST_ENTRIES = 7


class Care(StrEnum):
    """What passes may do to a new table."""

    ALL = "all"
    NO_DELETION = "gc.enabled"
    NOTHING = "icekeeper.maintenance_enabled"


class Layout(StrEnum):
    """The place of a new table's files relative to another table."""

    APART = "apart"
    NESTED = "nested"
    IN_DATA = "in its data folder"
    SAME_LOCATION = "same location"
    SAME_DATA = "same data path"
    DATA_BELOW = "data below its location"
    DATA_IN_DATA = "data below its data folder"
    SHARED_ELSEWHERE = "data path of everybody"


def chosen(options: Sequence[_Chosen], pick: int) -> _Chosen:
    return options[pick % len(options)]


@dataclass(slots=True)
class Writing:
    """Acts on a world; ``pick`` numbers choose among its tables or entries."""

    world: LakeWorld
    _names: itertools.count[int] = field(default_factory=itertools.count)
    _tables: itertools.count[int] = field(default_factory=itertools.count)

    def lineage(self, pick: int) -> Lineage:
        return chosen(list(self.world.lineages.values()), pick)

    def entry(self, pick: int) -> Entry:
        return chosen(sorted(self.world.pointers(), key=lambda entry: (entry.name, entry.catalog)), pick)

    # -- tables

    def create(self, catalog: int, layout: Layout, pick: int, spelling: int, care: Care = Care.ALL) -> None:
        world, lake = self.world, self.world.lake
        if len(world.lineages) >= _MOST_TABLES or len(world.uuids) >= _MOST_ENTRIES:
            return
        name = f"t{next(self._names)}"
        root = real_path(str(lake.warehouse))
        home, data = f"{root}/{name}", None
        other = self.lineage(pick) if world.lineages else None
        if other is not None:
            others_data = world.newest(other).properties.get("write.data.path")
            at = real_path(others_data) if others_data else f"{other.home}/data"
            match layout:
                case Layout.NESTED:
                    home = f"{other.home}/{name}"
                case Layout.IN_DATA:
                    home = f"{at}/{name}"
                case Layout.SAME_LOCATION:
                    home = other.home
                case Layout.SAME_DATA:
                    data = at
                case Layout.DATA_BELOW:
                    data = f"{other.home}/of-{name}"
                case Layout.DATA_IN_DATA:
                    data = f"{at}/of-{name}"
                case Layout.SHARED_ELSEWHERE:
                    data = f"{root}/everybody"
                case Layout.APART:
                    pass
        properties = {} if data is None else {"write.data.path": lake.spelled(data, spelling // 4)}
        if care is not Care.ALL:
            properties[care.value] = "false"
        writers = self._new_writers()
        writers.create(2, lake.spelled(home, spelling), properties)
        lineage = Lineage(str(writers.table.uuid), home, writers)
        world.adopt(Entry(catalog, name), lineage)
        if other is not None and layout is not Layout.APART:
            lineage.is_lonely = other.is_lonely = False
        for _ in range(2):
            self._commit(lineage, lambda: append(writers))

    def _new_writers(self) -> Writers:
        """Writers of a table with unique ids and file names, without a model of its rows."""
        number = next(self._tables)
        table = World(self.world.lake.folder, by_requirements=False, landed=lambda before, after, by: None)
        writers = Writers(table, self.world.witness.reader, expected=defaultdict(dict), chance=random.Random(number))
        writers.ids = writers.names = number * 2_000
        return writers

    def register(self, pick: int, catalog: int) -> None:
        """Register the newest metadata under another name."""
        world = self.world
        if len(world.uuids) >= _MOST_ENTRIES:
            return
        lineage = self.lineage(pick)
        lineage.is_lonely = False
        entry = Entry(catalog, f"again{next(self._names)}")
        world.lake.entries[entry], world.uuids[entry] = lineage.newest, lineage.uuid

    def lose(self, pick: int, catalog: int) -> None:
        """Add an entry whose metadata file is removed at once."""
        world = self.world
        entry = Entry(catalog, f"lost{next(self._names)}")
        if len(world.uuids) + len(world.lost) < _MOST_ENTRIES:
            world.lost.add(entry)
            world.lake.lose(entry, self.lineage(pick).newest)

    def rename(self, pick: int) -> None:
        world, old = self.world, self.entry(pick)
        new = Entry(old.catalog, f"renamed{next(self._names)}")
        for entries in (world.lake.entries, world.uuids):
            entries[new] = entries.pop(old)
        world.tell(f"  {world.where(old)} is {world.where(new)} now")

    def restore(self, pick: int, back: int) -> None:
        """An entry returns to an older metadata file, as after a backup."""
        world = self.world
        lineage = self.lineage(pick)
        older = [at for at in lineage.history[:-1] if (seen := world.witness.look(at)) and not seen.missing]
        entries = world.entries_at_newest(lineage)
        if older and entries:
            lineage.is_lonely = False
            at, entry = older[-1 - back % len(older)], chosen(entries, pick)
            world.lake.entries[entry] = at
            world.tell(f"  {world.where(entry)} is back at {world.short(real_path(at))}")

    # -- commits

    def write(self, pick: int, change: Callable[[Writers], object], seed: int) -> None:
        """Let an engine change a table (:mod:`support.model.actions`)."""
        lineage = self.lineage(pick)
        lineage.writers.chance.seed(seed)
        self._commit(lineage, lambda: change(lineage.writers))

    def add_across(self, pick: int, source_pick: int) -> None:
        """Add live files of a table to another table."""
        lineage, source = self.lineage(pick), self.lineage(source_pick)
        head = source.writers.head()
        if lineage is source or head is None:
            return
        files = [
            entry.file
            for _, entry in source.writers.entries(head)
            if entry.is_live and entry.file.content is FileContent.DATA
        ][:2]
        there = {real_path(file.path) for file in lineage.writers.files()}
        if files and there.isdisjoint(real_path(file.file_path) for file in files):
            lineage.is_lonely = source.is_lonely = False
            self._commit(lineage, lambda: self._add_files(lineage, files))

    def stage(self, lineage: Lineage) -> tuple[str, DataFile]:
        """Write a file that awaits its commit; return its real path and the file."""
        location = self.world.newest(lineage).location
        ((_, file),) = lineage.writers.write(lineage.writers.new_rows(1), 0, folder=f"{location}/data")
        return real_path(file.file_path), file

    def adopt(self, lineage: Lineage, file: DataFile) -> None:
        """Commit an existing file."""
        self._commit(lineage, lambda: self._add_files(lineage, [file]))

    @staticmethod
    def _add_files(lineage: Lineage, files: Sequence[DataFile]) -> None:
        lineage.writers.commit(MAIN, "append", {}, added=[(0, replace(file, first_row_id=None)) for file in files])

    def move_data(self, pick: int, other_pick: int, where: int) -> None:
        """Write later files of a table to another table's folder, to a new folder, or to its own data folder."""
        lineage, other, world = self.lineage(pick), self.lineage(other_pick), self.world
        lineage.is_lonely = other.is_lonely = False
        root = real_path(str(world.lake.warehouse))
        data = (f"{other.home}/data", other.home, f"{root}/moved-{next(self._names)}", f"{lineage.home}/data")[
            where % 4
        ]

        properties = {**lineage.writers.table.properties, "write.data.path": world.lake.spelled(data, where // 4)}
        self._commit(lineage, lambda: lineage.writers.world.change(WRITER, properties=properties))

    def _commit(self, lineage: Lineage, work: Callable[[], object]) -> None:
        """Commit through an entry at the newest metadata; without such an entry, the owner repairs an entry."""
        world = self.world
        entries = world.entries_at_newest(lineage)
        if not entries:
            entries = sorted(world.pointers_of(lineage.uuid), key=lambda entry: (entry.catalog, entry.name))[:1]
            world.lake.entries[entries[0]] = lineage.newest
            world.tell(f"  {world.where(entries[0])} is repaired")
        work()
        world.wrote(lineage, entries[0])
        world.tell(f"  {world.name(lineage)} as {world.where(entries[0])} holds {lineage.rows}")
