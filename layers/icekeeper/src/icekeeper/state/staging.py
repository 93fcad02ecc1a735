"""Staged loads: files that a writer puts into a table's location before a commit names them, and how the load ended.

As in Modak, staged files awaiting adoption must never be deleted (rule 103).  Files of failed loads are deleted as the
record names them, never by listing (rule 104).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["LoadOrigin", "LoadState", "StagedLoad", "StagingStore"]


class LoadOrigin(StrEnum):
    """Who wrote the files: a user's load, or a rewrite of Icekeeper's."""

    USER = "user"
    JOB = "job"


class LoadState(StrEnum):
    """``pending``: a commit may name the files any time; ``adopted``: one has; ``failed``: none will."""

    PENDING = "pending"
    ADOPTED = "adopted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLoad:
    """The record of one load; its files, which may be very many, are asked for separately.

    A job's files are recorded before they are written: an entry is a path, or stands for the files of all attempts at a
    task (``icekeeper.storage.attempt_names``).

    ``name`` is unique per table.  Times are epoch milliseconds; ``changed_ms`` is when state or files last changed.
    """

    identity: TableIdentity
    name: str
    origin: LoadOrigin = LoadOrigin.USER
    state: LoadState = LoadState.PENDING
    prefixes: tuple[str, ...] = ()
    """Folders whose files are all of this load."""
    changed_ms: int
    expires_ms: int | None = None
    """Of a rewrite: it counts as dead unless it prolongs its record before this moment; ``None`` for users' loads."""
    file_count: int = 0

    def is_protected(self, now_ms: int) -> bool:
        """Whether its files must not be deleted."""
        return self.state is not LoadState.FAILED and not self.is_dead(now_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether it is a pending job that stopped prolonging its record: its process is gone."""
        return self.state is LoadState.PENDING and self.expires_ms is not None and now_ms >= self.expires_ms

    def can_be_cleaned(self, now_ms: int, grace_ms: int) -> bool:
        """Whether it failed at least ``grace_ms`` ago; a clock that was set back makes it younger, which is safe."""
        since = self.failed_since(now_ms)
        return since is not None and now_ms - since >= grace_ms

    def failed_since(self, now_ms: int) -> int | None:
        """The epoch millisecond at which it failed, or a dead job expired; ``None`` when neither is so."""
        if self.state is LoadState.FAILED:
            return self.changed_ms
        return self.expires_ms if self.is_dead(now_ms) else None


class StagingStore(Protocol):
    """The part of a state store for staged loads; :class:`StateStore` says how its methods fail."""

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        """Record a load, or add to the one of its name: everything but its files is replaced, files are added.

        Returns the record as it is now.  When the call fails, part of the files may be recorded: they are protected.
        """
        ...

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        """Every load of a table that is not forgotten, ordered by name."""
        ...

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of one load, some at a time, in the order of their recording."""
        ...

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        """Replace state and times of a record, if it is still as in ``before``; else return false."""
        ...

    def forget(self, load: StagedLoad) -> bool:
        """Remove a record and its list of files, if it is still as in ``load``; else return false."""
        ...
