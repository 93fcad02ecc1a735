"""Where a run keeps what its tests write: in memory, where that has the room.

Tests write and delete very many small files.  ext4 gives no inode again within seconds of its deletion, and looks
through those of the last seconds for each new file: a sixth to a quarter of the CPU of tests that write tables.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_LEAST_BYTES = 8 << 30


def write_into_memory() -> None:
    """Put all temporary files of this process and its children into memory; whoever sets ``TMPDIR`` chose otherwise."""
    if "TMPDIR" not in os.environ and _has_room(_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def _has_room(folder: Path) -> bool:
    """Whether files can be written and started there, 8 GiB of them; containers often have 64 MiB, and start none."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    words = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    free_bytes = min(found.f_bavail * found.f_frsize, int(words[0]) * 1024)
    return free_bytes >= _LEAST_BYTES and not found.f_flag & os.ST_NOEXEC
