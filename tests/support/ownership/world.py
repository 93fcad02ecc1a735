"""Tables, catalogs and holds of a world, and what their writers do."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import sqlite3
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from sqlalchemy import delete, update

from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.state.sqlite.store import SqliteStateStore
from support.ownership.truth import (
    Entry,
    Hold,
    Lineage,
    PassReport,
    Rows,
    Sight,
    Witness,
    could_know,
    is_below,
    real_path,
)

# Tables of several catalogs on this disk, as their writers see them; PyIceberg writes, renames and registers.

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string())])
# As PyIceberg numbers the columns of a new table.
_WITH_FIELD_IDS = pa.schema(
    [field.with_metadata({"PARQUET:field_id": str(number)}) for number, field in enumerate(SCHEMA, start=1)]
)
CATALOGS = ("lake0", "lake1", "lake2")
_NAMESPACE = "ns"
_OLD_DAYS = 10
SPELLINGS = ("file:///{root}/wh", "file:///{root}/wh", "/{root}/wh", "file:///{root}/link")
"""How one place may be written; ``link`` leads to ``wh``."""


class Lake:
    """Catalogs, state store and warehouse below one folder, copied from a template that costs 50 ms to make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "wh"
        self.state = SqliteStateStore(folder / "state.db")
        settings = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "init_catalog_tables": "false"}
        self._settings = {**settings, "warehouse": self.warehouse.as_uri()}
        # Asked a hundred times in a case, by whichever thread a pass is interrupted in.
        self._reader = sqlite3.connect(folder / "catalog.db", isolation_level=None, check_same_thread=False)
        self._opened: dict[int, tuple[SqlCatalog, OurSqlCatalog]] = {}
        self._aged: set[str] = set()
        self._names = 0

    @classmethod
    def copied(cls, template: Path, folder: Path) -> Lake:
        shutil.copytree(template, folder, symlinks=True)
        return cls(folder)

    @classmethod
    def make_template(cls, folder: Path) -> None:
        (folder / "wh").mkdir(parents=True)
        (folder / "link").symlink_to("wh")
        for name in CATALOGS:
            catalog = SqlCatalog(name, uri=f"sqlite:///{folder / 'catalog.db'}")
            catalog.create_namespace(_NAMESPACE)
            catalog.close()
        SqliteStateStore(folder / "state.db").require_writable()

    def close(self) -> None:
        self._reader.close()
        for writer, ours in self._opened.values():
            writer.close()
            ours.close()
        shutil.rmtree(self.folder)

    def writer(self, catalog: int) -> SqlCatalog:
        return self._open(catalog)[0]

    def ours(self, catalog: int) -> OurSqlCatalog:
        return self._open(catalog)[1]

    def _open(self, catalog: int) -> tuple[SqlCatalog, OurSqlCatalog]:
        if catalog not in self._opened:
            name = CATALOGS[catalog]
            configured = ConfiguredCatalog(name, CatalogKind.SQL, self._settings)
            self._opened[catalog] = SqlCatalog(name, **self._settings), OurSqlCatalog(configured)
        return self._opened[catalog]

    def spelled(self, real: str, spelling: int) -> str:
        """An address of something below the warehouse, by its real path."""
        root = str(self.folder).lstrip("/")
        relative = os.path.relpath(real, real_path(str(self.warehouse)))
        return f"{SPELLINGS[spelling % len(SPELLINGS)].format(root=root)}/{relative}".removesuffix("/.")

    # -- entries of catalogs

    def create(self, catalog: int, name: str, location: str, properties: Mapping[str, str]) -> Table:
        return self.writer(catalog).create_table(
            (_NAMESPACE, name), schema=SCHEMA, location=location, properties=dict(properties)
        )

    def load(self, catalog: int, name: str) -> Table:
        return self.writer(catalog).load_table((_NAMESPACE, name))

    def register(self, catalog: int, name: str, location: str) -> None:
        self.writer(catalog).register_table((_NAMESPACE, name), location)

    def lose(self, catalog: int, name: str, like: str) -> None:
        """Register a table of its own that is like another one, and remove its metadata file."""
        document = json.loads(Path(real_path(like)).read_text())
        path = self.warehouse / name / "metadata" / "00000-lost.metadata.json"
        path.parent.mkdir(parents=True)
        location = {"table-uuid": str(uuid.uuid4()), "location": path.parents[1].as_uri()}
        path.write_text(json.dumps({**document, **location}))
        self.register(catalog, name, path.as_uri())
        path.unlink()

    def rename(self, catalog: int, old: str, new: str) -> None:
        self.writer(catalog).rename_table((_NAMESPACE, old), (_NAMESPACE, new))

    def pointers(self) -> dict[tuple[int, str], str]:
        """Metadata location by entry."""
        rows = self._reader.execute("SELECT catalog_name, table_name, metadata_location FROM iceberg_tables")
        return {(CATALOGS.index(catalog), name): location for catalog, name, location in rows.fetchall()}

    def point(self, catalog: int, name: str, location: str) -> None:
        """As a restored database does, past every check."""
        mine = IcebergTables.catalog_name == CATALOGS[catalog], IcebergTables.table_name == name
        with self._open(catalog)[0].engine.begin() as connection:
            connection.execute(update(IcebergTables).where(*mine).values(metadata_location=location))

    def forget(self, catalog: int, name: str) -> None:
        """Drop the entry; no file goes."""
        mine = IcebergTables.catalog_name == CATALOGS[catalog], IcebergTables.table_name == name
        with self._open(catalog)[0].engine.begin() as connection:
            connection.execute(delete(IcebergTables).where(*mine))

    # -- files

    def stray(self, folder: str, ids: Sequence[int]) -> str:
        """A data file that no commit names; its real path."""
        self._names += 1
        path = Path(folder) / f"stray-{self._names}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_rows(ids).cast(_WITH_FIELD_IDS), path)
        return real_path(str(path))

    @staticmethod
    def add_files(table: Table, files: Sequence[DataFile]) -> None:
        """Commit files that lie there already, as ``add_files`` does."""
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in files:
                append.append_data_file(file)

    @staticmethod
    def described(table: Table, path: str) -> DataFile:
        return parquet_file_to_data_file(table.io, table.metadata, path)

    def append(self, table: Table, ids: Sequence[int]) -> None:
        table.append(_rows(ids))

    def overwrite(self, table: Table, ids: Sequence[int]) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Delete operation did not match any records")  # an empty table
            table.overwrite(_rows(ids))

    def files(self) -> frozenset[str]:
        """Real paths of all that lies in the warehouse."""
        root = real_path(str(self.warehouse))
        return frozenset(os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)

    def age(self) -> None:
        """All that lies there has lain there for days."""
        then = time.time() - _OLD_DAYS * 86_400
        for path in self.files() - self._aged:
            os.utime(path, (then, then))
            self._aged.add(path)


def _rows(ids: Sequence[int]) -> pa.Table:
    columns: dict[str, Any] = {"id": list(ids), "part": ["p"] * len(ids)}
    return pa.table(columns, schema=SCHEMA)


# Tables, entries, holds, and what must be true of them after every step.


class World:
    """What there is; ``tell`` gets a line for everything that happens."""

    def __init__(self, lake: Lake, tell: Callable[[str], object], tally: Counter[str]) -> None:
        self.lake = lake
        self.witness = Witness()
        self._tell = tell
        self._untold: list[str] = []
        self.tally = tally
        self.lineages: dict[str, Lineage] = {}
        self.uuids: dict[Entry, str] = {}
        """Which table an entry is of."""
        self.served: set[int] = set()
        """Catalogs of which a pass or a scan has met a table; what the step under way meets does not count yet."""
        self.lost: set[Entry] = set()
        """Entries whose metadata file is gone; nobody can read their tables, and they are of no interest."""
        self._complete: dict[Entry, str] = {}
        """Entries at metadata files whose history was complete when the step began."""
        self.holds: list[Hold] = []
        self.reports: list[PassReport] = []
        """Passes of the step that is being taken."""

    def tell(self, line: str) -> None:
        """Only the case's own thread may speak: what others have to say waits for it."""
        self._untold.append(line)
        if threading.current_thread() is threading.main_thread():
            while self._untold:
                self._tell(self._untold.pop(0))

    # -- what there is

    def pointers(self) -> dict[Entry, str]:
        found = {Entry(*entry): location for entry, location in self.lake.pointers().items()}
        return {entry: location for entry, location in found.items() if entry not in self.lost}

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

    # -- what happened

    def adopt(self, entry: Entry, uuid: str, home: str, rows: Rows) -> Lineage:
        """A table was created."""
        at = self.pointers()[entry]
        self.uuids[entry] = uuid
        lineage = self.lineages[uuid] = Lineage(uuid, home, at, rows)
        properties = self.newest(lineage).metadata.properties
        lineage.is_off = properties.get("icekeeper.maintenance_enabled") == "false"
        lineage.keeps_files = lineage.is_off or properties.get("gc.enabled") == "false"
        lineage.moves(at, self.newest(lineage))
        return lineage

    def wrote(self, lineage: Lineage, entry: Entry, rows: Rows) -> None:
        """A writer committed through an entry."""
        lineage.rows = rows
        lineage.newest = self.pointers()[entry]
        lineage.moves(lineage.newest, self.newest(lineage))

    def advance(self) -> None:
        """What came of the newest metadata file of a table by a pass, is the newest."""
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

    # -- what must be true

    def check(self) -> None:
        """After a step: every table is complete through its newest metadata file, and so is every hold."""
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
        """A single newer metadata file that no entry names may be a swap that crashed: once the table has gone on
        without it, it is."""
        for report in self.reports:
            lineage = report.table
            if report.moved and report.behind == 1 and report.is_alone:
                at = self.pointers()[report.entry]
                sight = self.witness.look(at)
                assert sight is not None, f"{report.entry} is at {at}, which is gone"
                lineage.newest = at
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
        """What stands at a metadata file needs its whole history, as long as it stands there."""
        for entry, at in pointers.items():
            sight = self.witness.look(at)
            if self._complete.get(entry) != at or sight is None or not sight.missing:
                continue
            for path in sorted(sight.missing):
                suspects = [r for r in self.reports if path in r.deleted] or self.reports
                if all(entry.catalog in {*self.served, report.entry.catalog} for report in suspects):
                    raise self.loss(f"history of {self.where(entry)}", self.lineages[self.uuids[entry]], path)
            self.tally["histories that nobody could know of"] += 1

    def _begin_step(self) -> None:
        for lineage in self.lineages.values():
            lineage.needed_before = self.newest(lineage).needed
        sights = {entry: (at, self.witness.look(at)) for entry, at in self.pointers().items()}
        self._complete = {entry: at for entry, (at, sight) in sights.items() if sight is not None and not sight.missing}

    def _blame(
        self, what: str, victim: Lineage, gone: Sequence[str], pointers: Mapping[Entry, str], hold: Hold | None = None
    ) -> bool:
        """Whether nobody could know; else this is what the model is for."""
        entries = {entry: at for entry, at in pointers.items() if self.uuids.get(entry) == victim.uuid}
        for path in gone:
            suspects = [r for r in self.reports if path in r.deleted] or self.reports
            if not any(self._is_excused(path, victim, report, entries, hold) for report in suspects):
                raise self.loss(what, victim, path, hold)
        self.tally["losses that nobody could foresee"] += 1
        self.tell(f"  excused: {self.name(victim)} lost {', '.join(map(self.short, gone))}")
        return True

    def _is_excused(
        self, path: str, victim: Lineage, report: PassReport, entries: Mapping[Entry, str], hold: Hold | None
    ) -> bool:
        if hold is not None and report.table is victim:
            return False
        return not could_know(path, victim, report, entries, self.served)

    def loss(self, what: str, victim: Lineage, path: str, hold: Hold | None = None) -> AssertionError:
        """Each kind of loss is a type of its own, so that hypothesis takes two kinds for two failures."""
        reports = [r for r in self.reports if path in r.deleted] or self.reports
        lines = [f"{self.name(victim)} lost {self.short(path)}"]
        kinds = set()
        for report in reports:
            culprit = report.table
            by = (report.deleted[path] or "staged files") if path in report.deleted else "unsaid"
            kinds.add(" | ".join((what, by, *self._relation(victim, culprit, report, hold, path))))
            lines.append(f"by {by} of the pass over {self.name(culprit)} as {self.where(report.entry)}")
        kind = f"LOST {' + '.join(sorted(kinds))}"
        return _type_of(kind)("\n".join([kind, *lines]))

    def _relation(
        self, victim: Lineage, culprit: Lineage, report: PassReport, hold: Hold | None, path: str
    ) -> Iterator[str]:
        """What a pass and what it took have to do with each other."""
        yield "itself" if culprit is victim else "another table"
        behind = Witness.number(victim.newest) - Witness.number(report.start) if report.behind else 0
        yield "newest" if not behind else "stale by one" if behind == 1 else "stale"
        yield "at home" if is_below(path, [victim.home]) else "outside"
        catalogs = {entry.catalog for entry in self.pointers_of(victim.uuid)}
        yield "same catalog" if report.entry.catalog in catalogs else "other catalog"
        metadata = self.newest(victim).metadata
        if hold is None and "/link/" in f"{metadata.location} {metadata.properties.get('write.data.path')}":
            yield "through a link"
        if hold is not None:
            is_same = (hold.entry, hold.door) == (report.entry, report.door)
            yield "same name" if is_same else "another name"

    def where(self, entry: Entry) -> str:
        return f"{CATALOGS[entry.catalog]}:{entry.name}"

    def _retire(self, lineage: Lineage) -> None:
        """What is broken with good reason is no longer of interest."""
        for entry in self.pointers_of(lineage.uuid):
            self.lake.forget(entry.catalog, entry.name)
            del self.uuids[entry]
        self.holds = [hold for hold in self.holds if hold.uuid != lineage.uuid]
        del self.lineages[lineage.uuid]

    def _look(self) -> None:
        """What passes have looked at, later ones know."""
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


@functools.cache
def _type_of(kind: str) -> type[AssertionError]:
    return type(kind, (AssertionError,), {})


# What writers, owners and restorers do to the tables of a world; what cannot be done is left undone.

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
