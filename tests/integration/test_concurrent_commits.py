"""Other writers commit during a pass, or the outcome of a commit is unknown: no row is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitRefused, CommitStateUnknown
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, create_by_region, equality_delete, rows_of
from support.maintained_table import MaintainedTable, compacted, maintained_table, outcome_of
from support.v3 import rows as ids

# The answer of a commit is lost while others build on the commit and expire it.

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def four_appends(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as made:
        made.create(SCHEMA)
        for number in range(4):
            made.table.append(pa.table({"id": [number]}, schema=SCHEMA))
        yield made


@pytest.mark.parametrize("answer", [CommitStateUnknown, CommitConflict])
@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REWRITE_MANIFESTS])
def test_a_landed_commit_that_was_built_upon_and_expired_does_not_count_as_lost(
    four_appends: MaintainedTable, operation: Operation, answer: type[Exception]
) -> None:
    """Before the pass loads the table, a writer appends to its snapshot, and an engine that ignores pins expires it."""

    def lost_answer(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        landed = four_appends.catalog.inner.commit(base, requirements, updates)
        four_appends.catalog.commit_instead = None
        committed = landed.metadata.current_snapshot
        assert committed is not None
        four_appends.table.append(pa.table({"id": [99]}, schema=SCHEMA))
        four_appends.table.maintenance.expire_snapshots().by_id(committed.snapshot_id).commit()
        raise answer("no answer came")

    four_appends.catalog.commit_instead = lost_answer
    outcome = outcome_of(four_appends.maintain(operations=operation.value), operation)
    four_appends.assert_sound()
    assert [dict(row)["id"] for row in four_appends.rows()] == ["0", "1", "2", "3", "99"]
    assert outcome.status is Status.FAILED
    assert "because snapshots that came after its base have already expired" in outcome.summary


# Compactions beside other writers: no row is lost, doubled or restored.


def sound(table: MaintainedTable) -> None:
    """Check that the table is consistent and has no uncommitted files except metadata files."""
    table.assert_sound()
    assert table.unreferenced() == set()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """A table partitioned by region, us and eu, with six files of ten rows each."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 6)
        yield made


def test_appends_during_a_rewrite_and_the_rewrite_are_kept(table: MaintainedTable) -> None:
    before = ids(table)

    def append_twice() -> None:
        for first in (10_000, 20_000):
            table.table.append(rows_of(first, 5, "us"))

    table.engine.during = append_twice
    outcome = compacted(table)
    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, "compacted 12 files into 2 (across 2 bins)")
    assert ids(table) == before + Counter([*range(10_000, 10_005), *range(20_000, 20_005)])
    assert len(list(table.table.scan().plan_files())) == 4
    sound(table)


def test_a_group_with_a_removed_input_is_dropped_and_the_others_commit(table: MaintainedTable) -> None:
    before = ids(table)
    table.engine.during = lambda: table.table.delete("id = 3")  # PyIceberg rewrites the file of that row
    outcome = compacted(table)
    assert outcome.metrics["compact.bins"] == 1
    assert outcome.metrics["compact.bins_dropped"] == 1
    assert outcome.status is Status.SUCCEEDED
    assert ids(table) == before - Counter([3])
    sound(table)


def test_nothing_is_committed_if_every_group_lost_an_input(table: MaintainedTable) -> None:
    table.engine.during = lambda: table.table.overwrite(rows_of(7, 3, "us"))
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert "another commit removed or rewrote an input file" in outcome.summary
    assert table.catalog.commits == 0
    assert ids(table) == Counter([7, 8, 9])
    sound(table)


@pytest.mark.parametrize("by", ["java", "java_its_child_too", "pyiceberg"])
def test_a_rewrite_survives_a_foreign_expiry_only_if_its_line_is_known(table: MaintainedTable, by: str) -> None:
    """An engine that ignores pins expires the planning snapshot after appends; the rewrite needs all later snapshots.

    PyIceberg also removes the parent id from the child.
    """
    planned = table.metadata.refs["main"].snapshot_id
    before = ids(table)

    def expire() -> None:
        gone = [planned]
        for number in (7, 8):
            table.table.append(rows_of(number, 1, "us"))
            gone.append(table.metadata.refs["main"].snapshot_id)
        gone = gone[: 2 if by == "java_its_child_too" else 1]
        if by == "pyiceberg":
            table.table.maintenance.expire_snapshots().by_id(planned).commit()
        else:
            table.catalog.inner.commit(table.loaded, [], [{"action": "remove-snapshots", "snapshot-ids": gone}])
        assert table.metadata.snapshots.keys().isdisjoint(gone)

    table.engine.during = expire
    outcome = compacted(table)
    assert outcome.status is (Status.SUCCEEDED if by == "java" else Status.FAILED)
    assert ("because snapshots after it have expired" in outcome.summary) is (by != "java")
    assert ids(table) == before + Counter([7, 8])
    table.assert_sound()
    assert {Path(path).name.partition("-")[0] for path in table.unreferenced()} == {"snap"}, "left by that expiry"


def test_nothing_is_committed_after_a_rollback(table: MaintainedTable) -> None:
    """Restored rows must be kept: the files of the plan are present, but its snapshot is not in the line."""
    earlier = table.table.snapshots()[-3].snapshot_id

    def roll_back() -> None:
        table.table.manage_snapshots().rollback_to_snapshot(earlier).commit()

    table.engine.during = roll_back
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert "rolled back" in outcome.summary
    assert table.loaded.metadata.refs["main"].snapshot_id == earlier
    sound(table)


def test_a_newer_equality_delete_still_applies_to_the_outputs(table: MaintainedTable) -> None:
    """Outputs keep the planning snapshot's sequence number (rule: keep-planning-sequence-number); the delete does not
    apply to rows appended after it."""
    before = ids(table)

    def delete_and_append() -> None:
        commit_deletes(table, [equality_delete(103, "us")])
        table.table.append(rows_of(103, 1, "us"))

    table.engine.during = delete_and_append
    outcome = compacted(table)
    assert outcome.metrics["compact.bins"] == 2
    assert ids(table) == before
    assert Counter(i for i in ids(table) if i == 103) == Counter([103])
    sound(table)


def test_an_equality_delete_on_a_column_that_outputs_lack_drops_the_group(table: MaintainedTable) -> None:
    before = ids(table)
    deleted, more = equality_delete(103, "us")
    table.engine.during = lambda: commit_deletes(table, [(deleted, {**more, "equality_ids": (77,)})])
    assert compacted(table).metrics["compact.bins"] == 1
    assert table.catalog.commits == 1
    assert before  # DuckDB cannot read a delete by a column that never existed


# Lost swaps, and commits with unknown outcome (rule: delete-only-after-commit).


def test_lost_swaps_are_retried_with_growing_waits_and_given_up(table: MaintainedTable) -> None:
    """The waits are 50 ms, 100 ms, 200 ms, ... (rule: commit-on-newest-head); at the end, the pass has changed nothing
    and left no files."""
    before = ids(table)
    numbers = iter(range(100_000, 200_000))
    table.catalog.before_commit = lambda: table.table.append(rows_of(next(numbers), 1, "eu"))
    table.engine.during = lambda: table.waits.append(60.0)
    outcome = compacted(table, max_commit_retries="3")
    assert outcome.status is Status.FAILED
    assert outcome.summary.startswith("CommitConflict: ")
    _, *waits = table.waits
    steps = [min(5.0, 0.05 * 2**attempt) for attempt in range(len(waits))]
    assert [step / 2 <= wait <= step for wait, step in zip(waits, steps, strict=True)] == [True] * len(steps)
    assert 60 <= sum(waits) < 65, "the work took a minute"
    assert ids(table) == before + Counter(range(100_000, 100_000 + table.catalog.commits))
    sound(table)


def test_files_of_a_refused_commit_that_only_the_store_shows_are_kept(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog commits and refuses, and its replica shows the old table forever
    (rule: keep-files-while-commit-may-land)."""
    before = ids(table)

    def land_and_refuse(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        table.catalog.inner.commit(base, requirements, updates)
        monkeypatch.setattr(table.catalog, "load", lambda name: base)
        raise CommitRefused("HTTP 404: not here")

    table.catalog.commit_instead = land_and_refuse
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert "a metadata file in the store shows the commit" in outcome.summary
    assert ids(table) == before
    sound(table)


def test_the_next_expiry_finishes_an_expiry_that_lands_late(table: MaintainedTable) -> None:
    """The list of its files is written before the commit (rule: protection-is-written-at-once)."""
    table.maintain("compact")
    before, late = table.reachable(), list[tuple[Any, ...]]()

    def unanswered(*commit: Any) -> LoadedTable:
        late.append(commit)
        raise CommitStateUnknown("no answer")

    table.catalog.commit_instead = unanswered
    table.maintain("expire_snapshots")
    (commit,) = late
    table.catalog.inner.commit(*commit)
    freed = before - table.reachable()
    assert set() < freed <= table.files()
    table.catalog.commit_instead = None
    table.maintain("expire_snapshots")
    assert {path for path in freed & table.files() if path.endswith((".parquet", ".avro"))} == set()
