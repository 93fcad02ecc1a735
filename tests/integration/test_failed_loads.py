"""Failed loads are cleaned from their record after the grace period (rule 104), whatever else goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import declare_load, list_loads, stage_load
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime
from icekeeper.state.store import LoadOrigin, LoadState, StagedLoad
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import EAGER, NAME, same_clock
from support.staged_table import GRACE, GRACE_MS, START_MS, StagedTable


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> StagedTable:
    return StagedTable(local_catalog, tmp_path)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was listed, from now on."""
    seen: list[str] = []
    original = Storage.list

    def counted(self: Storage, prefix: str) -> Any:
        seen.append(prefix)
        return original(self, prefix)

    monkeypatch.setattr(Storage, "list", counted)
    return seen


def test_failed_loads_are_cleaned_after_the_grace_period_from_the_record(
    table: StagedTable, listings: list[str]
) -> None:
    files = [table.plant(f"data/load/{number}.parquet") for number in range(3)]
    unrecorded = table.plant("data/load/unrecorded.parquet")
    table.stage("L", *files, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS - 1
    assert table.sweep().staged is None
    assert set(files) <= table.files()
    table.clock.now_ms += 1
    staged = table.cleaned()
    assert staged.metrics == {
        "staged.files_deleted": 3,
        "staged.loads_settled": 1,
        "staged.loads_adopted": 0,
        "staged.files_referenced": 0,
        "staged.files_failed": 0,
    }
    assert staged.summary == "deleted 3 staged file(s) of 1 failed load(s)"
    assert list(staged.files_deleted) == [f"file://{path}" for path in files]
    assert set(listings) == {table.metadata.metadata_directory}, "for newer heads of the table"
    assert set(files).isdisjoint(table.files())
    assert unrecorded in table.files()
    assert table.states() == {}
    assert table.sweep().staged is None


def test_a_clock_that_runs_backwards_deletes_nothing(table: StagedTable) -> None:
    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    job = StagedLoad(
        identity=list_loads(table.handle)[0].identity,
        name="run:compact",
        origin=LoadOrigin.JOB,
        changed_ms=START_MS,
        expires_ms=START_MS + 2 * HOUR_MS,
    )
    other = table.plant("data/job.parquet")
    table.state.staging.stage(job, [f"file://{other}"])
    table.clock.now_ms -= 1000 * GRACE_MS
    assert table.sweep("all").staged is None
    assert {path, other} <= table.files()
    assert table.states() == {"L": LoadState.FAILED, "run:compact": LoadState.PENDING}


def test_a_catalog_that_cannot_be_listed_cleans_nothing(table: StagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table could be anywhere."""

    def fails(self: object) -> None:
        raise StorageError("no answer")

    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    monkeypatch.setattr(type(table.catalog), "list_tables", fails)
    assert "cannot be listed: no answer" in (table.cleaned().problem or "")
    assert path in table.files()


def test_unreadable_references_delete_nothing_and_fail_no_operation(table: StagedTable) -> None:
    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    newest = table.metadata.current_snapshot
    assert newest is not None
    table.append(77)
    Path(normalise(newest.manifest_list or "")).unlink()
    outcome = table.sweep("rewrite_position_deletes")
    assert outcome.status.value == "succeeded"
    assert outcome.staged is not None
    assert outcome.staged.metrics == {"staged.files_failed": 1}
    (warning,) = outcome.warnings
    assert warning.startswith("staged files of failed loads were not cleaned: ")
    assert str(newest.manifest_list) in warning
    assert path in table.files()
    assert table.states() == {"L": LoadState.FAILED}


def test_a_file_that_cannot_be_deleted_keeps_its_record(table: StagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = table.plant("data/good.parquet"), table.plant("data/bad.parquet")
    table.stage("good", good, state=LoadState.FAILED)
    table.stage("bad", bad, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    monkeypatch.setattr(
        "icekeeper.storage.storage.unlink", lambda path: "no" if "/bad." in path else Path(path).unlink()
    )
    outcome = table.sweep()
    assert outcome.staged is not None
    assert outcome.status.value == "succeeded"
    assert outcome.staged.metrics["staged.files_failed"] == 1
    assert table.states() == {"bad": LoadState.FAILED}
    monkeypatch.undo()
    assert [normalise(path) for path in table.cleaned().files_deleted] == [bad]


def test_a_dry_run_names_the_files_and_keeps_them(table: StagedTable) -> None:
    files = [table.plant(f"data/load/{number}.parquet") for number in range(2)]
    data = normalise(table.data_files()[0].file_path)
    table.stage("L", *files, data, state=LoadState.FAILED)
    table.stage("A", table.plant("data/a.parquet"), state=LoadState.ADOPTED)
    table.clock.now_ms += GRACE_MS
    before = table.files()
    dry = table.cleaned(dry_run=True)
    assert dry.summary == "would delete 2 staged file(s) of 1 failed load(s)"
    assert (table.files(), table.states()) == (before, {"A": LoadState.ADOPTED, "L": LoadState.FAILED})
    real = table.cleaned()
    assert dry.files_planned == real.files_planned == real.files_deleted
    assert dry.files_deleted == ()


def test_an_adopted_load_is_forgotten_when_its_commit_must_have_landed(table: StagedTable) -> None:
    """Protected for the grace period; then its files are referenced, or nobody's."""
    path = table.plant("data/adopted.parquet")
    table.stage("L", path, state=LoadState.ADOPTED)
    table.clock.now_ms += GRACE_MS - 1
    table.sweep("remove_orphans", orphan_older_than_hours="24")
    assert table.states() == {"L": LoadState.ADOPTED}
    table.clock.now_ms += 1
    staged = table.cleaned()
    assert (staged.metrics["staged.loads_adopted"], staged.files_deleted) == (1, ())
    assert table.states() == {}
    assert path in table.files()


def test_the_folder_of_a_failed_load_is_cleaned_and_no_other(table: StagedTable, listings: list[str]) -> None:
    """Beside the metadata only that folder is listed; the record goes with its last file."""
    old, young = table.plant("data/load/a.parquet"), table.plant("data/load/deep/b.parquet", days_old=0)
    beside = table.plant("data/load-2/a.parquet")
    stage_load(table.handle, "L", (), [f"{table.metadata.location}/data/load"])
    declare_load(table.handle, "L", LoadState.FAILED)
    table.clock.now_ms += GRACE_MS - 60_000
    assert table.sweep().staged is None
    table.clock.now_ms += 60_000
    planned = table.cleaned(dry_run=True)
    assert old in table.files()
    staged = table.cleaned()
    assert [normalise(path) for path in staged.files_deleted] == [old]
    assert planned.files_planned == staged.files_planned
    assert set(listings) == {f"{table.metadata.location}/data/load/", table.metadata.metadata_directory}
    assert table.states() == {"L": LoadState.FAILED}
    table.clock.now_ms += GRACE_MS
    assert [normalise(path) for path in table.cleaned().files_deleted] == [young]
    assert table.states() == {}
    assert beside in table.files()


@pytest.mark.parametrize("folder", ["/data", "/metadata"])
def test_a_folder_that_all_writers_share_is_left_to_the_removal_of_orphans(table: StagedTable, folder: str) -> None:
    orphan, foreign = table.plant("data/orphan.parquet"), table.plant("metadata/left.avro")
    stage_load(table.handle, "L", (), [f"{table.metadata.location}{folder}"])
    declare_load(table.handle, "L", LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    assert table.cleaned().files_deleted == ()
    assert table.states() == {}
    assert {orphan, foreign} <= table.files()


def test_a_protected_folder_inside_a_loads_folder_stays(table: StagedTable) -> None:
    goes, stays = table.plant("data/load/a.parquet"), table.plant("data/load/kept/b.parquet")
    stage_load(table.handle, "L", (), [f"{table.metadata.location}/data/load"])
    declare_load(table.handle, "L", LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    cleaned = table.cleaned(orphan_protected_prefixes=f"{table.metadata.location}/data/load/kept")
    assert [normalise(path) for path in cleaned.files_deleted] == [goes]
    assert stays in table.files()


def test_gc_disabled_forbids_it(table: StagedTable) -> None:
    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    table.table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    table.clock.now_ms += GRACE_MS
    assert table.sweep().staged is None
    assert path in table.files()
    assert table.states() == {"L": LoadState.FAILED}


@pytest.mark.parametrize("switch", ["maintenance_enabled", "orphan_sweep_enabled"])
def test_switches_do_not_stop_it(table: StagedTable, switch: str) -> None:
    """Staged files of failed loads are still cleaned up when maintenance is disabled (rule 104)."""
    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    settings: dict[str, Any] = {switch: "false"}
    outcome = table.sweep("remove_orphans", **settings)
    assert outcome.operations[0].status is Status.SKIPPED
    assert outcome.staged is not None
    assert [normalise(deleted) for deleted in outcome.staged.files_deleted] == [path]
    (record,) = table.state.history(table.handle.memory(table.loaded).identity)
    assert record.metrics["staged.files_deleted"] == 1


def test_a_bound_of_the_deployment_stops_it(table: StagedTable) -> None:
    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    stopped = {"ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "false"}
    runtime = Runtime(table.catalog, table.state, environment=stopped, clock=table.clock, store_clock=same_clock)
    for settings in ({}, {"maintenance_enabled": "false"}):
        outcome = runtime.maintain(NAME, {**EAGER, **GRACE, **settings}, LocalEngine(1), unsafe=True)
        assert outcome.staged is None
    assert path in table.files()


def test_storage_without_deletion_releases_the_record(table: StagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    monkeypatch.setattr(Storage, "can_delete", lambda *_: False)
    metrics = table.cleaned().metrics
    assert (metrics["staged.files_left_to_bucket"], metrics["staged.loads_settled"]) == (1, 1)
    assert path in table.files()
    assert table.states() == {}


def test_detection_proposes_a_table_whose_failed_load_can_be_cleaned(table: StagedTable) -> None:
    table.run(Operation.COMPACT)
    table.stage("L", table.plant("data/load.parquet"), state=LoadState.FAILED)
    runtime = Runtime(table.catalog, table.state, environment={}, clock=table.clock, store_clock=same_clock)
    quiet = {"snapshot_expiry_enabled": "false", "min_input_files": "100", **GRACE}
    quiet["orphan_sweep_interval_hours"] = "0"  # no reason of its own
    assert runtime.detect(quiet).proposals == ()
    table.clock.now_ms += GRACE_MS
    for settings in (quiet, {**quiet, "maintenance_enabled": "false"}):
        (proposal,) = runtime.detect(settings).proposals
        assert proposal.reasons == ("files of 1 failed load can be cleaned",)


def test_a_pass_that_cannot_be_recorded_is_still_told(table: StagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(type(table.state), "record_pass", fails)
    table.clock.now_ms += GRACE_MS
    outcome = table.sweep()
    assert outcome.operations[0].summary == "compacted 3 files into 1 (across 1 bins)"
    assert outcome.warnings == ("the pass could not be recorded: the disk is full",)
    assert json.loads(json.dumps(outcome.to_json(lambda *_: "")))["warnings"] == list(outcome.warnings)
