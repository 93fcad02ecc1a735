"""Sorts a listing by what is referenced, object by object, keeping only what may have to go (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from icekeeper.deletion.other_formats import other_format_at
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.storage.listing import ListedObject

__all__ = ["Sieve", "Sifted", "join_sifted", "sift", "without_referenced"]

# One is enough to refuse everything; some more for hashes that only happen to be equal.
_TWINS_KEPT = 100


class References(Protocol):
    """What is asked about a path; see :class:`icekeeper.deletion.referenced_paths.ReferencedPaths`."""

    def __contains__(self, path: str) -> bool: ...

    def has_twin_elsewhere(self, path: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Sifted:
    """What a listing comes to."""

    listed: int = 0
    too_young: int = 0
    """Unreferenced, and past no grace period yet."""
    unreferenced: tuple[ListedObject, ...] = ()
    """Old ones; what else protects a file is not asked here."""
    metadata_files: tuple[ListedObject, ...] = ()
    """Unreferenced files that are named like table metadata, of any age: whose are they?"""
    twins: tuple[str, ...] = ()
    """Unreferenced files whose path is probably referenced under another scheme, bucket or host: some of them."""
    other_formats: frozenset[str] = frozenset()
    """Folders of tables of other formats, as unreferenced files of any age tell."""


class Sieve:
    """Takes listed objects one by one; a file as old as ``older_than_ms`` (epoch milliseconds) is young, as is one of
    unknown age."""

    def __init__(self, referenced: References, older_than_ms: int) -> None:
        self._referenced, self._older_than_ms = referenced, older_than_ms
        self._listed = self._too_young = 0
        self._unreferenced: list[ListedObject] = []
        self._metadata_files: list[ListedObject] = []
        self._twins: list[str] = []
        self._other_formats: set[str] = set()

    def add(self, found: ListedObject) -> None:
        """Sort one object."""
        self._listed += 1
        if found.path in self._referenced:
            return
        if self._referenced.has_twin_elsewhere(found.path) and len(self._twins) < _TWINS_KEPT:
            self._twins.append(found.path)
        if is_metadata_file(found.path):
            self._metadata_files.append(found)
        elif (folder := other_format_at(found.path)) is not None:
            self._other_formats.add(folder)
        if found.modified_ms is None or found.modified_ms >= self._older_than_ms:
            self._too_young += 1
        else:
            self._unreferenced.append(found)

    def sifted(self) -> Sifted:
        """What it came to so far."""
        return Sifted(
            self._listed,
            self._too_young,
            tuple(self._unreferenced),
            tuple(self._metadata_files),
            tuple(self._twins),
            frozenset(self._other_formats),
        )


def sift(listed: Iterable[ListedObject], referenced: References, older_than_ms: int) -> Sifted:
    """Sort a whole listing; see :class:`Sieve`."""
    sieve = Sieve(referenced, older_than_ms)
    for found in listed:
        sieve.add(found)
    return sieve.sifted()


def join_sifted(parts: Iterable[Sifted]) -> Sifted:
    """What several parts of one listing come to together."""
    parts = list(parts)
    return Sifted(
        sum(part.listed for part in parts),
        sum(part.too_young for part in parts),
        tuple(found for part in parts for found in part.unreferenced),
        tuple(found for part in parts for found in part.metadata_files),
        tuple(path for part in parts for path in part.twins),
        frozenset().union(*(part.other_formats for part in parts)),
    )


def without_referenced(sifted: Sifted, referenced: References) -> Sifted:
    """What is left when more is known to be referenced than when the listing was sifted."""
    twins = (found.path for found in sifted.unreferenced if referenced.has_twin_elsewhere(found.path))
    return replace(
        sifted,
        unreferenced=tuple(found for found in sifted.unreferenced if found.path not in referenced),
        metadata_files=tuple(found for found in sifted.metadata_files if found.path not in referenced),
        twins=(*sifted.twins, *twins),
    )
