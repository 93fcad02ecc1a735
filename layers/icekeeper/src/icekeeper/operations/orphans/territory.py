"""Which table of a catalog a file lies under: the innermost location around it (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.model import TableName
from icekeeper.storage.paths import is_under, normalise

__all__ = ["Territory"]


class Territory:
    """Locations of tables; asked in the time of one path's depth, however many tables there are."""

    def __init__(self, locations: Iterable[tuple[TableName, str]]) -> None:
        self._tables: dict[str, list[tuple[TableName, str]]] = {}
        for name, location in locations:
            self._tables.setdefault(normalise(location), []).append((name, location))

    def owners(self, path: str) -> tuple[TableName, ...]:
        """The tables at the innermost location around a file: one, none, or several that share it.

        A file that only another spelling puts there (``%2F``, ``..``) is nobody's.
        """
        folder = normalise(path).rpartition("/")[0]
        while folder:
            if found := self._tables.get(folder):
                return tuple(name for name, location in found if is_under(path, location))
            folder = folder.rpartition("/")[0]
        return ()
