"""A disk that is full in the midst of a pass costs no row, and a pass with room cleans up (rule 187)."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.local_files import scratch_folder
from support.clustered_tables import BY_ID, fill, limit_memory
from support.maintained_table import maintained_table
from support.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "warehouse") as made:
        yield made


def failures(done: PassOutcome) -> list[str]:
    return [one.reason or one.summary for one in done.operations if one.status is Status.FAILED]


@pytest.mark.parametrize("pages", [0, 1, 3, 4])
def test_a_table_on_a_full_disk_keeps_its_rows(disk: SmallDisk, tmp_path: Path, pages: int) -> None:
    """There is room for a data file, a manifest, a manifest list, or for neither."""
    with maintained_table(tmp_path) as table:
        table.create()
        table.fill(3)
        rows = table.rows()
        disk.fill(pages)
        told = failures(table.maintain())
        assert told
        assert [one for one in told if not one.endswith("no space is left on its disk; free space there")] == []
        assert (table.rows(), table.verify().problems) == (rows, ())
        assert list(table.folder.rglob(".*")) == []
        disk.empty()
        assert failures(table.maintain()) == []
        assert (table.rows(), table.unreferenced(), table.verify().problems) == (rows, set(), ())


def test_rows_that_wait_on_a_full_disk_fail_their_group_and_say_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sort that does not fit into memory, of one process: it spills to the temporary folder."""
    limit_memory(monkeypatch)
    with small_disk(tmp_path / "scratch") as disk, maintained_table(tmp_path) as table:
        monkeypatch.setattr(tempfile, "tempdir", str(disk.folder))
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


def test_another_error_in_a_temporary_folder_is_not_called_a_full_disk() -> None:
    with pytest.raises(OSError, match="Input/output") as told, scratch_folder("icekeeper-test-"):
        raise OSError(errno.EIO, "Input/output error")
    assert not isinstance(told.value, StorageError)


@pytest.mark.parametrize(("pages", "said"), [(0, "disk I/O error; if its disk is full,"), (8, "disk is full;")])
def test_a_state_file_on_a_full_disk_stops_what_must_be_recorded(
    disk: SmallDisk, tmp_path: Path, pages: int, said: str
) -> None:
    with maintained_table(tmp_path / "table") as table:
        table.create()
        table.fill(3)
        rows = table.rows()
        table.state = SqliteStateStore(disk.folder / "state.db")
        table.runtime = table.runtime_with()
        assert failures(table.maintain("remove_orphans")) == []
        disk.fill(pages)
        with pytest.raises(StorageError, match=f"{said} free space there, or name another file with ICEKEEPER_STATE"):
            table.maintain()
        assert (table.rows(), table.verify().problems) == (rows, ())
        disk.empty()
        assert failures(table.maintain()) == []
        assert (table.rows(), table.unreferenced()) == (rows, set())
