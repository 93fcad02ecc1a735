"""Format v3 through whole passes, without Java: deletion vectors and row ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.model import ManifestContent
from icekeeper.policy import Operation
from icekeeper.repair.plan import RepairOptions
from icekeeper.report.outcome import Status
from icekeeper.rows import file_rows
from support.damaged_table import edit_avro, state_length
from support.deletes import create_by_region, rows_of
from support.maintained_table import NAME, MaintainedTable, compacted, local_path, maintained_table, outcome_of
from support.v3 import (
    append,
    assert_row_ids_hold,
    data_files,
    delete_positions,
    file_of,
    lineage,
    manifests,
    rows,
    upgrade,
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


def test_the_first_commit_after_the_upgrade_gives_every_row_its_id(table: MaintainedTable) -> None:
    """It also gives ids to rows of unchanged files."""
    delete_positions(table, {file_of(table, 0): [1, 2]})
    assert_row_ids_hold(table)


def test_files_without_row_ids_are_rewritten_without_lineage(table: MaintainedTable) -> None:
    """Their rows get ids from the commit (rule: rows-keep-their-lineage)."""
    before = rows(table)
    assert {found[1:] for found in lineage(table)} == {(None, None)}
    outcome = compacted(table, rewrite_all="true")
    assert outcome.summary == "compacted 6 files into 2 (across 2 bins)"
    for file in data_files(table):
        with pq.ParquetFile(local_path(file.file_path)) as opened:
            assert opened.schema_arrow.names == ["id", "region"]
    assert rows(table) == before
    assert_row_ids_hold(table)
    table.assert_sound()


def test_rows_keep_their_lineage_through_compaction(with_ids: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids count from the position before deletes are applied; vectors are removed with their files."""
    monkeypatch.setattr(file_rows, "BATCH_ROWS", 4)
    table = with_ids
    delete_positions(table, {file_of(table, 0): [0, 1, 5], file_of(table, 100): range(10), file_of(table, 350): [9]})
    delete_positions(table, {file_of(table, 0): [9], file_of(table, 250): [0]})
    before, live_rows = lineage(table), rows(table)
    assert sum(before.values()) == 80 - 16
    assert vectors(table).keys() == {file_of(table, first) for first in (0, 100, 250, 350)}
    outcome = compacted(table)
    assert outcome.summary == "compacted 8 files into 2 (across 2 bins)"
    assert outcome.metrics["compact.rows_deleted"] == 16
    assert outcome.metrics["compact.delete_files_removed"] == 4
    assert lineage(table) == before
    assert rows(table) == live_rows
    assert not vectors(table)
    assert_row_ids_hold(table)
    table.assert_sound()

    delete_positions(table, {data_files(table)[0].file_path: [3]})
    append(table, 400, 3, "us")
    before = lineage(table)
    assert compacted(table, rewrite_all="true").status is Status.SUCCEEDED
    assert lineage(table) == before
    assert_row_ids_hold(table)


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


@pytest.mark.parametrize("direction", ["into_one_partition", "dealt_out"])
def test_rows_keep_their_lineage_through_a_change_of_partitioning(tmp_path: Path, direction: str) -> None:
    with maintained_table(tmp_path) as table:
        if direction == "into_one_partition":
            create_by_region(table, 3)
            with table.table.update_spec() as spec:
                spec.remove_field("region")
        else:
            written = table.create(rows_of(0, 1, "us").schema, properties={"format-version": "2"})
            for first in range(0, 600, 100):
                written.append(pa.concat_tables([rows_of(first, 5, "us"), rows_of(first + 50, 5, "eu")]))
            with table.table.update_spec() as spec:
                spec.add_identity("region")
        upgrade(table)
        delete_positions(table, {file_of(table, 0): [0, 3], file_of(table, 100): [4]})
        before, read = lineage(table), rows(table)
        outcome = compacted(table)
        assert outcome.status is Status.SUCCEEDED, outcome.summary
        assert {file.partition for file in data_files(table)} == (
            {()} if direction == "into_one_partition" else {("us",), ("eu",)}
        )
        assert lineage(table) == before
        assert rows(table) == read
        assert_row_ids_hold(table)
        table.assert_sound()


def test_rewritten_manifests_keep_every_row_id(with_ids: MaintainedTable) -> None:
    table = with_ids
    delete_positions(table, {file_of(table, 0): [0, 1]})
    before = lineage(table)
    outcome = outcome_of(table.maintain(operations="rewrite_manifests"), Operation.REWRITE_MANIFESTS)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    assert len([m for m in manifests(table) if m.content is ManifestContent.DATA]) == 1
    assert lineage(table) == before
    assert_row_ids_hold(table)
    append(table, 500, 5, "us")
    assert_row_ids_hold(table)
    table.assert_sound()


def test_manifests_of_an_upgraded_table_may_be_rewritten_first(table: MaintainedTable) -> None:
    outcome = outcome_of(table.maintain(operations="rewrite_manifests"), Operation.REWRITE_MANIFESTS)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    assert_row_ids_hold(table)
    assert table.loaded.metadata.next_row_id == 60
    table.assert_sound()


# Copied row groups of v3 tables: rows keep their lineage, whether it was stored or inherited.


@pytest.fixture
def table_with_ids(tmp_path: Path) -> Iterator[MaintainedTable]:
    with upgraded_table(tmp_path) as made:
        yield with_row_ids(made)


def row_groups(table_with_ids: MaintainedTable) -> list[list[int]]:
    found = []
    for file in data_files(table_with_ids):
        footer = pq.read_metadata(local_path(file.file_path))
        found.append([footer.row_group(n).num_rows for n in range(footer.num_row_groups)])
    return sorted(found)


def file_of_region(table_with_ids: MaintainedTable, region: str) -> str:
    """The largest data file of a region."""
    files = [file for file in data_files(table_with_ids) if file.partition == (region,)]
    return max(files, key=lambda file: file.record_count).file_path


def test_rows_keep_their_ids_when_their_row_groups_are_copied_repeatedly(table_with_ids: MaintainedTable) -> None:
    """Two of each region's four files are decoded: a file with a vector, and a file whose entry has no counts.

    Then a vector deletes from the first row group of an output, and two more files are merged with the outputs.
    """
    delete_positions(table_with_ids, {file_of(table_with_ids, 0): [0, 5], file_of(table_with_ids, 150): [9]})
    before, live_rows = lineage(table_with_ids), rows(table_with_ids)

    first = compacted(table_with_ids, min_row_group_copy_bytes="1")

    assert row_groups(table_with_ids) == [[18, 10, 10], [19, 10, 10]]
    assert first.metrics["compact.bytes_copied"] > 0
    assert lineage(table_with_ids) == before
    assert rows(table_with_ids) == live_rows
    assert not vectors(table_with_ids)
    assert_row_ids_hold(table_with_ids)

    append(table_with_ids, 400, 3, "us")
    append(table_with_ids, 500, 4, "us")
    delete_positions(table_with_ids, {file_of_region(table_with_ids, "us"): [3]})
    before = lineage(table_with_ids)
    again = compacted(table_with_ids, min_row_group_copy_bytes="1")
    assert row_groups(table_with_ids) == [[19, 10, 10], [24, 10, 10]]
    assert again.metrics["compact.bytes_copied"] > 0
    assert lineage(table_with_ids) == before
    assert_row_ids_hold(table_with_ids)
    table_with_ids.assert_sound()


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
