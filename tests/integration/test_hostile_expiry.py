"""Expiry against tables that bend the rules: what is still read must stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.local import LocalTable

EXPIRE = Operation.EXPIRE_SNAPSHOTS


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> LocalTable:
    return LocalTable(local_catalog, tmp_path)


def test_a_file_that_was_added_twice_stays_while_a_tag_needs_it(table: LocalTable) -> None:
    """One snapshot lists the file in two manifests; the tag keeps one of them, the other expires."""
    table.append(1, 2)
    kept = table.metadata.current_snapshot
    assert kept is not None
    table.table.manage_snapshots().create_tag(kept.snapshot_id, "kept").commit()
    (file,) = table.data_files()
    table.table.add_files([file.file_path], check_duplicate_files=False)
    table.table.delete("id > 0")
    outcome = table.run(EXPIRE)
    assert outcome.status is Status.SUCCEEDED
    assert file.file_path not in outcome.files_deleted
    assert table.ids(kept.snapshot_id) == [1, 2]
