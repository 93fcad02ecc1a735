"""Swaps that are lost, and commits whose outcome nobody knows (rule 69)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitStateUnknown
from icekeeper.report.outcome import Status
from support.deletes import create_by_region, rows_of
from support.maintained_table import MaintainedTable, maintained_table
from support.overtaken import compacted, ids, sound


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region: us and eu, six files of ten rows each."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 6)
        yield made


def test_lost_swaps_are_retried_with_growing_waits_then_given_up(table: MaintainedTable) -> None:
    """50 ms, 100 ms, 200 ms, ... (rule 59); at the end nothing changed and nothing is left behind."""
    before = ids(table)
    numbers = iter(range(100_000, 200_000))
    table.catalog.before_commit = lambda: table.table.append(rows_of(next(numbers), 1, "eu"))
    outcome = compacted(table, max_commit_retries="3")
    assert outcome.status is Status.FAILED
    assert outcome.summary.startswith("CommitConflict: ")
    steps = [min(5.0, 0.05 * 2**attempt) for attempt in range(len(table.waits))]
    assert [step / 2 <= wait <= step for wait, step in zip(table.waits, steps, strict=True)] == [True] * len(steps)
    assert 30 <= sum(table.waits) < 35, "what took no time is worth half a minute"
    assert ids(table) == before + Counter(range(100_000, 100_000 + table.catalog.commits))
    sound(table)


def test_two_hours_of_work_are_not_lost_to_six_lost_swaps(table: MaintainedTable) -> None:
    """Another writer wins every swap for two minutes (rule 59)."""
    numbers = iter(range(100_000, 200_000))

    def lose() -> None:
        if sum(table.waits) < 7200 + 120:
            table.table.append(rows_of(next(numbers), 1, "eu"))

    table.catalog.before_commit = lose
    table.engine.during = lambda: table.waits.append(7200.0)
    assert compacted(table).summary == "compacted 12 files into 2 (across 2 bins)"
    assert table.catalog.commits > 6
    sound(table)


def test_a_swap_lost_once_is_won_the_next_time(table: MaintainedTable) -> None:
    before = ids(table)

    def append_once() -> None:
        if table.catalog.commits == 1:
            table.table.append(rows_of(5000, 1, "eu"))

    table.catalog.before_commit = append_once
    assert compacted(table).summary == "compacted 12 files into 2 (across 2 bins)"
    assert ids(table) == before + Counter([5000])
    sound(table)


def test_an_unknown_commit_that_landed_counts_once(table: MaintainedTable) -> None:
    before = table.rows()

    def lose_the_answer() -> None:
        raise CommitStateUnknown("no answer")

    table.catalog.after_commit = lose_the_answer
    outcome = compacted(table)
    assert (outcome.status, table.catalog.commits) == (Status.SUCCEEDED, 1)
    assert outcome.snapshot_id == table.loaded.metadata.refs["main"].snapshot_id
    assert table.rows() == before
    sound(table)


def test_an_unknown_commit_keeps_its_files_while_it_may_still_land(table: MaintainedTable) -> None:
    """The server is still busy with the attempt when we give up: what it names must be there when it lands."""
    before = ids(table)
    late: list[Callable[[], LoadedTable]] = []

    def unknown(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        late.append(lambda: table.catalog.inner.commit(base, requirements, updates))
        raise CommitStateUnknown("no answer")

    table.catalog.commit_instead = unknown
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert outcome.summary.startswith("CommitStateUnknown")
    late[0]()
    assert ids(table) == before
    sound(table)


def test_an_unknown_commit_that_lost_is_made_again(table: MaintainedTable) -> None:
    """Another commit took the place: the attempt can land no more, its manifests go, and the next one commits."""
    before = ids(table)

    def unknown_once(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        table.catalog.commit_instead = None
        table.table.append(rows_of(9000, 1, "us"))
        raise CommitStateUnknown("no answer")

    table.catalog.commit_instead = unknown_once
    assert compacted(table).summary == "compacted 12 files into 2 (across 2 bins)"
    assert ids(table) == before + Counter([9000])
    sound(table)


def test_a_conflict_reported_for_a_commit_that_landed_loses_nothing(table: MaintainedTable) -> None:
    """A client that repeats a request by itself may hear "conflict" about its own success (iceberg 5752)."""
    before = ids(table)

    def conflict() -> None:
        table.catalog.after_commit = lambda: None
        raise CommitConflict("the ref is at another snapshot")

    table.catalog.after_commit = conflict
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    assert ids(table) == before
    sound(table)
