"""Reads S3 objects ahead, in the order that the caller announces, while the caller works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from icekeeper.machine.metering import WorkThreads
from icekeeper.storage.arrow_files import read_s3_range
from icekeeper.storage.paths import S3_SCHEMES, split_path
from icekeeper.storage.storage import Storage

_UNDER_WAY = 3
"""Requests at once; so many answers are in memory, and one more that the caller works on."""


class Read(NamedTuple):
    """A read of the bytes from ``start`` to before ``end``; ``etag``: the one that the object must have, if any."""

    path: str
    etag: str | None
    start: int
    end: int

    def holds(self, other: Read) -> bool:
        """Whether this read contains the other one."""
        return self[:2] == other[:2] and self.start <= other.start and other.end <= self.end


def can_read_ahead(path: str) -> bool:
    """Whether the object is on S3; a local file needs no reading ahead."""
    return split_path(path).scheme in S3_SCHEMES


ReadRange: TypeAlias = Callable[[Read], memoryview]
"""Returns the bytes of a read; raises as :func:`.read_s3_range` does."""


def direct_reads(storage: Storage) -> ReadRange:
    """A function that sends one request for each read, from any thread.

    Raises:
        BotoCoreError: there are no credentials.
    """
    client = storage.s3

    def fetch(read: Read) -> memoryview:
        storage.require([read.path])
        return memoryview(read_s3_range(client, read.path, read.start, read.end, read.etag))

    return fetch


class _ReadAhead:
    """Reads that were announced, in their order, or parts of them; any other read is sent when it is requested."""

    def __init__(self, fetch: ReadRange, announced: Iterable[Read], pool: WorkThreads) -> None:
        self._fetch = fetch
        self._announced = iter(announced)
        self._pool = pool
        self._waiting: deque[tuple[Read, Future[memoryview]]] = deque()
        self._held: tuple[Read, memoryview] | None = None
        self._send()

    def read(self, read: Read) -> memoryview:
        """The bytes; raises as :func:`.read_s3_range`."""
        if self._held is None or not self._held[0].holds(read):
            if not any(announced.holds(read) for announced, _ in self._waiting):
                return self._fetch(read)
            self._held = None  # frees its memory before the wait
            while not self._waiting[0][0].holds(read):
                self._waiting.popleft()
            announced, answer = self._waiting.popleft()
            self._held = announced, answer.result()
            self._send()
        whole, data = self._held
        return data[read.start - whole.start : read.end - whole.start]

    def _send(self) -> None:
        while len(self._waiting) < _UNDER_WAY:
            read = next(self._announced, None)
            if read is None:
                return
            self._waiting.append((read, self._pool.submit(self._fetch, read)))


@contextmanager
def reading_ahead(storage: Storage, announced: Iterable[Read]) -> Iterator[ReadRange]:
    """A function that reads, best in the announced order; the first requests are sent at once.

    Raises:
        BotoCoreError: there are no credentials.
    """
    fetch = direct_reads(storage)
    with WorkThreads(_UNDER_WAY, thread_name_prefix="read-ahead") as pool:
        try:
            yield _ReadAhead(fetch, announced, pool).read
        finally:
            pool.shutdown(cancel_futures=True)


def beside_known(reads: ReadRange, known: Read, data: bytes) -> ReadRange:
    """As ``reads``, but serves reads within ``known`` from its bytes, ``data``."""
    view = memoryview(data)

    def read(wanted: Read) -> memoryview:
        return view[wanted.start - known.start : wanted.end - known.start] if known.holds(wanted) else reads(wanted)

    return read


class RangedStream:
    """The part of a stream's interface that reads ranges, over ``read``; also a context manager."""

    def __init__(self, read: ReadRange, path: str, etag: str | None) -> None:
        self._read = read
        self._path = path
        self._etag = etag
        self._position = 0

    def __enter__(self) -> RangedStream:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing is open."""

    def seek(self, position: int) -> None:
        self._position = position

    def read_buffer(self, size: int) -> memoryview:
        """The next bytes; raises as :func:`.read_s3_range`."""
        start, self._position = self._position, self._position + size
        return self._read(Read(self._path, self._etag, start, self._position))
