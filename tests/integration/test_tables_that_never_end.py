"""Tables whose reading or maintenance never ends do not stop other tables."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import identity_of
from icekeeper.cycle import pass_process
from icekeeper.cycle.pass_process import PassProcesses
from icekeeper.deletion import other_tables as limited_looks
from icekeeper.machine.clock import in_limited_time, system_clock
from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from icekeeper.state.claims import CutWork, waiting_cuts
from icekeeper.state.open import open_state
from icekeeper.storage.storage import Storage
from support.command import CATALOG, EVERYTHING_IS_OLD, Answer, Command, arguments_of
from support.readers import duckdb_rows

SOON = {"min_input_files": "2", "max_snapshots_to_keep": "100", "detection_timeout_s": "3", "job_timeout_s": "5"}
POISON = "ns.poison"


@pytest.fixture(autouse=True)
def in_processes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_process, "PassProcesses", PassProcesses)


HOSTILE = """
import ctypes, os, sys
MUTEX = ctypes.create_string_buffer(64)
if "run-worker" in sys.orig_argv:
    import icekeeper.maintenance.run_pass as table_pass
    run_pass = table_pass.run_pass
    def hostile(context, *more):
        if str(context.table) == "ns.poison":
            {what}
        return run_pass(context, *more)
    table_pass.run_pass = hostile
"""
"""Python runs this as it starts: the pass over the poisoned table executes ``what``."""


def in_its_process(what: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sitecustomize.py").write_text(HOSTILE.format(what=what))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def maintained(answer: Answer) -> dict[str, str]:
    """The status of each table by its name."""
    lines = [line.split() for line in answer.out.splitlines()]
    return {words[2]: words[3].rstrip(":") for words in lines if words[1] == CATALOG}


def cut_tables(work: CutWork) -> dict[str, int]:
    cuts = open_state(os.environ).cut_offs.of_catalog(Runtime.open(CATALOG).catalog.id)
    return {name: cut.times for name, cut in waiting_cuts(cuts, work, system_clock()).items()}


@pytest.mark.slow
def test_a_table_whose_pass_never_ends_stops_no_other_table(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first run cuts it off, and the next run skips it; a pass that ends lifts the cut-off.

    C code never returns and keeps Python's lock, so that no signal and no thread of Python interrupts it, as with a
    regular expression that backtracks for ever.
    """
    names = [f"ns.t{number}" for number in range(3)]
    for name in names:
        command.table(name, appends=2)
    command.table(POISON, appends=9)  # the neediest table is first
    in_its_process("[ctypes.PyDLL(None).pthread_mutex_lock(MUTEX) for _ in range(2)]", tmp_path, monkeypatch)
    rows = {name: duckdb_rows(command.catalog.load_table(name).metadata_location) for name in names}
    first = command("run", "--once", "--engine", "local", *arguments_of(SOON))
    assert maintained(first) == {POISON: "failed", **dict.fromkeys(names, "succeeded")}
    assert first.code == 1
    (line,) = [line for line in first.out.splitlines() if POISON in line]
    assert ": cut off: its pass did not end within 1.25 times job_timeout_s 5; it is tried again after " in line
    assert {name: duckdb_rows(command.catalog.load_table(name).metadata_location) for name in names} == rows
    assert cut_tables(CutWork.PASS) == {POISON: 1}
    runtime = Runtime.open(CATALOG)
    identity = identity_of(runtime.catalog, runtime.catalog.load(TableName.parse(POISON)))
    assert runtime.state.leases.current(identity.lease_key, now_ms=system_clock()) is None, "its process is dead"
    begun_s = time.monotonic()
    second = command("run", "--once", "--engine", "local", *arguments_of(SOON))
    assert (second.code, maintained(second)) == (0, {})
    assert time.monotonic() - begun_s < 30
    health = command("health", POISON, "--json")
    assert [item["message"] for item in health.json["warnings"] if item["kind"] == "cut_off"] == [
        "the table is not maintained: " + line.partition(": cut off: ")[2]
    ]
    assert command("maintain", POISON, "--engine", "local", "--set", "min_input_files=2").code == 0
    assert cut_tables(CutWork.PASS) == {}


@pytest.mark.slow
def test_a_table_that_kills_its_process_stops_no_other_table(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the system does if memory is short, and as a fault in C code does."""
    in_its_process("os.abort()", tmp_path, monkeypatch)
    command.table(POISON, appends=9)
    command.table("ns.t", appends=2)
    one_at_a_time = ("--concurrency", "1")
    answer = command("run", "--once", "--engine", "local", *one_at_a_time, *arguments_of(SOON))
    assert (answer.code, maintained(answer)) == (1, {POISON: "failed", "ns.t": "succeeded"})
    assert "cut off: the process of its pass died; it is tried again after " in answer.out
    assert cut_tables(CutWork.PASS) == {POISON: 1}


class TestANeighbour:
    """A pass over a table reads all other tables before it deletes."""

    @pytest.fixture(autouse=True)
    def trickles(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Table], None]]:
        """Lets reads of a table's manifest list block until the test has ended."""
        slow, ended, read = set[str](), threading.Event(), Storage.read

        def reading(storage: Storage, path: str) -> bytes:
            if path in slow:
                ended.wait(60)
            return read(storage, path)

        def begin(table: Table) -> None:
            snapshot = table.refresh().current_snapshot()
            assert snapshot is not None
            slow.add(snapshot.manifest_list)

        monkeypatch.setattr(Storage, "read", reading)
        yield begin
        ended.set()

    @pytest.fixture(autouse=True)
    def limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def in_short_time(work: Callable[[], Any], limit_s: float, name: str) -> Any:
            assert limit_s == 300, "detection_timeout_s"
            return in_limited_time(work, 0.3, name)

        monkeypatch.setattr(limited_looks, "in_limited_time", in_short_time)

    @staticmethod
    def sweep(command: Command) -> dict[str, Any]:
        orphan = command.warehouse / "ns/t/data/orphan.parquet"
        orphan.parent.mkdir(exist_ok=True)
        orphan.write_bytes(b"1")
        settings = ("--set", "orphan_max_delete_ratio=1", "--set", "min_input_files=2")
        answer = command("maintain", "ns.t", "--engine", "local", *EVERYTHING_IS_OLD, *settings, "--json")
        found = {item["operation"]: item for item in answer.json["operations"]}
        return {"exists": orphan.exists(), **found}

    def test_without_a_claim_blocks_only_deletions(self, command: Command, trickles: Callable[[Table], None]) -> None:
        """It is unknown whether the neighbour needs the files; compaction does not read it."""
        command.table(appends=3)
        trickles(command.table(POISON, appends=3))
        found = self.sweep(command)
        assert found["compact"]["status"] == "succeeded"
        assert (found["remove_orphans"]["status"], found["exists"]) == ("refused", True)
        assert "reading it did not end within detection_timeout_s 300" in found["remove_orphans"]["reason"]
        assert cut_tables(CutWork.LOOK) == {POISON: 1}

    def test_with_a_claim_blocks_nothing(self, command: Command, trickles: Callable[[Table], None]) -> None:
        """The files of its claim are kept; it is read once more, and then not again for a while."""
        command.table(appends=3)
        poison = command.table(POISON, appends=1)
        assert self.sweep(command)["exists"] is False
        poison.append(poison.scan().to_arrow())
        trickles(poison)
        for _ in range(2):
            assert self.sweep(command)["exists"] is False
            assert cut_tables(CutWork.LOOK) == {POISON: 1}
