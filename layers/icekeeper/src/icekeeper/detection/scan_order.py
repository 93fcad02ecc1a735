"""The round-robin order in which the tables of a fleet are scanned (pure).

A scan that runs out of time reports a cursor: the last table that it began.  The next scan starts after it and wraps
around.  The cursor is a name, not a position, so tables that come or go between two scans change nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from icekeeper.model import TableName

__all__ = ["FleetTable", "round_robin"]


class FleetTable(NamedTuple):
    """One table of a fleet."""

    catalog: str
    text: str
    """The table's name as people write it; tables are ordered by it."""
    table: TableName

    @property
    def cursor(self) -> tuple[str, str]:
        """Where the next scan goes on, if this one stops after this table."""
        return self.catalog, self.text


def round_robin(entries: Iterable[FleetTable], cursor: tuple[str, str] | None) -> list[FleetTable]:
    """The tables by catalog and name: first those after ``cursor``, then those up to it.

    The table that the cursor names need not exist any more.
    """
    ordered = sorted(entries, key=lambda entry: entry.cursor)
    if cursor is None:
        return ordered
    first = bisect_right(ordered, tuple(cursor), key=lambda entry: entry.cursor)
    return ordered[first:] + ordered[:first]
