"""Data and delete files that a pass could not read, so that the next ones leave them alone for a while (rule 216)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.identity import TableIdentity

__all__ = ["RETRY_MS", "UnreadableFile", "UnreadableFileStore"]

RETRY_MS = 7 * 24 * HOUR_MS
"""After so long a file is tried again: somebody may have restored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableFile:
    """A file that was not found, or could not be read as rows of the table.  Never one whose store failed."""

    path: str
    why: str
    """A sentence that names the file."""
    schema_digest: str
    """That of the schema and name mapping it was read by (:func:`icekeeper.metadata.document.schema_digest`)."""
    tried_ms: int
    """When, in epoch milliseconds."""

    def waits(self, schema_digest: str, now_ms: int) -> bool:
        """Whether it is not yet to be tried again: not within a week, unless it would be read otherwise now."""
        return self.schema_digest == schema_digest and 0 <= now_ms - self.tried_ms < RETRY_MS


class UnreadableFileStore(Protocol):
    """Files by copy of a table and path; each method raises StorageError when the store fails."""

    def record(self, identity: TableIdentity, files: Iterable[UnreadableFile]) -> None:
        """Add these files, which have different paths, replacing those known by the same paths."""
        ...

    def of_table(self, identity: TableIdentity) -> Mapping[str, UnreadableFile]:
        """The files of one copy of a table, by path, in the order of the paths."""
        ...

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        """Remove files, as far as they are known."""
        ...
