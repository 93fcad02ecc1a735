"""A pass that is killed, or whose disk or store fails, loses no row; a later pass cleans up."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.operations.compaction.work import exchange
from icekeeper.operations.compaction.work.exchange import SharedDisk
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.state.leases import has_died
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.local_files import scratch_folder
from icekeeper.storage.storage import Storage
from support.clustered_tables import BY_ID, fill, limit_memory
from support.command import Command
from support.failed_passes import FailedPasses
from support.killed_processes import Begin, KilledRuns, dies_at, in_a_wave, in_functions
from support.maintained_table import maintained_table, new_table
from support.proxies import Fault, WireRequest
from support.readers import canonical, pyiceberg_rows

# A store that fails during a pass costs no row, and the next pass cleans up (rule: failures-cost-no-row).

ADVICE = "failed with ExpiredToken: The provided token has expired; sign in again, or name a profile or role"


@pytest.fixture(scope="module")
def passes(seaweedfs: SeaweedFSServer, tmp_path_factory: pytest.TempPathFactory) -> FailedPasses:
    return FailedPasses(seaweedfs, tmp_path_factory.mktemp("passes"))


@pytest.mark.parametrize(
    ("fault", "kind", "ending"),
    [
        (Fault.EXPIRED, "GET", "-a0.parquet"),  # the proof of the written rows
        (Fault.EXPIRED, "PUT", ".parquet"),
        (Fault.EXPIRED, "LIST", ""),
        (Fault.EXPIRED, "DELETE_MANY", ""),
        (Fault.LOST, "PUT", ".metadata.json"),
        (Fault.LATE_503, "DELETE_MANY", ""),
    ],
)
def test_a_store_that_fails_costs_no_row(passes: FailedPasses, fault: Fault, kind: str, ending: str) -> None:
    """The first request of a kind fails; ``make nightly`` lets each request of a pass fail."""

    def begins(_: int, request: WireRequest) -> bool:
        return request.kind == kind and request.path.partition("?")[0].endswith(ending)

    done = passes.run(fault, begins)
    assert done.hit is not None
    assert not any("rows were not kept" in message for message in done.messages)
    if fault is Fault.EXPIRED:
        assert done.messages
        assert [message for message in done.messages if ADVICE not in message] == []
    else:
        assert done.messages == ()


# Killed commands lose no row, and the same command succeeds afterwards (rule: one-lease-holder).

LONGEST_LEASE_MS = 180_000
EVERY_STEP = range(1, 100)
KILLED: dict[str, tuple[tuple[str, ...], Iterable[int]]] = {
    "run": (
        ("run", "--once", "--engine", "local", "--set", "min_input_files=2", "--set", "max_snapshots_to_keep=1"),
        (10, 40),
    ),
    "pin": (("pin", "add", "ns.t", "--name", "p", "--snapshot", "current", "--ttl", "2h"), EVERY_STEP),
    "stage": (("stage", "add", "ns.t", "--name", "L", "--prefix", "{}/data/in", "--file", "{}/data/f"), EVERY_STEP),
    "policy": (("policy", "set", "ns.t", "min_input_files=3"), EVERY_STEP),
}


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_command_succeeds_when_called_again(
    command: Command, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    table, (given, steps) = command.table(), KILLED[name]
    arguments = [part.format(table.location()) for part in given]
    rows = canonical(pyiceberg_rows(table.metadata_location))
    before = tmp_path_factory.mktemp("before") / "all"
    assert command("detect").code == 0
    shutil.copytree(command.folder, before)

    def work() -> None:
        assert command(*arguments).code == 0

    deaths = 0
    for step in steps:
        shutil.rmtree(command.folder)
        shutil.copytree(before, command.folder)
        if not dies_at(step, work):
            break
        deaths += 1
        no_lease_bars_others(command.state)
        for again in (("verify", "ns.t"), tuple(arguments), ("verify", "ns.t")):
            answer = command(*again)
            assert (answer.code, answer.err) == (0, answer.err if again[0] == "run" else ""), (step, again)
        assert canonical(pyiceberg_rows(dict(command.pointers())["ns.t"])) == rows, step
    assert deaths


def no_lease_bars_others(state: Path) -> None:
    """Where a death can be proven, no pass waits the three minutes; a schedule's lease blocks no pass."""
    with closing(sqlite3.connect(state)) as connection:
        left = connection.execute(
            "SELECT json_extract(attributes, '$.holder'), json_extract(attributes, '$.until_ms') FROM items "
            "WHERE sk = 'lease' AND pk <> 'lease#schedule'"
        ).fetchall()
    assert all(end - time.time() * 1000 <= LONGEST_LEASE_MS for _, end in left), left
    assert all(has_died(holder) for holder, _ in left), left


# A killed Lambda call or wave loses no row, and later runs delete all leftover files (rule: failures-cost-no-row).


@pytest.mark.parametrize(("run", "steps"), [(in_functions, (22, 35, 60)), (in_a_wave, (50,))])
def test_a_new_run_completes_the_work_of_a_killed_run(tmp_path: Path, run: Begin, steps: tuple[int, ...]) -> None:
    """These are some of the steps; ``make nightly`` kills at each step."""
    runs = KilledRuns(tmp_path, run)
    for number in steps:
        assert runs.survive(number)


# An interrupted write to the local disk leaves no partial file.

_WRITTEN = 4096


def _killed_in_the_middle(path: str) -> None:
    """Write in a child process, which the kernel kills at the file size limit (setrlimit(2), RLIMIT_FSIZE)."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, _WRITTEN))
        Storage({}).write(path, b"x" * _WRITTEN + b"y")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGXFSZ


def test_a_commit_that_is_killed_while_it_writes_does_not_block_later_sweeps(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    """A partial metadata file once made every sweep of the table refuse, until an operator removed it."""
    table = new_table(local_catalog, tmp_path, appends=2)
    rows, orphan = table.rows(), table.plant("data/orphan.parquet")
    _killed_in_the_middle(f"{table.folder}/metadata/00009-2b0d7bd2-0000-4000-8000-000000000000.metadata.json")
    table.late_ms = 100 * 24 * 3_600_000
    (swept,) = table.maintain("remove_orphans").operations
    assert (swept.status.value, swept.metrics["remove_orphans.orphans_removed"]) == ("succeeded", 2)
    assert not Path(orphan).exists()
    assert (table.rows(), table.unreferenced()) == (rows, set())


def test_a_write_that_fails_for_lack_of_space_keeps_the_old_file(tmp_path: Path) -> None:
    path, limits = tmp_path / "folder" / "document.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    Storage({}).write(str(path), b"whole")
    resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, limits[1]))  # Python ignores SIGXFSZ: the write fails
    try:
        with pytest.raises(StorageError, match="File too large"):
            Storage({}).write(str(path), b"x" * (_WRITTEN + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [found.read_bytes() for found in path.parent.iterdir()] == [b"whole"]


# A disk of a few megabytes that tests can fill (Linux, as root).

_PAGE = 4096


@dataclass(frozen=True)
class SmallDisk:
    """A separate file system."""

    folder: Path

    def fill(self, pages: int = 0) -> None:
        """Fill the disk except for so many pages of 4 KiB; a small file takes one page."""
        self.empty()
        with self._ballast.open("wb") as file:
            free = os.statvfs(self.folder)
            size = free.f_bavail * free.f_frsize - pages * _PAGE
            if size > 0:
                os.posix_fallocate(file.fileno(), 0, size)

    def empty(self) -> None:
        """Free the space."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"


@contextmanager
def small_disk(folder: Path, size_bytes: int = 8 << 20) -> Iterator[SmallDisk]:
    """Mount a tmpfs at ``folder``; without the right to mount, skip the test."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk takes the right to mount one")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


# A disk that fills during a pass costs no row, and a pass with space cleans up (rule: failures-cost-no-row).


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "warehouse") as made:
        yield made


def failures(done: PassOutcome) -> list[str]:
    return [outcome.reason or outcome.summary for outcome in done.operations if outcome.status is Status.FAILED]


def test_a_table_on_a_full_disk_keeps_its_rows(disk: SmallDisk, tmp_path: Path) -> None:
    """The free space fits a data file, a manifest, a manifest list, or none of them."""
    with maintained_table(tmp_path) as table:
        table.create()
        for pages in (0, 1, 3, 4):
            table.fill(3, start=10 * pages)
            rows = table.rows()
            disk.fill(pages)
            found = failures(table.maintain())
            assert found
            assert [
                reason for reason in found if not reason.endswith("no space is left on its disk; free space there")
            ] == []
            assert (table.rows(), table.verify().problems) == (rows, ())
            assert list(table.folder.rglob(".*")) == []
            disk.empty()
            assert failures(table.maintain()) == []
            assert (table.rows(), table.unreferenced(), table.verify().problems) == (rows, set(), ())


def test_a_sort_that_spills_to_a_full_disk_fails_and_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sort by one process that exceeds its memory spills to the temporary folder, which had space a moment ago."""
    limit_memory(monkeypatch)
    shared = SharedDisk()
    monkeypatch.setattr(exchange, "DISK", shared)
    with small_disk(tmp_path / "scratch") as disk, maintained_table(tmp_path) as table:
        monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
        shared.room_bytes(1, shutil.disk_usage(disk.folder).free)
        table.create()
        fill(table, 3, 5_000)
        rows, before = table.rows(), table.files()
        disk.fill(8)
        outcome = table.run(Operation.COMPACT, engine=LocalEngine(1), **BY_ID)
        assert outcome.status is Status.FAILED
        assert outcome.reason == (
            f"StorageError: the temporary folder {disk.folder} is full: free space there, or name a folder on another "
            "disk with TMPDIR"
        )
        assert (table.rows(), table.files()) == (rows, before)
        disk.empty()
        assert list(disk.folder.iterdir()) == []
        outcome = table.run(Operation.COMPACT, engine=LocalEngine(1), **BY_ID)
        assert outcome.status is Status.SUCCEEDED
        assert table.rows() == rows


def test_another_error_in_a_temporary_folder_is_not_reported_as_a_full_disk() -> None:
    with pytest.raises(OSError, match="Input/output") as caught, scratch_folder("icekeeper-test-"):
        raise OSError(errno.EIO, "Input/output error")
    assert not isinstance(caught.value, StorageError)


def test_a_full_disk_under_the_state_file_stops_work_that_must_be_recorded(disk: SmallDisk, tmp_path: Path) -> None:
    with maintained_table(tmp_path / "table") as table:
        table.create()
        table.state = SqliteStateStore(disk.folder / "state.db")
        table.runtime = table.runtime_with()
        for pages, message in ((0, "disk I/O error; if its disk is full,"), (8, "disk is full;")):
            table.fill(3, start=pages)
            rows = table.rows()
            assert failures(table.maintain("remove_orphans")) == []
            disk.fill(pages)
            with pytest.raises(
                StorageError, match=f"{message} free space there, or name another file with ICEKEEPER_STATE"
            ):
                table.maintain()
            assert (table.rows(), table.verify().problems) == (rows, ())
            disk.empty()
            assert failures(table.maintain()) == []
            assert (table.rows(), table.unreferenced()) == (rows, set())
