"""Streams the ranges of one input into the new file, a block at a time, and looks at the bytes as they pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from icekeeper.row_group_copy.chunk_checks import Piece, joined
from icekeeper.row_group_copy.evidence import checksum
from icekeeper.row_group_copy.footer_structs import ColumnMetaData
from icekeeper.row_group_copy.pages import PageWalk
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.storage.s3_ranges import ObjectChanged

__all__ = ["BLOCK_BYTES", "blocks", "checksums", "copy_ranges", "cuts", "read_pieces"]

BLOCK_BYTES = 8 * 1024 * 1024
"""What one request asks of a store; large enough that requests cost little."""
_NEAR = 64 * 1024
"""Pieces this near to each other are read with one request."""


def cuts(piece: Piece) -> Iterator[Piece]:
    """The blocks in which a piece is read."""
    for start in range(piece.start, piece.end, BLOCK_BYTES):
        yield Piece(start, min(start + BLOCK_BYTES, piece.end))


def blocks(stream: Any, piece: Piece) -> Iterator[memoryview]:
    """The bytes of a piece in order.  A caller that lets go of a block has its memory back before the next one is read.

    Raises:
        CannotCopy: the file has become shorter, or is another one.
    """
    stream.seek(piece.start)
    for cut in cuts(piece):
        missing = cut.size
        while missing:
            found = [_block(stream, missing)]
            missing -= len(found[0])
            yield found.pop()


def _block(stream: Any, size: int) -> memoryview:
    try:
        block = memoryview(stream.read_buffer(size))
    except ObjectChanged as error:
        raise CannotCopy("changed after its footer was read") from error
    if not len(block):
        raise CannotCopy("became shorter while it was read")
    return block


def copy_ranges(
    stream: Any,
    sink: Any,
    ranges: Iterable[Piece],
    chunks: Mapping[Piece, ColumnMetaData],
    *,
    verify_checksums: bool = True,
) -> tuple[dict[Piece, int], dict[Piece, list[Piece]]]:
    """Write the ranges to ``sink``; the checksum of each column chunk, and the data pages found in it.

    Raises:
        CannotCopy: a column chunk does not hold the pages that its footer describes.
        DamagedPage: with ``verify_checksums`` a page has another checksum than its bytes.
    """
    todo = sorted(chunks)
    watched = iter(todo)
    current = next(watched, None)
    walk = None if current is None else PageWalk(chunks[current], verify_checksums=verify_checksums)
    found: dict[Piece, int] = {}
    pages: dict[Piece, list[Piece]] = {}
    crc = 0
    for piece in ranges:
        position = piece.start
        for block in blocks(stream, piece):
            sink.write(block)
            end = position + len(block)
            while current is not None and walk is not None and current.start < end:
                crc = _watched(block[max(current.start, position) - position : current.end - position], walk, crc)
                if current.end > end:
                    break
                walk.end()
                found[current], pages[current] = crc, walk.pages
                crc = 0
                current = next(watched, None)
                walk = None if current is None else PageWalk(chunks[current], verify_checksums=verify_checksums)
            position = end
            del block
    return found, pages


def _watched(part: memoryview, walk: PageWalk, crc: int) -> int:
    walk.feed(part)
    return checksum(part, crc)


def checksums(stream: Any, pieces: Iterable[Piece]) -> dict[Piece, int]:
    """The checksum of every piece, as read in ascending order; pieces have no byte in common.

    Raises:
        CannotCopy: the file is too short.
    """
    ordered = sorted(pieces)
    waiting = iter(ordered)
    current = next(waiting, None)
    found: dict[Piece, int] = {}
    crc = 0
    for run in joined(ordered):
        position = run.start
        for block in blocks(stream, run):
            end = position + len(block)
            while current is not None and current.start < end:
                crc = checksum(block[max(current.start, position) - position : current.end - position], crc)
                if current.end > end:
                    break
                found[current] = crc
                crc = 0
                current = next(waiting, None)
            position = end
            del block
    return found


def read_pieces(stream: Any, pieces: Iterable[Piece]) -> dict[Piece, bytes]:
    """The bytes of small pieces; those near each other are read together.

    Raises:
        CannotCopy: the file has become shorter.
    """
    ordered = sorted(pieces)
    found: dict[Piece, bytes] = {}
    waiting = iter(ordered)
    current = next(waiting, None)
    for run in joined(ordered, _NEAR):
        data = b"".join(blocks(stream, run))
        while current is not None and current.end <= run.end:
            found[current] = data[current.start - run.start : current.end - run.start]
            current = next(waiting, None)
    return found
