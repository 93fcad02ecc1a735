"""``icekeeper run`` detects tables that need maintenance and maintains them until it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from html import unescape
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.cli.console import OutputLost
from icekeeper.cycle import pass_process
from icekeeper.cycle.pass_process import PassEnd, PassOrder
from icekeeper.cycle.service import Service
from icekeeper.detection.proposal import Proposal
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.maintenance import run_pass
from icekeeper.model import TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.report.outcome import PassOutcome
from icekeeper.report.page import security_policy
from icekeeper.runtime import Runtime
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import slot_keys, take_slot
from icekeeper.state.open import open_state
from icekeeper.state.requests import MaintenanceRequest
from support.command import CATALOG, Command, in_this_process, local_path
from support.state_stores import newest_look

Task = TypeVar("Task")
Result = TypeVar("Result")

NEEDY = {"min_input_files": "2", "max_snapshots_to_keep": "100"}
STARTED_S = 60


class Blocking(LocalEngine):
    """Runs in this process; every map waits until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun, self.go = threading.Semaphore(0), threading.Event()

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        self.begun.release()
        assert self.go.wait(STARTED_S)
        return super().map(function, tasks, on_done)


def without_time(lines: Sequence[str]) -> list[str]:
    """The sorted lines without time and duration."""
    return sorted(line.partition(" ")[2].partition(" in ")[0] for line in lines)


def service(lines: list[str], engine: LocalEngine | None = None, **schedule: str) -> Service:
    return Service(
        open_state(os.environ),
        in_this_process(engine or LocalEngine(1)),
        lines.append,
        catalogs=[CATALOG],
        environment=os.environ,
        overrides=NEEDY,
        schedule=schedule,
    )


def identity(name: str = "t") -> TableIdentity:
    catalog = Runtime.open(CATALOG).catalog
    return identity_of(catalog, catalog.load(TableName(("ns",), name)))


def eventually(holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + STARTED_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def test_tables_are_verified_once_an_interval_and_only_on_request(command: Command) -> None:
    for name in ("ns.a", "ns.b"):
        command.table(name, appends=1)
    (file,) = command.catalog.load_table("ns.b").scan().plan_files()
    lost = local_path(file.file.file_path)
    lost.unlink()
    run = ("run", "--once", "--engine", "local")
    assert len(command(*run).out.splitlines()) == 1
    answer = command(*run, "--verify-interval", "7d")
    checked = "(1 snapshot, 1 manifest, 1 file)"
    assert answer.code == 1
    assert without_time(answer.out.splitlines()[1:]) == ["C ns.a succeeded", "C ns.b failed"]
    a, b = sorted(line.partition(" s: ")[2] for line in answer.out.splitlines()[1:])
    assert a == f"verify: damaged {checked}: 1 problem found, such as missing_file {file.file.file_path}"
    assert b == f"verify: ok {checked}"
    assert [entry["state"] for entry in command("list", "--json").json["tables"]] == ["damaged", "well"]
    again = command(*run, "--verify-interval", "7d")
    assert (again.code, len(again.out.splitlines())) == (0, 1)


def test_a_verification_does_not_delay_the_end_of_the_process() -> None:
    """It changes nothing, so its process is killed; a pass ends with its current operation."""
    process, stop = object.__new__(pass_process._PassProcess), threading.Event()
    process._orders, _theirs = Pipe()
    stop.set()
    order = PassOrder(
        proposal=Proposal("ns.t", (), 0.0),
        catalog=CATALOG,
        policies=TablePolicies({}),
        overrides={},
        detected_ms=0,
        run="",
        timeout_s=60,
        retries=0,
        only_verifies=True,
    )
    end = process._end(order, 60.0, stop)
    assert end == PassEnd("skipped", "verify: the process is about to end", is_cut=True)
    assert process._end(replace(order, only_verifies=False), 0.1, stop) is None


def test_one_cycle_maintains_the_tables_that_need_it_and_prints_a_line_for_each(command: Command) -> None:
    for name in ("ns.a", "ns.b"):
        command.table(name)
    command.table("ns.quiet", appends=1)
    first = command("run", "--once", "--engine", "local", *(f"--set={key}={value}" for key, value in NEEDY.items()))
    assert (first.code, first.err) == (0, "")
    summary, *tables = first.out.splitlines()
    assert summary.endswith(" 3 tables scanned, 2 need maintenance")
    assert [line.split()[1:4] for line in sorted(tables, key=lambda line: line.split()[2])] == [
        ["C", "ns.a", "succeeded"],
        ["C", "ns.b", "succeeded"],
    ]
    assert all(": compact: compacted 6 files into 1" in line for line in tables)
    assert [record.status for record in open_state(os.environ).history(identity("a"))] == ["succeeded"]
    again = command("run", "--once", "--engine", "local", *(f"--set={key}={value}" for key, value in NEEDY.items()))
    assert (again.code, len(again.out.splitlines())) == (0, 1)
    assert again.out.rstrip().endswith("3 tables scanned, 0 need maintenance")


def test_an_unreadable_table_stops_no_other_and_sets_the_exit_code(command: Command) -> None:
    command.table("ns.a")
    command.register("file:///nowhere/metadata.json", "ns.broken")
    answer = command("run", "--once", "--engine", "local", "--set", "min_input_files=2")
    assert answer.code == 1
    assert answer.err == "error: some tables could not be read or maintained; see the lines above\n"
    assert any(line.split()[1:4] == ["C", "ns.a", "succeeded"] for line in answer.out.splitlines())
    assert any(line.split()[1:4] == ["C", "ns.broken", "failed:"] for line in answer.out.splitlines())


def test_a_wrong_call_fails_before_the_first_cycle(command: Command) -> None:
    for given, expected in (
        (["--catalog", "nowhere"], "there is no catalog 'nowhere'"),
        (["--interval", "1"], "--interval takes a time like"),
        (["--once", "--interval", "1h"], "--once and --interval exclude each other"),
        (["--set", "detection_interval_s=often"], "detection_interval_s"),
    ):
        answer = command("run", "--engine", "local", *given)
        assert (answer.code, answer.out, expected in answer.err) == (2, "", True), given


def test_a_long_pass_stops_neither_detection_nor_other_tables(command: Command, pool: ThreadPoolExecutor) -> None:
    """Detection leaves out only the table of the long pass."""
    command.table("ns.long")
    lines: list[str] = []
    engine = Blocking()
    running = service(lines, engine, detection_interval_s="1")
    ended = pool.submit(running.run)
    try:
        assert engine.begun.acquire(timeout=STARTED_S)
        command.table("ns.new")
        assert engine.begun.acquire(timeout=STARTED_S), "the second worker takes what a later detection found"
        eventually(lambda: any("2 tables scanned, 0 need maintenance" in line for line in lines))
    finally:
        engine.go.set()
        running.stop()
    assert ended.result(STARTED_S) is True
    maintained = [line.split()[2] for line in lines if line.split()[1] == CATALOG]
    assert sorted(maintained) == ["ns.long", "ns.new"]


def test_processes_share_the_limit_of_concurrent_jobs(command: Command, pool: ThreadPoolExecutor) -> None:
    """Two processes of two workers share three slots; the fourth table waits for a slot."""
    for name in ("a", "b", "c", "d"):
        command.table(f"ns.{name}", appends=3)
    lines: list[str] = []
    engines = [Blocking(), Blocking()]
    state = open_state(os.environ)
    running = [service(lines, engine, max_concurrent_jobs="3") for engine in engines]
    ended = [pool.submit(item.run, once=True) for item in running]

    def holders() -> set[str]:
        found = (state.leases.current(key, now_ms=system_clock()) for key in slot_keys(3))
        return {lease.holder for lease in found if lease is not None}

    try:
        # A worker that finds its table leased by the other process gives its slot back at once.
        eventually(lambda: len(holders()) == 3)
    finally:
        for engine in engines:
            engine.go.set()
    assert [item.result(STARTED_S) for item in ended] == [True, True]
    worked = [line.split()[2] for line in lines if " succeeded in " in line]
    assert sorted(worked) == ["ns.a", "ns.b", "ns.c", "ns.d"], "each by one of them, once"
    assert not any(state.leases.current(key, now_ms=system_clock()) for key in slot_keys(3))


def test_a_stop_ends_the_pass_after_its_current_operation(command: Command, pool: ThreadPoolExecutor) -> None:
    """The table does not count as done: the next detection proposes it again."""
    command.table("ns.t", appends=3)
    command.table("ns.u", appends=3)
    lines: list[str] = []
    engine = Blocking()
    running = service(lines, engine, max_concurrent_jobs_per_worker="1")
    ended = pool.submit(running.run)
    assert engine.begun.acquire(timeout=STARTED_S)
    running.stop()
    engine.go.set()
    assert ended.result(STARTED_S) is True
    (line,) = [line for line in lines if " succeeded in " in line]
    assert "compact: compacted 3 files into 1" in line
    assert "bins" not in line
    assert "; 4 operations left: the process is about to end" in line
    name = line.split()[2].removeprefix("ns.")
    state = open_state(os.environ)
    seen = newest_look(state, identity(name))
    assert seen is not None
    assert not seen.is_done
    assert state.leases.current(identity(name).lease_key, now_ms=system_clock()) is None
    assert state.seen(identity("u" if name == "t" else "t")) is None, "no further table was begun"


def request(settings: Mapping[str, str]) -> MaintenanceRequest:
    filed = MaintenanceRequest(identity=identity(), requested_ms=1, settings=settings)
    open_state(os.environ).requests.file(filed)
    return filed


def test_a_request_that_cannot_be_served_is_reported_once(command: Command) -> None:
    command.table(appends=1)
    request({"operations": "compact", "branch": "gone"})
    lines: list[str] = []
    assert not service(lines).run(once=True)
    assert any("branch" in line and " failed in " in line for line in lines)
    assert open_state(os.environ).requests.pending() == ()


def test_a_request_for_more_than_the_policy_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request must not use the operator's settings (rule: requests-never-exceed-policy)."""
    command.table(appends=3)
    greed = {"operations": "expire_snapshots", "snapshot_retention_hours": "0", "max_snapshots_to_keep": "1"}
    catalog = Runtime.open(CATALOG).catalog

    def snapshots() -> int:
        return len(catalog.load(TableName(("ns",), "t")).metadata.snapshots)

    before = snapshots()
    request(greed)
    lines: list[str] = []
    assert service(lines).run(once=True)
    (shown,) = [item for item in open_state(os.environ).history(identity()) if item.status == "refused"]
    assert shown.summary.startswith(
        "a request for ns.t cannot set snapshot_retention_hours to 0, where the policy has "
    )
    assert "cannot set max_snapshots_to_keep to 1, where the policy has 100" in shown.summary  # by --set of the run
    assert shown.summary.endswith("(ICEKEEPER_REQUESTS_MAY) to snapshot_retention_hours,max_snapshots_to_keep")
    assert [line for line in lines if line.endswith(f"Z {shown.summary}")] == lines[:1]
    assert open_state(os.environ).requests.pending() == ()
    kept = snapshots()
    assert kept >= before
    monkeypatch.setenv("ICEKEEPER_REQUESTS_MAY", "snapshot_retention_hours,max_snapshots_to_keep")
    request(greed)
    assert service([]).run(once=True)
    assert snapshots() == 1


def test_a_failed_pass_is_retried_once(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table(appends=3)
    monkeypatch.setattr(run_pass, "_RETRY_PAUSE_S", 0)
    attempts: list[int] = []
    whole_pass = run_pass.run_pass

    def fails_first(*args: Any, **more: Any) -> PassOutcome:
        attempts.append(1)
        if len(attempts) == 1:
            raise StorageError("the store is busy")
        return whole_pass(*args, **more)

    monkeypatch.setattr(run_pass, "run_pass", fails_first)
    lines: list[str] = []
    assert service(lines).run(once=True)
    assert len(attempts) == 2


def test_a_table_that_another_run_maintained_since_detection_is_skipped(
    command: Command, pool: ThreadPoolExecutor
) -> None:
    """The table waited for a slot; once it has the slot, its state is read again."""
    command.table(appends=3)
    lines: list[str] = []
    state = open_state(os.environ)
    slot = take_slot(state.leases, "another run", 1, now_ms=system_clock(), ttl_ms=HOUR_MS)
    ended = pool.submit(service(lines, max_concurrent_jobs="1").run, once=True)
    eventually(lambda: lines)
    Runtime.open(CATALOG).maintain(TableName(("ns",), "t"), NEEDY, LocalEngine(1))
    assert state.leases.release(slot)
    assert ended.result(STARTED_S) is True
    assert lines[1].endswith(": another run has maintained ns.t since it was detected")


def test_a_terminated_process_exits_with_zero(command: Command) -> None:
    """It does not import modules of the current folder (rule: no-imports-from-current-folder)."""
    command.table()
    (command.folder / "json.py").write_text("raise SystemExit('somebody else has written this')")
    script = [str(Path(sys.executable).parent / "icekeeper"), "run", "--catalog", CATALOG, "--engine", "local"]
    with subprocess.Popen(
        [*script, "--interval", "1h", "--http", "0", "--http-page"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=command.folder,
    ) as process:
        try:
            assert process.stdout is not None
            *_, health = process.stdout.readline().split()
            assert process.stdout.readline().rstrip().endswith("1 table scanned, 1 needs maintenance")
            assert process.stdout.readline().split()[1:4] == ["C", "ns.t", "succeeded"]
            assert urlopen(health, timeout=10).read() == b"ok\n"
            metrics = urlopen(health.replace("healthz", "metrics"), timeout=10).read().decode()
            assert 'icekeeper_files_merged_total{catalog="C"} 6' in metrics.splitlines()
            eventually(lambda: has_page(health))
            page = urlopen(health.replace("healthz", ""), timeout=10)
            assert page.headers["Content-Security-Policy"] == f"{security_policy()}; frame-ancestors 'none'"
            text = page.read().decode()
            assert f'http-equiv="Content-Security-Policy" content="{security_policy()}"' in unescape(text)
            assert '"name":"ns.t"' in text
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=STARTED_S) == ("", "")
            assert process.returncode == 0
        finally:
            process.kill()


def has_page(health: str) -> bool:
    with suppress(HTTPError):
        return bool(urlopen(health.replace("healthz", ""), timeout=10).status == 200)
    return False


@pytest.mark.parametrize("once", [True, False])
def test_a_service_ends_when_its_output_is_lost(command: Command, *, once: bool) -> None:
    """It finishes the running pass."""
    command.table(appends=3)
    shown: list[str] = []

    def print_line(line: str) -> None:
        shown.append(line)
        raise OutputLost("No space left on device")

    running = Service(
        open_state(os.environ),
        in_this_process(LocalEngine(1)),
        print_line,
        catalogs=[CATALOG],
        environment=os.environ,
        schedule={"detection_interval_s": "1"},
    )
    with pytest.raises(OutputLost, match="No space left on device"):
        running.run(once=once)
    assert len(shown) == 1
