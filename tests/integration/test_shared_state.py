"""State that processes share, and a state that knows nothing of a maintained table."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.report.outcome import PassStatus
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from icekeeper.state.staging import LoadState, StagedLoad
from icekeeper.state.store import PassRecord, Pin, StateStore
from local_stack.moto_server import MotoServer
from support.command import CATALOG, Command
from support.lease_race import KEYS, take_leases
from support.state_stores import a_table, newest_look, state_address

# State that processes share, named by ICEKEEPER_STATE alone; and passes, which must not notice which store it is.

NAME = TableName(("ns",), "t")
SETTINGS = {
    "min_input_files": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_older_than_hours": "0",
    "min_manifests_to_rewrite": "2",
}


@pytest.fixture
def dynamodb_address(moto_dynamodb: MotoServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return state_address(moto_dynamodb, a_table(moto_dynamodb))


@pytest.fixture
def sqlite_address(tmp_path: Path) -> str:
    return str(tmp_path / "shared.db")


@pytest.mark.parametrize("store", ["sqlite", "dynamodb"])
def test_of_many_processes_one_gets_each_lease(store: str, request: pytest.FixtureRequest) -> None:
    address: str = request.getfixturevalue(f"{store}_address")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(take_leases, [address] * 2, [(f"{worker}-a", f"{worker}-b") for worker in range(2)]))
    won = [item for answer in answers for item in answer.items()]
    leases = open_state({"ICEKEEPER_STATE": address}).leases
    assert sorted(key for key, _ in won) == sorted(KEYS)
    assert all(leases.current(key, now_ms=1_999) == lease for key, lease in won)


def prepare(state: StateStore, runtime: Runtime, folder: Path) -> None:
    """A reader's pin on the newest snapshot, a load that failed, and an orphan."""
    loaded = runtime.catalog.load(NAME)
    identity = identity_of(runtime.catalog, loaded)
    snapshot = loaded.metadata.current_snapshot
    assert snapshot is not None
    state.add_pin(
        Pin(
            identity=identity,
            name="reader",
            snapshot_id=snapshot.snapshot_id,
            metadata_location=loaded.metadata_location,
            expires_ms=2**52,
        )
    )
    data = folder / "warehouse" / "ns" / "t" / "data"
    for name in ("failed.parquet", "orphan.parquet"):
        (data / name).write_bytes(b"x")
    load = StagedLoad(identity=identity, name="L", state=LoadState.FAILED, changed_ms=1)
    state.staging.stage(load, [(data / "failed.parquet").as_uri()])


def a_pass(folder: Path, environment: Mapping[str, str]) -> tuple[list[object], list[str]]:
    """What is in the journal and the rest of the state afterwards, without what chance and clocks decide."""
    runtime = Runtime.open(CATALOG, environment)
    state = runtime.state
    prepare(state, runtime, folder)
    outcome = runtime.maintain(NAME, SETTINGS, LocalEngine(1), unsafe=True)
    assert outcome.status is PassStatus.SUCCEEDED
    assert outcome.warnings == ()
    identity = identity_of(runtime.catalog, runtime.catalog.load(NAME))
    seen = newest_look(state, identity)
    assert seen is not None
    files = sorted(path.name for path in (folder / "warehouse").rglob("*.parquet"))
    assert "failed.parquet" not in files
    assert "orphan.parquet" not in files
    remembered = [
        *(told(record) for record in state.history(identity)),
        state.pins(identity, now_ms=0),
        state.staging.loads(identity),
        state.pending_deletions.lists(identity),
        seen.is_done,
    ]
    return remembered, files


def told(record: PassRecord) -> PassRecord:
    metrics = {key: value for key, value in record.metrics.items() if not key.endswith(("_ms", "bytes", "_per_second"))}
    return replace(record, run_id="", started_ms=0, finished_ms=0, metrics=metrics)


def test_a_pass_leaves_the_same_state_in_dynamodb_as_in_sqlite(command: Command, dynamodb_address: str) -> None:
    command.table(appends=6)
    (command.folder / "copy").mkdir()
    shutil.copytree(command.warehouse, command.folder / "copy" / "warehouse")
    shutil.copy(command.database, command.folder / "copy" / "catalog.db")
    by_sqlite, files = a_pass(command.folder, {"ICEKEEPER_STATE": str(command.state)})
    shutil.rmtree(command.warehouse)
    shutil.copytree(command.folder / "copy" / "warehouse", command.warehouse)
    shutil.copy(command.folder / "copy" / "catalog.db", command.database)
    by_dynamodb, again = a_pass(command.folder, {"ICEKEEPER_STATE": dynamodb_address})
    assert by_dynamodb == by_sqlite
    assert len(again) == len(files)
    record = by_dynamodb[0]
    assert isinstance(record, PassRecord)
    assert record.metrics["compact.files_merged"] == 6
    assert record.metrics["remove_orphans.orphans_removed"] == 2  # the failed load protects its file no longer


def test_a_laptop_leaves_a_table_alone_that_the_pipeline_maintains(command: Command) -> None:
    """They share the state; a dry run changes nothing and may look."""
    command.table()
    runtime = Runtime.open(CATALOG)
    key = identity_of(runtime.catalog, runtime.catalog.load(NAME)).lease_key
    lease = runtime.state.leases.acquire(key, "run-1", now_ms=runtime.clock(), ttl_ms=60_000)
    before = command.contents()
    answer = command("maintain", "ns.t", "--catalog", CATALOG, "--engine", "local")
    assert answer.code == 1
    assert "ns.t is leased by run-1 until " in answer.err
    assert command.contents() == before
    assert command("maintain", "ns.t", "--catalog", CATALOG, "--engine", "local", "--dry-run").code == 0
    assert runtime.state.leases.release(lease)
    assert command("maintain", "ns.t", "--catalog", CATALOG, "--engine", "local").code == 0


# A pass whose state knows nothing of a table that Icekeeper has maintained says so.

PASS = ("maintain", "ns.t", "--set", "min_input_files=2", "--json")


def test_a_state_that_does_not_know_the_last_run_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table()
    first = command(*PASS)
    assert "warnings" not in first.json
    run_id, (snapshot_id,) = first.json["run_id"], first.json["operations"][0]["snapshot_ids"]
    assert "warnings" not in command(*PASS).json, "its own state knows the run"
    monkeypatch.setenv("ICEKEEPER_STATE", str(command.folder / "other.db"))
    sentence = (
        f"run {run_id} committed snapshot {snapshot_id}, but the state of this pass has no record of the table: pins "
        "and staged files in another state are not protected; name that state with ICEKEEPER_STATE, unless it is lost"
    )
    for arguments in ((*PASS, "--dry-run"), PASS):
        told = command(*arguments)
        assert (told.code, told.json["warnings"]) == (0, [sentence])
    assert "warnings" not in command(*PASS).json, "the table is known there now"
