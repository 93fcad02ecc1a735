"""Deletion vectors through compaction: which go, which stay, and those that land meanwhile or are damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from icekeeper.report.outcome import Status
from support.maintained_table import MaintainedTable, local_path
from support.v3 import (
    assert_row_ids_hold,
    compacted,
    data_files,
    delete_positions,
    file_of,
    lineage,
    rows,
    upgraded_table,
    vectors,
    with_row_ids,
)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with upgraded_table(tmp_path) as made:
        yield made


@pytest.fixture
def with_ids(table: MaintainedTable) -> MaintainedTable:
    return with_row_ids(table)


def test_the_summary_counts_vectors(with_ids: MaintainedTable) -> None:
    table = with_ids
    delete_positions(table, {file_of(table, 0): [0], file_of(table, 100): [1, 2]})
    sizes = [entry.file.content_size_in_bytes or 0 for entry in vectors(table).values()]
    inputs = sum(file.file_size_in_bytes for file in data_files(table))
    compacted(table)
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    told = ("removed-dvs", "removed-delete-files", "removed-position-deletes", "total-delete-files")
    assert [head.summary[key] for key in told] == ["2", "2", "3", "0"]
    assert int(head.summary["removed-files-size"]) == inputs + sum(sizes)


def test_one_vector_may_go_while_its_puffin_file_stays(with_ids: MaintainedTable) -> None:
    """A Puffin file goes when no live entry uses it any more, not before (rule 14)."""
    table = with_ids
    puffin = delete_positions(table, {file_of(table, 0): [0], file_of(table, 50): [1]})
    before = rows(table)
    table.engine.during = lambda: delete_positions(table, {file_of(table, 150): [1]})
    table.maintain(operations="compact,expire_snapshots,remove_orphans")
    table.engine.during = lambda: None
    assert puffin in {entry.file.file_path for entry in vectors(table).values()}
    assert rows(table) == before - Counter([151])
    table.assert_sound()
    table.maintain()
    assert not vectors(table)
    assert not local_path(puffin).exists()
    assert rows(table) == before - Counter([151])
    table.assert_sound()


@pytest.mark.parametrize("replaces", [False, True], ids=["first", "replaces_the_one_applied"])
def test_a_vector_that_lands_meanwhile_drops_its_group_alone(with_ids: MaintainedTable, *, replaces: bool) -> None:
    table = with_ids
    if replaces:
        delete_positions(table, {file_of(table, 100): [7]})
    before = lineage(table)
    gone = next(row for row in before if row[0] == 103)
    table.engine.during = lambda: delete_positions(table, {file_of(table, 100): [3]})
    outcome = compacted(table)
    assert outcome.summary == "compacted 4 files into 1 (across 1 bins)"
    assert outcome.metrics["compact.bins_dropped"] == 1
    assert lineage(table) == before - Counter([gone])
    assert rows(table) == Counter(row[0] for row in before.elements()) - Counter([103])
    assert_row_ids_hold(table)
    table.assert_sound()


@pytest.mark.parametrize("damage", ["byte", "cut", "gone"])
def test_a_damaged_vector_keeps_its_file_as_it_is_and_nothing_goes(with_ids: MaintainedTable, damage: str) -> None:
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
