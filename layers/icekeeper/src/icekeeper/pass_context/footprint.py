"""The roots of the data files that a pass has seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from icekeeper.metadata.document import TableMetadata
from icekeeper.storage.paths import authority, may_be_under, normalise

# The *root* of a data file shows which table owns it: ``<location>/data``, a ``write.data.path``, or the folder of an
# imported table.  Below the root the file is in partition folders (``day=2026-01-01``) and, with an object-storage
# layout, in hash folders.  Sources: Iceberg-Java's ``LocationProviders`` (``ObjectStoreLocationProvider``) and Hive's
# partition layout.
#
# A hash is four folders of 4, 4, 4 and 8 binary digits, or three folders and the beginning of the file's name
# (``write.object-storage.partitioned-paths=false``).  Hashes of earlier versions (eight hexadecimal digits, then six
# characters of Base64) could be any folder's name.  They are recognised only in the table's own data folders; elsewhere
# each such folder is a root, because too large a root would let the table sweep other folders.

_PARTITION = re.compile(r"[^/=]+=[^/]*")
_HASH = re.compile(r"/[01]{4}/[01]{4}/[01]{4}/[01]{8}\Z")
_BEGINNING_OF_HASH = re.compile(r"/[01]{4}/[01]{4}/[01]{4}\Z")
_REST_OF_HASH = re.compile(r"[01]{8}-")
# A table with more roots than this has an unknown folder layout.
_MOST_ROOTS = 1_000


def data_root(path: str) -> str:
    """The root of a data file: its normalised folder, without partition and hash folders."""
    return _normalised(spelled_root(path))


def spelled_root(path: str) -> str:
    """As :func:`data_root`, spelled as the path is."""
    folder, _, name = path.rpartition("/")
    return _root_of_folder(folder, _BEGINNING_OF_HASH if _REST_OF_HASH.match(name) else _HASH)


def data_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """The normalised folders in which the table keeps only data files; each counts as a root."""
    places = {normalise(metadata.data_location), normalise(f"{metadata.location}/data")}
    others = (metadata.location, metadata.metadata_directory)
    return tuple(sorted(place for place in places if not any(may_be_under(other, place) for other in others)))


@lru_cache(maxsize=4096)
def _normalised(folder: str) -> str:
    return normalise(folder)


@lru_cache(maxsize=4096)
def _root_of_folder(folder: str, hashed: re.Pattern[str]) -> str:
    # Not normalised: a partition's value may have an encoded slash.
    while (parts := folder.rpartition("/"))[2] and _PARTITION.fullmatch(parts[2]):
        folder = parts[0]
    found = hashed.search(folder)
    return folder if found is None else folder[: found.start()]


class Footprint:
    """The roots of the table's data and delete files that this pass has seen; after 1,000 roots, only buckets."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._roots: set[str] = set()
        self._reported: set[str] = set()

    def see(self, paths: Iterable[str], own: Sequence[str] = ()) -> None:
        """Note data and delete files; ``own``: the table's :func:`data_folders`."""
        seen = self._folders
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder in seen:
                continue
            if len(seen) > _MOST_ROOTS:
                seen.clear()
            seen.add(folder)
            root = data_root(path)
            self._add(next((place for place in own if root.startswith(f"{place}/")), root))

    def add(self, roots: Iterable[str]) -> None:
        """Note roots that workers have seen."""
        for root in roots:
            self._add(root)

    def _add(self, root: str) -> None:
        if root not in self._roots:
            self._roots.add(root if len(self._roots) < _MOST_ROOTS else normalise(authority(root)) or "/")

    def roots(self) -> frozenset[str]:
        """All seen roots, normalised."""
        return frozenset(self._roots)

    def news(self) -> frozenset[str]:
        """The roots seen since the last call."""
        new = self.roots() - self._reported
        self._reported |= new
        return new
