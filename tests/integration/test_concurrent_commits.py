"""Other writers commit during a pass, and commits whose outcome is unknown: no row is lost or doubled."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.snapshot import SnapshotWriter
from icekeeper.errors import CommitConflict, CommitStateUnknown
from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, rows_of
from support.maintained_table import (
    MaintainedTable,
    files_below,
    maintained_table,
    new_table,
    outcome_of,
    without_leases,
)
from support.readers import canonical, duckdb_rows
from support.scripted_rest import CommitScript, error_document, scripted_rest

# Commits whose answers lie: lost while others build on them and expire them, wrong statuses, claims of success.

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
def test_what_landed_unseen_and_was_built_upon_is_not_taken_for_lost(
    four_appends: MaintainedTable, operation: Operation, answer: type[Exception]
) -> None:
    """A writer appends to our snapshot, and an engine that knows no pins expires it, before we look."""

    def lost_answer(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        landed = four_appends.catalog.inner.commit(base, requirements, updates)
        four_appends.catalog.commit_instead = None
        ours = landed.metadata.current_snapshot
        assert ours is not None
        four_appends.table.append(pa.table({"id": [99]}, schema=SCHEMA))
        four_appends.table.maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
        raise answer("no answer came")

    four_appends.catalog.commit_instead = lost_answer
    outcome = outcome_of(four_appends.maintain(operations=operation.value), operation)
    four_appends.assert_sound()
    assert [dict(row)["id"] for row in four_appends.rows()] == ["0", "1", "2", "3", "99"]
    assert outcome.status is Status.FAILED
    assert "because snapshots that came after its base have already expired" in outcome.summary


@pytest.mark.parametrize(
    "script",
    [
        CommitScript(status=408, body=error_document(408, "RequestTimeoutException")),
        CommitScript(status=404, body=error_document(404, "NoSuchTableException")),
        CommitScript(status=403, body=error_document(403, "ForbiddenException")),
        CommitScript(status=429, body=error_document(429, "TooManyRequestsException")),
        CommitScript(status=200, body=b"done"),
    ],
    ids=lambda script: str(script.status),
)
def test_what_was_carried_out_is_kept_whatever_the_server_answers(
    local_catalog: PyIcebergCatalog, tmp_path: Path, script: CommitScript
) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    rows = table.ids()
    with scripted_rest(table.catalog) as server:
        server.scripts.append(script)
        outcome = table.run(Operation.COMPACT, catalog=server.open())
    assert table.readers_agree() == rows
    assert (len(table.data_files()), table.unreferenced()) == (1, set())
    assert outcome.status is Status.SUCCEEDED
    assert server.requests.count("POST tables/t") == 1


@pytest.mark.parametrize("status", [301, 200])
def test_success_is_believed_only_when_the_table_shows_it(
    local_catalog: PyIcebergCatalog, tmp_path: Path, status: int
) -> None:
    """A redirect that is followed as a GET is answered with the table as it was, which looks like success."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    before, files = table.ids(), table.files()
    with scripted_rest(table.catalog) as server:
        catalog = server.open()
        _, _, as_it_was = server.answer("GET", "/v1/namespaces/ns/tables/t", b"")
        redirect = {"Location": f"{server.url}/v1/namespaces/ns/tables/t"}
        server.scripts.append(CommitScript(acts=False, status=status, body=as_it_was, headers=redirect))
        outcome = table.run(Operation.COMPACT, catalog=catalog)
    assert (outcome.status, outcome.snapshot_ids) == (Status.FAILED, ())
    assert table.readers_agree() == before
    # It may still land: its files are left to the orphan pass.
    assert len({path for path in table.files() - files if path.endswith(".parquet")}) == 1


def test_a_refusal_that_is_repeated_leaves_nothing_behind(local_catalog: PyIcebergCatalog, tmp_path: Path) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    before = table.files()
    for status in (403, 429):
        with scripted_rest(table.catalog) as server:
            refusal = CommitScript(acts=False, status=status, body=error_document(status, message="not on a Sunday"))
            server.scripts += [refusal] * 99
            outcome = table.run(Operation.COMPACT, catalog=server.open(), max_commit_retries="3")
        assert outcome.status is Status.FAILED
        assert "not on a Sunday" in outcome.summary
        assert (server.requests.count("POST tables/t") == 1) is (status == 403)
        assert table.files() == before
    # Who hears "too many requests" waits for seconds, and in all for half a minute.
    assert 30 <= sum(table.waits) < 50


@pytest.mark.parametrize(
    ("status", "lag", "landed"), [(404, 3, True), (404, 99, False), (429, 3, True), (429, 99, False)]
)
def test_a_refused_commit_that_a_replica_shows_late_or_never_loses_nothing(
    local_catalog: PyIcebergCatalog, tmp_path: Path, status: int, lag: int, landed: bool
) -> None:
    """Carried out, answered with a refusal, and for some looks, or for ever, the table is shown as it was."""
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    rows = table.ids()
    with scripted_rest(table.catalog) as server:
        server.scripts.append(CommitScript(status=status, body=error_document(status, message="not on a Sunday")))
        server.lagging_loads = lag
        outcome = table.run(Operation.COMPACT, catalog=server.open(), max_commit_retries="2")
    assert table.readers_agree() == rows
    assert (len(table.data_files()), table.unreferenced()) == (1, set())
    assert outcome.status is (Status.SUCCEEDED if landed else Status.FAILED)
    assert landed or "whether" in outcome.summary


def test_a_refusal_by_a_catalog_that_cannot_be_asked_keeps_the_files(
    local_catalog: PyIcebergCatalog, tmp_path: Path
) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    rows = table.ids()
    with scripted_rest(table.catalog) as server:
        server.scripts.append(CommitScript(status=404, body=error_document(404, "NoSuchTableException")))
        server.broken_loads = 9
        outcome = table.run(Operation.COMPACT, catalog=server.open())
    assert outcome.status is Status.FAILED
    assert "cannot be read to confirm this" in outcome.summary
    assert table.readers_agree() == rows
    assert (len(table.data_files()), table.unreferenced()) == (1, set())


# Commits of a pass of which nobody hears land when the pass has given them up: between its operations, or after it.
#
# What an unknown commit names stays until it can land no more (rule: keep-files-while-commit-may-land): outputs by the
# record of their job, manifests by the grace period of orphans.

WITH_GRACE: dict[str, Any] = {"orphan_older_than_hours": "24"}
COMMITS = 3
"""Of a pass over the table: compaction, expiry, manifests."""


class Late:
    """The catalog is busy with the commit of that number, and says nothing; it ends it when it is told to."""

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
        """Now the catalog carries it out, unless what it requires holds no more."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            try:
                waiting()
                self.landed = True
            except CommitConflict:
                self.landed = False


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of small files, some rows deleted by position."""
    folder = tmp_path_factory.mktemp("late") / "table"
    with maintained_table(folder) as table:
        create_by_region(table, 3)
        for file in table.data_files()[:2]:
            commit_deletes(table, [position_delete(file.file_path, 1, str(file.partition[0]))])
    return folder.rename(folder.with_name("template"))


@contextmanager
def restored(template: Path) -> Iterator[MaintainedTable]:
    """The folder lies where it was made, for its paths are absolute."""
    folder = template.with_name("table")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    with maintained_table(folder) as table:
        yield table


@pytest.mark.parametrize("when", ["before the next commit", "after the pass"])
@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_what_lands_late_finds_all_that_it_names(template: Path, number: int, when: str) -> None:
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


def test_an_expiry_that_lands_late_is_finished_by_the_next_one(template: Path) -> None:
    """Its list is there, although nobody knew that it would be needed (rule: protection-is-written-at-once)."""
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


# Compactions that other writers get in the way of.

COMPACT: dict[str, Any] = {"operations": "compact"}


def ids(table: MaintainedTable) -> Counter[int]:
    """Ids as DuckDB reads them: it knows nothing of us, and applies every kind of delete."""
    return Counter(row["id"] for row in duckdb_rows(table.loaded.metadata_location))


def compacted(table: MaintainedTable, **overrides: Any) -> OperationOutcome:
    return outcome_of(table.maintain(**COMPACT, **overrides), Operation.COMPACT)


def sound(table: MaintainedTable) -> None:
    """Consistent, and nothing left behind by what did not get committed, metadata files apart."""
    table.assert_sound()
    assert table.unreferenced() == set()


# Other writers commit while a pass is under way; nobody's rows are lost, doubled or brought back.


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region: us and eu, six files of ten rows each."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 6)
        yield made


def test_appends_during_a_rewrite_are_kept_and_so_is_the_rewrite(table: MaintainedTable) -> None:
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


def test_a_group_whose_input_went_is_dropped_and_the_others_commit(table: MaintainedTable) -> None:
    before = ids(table)
    table.engine.during = lambda: table.table.delete("id = 3")  # PyIceberg rewrites the file of that row
    outcome = compacted(table)
    assert outcome.metrics["compact.bins"] == 1
    assert outcome.metrics["compact.bins_dropped"] == 1
    assert outcome.status is Status.SUCCEEDED
    assert ids(table) == before - Counter([3])
    sound(table)


def test_when_every_group_was_overtaken_nothing_is_committed(table: MaintainedTable) -> None:
    table.engine.during = lambda: table.table.overwrite(rows_of(7, 3, "us"))
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert "another commit removed or rewrote an input file" in outcome.summary
    assert table.catalog.commits == 0
    assert ids(table) == Counter([7, 8, 9])
    sound(table)


@pytest.mark.parametrize("by", ["java", "java_its_child_too", "pyiceberg"])
def test_a_foreign_expiry_of_the_planning_snapshot(table: MaintainedTable, by: str) -> None:
    """An engine that knows no pins expires it after an append: the rewrite goes on while what came since is known.

    PyIceberg takes the parent's id out of its child, too.
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


def test_after_a_rollback_nothing_is_committed(table: MaintainedTable) -> None:
    """Rows that came back must stay; the files of the plan are still there, but its snapshot is not in the line."""
    earlier = table.table.snapshots()[-3].snapshot_id

    def roll_back() -> None:
        table.table.manage_snapshots().rollback_to_snapshot(earlier).commit()

    table.engine.during = roll_back
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert "rolled back" in outcome.summary
    assert table.loaded.metadata.refs["main"].snapshot_id == earlier
    sound(table)


def test_a_table_dropped_and_created_again_is_another_table(table: MaintainedTable) -> None:
    """Same name, same place, same schema: the UUID tells them apart."""

    def replace_table() -> None:
        old = table.table
        table.pyiceberg.drop_table("ns.t")
        table.pyiceberg.create_table("ns.t", old.schema(), location=old.location(), partition_spec=old.spec())
        table.table.append(rows_of(1, 4, "us"))

    table.engine.during = replace_table
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert "replaced by another" in outcome.summary
    assert table.catalog.commits == 0
    assert ids(table) == Counter([1, 2, 3, 4])


def _file_holding(table: MaintainedTable, row_id: int) -> str:
    (task,) = table.table.scan(row_filter=f"id = {row_id}").plan_files()
    return task.file.file_path


@pytest.mark.parametrize("bounds", [True, False])
def test_a_position_delete_on_an_input_is_forwarded(table: MaintainedTable, bounds: bool) -> None:
    before = ids(table)
    path = _file_holding(table, 103)
    table.engine.during = lambda: commit_deletes(table, [position_delete(path, 3, "us", bounds=bounds)])
    outcome = compacted(table)
    metrics = outcome.metrics
    assert (metrics["compact.bins"], metrics["compact.bins_dropped"], metrics["compact.rows_forwarded"]) == (2, 0, 1)
    assert ids(table) == before - Counter([103])
    sound(table)


def test_a_newer_equality_delete_still_applies_to_the_outputs(table: MaintainedTable) -> None:
    """Outputs keep the planning snapshot's sequence number (rule: keep-planning-sequence-number); rows appended after
    the delete stay."""
    before = ids(table)

    def meanwhile() -> None:
        commit_deletes(table, [equality_delete(103, "us")])
        table.table.append(rows_of(103, 1, "us"))

    table.engine.during = meanwhile
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
    assert before  # DuckDB cannot read a delete on a column that never was


Commit = Callable[[LoadedTable, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], LoadedTable]


def test_two_passes_at_once_lose_nothing(table: MaintainedTable) -> None:
    """Should a lease ever not keep them apart, grace keeps each from sweeping what the other is about to commit."""
    before = ids(table)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            table.maintain(orphan_older_than_hours="24")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    with without_leases():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert ids(table) == before
    table.assert_sound()
    table.maintain()
    sound(table)


@pytest.mark.slow
def test_a_steady_writer_loses_nothing_to_repeated_passes(table: MaintainedTable) -> None:
    before = ids(table)
    stop, written, losses = threading.Event(), [0], list[str]()

    def write() -> None:
        while not stop.wait(0.1):  # steady; without pause it would win every swap
            try:
                table.table.append(rows_of(1_000_000 + written[0], 1, "us"))
                written[0] += 1
            except Exception as error:  # PyIceberg gives up sooner than we do
                losses.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(100):
            table.maintain(orphan_older_than_hours="24", max_commit_retries="20", snapshot_retention_hours="1")
            if number >= 5 and written[0] > 3:
                break
    finally:
        stop.set()
        thread.join()
    assert written[0] > 3, losses
    assert ids(table) == before + Counter(range(1_000_000, 1_000_000 + written[0]))
    table.assert_sound()
    table.maintain()
    sound(table)


def test_these_tests_bite(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the head's sequence number on outputs, a newer equality delete would be undone: DuckDB would show it."""
    before = ids(table)
    original: Any = SnapshotWriter.replace_files

    def wrong(self: SnapshotWriter, replacement: Any, *args: Any) -> Any:
        changed = type(replacement)(replacement.removed, replacement.added, self.metadata.last_sequence_number + 1)
        return original(self, changed, *args)

    monkeypatch.setattr(SnapshotWriter, "replace_files", wrong)
    table.engine.during = lambda: commit_deletes(table, [equality_delete(103, "us")])
    compacted(table)
    assert ids(table) == before  # and with the right number it is one less: see above


# Swaps that are lost, and commits whose outcome nobody knows (rule: delete-only-after-commit).


def test_lost_swaps_are_retried_with_growing_waits_then_given_up(table: MaintainedTable) -> None:
    """50 ms, 100 ms, 200 ms, ... (rule: commit-on-newest-head); at the end nothing changed and nothing is left
    behind."""
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
    """Another writer wins every swap for two minutes (rule: commit-on-newest-head)."""
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
