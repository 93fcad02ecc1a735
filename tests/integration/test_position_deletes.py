"""Position delete files are merged, or become deletion vectors; readers show the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import StorageError
from icekeeper.maintenance.pass_steps import run_operation
from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID
from icekeeper.model import FileContent, ManifestContent, ManifestEntry
from icekeeper.operations.position_deletes import rewrite_position_deletes
from icekeeper.pass_context.context import PassLimits
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete
from support.maintained_table import EAGER, MaintainedTable, local_path, maintained_table, outcome_of, without_leases
from support.moments import Moment, at
from support.readers import duckdb_rows, pyiceberg_rows
from support.scripted_catalog import ScriptedEngine
from support.v3 import append, data_files, delete_positions, lineage, live, upgrade, vectors


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Three files of ten rows in each of us and eu: ids 0.., 100.., 200.. and 50.., 150.., 250.."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        yield made


def paths(table: MaintainedTable, region: str) -> list[str]:
    """The data files of a region, ordered by name."""
    return sorted(file.file_path for file in data_files(table) if file.partition == (region,))


def delete_rows(table: MaintainedTable, region: str, *positions: tuple[int, int], bounds: bool = True) -> None:
    """Delete positions in the n-th files of the region; each has its own commit and delete file."""
    for number, position in positions:
        path = paths(table, region)[number]
        commit_deletes(table, [position_delete(path, position, region, bounds=bounds)])


def rewritten(table: MaintainedTable, **overrides: Any) -> OperationOutcome:
    outcome = table.maintain(operations="rewrite_position_deletes", **overrides)
    return outcome_of(outcome, Operation.REWRITE_POSITION_DELETES)


def rows(table: MaintainedTable) -> Counter[int]:
    """The ids that DuckDB and PyIceberg both read."""
    location = table.loaded.metadata_location
    found = Counter(row["id"] for row in duckdb_rows(location))
    assert Counter(row["id"] for row in pyiceberg_rows(location)) == found
    return found


def deletes(table: MaintainedTable) -> list[ManifestEntry]:
    found = [entry for _, entry in live(table) if entry.file.content is not FileContent.DATA]
    return sorted(found, key=lambda entry: entry.file.partition)


def test_position_delete_files_are_merged_per_partition(table: MaintainedTable) -> None:
    """Rows are sorted, columns and bounds follow the specification, and the sequence number is the highest."""
    delete_rows(table, "us", (2, 5), (0, 7), (0, 3), (2, 5))
    delete_rows(table, "eu", (1, 0), (1, 9))
    before, names = rows(table), paths(table, "us")
    numbers = [entry.sequence_number or 0 for entry in deletes(table) if entry.file.partition == ("us",)]
    outcome = rewritten(table)
    assert outcome.summary == "rewrote 6 position delete files into 2 (across 2 bins)"
    shown = ("files_considered", "files_merged", "files_written", "vectors_written", "rows_rewritten", "rows_dropped")
    assert [outcome.metrics[f"rewrite_position_deletes.{key}"] for key in shown] == [6, 6, 2, 0, 5, 1]
    assert rows(table) == before
    eu, us = deletes(table)
    with pq.ParquetFile(local_path(us.file.file_path)) as opened:
        fields = [(f.name, f.nullable, f.metadata[b"PARQUET:field_id"]) for f in opened.schema_arrow]
        assert fields == [("file_path", False, b"2147483546"), ("pos", False, b"2147483545")]
        found = [(row["file_path"], row["pos"]) for row in opened.read().to_pylist()]
    assert found == [(names[0], 3), (names[0], 7), (names[2], 5)]
    assert us.file.lower_bounds == {DELETE_FILE_PATH_ID: names[0].encode()}
    assert us.file.upper_bounds == {DELETE_FILE_PATH_ID: names[2].encode()}
    assert (us.file.referenced_data_file, us.file.record_count, us.file.sort_order_id) == (None, 3, None)
    assert (eu.file.referenced_data_file, eu.file.record_count) == (paths(table, "eu")[1], 2)
    assert us.sequence_number == max(numbers)
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    keys = ("operation", "added-delete-files", "removed-delete-files", "total-delete-files", "total-position-deletes")
    summary = {"total-position-deletes": "5"} | dict(head.summary)
    assert [summary[key] for key in keys] == ["replace", "2", "6", "2", "5"]
    table.assert_sound()
    assert rewritten(table).reason == "no position delete files eligible for merging"
    table.maintain(operations="compact,expire_snapshots,remove_orphans")
    assert rows(table) == before
    assert not deletes(table)


def test_few_delete_files_are_left_alone_and_a_dry_run_changes_nothing(table: MaintainedTable) -> None:
    delete_rows(table, "us", (0, 1), (1, 1))
    delete_rows(table, "eu", (0, 1))
    commit_deletes(table, [equality_delete(3, "us")])
    assert rewritten(table, min_input_files="3").status is Status.SKIPPED
    head = table.loaded.metadata_location
    outcome = outcome_of(
        table.runtime.maintain(
            *(table.loaded.name, {"operations": "rewrite_position_deletes", "min_input_files": "2"}, table.engine),
            dry_run=True,
        ),
        Operation.REWRITE_POSITION_DELETES,
    )
    assert outcome.summary == "would rewrite 2 position delete files into 1 (across 1 bins)"
    assert len(outcome.files_planned) == 2
    assert table.loaded.metadata_location == head


def test_deletes_of_removed_data_files_are_dropped(table: MaintainedTable) -> None:
    """A delete file without remaining rows is removed without a replacement."""
    delete_rows(table, "us", (0, 1))
    commit_deletes(table, [position_delete("file:///gone.parquet", 1, "us", bounds=False)])
    commit_deletes(table, [position_delete(f"file:///{name}.parquet", 1, "eu", bounds=False) for name in "ab"])
    before = rows(table)
    outcome = rewritten(table)
    assert outcome.summary == "rewrote 4 position delete files into 1 (across 2 bins)"
    assert outcome.metrics["rewrite_position_deletes.rows_dropped"] == 3
    assert [entry.file.referenced_data_file for entry in deletes(table)] == [paths(table, "us")[0]]
    assert rows(table) == before
    table.assert_sound()


def test_the_table_property_keeps_a_delete_file_per_data_file(table: MaintainedTable) -> None:
    table.table.transaction().set_properties({"write.delete.granularity": "file"}).commit_transaction()
    delete_rows(table, "us", (0, 1), (0, 2), (1, 1), (2, 1), (2, 4))
    before = rows(table)
    assert rewritten(table).summary == "rewrote 4 position delete files into 2 (across 2 bins)"
    assert {entry.file.lower_bounds == entry.file.upper_bounds for entry in deletes(table)} == {True}
    assert rows(table) == before


def test_deletes_committed_during_a_pass_still_apply(table: MaintainedTable) -> None:
    delete_rows(table, "us", (0, 1), (0, 2))
    before = rows(table)
    table.engine.during = lambda: delete_rows(table, "us", (0, 3))
    assert rewritten(table).status is Status.SUCCEEDED
    assert sum(rows(table).values()) == sum(before.values()) - 1
    assert sorted(entry.file.record_count for entry in deletes(table)) == [1, 2]
    table.assert_sound()


def test_a_group_whose_delete_file_is_removed_during_a_pass_is_dropped(table: MaintainedTable) -> None:
    delete_rows(table, "us", (0, 1), (0, 2))
    delete_rows(table, "eu", (0, 1), (0, 2))
    before = rows(table)

    def compact_us() -> None:
        table.engine.during = lambda: None
        table.maintain(operations="compact", min_input_files="9", delete_compaction_min_deletes="2")
        delete_rows(table, "us", (0, 0))

    table.engine.during = compact_us
    with without_leases():
        outcome = rewritten(table)
    assert outcome.status is Status.FAILED
    assert "a delete that was applied is no longer in the table" in (outcome.reason or "")
    assert sum(rows(table).values()) == sum(before.values()) - 1
    table.assert_sound()
    assert [path for path in table.unreferenced() if "deletes-" in path and "compact" not in path] == []


@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_an_unreadable_delete_file_does_not_stop_the_others(table: MaintainedTable, *, gone: bool) -> None:
    """Two of three are merged; the third is unchanged, and deletes its row once it is restored
    (rule: leave-out-unreadable-files)."""
    delete_rows(table, "us", (0, 1), (0, 2), (1, 3))
    before = rows(table)
    victim = deletes(table)[1].file.file_path
    content = local_path(victim).read_bytes()
    local_path(victim).unlink() if gone else local_path(victim).write_bytes(b"PAR1")
    outcome = rewritten(table)
    assert outcome.summary.startswith("rewrote 2 position delete files into 1 (across 1 bins); left 1 file(s) out: ")
    assert outcome.status is Status.SUCCEEDED
    assert len(deletes(table)) == 2
    assert victim in {entry.file.file_path for entry in deletes(table)}
    head = table.metadata_location
    again = rewritten(table)
    assert (again.status, again.reason) == (Status.SKIPPED, "no position delete files eligible for merging")
    assert table.metadata_location == head
    local_path(victim).write_bytes(content)
    assert rows(table) == before


def test_an_unreadable_delete_file_is_not_read_again(table: MaintainedTable) -> None:
    """One of two files in us is damaged, so nothing is merged there, and the next pass does not read them
    (rule: leave-out-unreadable-files).  The group of eu is merged."""
    delete_rows(table, "us", (0, 1), (0, 2))
    delete_rows(table, "eu", (0, 1), (0, 2))
    victim = next(entry.file.file_path for entry in deletes(table) if entry.file.partition == ("us",))
    local_path(victim).write_bytes(b"PAR1")
    outcome = rewritten(table)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["rewrite_position_deletes.bins"] == 1
    assert f"left 1 file(s) out: file {victim} cannot be read: " in outcome.summary
    assert [entry.file.partition for entry in deletes(table)] == [("eu",), ("us",), ("us",)]
    assert list(table.state.findings.of_table(identity_of(table.catalog, table.loaded))) == [victim]
    table.engine.during = lambda: pytest.fail("files were read")
    assert rewritten(table).status is Status.SKIPPED


@pytest.fixture
def upgraded(table: MaintainedTable) -> MaintainedTable:
    """A v3 table with four older position delete files in us; the first v3 commit gave every row its id."""
    delete_rows(table, "us", (0, 1), (0, 4), (1, 2), (2, 0))
    upgrade(table)
    append(table, 350, 10, "eu")
    return table


def test_v3_position_delete_files_become_vectors(upgraded: MaintainedTable) -> None:
    """Each data file gets a vector, all in a single Puffin file; an existing vector is kept."""
    table = upgraded
    first, second, third = paths(table, "us")
    # Another writer absorbed both positions of the first file, and a third.
    delete_positions(table, {first: [1, 4, 5]})
    read = rows(table)
    before = Counter({row: n for row, n in lineage(table).items() if row[0] in read})  # lineage applies only vectors
    kept = vectors(table)[first].file
    outcome = rewritten(table)
    assert outcome.summary == "rewrote 4 position delete files into 1 (across 1 bins)"
    shown = ("vectors_written", "rows_rewritten", "rows_dropped")
    assert [outcome.metrics[f"rewrite_position_deletes.{key}"] for key in shown] == [2, 2, 2]
    found = vectors(table)
    assert found.keys() == {first, second, third}
    assert {entry.file.file_format for entry in deletes(table)} == {"PUFFIN"}
    assert found[first].file == kept
    assert found[second].file.file_path == found[third].file.file_path
    assert rows(table) == read
    assert lineage(table) == before
    table.assert_sound()
    table.maintain()
    assert lineage(table) == before
    assert not vectors(table)


def test_v3_writes_no_vector_if_a_delete_file_is_unreadable(upgraded: MaintainedTable) -> None:
    """Readers would ignore the unreadable delete file beside a vector, and its rows would return."""
    victim = deletes(upgraded)[0].file.file_path
    content = local_path(victim).read_bytes()
    local_path(victim).unlink()
    before = deletes(upgraded)
    outcome = rewritten(upgraded)
    assert outcome.status is Status.SKIPPED
    assert (outcome.reason or "") == f"left 1 file(s) out: {victim} does not exist"
    assert deletes(upgraded) == before
    assert rewritten(upgraded).reason == "no position delete files eligible for merging"
    local_path(victim).write_bytes(content)


def test_v3_a_vector_committed_during_a_pass_wins(upgraded: MaintainedTable) -> None:
    """A data file never has two vectors."""
    table = upgraded
    first, _, _ = paths(table, "us")
    before = rows(table)
    table.engine.during = lambda: delete_positions(table, {first: [1, 4, 7]})
    outcome = rewritten(table)
    assert outcome.status is Status.FAILED
    assert "overtaken" in (outcome.reason or "")
    table.engine.during = lambda: None
    assert rewritten(table).status is Status.SUCCEEDED
    assert sum(rows(table).values()) == sum(before.values()) - 1
    assert len(vectors(table)) == 3
    table.assert_sound()


def delete_scope_findings(table: MaintainedTable) -> tuple[int, bool]:
    """How many misplaced deletes ``verify`` finds, and whether ``health`` warns of them."""
    found = sum(problem.kind.value == "delete_scope" for problem in table.verify().problems)
    return found, "delete_scope" in table.runtime.afresh.health(table.loaded.name).warnings


def places(table: MaintainedTable) -> list[tuple[int, tuple[Any, ...]]]:
    """Spec id and partition of each live delete."""
    reader, head = table.reader, table.loaded.metadata.current_snapshot
    assert head is not None
    found = reader.live_entries(reader.manifests(head), ManifestContent.DELETES)
    return sorted((item.manifest.partition_spec_id, item.entry.file.partition) for item in found)


def test_misplaced_deletes_move_to_the_partition_of_their_data_file(table: MaintainedTable) -> None:
    """Iceberg after 1.11 refuses to read the table (rule: named-deletes-reach-anywhere).  Misplaced deletes without a
    file name are kept: they delete nothing."""
    first, second, third = paths(table, "us")
    commit_deletes(table, [position_delete(first, 1, "eu")])
    commit_deletes(table, [position_delete(third, 4, "eu", bounds=False)])
    with table.table.update_spec() as update:
        update.remove_field("region")
    content, more = position_delete(second, 2, "us")
    commit_deletes(table, [(content, {**more, "partition": ()})], spec_id=1)
    before = rows(table)
    assert delete_scope_findings(table) == (2, True)
    assert places(table) == [(0, ("eu",)), (0, ("eu",)), (1, ())]
    outcome = rewritten(table, min_input_files="9")
    assert outcome.summary == (
        "rewrote 2 position delete files into 1 (across 1 bins); 2 were under another spec or partition than their "
        "data file"
    )
    assert places(table) == [(0, ("eu",)), (0, ("us",))]
    assert rows(table) == before
    assert delete_scope_findings(table) == (0, False)
    assert rewritten(table, min_input_files="9").reason == "no position delete files eligible for merging"
    table.assert_sound()


def test_v3_misplaced_vectors_are_moved(upgraded: MaintainedTable) -> None:
    table = upgraded
    rewritten(table)
    first, second, third = paths(table, "us")
    delete_positions(table, {first: [6], second: [7]}, under=("eu",))
    before, kept = rows(table), vectors(table)[third]
    assert delete_scope_findings(table) == (2, True)
    outcome = rewritten(table, min_input_files="9")
    assert outcome.metrics["rewrite_position_deletes.files_moved"] == 2
    found = vectors(table)
    assert {entry.file.partition for entry in found.values()} == {("us",)}
    assert [found[path].file.record_count for path in (first, second, third)] == [3, 2, 1]
    assert found[third].file == kept.file
    assert rows(table) == before
    assert delete_scope_findings(table) == (0, False)
    assert rewritten(table, min_input_files="9").status is Status.SKIPPED
    table.assert_sound()


def test_a_job_commits_portions_and_begins_none_that_would_end_too_late(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A portion of 20 s begins if a minute plus twice its duration is left."""
    monkeypatch.setattr(rewrite_position_deletes, "_PORTION_BYTES", 1)
    delete_rows(table, "us", (0, 1), (1, 1))
    delete_rows(table, "eu", (0, 1), (1, 1))
    before, engine, left_s = rows(table), ScriptedEngine(), [99.0]
    resolved = table.runtime.policy(table.loaded, {**EAGER, "operations": "rewrite_position_deletes"}, unsafe=True)

    def job() -> OperationOutcome:
        context = replace(
            table.runtime.context(table.loaded, resolved, engine), limits=PassLimits(left_s=lambda: left_s[0])
        )
        return run_operation(Operation.REWRITE_POSITION_DELETES, context)

    engine.during = lambda: table.waits.append(20)
    first = job()
    assert first.summary.endswith("into 1 (across 1 bins); 1 bin(s) wait for the next run, because no time was left")
    assert (first.status, first.metrics["rewrite_position_deletes.bins_waiting"]) == (Status.SUCCEEDED, 1)
    assert [len(first.snapshot_ids), len(deletes(table))] == [1, 3]
    delete_rows(table, "us", (2, 1))
    delete_rows(table, "eu", (2, 1))
    left_s[0] = 100.0
    second = job()
    assert second.summary == "rewrote 5 position delete files into 2 (across 2 bins)"
    assert [len(second.snapshot_ids), len(deletes(table))] == [2, 2]
    assert sum((before - rows(table)).values()) == 2
    table.assert_sound()


def test_a_failed_portion_keeps_the_committed_portions(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite_position_deletes, "_PORTION_BYTES", 1)
    delete_rows(table, "us", (0, 1), (1, 1))
    delete_rows(table, "eu", (0, 1), (1, 1))
    before, engine, portions = rows(table), ScriptedEngine(), list[int]()

    def second_fails() -> None:
        portions.append(1)
        if len(portions) == 2:
            raise StorageError("the workers are gone")

    engine.during = second_fails
    resolved = table.runtime.policy(table.loaded, {**EAGER, "operations": "rewrite_position_deletes"}, unsafe=True)
    outcome = run_operation(Operation.REWRITE_POSITION_DELETES, table.runtime.context(table.loaded, resolved, engine))
    assert (outcome.status, outcome.reason) == (Status.FAILED, "1 bin(s) failed: StorageError: the workers are gone")
    assert [len(outcome.snapshot_ids), len(deletes(table))] == [1, 3]
    assert rows(table) == before
    table.assert_sound()


def test_a_pause_between_two_portions_keeps_the_committed_portion(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further portion is committed (rule: switches-stop-at-once)."""
    monkeypatch.setattr(rewrite_position_deletes, "_PORTION_BYTES", 1)
    delete_rows(table, "us", (0, 1), (1, 1))
    delete_rows(table, "eu", (0, 1), (1, 1))
    before, until = rows(table), "2099-01-01T00:00:00Z"

    def pause() -> None:
        table.table.transaction().set_properties({"icekeeper.paused_until": until}).commit_transaction()

    with at(Moment.AFTER_COMMIT, pause):
        outcome = table.run(Operation.REWRITE_POSITION_DELETES)
    assert (outcome.status, outcome.summary) == (
        Status.SUCCEEDED,
        "rewrote 2 position delete files into 1 (across 1 bins); 1 bin(s) wait for the next run, because the table "
        f"is paused until {until} (table property icekeeper.paused_until); the property was set while the pass ran",
    )
    assert [len(outcome.snapshot_ids), len(deletes(table))] == [1, 3]
    assert (rows(table), table.unreferenced()) == (before, set())
