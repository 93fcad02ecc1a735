"""Expiry of tables that bend the rules, and interrupted expiry."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import list_pins, remove_pin
from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.catalogs.pointer import reading_anew
from icekeeper.deletion import delete as deletion
from icekeeper.errors import StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.staging import PendingDeletionStore
from icekeeper.state.store import Pin
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import DeleteReport, Storage
from support.maintained_table import MaintainedTable, new_table
from support.moments import Moment, at
from support.readers import duckdb_rows, pyiceberg_rows
from support.scripted_catalog import ScriptedCatalog, nothing, once

EXPIRE = Operation.EXPIRE_SNAPSHOTS


class PowerCutError(BaseException):
    """No code under test catches it."""


def cut() -> None:
    raise PowerCutError


def rest_like(
    table: MaintainedTable,
    happens: Callable[[], object] = nothing,
    *,
    forgets: str = "",
    loses_log: bool = False,
    after_commit: Callable[[], object] = nothing,
) -> ScriptedCatalog:
    """Commit like a REST catalog: on the newest state if the requirements hold; refs are removed with their snapshots.

    Another writer does ``happens`` after our last load of the table, just before the first commit.  The catalog also
    drops the ref ``forgets`` together with removed snapshots, as SeaweedFS drops every ref but main.
    """
    made = ScriptedCatalog(table.catalog, before_commit=once(happens), after_commit=after_commit)

    def commit(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        now = made.inner.load(base.name)
        gone = {i for update in updates for i in update.get("snapshot-ids", ())}
        lost = [name for name, ref in now.metadata.refs.items() if ref.snapshot_id in gone]
        dropped = [{"action": "remove-snapshot-ref", "ref-name": name} for name in lost]
        forgotten = [{"action": "remove-snapshot-ref", "ref-name": forgets}] if forgets and gone else []
        after = made.inner.commit(now, requirements, [*dropped, *updates, *forgotten])
        if loses_log:
            table.rewrite_document(lambda document: document.update({"metadata-log": []}))
            return made.load(base.name)
        return after

    made.commit_instead = commit
    return made


def test_a_tag_made_while_an_expiry_is_planned_keeps_its_snapshot(compacted: MaintainedTable) -> None:
    table, oldest = compacted, oldest_of(compacted)
    # After the plan, the last step before the commit's own load is the search for metadata files of another head.
    with at(Moment.AFTER_LISTING, tagging(table, oldest)):
        outcome = table.run(EXPIRE, catalog=rest_like(table))
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 2
    assert table.metadata.refs["late"].snapshot_id == oldest
    assert table.ids(oldest) == [0, 1]
    assert table.verify().ok


@pytest.fixture
def compacted(table: MaintainedTable) -> MaintainedTable:
    """Three appends with ids 0, 1, 10, 11, 20, 21, merged into a single file: every expired snapshot frees files."""
    table.fill(3)
    table.run(Operation.COMPACT)
    return table


def oldest_of(table: MaintainedTable) -> int:
    return min(table.metadata.snapshots.values(), key=lambda snapshot: snapshot.sequence_number).snapshot_id


def tagging(table: MaintainedTable, snapshot_id: int, name: str = "late") -> Callable[[], object]:
    return lambda: table.table.manage_snapshots().create_tag(snapshot_id, name).commit()


def assert_tag_is_held(table: MaintainedTable, snapshot_id: int) -> Pin:
    """Its files exist, and independent readers read them through the metadata file that the pin names."""
    (pin,) = list_pins(table.handle)
    assert (pin.kind.value, pin.snapshot_id) == ("lost-ref", snapshot_id)
    for read in (pyiceberg_rows, duckdb_rows):
        assert sorted(row["id"] for row in read(pin.metadata_location, snapshot_id)) == [0, 1]
    return pin


def test_a_tag_made_just_before_the_commit_keeps_its_files(compacted: MaintainedTable) -> None:
    table, oldest = compacted, oldest_of(compacted)
    outcome = table.run(EXPIRE, catalog=rest_like(table, tagging(table, oldest)))
    assert "late" not in table.metadata.refs
    pin = assert_tag_is_held(table, oldest)
    assert outcome.status is Status.REFUSED
    assert outcome.reason == (
        "tag 'late' was created while the expiry was being committed, and the catalog dropped it with its snapshot "
        f"{oldest}: pin 'lost:late@{oldest}' keeps its files; register {pin.metadata_location} as a table to read it, "
        "and remove the pin when it is no longer needed"
    )
    assert outcome.metrics["expire_snapshots.refs_lost"] == 1
    assert outcome.files_deleted, "files that the tag does not need are deleted"
    # No later pass deletes the files until a person decides; afterwards they are orphans.
    year = 366 * 86_400_000
    table.append(99)
    table.maintain(run_id="run-2", clock=lambda: system_clock() + year)
    assert_tag_is_held(table, oldest)
    remove_pin(table.handle, pin.name)
    outcome = table.run(Operation.REMOVE_ORPHANS, run_id="run-3")
    assert outcome.files_deleted
    assert table.ids() == [0, 1, 10, 11, 20, 21, 99]

    # The tag of a kept snapshot is restored.
    table.append(100)
    table.append(101)
    kept = table.metadata.current_snapshot
    assert kept is not None
    outcome = table.run(
        EXPIRE, catalog=rest_like(table, tagging(table, kept.snapshot_id), forgets="late"), run_id="run-4"
    )
    assert outcome.status is Status.SUCCEEDED
    assert table.metadata.refs["late"].snapshot_id == kept.snapshot_id


def test_no_later_pass_deletes_files_of_the_tag_after_a_crash_at_the_commit(compacted: MaintainedTable) -> None:
    table, oldest = compacted, oldest_of(compacted)
    with pytest.raises(PowerCutError):
        table.run(EXPIRE, catalog=rest_like(table, tagging(table, oldest), after_commit=once(cut)))
    table.append(100)
    outcome = table.run(EXPIRE, run_id="run-2", max_snapshots_to_keep="9")
    assert_tag_is_held(table, oldest)
    assert outcome.status is Status.REFUSED
    assert outcome.metrics["expire_snapshots.files_resumed"] > 0, "the rest is deleted"
    assert table.run(EXPIRE, run_id="run-3", max_snapshots_to_keep="9").status is Status.SKIPPED


def load_again(catalog: ScriptedCatalog, name: TableName) -> LoadedTable:
    with reading_anew():
        return catalog.inner.load(name)


def test_a_catalog_without_a_metadata_log_loses_no_tag(compacted: MaintainedTable) -> None:
    """Nothing is deleted; the files are left to orphan removal, which waits and looks again."""
    table, oldest = compacted, oldest_of(compacted)
    before = table.files()
    with mock.patch.object(ScriptedCatalog, "load", load_again):  # the catalog changes the metadata file in place
        outcome = table.run(EXPIRE, catalog=rest_like(table, tagging(table, oldest), loses_log=True))
    assert before <= table.files()
    assert outcome.files_deleted == ()
    assert "the metadata log does not show on which state the commit was made" in outcome.summary
    outcome = table.run(EXPIRE, run_id="run-2")
    assert "file(s) of an interrupted run are left to remove_orphans" in outcome.summary
    assert before <= table.files()
    assert table.run(EXPIRE, run_id="run-3").summary == "no snapshots to expire"


def test_an_unreadable_metadata_log_keeps_everything(
    compacted: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, oldest = compacted, oldest_of(compacted)
    read, swapped_out, broken = Storage.read, list[str](), list[str]()

    def failing(storage: Storage, path: str) -> bytes:
        if path in broken:
            raise StorageError("the store is busy")
        return read(storage, path)

    def tag() -> None:
        tagging(table, oldest)()
        swapped_out.append(table.loaded.metadata_location)

    monkeypatch.setattr(Storage, "read", failing)
    before = table.files()
    catalog = rest_like(table, tag, after_commit=once(lambda: broken.extend(swapped_out)))
    outcome = table.run(EXPIRE, catalog=catalog)
    assert "the store is busy" in outcome.summary
    assert before <= table.files()
    outcome = table.run(EXPIRE, run_id="run-2")
    assert "files of an interrupted run stay until it is known which refs its commit dropped" in outcome.summary
    assert outcome.status is Status.SUCCEEDED
    assert before <= table.files()
    broken.clear()
    assert table.run(EXPIRE, run_id="run-3").status is Status.REFUSED
    assert_tag_is_held(table, oldest)


def test_expiry_reports_the_snapshots_that_streaming_writers_keep(table: MaintainedTable) -> None:
    for job, checkpoint in (("a", 1), ("a", 2), ("b", 10), ("b", 11), ("b", 12)):
        mark = {"flink.job-id": job, "flink.operator-id": "o", "flink.max-committed-checkpoint-id": str(checkpoint)}
        table.table.append(table.new_rows(checkpoint), snapshot_properties=mark)
    table.run(Operation.COMPACT)
    snapshots = sorted(table.metadata.snapshots.values(), key=lambda snapshot: snapshot.sequence_number)
    assert snapshots[-1].summary["flink.job-id"] == "b"
    phrase = "kept 4 snapshot(s) only because streaming writers need them to find their last commit"
    preview = table.run(EXPIRE, dry_run=True)
    assert preview.summary.startswith("would expire 1 snapshot(s)")
    assert phrase in preview.summary
    outcome = table.run(EXPIRE)
    assert outcome.summary == f"expired 1 snapshot(s), deleted 1 unreferenced file(s); {phrase}"
    assert outcome.metrics["expire_snapshots.snapshots_kept_for_writers"] == 4
    outcome = table.run(EXPIRE, run_id="run-2")
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, f"no snapshots to expire; {phrase}")
    assert outcome.metrics["expire_snapshots.snapshots_kept_for_writers"] == 4
    named = str(snapshots[3].snapshot_id)
    refused = table.run(EXPIRE, run_id="run-3", snapshot_expire_ids=named)
    assert refused.status is Status.REFUSED
    assert f"Flink job a, operator o needs snapshot {named} of snapshot_expire_ids to find" in refused.summary
    outcome = table.run(EXPIRE, run_id="run-4", writer_mark_retention_hours="0")
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 4
    assert outcome.metrics["expire_snapshots.snapshots_kept_for_writers"] == 0


# A later pass completes an expiry that is interrupted between its commit and its last deletion.


@pytest.fixture
def merged_table(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Four appends merged into a single file; a batch of deletions has two files."""
    monkeypatch.setattr(deletion, "_BATCH", 2)
    made = new_table(local_catalog, tmp_path, appends=4)
    made.run(Operation.COMPACT)
    return made


def pending(merged_table: MaintainedTable) -> set[str]:
    store, identity = merged_table.state.pending_deletions, identity_of(merged_table.catalog, merged_table.loaded)
    return {path for name in store.lists(identity) for part in store.paths(identity, name) for path in part}


def interrupted(merged_table: MaintainedTable, moment: Moment, **settings: str) -> None:
    with pytest.raises(PowerCutError), at(moment, cut):
        merged_table.run(EXPIRE, **settings)


def test_the_next_pass_deletes_files_left_by_a_crash_after_the_commit(merged_table: MaintainedTable) -> None:
    expected, snapshots = merged_table.run(EXPIRE, dry_run=True), len(merged_table.metadata.snapshots)
    interrupted(merged_table, Moment.AFTER_COMMIT)
    (kept,) = merged_table.metadata.snapshots.values()
    left = set(map(normalise, expected.files_planned))
    assert left <= merged_table.files()
    assert set(map(normalise, pending(merged_table))) == left

    # While references are unreadable, the list and the files are kept.
    manifest = Path(normalise(merged_table.reader.manifests(kept)[0].manifest_path))
    aside = manifest.rename(manifest.with_suffix(".aside"))
    assert merged_table.run(EXPIRE).status is Status.REFUSED
    assert set(map(normalise, pending(merged_table))) == left <= merged_table.files()
    aside.rename(manifest)

    preview = merged_table.run(EXPIRE, dry_run=True)
    assert (preview.files_planned, preview.summary) == (
        expected.files_planned,
        f"would delete {len(left)} file(s) that an interrupted run left behind",
    )
    outcome = merged_table.run(EXPIRE)
    assert outcome.summary == f"deleted {len(left)} file(s) that an interrupted run left behind"
    assert outcome.metrics["expire_snapshots.files_resumed"] == len(left)
    assert outcome.metrics["expire_snapshots.snapshots_resumed"] == snapshots - 1
    assert set(map(normalise, outcome.files_deleted)) == left
    assert outcome.files_planned == expected.files_planned
    assert merged_table.unreferenced() == set()
    assert pending(merged_table) == set()
    assert merged_table.verify().ok
    again = merged_table.run(EXPIRE)
    assert (again.status, again.reason) == (Status.SKIPPED, "no snapshots to expire")


def test_the_next_expiry_completes_a_crash_between_two_batches(
    merged_table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No other batch runs at the same time.
    monkeypatch.setattr("icekeeper.deletion.delete._IN_FLIGHT", 1)
    interrupted(merged_table, Moment.AFTER_DELETION)
    assert merged_table.unreferenced() != set()
    merged_table.append(99)
    outcome = merged_table.run(EXPIRE)
    # The new head dropped the compaction's manifest of DELETED entries; missing files count as deleted.
    assert outcome.summary == (
        "expired 1 snapshot(s), deleted 2 unreferenced file(s); deleted 12 file(s) that an interrupted run left behind"
    )
    assert outcome.metrics["expire_snapshots.files_deleted"] == 2
    assert merged_table.unreferenced() == set()
    assert pending(merged_table) == set()
    assert merged_table.verify().ok


def test_an_expiry_that_does_not_commit_deletes_nothing(merged_table: MaintainedTable) -> None:
    table, before = merged_table, merged_table.loaded.metadata_location
    with mock.patch.object(PendingDeletionStore, "expect", side_effect=StorageError("the state file is full")):
        outcome = table.run(EXPIRE)
    assert (outcome.status, outcome.reason) == (Status.FAILED, "StorageError: the state file is full")
    assert table.loaded.metadata_location == before

    # After a crash before the commit, every file on the list is still referenced: only the list is removed.
    interrupted(table, Moment.BEFORE_COMMIT)
    assert len(table.metadata.snapshots) == 5
    assert pending(table) != set()
    files, snapshots = table.files(), set(table.metadata.snapshots)
    outcome = table.run(EXPIRE, snapshot_retention_hours="5")
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "no snapshots to expire")
    assert (table.files(), set(table.metadata.snapshots), pending(table)) == (files, snapshots, set())

    # A commit that certainly failed leaves no list.
    with at(Moment.BEFORE_COMMIT, lambda: table.append(99)):
        outcome = table.run(EXPIRE, max_commit_retries="0")
    assert outcome.status is Status.FAILED
    assert "CommitConflict" in (outcome.reason or "")
    assert (pending(table), files < table.files()) == (set(), True)

    # After a lost swap, the newer head decides: the tag of another writer keeps the oldest snapshot.
    with at(Moment.BEFORE_COMMIT, tagging(table, oldest_of(table))):
        outcome = table.run(EXPIRE)
    assert outcome.status is Status.SUCCEEDED
    assert (pending(table), table.unreferenced()) == (set(), set())
    assert len(table.metadata.snapshots) == 2
    assert table.verify().ok


def test_a_restored_snapshot_keeps_its_files(merged_table: MaintainedTable, tmp_path: Path) -> None:
    """A person registers an older metadata file after the crash; the list alone permits no deletion."""
    before = merged_table.loaded.metadata_location
    interrupted(merged_table, Moment.AFTER_COMMIT)
    left, now = pending(merged_table), merged_table.loaded.metadata_location
    shutil.copy(normalise(now), tmp_path / "now.json")
    shutil.copy(normalise(before), normalise(now))
    outcome = merged_table.run(EXPIRE, snapshot_retention_hours="5")
    assert (outcome.status, pending(merged_table)) == (Status.SKIPPED, set())
    assert all(Path(normalise(path)).exists() for path in left)


def test_the_next_pass_deletes_files_whose_deletion_failed(
    merged_table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, locked = Storage.delete, [True]

    def delete(self: Storage, paths: Iterable[str], *, links: bool = True) -> DeleteReport:
        stuck = {path: "is locked" for path in paths if locked and path.endswith(".parquet")}
        return DeleteReport(original(self, [p for p in paths if p not in stuck]).deleted, stuck)

    monkeypatch.setattr(Storage, "delete", delete)
    outcome = merged_table.run(EXPIRE)
    assert outcome.metrics["expire_snapshots.files_failed"] == 4
    assert {Path(path).suffix for path in pending(merged_table)} == {".parquet"}
    locked.clear()
    assert merged_table.run(EXPIRE).metrics["expire_snapshots.files_resumed"] == 4
    assert (merged_table.unreferenced(), pending(merged_table)) == (set(), set())

    # A list that cannot be removed is harmless.
    merged_table.append(98)
    merged_table.append(99)
    with mock.patch.object(PendingDeletionStore, "forget", side_effect=StorageError("the state file is full")):
        outcome = merged_table.run(EXPIRE)
    assert outcome.status is Status.SUCCEEDED
    left = pending(merged_table)
    assert left == set(outcome.files_deleted) != set()
    again = merged_table.run(EXPIRE)
    assert again.metrics["expire_snapshots.files_resumed"] == len(left)
    assert pending(merged_table) == set()
