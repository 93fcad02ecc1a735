"""Tables, entries, holds, and what must be true of them after every step."""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from support.ownership.lake import CATALOGS, Lake
from support.ownership.truth import Entry, Hold, Lineage, PassReport, could_know, is_below
from support.ownership.witness import Rows, Sight, Witness, real_path


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
