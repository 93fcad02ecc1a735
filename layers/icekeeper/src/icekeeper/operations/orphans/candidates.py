"""Which listed files are candidates for orphan removal: those that the table does not reference (pure).

A listing is streamed past the references; only what they do not contain is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from icekeeper.deletion.foreign_tables import other_format_at
from icekeeper.deletion.referenced_paths import ReferencedPaths, UnlistedPaths
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.storage.folder_names import FolderNames
from icekeeper.storage.listing import ListedObject

__all__ = ["CandidateCollector", "OrphanCandidates", "find_candidates", "join_candidates", "without_referenced"]

# One is enough to refuse the deletion; more are kept because two hashes may be equal by chance.
_MISMATCHES_KEPT = 100
_AT_ONCE = 10_000


class References(Protocol):
    """Answers whether a path is referenced, as :class:`icekeeper.deletion.referenced_paths.ReferencedPaths` does."""

    def __contains__(self, path: str) -> bool: ...

    def has_prefix_mismatch(self, path: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class OrphanCandidates:
    """The unreferenced files of a listing, and how many files were listed."""

    listed: int = 0
    too_young: int = 0
    """How many unreferenced files are still within the grace period."""
    unreferenced: tuple[ListedObject, ...] = ()
    """Files past the grace period; whether anything else protects them is not checked here."""
    metadata_files: tuple[ListedObject, ...] = ()
    """Unreferenced files of any age that are named like table metadata; they may belong to another table."""
    prefix_mismatches: tuple[str, ...] = ()
    """Some of the unreferenced files whose path is probably referenced under another scheme, bucket or host."""
    other_formats: frozenset[str] = frozenset()
    """Folders of tables of other formats, recognised by unreferenced files of any age in their logs."""
    too_young_bytes: int = 0
    newest_ms: int = 0
    """When the youngest listed file was modified; 0: no age is known."""
    unlisted: UnlistedPaths | None = None
    """Referenced files that the listing lacks; ``None``: it is no listing of all files."""


class CandidateCollector:
    """Collects the candidates among listed objects.

    Old is a file that was modified before ``older_than_ms`` (epoch milliseconds); one of unknown age counts as young.
    """

    def __init__(self, referenced: ReferencedPaths, older_than_ms: int) -> None:
        self._referenced, self._older_than_ms = referenced, older_than_ms
        self._listed = self._too_young = self._too_young_bytes = self._newest_ms = 0
        self._unreferenced: list[ListedObject] = []
        self._metadata_files: list[ListedObject] = []
        self._prefix_mismatches: list[str] = []
        self._other_formats: set[str] = set()

    def add_all(self, listed: Iterable[ListedObject]) -> None:
        """Look at the objects of a listing, or of a part of one."""
        names, rest = FolderNames(), iter(listed)
        while some := list(islice(rest, _AT_ONCE)):
            self._listed += len(some)
            self._newest_ms = max(self._newest_ms, max(found.modified_ms or 0 for found in some))
            for found in self._referenced.unreferenced(some, names):
                self._add_unreferenced(found)

    def _add_unreferenced(self, found: ListedObject) -> None:
        if self._referenced.has_prefix_mismatch(found.path) and len(self._prefix_mismatches) < _MISMATCHES_KEPT:
            self._prefix_mismatches.append(found.path)
        if is_metadata_file(found.path):
            self._metadata_files.append(found)
        elif (folder := other_format_at(found.path)) is not None:
            self._other_formats.add(folder)
        if found.modified_ms is None or found.modified_ms >= self._older_than_ms:
            self._too_young += 1
            self._too_young_bytes += found.size
        else:
            self._unreferenced.append(found)

    def candidates(self) -> OrphanCandidates:
        """The candidates among the objects so far."""
        return OrphanCandidates(
            self._listed,
            self._too_young,
            tuple(self._unreferenced),
            tuple(self._metadata_files),
            tuple(self._prefix_mismatches),
            frozenset(self._other_formats),
            self._too_young_bytes,
            self._newest_ms,
        )


def find_candidates(
    listed: Iterable[ListedObject], referenced: ReferencedPaths, older_than_ms: int
) -> OrphanCandidates:
    """The candidates of a whole listing, and what it lacks; see :class:`CandidateCollector`."""
    collector = CandidateCollector(referenced, older_than_ms)
    collector.add_all(listed)
    return replace(collector.candidates(), unlisted=referenced.unlisted())


def join_candidates(parts: Iterable[OrphanCandidates]) -> OrphanCandidates:
    """The candidates of a listing of which these are the parts."""
    parts = list(parts)
    return OrphanCandidates(
        sum(part.listed for part in parts),
        sum(part.too_young for part in parts),
        tuple(found for part in parts for found in part.unreferenced),
        tuple(found for part in parts for found in part.metadata_files),
        tuple(path for part in parts for path in part.prefix_mismatches),
        frozenset().union(*(part.other_formats for part in parts)),
        sum(part.too_young_bytes for part in parts),
        max((part.newest_ms for part in parts), default=0),
        UnlistedPaths.joined(part.unlisted for part in parts if part.unlisted is not None),
    )


def without_referenced(candidates: OrphanCandidates, referenced: References) -> OrphanCandidates:
    """The candidates that are left once more is known to be referenced."""
    mismatches = (found.path for found in candidates.unreferenced if referenced.has_prefix_mismatch(found.path))
    return replace(
        candidates,
        unreferenced=tuple(found for found in candidates.unreferenced if found.path not in referenced),
        metadata_files=tuple(found for found in candidates.metadata_files if found.path not in referenced),
        prefix_mismatches=(*candidates.prefix_mismatches, *mismatches),
    )
