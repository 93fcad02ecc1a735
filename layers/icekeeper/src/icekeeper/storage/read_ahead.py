"""Reads S3 objects ahead, in the order that the caller announces, while the caller works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeAlias

from icekeeper.machine.metering import WorkThreads
from icekeeper.storage.arrow_files import read_s3_range
from icekeeper.storage.part_plan import ObjectRange
from icekeeper.storage.storage import Storage

_UNDER_WAY = 3
"""Parallel requests; so many answers are in memory, in addition to the answer that the caller is working on."""


ReadRange: TypeAlias = Callable[[ObjectRange], memoryview]
"""Returns the bytes of a read; raises what :func:`.read_s3_range` raises."""


def direct_reads(storage: Storage) -> ReadRange:
    """A function that sends a request for each read, from any thread; raises BotoCoreError without credentials."""
    client = storage.s3

    def fetch(read: ObjectRange) -> memoryview:
        storage.require([read.path])
        return memoryview(read_s3_range(client, read))

    return fetch


class _ReadAhead:
    """Sends announced reads ahead, in their order; serves them or parts of them; sends any other read on request."""

    def __init__(self, fetch: ReadRange, announced: Iterable[ObjectRange], pool: WorkThreads) -> None:
        self._fetch = fetch
        self._announced = iter(announced)
        self._pool = pool
        self._waiting: deque[tuple[ObjectRange, Future[memoryview]]] = deque()
        self._held: tuple[ObjectRange, memoryview] | None = None
        self._send()

    def read(self, read: ObjectRange) -> memoryview:
        """The bytes; raises what :func:`.read_s3_range` raises."""
        if self._held is None or not self._held[0].holds(read):
            if not any(announced.holds(read) for announced, _ in self._waiting):
                return self._fetch(read)
            self._held = None  # free its memory before the wait
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
def reading_ahead(storage: Storage, announced: Iterable[ObjectRange]) -> Iterator[ReadRange]:
    """A function that reads, fastest in the announced order; the first requests are sent immediately."""
    fetch = direct_reads(storage)
    with WorkThreads(_UNDER_WAY, thread_name_prefix="read-ahead") as pool:
        try:
            yield _ReadAhead(fetch, announced, pool).read
        finally:
            pool.shutdown(cancel_futures=True)


def beside_known(reads: ReadRange, known: ObjectRange, data: bytes) -> ReadRange:
    """Like ``reads``, but takes reads within ``known`` from its bytes, ``data``."""
    view = memoryview(data)

    def read(wanted: ObjectRange) -> memoryview:
        return view[wanted.start - known.start : wanted.end - known.start] if known.holds(wanted) else reads(wanted)

    return read


class RangedStream:
    """Implements the part of a stream's interface that reads ranges, by ``read``; also a context manager."""

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
        """The next bytes; raises what :func:`.read_s3_range` raises."""
        start, self._position = self._position, self._position + size
        return self._read(ObjectRange(self._path, self._etag, start, self._position))
