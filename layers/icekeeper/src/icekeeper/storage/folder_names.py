"""Normalises millions of paths of few folders: what a folder is called, and which links lie in it, is looked up once.

:func:`~icekeeper.storage.paths.normalise` asks the file system about every single file.  Here a folder of many files is
listed, which tells its links for all of them (rule 87).
"""

from __future__ import annotations

import os
from collections.abc import Collection

from icekeeper.storage.paths import ComparedPath, is_local, normalise
from icekeeper.storage.real_paths import real_path

__all__ = ["FolderNames"]

# Listing a folder costs what is in it; of one of which few files are asked, each is looked at.
_ASKED_FIRST = 8
_MOST_FOLDERS = 100_000


class FolderNames:
    """Normalises the paths of one comparison, which expects no link to change; the next one makes another."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._known: dict[str, tuple[str, Collection[str]] | None] = {}

    def normal(self, path: str) -> str:
        """As :func:`~icekeeper.storage.paths.normalise`."""
        if isinstance(path, ComparedPath):
            return path.normal
        folder, _, name = path.rpartition("/")
        try:
            known = self._known[folder]
        except KeyError:
            known = self._look(folder)
        if known is None or "%" in name or name.startswith(".") or not name or name in known[1]:
            return normalise(path)
        return known[0] + name

    def _look(self, folder: str) -> tuple[str, Collection[str]] | None:
        """The normalised folder with a slash, and the names of the links in it; ``None``: files are to be looked at."""
        if is_local(folder):
            if len(self._asked) >= _MOST_FOLDERS:
                self._asked.clear()
            asked = self._asked[folder] = self._asked.get(folder, 0) + 1
            if asked <= _ASKED_FIRST:
                return None
        if len(self._known) >= _MOST_FOLDERS:
            self._known.clear()
        known = self._known[folder] = _folder(folder)
        return known


def _folder(folder: str) -> tuple[str, Collection[str]] | None:
    # A name behind an encoded character, a dot or no slash at all may belong to the folder's.
    if not folder or "%" in folder or "/." in folder:
        return None
    if not is_local(folder):
        return normalise(f"{folder}/x")[:-1], ()
    if not folder.startswith("/") or "//" in folder or folder.endswith("/"):
        return None
    real = real_path(f"{folder}/.").rstrip("/")
    if "%" in real:
        return None
    try:
        with os.scandir(real or "/") as entries:
            return f"{real}/", frozenset(entry.name for entry in entries if entry.is_symlink())
    except FileNotFoundError:  # what is not there holds no link
        return f"{real}/", ()
    except (OSError, ValueError):
        return None
