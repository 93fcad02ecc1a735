"""In which table's location a file lies: the innermost location that contains it (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.model import TableName
from icekeeper.storage.paths import is_under, normalise

__all__ = ["TableLocations"]


class TableLocations:
    """The locations of many tables; a lookup takes as many steps as the path has folders."""

    def __init__(self, locations: Iterable[tuple[TableName, str]]) -> None:
        self._tables: dict[str, list[tuple[TableName, str]]] = {}
        for name, location in locations:
            self._tables.setdefault(normalise(location), []).append((name, location))

    def tables_around(self, path: str) -> tuple[TableName, ...]:
        """The tables whose location is the innermost one that contains the file: one, none, or several that share it.

        A path that lies there only after normalisation (``%2F``, ``..``) belongs to none of them.
        """
        folder = normalise(path).rpartition("/")[0]
        while folder:
            if found := self._tables.get(folder):
                return tuple(name for name, location in found if is_under(path, location))
            folder = folder.rpartition("/")[0]
        return ()
