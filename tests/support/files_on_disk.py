"""Files of local tables, where they lie."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from icekeeper.storage.paths import split_path

DAY_S = 86_400


def local_path(path: str) -> Path:
    """Where a ``file:`` address lies; nothing in it is decoded."""
    return Path(split_path(path).key)


def files_below(folder: Path) -> set[str]:
    """Every file below a folder, as normalised paths."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def grow_old(paths: Iterable[Path], days: float = 10) -> None:
    """Date files back to so many days ago."""
    then = time.time() - days * DAY_S
    for path in paths:
        os.utime(path, (then, then))
