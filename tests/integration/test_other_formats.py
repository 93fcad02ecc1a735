"""Tables of other formats in a folder of ours: no metadata of Iceberg tells of their files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.storage.paths import normalise
from support.maintained_table import MaintainedTable, new_table

MARKERS = ["_delta_log/00000000000000000000.json", ".hoodie/hoodie.properties", "schema/schema-0"]


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


@pytest.mark.parametrize("marker", MARKERS)
def test_the_files_of_a_nested_table_of_another_format_are_no_orphans(table: MaintainedTable, marker: str) -> None:
    """Below the table's own data folder; it may write to both, and only Iceberg's garbage is known as such."""
    theirs = table.plant("data/nested/day=1/live.parquet")
    table.plant(f"data/nested/{marker}", days_old=0)
    ours = table.plant("data/orphan.parquet")
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert [normalise(path) for path in outcome.files_deleted] == [ours]
    assert Path(theirs).exists()
    assert outcome.metrics["remove_orphans.files_of_other_formats"] >= 1
    assert "data/nested, a table of another format" in outcome.summary


def test_where_the_table_itself_has_another_format_too_nothing_is_an_orphan(table: MaintainedTable) -> None:
    """Delta Lake or Hudi keep the same folder, and need files that no Iceberg metadata names."""
    theirs = table.plant("data/older-version.parquet")
    table.plant("_delta_log/00000000000000000000.json")
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert outcome.files_deleted == ()
    assert Path(theirs).exists()
    assert "they stay" in outcome.summary


def test_expiry_leaves_data_files_that_another_format_may_need(table: MaintainedTable) -> None:
    """Its log may name files that our compaction replaced; Iceberg's own metadata files go."""
    table.plant("_delta_log/00000000000000000000.json")
    data = [Path(normalise(file.file_path)) for file in table.data_files()]
    table.run(Operation.COMPACT)
    outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert all(path.exists() for path in data)
    assert outcome.files_deleted
    assert all("/metadata/" in path for path in outcome.files_deleted)


def test_expiry_leaves_the_files_of_an_imported_table_of_another_format(table: MaintainedTable) -> None:
    imported = Path(table.plant("imported/day=1/x.parquet"))
    shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
    table.plant("imported/_delta_log/00000000000000000000.json")
    table.table.add_files([str(imported)])
    data = [Path(normalise(file.file_path)) for file in table.data_files()]
    table.run(Operation.COMPACT)
    table.run(Operation.EXPIRE_SNAPSHOTS)
    assert [path for path in data if path.exists()] == [imported]
