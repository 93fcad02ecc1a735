"""Copied row groups of v3 tables: rows keep ids and last changes, whether they were stored or inherited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.maintained_table import MaintainedTable, local_path
from support.v3 import (
    append,
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
        yield with_row_ids(made)


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


def test_rows_keep_their_ids_when_their_row_groups_are_copied_once_and_again(table: MaintainedTable) -> None:
    """Of each region's four files two are decoded: one has a vector, one an entry without counts.

    Then a vector touches the first row group of one of the outputs, and two more such files join the other two.
    """
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


def test_rows_keep_their_ids_when_a_large_file_is_cut(table: MaintainedTable) -> None:
    compacted(table, min_row_group_copy_bytes="1")
    before, live_rows = lineage(table), rows(table)
    tiny = {"target_file_size_mb": "0.0005", "min_file_size_ratio": "0.1", "expected_scans": "none"}
    outcome = compacted(table, **tiny)
    assert outcome.summary == "compacted 2 files into 6 (across 2 bins)"
    assert outcome.metrics["compact.bytes_copied"] > 0
    assert row_groups(table) == [[10], [10], [10], [10], [10, 10], [10, 10]]
    assert lineage(table) == before
    assert rows(table) == live_rows
    assert_row_ids_hold(table)
    table.assert_sound()
