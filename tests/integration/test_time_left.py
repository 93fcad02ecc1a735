"""A function that compacts ends in time: what is ready is committed, the rest is the next run's (rule 147)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import StorageError
from icekeeper.maintenance.run_operation import run_operation
from icekeeper.operations.compaction import run_groups as in_commits
from icekeeper.operations.compaction.run_groups import rewrite_groups
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import create_by_region, rows_of
from support.deletes import region_rows as rows
from support.maintained_table import EAGER, maintained_table
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[Pipeline]:
    """A deployment over a table of two partitions of three files."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        yield Pipeline(made, tmp_path)


def ending(*left_s: float) -> Callable[[], float]:
    """So many seconds are left, at each time that somebody asks; the last answer stays."""
    answers = list(left_s)
    return lambda: answers.pop(0) if len(answers) > 1 else answers[0]


def test_what_is_ready_in_time_is_committed_and_the_rest_is_due_again(regions: Pipeline) -> None:
    before = rows(regions.table)
    item, plan = regions.begin(operations="compact")
    answer = regions.run(item, plan, "compact", time_left_s=ending(900, 300))
    assert answer == {
        "status": "succeeded",
        "summary": "compacted 3 files into 1 (across 1 bins); 1 bin(s) wait for the next run, for want of time",
    }
    assert regions.document(item, "compact.json")["metrics"]["compact.bins_waiting"] == 1
    assert (len(regions.table.data_files()), rows(regions.table)) == (4, before)
    regions.report(item, plan)
    release_table_lease(regions.deployment, RUN, item)
    regions.clock.now_ms += HOUR_MS
    (again,) = regions.detect("run-2")[1]
    acquire_table_lease(regions.deployment, "run-2", again)
    answer = regions.run(again, regions.plan(again, "run-2"), "compact", "run-2", time_left_s=ending(900, 899))
    assert answer["summary"] == "compacted 3 files into 1 (across 1 bins)"
    assert (len(regions.table.data_files()), rows(regions.table)) == (2, before)


def test_a_function_that_is_about_to_end_loses_no_more_swaps_than_it_has_time_for(regions: Pipeline) -> None:
    """It keeps half a minute for removing what it wrote and for its report (rule 59)."""
    table, numbers = regions.table, iter(range(1000, 2000))
    table.catalog.before_commit = lambda: table.table.append(rows_of(next(numbers), 1, "us"))
    resolved = table.runtime.policy(table.loaded, {**EAGER, "operations": "compact"}, unsafe=True)
    context = replace(table.runtime.context(table.loaded, resolved, table.engine), time_left_s=lambda: 42.0)
    assert run_operation(Operation.COMPACT, context).status is Status.FAILED
    assert 12 <= sum(table.waits) < 17
    assert table.unreferenced() == set()


def test_with_time_for_all_there_is_one_commit(regions: Pipeline) -> None:
    item, plan = regions.begin(operations="compact")
    snapshots = len(regions.table.metadata.snapshots)
    answer = regions.run(item, plan, "compact", time_left_s=ending(900, 800))
    assert answer["summary"] == "compacted 6 files into 2 (across 2 bins)"
    assert len(regions.table.metadata.snapshots) == snapshots + 1


def test_what_was_ready_before_the_engine_broke_is_committed(
    regions: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rewrite, calls = rows(regions.table), rewrite_groups, []

    def breaking(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise StorageError("the engine broke")
        return rewrite(*args)

    monkeypatch.setattr(in_commits, "rewrite_groups", breaking)
    item, plan = regions.begin(operations="compact")
    answer = regions.run(item, plan, "compact", time_left_s=ending(900, 800))
    assert answer["status"] == "failed"
    assert regions.document(item, "compact.json")["metrics"]["compact.bins_failed"] == 1
    assert (len(regions.table.data_files()), rows(regions.table)) == (4, before)


@pytest.mark.parametrize(("left_s", "groups"), [((900, 899), [1, 2]), ((900, 700, 699), [1, 1, 1])])
def test_small_groups_are_rewritten_together_where_time_allows(
    regions: Pipeline, monkeypatch: pytest.MonkeyPatch, left_s: tuple[float, ...], groups: list[int]
) -> None:
    """Each alone would write to the state and have a client whose requests wait for one another; the first one tells
    how long they take.  Where all that are left may not end in time, each is judged alone.
    """
    calls, rewrite = [], rewrite_groups

    def counted(*args: Any) -> Any:
        calls.append(len(args[3]))
        return rewrite(*args)

    monkeypatch.setattr(in_commits, "rewrite_groups", counted)
    table = regions.table.pyiceberg.load_table("ns.t")
    for n in range(3):
        table.append(rows_of(n * 100 + 70, 10, "ap"))
    before = rows(regions.table)
    item, plan = regions.begin(operations="compact")
    answer = regions.run(item, plan, "compact", time_left_s=ending(*left_s))
    assert answer["summary"] == "compacted 9 files into 3 (across 3 bins)"
    assert (calls, rows(regions.table)) == (groups, before)
