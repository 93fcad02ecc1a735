"""Format v3 through whole passes, without Java: deletion vectors and row ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from icekeeper.repair.plan import RepairOptions
from icekeeper.report.outcome import Status
from icekeeper.rows import file_rows
from support.damaged_table import edit_avro, state_length
from support.maintained_table import NAME, MaintainedTable, compacted, local_path
from support.v3 import (
    append,
    assert_row_ids_hold,
    data_files,
    delete_positions,
    file_of,
    lineage,
    manifests,
    rows,
    upgraded_table,
    vectors,
    with_row_ids,
)

# Format v3 through whole passes, without Java: deletion vectors, row ids, and other writers in between.


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with upgraded_table(tmp_path) as made:
        yield made


@pytest.fixture
def with_ids(table: MaintainedTable) -> MaintainedTable:
    return with_row_ids(table)


def test_row_ids_are_assigned_again_at_every_attempt(with_ids: MaintainedTable) -> None:
    """Another commit takes row ids between our attempts, so our ids follow them (rule: rows-keep-their-lineage)."""
    table = with_ids
    before = lineage(table)
    seen: list[int] = []
    appended = {1: range(1000, 1005), 2: range(2000, 2005)}

    def overtake() -> None:
        seen.append(table.loaded.metadata.next_row_id)
        if len(seen) in appended:
            append(table, 1000 * len(seen), 5, "us")

    table.catalog.before_commit = overtake
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    # There are 80 rows; each append takes 5 ids; our commit takes 80, which its rows do not use: they keep their ids.
    assert seen == [80, 85, 90]
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    assert (head.raw["first-row-id"], head.raw["added-rows"]) == (90, 80)
    found = lineage(table)
    assert before <= found
    assert {row_id for _, row_id, _ in (found - before)} == {*range(80, 90)}
    assert rows(table) == Counter(row[0] for row in before.elements()) + Counter([*appended[1], *appended[2]])
    assert_row_ids_hold(table)
    table.assert_sound()


def test_rows_that_get_their_ids_during_a_rewrite_keep_them(table: MaintainedTable) -> None:
    """A v3 commit of another writer gives every row its id; earlier outputs lack the ids, so they are dropped."""
    table.engine.during = lambda: append(table, 1000, 5, "us")
    outcome = compacted(table)
    assert outcome.status is Status.FAILED
    assert "another commit gave the rows of an input file ids" in (outcome.reason or "")
    before = lineage(table)
    assert_row_ids_hold(table)
    table.engine.during = lambda: None
    assert compacted(table).status is Status.SUCCEEDED
    assert lineage(table) == before
    table.assert_sound()


# Copied row groups of v3 tables: rows keep their lineage, whether it was stored or inherited.


def row_groups(table: MaintainedTable) -> list[list[int]]:
    found = []
    for file in data_files(table):
        footer = pq.read_metadata(local_path(file.file_path))
        found.append([footer.row_group(n).num_rows for n in range(footer.num_row_groups)])
    return sorted(found)


def file_of_region(table: MaintainedTable, region: str) -> str:
    """The largest data file of a region."""
    files = [file for file in data_files(table) if file.partition == (region,)]
    return max(files, key=lambda file: file.record_count).file_path


def test_rows_keep_their_ids_when_their_row_groups_are_copied_repeatedly(
    with_ids: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of each region's four files are decoded: a file with a vector, and a file whose entry has no counts.

    Then a vector deletes from the first row group of an output, and two more files are merged with the outputs.
    """
    monkeypatch.setattr(file_rows, "BATCH_ROWS", 4)
    table = with_ids
    delete_positions(table, {file_of(table, 0): [0, 5], file_of(table, 150): [9]})
    before, live_rows = lineage(table), rows(table)

    first = compacted(table, min_row_group_copy_bytes="1")

    assert row_groups(table) == [[18, 10, 10], [19, 10, 10]]
    assert first.metrics["compact.bytes_copied"] > 0
    assert lineage(table) == before
    assert rows(table) == live_rows
    assert not vectors(table)
    assert_row_ids_hold(table)

    append(table, 400, 3, "us")
    append(table, 500, 4, "us")
    delete_positions(table, {file_of_region(table, "us"): [3]})
    before = lineage(table)
    again = compacted(table, min_row_group_copy_bytes="1")
    assert row_groups(table) == [[19, 10, 10], [24, 10, 10]]
    assert again.metrics["compact.bytes_copied"] > 0
    assert lineage(table) == before
    assert_row_ids_hold(table)
    table.assert_sound()


# Deletion vectors through compaction: removed, kept and damaged vectors.


def test_the_summary_counts_vectors(with_ids: MaintainedTable) -> None:
    table = with_ids
    delete_positions(table, {file_of(table, 0): [0], file_of(table, 100): [1, 2]})
    sizes = [entry.file.content_size_in_bytes or 0 for entry in vectors(table).values()]
    inputs = sum(file.file_size_in_bytes for file in data_files(table))
    compacted(table)
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    keys = ("removed-dvs", "removed-delete-files", "removed-position-deletes", "total-delete-files")
    assert [head.summary[key] for key in keys] == ["2", "2", "3", "0"]
    assert int(head.summary["removed-files-size"]) == inputs + sum(sizes)


def test_a_vector_is_removed_while_its_puffin_file_is_kept(with_ids: MaintainedTable) -> None:
    """A Puffin file is removed once no live entry uses it, not before (rule: what-a-table-needs)."""
    table = with_ids
    puffin = delete_positions(table, {file_of(table, 0): [0], file_of(table, 50): [1]})
    before = rows(table)
    table.maintain(operations="compact,expire_snapshots,remove_orphans", where="region = 'us'")
    assert puffin in {entry.file.file_path for entry in vectors(table).values()}
    assert rows(table) == before
    table.assert_sound()
    table.maintain()
    assert not vectors(table)
    assert not local_path(puffin).exists()
    assert rows(table) == before
    table.assert_sound()


@pytest.mark.parametrize("damage", ["byte", "cut", "gone"])
def test_a_damaged_vector_keeps_its_data_file_unchanged(with_ids: MaintainedTable, damage: str) -> None:
    table = with_ids
    puffin = local_path(delete_positions(table, {file_of(table, 100): [3, 4]}))
    before = table.files()
    data = puffin.read_bytes()
    entry = vectors(table)[file_of(table, 100)].file
    assert entry.content_offset is not None
    if damage == "byte":
        puffin.write_bytes(data[: entry.content_offset + 10] + b"\xff" + data[entry.content_offset + 11 :])
    elif damage == "cut":
        puffin.write_bytes(data[: entry.content_offset + 10])
    else:
        puffin.unlink()
    reached = file_of(table, 100)
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.bins_failed"] == 0
    assert outcome.metrics["compact.files_merged"] == 7
    assert puffin.name in outcome.summary
    assert reached in {f.file_path for f in data_files(table)}
    assert vectors(table)[reached].file == entry
    assert before - {str(puffin)} <= table.files()


def test_rows_that_a_repair_counts_again_have_row_ids_of_their_own(with_ids: MaintainedTable) -> None:
    """Another writer counted two rows of the first file too few, so the next file inherits two of its row ids."""
    first = manifests(with_ids)[0].manifest_path
    edit_avro(local_path(first), lambda entries: entries[0]["data_file"].update(record_count=8))
    head = with_ids.metadata.current_snapshot
    assert head is not None
    edit_avro(local_path(str(head.manifest_list)), lambda listed: state_length(listed, first))
    runtime, options = with_ids.runtime_with(), RepairOptions(file_metrics=True)
    plan = runtime.plan_repair(NAME, options).plan
    assert plan is not None
    assert plan.operation == "overwrite"
    before = lineage(with_ids)
    _, found = runtime.repair(NAME, options, plan.digest)
    assert found is not None
    assert found.problems == ()
    assert_row_ids_hold(with_ids)
    (mend,) = plan.mends
    counted_again = {row["id"] for row in pq.read_table(local_path(mend.entry.file.file_path)).to_pylist()}
    kept = Counter({row: count for row, count in before.items() if row[0] not in counted_again})
    assert kept == Counter({row: n for row, n in lineage(with_ids).items() if row[0] not in counted_again})
    assert sum(rows(with_ids).values()) == 80
