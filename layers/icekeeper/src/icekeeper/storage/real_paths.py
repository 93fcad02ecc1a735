"""The real path of a local file or folder, with all symbolic links resolved (rule 87).

A warehouse may be named by a link in the catalog and by its real folder in the metadata, or the other way round.
Callers ask for millions of paths in few folders, so real folders are remembered for a second, and only whether the file
itself is a link is looked up each time.
"""

from __future__ import annotations

import os
import stat
import time

__all__ = ["real_path"]

# Links do not change while one comparison runs; a process that lives for days must see that one did.
_REMEMBERED_S = 1.0
_MOST_FOLDERS = 100_000


class _RealFolders:
    """Maps folders to their real paths.  Threads may share it: at worst a folder is looked up twice.

    Relative ones are looked up each time, because the working folder changes what they mean.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._until_s = 0.0

    def __getitem__(self, folder: str) -> str:
        if not folder.startswith("/"):
            return os.path.realpath(folder)
        now_s = time.monotonic()
        if now_s >= self._until_s or len(self._known) >= _MOST_FOLDERS:
            self._known, self._until_s = {}, now_s + _REMEMBERED_S
        found = self._known.get(folder)
        if found is None:
            found = self._known[folder] = os.path.realpath(folder)
        return found


_real_folders = _RealFolders()


def real_path(path: str) -> str:
    """The absolute path of a local file or folder without any symbolic link in it.

    A file that is itself a link becomes its target, so that a reference to one protects the other.  The part of a path
    that does not exist stays as it is, and so does text that cannot be a path.
    """
    try:
        folder, slash, name = path.rpartition("/")
        if not slash or name in ("", ".", ".."):
            return os.path.realpath(path)
        real = f"{_real_folders[folder or '/'].rstrip('/')}/{name}"
        return os.path.realpath(real) if _is_link(real) else real
    except (OSError, ValueError):  # no working directory, or a character that no path may hold
        return os.path.normpath(path)


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:  # there is nothing, or nothing that may be seen
        return False
