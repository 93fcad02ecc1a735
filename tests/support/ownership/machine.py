"""The model of ownership: its steps, its passes, and how a pass comes to a table."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from icekeeper.administration.pins import add_pin, declare_load, remove_pin, stage_load
from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MaintenanceError
from icekeeper.machine.clock import system_clock
from icekeeper.model import CatalogId, TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.staging import LoadState
from icekeeper.storage.storage import Storage
from support.maintained_table import without_leases
from support.ownership.truth import Entry, Hold, Lineage, PassReport, Rows, Witness, real_path
from support.ownership.world import CATALOGS, Care, Lake, Layout, World, Writing, chosen

# How a pass comes to a table: a catalog under one of its names, with something that happens in the middle.

DOORS = 3
"""Each catalog is known under so many names."""


class Moment(StrEnum):
    """Where a pass can be interrupted."""

    LOAD = "load"
    WORK = "work"
    BEFORE_COMMIT = "before commit"
    AFTER_COMMIT = "after commit"
    LIST = "list"
    DELETE = "delete"


class Interruption:
    """Lets something happen once, at the n-th time (0 is the first) that a pass comes to a moment."""

    def __init__(self, moment: Moment, nth: int, happens: Callable[[], object]) -> None:
        self.has_happened = False
        self._moment, self._left, self._happens = moment, nth, happens
        self._lock = threading.Lock()

    def at(self, moment: Moment) -> None:
        with self._lock:
            if moment is not self._moment or self.has_happened:
                return
            self._left -= 1
            if self._left >= 0:
                return
            self.has_happened = True
        self._happens()

    @contextmanager
    def watching_storage(self) -> Iterator[None]:
        """Listings and deletions of whoever works here."""

        def watched(name: str, moment: Moment) -> Any:
            original = getattr(Storage, name)

            def call(storage: Storage, *args: Any, **kwargs: Any) -> Any:
                self.at(moment)
                return original(storage, *args, **kwargs)

            return mock.patch.object(Storage, name, call)

        with watched("list", Moment.LIST), watched("delete", Moment.DELETE):
            yield


class Door:
    """A catalog under another name and with another spelling of its warehouse, as another configuration would say."""

    built_in_maintenance = None

    def __init__(self, inner: Catalog, number: int, at: Callable[[Moment], object] = lambda moment: None) -> None:
        self._inner, self._at = inner, at
        name, warehouse = inner.id
        names = (name, name.upper(), f"alias-of-{name}")
        warehouses = (warehouse, f"{warehouse}/", warehouse.removeprefix("file://"))
        self.id = CatalogId(names[number % DOORS], warehouses[number % DOORS])

    def list_tables(self) -> Iterator[TableName]:
        return self._inner.list_tables()

    def load(self, table: TableName) -> LoadedTable:
        self._at(Moment.LOAD)
        return self._inner.load(table)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self._at(Moment.BEFORE_COMMIT)
        after = self._inner.commit(base, requirements, updates)
        self._at(Moment.AFTER_COMMIT)
        return after


def door_named(catalogs: Sequence[Catalog], recorded: CatalogId) -> Door | None:
    """The door, one way to reach a catalog, that has this catalog name and warehouse; ``None`` if there is none."""
    doors = (Door(catalog, number) for catalog in catalogs for number in range(DOORS))
    return next((door for door in doors if door.id == recorded), None)


class InterruptedEngine(LocalEngine):
    """Works in this process; then comes the moment before anything is committed."""

    def __init__(self, at: Callable[[Moment], object] = lambda moment: None) -> None:
        super().__init__(1)
        self._at = at

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], on_done: Callable[[int], None]) -> list[Any]:
        results = super().map(function, tasks, on_done)
        self._at(Moment.WORK)
        return results


# Passes over the tables of a world: real ones, perhaps with something in their middle; what each did is reported.

EAGER = {
    "min_input_files": "2",
    "min_manifests_to_rewrite": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_max_delete_ratio": "1",
}
"""Everything that may go goes at once, and two of anything are too many."""


def table_name(entry: Entry) -> TableName:
    return TableName(("ns",), entry.name)


@dataclass(slots=True)
class Passing:
    """Runs passes over one world."""

    world: World
    depth: int = 0
    problem: BaseException | None = None
    """What went wrong in the middle of a pass, which the pass itself must not swallow."""

    def run(
        self,
        entry: Entry,
        door: int,
        settings: Mapping[str, str],
        interruption: Interruption | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        """One pass; it may refuse, but raises nothing, and what it refused changes nothing."""
        world = self.world
        before, pointer = world.lake.files(), world.pointers()[entry]
        report = self._report(entry, door, pointer)
        outcome = self._outcome(entry, door, settings, interruption, report, dry_run=dry_run)
        report.moved = world.pointers()[entry] != pointer
        if outcome is None:
            return
        world.reports.append(report)
        world.advance()
        for operation in outcome.operations:
            world.tally[f"{operation.operation.value} {operation.status.value}"] += 1
            world.tally["files deleted"] += len(operation.files_deleted)
            world.tell(f"  {operation.operation.value}: {operation.status.value}, {operation.summary}")
            report.deleted.update(dict.fromkeys(map(real_path, operation.files_deleted), operation.operation))
        if outcome.staged is not None:
            world.tell(f"  staged: {outcome.staged.summary}")
            report.deleted.update(dict.fromkeys(map(real_path, outcome.staged.files_deleted), None))
        alone = interruption is None and self.depth == 0
        if alone and not dry_run:
            self._check_refusals(outcome, report, before)
        if alone and report.was_newest:
            broken = [part.summary for part in outcome.operations if part.status is Status.FAILED]
            assert not broken, f"FAILED {broken[0]}"

    def _report(self, entry: Entry, door: int, pointer: str) -> PassReport:
        world = self.world
        lineage = world.lineages[world.uuids[entry]]
        is_newest = real_path(pointer) == real_path(lineage.newest)
        return PassReport(
            entry,
            door,
            lineage,
            pointer,
            was_newest=is_newest,
            behind=0 if is_newest else Witness.number(lineage.newest) - Witness.number(pointer),
            is_alone=not world.entries_at_newest(lineage),
        )

    def _outcome(
        self,
        entry: Entry,
        door: int,
        settings: Mapping[str, str],
        interruption: Interruption | None,
        report: PassReport,
        *,
        dry_run: bool,
    ) -> PassOutcome | None:
        world = self.world
        at: Callable[..., object] = (lambda moment: None) if interruption is None else interruption.at
        catalog = Door(world.lake.ours(entry.catalog), door, at)
        runtime = Runtime(
            catalog,
            world.lake.state,
            environment={},
            other_catalog=partial(door_named, [world.lake.ours(number) for number in range(len(CATALOGS))]),
        )
        watching = nullcontext() if interruption is None else interruption.watching_storage()
        self.problem = None if self.depth == 0 else self.problem
        try:
            with watching, without_leases():
                outcome = runtime.maintain(
                    table_name(entry), {**EAGER, **settings}, InterruptedEngine(at), dry_run=dry_run, unsafe=True
                )
        except MaintenanceError as error:
            sight = world.witness.look(report.start)
            if sight is not None and not sight.missing:
                raise AssertionError(f"RAISED {type(error).__name__}: {error}") from error
            world.tell(f"  cannot be loaded: {error}")
            return None
        finally:
            if self.depth == 0 and self.problem is not None:
                raise self.problem
        return outcome

    def _check_refusals(self, outcome: PassOutcome, report: PassReport, before: frozenset[str]) -> None:
        """A refusal leaves every file where it was, and adds none."""
        if all(part.status is Status.REFUSED for part in outcome.operations):
            cleaned = {path for path, operation in report.deleted.items() if operation is None}
            after = self.world.lake.files()
            assert before - cleaned == after, f"REFUSED, but changed {sorted(before ^ after)}"
            assert not report.moved, "REFUSED, but committed"


# The model of ownership: what hypothesis lets happen, step by step, and what must be true after each step.

_FOREVER_MS = 1 << 40
_picks = st.integers(0, 11)
_catalogs = st.integers(0, len(CATALOGS) - 1)
_doors = st.integers(0, DOORS - 1)
_layouts = st.sampled_from(Layout)
_care = st.sampled_from((Care.ALL, Care.ALL, *Care))
_operations = st.sampled_from(
    ("all", "expire_snapshots", "remove_orphans", "compact,expire_snapshots", "expire_snapshots,remove_orphans")
)
_arrangements = st.sampled_from(
    ("register again", "register again", "rename", "restore", "restore", "move data", "lose")
)
_changes = st.sampled_from(("append", "overwrite", "delete a row", "tag", "roll back"))
_moments = st.sampled_from(Moment)
_interludes = st.sampled_from(("append", "overwrite", "pass", "pass", "pin"))
# What another pass has in flight is younger than any grace period that makes sense.
_ALL_AT_ONCE = {"orphan_older_than_hours": "0"}
_WITH_GRACE = {"orphan_older_than_hours": "1"}


class OwnershipMachine(RuleBasedStateMachine):
    """One case; ``pick`` numbers choose among the tables or entries that there are.

    ``read_again`` is a second reader, asked in the end, who may have nothing to say.
    """

    def __init__(
        self, template: Path, folder: Path, tally: Counter[str], read_again: Callable[[str], Rows | None]
    ) -> None:
        super().__init__()
        lake = Lake.copied(template, Path(tempfile.mkdtemp(dir=folder)) / "lake")
        self.world = World(lake, note, tally)
        self.writing = Writing(self.world)
        self.passing = Passing(self.world)
        self._names = itertools.count(1)
        self._read_again = read_again
        self.is_broken = False
        """Whether a step has failed: then nothing more is to be said."""

    def teardown(self) -> None:
        """Real scans, which trust nothing that was remembered; and tables that met no other are clean in the end."""
        try:
            if not self.is_broken:
                self._clean_lonely()
                for lineage in self.world.lineages.values():
                    assert Witness.scan(lineage.newest) == lineage.rows
                    assert self._read_again(lineage.newest) in (None, lineage.rows)
        finally:
            self.world.lake.close()

    def _clean_lonely(self) -> None:
        world = self.world
        for lineage in [lineage for lineage in world.lineages.values() if self._is_to_be_clean(lineage)][:1]:
            (entry,) = world.entries_at_newest(lineage)
            self._pass(entry, 0, "expire_snapshots,remove_orphans")
            needed = world.newest(lineage).needed.union(*(hold.paths for hold in world.holds))
            there = {path for path in world.lake.files() if path.startswith(f"{lineage.home}/")}
            left = sorted(path for path in there - needed if not path.endswith(".metadata.json"))
            assert not left, f"LEFT {world.name(lineage)} keeps what nobody needs: {', '.join(map(world.short, left))}"

    def _is_to_be_clean(self, lineage: Lineage) -> bool:
        return lineage.is_lonely and not lineage.keeps_files and self.world.is_whole()

    @initialize(layout=_layouts, catalog=_catalogs, spelling=st.integers(0, 15), care=_care)
    def begin(self, layout: Layout, catalog: int, spelling: int, care: Care) -> None:
        self.writing.create(0, Layout.APART, 0, 0)
        self.writing.create(catalog, layout, 0, spelling, care)
        self._check()

    # -- tables and writers

    @rule(catalog=_catalogs, layout=_layouts, pick=_picks, spelling=st.integers(0, 15), care=_care)
    def create(self, catalog: int, layout: Layout, pick: int, spelling: int, care: Care) -> None:
        self.writing.create(catalog, layout, pick, spelling, care)
        self._check()

    @rule(how=_arrangements, pick=_picks, other=_picks, where=st.integers(0, 15))
    def rearrange(self, how: str, pick: int, other: int, where: int) -> None:
        """No rows change, but which table is called what, and where its files go."""
        match how:
            case "register again":
                self.writing.register(pick, other % len(CATALOGS))
            case "rename":
                self.writing.rename(pick)
            case "lose":
                self.writing.lose(pick, other % len(CATALOGS))
            case "restore":
                self.writing.restore(pick, where)
            case _:
                self.writing.move_data(pick, other, where)
        self._check()

    @rule(how=_changes, pick=_picks, which=_picks)
    def write(self, how: str, pick: int, which: int) -> None:
        self._write(how, pick, which)
        self._check()

    @rule(catalog=_catalogs, door=_doors)
    def scan(self, catalog: int, door: int) -> None:
        """Detection over one catalog: from now on it is served, whatever its tables are."""
        self._scan(catalog, door)
        self._check()

    def _scan(self, catalog: int, door: int) -> None:
        world = self.world
        Runtime(Door(world.lake.ours(catalog), door), world.lake.state, environment={}).detect()
        if any(entry.catalog == catalog and world.witness.look(at) for entry, at in world.pointers().items()):
            world.served.add(catalog)

    @rule(pick=_picks, source=_picks, door=_doors, is_seen=st.booleans())
    def add_across(self, pick: int, source: int, door: int, is_seen: bool) -> None:
        """Files of another table; perhaps a pass looks at it afterwards."""
        self.writing.add_across(pick, source)
        self._check()
        lineage = self.writing.lineage(pick)
        if is_seen:
            for entry in self.world.entries_at_newest(lineage)[:1]:
                self._pass(entry, door, "expire_snapshots", dry_run=True)

    # -- holds

    @rule(pick=_picks, door=_doors)
    def pin(self, pick: int, door: int) -> None:
        self._pin(self.writing.entry(pick), door)
        self._check()

    @rule(pick=_picks, door=_doors)
    def stage(self, pick: int, door: int) -> None:
        """A file that awaits its commit."""
        world, lineage = self.world, self.writing.lineage(pick)
        entries = world.entries_at_newest(lineage)
        if entries:
            name, entry = f"load{next(self._names)}", entries[0]
            path = world.lake.stray(f"{lineage.home}/data", self.writing.new_ids(1))
            location = world.newest(lineage).metadata.location
            stage_load(self._handle(entry, door), name, [f"{location}/data/{Path(path).name}"], [])
            world.holds.append(Hold(lineage.uuid, name, entry, door, frozenset({path}), is_pin=False))
        self._check()

    @rule(pick=_picks, is_adopted=st.booleans())
    def settle(self, pick: int, is_adopted: bool) -> None:
        """A pin is given back; a load is committed, or failed."""
        world = self.world
        if world.holds:
            hold = chosen(world.holds, pick)
            world.holds.remove(hold)
            if hold.is_pin:
                self._forgiven(lambda: remove_pin(self._handle(hold.entry, hold.door), hold.name))
            else:
                if is_adopted:
                    self.writing.add_file(world.lineages[hold.uuid], next(iter(hold.paths)))
                state = LoadState.ADOPTED if is_adopted else LoadState.FAILED
                self._forgiven(lambda: declare_load(self._handle(hold.entry, hold.door), hold.name, state))
        self._check()

    # -- passes

    @rule(pick=_picks, door=_doors, operations=_operations)
    def maintain(self, pick: int, door: int, operations: str) -> None:
        self._pass(self.writing.entry(pick), door, operations)

    @rule(how=_changes, pick=_picks, which=_picks, door=_doors, operations=_operations)
    def write_and_maintain(self, how: str, pick: int, which: int, door: int, operations: str) -> None:
        """What was there is needed by nobody, as far as this table knows; or there is much to merge."""
        lineage = self.writing.lineage(pick)
        self._write(how, pick, which)
        self._check()
        for entry in self.world.entries_at_newest(lineage)[:1]:
            self._pass(entry, door, operations)

    @rule(pick=_picks, catalog=_catalogs, door=_doors, operations=_operations)
    def migrate_and_maintain(self, pick: int, catalog: int, door: int, operations: str) -> None:
        """A second entry at the newest head, of a catalog that is served; the pass goes on through the first one."""
        self.writing.overwrite(pick)
        self.writing.register(pick, catalog)
        self._scan(catalog, door)
        self._check()
        for entry in self.world.entries_at_newest(self.writing.lineage(pick))[:1]:
            self._pass(entry, door, operations)

    @rule(pick=_picks, door=_doors)
    def sweep(self, pick: int, door: int) -> None:
        """Perhaps through an entry that has fallen behind just now."""
        self.writing.overwrite(pick)
        self._check()
        self._pass(self.writing.entry(pick), door, "expire_snapshots,remove_orphans")

    @rule(pick=_picks, door=_doors)
    def look(self, pick: int, door: int) -> None:
        """A dry run."""
        self._pass(self.writing.entry(pick), door, "expire_snapshots", dry_run=True)

    @rule(
        pick=_picks,
        door=_doors,
        operations=_operations,
        moment=_moments,
        nth=st.integers(0, 6),
        interlude=_interludes,
        other=_picks,
        inner=_operations,
    )
    def maintain_meanwhile(
        self, pick: int, door: int, operations: str, moment: Moment, nth: int, interlude: str, other: int, inner: str
    ) -> None:
        """Something happens in the middle of a pass."""
        world, entry = self.world, self.writing.entry(pick)

        def happens() -> None:
            world.tell(f"  meanwhile ({moment.value} {nth}): {interlude}")
            world.advance()  # what the pass has committed by now, writers go on from
            if moment is Moment.WORK:
                world.lake.age()  # the work took days
            self.passing.depth += 1
            try:
                match interlude:
                    case "append":
                        self.writing.append(other, 1)
                    case "overwrite":
                        self.writing.overwrite(other)
                    case "pin":
                        # Of an older pointer's head a file may be on its way out already.
                        for second in world.entries_at_newest(self.writing.lineage(other))[:1]:
                            self._pin(second, door)
                    case _:
                        second = self.writing.entry(other)
                        world.tell(f"  second pass over {world.where(second)}: {inner}")
                        self.passing.run(second, other % DOORS, {"operations": inner, **_WITH_GRACE})
            except BaseException as error:
                self.passing.problem = error
            finally:
                self.passing.depth -= 1

        self._pass(entry, door, operations, Interruption(moment, nth, happens))

    # -- how

    def _write(self, how: str, pick: int, which: int) -> None:
        match how:
            case "append":
                self.writing.append(pick, 2)
            case "overwrite":
                self.writing.overwrite(pick)
            case "delete a row":
                self.writing.delete_row(pick, which)
            case "tag":
                self.writing.tag(pick, which)
            case _:
                self.writing.roll_back(pick, which)

    def _check(self) -> None:
        self.is_broken = True
        self.world.check()
        if not self.world.lineages:
            self.writing.create(0, Layout.APART, 0, 0)
        self.is_broken = False

    def _pass(
        self,
        entry: Entry,
        door: int,
        operations: str,
        interruption: Interruption | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        world = self.world
        lineage = world.lineages[world.uuids[entry]]
        world.tell(f"  pass over {world.name(lineage)} as {world.where(entry)}, door {door}: {operations}")
        world.lake.age()
        self.is_broken = True
        grace = _ALL_AT_ONCE if interruption is None else _WITH_GRACE
        self.passing.run(entry, door, {"operations": operations, **grace}, interruption, dry_run=dry_run)
        self._check()

    def _pin(self, entry: Entry, door: int) -> None:
        world, name = self.world, f"pin{next(self._names)}"
        at = world.pointers()[entry]
        sight = world.witness.look(at)
        if sight is None or sight.current is None or sight.missing & sight.of_snapshot[sight.current]:
            return
        if self._forgiven(
            lambda: add_pin(self._handle(entry, door), snapshot="current", ttl_ms=_FOREVER_MS, name=name)
        ):
            held = sight.of_snapshot[sight.current] | {real_path(at)}
            world.holds.append(Hold(world.uuids[entry], name, entry, door, held, is_pin=True))
            world.tell(f"  {name} holds the head of {world.where(entry)}, door {door}")

    def _handle(self, entry: Entry, door: int) -> TableHandle:
        lake = self.world.lake
        return TableHandle(Door(lake.ours(entry.catalog), door), table_name(entry), lake.state, system_clock)

    def _forgiven(self, work: Callable[[], object]) -> bool:
        """Whether it could be done: an entry may be gone or stale by now, and then so be it."""
        try:
            work()
        except MaintenanceError as error:
            self.world.tell(f"  not done: {error}")
            return False
        return True
