"""Other writers commit during a pass, or the outcome of a commit is unknown: no row is lost or doubled."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitStateUnknown
from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, rows_of
from support.maintained_table import MaintainedTable, compacted, files_below, maintained_table, outcome_of
from support.readers import canonical, duckdb_rows
from support.scripted_rest import CommitScript, error_document, scripted_rest
from support.v3 import rows as ids

# Wrong answers to commits: lost while others build on the commit and expire it, wrong statuses, false success.

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


def test_files_of_a_landed_commit_are_kept_for_every_answer_of_the_server(three_appends: MaintainedTable) -> None:
    table = three_appends
    for number, (status, error) in enumerate(
        (
            (408, "RequestTimeoutException"),
            (404, "NoSuchTableException"),
            (403, "ForbiddenException"),
            (429, "TooManyRequestsException"),
            (200, ""),
        ),
        start=1,
    ):
        body = error_document(status, error) if error else b"done"
        rows = table.ids()
        with scripted_rest(table.catalog) as server:
            server.scripts.append(CommitScript(status=status, body=body))
            outcome = table.run(Operation.COMPACT, catalog=server.open(), rewrite_all="true")
        assert table.readers_agree() == rows, status
        assert (len(table.data_files()), table.unreferenced()) == (1, set()), status
        assert outcome.status is Status.SUCCEEDED, status
        assert server.requests.count("POST tables/t") == 1, status
        table.fill(1, start=10 * number)


def test_success_counts_only_if_the_table_shows_the_commit(three_appends: MaintainedTable) -> None:
    """A redirect that is followed as a GET returns the old table, which looks like success."""
    table = three_appends
    before = table.ids()
    for status in (301, 200):
        files = table.files()
        with scripted_rest(table.catalog) as server:
            catalog = server.open()
            _, _, old_table = server.answer("GET", "/v1/namespaces/ns/tables/t", b"")
            redirect = {"Location": f"{server.url}/v1/namespaces/ns/tables/t"}
            server.scripts.append(CommitScript(acts=False, status=status, body=old_table, headers=redirect))
            outcome = table.run(Operation.COMPACT, catalog=catalog)
        assert (outcome.status, outcome.snapshot_ids) == (Status.FAILED, ())
        assert table.readers_agree() == before
        # The commit may still land, so orphan removal deletes its files later.
        assert len({path for path in table.files() - files if path.endswith(".parquet")}) == 1


def test_a_repeated_refusal_leaves_no_files(three_appends: MaintainedTable) -> None:
    table, before = three_appends, three_appends.files()
    for status in (403, 429):
        with scripted_rest(table.catalog) as server:
            refusal = CommitScript(acts=False, status=status, body=error_document(status, message="not on a Sunday"))
            server.scripts += [refusal] * 99
            outcome = table.run(Operation.COMPACT, catalog=server.open(), max_commit_retries="3")
        assert outcome.status is Status.FAILED
        assert "not on a Sunday" in outcome.summary
        assert (server.requests.count("POST tables/t") == 1) is (status == 403)
        assert table.files() == before
    # After "too many requests", a pass waits some seconds per attempt, and at least 30 s in all.
    assert 30 <= sum(table.waits) < 50


def test_a_landed_commit_that_was_refused_and_shows_late_or_never_loses_no_row(three_appends: MaintainedTable) -> None:
    """The server commits and answers with a refusal; then some or all loads return the old table, or loads fail."""
    table = three_appends
    for number, (status, lag, broken, reason) in enumerate(
        ((404, 3, 0, ""), (404, 99, 0, "whether"), (429, 3, 0, ""), (429, 99, 0, "whether"), (404, 0, 9, UNREAD)),
        start=1,
    ):
        rows = table.ids()
        with scripted_rest(table.catalog) as server:
            server.scripts.append(CommitScript(status=status, body=error_document(status, message="not on a Sunday")))
            server.lagging_loads, server.broken_loads = lag, broken
            settings = {"max_commit_retries": "2", "rewrite_all": "true"}
            outcome = table.run(Operation.COMPACT, catalog=server.open(), **settings)
        assert table.readers_agree() == rows, (status, lag)
        assert (len(table.data_files()), table.unreferenced()) == (1, set()), (status, lag)
        assert outcome.status is (Status.FAILED if reason else Status.SUCCEEDED), (status, lag)
        assert reason in outcome.summary
        table.fill(1, start=10 * number)


UNREAD = "cannot be read to confirm this"


# Commits without an answer land after the pass has given them up: between its operations, or after it.
#
# Files of an unknown commit are kept while it may land (rule: keep-files-while-commit-may-land): outputs by the record
# of their job, manifests by the grace period of orphans.

WITH_GRACE: dict[str, Any] = {"orphan_older_than_hours": "24"}
COMMITS = 3
"""The commits of a pass over the table: compaction, expiry, manifests."""


class Late:
    """The catalog does not answer the commit of that number, and commits it when the test calls ``land``."""

    def __init__(self, table: MaintainedTable, number: int, *, before_the_next: bool) -> None:
        self.number = number
        self.before_the_next = before_the_next
        self.waiting: Callable[[], object] | None = None
        self.landed = False
        self._table = table
        table.catalog.commit_instead = self._commit

    def _commit(self, base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        if self._table.catalog.commits == self.number:
            self.waiting = lambda: self._table.catalog.inner.commit(base, requirements, updates)
            raise CommitStateUnknown("no answer")
        if self.before_the_next:
            self.land()
        return self._table.catalog.inner.commit(base, requirements, updates)

    def land(self) -> None:
        """Commit, unless the requirements no longer hold."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            try:
                waiting()
                self.landed = True
            except CommitConflict:
                self.landed = False


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with two partitions of small files and position deletes."""
    folder = tmp_path_factory.mktemp("late") / "table"
    with maintained_table(folder) as table:
        create_by_region(table, 3)
        for file in table.data_files()[:2]:
            commit_deletes(table, [position_delete(file.file_path, 1, str(file.partition[0]))])
    return folder.rename(folder.with_name("template"))


@contextmanager
def restored(template: Path) -> Iterator[MaintainedTable]:
    """Restore the table to its original folder, because its paths are absolute."""
    folder = template.with_name("table")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    with maintained_table(folder) as table:
        yield table


@pytest.mark.parametrize("when", ["before the next commit", "after the pass"])
@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_a_commit_that_lands_late_finds_all_its_files(template: Path, number: int, when: str) -> None:
    with restored(template) as table:
        rows = table.rows()
        late = Late(table, number, before_the_next=when == "before the next commit")
        table.maintain(**WITH_GRACE)
        assert table.catalog.commits >= number
        late.land()
        assert late.landed is (when == "before the next commit" or number == COMMITS)
        table.catalog.commit_instead = None
        table.assert_sound()
        assert table.rows() == rows
        assert canonical(duckdb_rows(table.metadata_location)) == rows
        table.late_ms = 2 * HOUR_MS
        for _ in range(2):
            last = table.maintain()
        assert last.status.value == Status.SUCCEEDED.value
        assert table.rows() == rows
        table.assert_sound()
        left = files_below(table.folder) - table.reachable()
        assert [path for path in left if not path.endswith(".metadata.json")] == []


def test_the_next_expiry_finishes_an_expiry_that_lands_late(template: Path) -> None:
    """The list of its files is written before the commit (rule: protection-is-written-at-once)."""
    with restored(template) as table:
        table.maintain("compact")
        before = table.reachable()
        late = Late(table, 2, before_the_next=False)
        table.maintain("expire_snapshots")
        late.land()
        assert late.landed
        freed = before - table.reachable()
        assert freed & table.files() == freed
        table.catalog.commit_instead = None
        table.maintain("expire_snapshots")
        assert {path for path in freed & table.files() if path.endswith((".parquet", ".avro"))} == set()


# Compactions beside other writers.

COMPACT: dict[str, Any] = {"operations": "compact"}


def sound(table: MaintainedTable) -> None:
    """Check that the table is consistent and has no uncommitted files except metadata files."""
    table.assert_sound()
    assert table.unreferenced() == set()


# Other writers commit during a pass; no row is lost, doubled or restored.


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
    outcome = compacted(table, max_commit_retries="3")
    assert outcome.status is Status.FAILED
    assert outcome.summary.startswith("CommitConflict: ")
    steps = [min(5.0, 0.05 * 2**attempt) for attempt in range(len(table.waits))]
    assert [step / 2 <= wait <= step for wait, step in zip(table.waits, steps, strict=True)] == [True] * len(steps)
    assert 30 <= sum(table.waits) < 35, "what took no time is worth half a minute"
    assert ids(table) == before + Counter(range(100_000, 100_000 + table.catalog.commits))
    sound(table)


def test_six_lost_swaps_do_not_discard_two_hours_of_work(table: MaintainedTable) -> None:
    """Another writer wins every swap for two minutes; no row of its commits is lost (rule: commit-on-newest-head)."""
    before, numbers = ids(table), iter(range(100_000, 200_000))

    def lose() -> None:
        if sum(table.waits) < 7200 + 120:
            table.table.append(rows_of(next(numbers), 1, "eu"))

    table.catalog.before_commit = lose
    table.engine.during = lambda: table.waits.append(7200.0)
    assert compacted(table).summary == "compacted 12 files into 2 (across 2 bins)"
    assert table.catalog.commits > 6
    assert ids(table) == before + Counter(range(100_000, next(numbers)))
    sound(table)


def test_an_unknown_commit_that_lost_is_repeated(table: MaintainedTable) -> None:
    """After another commit, the attempt cannot land: its manifests are deleted, and the next attempt commits."""
    before = ids(table)

    def unknown_once(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        table.catalog.commit_instead = None
        table.table.append(rows_of(9000, 1, "us"))
        raise CommitStateUnknown("no answer")

    table.catalog.commit_instead = unknown_once
    assert compacted(table).summary == "compacted 12 files into 2 (across 2 bins)"
    assert ids(table) == before + Counter([9000])
    sound(table)
