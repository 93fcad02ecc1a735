"""The model of ownership: its steps, its passes, and the entries through which a pass reaches a table."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from icekeeper.administration.pins import add_pin, declare_load, remove_pin, stage_load
from icekeeper.errors import MaintenanceError
from icekeeper.machine.clock import system_clock
from icekeeper.model import CatalogId
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.state.staging import LoadState
from support.model.actions import WRITES, Verb, make_ref
from support.model.lake import CATALOGS, Care, Lake, LakeWorld, Layout, Shelf, Writing, chosen, table_name
from support.model.process import ALL, WORK_DONE, Maintainer, Process, all_watched, in_one_thread
from support.model.truth import Entry, Hold, Lineage, PassReport, Rows, Witness, real_path
from support.model.world import Client

# How a pass reaches a table: through a catalog under one of its names, with an interruption.

DOORS = 3
"""The number of names of each catalog."""


class Moment(StrEnum):
    """Moments at which a pass can be interrupted."""

    LOAD = "load"
    WORK = WORK_DONE
    BEFORE_COMMIT = "commit"
    AFTER_COMMIT = "after commit"
    LIST = "list"
    DELETE = "delete"


@dataclass(slots=True)
class Interruption:
    """Acts once, when a pass reaches a moment for the n-th time (0 is the first)."""

    moment: Moment
    nth: int
    happens: Callable[[], object]
    _before: str = ""

    def stops_before(self, what: str) -> bool:
        """Whether the pass reaches the moment now, before a step with this name."""
        is_after, self._before = self._before == Moment.BEFORE_COMMIT, what
        if is_after if self.moment is Moment.AFTER_COMMIT else what == self.moment.value:
            self.nth -= 1
            return self.nth == -1
        return False


def identity_of(lake: Lake, catalog: int, door: int) -> CatalogId:
    """A catalog's name and the spelling of its warehouse in another configuration."""
    name, warehouse = CATALOGS[catalog], lake.warehouse
    names = (name, name.upper(), f"alias-of-{name}")
    return CatalogId(names[door], (warehouse.as_uri(), f"{warehouse.as_uri()}/", str(warehouse))[door])


# Real passes over the tables of a world, which may be interrupted, with a report of each.

EAGER = {
    "min_input_files": "2",
    "min_manifests_to_rewrite": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_max_delete_ratio": "1",
}
"""Deletions have no grace, and all thresholds are two."""


@dataclass(slots=True)
class Passing:
    """Runs passes over a world."""

    world: LakeWorld
    depth: int = 0
    """1 during a pass."""
    _maintainers: dict[tuple[int, int, int], Maintainer] = field(default_factory=dict)

    def maintainer(self, catalog: int, door: int) -> Maintainer:
        """The process that uses a catalog under this name; during a pass, another process."""
        key = catalog, door % DOORS, self.depth
        if key not in self._maintainers:
            lake = self.world.lake
            self._maintainers[key] = Maintainer(
                f"{key}",
                lake.folder,
                lambda process: self._client(process, catalog, door % DOORS),
                system_clock,
                other_catalog=self._named,
                table_settings="",
            )
        return self._maintainers[key]

    def _client(self, process: Process, catalog: int, door: int) -> Client:
        return Client(Shelf(self.world.lake, catalog), process, identity_of(self.world.lake, catalog, door))

    def _named(self, process: Process, recorded: CatalogId) -> Client | None:
        """The catalog with this name and warehouse in one of the configurations."""
        for catalog, door in itertools.product(range(len(CATALOGS)), range(DOORS)):
            if identity_of(self.world.lake, catalog, door) == recorded:
                return self._client(process, catalog, door)
        return None

    def run(
        self,
        entry: Entry,
        door: int,
        settings: Mapping[str, str],
        interruption: Interruption | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        """Run a pass; it may refuse, but raises no error, and a refusal changes nothing."""
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
        world, maintainer = self.world, self.maintainer(entry.catalog, door)
        process = maintainer.process
        maintainer.begin(table_name(entry), {**EAGER, **settings}, dry_run=dry_run)
        process.stops_before = (lambda what: False) if interruption is None else interruption.stops_before
        process.go(ALL)
        if process.is_at_work and interruption is not None:
            self.depth += 1
            interruption.happens()
            self.depth -= 1
            process.go(ALL)
        outcome = process.outcome
        if isinstance(outcome, MaintenanceError):
            sight = world.witness.look(report.start)
            if sight is not None and not sight.missing:
                raise AssertionError(f"RAISED {type(outcome).__name__}: {outcome}") from outcome
            world.tell(f"  cannot be loaded: {outcome}")
            return None
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, PassOutcome)
        return outcome

    def _check_refusals(self, outcome: PassOutcome, report: PassReport, before: frozenset[str]) -> None:
        """Check that a refusal deletes no file and adds none."""
        if all(part.status is Status.REFUSED for part in outcome.operations):
            cleaned = {path for path, operation in report.deleted.items() if operation is None}
            after = self.world.lake.files()
            assert before - cleaned == after, f"REFUSED, but changed {sorted(before ^ after)}"
            assert not report.moved, "REFUSED, but committed"


# The model of ownership: steps drawn by hypothesis, and invariants after each step.

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
_changes = st.sampled_from(
    (Verb.APPEND, Verb.APPEND, Verb.OVERWRITE_ALL, Verb.OVERWRITE, Verb.POSITIONS, Verb.TAG, Verb.SET_CURRENT)
)
_moments = st.sampled_from(Moment)
_interludes = st.sampled_from((Verb.APPEND, Verb.OVERWRITE_ALL, Verb.MAINTAIN, Verb.MAINTAIN, Verb.PIN))
# Uncommitted files of another pass are younger than any sensible grace period.
_ALL_AT_ONCE = {"orphan_older_than_hours": "0"}
_WITH_GRACE = {"orphan_older_than_hours": "1"}


class OwnershipMachine(RuleBasedStateMachine):
    """A case; ``pick`` numbers choose among the existing tables or entries.

    ``read_again`` is a second reader at the end; it returns ``None`` for a table that it does not read.
    """

    def __init__(self, folder: Path, tally: Counter[str], read_again: Callable[[str], Rows | None]) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._stack.enter_context(all_watched(leases=False))
        self._stack.enter_context(in_one_thread())
        self.world = LakeWorld(Lake(folder), note, tally)
        self.writing = Writing(self.world)
        self.passing = Passing(self.world)
        self._names = itertools.count(1)
        self._read_again = read_again
        self.is_broken = False
        """Whether a step has failed; then no further check runs."""

    def teardown(self) -> None:
        """Check rows by real scans without caches, and that passes clean tables that share no files."""
        try:
            if not self.is_broken:
                self._clean_lonely()
                for lineage in self.world.lineages.values():
                    assert Witness.scan(lineage.newest) == lineage.rows
                    assert self._read_again(lineage.newest) in (None, lineage.rows)
        finally:
            self._stack.close()
            self.world.lake.close()

    def _clean_lonely(self) -> None:
        world = self.world
        for lineage in [lineage for lineage in world.lineages.values() if self._is_to_be_clean(lineage)][:1]:
            (entry,) = world.entries_at_newest(lineage)
            self._pass(entry, 0, "expire_snapshots,remove_orphans")
            needed = world.newest(lineage).needed.union(*(hold.paths for hold in world.holds))
            there = {path for path in world.lake.files() if path.startswith(f"{lineage.home}/")}
            left = sorted(path for path in there - needed if not path.endswith(".metadata.json"))
            assert not left, f"LEFT {world.name(lineage)} keeps unneeded files: {', '.join(map(world.short, left))}"

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
        """Change names of tables or locations of files, but no rows."""
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
    def write(self, how: Verb, pick: int, which: int) -> None:
        self._write(how, pick, which)
        self._check()

    @rule(catalog=_catalogs, door=_doors)
    def scan(self, catalog: int, door: int) -> None:
        """Run detection over a catalog; from now on, the catalog is served."""
        self._scan(catalog, door)
        self._check()

    def _scan(self, catalog: int, door: int) -> None:
        world = self.world
        self.passing.maintainer(catalog, door).do(lambda runtime: runtime.detect())
        if any(entry.catalog == catalog and world.witness.look(at) for entry, at in world.pointers().items()):
            world.served.add(catalog)

    @rule(pick=_picks, source=_picks, door=_doors, is_seen=st.booleans())
    def add_across(self, pick: int, source: int, door: int, is_seen: bool) -> None:
        """Add files of another table; a pass may look at the table afterwards."""
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
        """Stage a file that awaits its commit."""
        world, lineage = self.world, self.writing.lineage(pick)
        entries = world.entries_at_newest(lineage)
        if entries:
            name, entry = f"load{next(self._names)}", entries[0]
            path, file = self.writing.stage(lineage)
            self._with(entry, door, lambda handle: stage_load(handle, name, [file.file_path], []))
            world.holds.append(Hold(lineage.uuid, name, entry, door, frozenset({path}), file))
        self._check()

    @rule(pick=_picks, is_adopted=st.booleans())
    def settle(self, pick: int, is_adopted: bool) -> None:
        """Remove a pin, or commit or fail a load."""
        world = self.world
        if world.holds:
            hold = chosen(world.holds, pick)
            world.holds.remove(hold)
            if hold.staged is None:
                self._is_done(hold.entry, hold.door, lambda handle: remove_pin(handle, hold.name))
            else:
                if is_adopted:
                    self.writing.adopt(world.lineages[hold.uuid], hold.staged)
                state = LoadState.ADOPTED if is_adopted else LoadState.FAILED
                self._is_done(hold.entry, hold.door, lambda handle: declare_load(handle, hold.name, state))
        self._check()

    # -- passes

    @rule(pick=_picks, door=_doors, operations=_operations)
    def maintain(self, pick: int, door: int, operations: str) -> None:
        self._pass(self.writing.entry(pick), door, operations)

    @rule(how=_changes, pick=_picks, which=_picks, door=_doors, operations=_operations)
    def write_and_maintain(self, how: Verb, pick: int, which: int, door: int, operations: str) -> None:
        """Write, so that the table no longer needs older files or has files to merge, and maintain it."""
        lineage = self.writing.lineage(pick)
        self._write(how, pick, which)
        self._check()
        for entry in self.world.entries_at_newest(lineage)[:1]:
            self._pass(entry, door, operations)

    @rule(pick=_picks, catalog=_catalogs, door=_doors, operations=_operations)
    def migrate_and_maintain(self, pick: int, catalog: int, door: int, operations: str) -> None:
        """Add a second entry at the newest head, in a served catalog; the pass uses the first entry."""
        self._write(Verb.OVERWRITE_ALL, pick, door)
        self.writing.register(pick, catalog)
        self._scan(catalog, door)
        self._check()
        for entry in self.world.entries_at_newest(self.writing.lineage(pick))[:1]:
            self._pass(entry, door, operations)

    @rule(pick=_picks, door=_doors)
    def sweep(self, pick: int, door: int) -> None:
        """Sweep, perhaps through an outdated entry."""
        self._write(Verb.OVERWRITE_ALL, pick, door)
        self._check()
        self._pass(self.writing.entry(pick), door, "expire_snapshots,remove_orphans")

    @rule(pick=_picks, door=_doors)
    def look(self, pick: int, door: int) -> None:
        """Make a dry run."""
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
        self, pick: int, door: int, operations: str, moment: Moment, nth: int, interlude: Verb, other: int, inner: str
    ) -> None:
        """Run a pass with an interruption."""
        world, entry = self.world, self.writing.entry(pick)

        def happens() -> None:
            world.tell(f"  meanwhile ({moment.value} {nth}): {interlude}")
            world.advance()  # writers continue from the commits of the pass
            if moment is Moment.WORK:
                world.lake.age()  # the work takes days
            match interlude:
                case Verb.PIN:
                    # A file of an older pointer's head may already be due for deletion.
                    for second in world.entries_at_newest(self.writing.lineage(other))[:1]:
                        self._pin(second, door)
                case Verb.MAINTAIN:
                    second = self.writing.entry(other)
                    world.tell(f"  second pass over {world.where(second)}: {inner}")
                    self.passing.run(second, other % DOORS, {"operations": inner, **_WITH_GRACE})
                case _:
                    self._write(interlude, other, other)

        self._pass(entry, door, operations, Interruption(moment, nth, happens))

    # -- helpers

    def _write(self, how: Verb, pick: int, which: int) -> None:
        if how is Verb.TAG:
            self.writing.write(pick, lambda writers: make_ref(writers, "tag", any_one=True), which)
        else:
            self.writing.write(pick, WRITES[how], which)

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
        if self._is_done(
            entry, door, lambda handle: add_pin(handle, snapshot="current", ttl_ms=_FOREVER_MS, name=name)
        ):
            held = sight.of_snapshot[sight.current] | {real_path(at)}
            world.holds.append(Hold(world.uuids[entry], name, entry, door, held))
            world.tell(f"  {name} holds the head of {world.where(entry)}, door {door}")

    def _with(self, entry: Entry, door: int, work: Callable[[TableHandle], object]) -> None:
        self.passing.maintainer(entry.catalog, door).do(lambda runtime: work(runtime.table(table_name(entry))))

    def _is_done(self, entry: Entry, door: int, work: Callable[[TableHandle], object]) -> bool:
        """Return whether the work succeeded: the entry may be gone or outdated, which is no error."""
        try:
            self._with(entry, door, work)
        except MaintenanceError as error:
            self.world.tell(f"  not done: {error}")
            return False
        return True
