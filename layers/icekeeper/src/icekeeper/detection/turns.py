"""In which order tables are looked at, so that every one gets its turn (pure).

A scan that runs out of time says where it stopped; the next one goes on there and wraps around.  Tables that come and
go between two scans only shift their neighbours: what counts is the order of names, not positions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from icekeeper.model import TableName

__all__ = ["Turn", "fair_order"]


class Turn(NamedTuple):
    """One table of a fleet."""

    catalog: str
    text: str
    """The table's name as people write it, by which turns are ordered."""
    table: TableName

    @property
    def cursor(self) -> tuple[str, str]:
        """What a scan that stopped after this turn hands to the next."""
        return self.catalog, self.text


def fair_order(turns: Iterable[Turn], cursor: tuple[str, str] | None) -> list[Turn]:
    """By catalog and name; first those after ``cursor``, which need not be there any more, then those up to it."""
    ordered = sorted(turns, key=lambda turn: turn.cursor)
    if cursor is None:
        return ordered
    first = bisect_right(ordered, tuple(cursor), key=lambda turn: turn.cursor)
    return ordered[first:] + ordered[:first]
