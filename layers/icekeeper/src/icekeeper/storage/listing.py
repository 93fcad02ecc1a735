"""Lists in parallel, as a stream: the first levels of folders are read, then threads list the folders below.

An S3 listing returns a thousand keys per request, and each request needs the answer to the previous one; several
folders can be listed at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Full, Queue
from threading import Event
from typing import Protocol, TypeAlias, TypeVar

from icekeeper.machine.metering import WorkThreads

# A thread mostly waits for the store, which sends a thousand keys at a time; a process cannot parse more answers.
LISTING_THREADS = 16
# More folders than threads, because folders have unequal sizes.
_FOLDERS_WANTED = 4 * LISTING_THREADS
# In a table: location, data/ and metadata/, partitions.  In a warehouse: also the namespaces and tables above them.
_LEVELS = 4
_CHUNK = 500
_STOP_LOOKED_FOR_S = 0.1

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object of a listing; size in bytes, modification time in epoch milliseconds (``None``: not known)."""

    path: str
    size: int
    modified_ms: int | None
    etag: str | None = None
    version: str = ""
    """The id of an older version of the object; empty: the current version."""

    def read(self) -> ListedObject:
        """The object itself, because its size and time are known."""
        return self


class Listed(Protocol):
    """A file of a listing; its size and time may not have been read yet."""

    @property
    def path(self) -> str: ...

    def read(self) -> ListedObject | None:
        """The file with its size and time; ``None``: it is gone."""


def known_ms(modified_ms: int) -> int | None:
    """A modification time in epoch milliseconds; ``None`` unless it is after 1970
    (rule: orphans-outlive-the-grace-period).

    Stores that do not know the time return the zero of their clock: the year 1970, 1601 or 1.
    """
    return modified_ms if modified_ms > 0 else None


Level: TypeAlias = tuple[list[ListedObject], list[str]]
"""The objects in a folder, and the folders in it."""


def divide(root: str, level: Callable[[str], Level | None]) -> Level:
    """The objects of the first levels of ``root``, and enough folders for all threads, which list them recursively.

    ``level`` returns ``None`` for a folder with too many entries, which is then one of these folders.
    """
    objects: list[ListedObject] = []
    whole: list[str] = []
    frontier = [root]
    with WorkThreads(LISTING_THREADS, thread_name_prefix="listing") as pool:
        for _ in range(_LEVELS):
            if not frontier or len(frontier) + len(whole) >= _FOLDERS_WANTED:
                break
            deeper: list[str] = []
            for folder, found in zip(frontier, pool.map(level, frontier), strict=True):
                if found is None:
                    whole.append(folder)
                else:
                    objects += found[0]
                    deeper += found[1]
            frontier = deeper
    return objects, [*whole, *frontier]


def in_parallel(sources: Sequence[Callable[[], Iterable[Item]]]) -> Iterator[Item]:
    """The items of all sources, in no particular order; a bounded number of items waits in memory.

    The first error of a source is raised.  The other sources are stopped after an error, or when the caller stops.
    """
    if len(sources) <= 1:
        for source in sources:
            yield from source()
        return
    waiting: Queue[list[Item] | BaseException | None] = Queue(2 * LISTING_THREADS)
    stop = Event()

    def put(what: list[Item] | BaseException | None) -> None:
        while not stop.is_set():
            try:
                waiting.put(what, timeout=_STOP_LOOKED_FOR_S)
                return
            except Full:
                continue

    def run(source: Callable[[], Iterable[Item]]) -> None:
        try:
            chunk: list[Item] = []
            for item in source() if not stop.is_set() else ():
                chunk.append(item)
                if len(chunk) >= _CHUNK:
                    put(chunk)
                    chunk = []
                    if stop.is_set():
                        return
            put(chunk)
        except BaseException as error:
            put(error)
        finally:
            put(None)

    with WorkThreads(LISTING_THREADS, thread_name_prefix="listing") as pool:
        try:
            for source in sources:
                pool.submit(run, source)
            left = len(sources)
            while left:
                got = waiting.get()
                if got is None:
                    left -= 1
                elif isinstance(got, BaseException):
                    raise got
                else:
                    yield from got
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
