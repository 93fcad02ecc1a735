"""Where objects can be neither listed nor deleted, people are told what is known: from history and from failed jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.metadata.table_reader import TableReader, reachable_files
from icekeeper.model import TableName
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.store import LoadState, StagedLoad
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.aws_table_bucket import runtime_of_table_bucket

NAME = TableName(("ns",), "t")


@pytest.fixture
def runtime(moto_server: MotoServer, tmp_path: Path) -> Runtime:
    return runtime_of_table_bucket(moto_server, tmp_path, appends=3)


def run(runtime: Runtime, operation: str, **settings: str) -> OperationOutcome:
    (outcome,) = runtime.maintain(NAME, {"operations": operation, **settings}, LocalEngine(1)).operations
    return outcome


def reachable(runtime: Runtime) -> set[str]:
    loaded = runtime.catalog.load(NAME)
    reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
    return reachable_files(reader, loaded.metadata_location)


def test_what_expiry_left_to_the_bucket_is_known_from_the_history(runtime: Runtime) -> None:
    before = reachable(runtime)
    assert run(runtime, "remove_orphans").files_planned == ()
    run(runtime, "compact", min_input_files="2")
    run(runtime, "expire_snapshots", snapshot_retention_hours="0", max_snapshots_to_keep="1")
    outcome = run(runtime, "remove_orphans")
    assert (outcome.status, outcome.files_deleted) == (Status.SKIPPED, ())
    assert outcome.reason == "objects cannot be listed in this storage; it removes unreferenced files itself"
    gone = before - reachable(runtime)
    # Three appends: a data file, a manifest and a manifest list each.
    assert len(gone) == 9
    assert set(outcome.files_planned) == gone
    assert outcome.metrics["remove_orphans.orphans_known"] == 9


def test_files_of_failed_loads_are_known_from_their_record(runtime: Runtime) -> None:
    """Not what was never written, nor what a load that may yet be adopted has staged."""
    loaded = runtime.catalog.load(NAME)
    storage, location = Storage(loaded.io_properties), loaded.metadata.location
    failed, pending = f"{location}/data/failed.parquet", f"{location}/data/pending.parquet"
    live = next(path for path in reachable(runtime) if path.endswith(".parquet"))
    for path in (failed, pending):
        storage.write(path, b"x")
    identity = identity_of(runtime.catalog, loaded)
    for name, state, files in (
        ("a", LoadState.FAILED, [failed, f"{location}/data/never-written.parquet", live]),
        ("b", LoadState.PENDING, [pending]),
    ):
        runtime.state.staging.stage(StagedLoad(identity=identity, name=name, state=state, changed_ms=1), files)
    assert run(runtime, "remove_orphans").files_planned == (failed,)


def test_history_that_the_bucket_removed_is_left_out(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    run(runtime, "compact", min_input_files="2")
    run(runtime, "expire_snapshots", snapshot_retention_hours="0", max_snapshots_to_keep="1")
    everything = run(runtime, "remove_orphans").files_planned
    lists = [path for path in everything if "/snap-" in path]
    status = Storage.status
    monkeypatch.setattr(Storage, "status", lambda self, path: None if path in lists else status(self, path))
    assert run(runtime, "remove_orphans").files_planned == tuple(p for p in everything if p not in lists)
    assert Operation.REMOVE_ORPHANS is run(runtime, "remove_orphans").operation
