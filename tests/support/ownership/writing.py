"""What writers, owners and restorers do to the tables of a world; what cannot be done is left undone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from pyiceberg.table import Table

from support.ownership.lake import CATALOGS
from support.ownership.truth import Entry, Lineage
from support.ownership.witness import Rows, real_path
from support.ownership.world import World

_Chosen = TypeVar("_Chosen")
_MOST_TABLES = 4
_MOST_ENTRIES = 7


class Care(StrEnum):
    """What passes may do to a new table."""

    ALL = "all"
    NO_DELETION = "gc.enabled"
    NOTHING = "icekeeper.maintenance_enabled"


class Layout(StrEnum):
    """How a new table lies to one that is there."""

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
    """Acts on one world; ``pick`` numbers choose among what is there."""

    world: World
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _names: itertools.count[int] = field(default_factory=itertools.count)

    def lineage(self, pick: int) -> Lineage:
        return chosen(list(self.world.lineages.values()), pick)

    def entry(self, pick: int) -> Entry:
        return chosen(sorted(self.world.pointers(), key=lambda entry: (entry.name, entry.catalog)), pick)

    def new_ids(self, count: int) -> list[int]:
        return list(itertools.islice(self._ids, count))

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
            others_data = world.newest(other).metadata.properties.get("write.data.path")
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
        entry = Entry(catalog, name)
        table = lake.create(catalog, name, lake.spelled(home, spelling), properties)
        lineage = world.adopt(entry, str(table.metadata.table_uuid), home, ())
        if other is not None and layout is not Layout.APART:
            lineage.is_lonely = other.is_lonely = False
        self._commit(lineage, lambda table: self._append(table, lineage, 2))

    def register(self, pick: int, catalog: int) -> None:
        """The newest metadata under another name."""
        world = self.world
        if len(world.uuids) >= _MOST_ENTRIES:
            return
        lineage = self.lineage(pick)
        lineage.is_lonely = False
        entry = Entry(catalog, f"again{next(self._names)}")
        world.lake.register(catalog, entry.name, lineage.newest)
        world.uuids[entry] = lineage.uuid

    def lose(self, pick: int, catalog: int) -> None:
        """One more entry, whose metadata file goes at once."""
        world = self.world
        entry = Entry(catalog, f"lost{next(self._names)}")
        if len(world.uuids) + len(world.lost) < _MOST_ENTRIES:
            world.lost.add(entry)
            world.lake.lose(catalog, entry.name, self.lineage(pick).newest)

    def rename(self, pick: int) -> None:
        world, old = self.world, self.entry(pick)
        new = Entry(old.catalog, f"renamed{next(self._names)}")
        world.lake.rename(old.catalog, old.name, new.name)
        world.uuids[new] = world.uuids.pop(old)
        world.tell(f"  {world.where(old)} is {world.where(new)} now")

    def restore(self, pick: int, back: int) -> None:
        """An entry goes back to an older metadata file, as after a backup."""
        world = self.world
        lineage = self.lineage(pick)
        older = [at for at in lineage.history[:-1] if (seen := world.witness.look(at)) and not seen.missing]
        entries = world.entries_at_newest(lineage)
        if older and entries:
            lineage.is_lonely = False
            at, entry = older[-1 - back % len(older)], chosen(entries, pick)
            world.lake.point(entry.catalog, entry.name, at)
            world.tell(f"  {world.where(entry)} is back at {world.short(real_path(at))}")

    # -- commits

    def append(self, pick: int, files: int) -> None:
        lineage = self.lineage(pick)
        for _ in range(files):
            self._commit(lineage, lambda table: self._append(table, lineage, 1))

    def overwrite(self, pick: int) -> None:
        lineage = self.lineage(pick)

        def work(table: Table) -> Rows:
            ids = self.new_ids(1)
            self.world.lake.overwrite(table, ids)
            return tuple(ids)

        self._commit(lineage, work)

    def delete_row(self, pick: int, which: int) -> None:
        lineage = self.lineage(pick)
        if lineage.rows:
            gone = chosen(lineage.rows, which)

            def work(table: Table) -> Rows:
                table.delete(f"id == {gone}")
                return tuple(row for row in lineage.rows if row != gone)

            self._commit(lineage, work)

    def roll_back(self, pick: int, which: int) -> None:
        lineage = self.lineage(pick)
        snapshots = [s for s in sorted(self.world.newest(lineage).rows) if s != self.world.newest(lineage).current]
        if snapshots:
            snapshot = chosen(snapshots, which)

            def work(table: Table) -> Rows:
                with table.manage_snapshots() as manage:
                    manage.set_current_snapshot(snapshot)
                return lineage.rows_of[snapshot]

            self._commit(lineage, work)

    def tag(self, pick: int, which: int) -> None:
        lineage = self.lineage(pick)
        snapshots = sorted(self.world.newest(lineage).rows)
        if snapshots:

            def work(table: Table) -> Rows:
                with table.manage_snapshots() as manage:
                    manage.create_tag(chosen(snapshots, which), f"tag{next(self._names)}")
                return lineage.rows

            self._commit(lineage, work)

    def add_across(self, pick: int, source_pick: int) -> None:
        """The live files of one table become files of another one, too."""
        lineage, source = self.lineage(pick), self.lineage(source_pick)
        if lineage is source:
            return
        entries = self.world.entries_at_newest(source) or [*self.world.pointers_of(source.uuid)]
        beside = self.world.lake.load(entries[0].catalog, entries[0].name)
        if real_path(beside.metadata_location) != real_path(source.newest):
            return
        files = [task.file for task in beside.scan().plan_files()][:2]

        def work(table: Table) -> Rows:
            self.world.lake.add_files(table, files)
            added = [row for file in files for row in self.world.witness.live_ids(real_path(file.file_path))]
            return tuple(sorted((*lineage.rows, *added)))

        if files and not self._has_any(lineage, [file.file_path for file in files]):
            lineage.is_lonely = source.is_lonely = False
            self._commit(lineage, work)

    def add_file(self, lineage: Lineage, path: str) -> None:
        def work(table: Table) -> Rows:
            self.world.lake.add_files(table, [self.world.lake.described(table, path)])
            return tuple(sorted((*lineage.rows, *self.world.witness.live_ids(path))))

        self._commit(lineage, work)

    def move_data(self, pick: int, other_pick: int, where: int) -> None:
        """Later files of a table go to another one's data folder, to one of its own elsewhere, or home again."""
        lineage, other, world = self.lineage(pick), self.lineage(other_pick), self.world
        lineage.is_lonely = other.is_lonely = False
        root = real_path(str(world.lake.warehouse))
        data = (f"{other.home}/data", other.home, f"{root}/moved-{next(self._names)}", f"{lineage.home}/data")[
            where % 4
        ]

        def work(table: Table) -> Rows:
            with table.transaction() as transaction:
                transaction.set_properties({"write.data.path": world.lake.spelled(data, where // 4)})
            return lineage.rows

        self._commit(lineage, work)

    def _has_any(self, lineage: Lineage, paths: Sequence[str]) -> bool:
        sight = self.world.newest(lineage)
        current = sight.of_snapshot.get(sight.current, frozenset()) if sight.current else frozenset()
        return any(real_path(path) in current for path in paths)

    def _append(self, table: Table, lineage: Lineage, count: int) -> Rows:
        ids = self.new_ids(count)
        self.world.lake.append(table, ids)
        return tuple(sorted((*lineage.rows, *ids)))

    def _commit(self, lineage: Lineage, work: Callable[[Table], Rows]) -> None:
        """Writers use an entry that names the newest metadata; where none does, the owner repairs one first."""
        world = self.world
        entries = world.entries_at_newest(lineage)
        if not entries:
            entries = sorted(world.pointers_of(lineage.uuid), key=lambda entry: (entry.catalog, entry.name))[:1]
            world.lake.point(entries[0].catalog, entries[0].name, lineage.newest)
            world.tell(f"  {world.where(entries[0])} is repaired")
        rows = work(world.lake.load(entries[0].catalog, entries[0].name))
        world.wrote(lineage, entries[0], rows)
        world.tell(f"  {world.name(lineage)} as {CATALOGS[entries[0].catalog]}:{entries[0].name} holds {rows}")
