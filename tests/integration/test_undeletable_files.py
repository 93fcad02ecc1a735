"""Files that cannot be deleted are told with the store's reason, and an operation that deleted none of them failed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.s3_objects import DeleteReport
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable, new_table, sweep

EXPIRE = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1"}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Endings of names that the store deletes no file of."""
    original, endings = Storage.delete, [""]

    def delete(self: Storage, paths: Iterable[str]) -> DeleteReport:
        asked = list(paths)
        stuck = {path: "is locked" for path in asked if path.endswith(tuple(endings))}
        return DeleteReport(original(self, [path for path in asked if path not in stuck]).deleted, stuck)

    monkeypatch.setattr(Storage, "delete", delete)
    return endings


def test_orphans_that_stay(table: MaintainedTable, locked: list[str]) -> None:
    stays, goes = table.plant("data/a.parquet"), table.plant("data/b.parquet")
    in_vain = sweep(table)
    assert (in_vain.status, in_vain.metrics["remove_orphans.files_failed"]) == (Status.FAILED, 2)
    assert in_vain.reason is not None
    assert in_vain.reason.startswith("2 file(s) could not be deleted and wait for the next pass: ")
    locked[:] = ["a.parquet"]
    outcome = sweep(table)
    told = f"1 file(s) could not be deleted and wait for the next pass: file://{stays} is locked"
    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, f"removed 1 orphan file(s); {told}")
    assert {stays, goes} & table.files() == {stays}


def test_files_of_expired_snapshots_that_stay(table: MaintainedTable, locked: list[str]) -> None:
    """The snapshots are gone, which is a success; a later pass that only had the files to delete failed."""
    outcome = table.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    freed = outcome.metrics["expire_snapshots.files_failed"]
    assert (outcome.status, freed > 0) == (Status.SUCCEEDED, True)
    told = f"{freed} file(s) could not be deleted and wait for the next pass: "
    assert outcome.summary.startswith(f"expired 2 snapshot(s), deleted 0 unreferenced file(s); {told}")
    again = table.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    assert (again.status, again.metrics["expire_snapshots.files_failed"]) == (Status.FAILED, freed)
    assert again.reason is not None
    assert again.reason.startswith(told)
    locked[:] = ["nothing"]
    last = table.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    assert last.summary == f"deleted {freed} file(s) that an interrupted run left behind"
    assert table.unreferenced() == set()
