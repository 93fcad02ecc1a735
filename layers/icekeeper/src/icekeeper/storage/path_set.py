"""Whether a path may lie inside a location, or inside one of many: the guard of what may belong to somebody else.

Yes where any reader, client or store could take it so, in whichever spelling (rule 85).
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.storage.attempt_names import planned_file, stem_of
from icekeeper.storage.merged_spellings import merged_spelling
from icekeeper.storage.paths import normalise

__all__ = ["PathSet", "may_be_under"]


def may_be_under(path: str, location: str) -> bool:
    """Whether some reader could take the path for one inside the location, or for the location itself."""
    return any(_is_below(inner, outer) for inner in _spellings(path) for outer in _spellings(location))


def _is_below(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer if outer.endswith("/") else f"{outer}/")


def _spellings(path: str) -> Iterable[str]:
    """The path as stores compare keys, and as those do that take two spellings for one object."""
    normal = normalise(path)
    merged = merged_spelling(normal)
    return (normal,) if merged == normal else (normal, merged)


def _spelling(path: str) -> Iterable[str]:
    return (normalise(path),)


class PathSet:
    """A set of files and folders that answers whether a path :func:`may_be_under` any of them.

    The time of an answer grows with the path's depth, not with the set.  A record of a planned file stands for the
    files of all attempts (:mod:`icekeeper.storage.attempt_names`).
    """

    def __init__(self, paths: Iterable[str] = (), *, protects: bool = True) -> None:
        """``protects``: being in the set saves a file; a set of folders that may be swept tells spellings apart which
        name two objects in most stores."""
        self._spellings = _spellings if protects else _spelling
        self._paths: set[str] = set()
        self._stems: set[str] = set()
        self.add(paths)

    def add(self, paths: Iterable[str]) -> None:
        """Add files, folders and records of planned files."""
        new = {spelled for path in paths for spelled in self._spellings(path)}
        self._paths |= new
        self._stems |= {planned.stem for planned in map(planned_file, new) if planned is not None}

    def may_contain(self, path: str) -> bool:
        """Whether the path could be taken for one of these, or for a file inside one of these."""
        return bool(self._paths) and any(map(self._contains, self._spellings(path)))

    def _contains(self, inner: str) -> bool:
        if self._stems and self._is_planned(inner):
            return True
        if inner in self._paths or (inner.startswith("/") and "/" in self._paths):
            return True
        slash = inner.find("/")
        while slash >= 0:
            if inner[:slash] in self._paths:
                return True
            slash = inner.find("/", slash + 1)
        return False

    def _is_planned(self, inner: str) -> bool:
        stem = stem_of(inner)
        if stem is None or stem in self._stems:
            return stem is not None
        folder, _, name = stem.rpartition("/")
        while folder:
            if f"{folder}/**/{name}" in self._stems:
                return True
            folder = folder.rpartition("/")[0]
        return False
