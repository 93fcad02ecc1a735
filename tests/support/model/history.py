"""Histories of a table: steps of writers and maintainers, run and checked one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icekeeper.report.outcome import PassOutcome, PassStatus
from support.duckdb_session import DuckDB
from support.model.actions import WRITES, Step, Verb, make_ref, prepare, rename
from support.model.process import ALL
from support.model.reader import EQUALITY
from support.model.run import Counts, Run, temporary_folder
from support.model.world import SENT_ANSWERS
from support.model.writers import KEY, MAIN, Rows, Slow, with_new

# Weights of verbs.
_WEIGHTS = {
    Verb.APPEND: 16,
    Verb.OVERWRITE: 4,
    Verb.POSITIONS: 9,
    Verb.KEYS: 10,
    Verb.UPSERT: 9,
    Verb.EVOLVE: 4,
    Verb.REPARTITION: 5,
    Verb.SORT: 1,
    Verb.BRANCH: 2,
    Verb.TAG: 2,
    Verb.DROP_REF: 1,
    Verb.FAST_FORWARD: 1,
    Verb.ROLL_BACK: 3,
    Verb.REPLACE: 1,
    Verb.RECREATE: 1,
    Verb.RENAME: 1,
    Verb.UPGRADE: 2,
    Verb.PREPARE: 10,
    Verb.LAND: 6,
    Verb.MAINTAIN: 36,
    Verb.DELIVER: 4,
    Verb.TIME: 3,
}
VERBS = [verb for verb, weight in _WEIGHTS.items() for _ in range(weight)]


@dataclass(frozen=True)
class History:
    """A table and its steps."""

    format_version: int
    by_requirements: bool
    """Whether the catalog checks requirements, or swaps a pointer."""
    leases: bool
    """Whether leases keep the two maintainers apart."""
    steps: tuple[Step, ...]


# Combinations that are rare by chance: a delete during a rewrite by Icekeeper or another engine.
_MEETINGS = (
    (Verb.PREPARE, Verb.KEYS, Verb.MAINTAIN, Verb.LAND),
    (Verb.PREPARE, Verb.UPSERT, Verb.MAINTAIN, Verb.MAINTAIN, Verb.LAND),
    (Verb.REPARTITION, Verb.MAINTAIN, Verb.KEYS, Verb.MAINTAIN),
    (Verb.MAINTAIN, Verb.POSITIONS, Verb.MAINTAIN),
    (Verb.KEYS, Verb.MAINTAIN, Verb.UPSERT, Verb.MAINTAIN),
    (Verb.MAINTAIN, Verb.ROLL_BACK, Verb.APPEND, Verb.MAINTAIN),
    (Verb.POSITIONS, Verb.UPGRADE, Verb.KEYS, Verb.MAINTAIN, Verb.POSITIONS, Verb.MAINTAIN),
)


def random_history(seed: str) -> History:
    """The history with this seed."""
    chance = random.Random(seed)
    verbs = [chance.choice(VERBS) for _ in range(chance.randint(4, 14))]
    for _ in range(chance.randint(0, 2)):
        place = chance.randint(0, len(verbs))
        verbs[place:place] = chance.choice(_MEETINGS)
    steps = (Step(verb, chance.randrange(1 << 16)) for verb in (Verb.APPEND, Verb.APPEND, *verbs))
    return History(chance.choice([2, 2, 3]), chance.random() < 0.5, chance.random() < 0.5, tuple(steps))


def random_settings(chance: random.Random, branches: Sequence[str]) -> dict[str, str]:
    """The policy of a pass: low thresholds, and random values for settings that change its work."""
    operations = chance.choice(
        [
            "all",
            "compact,rewrite_position_deletes,expire_snapshots,remove_orphans,rewrite_manifests",
            "compact",
            "compact",
            "compact,expire_snapshots",
            "rewrite_position_deletes",
            "rewrite_position_deletes,compact",
            "expire_snapshots,remove_orphans",
            "rewrite_manifests,compact",
            "all,compute_statistics",
        ]
    )
    settings = {
        "operations": operations,
        "branch": chance.choice([MAIN, MAIN, *branches]),
        "strategy": chance.choice(["auto", "binpack", "binpack", "sort", "zorder"]),
        "rewrite_all": chance.choice(["true", "false"]),
        "output_spec": chance.choice(["current", "keep"]),
        "partial_progress": chance.choice(["0", "0", "1", "2"]),
        "proof": chance.choice(["counts", "full"]),
        "convert_equality_deletes": chance.choice(["true", "true", "false"]),
        "apply_deletes": chance.choice(["true", "true", "true", "false"]),
        "delete_compaction_min_ratio": chance.choice(["0.01", "0.3", "0.9"]),
        "min_row_group_copy_bytes": chance.choice(["1", "16777216", "none"]),
        "clean_expired_metadata": chance.choice(["true", "false"]),
        "max_snapshots_to_keep": chance.choice(["1", "1", "2", "4"]),
        "snapshot_retention_hours": chance.choice(["0", "0", "1"]),
        "max_files_to_rewrite": chance.choice(["none", "none", "3"]),
        **_EAGER,
    }
    if settings["strategy"] in ("sort", "auto"):
        settings["sort_order"] = chance.choice(["id", "id desc"])
    if settings["strategy"] == "zorder":
        settings["sort_order"] = "id"
    return settings


_EAGER = {
    "min_input_files": "2",
    "expected_scans": "none",
    "min_manifests_to_rewrite": "2",
    "orphan_older_than_hours": "1",
    "orphan_max_delete_ratio": "1",
    "orphan_sweep_interval_hours": "0",
    "writer_mark_retention_hours": "0",
}
_LAST = {
    **_EAGER,
    "operations": "all",
    "max_snapshots_to_keep": "1",
    "snapshot_retention_hours": "0",
    "convert_equality_deletes": "true",
}


class HistoryRun(Run):
    """Runs a history in an empty folder; raises AssertionError if the table is wrong."""

    def __init__(self, history: History, folder: Path, duckdb: DuckDB | None, counts: Counts) -> None:
        super().__init__(folder, counts, ("A", "B"), by_requirements=history.by_requirements)
        self._history, self._duckdb = history, duckdb
        self._judged: set[tuple[int, int]] = set()
        self._slow: list[Slow] = []

    def run(self) -> None:
        """Take all steps, end the passes, then run an undisturbed pass."""
        with self._under_way(leases=self._history.leases):
            self.writers.create(self._history.format_version)
            for number, step in enumerate(self._history.steps):
                self.trace.append(f"{number}: {step}")
                self.writers.chance = random.Random(step.seed)
                self.take(step)
                self._counts.steps += 1
                self.check()
                if self._world.late and self.writers.chance.random() < 0.3:
                    self._world.deliver()
                    self.check()
            self._end()

    def take(self, step: Step) -> None:
        chance = self.writers.chance
        match step.verb:
            case Verb.MAINTAIN:
                self._maintain(chance)
            case Verb.BRANCH | Verb.TAG:
                # A server that checks only requirements drops a new ref with the expiry of its snapshot.
                any_one = not (self._history.by_requirements and self._is_busy)
                make_ref(self.writers, step.verb.value, any_one=any_one)
            case Verb.RENAME:
                rename(self.writers)
            case Verb.PREPARE:
                slow = prepare(self.writers)
                self._slow += [] if slow is None else [slow]
            case Verb.LAND:
                if self._slow:
                    landed = self._slow.pop(chance.randrange(len(self._slow)))()
                    self._counts.done["late writer landed" if landed else "late writer gave up"] += 1
            case Verb.DELIVER:
                if self._world.late:
                    self._world.deliver()
            case Verb.TIME:
                self._let_hours_pass(chance.choice([0.1, 2, 30, 200]))
            case Verb.RECREATE:
                self._slow.clear()
                WRITES[step.verb](self.writers)
            case verb:
                WRITES[verb](self.writers)

    @property
    def _is_busy(self) -> bool:
        return bool(self._world.late) or any(maintainer.process.is_at_work for maintainer in self._maintainers)

    def _maintain(self, chance: random.Random) -> None:
        maintainer = chance.choice(self._maintainers)
        if not maintainer.process.is_at_work:
            if self._history.leases and any(other.process.is_killed for other in self._maintainers):
                self._let_hours_pass(0.1)  # the lease of the dead process expires
            settings = random_settings(chance, self.writers.branches())
            faults: dict[int, str] = {}
            answers: dict[int, str] = {}
            drawn = chance.random()
            if drawn < 0.3:
                kinds = ["kill before", "kill after", "kill after", "fail before", "fail after"]
                faults[chance.randint(1, chance.choice([20, 80, 200]))] = chance.choice(kinds)
            elif drawn < 0.65:
                answers[chance.choice([1, 1, 1, 2, 3])] = chance.choice(SENT_ANSWERS)
            chosen = {k: v for k, v in settings.items() if k not in _EAGER}
            self.trace.append(f"{maintainer.process.name}: begins {chosen} {faults} {answers}")
            maintainer.begin(self._world.name, settings, faults, answers)
            self._counts.done["passes"] += 1
            self._go(
                maintainer, chance.choice([chance.randint(5, 50), chance.randint(5, 50), chance.randint(5, 50), ALL])
            )
        else:
            self._go(maintainer, chance.choice([chance.randint(1, 40), ALL]))

    def _let_hours_pass(self, hours: float) -> None:
        self._drop_late()
        if hours > 0.5:
            self._slow.clear()  # their files grow too old for ``orphan_older_than_hours``
        self._world.pass_time(hours)

    def _drop_late(self) -> None:
        """Deliver all pending commits, which arrive within an hour."""
        while self._world.late:
            self._world.deliver()
            self.check()

    # -- invariants

    def check(self) -> None:
        """Check as in every run, and that DuckDB reads the expected rows of each ref."""
        super().check()
        if self._duckdb is not None:
            for name, ref in sorted(self._world.table.refs.items()):
                self._judge(name, ref.snapshot_id)

    def _judge(self, name: str, snapshot_id: int) -> None:
        """Check that DuckDB reads the rows of the model, if it can: it applies equality deletes to all partitions
        (platform: duckdb-deletes-every-partition)."""
        key = snapshot_id, self._world.table.current_schema_id
        if key in self._judged or self._duckdb is None:
            return
        self._judged.add(key)
        if not self._duckdb_can_read(snapshot_id):
            self._counts.done["heads left to the naive reader"] += 1
            return
        try:
            rows = self._duckdb.rows(self._world.location, None if name == MAIN else snapshot_id)
        except AssertionError as error:
            if "INTERNAL Error" not in str(error):
                raise
            self._counts.done["faults of DuckDB's own"] += 1
            return
        found = sorted(row["id"] for row in rows)
        assert found == sorted(self.writers.expected[snapshot_id]), f"DuckDB reads {found} of {name}"
        if name == MAIN:
            self._compare_values(rows, self.writers.expected[snapshot_id])
        self._counts.done["heads read by DuckDB"] += 1

    def _compare_values(self, rows: Sequence[Mapping[str, Any]], model: Rows) -> None:
        columns, defaults = self.writers.columns, self.writers.defaults
        for row in rows:
            values = model[row["id"]].values
            was = {c["name"]: values.get(c["id"], defaults.get(c["id"])) for c in columns}
            assert dict(row) == was, f"DuckDB reads {row}, not {was}"

    def _duckdb_can_read(self, snapshot_id: int) -> bool:
        reader, path = self.writers.reader, self.writers.manifest_list(snapshot_id)
        equality = [file for file in reader.files(path) if file.content == EQUALITY]
        if not equality:
            return True
        # It fails on keys of a narrower type than the current type of the column.
        kinds = {column["id"]: column["type"] for column in self.writers.columns}
        if kinds[KEY] == "long" and any(KEY in file.equality_ids for file in equality):
            return False
        if any(None in row.values() for file in equality for row in reader.columns(file.path)):
            return False
        everywhere = reader.rows(path, self.writers.defaults, as_duckdb=True)
        return {row.id for row in everywhere} == self.writers.expected[snapshot_id].keys()

    # -- the end

    def _end(self) -> None:
        """End all passes, deliver pending commits; then undisturbed passes must succeed and leave no orphans."""
        for maintainer in self._maintainers:
            if maintainer.process.is_at_work:
                self._go(maintainer, ALL)
                self.check()
        self._drop_late()
        for slow in self._slow:
            self._counts.done["late writer landed" if slow() else "late writer gave up"] += 1
            self.check()
        for hours in (200, 200):
            self._world.pass_time(hours)
            self._append_one()  # afterwards, no metadata file of a dead process can become current
            self.check()
            self.trace.append("the last pass")
            self._maintainers[0].begin(self._world.name, _LAST)
            self._go(self._maintainers[0], ALL)
            self.check()
        outcome = self._maintainers[0].process.outcome
        assert isinstance(outcome, PassOutcome), outcome
        assert outcome.status is PassStatus.SUCCEEDED, outcome
        assert not self.litter(), sorted(self.litter())
        problems = self._maintainers[0].do(lambda runtime: runtime.verify(self._world.name)).problems
        assert not problems, problems

    def _append_one(self) -> None:
        writers, rows = self.writers, self.writers.new_rows(1)
        after = with_new(writers.model(writers.head()), rows)
        writers.commit(MAIN, "append", after, added=writers.write(rows, writers.table.default_spec_id))


def run_history(history: History, duckdb: DuckDB | None, counts: Counts) -> None:
    """Run a history in a temporary folder.

    Raises:
        AssertionError: a check fails; a note has the trace.
    """
    with temporary_folder() as folder:
        run = HistoryRun(history, folder, duckdb, counts)
        try:
            run.run()
            counts.histories += 1
        except BaseException as error:
            error.add_note("\n".join([repr(history), *run.trace]))
            raise
