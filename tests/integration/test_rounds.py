"""Compaction commits groups as they finish: deadlines, killed jobs and other commits in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from icekeeper.engines.engine import current_work
from icekeeper.errors import StorageError
from icekeeper.maintenance.pass_steps import run_operation
from icekeeper.maintenance.run_pass import PassInterrupted, Turn
from icekeeper.model import TableName
from icekeeper.operations.compaction.land import rounds
from icekeeper.pass_context.context import PassLimits
from icekeeper.policy import Operation
from icekeeper.report.activity import REWRITING
from icekeeper.report.outcome import OperationOutcome, PassStatus, Status
from support.deletes import create_by_region, region_rows, rows_of
from support.killed_processes import dies_at
from support.maintained_table import EAGER, MaintainedTable, maintained_table
from support.pipeline_deployment import HOUR_MS, Pipeline
from support.scripted_catalog import ScriptedEngine, once
from support.v3 import assert_row_ids_hold, lineage, upgrade

Task = TypeVar("Task")
Result = TypeVar("Result")

WAIT = "bin(s) wait for the next run, because no time was left"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two partitions of three files."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        yield made


@pytest.fixture
def each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups do not share a task."""
    monkeypatch.setattr(rounds, "_SMALL_BYTES", 0)


@pytest.fixture
def small_rounds(each_alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has its own round and its own commit."""
    monkeypatch.setattr(rounds, "_ROUND_BYTES", 1)
    monkeypatch.setattr(rounds, "_ROUND_BYTES_PER_SLOT", 1)


def fill(table: MaintainedTable, partitions: int) -> None:
    """Append partitions of three files each."""
    written = table.pyiceberg.load_table("ns.t")
    for n in range(3):
        files = [rows_of(10_000 * (number + 1) + n * 100, 10, f"r{number}") for number in range(partitions)]
        written.append(pa.concat_tables(files))


class SlowEngine(ScriptedEngine):
    """Advances the table's clock by the same time for every group."""

    def __init__(self, table: MaintainedTable, group_s: float) -> None:
        super().__init__()
        self._waits, self._group_s = table.waits, group_s
        self.rounds: list[int] = []
        """Groups in each round."""

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        groups = sum(len(getattr(task, "tasks", [task])) for task in tasks)
        self.rounds.append(groups)
        self._waits.append(groups * self._group_s)
        return super().map(function, tasks, on_done)


def compact(table: MaintainedTable, engine: ScriptedEngine, limit_s: float | None, **settings: str) -> OperationOutcome:
    """Compact in a job that is killed after ``limit_s`` seconds of the table's clock."""
    ends_s = sum(table.waits) + (limit_s or 0)
    resolved = table.runtime.policy(table.loaded, {**EAGER, "operations": "compact", **settings}, unsafe=True)
    context = table.runtime.context(table.loaded, resolved, engine)
    if limit_s is not None:
        context = replace(context, limits=PassLimits(left_s=lambda: ends_s - sum(table.waits)))
    outcome = run_operation(Operation.COMPACT, context)
    assert limit_s is None or sum(table.waits) <= ends_s
    return outcome


@pytest.mark.usefixtures("each_alone")
def test_a_table_larger_than_a_job_converges_and_every_job_keeps_its_work(table: MaintainedTable) -> None:
    """A quarter of the 30 s is kept for the commit; a group of 5 s begins only if 10 s more are left.

    Rows without ids, as in a table that was just upgraded, keep the ids that the first commit assigns.
    """
    fill(table, 8)
    upgrade(table)
    before, engine = region_rows(table), SlowEngine(table, 5.0)
    files = [len(table.data_files())]
    ids = None
    for bins, waiting in ((3, 7), (3, 4), (3, 1), (1, 0)):
        outcome = compact(table, engine, 30)
        assert outcome.status is Status.SUCCEEDED
        figures = [outcome.metrics[f"compact.{what}"] for what in ("bins", "bins_waiting", "commits")]
        assert figures == [bins, waiting, 1]
        files.append(len(table.data_files()))
        ids = ids or lineage(table)
        assert lineage(table) == ids
        assert_row_ids_hold(table)
    assert files == [30, 24, 18, 12, 10]
    assert engine.rounds == [1] * 10
    assert region_rows(table) == before
    assert table.unreferenced() == set()
    table.assert_sound()
    assert compact(table, engine, 30).status is Status.SKIPPED


def test_groups_without_time_wait_and_are_reported(table: MaintainedTable, each_alone: None) -> None:
    """With enough time for all groups there is one commit."""
    outcome = compact(table, SlowEngine(table, 10.0), 30)
    assert outcome.summary == f"compacted 3 files into 1 (across 1 bins); 1 {WAIT}"
    assert (outcome.status, outcome.reason, outcome.leaves_work) == (Status.SUCCEEDED, None, True)
    fill(table, 3)
    engine = SlowEngine(table, 20.0)
    outcome = compact(table, engine, 900)
    assert (engine.rounds, outcome.metrics["compact.commits"]) == ([1] * 4, 1)
    assert outcome.summary == "compacted 12 files into 4 (across 4 bins)"


def test_small_groups_share_a_round_and_none_begins_after_the_deadline(table: MaintainedTable) -> None:
    """A round for each group would write to the state and open a client for each group."""
    engine = SlowEngine(table, 1.0)
    outcome = compact(table, engine, 0)
    assert outcome.summary == f"compacted 0 files into 0 (across 0 bins); 2 {WAIT}"
    assert (outcome.status, outcome.metrics["compact.bins_waiting"], engine.rounds) == (Status.SUCCEEDED, 2, [])
    engine = SlowEngine(table, 5.0)
    assert compact(table, engine, 30).summary == "compacted 6 files into 2 (across 2 bins)"
    assert engine.rounds == [2]


@pytest.mark.parametrize("limit_s", [None, 10_000])
@pytest.mark.usefixtures("each_alone")
def test_groups_are_committed_every_few_minutes(
    table: MaintainedTable, limit_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without a deadline; the first round has one group here, because the speed is unknown."""
    fill(table, 5)
    monkeypatch.setattr(rounds, "_ROUND_BYTES_PER_SLOT", 1)
    monkeypatch.setattr(rounds, "_ROUND_BYTES", 1)
    before, engine = region_rows(table), SlowEngine(table, 90.0)
    pace_of = rounds.Pace.note_round

    def afterwards(pace: rounds.Pace, *args: Any) -> None:
        pace_of(pace, *args)
        monkeypatch.setattr(pace, "_round_bytes", 10**12)
        monkeypatch.setattr(rounds, "_ROUND_BYTES", 10**12)

    monkeypatch.setattr(rounds.Pace, "note_round", afterwards)
    outcome = compact(table, engine, limit_s)
    assert engine.rounds == ([1, 3, 3] if limit_s is None else [1] * 7)
    assert outcome.metrics["compact.commits"] == 2
    assert outcome.metrics["compact.bins"] == 7
    assert region_rows(table) == before
    table.assert_sound()


class GrowingEngine(SlowEngine):
    """One executor when the rewriting begins, three more from the second round on."""

    def __init__(self, table: MaintainedTable, group_s: float) -> None:
        super().__init__(table, group_s)
        self.names: list[str] = []

    def map(self, *arguments: Any) -> Any:
        self.names.append(current_work())
        return super().map(*arguments)

    @property
    def slots(self) -> int:
        return 4 if self.rounds else 1


@pytest.mark.usefixtures("each_alone")
def test_executors_that_come_late_take_part_from_the_next_round_on(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round measures the speed with a group for each worker."""
    fill(table, 6)
    monkeypatch.setattr(rounds, "_ROUND_S", 11.0)
    engine, before = GrowingEngine(table, 5.0), region_rows(table)
    outcome = compact(table, engine, 10_000)
    assert (engine.rounds, outcome.metrics["compact.bins"]) == ([1, 7], 8)
    assert engine.names == [f"ns.t, compact, file groups {which} of 8" for which in ("1 to 1", "2 to 8")]
    assert region_rows(table) == before


@pytest.mark.usefixtures("small_rounds")
def test_partial_progress_sets_the_number_of_groups_in_a_commit(table: MaintainedTable) -> None:
    fill(table, 3)
    engine = SlowEngine(table, 400.0)
    outcome = compact(table, engine, None, partial_progress="2")
    assert (engine.rounds, outcome.metrics["compact.commits"]) == ([1] * 5, 3)
    heads = [table.loaded.metadata.snapshots[i] for i in outcome.snapshot_ids]
    assert [head.summary["added-data-files"] for head in heads] == ["2", "2", "1"]


@pytest.mark.usefixtures("each_alone")
def test_at_most_ten_small_commits_land_in_a_minute(table: MaintainedTable) -> None:
    """Each commit makes other writers retry; a group takes 4 s: the eleventh waits until the first is 60 s old."""
    fill(table, 18)
    outcome = compact(table, SlowEngine(table, 4.0), None, partial_progress="1")
    heads = [table.loaded.metadata.snapshots[i] for i in outcome.snapshot_ids]
    assert [head.summary["added-data-files"] for head in heads] == [*["1"] * 10, "6", *["1"] * 4]


@pytest.mark.usefixtures("small_rounds")
def test_after_an_upgrade_rows_get_their_ids_from_the_first_commit_and_keep_them(table: MaintainedTable) -> None:
    """Only the first commit may have groups without ids: later groups are rewritten with the ids that it assigns
    (rule: rows-keep-their-lineage)."""
    upgrade(table)
    before, seen = region_rows(table), []
    table.catalog.after_commit = lambda: seen.append(lineage(table))
    outcome = compact(table, ScriptedEngine(), None)
    assert outcome.summary == "compacted 6 files into 2 (across 2 bins)"
    assert outcome.metrics["compact.commits"] == len(seen) == 2
    assert seen[0] == seen[1]
    assert sorted(row_id for _, row_id, _ in seen[0] if row_id is not None) == list(range(60))
    assert_row_ids_hold(table)
    assert region_rows(table) == before
    table.assert_sound()


@pytest.mark.usefixtures("small_rounds")
def test_after_an_upgrade_a_group_that_another_commit_changes_is_dropped(table: MaintainedTable) -> None:
    """Its inputs had no ids when it was planned, and the other commit has assigned them since."""
    upgrade(table)
    table.catalog.after_commit = once(partial(rewritten_elsewhere, table))
    engine = SlowEngine(table, 1.0)
    outcome = compact(table, engine, None)
    assert (outcome.metrics["compact.bins"], outcome.metrics["compact.bins_dropped"]) == (1, 1)
    assert engine.rounds == [1], "the other one is not rewritten in vain"
    table.assert_sound()


def rewritten_elsewhere(table: MaintainedTable) -> None:
    assert table.run(Operation.COMPACT).metrics["compact.bins"] == 1


@pytest.mark.parametrize("partial_progress", ["0", "1"])
@pytest.mark.usefixtures("small_rounds")
def test_at_the_job_timeout_finished_groups_are_committed_and_others_wait(
    table: MaintainedTable, partial_progress: str
) -> None:
    before, engine = region_rows(table), SlowEngine(table, 1.0)
    settings = {"operations": "compact", "min_input_files": "2", "partial_progress": partial_progress}
    turn = Turn(why_stop=lambda: "job_timeout_s 60 is over" if engine.rounds else None)
    outcome = table.runtime_with().maintain(TableName(("ns",), "t"), settings, engine, turn=turn)
    (compact,) = outcome.operations
    assert outcome.status is PassStatus.SUCCEEDED
    assert compact.summary == (
        "compacted 3 files into 1 (across 1 bins); 1 bin(s) wait for the next run, because job_timeout_s 60 is over"
    )
    assert engine.rounds == [1]
    assert (len(table.data_files()), region_rows(table)) == (4, before)


@pytest.mark.usefixtures("small_rounds")
def test_an_interrupted_round_commits_the_groups_of_earlier_rounds(table: MaintainedTable) -> None:
    """It removes the files of the interrupted round."""
    before, engine = region_rows(table), SlowEngine(table, 1.0)

    def interrupt() -> None:
        if len(engine.rounds) == 2:
            raise KeyboardInterrupt

    engine.during = interrupt
    settings = {"operations": "compact", "min_input_files": "2"}
    with pytest.raises(PassInterrupted) as stopped:
        table.runtime_with().maintain(TableName(("ns",), "t"), settings, engine)
    assert str(stopped.value) == (
        "interrupted during compact; 1 complete commit(s) of it landed; this or a later pass deletes those of its 2 "
        "output file(s) that no snapshot references"
    )
    assert (len(table.data_files()), region_rows(table), table.unreferenced()) == (4, before, set())


@pytest.mark.usefixtures("small_rounds")
def test_a_pause_between_two_rounds_stops_the_next_round(table: MaintainedTable) -> None:
    """Earlier commits stay; the files of finished, uncommitted groups are removed (rule: switches-stop-at-once)."""
    until = "2099-01-01T00:00:00Z"
    why = (
        f"the table is paused until {until} (table property icekeeper.paused_until); "
        "the property was set while the pass ran"
    )

    def pause() -> None:
        table.table.transaction().set_properties({"icekeeper.paused_until": until}).commit_transaction()

    before, engine, files = region_rows(table), SlowEngine(table, 1.0), table.live_files()
    engine.during = once(pause)
    outcome = compact(table, engine, None)
    assert (outcome.status, outcome.reason, engine.rounds) == (Status.SKIPPED, why, [1])
    assert (table.live_files(), table.unreferenced()) == (files, set())
    table.table.transaction().remove_properties("icekeeper.paused_until").commit_transaction()
    engine = SlowEngine(table, 1.0)
    table.catalog.after_commit = once(pause)
    outcome = compact(table, engine, None, partial_progress="1")
    assert (outcome.status, outcome.summary, engine.rounds) == (
        Status.SUCCEEDED,
        f"compacted 3 files into 1 (across 1 bins); 1 bin(s) wait for the next run, because {why}",
        [1],
    )
    assert len(outcome.snapshot_ids) == 1
    assert (region_rows(table), table.unreferenced()) == (before, set())


@pytest.mark.parametrize(("limit_s", "commits"), [(None, 2), (900, 1)])
def test_groups_finished_before_the_engine_broke_are_committed(
    table: MaintainedTable, small_rounds: None, limit_s: float | None, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_ROUND_BYTES", 10**12 if limit_s else 1)
    fill(table, 2)
    before, engine = region_rows(table), SlowEngine(table, 1.0)

    def broken() -> None:
        if len(engine.rounds) == 3:
            raise StorageError("the engine broke")

    engine.during = broken
    outcome = compact(table, engine, limit_s)
    assert (outcome.status, outcome.reason) == (Status.FAILED, "2 bin(s) failed: StorageError: the engine broke")
    assert outcome.summary == "compacted 6 files into 2 (across 2 bins)"
    assert (outcome.metrics["compact.commits"], outcome.metrics["compact.bins_failed"]) == (commits, 2)
    assert (len(table.data_files()), region_rows(table)) == (8, before)
    assert table.unreferenced() == set()


@pytest.mark.slow
@pytest.mark.usefixtures("small_rounds")
def test_a_job_killed_at_any_moment_loses_at_most_one_group(tmp_path: Path) -> None:
    """Each of the three groups has its own commit; a later pass cleans up and does the rest."""
    template, folder, done = tmp_path / "template", tmp_path / "table", tmp_path / "rounds"
    with maintained_table(folder) as made:
        create_by_region(made, 3)
        fill(made, 1)
        made.state.require_writable()
        before = region_rows(made)
    shutil.copytree(folder, template)
    engine, number, found = ScriptedEngine(), 1, set()
    engine.during = lambda: done.write_text(f"{done.read_text()}.")
    while True:
        shutil.rmtree(folder)
        shutil.copytree(template, folder)
        done.write_text("")
        with maintained_table(folder) as table:
            if not dies_at(number, partial(compact, table, engine, None)):
                break
            committed = len(table.metadata.snapshots) - 9
            assert 0 <= len(done.read_text()) - committed <= 1, f"killed at step {number}"
            assert len(table.data_files()) == 9 - 2 * committed
            assert region_rows(table) == before
            table.assert_sound()
            found.add(committed)
            if number % 3 == 0:
                table.late_ms = 3 * HOUR_MS  # the record of the killed job has expired
                assert table.maintain().status is PassStatus.SUCCEEDED
                assert (len(table.data_files()), region_rows(table)) == (3, before)
                assert {path for path in table.unreferenced() if not path.endswith(".metadata.json")} == set()
        number += 11
    assert found == {0, 1, 2, 3}


# Rounds in a Lambda function.


def test_a_function_commits_finished_groups_and_leaves_the_table_due(
    table: MaintainedTable, each_alone: None, tmp_path: Path
) -> None:
    regions, before, left_s = Pipeline(table, tmp_path), region_rows(table), [900.0, 900.0]
    item, _ = regions.begin(operations="compact")
    answer = regions.run(item, "compact", time_left_s=lambda: left_s.pop() if left_s else 30.0)
    assert answer == {"compact": f"succeeded: compacted 3 files into 1 (across 1 bins); 1 {WAIT}"}
    assert regions.document(item, "compact.json")["metrics"]["compact.bins_waiting"] == 1
    assert (len(table.data_files()), region_rows(table)) == (4, before)
    regions.report()
    regions.clock.now_ms += HOUR_MS
    (again,) = regions.detect("run-2")[1]
    regions.plan(again, "run-2")
    answer = regions.run(again, "compact", run_id="run-2", time_left_s=lambda: 900.0)
    assert answer == {"compact": "succeeded: compacted 3 files into 1 (across 1 bins)"}
    assert (len(table.data_files()), region_rows(table)) == (2, before)


def test_a_function_retries_its_commit_only_while_it_has_time(table: MaintainedTable) -> None:
    """It keeps half a minute to remove its files and to report (rule: commit-on-newest-head)."""
    numbers = iter(range(1000, 2000))
    table.catalog.before_commit = lambda: table.table.append(rows_of(next(numbers), 1, "us"))
    resolved = table.runtime.policy(table.loaded, {**EAGER, "operations": "compact"}, unsafe=True)
    context = replace(
        table.runtime.context(table.loaded, resolved, table.engine), limits=PassLimits(left_s=lambda: 42.0)
    )
    assert run_operation(Operation.COMPACT, context).status is Status.FAILED
    assert 12 <= sum(table.waits) < 17
    assert table.unreferenced() == set()


@pytest.mark.usefixtures("small_rounds")
def test_rounds_commit_by_bytes_and_progress_counts_the_bytes_of_all_rounds(table: MaintainedTable) -> None:
    messages: list[tuple[str, int, int]] = []
    inputs = table.data_files()
    resolved = table.runtime.policy(table.loaded, {**EAGER, "operations": "compact"}, unsafe=True)
    context = table.runtime.context(
        table.loaded,
        resolved,
        ScriptedEngine(),
        progress=lambda *news: messages.append(news) if news not in messages else None,
    )
    outcome = run_operation(Operation.COMPACT, context)
    assert outcome.summary == "compacted 6 files into 2 (across 2 bins)"
    assert (outcome.metrics["compact.commits"], len(set(outcome.snapshot_ids))) == (2, 2)
    size = sum(file.file_size_in_bytes for file in inputs)
    first = sum(file.file_size_in_bytes for file in inputs if file.partition == ("us",))
    assert [news for news in messages if news[0] != "compact: footers"] == [
        ("compact: planning", 0, 0),
        (REWRITING, 0, size),
        (REWRITING, first, size),
        ("compact: committing", 0, 0),
        (REWRITING, size, size),
    ]
