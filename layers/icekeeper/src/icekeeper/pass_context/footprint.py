"""Where a table has files, as its manifests are read: the folders that its files lie in, less what differs per file.

A data file lies in a root (``<location>/data``, a ``write.data.path``, the folder of an imported table), below it in
folders of its partition (``day=2026-01-01``) and, with an object-storage layout, in folders of a hash.  The root is
what says whose a file is; sources: Iceberg-Java's ``LocationProviders`` (``ObjectStoreLocationProvider``: four folders
of 4, 4, 4 and 8 binary digits, before 1.7 one of 8 hexadecimal ones) and Hive's layout of partitions.
"""

from __future__ import annotations

import re
from functools import lru_cache

from icekeeper.storage.paths import authority, normalise

__all__ = ["Footprint", "data_root", "spelled_root"]

_PARTITION = re.compile(r"[^/=]+=[^/]*")
_BINARY_HASH = re.compile(r"/[01]{4}/[01]{4}/[01]{4}/[01]{8}\Z")
# Digits alone are a day (20260101) or a number that somebody counts by.
_HEX_HASH = re.compile(r"/(?=[0-9]*[a-f])[0-9a-f]{8}\Z")
# A table with more roots than that has folders of a kind that is not known here.
_MOST_ROOTS = 1_000


def data_root(path: str) -> str:
    """The normalised folder of a data file, less its folders of partition and hash."""
    return _normal_root(path[: path.rfind("/")])


def spelled_root(path: str) -> str:
    """As :func:`data_root`, spelled as the path is."""
    return _root_of_folder(path[: path.rfind("/")])


@lru_cache(maxsize=4096)
def _normal_root(folder: str) -> str:
    return normalise(_root_of_folder(folder))


@lru_cache(maxsize=4096)
def _root_of_folder(folder: str) -> str:
    # As spelled: a partition's value may hold an encoded slash.
    while (parts := folder.rpartition("/"))[2] and _PARTITION.fullmatch(parts[2]):
        folder = parts[0]
    for hashed in (_BINARY_HASH, _HEX_HASH):
        if found := hashed.search(folder):
            folder = folder[: found.start()]
            break
    return folder


class Footprint:
    """The roots of the data and delete files that were seen of a table in this pass; of too many, the whole store."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._roots: set[str] = set()
        self._told: set[str] = set()

    def see(self, path: str) -> None:
        """Take note of a data or delete file."""
        folder = path[: path.rfind("/")]
        if folder in self._folders:
            return
        if len(self._folders) > _MOST_ROOTS:
            self._folders.clear()
        self._folders.add(folder)
        root = data_root(path)
        if root.rpartition("/")[0] not in self._roots:  # else a hash of digits alone, and its siblings told
            self._roots.add(root if len(self._roots) < _MOST_ROOTS else normalise(authority(path)))

    def roots(self) -> frozenset[str]:
        """Normalised folders."""
        return frozenset(self._roots)

    def news(self) -> frozenset[str]:
        """Those that were not asked for before."""
        new = self.roots() - self._told
        self._told |= new
        return new
