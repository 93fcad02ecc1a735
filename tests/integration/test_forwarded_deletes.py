"""Deletes that land on files while these are rewritten reach their rows in the outputs
(rule: forward-newer-position-deletes).  Another writer deletes rows, PyIceberg or DuckDB reads, hypothesis chooses."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from icekeeper.metadata.delete_scope import named_file
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.forward_deletes import places_in_outputs
from icekeeper.operations.compaction.rewrite_task import RowRun, Section
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, compacted, create_by_region, equality_delete, position_delete, region_rows
from support.maintained_table import MaintainedTable, local_path, maintained_table
from support.scripted_catalog import once
from support.v3 import assert_row_ids_hold, delete_positions, lineage, upgrade, with_row_ids

ORDERS: dict[str, dict[str, str]] = {
    "in_order": {},
    "copied": {"min_row_group_copy_bytes": "1"},
    "sorted": {"strategy": "sort", "sort_order": "id desc"},
    "zordered": {"strategy": "zorder", "zorder_columns": "id,region"},
    "one_group_at_a_time": {"partial_progress": "1"},
}


@pytest.fixture(params=[2, 3])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MaintainedTable]:
    """Four files of ten rows in us and in eu: ids 0.., 100.., 200.., 300.. and 50.., 150.., 250.., 350..; deleted from."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 4 if request.param == 2 else 3)
        if request.param == 3:
            upgrade(made)
            with_row_ids(made)
        delete_rows(made, 5, 206)
        yield made


def delete_rows(table: MaintainedTable, *ids: int) -> None:
    """One commit that deletes these rows, as another writer finds them at the head."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    regions: dict[str, str] = {}
    for file in data_files(table):
        for position, row in enumerate(pq.read_table(local_path(file.file_path), partitioning=None).to_pylist()):
            if row["id"] in ids:
                found[file.file_path].append(position)
                regions[file.file_path] = row["region"]
    assert sum(map(len, found.values())) == len(ids)
    delete_at(table, found, regions)


def delete_at(table: MaintainedTable, found: Mapping[str, Collection[int]], regions: Mapping[str, str]) -> None:
    if table.metadata.format_version == 3:
        delete_positions(table, found)
        return
    deletes = [
        position_delete(path, position, regions[path], bounds=False)
        for path, positions in found.items()
        for position in positions
    ]
    commit_deletes(table, deletes)


def data_files(table: MaintainedTable) -> list[DataFile]:
    return [file for file in table.data_files() if file.content is FileContent.DATA]


def deletes(table: MaintainedTable) -> list[DataFile]:
    return [file for file in table.data_files() if file.content is not FileContent.DATA]


@pytest.mark.parametrize("order", ORDERS)
def test_rows_deleted_meanwhile_are_deleted_in_the_outputs(table: MaintainedTable, order: str) -> None:
    before, is_v3 = region_rows(table), table.metadata.format_version == 3
    ids_before = lineage(table) if is_v3 else Counter()
    table.engine.during = once(lambda: delete_rows(table, 3, 7, 109, 150, 152, 200))
    outcome = compacted(table, **ORDERS[order])
    gone = Counter({(i, "eu" if i in (150, 152) else "us"): 1 for i in (3, 7, 109, 150, 152, 200)})
    assert outcome.metrics["compact.bins_dropped"] == 0
    assert region_rows(table) == before - gone
    table.assert_sound()
    names = {file.file_path for file in data_files(table)}
    assert {named_file(file) for file in deletes(table)} <= names
    assert outcome.metrics["compact.rows_forwarded"] == sum(file.record_count for file in deletes(table))
    if order != "one_group_at_a_time":
        assert (len(names), len(deletes(table))) == (2, 2)
        assert outcome.metrics["compact.rows_forwarded"] == 6
    if is_v3:
        assert lineage(table) == Counter(
            row for row in ids_before.elements() if (row[0], "us") not in gone and (row[0], "eu") not in gone
        )
        assert_row_ids_hold(table)
    assert not [path for path in table.files() if path.endswith(".rows")]
    table.engine.during = lambda: None
    compacted(table, rewrite_all="true")
    assert (region_rows(table), deletes(table)) == (before - gone, [])
