"""Histories of a table that is cleaned up: branches, tags, staged snapshots, statistics, pins, loads, and crashes.

A file may be listed twice here, so no model knows the rows of a commit: each snapshot must read as it did when it was
new, and a snapshot of a rewrite as its parent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from icekeeper.administration.pins import stage_load
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Pin
from icekeeper.storage.paths import normalise
from support.maintained_table import EAGER
from support.model.actions import WRITES, Step, Verb, make_ref, repartition_by, some_snapshot
from support.model.process import ALL
from support.model.reader import ID, NaiveReader
from support.model.run import Counts, Run, temporary_folder
from support.model.writers import KEY, PART, WRITER, ModelRow

# Weights of verbs.
_WEIGHTS = {
    Verb.APPEND: 6,
    Verb.OVERWRITE: 1,
    Verb.POSITIONS: 1,
    Verb.UPSERT: 1,
    Verb.ADD_AGAIN: 1,
    Verb.STAGE: 2,
    Verb.PUBLISH: 1,
    Verb.BRANCH: 3,
    Verb.TAG: 3,
    Verb.FAST_FORWARD: 1,
    Verb.DROP_REF: 1,
    Verb.ROLL_BACK: 1,
    Verb.STATISTICS: 1,
    Verb.PARTITION_STATISTICS: 1,
    Verb.EVOLVE: 1,
    Verb.REPARTITION: 1,
    Verb.UPGRADE: 1,
    Verb.PIN: 1,
    Verb.STAGE_LOAD: 1,
    Verb.STRAY: 1,
    Verb.REWRITE: 8,
    Verb.EXPIRE: 1,
    Verb.SWEEP: 1,
    Verb.CRASH: 2,
}
_VERBS = [verb for verb, weight in _WEIGHTS.items() for _ in range(weight)]
_SINCE_V2 = (Verb.UPSERT, Verb.POSITIONS)
_REWRITES = (
    *(Operation.COMPACT, Operation.REWRITE_MANIFESTS) * 3,
    Operation.REWRITE_POSITION_DELETES,
    Operation.COMPUTE_STATISTICS,
)
_KEPT_FOR_HOURS = 1
_LATER_HOURS = 100
_LONG_MS = 1 << 40


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Settings of the last expiry; ``crash_at`` kills its first attempt at that step."""

    max_snapshots_to_keep: int
    young: int
    """The number of newest snapshots within the retention."""
    expire_limit: int | None
    retain_max: int | None
    crash_at: int | None
    cleans_metadata: bool

    @property
    def settings(self) -> dict[str, str]:
        chosen: dict[str, int | None] = {
            "max_snapshots_to_keep": self.max_snapshots_to_keep,
            "snapshot_expire_limit": self.expire_limit,
            "snapshot_retain_max": self.retain_max,
        }
        settings = {key: str(value) for key, value in chosen.items() if value is not None}
        return {**settings, "clean_expired_metadata": str(self.cleans_metadata).lower()}


@dataclass(frozen=True, slots=True)
class CleanupHistory:
    """The history of a table from its creation on, and its final cleanup."""

    format_version: int
    is_partitioned: bool
    merges_manifests: bool
    steps: tuple[Step, ...]
    cleaning: Cleaning


def random_cleanup(seed: int) -> CleanupHistory:
    """A random history of five to sixteen steps; the first is an append."""
    chance = random.Random(seed)
    version = chance.choice((1, 2, 2, 3, 3))
    verbs = [verb for verb in _VERBS if version > 1 or verb not in _SINCE_V2]
    chosen = [Verb.APPEND, *(chance.choice(verbs) for _ in range(chance.randint(4, 15)))]
    keep = chance.choice((1, 1, 2, 3))
    return CleanupHistory(
        format_version=version,
        is_partitioned=chance.random() < 0.5,
        merges_manifests=chance.random() < 0.5,
        steps=tuple(Step(verb, chance.randrange(10_000)) for verb in chosen),
        cleaning=Cleaning(
            max_snapshots_to_keep=keep,
            young=chance.choice((0, 0, 0, 1, 2, 4)),
            expire_limit=chance.choice((None, None, None, 1, 3)),
            retain_max=chance.choice((None, None, keep, keep + 1)),
            crash_at=chance.randint(1, 80) if chance.random() < 0.4 else None,
            cleans_metadata=chance.random() < 0.3,
        ),
    )


class Judge(Protocol):
    """An independent engine that reads the table."""

    def take_over(self, metadata_location: str) -> None: ...

    def ids_of(self, snapshot_id: int) -> list[int]: ...

    def reachable(self) -> set[str]: ...


class CleanupRun(Run):
    """Runs a history in an empty folder; raises AssertionError if the table is wrong."""

    def __init__(self, history: CleanupHistory, folder: Path, judge: Judge) -> None:
        super().__init__(folder, Counts(), ("A",), by_requirements=False)
        self._history, self._judge = history, judge
        self._held: dict[int, Counter[tuple[Any, ...]]] = {}
        """The rows of every snapshot when it was new."""
        self._pinned: set[int] = set()
        self._staged: set[str] = set()
        """Files of pending loads."""

    def run(self) -> None:
        with self._under_way(leases=False):
            self.writers.create(self._history.format_version)
            self.writers.merges_manifests = self._history.merges_manifests
            if self._history.is_partitioned:
                repartition_by(self.writers, (1000,))
            for number, step in enumerate(self._history.steps):
                self.trace.append(f"{number}: {step}")
                self.writers.chance = random.Random(step.seed)
                self._world.ahead_ms += 10
                self._take(step.verb, self.writers.chance)
                self.check()
            self._end()

    def _take(self, verb: Verb, chance: random.Random) -> None:
        match verb:
            case Verb.BRANCH | Verb.TAG:
                self._make_ref(verb.value, chance)
            case Verb.PIN:
                self._pin()
            case Verb.STAGE_LOAD:
                self._stage_load()
            case Verb.REWRITE:
                self._ours(chance.choice(_REWRITES))
            case Verb.EXPIRE:
                self._expire(chance)
            case Verb.SWEEP:
                self._sweep()
            case Verb.CRASH:
                operations = (Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS)
                self._ours(chance.choice(operations), {"max_snapshots_to_keep": "2"}, _killed(chance.randint(1, 80)))
            case _:
                WRITES[verb](self.writers)

    # -- actions of writers and readers besides the verbs of every table

    def _make_ref(self, kind: str, chance: random.Random) -> None:
        retention = {}
        if kind == "branch" and chance.random() < 0.3:
            retention["min_snapshots_to_keep"] = chance.randint(1, 3)
        if kind == "branch" and chance.random() < 0.3:
            retention["max_snapshot_age_ms"] = _LONG_MS
        if chance.random() < 0.4:
            retention["max_ref_age_ms"] = chance.choice((1, _LONG_MS))
        name = make_ref(self.writers, kind, any_one=True, **retention)
        if name is not None and retention.get("max_ref_age_ms") == 1:
            self.aging.add(name)

    def _pin(self) -> None:
        world, snapshot_id = self._world, some_snapshot(self.writers, any_one=True)
        if snapshot_id is None:
            return
        self.writers.names += 1
        name, location = f"pin{self.writers.names}", world.location

        def add(runtime: Runtime) -> None:
            identity = TableIdentity(runtime.catalog.id, world.name, world.table.uuid or "")
            pin = Pin(
                identity=identity, name=name, snapshot_id=snapshot_id, metadata_location=location, expires_ms=1 << 60
            )
            runtime.state.add_pin(pin)

        self._maintainers[0].do(add)
        self._pinned.add(snapshot_id)

    def _stage_load(self) -> None:
        """Stage a file of a load that may still be adopted."""
        (_, file), *_ = self.writers.write(self.writers.new_rows(1), self._world.table.default_spec_id)
        self.writers.names += 1
        name = f"load{self.writers.names}"
        self._maintainers[0].do(lambda runtime: stage_load(runtime.table(self._world.name), name, [file.file_path], []))
        self._staged.add(normalise(file.file_path))

    # -- passes

    def _ours(
        self, operation: Operation, settings: Mapping[str, str] | None = None, faults: Mapping[int, str] | None = None
    ) -> None:
        """Run an operation, which must not fail unless the process is killed."""
        (maintainer,) = self._maintainers
        everywhere = {"orphan_sweep_prefixes": self._world.table.location}  # as Iceberg-Java sweeps
        chosen = {**EAGER, **everywhere, "operations": operation.value, **(settings or {})}
        maintainer.begin(self._world.name, chosen, faults, names_table=True)
        self._go(maintainer, ALL)
        outcome = maintainer.process.outcome
        if not maintainer.process.is_killed:
            assert isinstance(outcome, PassOutcome), outcome
            assert {part.status for part in outcome.operations} <= {Status.SUCCEEDED, Status.SKIPPED}, outcome

    def _expire(self, chance: random.Random) -> None:
        settings = {"max_snapshots_to_keep": str(chance.randint(1, 4))}
        if chance.random() < 0.5:
            settings["snapshot_expire_limit"] = "1"
        if chance.random() < 0.3:
            settings["clean_expired_metadata"] = "true"
        if chance.random() < 0.3:
            self._expire_named()
            self.check()
        self._ours(Operation.EXPIRE_SNAPSHOTS, settings)

    def _expire_named(self) -> None:
        """Expire a snapshot by id, perhaps in the middle of the history; skip snapshots that a pass refuses."""
        table, named = self._world.table, some_snapshot(self.writers, any_one=True)
        if named is None or named in {ref.snapshot_id for ref in table.refs.values()}:
            return
        moment = table.snapshots[named].timestamp_ms
        if all(moment < table.snapshots[pin].timestamp_ms for pin in self._pinned & table.snapshots.keys()):
            self._ours(Operation.EXPIRE_SNAPSHOTS, {"snapshot_expire_ids": str(named)})

    def _sweep(self) -> None:
        with self._world.later(_LATER_HOURS):
            self._ours(Operation.REMOVE_ORPHANS)

    def _clean(self) -> None:
        """Run the last expiry at a time when ``young`` snapshots are young, and then a sweep."""
        cleaning, world = self._history.cleaning, self._world
        newest_first = sorted((s.timestamp_ms for s in world.table.snapshots.values()), reverse=True)
        young = newest_first[: cleaning.young]
        now_ms = (young[-1] if young else newest_first[0] + 1) + _KEPT_FOR_HOURS * 3_600_000
        world.date_files()
        world.ahead_ms += now_ms - world.now_ms()
        settings = {**cleaning.settings, "snapshot_retention_hours": str(_KEPT_FOR_HOURS)}
        if cleaning.crash_at is not None:
            self._ours(Operation.EXPIRE_SNAPSHOTS, settings, _killed(cleaning.crash_at))
            self.check()
        self._ours(Operation.EXPIRE_SNAPSHOTS, settings)
        self.check()
        self._sweep()
        self.check()

    # -- invariants

    def _read(self, snapshot_id: int, parent: int | None, by: str) -> None:
        rows = self.writers.live(snapshot_id)
        held = self._held[snapshot_id] = Counter(tuple(row.values.get(i) for i in (ID, KEY, PART)) for row in rows)
        if by != WRITER and parent is not None:
            assert held == self._held[parent], f"{by} made {held} of {self._held[parent]}"
        self.writers.expected[snapshot_id] = {row.id: ModelRow(row.values, row.row_id, row.changed) for row in rows}

    def _end(self) -> None:
        before, problems = self._world.table, self._verified()
        self._clean()
        after, refs = self._world.table, self._world.table.refs
        assert after.snapshots.keys() <= before.snapshots.keys()
        assert after.snapshots.keys() >= {ref.snapshot_id for ref in refs.values()} | self._pinned
        assert {name for name, ref in refs.items() if before.refs[name].snapshot_id != ref.snapshot_id} == set()
        assert before.refs.keys() - refs.keys() <= self.aging
        assert not self._verified() - problems
        self._check_judged()

    def _check_judged(self) -> None:
        """Check that a new reader and the judge find the same rows in retained snapshots as before, that reachable and
        staged files exist, and that all others are deleted."""
        table, reader = self._world.table, NaiveReader()
        self._judge.take_over(self._world.location)
        for snapshot_id in table.snapshots:
            held = self._held[snapshot_id]
            rows = reader.rows(self.writers.manifest_list(snapshot_id), {})
            assert Counter(tuple(row.values.get(i) for i in (ID, KEY, PART)) for row in rows) == held, snapshot_id
            assert Counter(self._judge.ids_of(snapshot_id)) == Counter(row[0] for row in held.elements()), snapshot_id
        needed, there = {normalise(path) for path in self._judge.reachable()}, self.on_disk()
        assert self.reachable() <= needed
        assert needed | self._staged <= there, sorted((needed | self._staged) - there)
        # Metadata files that a catalog may know are kept (rule: orphans-outlive-the-grace-period).
        oldest_ms = min(snapshot.timestamp_ms for snapshot in table.snapshots.values())
        left = {path for path in there - needed - self._staged if not _is_young_metadata(path, oldest_ms)}
        assert left == set()

    def _verified(self) -> Counter[tuple[str, str]]:
        """The problems that ``verify`` finds, such as a file that is listed twice."""
        found = self._maintainers[0].do(lambda runtime: runtime.verify(self._world.name))
        return Counter((problem.kind.value, problem.path) for problem in found.problems)


def _killed(step: int) -> dict[int, str]:
    return {step: "kill before" if step % 2 else "kill after"}


def _is_young_metadata(path: str, oldest_ms: int) -> bool:
    return path.endswith(".metadata.json") and Path(path).stat().st_mtime * 1000 >= oldest_ms


def run_cleanup(history: CleanupHistory, judge: Judge) -> None:
    """Run a history in a temporary folder.

    Raises:
        AssertionError: a check fails; a note has the trace.
    """
    with temporary_folder() as folder:
        run = CleanupRun(history, folder, judge)
        try:
            run.run()
        except BaseException as error:
            error.add_note("\n".join([repr(history), *run.trace]))
            raise
