"""SeaweedFS is not started on a disk that is nearly full: it would refuse writes in the middle of the work."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from icekeeper.demo import seaweedfs
from icekeeper.errors import StorageError


def test_a_disk_that_is_nearly_full_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(total=1000 << 20, free=(10 << 20) + (256 << 20) - 1)  # a byte less than 1 % and the room
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk)

    with pytest.raises(StorageError) as refusal, seaweedfs.running_seaweedfs(tmp_path):
        pass

    assert str(refusal.value) == (
        f"The disk of {tmp_path} is nearly full: 266 MB of 1000 MB are free, and SeaweedFS "
        "leaves 1% of a disk unused.  Free 256 MB more than that, or choose a folder on another disk."
    )
