"""Files that a run has set out to delete, so that a later one can finish when it does not come to that.

Written before the commit that unreferences them.  What is recorded is a hint and no permission: whoever takes it over
checks every path against the table's newest references.  Source: iceberg 7937, an expiry that resumes (rule 79).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["PendingDeletionStore"]


class PendingDeletionStore(Protocol):
    """The part of a state store that knows unfinished deletions; its methods fail and may be called as those of the
    store."""

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
