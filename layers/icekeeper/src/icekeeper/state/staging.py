"""Loads whose files lie in a table's location although no commit names them yet, and what became of them.

As in Modak, staged files awaiting adoption must never be deleted (rule 103), and those of failed loads are cleaned from
the record, never by listing (rule 104).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["LoadOrigin", "LoadState", "StagedLoad", "StagingStore"]


class LoadOrigin(StrEnum):
    """Who wrote the files: a user's load, or a rewrite of ours."""

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
    """Of a job: unless prolonged before this moment, it is dead."""
    file_count: int = 0

    def is_protected(self, now_ms: int) -> bool:
        """Whether its files must not be deleted."""
        return self.state is not LoadState.FAILED and not self.is_dead(now_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether it is a pending job that stopped prolonging its record: its process is gone."""
        return self.state is LoadState.PENDING and self.expires_ms is not None and now_ms >= self.expires_ms

    def can_be_cleaned(self, now_ms: int, grace_ms: int) -> bool:
        """Whether it failed at least so long ago; a clock that runs backwards makes it younger."""
        since = self.failed_since(now_ms)
        return since is not None and now_ms - since >= grace_ms

    def failed_since(self, now_ms: int) -> int | None:
        """When it failed, ``None`` when it has not."""
        if self.state is LoadState.FAILED:
            return self.changed_ms
        return self.expires_ms if self.is_dead(now_ms) else None


class StagingStore(Protocol):
    """The part of a state store that knows staged loads; its methods fail and may be called as those of the store."""

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        """Record a load, or add to the one of its name: everything but its files is replaced, files are added.

        The answer is the record as it is now.  When the call fails, part of the files may be recorded: then more is
        protected, never less.
        """
        ...

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        """Every load of a table that is not forgotten, by name."""
        ...

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of one load, some at a time, in the order of their recording."""
        ...

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        """Replace state and times of a record, if it is still what ``before`` says; else false."""
        ...

    def forget(self, load: StagedLoad) -> bool:
        """Remove a record and its files, if it is still what ``load`` says; else false."""
        ...
