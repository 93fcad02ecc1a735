"""Opens the inputs of a task one after the other; small files of an object store are fetched before they are needed.

A request takes milliseconds however little it asks for, and a small file of ten columns would take a dozen of them, one
after the other.  So such files are fetched whole, several at once, up to a bound of memory.  Files on this machine are
opened when they are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa

from icekeeper.machine.metering import WorkThreads
from icekeeper.rows.file_rows import reading
from icekeeper.rows.read_task import InputFile
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["opened_inputs"]

# Larger files are read by row groups.
_SMALL_BYTES = 4 * 1024 * 1024
_AHEAD_BYTES = 16 * 1024 * 1024
_AHEAD_FILES = 64
_THREADS = 8


def opened_inputs(inputs: Sequence[InputFile], storage: Storage) -> Iterator[tuple[InputFile, pa.NativeFile | None]]:
    """Each input in order with its bytes; ``None``: it is to be opened by whoever reads it.

    Raises:
        FileUnreadable: an input, when its turn has come, is missing.
        StorageError: the store failed.
    """
    waiting = deque(inputs)
    ahead: deque[tuple[InputFile, Future[pa.NativeFile | None] | None]] = deque()
    held = 0
    with WorkThreads(_THREADS, thread_name_prefix="icekeeper-fetch") as pool:
        try:
            while ahead or waiting:
                while waiting and (not ahead or (held < _AHEAD_BYTES and len(ahead) < _AHEAD_FILES)):
                    source = waiting.popleft()
                    ahead.append((source, pool.submit(_whole, source, storage) if _is_small(source) else None))
                    held += _held_bytes(source)
                source, fetched = ahead.popleft()
                yield source, None if fetched is None else fetched.result()
                del fetched
                held -= _held_bytes(source)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _is_small(source: InputFile) -> bool:
    return source.file_size_in_bytes <= _SMALL_BYTES and not is_local(source.path)


def _held_bytes(source: InputFile) -> int:
    return source.file_size_in_bytes if _is_small(source) else 0


def _whole(source: InputFile, storage: Storage) -> pa.NativeFile | None:
    """The bytes of a file; ``None`` where it is larger than its manifest entry says, and would not fit."""
    with (
        reading(source.path, storage),
        storage.translated(source.path),
        storage.open_input(source.path, source.file_size_in_bytes) as stream,
    ):
        return pa.BufferReader(stream.read_buffer()) if stream.size() <= _SMALL_BYTES else None
