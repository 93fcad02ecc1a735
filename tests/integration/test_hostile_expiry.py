"""Expiry against tables that bend the rules: what is still read must stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.local import LocalTable, ScriptedCatalog

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


class AssertionsOnly(ScriptedCatalog):
    """As a REST catalog: a commit is made on whatever is newest if the requirements hold, and refs go with their
    snapshots."""

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        now = self._inner.load(base.name)
        gone = {i for update in updates for i in update.get("snapshot-ids", ())}
        lost = [name for name, ref in now.metadata.refs.items() if ref.snapshot_id in gone]
        dropped = [{"action": "remove-snapshot-ref", "ref-name": name} for name in lost]
        return super().commit(now, requirements, [*dropped, *updates])


def test_a_tag_that_is_made_while_an_expiry_is_planned_keeps_its_snapshot(table: LocalTable) -> None:
    table.fill(3)
    table.run(Operation.COMPACT)
    oldest = min(table.metadata.snapshots.values(), key=lambda snapshot: snapshot.sequence_number).snapshot_id

    def tag() -> None:
        table.table.manage_snapshots().create_tag(oldest, "late").commit()

    # Loads: policy, pass, operation; then just before the commit.
    outcome = table.run(EXPIRE, catalog=AssertionsOnly(table.catalog, before_load={4: tag}))
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 2
    assert table.metadata.refs["late"].snapshot_id == oldest
    assert table.ids(oldest) == [0, 1]
    assert table.verify().ok
