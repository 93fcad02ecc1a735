"""Staged loads: files are kept while a commit may name them, and deleted a grace period after the load failed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import declare_load, list_loads, stage_load
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, StagedOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.staging import LoadState, StagedLoad
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.command import ABOUT, Command, local_path, one_sentence
from support.maintained_table import EAGER, ID_AND_PART, NAME, MaintainedTable, our_catalog, same_clock
from support.moments import Moment, at

GRACE: dict[str, Any] = {"orphan_older_than_hours": "24"}
GRACE_MS = 24 * HOUR_MS
START_MS = system_clock()


class Watch:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class StagedTable(MaintainedTable):
    """A table whose passes and loads use the clock of the test."""

    def __init__(self, catalog: SqlCatalog, folder: Path) -> None:
        super().__init__(our_catalog(folder), folder, pyiceberg=catalog)
        self.create()
        self.clock = Watch()
        self.fill(3)

    @property
    def handle(self) -> TableHandle:
        return TableHandle(self.catalog, NAME, self.state, self.clock, store_clock=same_clock)

    def stage(self, name: str, *paths: str, state: LoadState = LoadState.PENDING) -> StagedLoad:
        load = stage_load(self.handle, name, [f"file://{path}" for path in paths], ())
        return load if state is LoadState.PENDING else declare_load(self.handle, name, state)

    def sweep(self, operations: str = "compact", *, dry_run: bool = False, **settings: Any) -> PassOutcome:
        """Run a pass with a grace period of a day."""
        chosen = {**GRACE, **settings}
        return self.maintain(operations, clock=self.clock, dry_run=dry_run, **chosen)

    def cleaned(self, **more: Any) -> StagedOutcome:
        staged = self.sweep(**more).staged
        assert staged is not None
        return staged

    def states(self) -> dict[str, LoadState]:
        return {load.name: load.state for load in list_loads(self.handle)}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> StagedTable:
    return StagedTable(local_catalog, tmp_path)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The listed prefixes."""
    seen: list[str] = []
    original = Storage.list_unread

    def counted(self: Storage, prefix: str) -> Any:
        seen.append(prefix)
        return original(self, prefix)

    monkeypatch.setattr(Storage, "list_unread", counted)
    return seen


def test_failed_loads_are_cleaned_after_the_grace_period_from_the_record(
    table: StagedTable, listings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [table.plant(f"data/load/{number}.parquet") for number in range(3)]
    unrecorded = table.plant("data/load/unrecorded.parquet")
    table.stage("L", *files, state=LoadState.FAILED)
    states = {"L": LoadState.FAILED}
    table.clock.now_ms += GRACE_MS - 1
    assert table.sweep().staged is None
    assert set(files) <= table.files()
    table.clock.now_ms += 1

    # While the catalog cannot be listed, another table could be anywhere.
    def fails(self: object) -> None:
        raise StorageError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(table.catalog), "list_tables", fails)
        assert "cannot be listed: no answer" in (table.cleaned().problem or "")
    assert set(files) <= table.files()

    stopped = {"ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "false"}
    runtime = Runtime(table.catalog, table.state, environment=stopped, clock=table.clock, store_clock=same_clock)
    for settings in ({}, {"maintenance_enabled": "false"}):
        outcome = runtime.maintain(NAME, {**EAGER, **GRACE, **settings}, LocalEngine(1), unsafe=True)
        assert outcome.staged is None
    assert set(files) <= table.files()

    table.table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    assert table.sweep().staged is None
    assert (set(files) <= table.files(), table.states()) == (True, states)
    table.table.transaction().remove_properties("gc.enabled").commit_transaction()

    listings.clear()
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
        "icekeeper.storage.storage.Storage._unlink",
        lambda storage, path, *there, links: "no" if "/bad." in path else Path(normalise(path)).unlink(),
    )
    outcome = table.sweep()
    assert outcome.staged is not None
    assert outcome.status.value == "succeeded"
    assert outcome.staged.metrics["staged.files_failed"] == 1
    assert table.states() == {"bad": LoadState.FAILED}
    monkeypatch.undo()
    assert [normalise(path) for path in table.cleaned().files_deleted] == [bad]


def test_each_record_cleans_only_its_own_files(table: StagedTable, listings: list[str]) -> None:
    """A dry run names the same files.  Besides the metadata only folders of failed loads are listed."""
    location = table.metadata.location
    files = [table.plant(f"data/load/{number}.parquet") for number in range(2)]
    table.stage("files", *files, normalise(table.data_files()[0].file_path), state=LoadState.FAILED)
    adopted = table.plant("data/adopted.parquet")
    table.stage("adopted", adopted, state=LoadState.ADOPTED)
    retried = table.plant("data/retried.parquet")
    table.stage("first", retried, state=LoadState.FAILED)
    table.stage("second", retried)
    old, young = table.plant("data/folder/a.parquet"), table.plant("data/folder/deep/b.parquet", days_old=0)
    inside = table.plant("data/part/a.parquet")
    nested = table.create_beside("ns.nested", f"{location}/sub/nested")
    theirs = table.plant("sub/nested/data/staged.parquet")
    table.stage("nested", theirs, state=LoadState.FAILED)
    kept = {
        *(adopted, retried, theirs),
        *(table.plant("data/folder-2/a.parquet"), table.plant("data/folder/a.lance")),
        table.plant("data/part/kept/b.parquet"),
        *(table.plant("data/orphan.parquet"), table.plant("metadata/left.avro")),  # folders of all writers
    }
    for name in ("data/folder", "data/part", "data", "metadata"):
        stage_load(table.handle, name.replace("/", "-"), (), [f"{location}/{name}"])
        declare_load(table.handle, name.replace("/", "-"), LoadState.FAILED)
    table.clock.now_ms += GRACE_MS - 60_000
    assert table.sweep().staged is None
    table.clock.now_ms += 60_000

    before, states = table.files(), table.states()
    protected = {"orphan_protected_prefixes": f"{location}/data/part/kept"}
    dry = table.cleaned(dry_run=True, **protected)
    assert dry.summary.startswith("would delete 4 staged file(s) of ")
    assert (dry.files_deleted, table.files(), table.states()) == ((), before, states)
    listings.clear()
    real = table.cleaned(**protected)
    assert {normalise(path) for path in real.files_deleted} == {*files, old, inside}
    assert dry.files_planned == real.files_planned == real.files_deleted
    folders = {f"{location}/{name}" for name in ("data/folder/", "data/part/", "metadata", "sub/nested/metadata")}
    assert set(listings) == folders
    assert real.metrics["staged.loads_adopted"] == 1
    assert table.states() == {"data-folder": LoadState.FAILED, "second": LoadState.PENDING}
    assert {*kept, young} <= table.files()

    table.clock.now_ms += GRACE_MS
    assert [normalise(path) for path in table.cleaned(**protected).files_deleted] == [young]
    assert table.states() == {"second": LoadState.PENDING}
    assert kept <= table.files()
    assert nested.refresh().location() == f"{location}/sub/nested"


def test_switches_do_not_stop_the_cleaning(table: StagedTable) -> None:
    """Files of failed loads are also deleted when maintenance is disabled."""
    for number, switch in enumerate(("maintenance_enabled", "orphan_sweep_enabled")):
        path = table.plant(f"data/{switch}.parquet")
        table.stage(f"L{number}", path, state=LoadState.FAILED)
        table.clock.now_ms += GRACE_MS
        settings: dict[str, Any] = {switch: "false"}
        outcome = table.sweep("remove_orphans", **settings)
        assert outcome.operations[0].status is Status.SKIPPED
        assert outcome.staged is not None
        assert [normalise(deleted) for deleted in outcome.staged.files_deleted] == [path]
        records = table.state.history(table.handle.memory(table.loaded).identity)
        assert [record.metrics["staged.files_deleted"] for record in records] == [1] * (number + 1)


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
    quiet["orphan_sweep_interval_hours"] = "0"  # so that a sweep is no reason
    assert runtime.detect(quiet).proposals == ()
    table.clock.now_ms += GRACE_MS
    for settings in (quiet, {**quiet, "maintenance_enabled": "false"}):
        (proposal,) = runtime.detect(settings).proposals
        assert proposal.reasons == ("files of 1 failed load can be cleaned",)


def test_a_pass_that_cannot_be_recorded_is_still_reported(table: StagedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(type(table.state), "record_pass", fails)
    table.clock.now_ms += GRACE_MS
    outcome = table.sweep()
    assert outcome.operations[0].summary == "compacted 3 files into 1 (across 1 bins)"
    assert outcome.warnings == ("cannot record the pass: the disk is full",)
    assert json.loads(json.dumps(outcome.to_json(lambda *_: "")))["warnings"] == list(outcome.warnings)


# A failed load's record does not permit a deletion: files that are needed elsewhere are kept.


def test_a_file_that_something_references_is_never_deleted(table: StagedTable) -> None:
    """A writer commits the file although its load was declared failed, also under another spelling of its path."""
    data = [normalise(file.file_path) for file in table.data_files()]
    gone = table.plant("data/gone.parquet")
    table.stage("L", data[0], data[1].replace("/data/", "//data/"), gone, state=LoadState.FAILED)
    metadata = table.reachable()
    table.stage("all", *(path for path in sorted(metadata) if path.endswith(".avro")), state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    ids = table.ids()
    staged = table.cleaned()
    assert [normalise(path) for path in staged.files_deleted] == [gone]
    assert staged.metrics["staged.files_referenced"] == 2 + sum(path.endswith(".avro") for path in metadata)
    assert table.states() == {}
    assert table.readers_agree() == ids
    assert table.verify().ok


def test_a_file_referenced_at_the_last_moment_is_kept(table: StagedTable) -> None:
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    table.stage("L", str(adopted), state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    # A plan ends with the search for newer heads; it has read the references before.
    with at(Moment.AFTER_LISTING, lambda: table.table.add_files([adopted.as_uri()])):
        staged = table.cleaned(operations="rewrite_position_deletes")
    assert staged.files_planned == (f"file://{adopted}",)
    assert staged.files_deleted == ()
    assert staged.metrics["staged.files_referenced"] == 1
    assert table.verify().ok


def test_a_table_created_in_the_place_of_another_is_not_cleaned_by_its_record(table: StagedTable) -> None:
    """The record has another UUID, whatever the path now contains."""
    location = table.metadata.location

    def replace() -> None:
        table.pyiceberg.drop_table("ns.t")
        table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=location)

    for moment in (Moment.OPERATIONS_DONE, Moment.MAY_DELETE_ASKED, Moment.AFTER_LISTING):
        path = table.plant("data/load.parquet")
        table.stage("L", path, state=LoadState.FAILED)
        table.clock.now_ms += GRACE_MS
        with at(moment, replace):
            problem = table.cleaned(operations="rewrite_position_deletes").problem
        assert "was replaced by another table" in (problem or ""), moment
        assert Path(path).exists()


def test_files_referenced_by_another_entry_of_the_table_are_kept(table: StagedTable) -> None:
    """The table is registered twice, and the other entry has advanced."""
    source = Path(normalise(table.data_files()[0].file_path))
    adopted, gone = table.plant("data/adopted.parquet", source.read_bytes()), table.plant("data/gone.parquet")
    twin = table.pyiceberg.register_table("ns.twin", table.loaded.metadata_location)
    twin.add_files([f"file://{adopted}"])
    table.stage("L", adopted, gone, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    assert [normalise(path) for path in table.cleaned(dry_run=True).files_planned] == [gone]
    assert [normalise(path) for path in table.cleaned().files_deleted] == [gone]
    assert adopted in table.files()


def test_files_referenced_by_a_newer_head_are_kept(table: StagedTable, tmp_path: Path) -> None:
    """The catalog's database is restored from a backup that is older than the commit of the load."""
    shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
    adopted = table.plant("data/adopted.parquet", Path(normalise(table.data_files()[0].file_path)).read_bytes())
    table.stage("L", adopted, state=LoadState.FAILED)
    table.table.add_files([f"file://{adopted}"])
    table.append(90)
    shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
    table.clock.now_ms += GRACE_MS
    assert "newer head" in str(table.cleaned().problem)
    assert adopted in table.files()


def test_files_staged_through_another_entry_are_not_orphans(table: StagedTable) -> None:
    """Each entry of the catalog has its own record."""
    before, between, orphan = (table.plant(f"data/{name}.parquet") for name in ("before", "between", "orphan"))
    table.pyiceberg.register_table("ns.twin", table.loaded.metadata_location)
    twin = replace(table.handle, table=TableName(NAME.namespace, "twin"))
    stage_load(twin, "its-before", [f"file://{before}"], ())
    table.stage("between", between)
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert set(map(normalise, outcome.files_deleted)) == {orphan}
    table.stage("before", before, state=LoadState.FAILED)
    declare_load(table.handle, "between", LoadState.FAILED)
    stage_load(twin, "its-between", [f"file://{between}"], ())
    table.clock.now_ms += GRACE_MS
    assert table.cleaned().files_deleted == ()
    assert {before, between} <= table.files()


# The commands for staged loads.


def test_loads_are_shown_as_json(command: Command, tmp_path: Path) -> None:
    location = command.table(appends=1).location()
    paths = [f"{location}/data/load/{number}.parquet" for number in range(4)]
    (tmp_path / "list.txt").write_text("\n".join(paths[1:]) + "\r\n\n")
    prefix = f"{location}/data/in"
    added = command(
        *("stage", "add", "ns.t", "--name", "L", "--file", paths[0], "--file", paths[1]),
        *("--file-list", str(tmp_path / "list.txt"), "--prefix", prefix, "--json"),
    )
    load = added.json["load"]
    assert added.code == 0
    assert added.json == {
        **ABOUT,
        "load": {
            "name": "L",
            "origin": "user",
            "state": "pending",
            "files": 4,
            "prefixes": [prefix],
            "changed_ms": load["changed_ms"],
            "changed": load["changed"],
        },
    }
    again = command("stage", "add", "ns.t", "--name", "L", "--file", paths[0], "--file", f"{location}/x", "--json")
    assert (again.json["load"]["files"], again.json["load"]["prefixes"]) == (5, [prefix])
    assert command("stage", "list", "ns.t", "--json").json == {**ABOUT, "loads": [again.json["load"]]}
    for state in ("adopted", "failed"):
        document = command("stage", state, "ns.t", "--name", "L", "--json").json
        assert document["load"]["state"] == state
        assert command("stage", state, "ns.t", "--name", "L", "--json").json == document
    line = " ".join(command("stage", "list", "ns.t").out.split())
    assert line == f"L failed 5 files, {prefix}, since {document['load']['changed']}"
    staged_again = command("stage", "add", "ns.t", "--name", "L", "--file", paths[0])
    assert one_sentence(staged_again.err) == "load 'L' is failed already; choose another name"
    answer = command("stage", "adopted", "ns.t", "--name", "L")
    assert (answer.code, one_sentence(answer.err)) == (
        2,
        "load 'L' failed, so its files may be deleted already; stage them under another name",
    )


def test_wrong_loads_fail_with_a_sentence_and_record_nothing(command: Command, tmp_path: Path) -> None:
    location = command.table(appends=1).location()
    command.table("ns.u", appends=0)
    metadata = command.pointers()[0][1]
    add = ("stage", "add", "ns.t", "--name", "L")
    for arguments, sentence in (
        (add, "a load has files or prefixes; none were given"),
        ((*add, "--file", "s3://other/f"), f"s3://other/f is not below {location}, so it cannot be a staged file"),
        ((*add, "--file", f"{location}/../u/data/f"), f"{location}/../u/data/f is not below {location}"),
        ((*add, "--file", location), f"{location} is not below {location}"),
        ((*add, "--file", metadata), f"{metadata} is table metadata, so it cannot be a staged file of this table"),
        ((*add, "--prefix", f"{location}/"), f"{location}/ is not below {location}; nothing was recorded"),
        ((*add, "--file-list", str(tmp_path / "none")), f"the list of files {tmp_path / 'none'} cannot be read"),
        (("stage", "add", "ns.t", "--name", "run:compact", "--file", f"{location}/f"), "load name 'run:compact' must"),
        (("stage", "adopted", "ns.t", "--name", "L"), "there is no load 'L' on ns.t; loads are: none"),
        (("stage", "failed", "ns.absent", "--name", "L"), "there is no table ns.absent in catalog C"),
        (("stage", "list", "ns.absent"), "there is no table ns.absent in catalog C"),
    ):
        answer = command(*arguments, "--json")
        assert answer.code == 2
        assert answer.json["error"]["message"].startswith(sentence)
        assert one_sentence(answer.err).startswith(sentence)
    assert command("stage", "list", "ns.t", "--json").json["loads"] == []


def test_the_document_of_the_pass_lists_the_deleted_files(command: Command) -> None:
    location = command.table(appends=1).location()
    path = local_path(location) / "data" / "f.parquet"
    path.write_bytes(b"?")
    command("stage", "add", "ns.t", "--name", "L", "--file", path.as_uri())
    command("stage", "failed", "ns.t", "--name", "L")
    maintain = ("maintain", "ns.t", "--engine", "local", "--unsafe", "--operations", "compact", "--json")
    assert "staged" not in command(*maintain).json
    answer = command(*maintain, "--set", "orphan_older_than_hours=0")
    assert answer.code == 0
    assert answer.json["staged"] == {
        "summary": "deleted 1 staged file(s) of 1 failed load(s)",
        "problem": None,
        "metrics": {key: value for key, value in answer.json["metrics"].items() if key.startswith("staged.")},
        "files": {"planned": [path.as_uri()], "deleted": [path.as_uri()]},
    }
    assert answer.json["metrics"]["staged.files_deleted"] == 1
    assert [part["operation"] for part in answer.json["operations"]] == ["compact"]
    assert "staged files: deleted 1 staged file(s) of 1 failed load(s)" in answer.err
    assert not path.exists()
