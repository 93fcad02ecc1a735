"""Listing in parallel, streamed: the first levels of folders tell how to divide the rest among threads.

One S3 listing answers a thousand keys per request, one request after the other; folders can be listed side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Full, Queue
from threading import Event
from typing import NamedTuple, TypeVar

__all__ = ["LISTING_THREADS", "Division", "Level", "ListedObject", "divide", "in_parallel"]

LISTING_THREADS = 16
# More folders than threads, because folders are of unequal size.
_FOLDERS_WANTED = 4 * LISTING_THREADS
# A table's location, data/ and metadata/, partitions; of a warehouse, namespaces and tables before them.
_LEVELS = 4
_CHUNK = 500
_STOP_LOOKED_FOR_S = 0.1

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object of a listing; size in bytes, age as epoch milliseconds (``None``: the store does not say)."""

    path: str
    size: int
    modified_ms: int | None


class Level(NamedTuple):
    """What lies directly in a folder."""

    objects: Sequence[ListedObject]
    folders: Sequence[str]


class Division(NamedTuple):
    """A listing divided: objects already seen above, and folders that are left to list with all below them."""

    objects: Sequence[ListedObject]
    folders: Sequence[str]


def divide(root: str, level: Callable[[str], Level | None]) -> Division:
    """Look into the first levels until there are folders enough; ``level`` gives none for a folder of too many
    entries, which is then listed as a whole."""
    objects: list[ListedObject] = []
    whole: list[str] = []
    frontier = [root]
    with ThreadPoolExecutor(LISTING_THREADS, thread_name_prefix="listing") as pool:
        for _ in range(_LEVELS):
            if not frontier or len(frontier) + len(whole) >= _FOLDERS_WANTED:
                break
            deeper: list[str] = []
            for folder, found in zip(frontier, pool.map(level, frontier), strict=True):
                if found is None:
                    whole.append(folder)
                else:
                    objects += found.objects
                    deeper += found.folders
            frontier = deeper
    return Division(objects, [*whole, *frontier])


def in_parallel(sources: Sequence[Callable[[], Iterable[Item]]]) -> Iterator[Item]:
    """What all sources give, in no particular order; a bounded number of items waits at any time.

    The first failure of a source is raised, and the others are stopped; so they are when nobody wants more.
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

    with ThreadPoolExecutor(LISTING_THREADS, thread_name_prefix="listing") as pool:
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
