"""Passes in separate processes that are interrupted, and waiting for their progress."""

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

# A pass in a separate process that is interrupted at a known moment.


def partitioned(command: Command, partitions: int = 2) -> Table:
    """A table whose partitions have five files each and form file groups."""
    schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "p", LongType(), required=False))
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="p"))
    table = command.catalog.create_table("ns.t", schema, partition_spec=spec)
    for number in range(5):
        ids, keys = [number] * partitions, list(range(partitions))
        table.append(pa.table({"id": pa.array(ids, pa.int64()), "p": pa.array(keys, pa.int64())}))
    return table


def stall(table: Table) -> None:
    """Replace one file of each partition by a pipe, which blocks a reader until its other end is opened."""
    found = {str(task.file.partition): task.file.file_path for task in table.scan().plan_files()}
    paths = [Path(path.removeprefix("file://")) for path in found.values()]
    for path in paths:
        path.rename(path.with_suffix(".kept"))
        os.mkfifo(path)


def unstall(table: Table) -> None:
    """Restore the files that :func:`stall` has replaced."""
    for path in Path(table.location().removeprefix("file://")).rglob("*.kept"):
        path.replace(path.with_suffix(".parquet"))


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    assert wait_until(condition, seconds)


def processes_below(pid: int, word: bytes = b"") -> list[int]:
    """The descendants of a process whose command line has ``word``."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, path.read_text().split()):
                if word in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
                found += processes_below(child, word)
    return found


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def waits_for_a_pipe(pid: int) -> bool:
    """Whether a thread of a process waits in the kernel for the other end of a pipe."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return any(path.read_text() == "wait_for_partner" for path in Path(f"/proc/{pid}/task").glob("*/wchan"))
    return False


# Normally little work starts no processes, and small groups share a task; here all work does, each group in its task.
_WITH_WORKERS = """
import sys
from icekeeper_command import main
from icekeeper.engines import local_engine
from icekeeper.operations.compaction.land import rounds
local_engine.SMALL_WORK_BYTES = rounds._SMALL_BYTES = 0
sys.exit(main())
"""


# Icekeeper refuses files that are not regular (rule: bound-every-table): here every process accepts pipes, which stand
# for slow files.
_PIPES_ARE_FILES = """
from contextlib import nullcontext
from icekeeper.storage import storage
storage.regular_file = nullcontext
"""


@contextmanager
def running(*arguments: str, with_workers: bool = False) -> Iterator[subprocess.Popen[str]]:
    """The command in a new process group, as a shell starts it; ``with_workers``: even little work starts workers."""
    command = (
        [sys.executable, "-c", _WITH_WORKERS] if with_workers else [str(Path(sys.executable).parent / "icekeeper")]
    )
    with started([*command, *arguments, "--catalog", CATALOG]) as process:
        yield process


@contextmanager
def started(call: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process in a new process group, killed at the end of the block."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process would ignore it
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


# Waiting for the progress of another process.


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait for the condition; return whether it holds within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
