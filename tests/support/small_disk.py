"""A disk of a few megabytes that can be filled up, for what happens when there is no room (Linux, as root)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_PAGE = 4096


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own."""

    folder: Path

    def fill(self, pages: int = 0) -> None:
        """Take all room but for so many pages of 4 KiB; a small file takes one."""
        self.empty()
        with self._ballast.open("wb") as file:
            free = os.statvfs(self.folder)
            size = free.f_bavail * free.f_frsize - pages * _PAGE
            if size > 0:
                os.posix_fallocate(file.fileno(), 0, size)

    def empty(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"


@contextmanager
def small_disk(folder: Path, size_bytes: int = 8 << 20) -> Iterator[SmallDisk]:
    """A tmpfs mounted at ``folder``; skips the test where nothing may be mounted."""
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
