"""A catalog that may not list all of its tables is maintained as far as that is safe (rule 141)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.errors import PartlyListed
from icekeeper.model import TableName
from icekeeper.policy import Operation
from support.maintained_table import new_table

HIDDEN = "the tables of 1 database(s) must not be listed (hr)"


def test_where_tables_may_be_hidden_files_are_merged_and_none_deleted(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden table may need any of them (rule 88)."""
    table = new_table(local_catalog, tmp_path)
    table.fill(5)
    listed = OurSqlCatalog.list_tables

    def half(self: OurSqlCatalog) -> Iterator[TableName]:
        yield from listed(self)
        raise PartlyListed(HIDDEN)

    monkeypatch.setattr(OurSqlCatalog, "list_tables", half)
    before = table.files()
    assert table.run(Operation.COMPACT).status.value == "succeeded"
    planted = table.plant("data/orphan.parquet")
    for operation in (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS):
        outcome = table.run(operation, snapshot_retention_hours="0", max_snapshots_to_keep="1")
        assert outcome.status.value == "refused"
        assert f"cannot be listed: {HIDDEN}; nothing was deleted" in str(outcome.reason)
    assert {*before, planted} <= table.files()
    assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]
