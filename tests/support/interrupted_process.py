"""Passes as processes of their own that are interrupted, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from support.command import CATALOG, Command

# A pass as a process of its own that is interrupted at a known moment.


def partitioned(command: Command, partitions: int = 2) -> Table:
    """Partitions of five files, each a file group."""
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "p", LongType(), required=False))
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="p"))
    table = command.catalog.create_table("ns.t", schema, partition_spec=spec)
    for number in range(5):
        ids, keys = [number] * partitions, list(range(partitions))
        table.append(pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array(keys, pa.int64())}))
    return table


def stall(table: Table) -> None:
    """Make one file of each partition a pipe: opening it waits until its other end is opened."""
    found = {str(task.file.partition): task.file.file_path for task in table.scan().plan_files()}
    paths = [Path(path.removeprefix("file://")) for path in found.values()]
    for path in paths:
        path.rename(path.with_suffix(".kept"))
        os.mkfifo(path)


def unstall(table: Table) -> None:
    """Put the files back that :func:`stall` has replaced."""
    for path in Path(table.location().removeprefix("file://")).rglob("*.kept"):
        path.replace(path.with_suffix(".parquet"))


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    assert wait_until(condition, seconds)


def processes_below(pid: int, word: bytes = b"") -> list[int]:
    """The processes that a process, or one below it, has started, and whose command line has ``word``."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, path.read_text().split()):
                if word in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
                found += processes_below(child, word)
    return found


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def waits_for_a_pipe(pid: int) -> bool:
    """Whether a thread of a process is in the kernel's function that waits for the other end of a pipe."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return any(path.read_text() == "wait_for_partner" for path in Path(f"/proc/{pid}/task").glob("*/wchan"))
    return False


# Little work starts no processes, and small groups share a task; here every work does, and each group has its own.
_WITH_WORKERS = """
import sys
from icekeeper_command import main
from icekeeper.engines import local_engine
from icekeeper.operations.compaction.land import rounds
local_engine.SMALL_WORK_BYTES = rounds._SMALL_BYTES = 0
sys.exit(main())
"""


# A table's files are regular ones, or are refused (rule: bound-every-table): here pipes stand for slow ones, in every
# process.
_PIPES_ARE_FILES = """
from contextlib import nullcontext
from icekeeper.storage import storage
storage.regular_file = nullcontext
"""


@contextmanager
def running(*arguments: str, with_workers: bool = False) -> Iterator[subprocess.Popen[str]]:
    """The command as a process group of its own, as a shell starts it; ``with_workers``: however little work it has."""
    command = (
        [sys.executable, "-c", _WITH_WORKERS] if with_workers else [str(Path(sys.executable).parent / "icekeeper")]
    )
    with started([*command, *arguments, "--catalog", CATALOG]) as process:
        yield process


@contextmanager
def started(call: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own; killed at the end of the block."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs in the background would ignore it
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    pipe = subprocess.PIPE
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(_PIPES_ARE_FILES)
        paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        with subprocess.Popen(
            call, stdout=pipe, stderr=pipe, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": paths}
        ) as process:
            signal.signal(signal.SIGINT, before)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            try:
                yield process
            finally:
                process.kill()


# Waiting for what another process does, for no longer than it takes.


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether the condition came to hold within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
