"""Lists of files that a run is going to delete, so that a later run can finish after a crash.

A list is written before the commit that unreferences its files.  It is a hint and no permission: the run that finishes
checks every path against the table's newest references.  Source: iceberg 7937, an expiry that resumes (rule 79).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["PendingDeletionStore"]


class PendingDeletionStore(Protocol):
    """The part of a state store for unfinished deletions; :class:`StateStore` says how its methods fail."""

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        """Record the files of one list, replacing what was recorded under its name.

        When the call fails, part of the files may be recorded.
        """
        ...

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        """The names of the lists that are not forgotten, in order."""
        ...

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of one list, some at a time, in the order of their recording."""
        ...

    def forget(self, identity: TableIdentity, name: str) -> None:
        """Remove a list, if it is there."""
        ...
