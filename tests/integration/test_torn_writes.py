"""A write to this machine's disk that ends in the middle leaves no half file (rule 172)."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import StorageError
from icekeeper.storage.storage import Storage
from support.maintained_table import new_table

_WRITTEN = 4096


def _killed_in_the_middle(path: str) -> None:
    """A child that is killed by the kernel when its file grows beyond a few bytes (setrlimit(2), RLIMIT_FSIZE)."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, _WRITTEN))
        Storage({}).write(path, b"x" * _WRITTEN + b"y")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGXFSZ


def test_a_commit_that_is_killed_while_it_writes_stops_no_later_sweep(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    """Half a metadata file had every sweep of the table refused, until a person looked after it."""
    table = new_table(local_catalog, tmp_path)
    table.fill(2)
    rows, orphan = table.rows(), table.plant("data/orphan.parquet")
    _killed_in_the_middle(f"{table.folder}/metadata/00009-2b0d7bd2-0000-4000-8000-000000000000.metadata.json")
    table.late_ms = 100 * 24 * 3_600_000
    (swept,) = table.maintain("remove_orphans").operations
    assert (swept.status.value, swept.metrics["remove_orphans.orphans_removed"]) == ("succeeded", 2)
    assert not Path(orphan).exists()
    assert (table.rows(), table.unreferenced()) == (rows, set())


def test_a_write_for_which_there_is_no_room_leaves_what_was_there(tmp_path: Path) -> None:
    path, limits = tmp_path / "folder" / "document.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    Storage({}).write(str(path), b"whole")
    resource.setrlimit(resource.RLIMIT_FSIZE, (_WRITTEN, limits[1]))  # Python ignores SIGXFSZ: the write fails
    try:
        with pytest.raises(StorageError, match="File too large"):
            Storage({}).write(str(path), b"x" * (_WRITTEN + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [found.read_bytes() for found in path.parent.iterdir()] == [b"whole"]
