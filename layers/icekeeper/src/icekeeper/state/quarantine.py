"""The quarantine ledger: how often passes over a table saw each orphan (``orphan_min_sightings``) (rule 99)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["QuarantineLedger", "Sighting"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """How often an orphan was seen, since when (epoch milliseconds), and by which run last."""

    path: str
    count: int
    first_seen_ms: int
    run_id: str


class QuarantineLedger(Protocol):
    """Entries by table and path; each method raises StorageError when the store cannot be used.

    Paths come in millions: they are streamed, and a store writes them in batches.
    """

    def see(self, identity: TableIdentity, run_id: str, paths: Iterable[str], *, now_ms: int) -> None:
        """Count one sighting of each path; a run that sees a path again is not counted twice."""
        ...

    def counts(self, identity: TableIdentity, run_id: str, paths: Iterable[str]) -> Mapping[str, int]:
        """In how many other runs than this one each path was seen; paths never seen are left out."""
        ...

    def forget_unseen(self, identity: TableIdentity, run_id: str) -> None:
        """Drop every entry that this run did not see: the file is no orphan any more, or gone."""
        ...

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        """Drop the entries of paths, which were deleted."""
        ...

    def sightings(self, identity: TableIdentity) -> Iterator[Sighting]:
        """Every entry of a table, by path."""
        ...
