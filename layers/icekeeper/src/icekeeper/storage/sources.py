"""Where the files of a location are read from: its listing, or a list that somebody else made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage

__all__ = ["FileSource", "KnownFiles", "ListedLocation", "SourcePart"]

SourcePart: TypeAlias = Callable[[], Iterable[ListedObject]]
"""A share of the files, picklable: an engine's worker reads it."""


class FileSource(Protocol):
    """The files under one location, by whatever way they are known."""

    @property
    def is_current(self) -> bool:
        """Whether the files are as they are now; else each orphan must be looked at before it goes."""
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
    """The store's own listing, made now."""

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
class KnownFiles:
    """Files that an earlier listing has found to be old orphans; each is looked at before it goes."""

    paths: tuple[str, ...]
    is_current: bool = False

    def objects(self) -> Iterator[ListedObject]:
        """See :class:`FileSource`; their age and size are what the look at each of them says."""
        return (ListedObject(path, 0, 0) for path in self.paths)

    def parts(self) -> Sequence[SourcePart]:
        """See :class:`FileSource`."""
        return [partial(tuple, tuple(self.objects()))]
