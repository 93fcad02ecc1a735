"""An expiry that is cut short anywhere between its commit and its last deletion is finished by a later pass."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.deletion import delete as deletion
from icekeeper.errors import StorageError
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.sqlite.records import SqlitePendingDeletions
from icekeeper.storage.paths import normalise
from icekeeper.storage.s3_objects import DeleteReport
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable, new_table
from support.moments import Moment, at

EXPIRE = Operation.EXPIRE_SNAPSHOTS


class PowerCutError(BaseException):
    """Nobody catches it."""


def cut() -> None:
    raise PowerCutError


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Four appends merged into one file; two files make a batch of deletions."""
    monkeypatch.setattr(deletion, "_BATCH", 2)
    made = new_table(local_catalog, tmp_path)
    made.fill(4)
    made.run(Operation.COMPACT)
    return made


def pending(table: MaintainedTable) -> set[str]:
    store, identity = table.state.pending_deletions, identity_of(table.catalog, table.loaded)
    return {path for name in store.lists(identity) for part in store.paths(identity, name) for path in part}


def interrupted(table: MaintainedTable, moment: Moment, **settings: str) -> None:
    with pytest.raises(PowerCutError), at(moment, cut):
        table.run(EXPIRE, **settings)


def test_what_a_crash_after_the_commit_left_goes_in_the_next_pass(table: MaintainedTable) -> None:
    expected, snapshots = table.run(EXPIRE, dry_run=True), len(table.metadata.snapshots)
    interrupted(table, Moment.AFTER_COMMIT)
    assert len(table.metadata.snapshots) == 1
    left = set(map(normalise, expected.files_planned))
    assert left <= table.files()
    assert set(map(normalise, pending(table))) == left
    preview = table.run(EXPIRE, dry_run=True)
    assert (preview.files_planned, preview.summary) == (
        expected.files_planned,
        f"would delete {len(left)} file(s) that an interrupted run left behind",
    )
    outcome = table.run(EXPIRE)
    assert outcome.summary == f"deleted {len(left)} file(s) that an interrupted run left behind"
    assert outcome.metrics["expire_snapshots.files_resumed"] == len(left)
    assert outcome.metrics["expire_snapshots.snapshots_resumed"] == snapshots - 1
    assert set(map(normalise, outcome.files_deleted)) == left
    assert outcome.files_planned == expected.files_planned
    assert table.unreferenced() == set()
    assert pending(table) == set()
    assert table.verify().ok
    again = table.run(EXPIRE)
    assert (again.status, again.reason) == (Status.SKIPPED, "no snapshots to expire")


def test_a_crash_between_two_batches_is_finished_together_with_the_next_expiry(table: MaintainedTable) -> None:
    # No batch is on its way beside the one that is cut.
    interrupted(table, Moment.AFTER_DELETION, delete_threads="1")
    assert table.unreferenced() != set()
    table.append(99)
    outcome = table.run(EXPIRE)
    # The new head dropped the compaction's manifest of DELETED entries; files that are gone already count as deleted.
    assert outcome.summary == (
        "expired 1 snapshot(s), deleted 2 unreferenced file(s); deleted 12 file(s) that an interrupted run left behind"
    )
    assert outcome.metrics["expire_snapshots.files_deleted"] == 2
    assert table.unreferenced() == set()
    assert pending(table) == set()
    assert table.verify().ok


def test_a_crash_before_the_commit_deletes_nothing_ever(table: MaintainedTable) -> None:
    """The list is there, and every file on it is still referenced: the list is all that goes."""
    interrupted(table, Moment.BEFORE_COMMIT)
    assert len(table.metadata.snapshots) == 5
    assert pending(table) != set()
    before, snapshots = table.files(), dict(table.metadata.snapshots)
    outcome = table.run(EXPIRE, snapshot_retention_hours="5")
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "no snapshots to expire")
    assert table.files() == before
    assert table.metadata.snapshots.keys() == snapshots.keys()
    assert pending(table) == set()


def test_a_snapshot_that_came_back_keeps_its_files(table: MaintainedTable, tmp_path: Path) -> None:
    """Somebody registers an older metadata file after the crash: what is recorded is a hint, no permission."""
    before = table.loaded.metadata_location
    interrupted(table, Moment.AFTER_COMMIT)
    left, now = pending(table), table.loaded.metadata_location
    shutil.copy(normalise(now), tmp_path / "now.json")
    shutil.copy(normalise(before), normalise(now))
    outcome = table.run(EXPIRE, snapshot_retention_hours="5")
    assert (outcome.status, pending(table)) == (Status.SKIPPED, set())
    assert all(Path(normalise(path)).exists() for path in left)


def test_references_that_cannot_be_read_keep_the_list(table: MaintainedTable) -> None:
    interrupted(table, Moment.AFTER_COMMIT)
    left = pending(table)
    manifest = Path(normalise(table.reader.manifests(next(iter(table.metadata.snapshots.values())))[0].manifest_path))
    aside = manifest.rename(manifest.with_suffix(".aside"))
    assert table.run(EXPIRE).status is Status.REFUSED
    assert pending(table) == left
    aside.rename(manifest)
    assert len(table.run(EXPIRE).files_deleted) == len(left)


def test_what_could_not_be_deleted_is_tried_again_by_the_next_pass(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, locked = Storage.delete, [True]

    def delete(self: Storage, paths: Iterable[str]) -> DeleteReport:
        stuck = {path: "is locked" for path in paths if locked and path.endswith(".parquet")}
        return DeleteReport(original(self, [p for p in paths if p not in stuck]).deleted, stuck)

    monkeypatch.setattr(Storage, "delete", delete)
    outcome = table.run(EXPIRE)
    assert outcome.metrics["expire_snapshots.files_failed"] == 4
    assert {Path(path).suffix for path in pending(table)} == {".parquet"}
    locked.clear()
    assert table.run(EXPIRE).metrics["expire_snapshots.files_resumed"] == 4
    assert (table.unreferenced(), pending(table)) == (set(), set())


def test_a_list_that_cannot_be_written_stops_before_the_commit(table: MaintainedTable) -> None:
    before = table.loaded.metadata_location
    with mock.patch.object(SqlitePendingDeletions, "expect", side_effect=StorageError("the state file is full")):
        outcome = table.run(EXPIRE)
    assert (outcome.status, outcome.reason) == (Status.FAILED, "StorageError: the state file is full")
    assert table.loaded.metadata_location == before


def test_a_list_that_cannot_be_removed_does_no_harm(table: MaintainedTable) -> None:
    with mock.patch.object(SqlitePendingDeletions, "forget", side_effect=StorageError("the state file is full")):
        outcome = table.run(EXPIRE)
    assert outcome.status is Status.SUCCEEDED
    assert pending(table) != set()
    again = table.run(EXPIRE)
    assert again.metrics["expire_snapshots.files_resumed"] == 12
    assert pending(table) == set()


def test_a_lost_swap_frees_what_the_newer_head_allows(table: MaintainedTable) -> None:
    """Somebody tags the oldest snapshot just before our commit: it stays, and so does what it holds."""

    def tag() -> None:
        oldest = min(table.metadata.snapshots.values(), key=lambda s: s.sequence_number)
        table.table.manage_snapshots().create_tag(oldest.snapshot_id, "keep").commit()

    with at(Moment.BEFORE_COMMIT, tag):
        outcome = table.run(EXPIRE)
    assert outcome.status is Status.SUCCEEDED
    assert pending(table) == set()
    assert table.unreferenced() == set()
    assert len(table.metadata.snapshots) == 2
    assert table.verify().ok


def test_an_expiry_that_surely_did_not_land_leaves_no_list(table: MaintainedTable) -> None:
    with at(Moment.BEFORE_COMMIT, lambda: table.append(99)):
        outcome = table.run(EXPIRE, max_commit_retries="0")
    assert outcome.status is Status.FAILED
    assert "CommitConflict" in (outcome.reason or "")
    assert pending(table) == set()
