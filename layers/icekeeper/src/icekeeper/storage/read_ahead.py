"""Reads S3 objects in the order that a caller announces, with several requests under way while it works."""

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
"""Requests; their answers are in memory, and one more that the caller works on."""


class Read(NamedTuple):
    """Bytes of an object from ``start`` to before ``end``; ``etag``: the one it must have, if any."""

    path: str
    etag: str | None
    start: int
    end: int

    def holds(self, other: Read) -> bool:
        """Whether the other one reads nothing but what this one reads."""
        return self[:2] == other[:2] and self.start <= other.start and other.end <= self.end


def can_read_ahead(path: str) -> bool:
    """Whether single requests read the object: it is on S3.  A local file needs no reading ahead."""
    return split_path(path).scheme in S3_SCHEMES


ReadRange: TypeAlias = Callable[[Read], memoryview]
"""Gives the bytes; raises as :func:`.read_s3_range` does."""


def direct_reads(storage: Storage) -> ReadRange:
    """What reads when it is asked, with one request each; from any thread.

    Raises:
        BotoCoreError: there are no credentials.
    """
    client = storage.s3

    def fetch(read: Read) -> memoryview:
        storage.require([read.path])
        return memoryview(read_s3_range(client, read.path, read.start, read.end, read.etag))

    return fetch


class _ReadAhead:
    """Reads that were announced, in their order, or parts of them; what was not, is read when it is asked for."""

    def __init__(self, fetch: ReadRange, announced: Iterable[Read], pool: WorkThreads) -> None:
        self._fetch = fetch
        self._announced = iter(announced)
        self._pool = pool
        self._waiting: deque[tuple[Read, Future[memoryview]]] = deque()
        self._held: tuple[Read, memoryview] | None = None
        self._send()

    def read(self, read: Read) -> memoryview:
        """The bytes.

        Raises:
            ObjectChanged, OSError, ClientError, BotoCoreError: see :func:`.read_s3_range`.
        """
        if self._held is None or not self._held[0].holds(read):
            if not any(announced.holds(read) for announced, _ in self._waiting):
                return self._fetch(read)
            self._held = None  # before the next answer is waited for
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
    """What reads, in this order; the first requests are sent at once.

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
    """What reads as ``reads`` does, but nothing again of ``known``, whose bytes ``data`` are here."""
    view = memoryview(data)

    def read(wanted: Read) -> memoryview:
        return view[wanted.start - known.start : wanted.end - known.start] if known.holds(wanted) else reads(wanted)

    return read


class RangedStream:
    """What of a stream reads ranges, as calls of ``read``; also a context manager, as streams are."""

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
        """Where the next read begins."""
        self._position = position

    def read_buffer(self, size: int) -> memoryview:
        """So many bytes.

        Raises:
            ObjectChanged, OSError, ClientError, BotoCoreError: see :func:`.read_s3_range`.
        """
        start, self._position = self._position, self._position + size
        return self._read(Read(self._path, self._etag, start, self._position))
