"""Expiry against tables that bend the rules: what is still read must stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import list_pins, remove_pin
from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.pointer import reading_anew
from icekeeper.errors import StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.stores import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.store import Pin
from icekeeper.storage.storage import Storage
from support.maintained_table import NAME, MaintainedTable, new_table
from support.moments import Moment, at
from support.readers import duckdb_rows, pyiceberg_rows
from support.scripted_catalog import ScriptedCatalog, once

EXPIRE = Operation.EXPIRE_SNAPSHOTS


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path)


def test_a_file_that_was_added_twice_stays_while_a_tag_needs_it(table: MaintainedTable) -> None:
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
        now = self.inner.load(base.name)
        gone = {i for update in updates for i in update.get("snapshot-ids", ())}
        lost = [name for name, ref in now.metadata.refs.items() if ref.snapshot_id in gone]
        dropped = [{"action": "remove-snapshot-ref", "ref-name": name} for name in lost]
        return super().commit(now, requirements, [*dropped, *updates])


def test_a_tag_that_is_made_while_an_expiry_is_planned_keeps_its_snapshot(table: MaintainedTable) -> None:
    table.fill(3)
    table.run(Operation.COMPACT)
    oldest = min(table.metadata.snapshots.values(), key=lambda snapshot: snapshot.sequence_number).snapshot_id

    def tag() -> None:
        table.table.manage_snapshots().create_tag(oldest, "late").commit()

    # The plan is made; the last thing before the commit's own load is to look for metadata files of another head.
    with at(Moment.AFTER_LISTING, tag):
        outcome = table.run(EXPIRE, catalog=AssertionsOnly(table.catalog))
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 2
    assert table.metadata.refs["late"].snapshot_id == oldest
    assert table.ids(oldest) == [0, 1]
    assert table.verify().ok


class Meanwhile(AssertionsOnly):
    """Something happens after our last look at the table, just before the server makes the first commit."""

    def __init__(self, inner: Catalog, happens: Callable[[], object], **hooks: Any) -> None:
        super().__init__(inner, **hooks)
        self._happens: list[Callable[[], object]] = [happens]

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        while self._happens:
            self._happens.pop()()
        return super().commit(base, requirements, updates)


@pytest.fixture
def compacted(table: MaintainedTable) -> MaintainedTable:
    """Three appends with ids 0, 1, 10, 11, 20, 21, merged into one file: whatever expires frees files."""
    table.fill(3)
    table.run(Operation.COMPACT)
    return table


def oldest_of(table: MaintainedTable) -> int:
    return min(table.metadata.snapshots.values(), key=lambda snapshot: snapshot.sequence_number).snapshot_id


def tagging(table: MaintainedTable, snapshot_id: int, name: str = "late") -> Callable[[], object]:
    return lambda: table.table.manage_snapshots().create_tag(snapshot_id, name).commit()


def assert_tag_is_held(table: MaintainedTable, snapshot_id: int) -> Pin:
    """Its files are there and are read by the metadata file that the pin names, by readers that are not ours."""
    (pin,) = list_pins(handle_of(table))
    assert (pin.kind.value, pin.snapshot_id) == ("lost-ref", snapshot_id)
    for read in (pyiceberg_rows, duckdb_rows):
        assert sorted(row["id"] for row in read(pin.metadata_location, snapshot_id)) == [0, 1]
    return pin


def handle_of(table: MaintainedTable) -> TableHandle:
    return TableHandle(table.catalog, NAME, table.state, system_clock)


def test_a_tag_that_is_made_just_before_the_commit_keeps_its_files(compacted: MaintainedTable) -> None:
    table, oldest = compacted, oldest_of(compacted)
    outcome = table.run(EXPIRE, catalog=Meanwhile(table.catalog, tagging(table, oldest)))
    assert "late" not in table.metadata.refs
    pin = assert_tag_is_held(table, oldest)
    assert outcome.status is Status.REFUSED
    assert outcome.reason == (
        "tag 'late' was made while the expiry was being committed, and the catalog dropped it with its snapshot "
        f"{oldest}: its files are kept by pin 'lost:late@{oldest}'; register {pin.metadata_location} as a table to "
        "read it, and remove the pin when it is not needed"
    )
    assert outcome.metrics["expire_snapshots.refs_lost"] == 1
    assert outcome.files_deleted, "what the tag does not need goes"
    # Until a person decides, no later pass takes the files; afterwards they are orphans.
    year = 366 * 86_400_000
    table.append(99)
    table.maintain(run_id="run-2", clock=lambda: system_clock() + year)
    assert_tag_is_held(table, oldest)
    remove_pin(handle_of(table), pin.name)
    outcome = table.run(Operation.REMOVE_ORPHANS, run_id="run-3")
    assert outcome.files_deleted
    assert table.ids() == [0, 1, 10, 11, 20, 21, 99]


def test_a_run_that_dies_right_after_such_a_commit_leaves_the_tags_files_to_no_later_pass(
    compacted: MaintainedTable,
) -> None:
    table, oldest = compacted, oldest_of(compacted)

    def cut() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.run(EXPIRE, catalog=Meanwhile(table.catalog, tagging(table, oldest), after_commit=once(cut)))
    for number in range(3):
        table.append(100 + number)
    outcome = table.run(EXPIRE, run_id="run-2", max_snapshots_to_keep="9")
    assert_tag_is_held(table, oldest)
    assert outcome.status is Status.REFUSED
    assert outcome.metrics["expire_snapshots.files_resumed"] > 0, "the rest goes"
    assert table.run(EXPIRE, run_id="run-3", max_snapshots_to_keep="9").status is Status.SKIPPED


def test_a_tag_of_a_kept_snapshot_that_the_catalog_drops_unseen_is_put_back(compacted: MaintainedTable) -> None:
    """SeaweedFS drops every ref but main together with removed snapshots."""
    table = compacted
    kept = table.metadata.current_snapshot
    assert kept is not None

    class Forgetful(Meanwhile):
        def commit(
            self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
        ) -> LoadedTable:
            if any(update["action"] == "remove-snapshots" for update in updates):
                updates = [*updates, {"action": "remove-snapshot-ref", "ref-name": "late"}]
            return super().commit(base, requirements, updates)

    outcome = table.run(EXPIRE, catalog=Forgetful(table.catalog, tagging(table, kept.snapshot_id)))
    assert outcome.status is Status.SUCCEEDED
    assert table.metadata.refs["late"].snapshot_id == kept.snapshot_id


def without_log(table: MaintainedTable) -> None:
    table.rewrite_document(lambda document: document.update({"metadata-log": []}))


def test_a_catalog_that_does_not_tell_what_it_swapped_out_loses_no_tag(compacted: MaintainedTable) -> None:
    """Its log is empty: nothing is deleted, and the files are left to orphan removal, which waits and asks again."""
    table, oldest = compacted, oldest_of(compacted)

    class Forgetful(Meanwhile):
        def commit(
            self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
        ) -> LoadedTable:
            super().commit(base, requirements, updates)
            without_log(table)
            return self.load(base.name)

        def load(self, name: TableName) -> LoadedTable:
            with reading_anew():  # the file was changed where it lies
                return super().load(name)

    before = table.files()
    outcome = table.run(EXPIRE, catalog=Forgetful(table.catalog, tagging(table, oldest)))
    assert before <= table.files()
    assert outcome.files_deleted == ()
    assert "the metadata log does not show on which state the commit was made" in outcome.summary
    outcome = table.run(EXPIRE, run_id="run-2")
    assert "file(s) of an interrupted run are left to remove_orphans" in outcome.summary
    assert before <= table.files()
    assert table.run(EXPIRE, run_id="run-3").summary == "no snapshots to expire"


def test_a_log_that_cannot_be_read_keeps_everything_until_it_can(
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
    catalog = Meanwhile(table.catalog, tag, after_commit=once(lambda: broken.extend(swapped_out)))
    outcome = table.run(EXPIRE, catalog=catalog)
    assert "the store is busy" in outcome.summary
    assert before <= table.files()
    outcome = table.run(EXPIRE, run_id="run-2")
    assert "files of an interrupted run stay until it can be told which refs went" in outcome.summary
    assert outcome.status is Status.SUCCEEDED
    assert before <= table.files()
    broken.clear()
    assert table.run(EXPIRE, run_id="run-3").status is Status.REFUSED
    assert_tag_is_held(table, oldest)


def flink_append(table: MaintainedTable, job: str, checkpoint: int) -> None:
    mark = {"flink.job-id": job, "flink.operator-id": "o", "flink.max-committed-checkpoint-id": str(checkpoint)}
    table.table.append(table.new_rows(checkpoint), snapshot_properties=mark)


def test_expiry_tells_what_streaming_writers_cost(table: MaintainedTable) -> None:
    flink_append(table, "a", 1)
    flink_append(table, "a", 2)
    for number in range(3):
        flink_append(table, "b", 10 + number)
    table.run(Operation.COMPACT)
    snapshots = sorted(table.metadata.snapshots.values(), key=lambda snapshot: snapshot.sequence_number)
    assert snapshots[-1].summary["flink.job-id"] == "b"
    phrase = "kept 4 snapshot(s) only because streaming writers find their last commit by them"
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
    assert f"snapshot {named} of snapshot_expire_ids is one by which Flink job a, operator o finds" in refused.summary
    outcome = table.run(EXPIRE, run_id="run-4", writer_mark_retention_hours="0")
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 4
    assert outcome.metrics["expire_snapshots.snapshots_kept_for_writers"] == 0
