"""Opens the inputs of a copy one after the other; those on S3 are read ahead, across the ends of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

from icekeeper.row_group_copy.chunk_checks import Piece
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.footer import MAGIC, Footer
from icekeeper.row_group_copy.stream import BLOCK_BYTES, cuts
from icekeeper.storage.read_ahead import (
    RangedStream,
    Read,
    ReadRange,
    beside_known,
    can_read_ahead,
    reading_ahead,
)
from icekeeper.storage.storage import Storage

__all__ = ["OpenInput", "input_streams", "ranged_stream", "stream_of_pieces"]

_STEP_BYTES = 1024 * 1024

OpenInput: TypeAlias = Callable[[CopyableFile], Any]
"""Gives a stream that reads a file, as a context manager."""


@contextmanager
def input_streams(files: Sequence[CopyableFile], storage: Storage) -> Iterator[OpenInput]:
    """What opens these files, which are to be read in this order.

    Raises:
        BotoCoreError: there are no credentials.
    """
    if not all(can_read_ahead(file.path) for file in files):
        yield lambda file: _in_steps(storage, file.path)
        return
    announced = (read for file in files for read in _reads(file.path, file.footer.etag, _expected(file)))
    with reading_ahead(storage, announced) as reads:
        yield lambda file: ranged_stream(file.footer, reads)


def ranged_stream(footer: Footer, reads: ReadRange) -> RangedStream:
    """A stream of that footer's file on S3, which reads nothing again that came with the footer."""
    if footer.before:
        known = Read(footer.path, footer.etag, footer.before_start, footer.start)
        reads = beside_known(reads, known, footer.before)
    return RangedStream(reads, footer.path, footer.etag)


@contextmanager
def stream_of_pieces(
    stream: Any, path: str, etag: str | None, pieces: Iterable[Piece], storage: Storage
) -> Iterator[Any]:
    """A stream that reads these pieces of an open file ahead, or the one that is open where its store is another."""
    if not can_read_ahead(path):
        yield _Steps(stream)
        return
    with reading_ahead(storage, _reads(path, etag, pieces)) as reads:
        yield RangedStream(reads, path, etag)


@contextmanager
def _in_steps(storage: Storage, path: str) -> Iterator[_Steps]:
    with storage.open_input(path) as stream:
        yield _Steps(stream)


class _Steps:
    """An open file, of which one call reads no more than stays in the processor's caches (platform 74)."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def seek(self, position: int) -> None:
        """Where the next read begins."""
        self._stream.seek(position)

    def read_buffer(self, size: int) -> Any:
        """So many bytes or fewer; none at the end of the file."""
        return self._stream.read_buffer(min(size, _STEP_BYTES))


def _expected(file: CopyableFile) -> Iterator[Piece]:
    """What is going to be read: the page indexes, unless they came with the footer, then the data.

    Where the indexes lie, only the understood footer says; as a rule, they are the most that is not copied.
    """
    bounds = [Piece(0, len(MAGIC)), *file.ranges, Piece(file.footer.start, file.footer.start)]
    widest = max((Piece(a.end, b.start) for a, b in pairwise(bounds)), key=lambda gap: gap.size)
    if file.column_index_bytes <= widest.size <= BLOCK_BYTES and file.column_index_bytes and not file.footer.before:
        yield widest
    yield from file.ranges


def _reads(path: str, etag: str | None, pieces: Iterable[Piece]) -> Iterator[Read]:
    for piece in pieces:
        for cut in cuts(piece):
            yield Read(path, etag, cut.start, cut.end)
