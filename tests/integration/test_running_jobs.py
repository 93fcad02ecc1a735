"""While a rewrite runs, others leave alone what it reads and what it writes; how it ends decides about its record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.deletion.shared_references import recorded_files
from icekeeper.errors import CommitStateUnknown, StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.stores import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.sqlite.records import SqliteStaging
from icekeeper.state.store import LoadOrigin, LoadState, Pin, PinKind, StagedLoad
from icekeeper.storage.paths import normalise
from support.deletes import commit_deletes, create_by_region, position_delete
from support.maintained_table import NAME, MaintainedTable, maintained_table, new_table
from support.running_jobs import LEASE_MS, Interrupting, deleted, later, loads, pins, recorded
from support.scripted_catalog import ScriptedCatalog


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(4)
    return made


def test_two_attempts_of_one_run_keep_their_own_ground(table: MaintainedTable) -> None:
    """A step that was taken for dead is repeated under its run's name; who ends first takes nothing from the other."""
    seen: list[tuple[int, int]] = []

    def repeat() -> None:
        assert table.run(Operation.COMPACT, run_id="run-1").status is Status.SUCCEEDED
        seen.append((len(pins(table)), len(loads(table))))

    table.run(Operation.COMPACT, engine=Interrupting(repeat), run_id="run-1")
    assert seen == [(1, 1)]
    assert (pins(table), loads(table)) == ((), ())


def test_a_rewrite_pins_its_snapshot_and_records_its_outputs_while_it_runs(table: MaintainedTable) -> None:
    seen: list[tuple[tuple[Pin, ...], tuple[StagedLoad, ...], list[str]]] = []
    planned = table.loaded
    assert planned.metadata.current_snapshot is not None

    def look() -> None:
        seen.append((pins(table), loads(table), recorded(table)))

    before_ms = system_clock()
    outcome = table.run(Operation.COMPACT, engine=Interrupting(look), run_id="run-1")
    (((pin,), (load,), paths),) = seen
    assert re.fullmatch(r"run-1:[0-9a-f]{8}:compact", pin.name)
    assert pin.kind == PinKind.JOB
    assert (pin.snapshot_id, pin.metadata_location) == (
        planned.metadata.current_snapshot.snapshot_id,
        planned.metadata_location,
    )
    assert LEASE_MS <= pin.expires_ms - before_ms <= LEASE_MS + system_clock() - before_ms
    assert (load.name, load.origin, load.state) == (pin.name, LoadOrigin.JOB, LoadState.PENDING)
    (written,) = (normalise(file.file_path) for file in table.data_files())
    stem = written.removesuffix("-a0.parquet")
    assert paths == [f"{stem}-a{attempt}.parquet" for attempt in range(4)]
    assert outcome.status is Status.SUCCEEDED
    assert (pins(table), loads(table)) == ((), ())


def test_an_expiry_of_another_pass_takes_nothing_that_a_rewrite_reads(table: MaintainedTable) -> None:
    """The others overwrite the table and expire, while the rewrite is about to read."""
    ids = table.ids()
    read = {normalise(file.file_path) for file in table.data_files()}
    others: list[OperationOutcome] = []

    def meanwhile() -> None:
        table.table.overwrite(table.table.scan().to_arrow())
        others.append(table.run(Operation.EXPIRE_SNAPSHOTS, run_id="other"))
        assert read <= table.files()

    table.run(Operation.COMPACT, engine=Interrupting(meanwhile))
    assert others[0].metrics["expire_snapshots.snapshots_expired"] == 3
    assert table.ids() == ids
    # Nothing holds them any more.
    assert table.run(Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    assert read.isdisjoint(table.files())
    assert table.verify().ok


def test_an_orphan_removal_of_another_pass_leaves_alone_what_a_rewrite_wrote(table: MaintainedTable) -> None:
    ids = table.ids()
    others: list[OperationOutcome] = []
    engine = Interrupting(after=lambda: others.append(table.run(Operation.REMOVE_ORPHANS, run_id="other")))
    outcome = table.run(Operation.COMPACT, engine=engine)
    assert outcome.status is Status.SUCCEEDED
    assert others[0].metrics["remove_orphans.files_protected"] == 1
    assert others[0].files_deleted == ()
    assert table.readers_agree() == ids


def test_position_delete_outputs_are_recorded(table: MaintainedTable, tmp_path: Path) -> None:
    with maintained_table(tmp_path / "other") as made:
        create_by_region(made, 2)
        (task, *_) = made.table.scan().plan_files()
        path = task.file.file_path
        region = "us" if "region=us" in path else "eu"
        for position in range(3):
            commit_deletes(made, [position_delete(path, position, region)])
        seen: list[list[str]] = []

        def look() -> None:
            memory = TableHandle(made.catalog, NAME, made.runtime.state, system_clock).memory(made.loaded)
            seen.append([path for load in memory.staged_loads() for path in recorded_files(memory, load)])

        made.engine.during = look
        outcome = made.maintain(operations="rewrite_position_deletes").operations[0]
        assert outcome.status is Status.SUCCEEDED
        assert len(seen) == 1
        first, *others = map(normalise, seen[0])
        assert first in made.reachable()
        assert made.reachable().isdisjoint(others)


def test_a_failed_commit_leaves_a_record_only_of_what_it_could_not_remove(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake() -> None:
        table.table.overwrite(table.table.scan().to_arrow())

    outcome = table.run(Operation.COMPACT, engine=Interrupting(after=overtake))
    assert outcome.status is Status.FAILED
    assert (loads(table), pins(table), table.unreferenced()) == ((), (), set())
    table.append(5)
    monkeypatch.setattr("icekeeper.storage.storage.unlink", lambda path: "busy")
    table.run(Operation.COMPACT, engine=Interrupting(after=overtake))
    left = table.unreferenced()
    assert len(left) == 1
    assert [load.state for load in loads(table)] == [LoadState.FAILED]
    monkeypatch.undo()
    assert set(deleted(later(table))) == left


def test_an_attempt_that_failed_leaves_a_record(table: MaintainedTable) -> None:
    """What it wrote may be kept for inspection; the record takes it away after the grace period.  The group itself was
    merged without the damaged file."""
    Path(normalise(table.data_files()[0].file_path)).write_bytes(b"damaged")
    outcome = table.run(Operation.COMPACT, orphan_older_than_hours="24")
    assert outcome.status is Status.SUCCEEDED
    assert [load.state for load in loads(table)] == [LoadState.FAILED]
    assert pins(table) == ()
    assert deleted(later(table)) == []
    assert loads(table) == ()


def test_an_unknown_outcome_keeps_files_and_record(table: MaintainedTable) -> None:
    """The commit may yet land: the files are neither removed nor taken for those of a failed job, until the lease."""
    catalog = _Lost(table.catalog)
    ids = table.ids()
    outcome = table.run(Operation.COMPACT, catalog=catalog)
    assert outcome.status is Status.FAILED
    assert outcome.reason is not None
    assert outcome.reason.startswith("CommitStateUnknown: ")
    (load,) = loads(table)
    assert load.state is LoadState.PENDING
    left = table.unreferenced()
    assert len(left) == 4  # the output, two manifests, a manifest list
    sweep = table.run(Operation.REMOVE_ORPHANS)
    written = left & set(recorded(table))
    assert len(written) == 1
    assert written.isdisjoint(map(normalise, sweep.files_deleted))
    assert set(deleted(later(table))) == written
    assert table.readers_agree() == ids


def test_an_unknown_outcome_after_commits_that_landed_keeps_the_record(table: MaintainedTable) -> None:
    """The operation goes on to report what landed, but the record must not say that the rest failed."""
    table.append(50, part="q")
    table.append(51, part="q")
    table.table.update_spec().add_identity("part").commit()
    table.fill(2, part="r", start=6)
    outcome = table.run(Operation.COMPACT, catalog=_Lost(table.catalog, after=1), partial_progress="1")
    assert outcome.status is Status.FAILED
    assert len(outcome.snapshot_ids) == 1
    assert [load.state for load in loads(table)] == [LoadState.PENDING]
    assert table.verify().ok
    later(table)
    assert (loads(table), table.verify().ok) == ((), True)


class _Lost(ScriptedCatalog):
    """Every commit but the first ``after`` ones gets lost on the way, and nobody can say so."""

    def __init__(self, inner: Any, *, after: int = 0) -> None:
        super().__init__(inner)
        self._after = after

    def commit(self, base: Any, requirements: Any, updates: Any) -> Any:
        if self.commits < self._after:
            return super().commit(base, requirements, updates)
        self.commits += 1
        raise CommitStateUnknown("no answer")

    def load(self, table: TableName) -> Any:
        if self.commits > self._after:
            raise StorageError("no answer")
        return super().load(table)


def test_state_that_cannot_be_written_fails_the_operation_before_any_work(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StorageError("the disk is full")

    before = table.files()
    monkeypatch.setattr(SqliteStaging, "stage", fails)
    outcome = table.run(Operation.COMPACT, engine=Interrupting(before=lambda: pytest.fail("work was begun")))
    assert (outcome.status, outcome.reason) == (Status.FAILED, "StorageError: the disk is full")
    assert table.files() == before
    monkeypatch.undo()
    monkeypatch.setattr(type(table.state), "add_pin", fails)
    outcome = table.run(Operation.COMPACT, engine=Interrupting(before=lambda: pytest.fail("work was begun")))
    assert (outcome.status, outcome.reason) == (Status.FAILED, "StorageError: the disk is full")
    assert table.files() == before


def test_a_record_that_cannot_be_settled_does_not_undo_a_success(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(SqliteStaging, "forget", fails)
    monkeypatch.setattr(type(table.state), "remove_pin", fails)
    assert table.run(Operation.COMPACT).status is Status.SUCCEEDED
    monkeypatch.undo()
    assert deleted(later(table)) == []
    assert (loads(table), table.verify().ok) == ((), True)


def test_a_dry_run_records_nothing(table: MaintainedTable) -> None:
    with mock.patch.object(SqliteStaging, "stage") as stage, mock.patch.object(type(table.state), "add_pin") as pin:
        table.maintain(dry_run=True)
    assert (stage.mock_calls, pin.mock_calls) == ([], [])


def test_a_pass_expires_what_its_own_rewrite_had_pinned(table: MaintainedTable) -> None:
    """The pin goes with the operation, so that the same pass frees what compaction replaced."""
    outcome = table.maintain("compact,expire_snapshots")
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 4
    assert len(table.data_files()) == len([path for path in table.files() if path.endswith(".parquet")]) == 1
