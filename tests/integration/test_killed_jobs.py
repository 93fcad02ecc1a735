"""What a job leaves behind that was killed or could not settle its record, and how it is cleaned (rule 104)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.deletion.shared_references import HeldFiles
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.store import LoadState, PinKind
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable, new_table
from support.moments import Moment, at
from support.running_jobs import LATER_MS, Interrupting, Killed, deleted, handle_of, kill, later, loads, pins, recorded


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(4)
    return made


@pytest.mark.parametrize("strategy", ["binpack", "sort"])
def test_what_a_killed_rewrite_left_is_cleaned_from_its_record(table: MaintainedTable, strategy: str) -> None:
    """Killed when every file is written: protected as long as the lease, then cleaned after the grace period."""
    ids = table.ids()
    settings = {"strategy": strategy, "sort_order": "id", "run_id": "dead"}
    with pytest.raises(Killed):
        table.run(Operation.COMPACT, engine=Interrupting(after=kill), **settings)
    left = table.unreferenced()
    assert len(left) == 1
    assert table.run(Operation.REMOVE_ORPHANS).files_deleted == ()
    # Metadata of another table's is what a listing would refuse on; the record needs none.
    assert later(table, by_ms=LATER_MS - HOUR_MS).staged is None
    outcome = later(table)
    assert set(deleted(outcome)) == left
    assert loads(table) == ()
    assert table.unreferenced() == set()
    assert table.readers_agree() == ids


def test_a_rewrite_killed_after_its_commit_loses_nothing(table: MaintainedTable) -> None:
    """Its record still says pending, and names files that are the table by now."""
    ids = table.ids()
    with pytest.raises(Killed), at(Moment.AFTER_COMMIT, kill):
        table.run(Operation.COMPACT)
    assert [load.state for load in loads(table)] == [LoadState.PENDING]
    outcome = later(table, "compact")
    assert deleted(outcome) == []
    assert outcome.metrics["staged.files_referenced"] == 1
    assert loads(table) == ()
    assert table.readers_agree() == ids
    assert table.verify().ok


def test_files_of_every_attempt_are_protected_and_later_cleaned_from_the_record(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark had begun the task several times when the driver died: the record knows them all by their stem."""
    ids = table.ids()
    with pytest.raises(Killed):
        table.run(Operation.COMPACT, engine=Interrupting(after=kill))
    (first,) = table.unreferenced()
    data, stem = Path(first).read_bytes(), Path(first).name.removesuffix("-a0.parquet")
    others = {table.plant(f"data/{stem}-a{attempt}.parquet", data) for attempt in (1, 2, 3)}
    beyond = table.plant(f"data/{stem}-a4.parquet", data)
    strangers = {table.plant(f"data/{stem}{name}.parquet", data) for name in ("", "-1-a0", "-a")}
    held = HeldFiles(handle_of(table).memory(table.loaded), table.storage.read)
    held.look(table.metadata)
    assert [path for path in (first, *others, beyond) if not held.hold(path)] == []
    assert set(map(normalise, table.run(Operation.REMOVE_ORPHANS).files_deleted)) == strangers
    listed: list[str] = []
    inner = Storage.list

    def watched(self: Storage, folder: str) -> Iterator[ListedObject]:
        listed.append(folder)
        return inner(self, folder)

    monkeypatch.setattr(Storage, "list", watched)
    assert set(deleted(later(table))) == {first, *others}
    assert listed == [table.metadata.metadata_directory], "for newer heads of the table"
    assert table.unreferenced() == {beyond}
    assert (loads(table), table.readers_agree()) == ((), ids)


def test_a_process_that_is_killed_leaves_a_record_that_is_cleaned(table: MaintainedTable, tmp_path: Path) -> None:
    """Killed for good, in the middle of its work: nothing of it runs any more."""
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from icekeeper.catalogs.load import open_catalog
        from icekeeper.engines.local_engine import LocalEngine
        from icekeeper.model import TableName
        from icekeeper.runtime import Runtime
        from icekeeper.state.sqlite.store import SqliteStateStore

        class Dying(LocalEngine):
            def map(self, function, tasks, on_done):
                super().map(function, tasks, on_done)
                os.kill(os.getpid(), signal.SIGKILL)

        folder = Path(sys.argv[1])
        properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": sys.argv[2]}
        runtime = Runtime(open_catalog("local", properties), SqliteStateStore(folder / "state.db"), environment={})
        runtime.maintain(TableName(("ns",), "t"), {"min_input_files": "2", "operations": "compact"}, Dying(1))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), table.catalog.warehouse], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    left = table.unreferenced()
    assert len(left) == 1
    assert [(pin.kind, pin.name.endswith(":compact")) for pin in pins(table)] == [(PinKind.JOB, True)]
    assert set(deleted(later(table))) == left
    assert (loads(table), table.unreferenced()) == ((), set())


def test_lanes_of_an_exchange_are_recorded_before_they_write(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group too large for one worker is written by many; when the engine dies, what they wrote is in the record."""
    monkeypatch.setattr("icekeeper.operations.compaction.run_groups.fits_one_worker", lambda task: False)

    class Dying(LocalEngine):
        def exchange(self, *args: Any) -> Any:
            super().exchange(*args)
            raise Killed

    with pytest.raises(Killed):
        table.run(Operation.COMPACT, engine=Dying(1), strategy="sort", sort_order="id")
    left = table.unreferenced()
    assert len(left) == 1
    assert left < set(recorded(table))
    assert set(deleted(later(table))) == left
    assert table.unreferenced() == set()


@pytest.mark.parametrize("operation", [Operation.REWRITE_MANIFESTS, Operation.COMPUTE_STATISTICS])
def test_what_other_rewrites_left_is_cleaned_from_their_records(table: MaintainedTable, operation: Operation) -> None:
    """Of manifests those that were rewritten; what is written for one attempt to commit is left to the orphan pass."""
    ids = table.ids()
    with pytest.raises(Killed), at(Moment.BEFORE_COMMIT, kill):
        table.run(operation, run_id="run-1")
    (load,) = loads(table)
    assert re.fullmatch(f"run-1:[0-9a-f]{{8}}:{operation.value}", load.name)
    left = table.unreferenced() & set(recorded(table))
    assert left
    assert set(deleted(later(table))) == left
    table.run(Operation.REMOVE_ORPHANS)
    assert table.unreferenced() == set()
    assert table.run(operation).status is Status.SUCCEEDED
    assert (pins(table), loads(table), table.readers_agree()) == ((), (), ids)


def test_a_dead_job_is_declared_failed_before_its_files_go(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should it wake up just then, it must find out before it commits."""
    with pytest.raises(Killed):
        table.run(Operation.COMPACT, engine=Interrupting(after=kill))
    seen: list[LoadState] = []

    def unlink(path: str) -> str:
        seen.extend(load.state for load in loads(table))
        return "busy"

    monkeypatch.setattr("icekeeper.storage.storage.unlink", unlink)
    later(table)
    assert set(seen) == {LoadState.FAILED}
