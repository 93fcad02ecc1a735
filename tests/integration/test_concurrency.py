"""Other writers commit while a pass is under way; nobody's rows are lost, doubled or brought back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.snapshot import SnapshotWriter
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, rows_of
from support.maintained_table import MaintainedTable, maintained_table, without_leases
from support.overtaken import compacted, ids, sound


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
    assert "an input file was removed or rewritten by another commit" in outcome.summary
    assert table.catalog.commits == 0
    assert ids(table) == Counter([7, 8, 9])
    sound(table)


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
def test_a_position_delete_on_an_input_drops_its_group_only(table: MaintainedTable, bounds: bool) -> None:
    before = ids(table)
    path = _file_holding(table, 103)
    table.engine.during = lambda: commit_deletes(table, [position_delete(path, 3, "us", bounds=bounds)])
    outcome = compacted(table)
    assert (outcome.metrics["compact.bins"], outcome.metrics["compact.bins_dropped"]) == (1, 1)
    assert ids(table) == before - Counter([103])
    sound(table)


def test_a_newer_equality_delete_still_applies_to_the_outputs(table: MaintainedTable) -> None:
    """Outputs keep the planning snapshot's sequence number (rule 1); rows appended after the delete stay."""
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
