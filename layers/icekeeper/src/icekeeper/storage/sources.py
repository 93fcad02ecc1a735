"""Sources of the files of a location: the store's own listing, or a list that was made of it before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol, TypeAlias

from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage

__all__ = ["FileSource", "JoinedFiles", "KnownFiles", "ListedLocation", "SourcePart"]

SourcePart: TypeAlias = Callable[[], Iterable[ListedObject]]
"""Reads a share of the files; picklable, so that an engine's worker can call it."""


class FileSource(Protocol):
    """The files under one location, read from a listing or a list."""

    @property
    def is_current(self) -> bool:
        """Whether the files are as the store has them now; else each orphan must be looked up before it is deleted."""
        ...

    def objects(self) -> Iterator[ListedObject]:
        """All files, streamed.

        Raises:
            StorageError: they cannot be read.
        """
        ...

    def parts(self) -> Sequence[SourcePart]:
        """The same files in shares.

        Raises:
            StorageError: as :meth:`objects`; the parts raise it when they are read.
        """
        ...


@dataclass(frozen=True, slots=True)
class ListedLocation:
    """Lists the objects below ``location`` by asking the store, at the time of the call."""

    storage: Storage
    location: str
    is_current: bool = True

    def objects(self) -> Iterator[ListedObject]:
        """See :class:`FileSource`."""
        return self.storage.list(self.location)

    def parts(self) -> Sequence[SourcePart]:
        """See :class:`FileSource`."""
        objects, folders = self.storage.divide(self.location)
        return [partial(tuple, objects), *(partial(self.storage.list_folder, folder) for folder in folders)]


@dataclass(frozen=True, slots=True)
class JoinedFiles:
    """The files of several locations, none of which lies in another."""

    sources: tuple[FileSource, ...]

    @property
    def is_current(self) -> bool:
        """See :class:`FileSource`."""
        return all(source.is_current for source in self.sources)

    def objects(self) -> Iterator[ListedObject]:
        """See :class:`FileSource`."""
        return chain.from_iterable(source.objects() for source in self.sources)

    def parts(self) -> Sequence[SourcePart]:
        """See :class:`FileSource`."""
        return [part for source in self.sources for part in source.parts()]


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """Files that an earlier listing has found to be old orphans; each is looked up before it is deleted."""

    paths: tuple[str, ...]
    is_current: bool = False

    def objects(self) -> Iterator[ListedObject]:
        """See :class:`FileSource`; size and age are 0 here, and looked up for each file before it is deleted."""
        return (ListedObject(path, 0, 0) for path in self.paths)

    def parts(self) -> Sequence[SourcePart]:
        """See :class:`FileSource`."""
        return [partial(tuple, tuple(self.objects()))]
