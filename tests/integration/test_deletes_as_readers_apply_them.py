"""Which rows are deleted is what DuckDB says before a pass and after it, whatever carelessness the writers showed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from icekeeper.model import EntryStatus, FileContent, ManifestEntry
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, compacted, create_by_region, position_delete, region_rows, relist
from support.maintained_table import MaintainedTable, maintained_table, outcome_of
from support.v3 import append, data_files, lineage, live, upgrade, vectors

STRAYED = "; 2 stood under another spec or partition than their data file"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region, three files of ten rows each: ids 0.., 100.., 200.. in us, 50.., 150.., 250.. in eu."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        yield made


def delete_astray(table: MaintainedTable, *positions: int) -> None:
    """Deletes of the last eu file that stand in us, a commit and a file each."""
    path = max(file.file_path for file in data_files(table) if file.partition == ("eu",))
    for position in positions:
        commit_deletes(table, [position_delete(path, position, "us")])


def count(table: MaintainedTable) -> int:
    return sum(region_rows(table).values())


@pytest.mark.parametrize("rewrite", ["nothing", "everything"])
def test_a_delete_that_names_a_file_of_another_partition_is_no_dangling_one(
    table: MaintainedTable, rewrite: str
) -> None:
    """Its rows came back."""
    delete_astray(table, 1, 2, 3, 4, 5, 6)
    before = region_rows(table)
    assert sum(before.values()) == 54
    settings = {"min_input_files": "2" if rewrite == "everything" else "9", "delete_compaction_min_deletes": "99"}
    outcome = compacted(table, delete_compaction_min_ratio="1", **settings)
    assert region_rows(table) == before
    assert outcome.metrics.get("compact.delete_files_removed", 0) == (6 if rewrite == "everything" else 0)
    assert Counter(kind for kind, _ in table.problems()) == Counter(delete_scope=0 if rewrite == "everything" else 6)


def test_deletes_are_merged_where_the_files_are_that_they_name(table: MaintainedTable) -> None:
    """Two of each; in an output of their own partition those that stray would reach nothing any more."""
    delete_astray(table, 1, 2)
    us = [file.file_path for file in data_files(table) if file.partition == ("us",)]
    commit_deletes(table, [position_delete(path, 7, "us") for path in us[:2]])
    before = region_rows(table)
    outcome = outcome_of(table.maintain(operations="rewrite_position_deletes"), Operation.REWRITE_POSITION_DELETES)
    assert outcome.summary == "rewrote 4 position delete files into 2 (across 2 bins)" + STRAYED
    found = [e.file for _, e in live(table) if e.file.content is not FileContent.DATA]
    assert sorted((file.partition, file.record_count) for file in found) == [(("eu",), 2), (("us",), 2)]
    assert region_rows(table) == before
    table.assert_sound()


def test_a_vector_absorbs_the_deletes_that_stray(table: MaintainedTable) -> None:
    """It stands for every position delete of its data file: one that stayed would not be applied any more."""
    delete_astray(table, 1, 2)
    eu = max(file.file_path for file in data_files(table) if file.partition == ("eu",))
    commit_deletes(table, [position_delete(eu, position, "eu") for position in (2, 5)])
    upgrade(table)
    append(table, 350, 10, "eu")
    before = region_rows(table)
    assert sum(before.values()) == 67
    outcome = outcome_of(table.maintain(operations="rewrite_position_deletes"), Operation.REWRITE_POSITION_DELETES)
    assert outcome.summary == "rewrote 4 position delete files into 1 (across 1 bins)" + STRAYED
    assert vectors(table)[eu].file.record_count == 3
    assert region_rows(table) == before
    assert sum(lineage(table).values()) == 67
    table.assert_sound()


@pytest.mark.parametrize("number", [None, 99], ids=["lost", "wrong"])
def test_file_sequence_numbers_of_careless_writers_change_nothing(table: MaintainedTable, number: int | None) -> None:
    """They are lost when such a writer carries entries over: no refusal, no damage reported, no row back."""
    path = max(file.file_path for file in data_files(table) if file.partition == ("eu",))
    commit_deletes(table, [position_delete(path, 3, "eu", bounds=False), position_delete(path, 4, "eu")])

    def carried(entry: ManifestEntry) -> list[ManifestEntry]:
        return [replace(entry, status=EntryStatus.EXISTING, file_sequence_number=number)]

    relist(table, carried)
    before = region_rows(table)
    assert sum(before.values()) == 58
    table.assert_sound()
    idle = {"min_input_files": "9", "delete_compaction_min_deletes": "99", "delete_compaction_min_ratio": "1"}
    compacted(table, **idle)
    assert region_rows(table) == before
    for operation in ("rewrite_manifests", "rewrite_position_deletes", "compact"):
        outcome = table.maintain(operations=operation, partial_progress="1")
        assert [part.status for part in outcome.operations] == [Status.SUCCEEDED], operation
        assert len(table.rows()) == 58, operation
    assert region_rows(table) == before
    table.assert_sound()


@pytest.mark.parametrize("settings", [{"where": "region = 'us'"}, {"min_data_age_hours": "1"}], ids=["where", "age"])
def test_a_file_listed_twice_is_left_alone_when_only_one_entry_is_in_scope(
    table: MaintainedTable, settings: dict[str, str]
) -> None:
    """Readers read it twice; where its one entry was replaced, the other went along."""
    twice = max(file.file_path for file in data_files(table) if file.partition == ("us",))

    def listed(entry: ManifestEntry) -> list[ManifestEntry]:
        old = replace(entry, status=EntryStatus.EXISTING, snapshot_id=77)  # of a snapshot that is long gone
        young = replace(entry, status=EntryStatus.EXISTING, file=replace(entry.file, partition=("eu",)))
        return [old, young] if entry.file.file_path == twice else [old]

    relist(table, listed)
    before = count(table)
    assert before == 70
    outcome = compacted(table, **settings)
    assert count(table) == before
    assert outcome.metrics["compact.files_merged"] == (2 if "where" in settings else 5)


def test_a_path_that_was_removed_and_added_again_meanwhile_is_another_file(table: MaintainedTable) -> None:
    """Its deletes are older than it now: 30 rows became 27."""
    path = max(file.file_path for file in data_files(table) if file.partition == ("us",))
    for position in (1, 2, 3):
        commit_deletes(table, [position_delete(path, position, "us")])

    def add_again() -> None:
        held = next(entry for _, entry in live(table) if entry.file.file_path == path)
        relist(table, lambda entry: [] if entry.file.file_path == path else [existing(entry)])
        first = data_files(table)[0].file_path
        new = replace(held, status=EntryStatus.ADDED, snapshot_id=None, sequence_number=None, file_sequence_number=None)
        relist(table, lambda entry: [existing(entry), new] if entry.file.file_path == first else [existing(entry)])

    table.engine.during = add_again
    outcome = compacted(table)
    assert outcome.metrics["compact.bins_dropped"] == 1
    assert len(table.rows()) == 60  # by PyIceberg: DuckDB applies older position deletes, too
    table.assert_sound()
    table.engine.during = lambda: None
    compacted(table)
    assert len(table.rows()) == count(table) == 60


def test_manifests_that_were_rewritten_meanwhile_stop_nothing(table: MaintainedTable) -> None:
    """Not even where file sequence numbers got lost on the way."""
    relist(table, lambda entry: [existing(entry)])
    table.engine.during = lambda: relist(table, lambda entry: [replace(existing(entry), file_sequence_number=None)])
    assert compacted(table).metrics["compact.files_merged"] == 6
    assert count(table) == 60


def existing(entry: ManifestEntry) -> ManifestEntry:
    return replace(entry, status=EntryStatus.EXISTING)
