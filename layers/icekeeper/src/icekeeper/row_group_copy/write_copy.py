"""Writes the new file: streams the ranges of every input, or lets the store copy them.

Both ways write the same bytes, and in both we send page indexes, footer and new lineage columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from typing import Any, TypeAlias

from icekeeper.errors import FileUnreadable
from icekeeper.machine.metering import WorkThreads
from icekeeper.row_group_copy.copyable import CopyableFile, Layout, Placement, stored_bounds
from icekeeper.row_group_copy.footer import (
    LINEAGE_COLUMNS,
    MAGIC,
    Footer,
    PageWalk,
    ParquetSchema,
    Piece,
    claimed_pages,
    data_pages,
    ends_are_certain,
    framed,
    joined,
)
from icekeeper.row_group_copy.footer_decisions import Lacks, RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer_structs import CannotCopy, ColumnMetaData, DamagedPage, NotCopyable, RowGroup
from icekeeper.row_group_copy.lineage import LineageChunks, LineageFacts, spliced, write_lineage
from icekeeper.row_group_copy.new_footer import MovedRowGroups, column_indexes_of, footer_bytes, indexes_of
from icekeeper.storage.arrow_files import ObjectChanged
from icekeeper.storage.multipart import AssembledObject, assemble, bounded_output, may_copy_ranges
from icekeeper.storage.part_plan import Content, ObjectRange, Part, plan_parts, sent_bytes, size_of
from icekeeper.storage.paths import is_s3
from icekeeper.storage.read_ahead import RangedStream, ReadRange, beside_known, direct_reads, reading_ahead
from icekeeper.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class CopiedRowGroup:
    """A row group of an input: its facts, read by Arrow, and the checksum of every column chunk."""

    source: str
    facts: RowGroupFacts
    checksums: tuple[int, ...]
    """Empty if the store copied the bytes."""
    lineage: LineageFacts | None = None
    """The content of its lineage columns, if it has them."""


@dataclass(frozen=True, slots=True)
class WrittenCopy:
    """A new file and the row groups that were copied into it."""

    path: str
    size: int
    row_groups: tuple[CopiedRowGroup, ...]
    split_offsets: tuple[int, ...]
    assembled: AssembledObject | None = None
    """Set if its store assembled the file."""
    parts: tuple[Part, ...] = ()
    """The parts from which its store assembled the file."""


@dataclass(frozen=True, slots=True)
class CopiedInput:
    """The copied row groups of an input and their pages."""

    placement: Placement
    row_groups: tuple[CopiedRowGroup, ...]
    column_index_bytes: int
    """Bytes of the column indexes in the new file, without those of new lineage columns."""
    indexes: dict[Piece, bytes]
    """Page indexes by their place in the input."""
    pages: dict[Piece, list[Piece]]
    """The data pages of every column chunk."""


def agreed_facts(file: CopyableFile, groups: Sequence[RowGroup], lacks: Lacks) -> list[RowGroupFacts]:
    """The facts of the row groups, read by Arrow; raises CannotCopy if Arrow finds a column chunk at another place."""
    numbers = [group.number for group in file.groups]
    found = row_group_facts(file.footer.seen_by_arrow(), numbers, lacks)
    facts = [copy.columns(len(group.columns)) for copy, group in zip(found, groups, strict=True)]
    pieces = [[data_pages(chunk.meta_data) for chunk in group.columns] for group in groups]
    if [list(fact.pieces) for fact in facts] != pieces:
        raise CannotCopy("has column chunks that Arrow finds at other places than its footer says")
    return facts


def _copied_input(
    placement: Placement,
    groups: Sequence[RowGroup],
    facts: Sequence[RowGroupFacts],
    crcs: Mapping[Piece, int] | None,
    indexes: dict[Piece, bytes],
    pages: dict[Piece, list[Piece]],
    schema: ParquetSchema,
    lacks: Lacks,
) -> CopiedInput:
    """``crcs`` are the checksums of all column chunks; ``None``: the store copies the bytes."""
    copied = []
    for fact, group in zip(facts, groups, strict=True):
        has_lineage = schema.has_lineage and len(group.columns) == len(schema.columns)
        bounds = stored_bounds(group) if has_lineage else None
        checksums = () if crcs is None else tuple(crcs[piece] for piece in fact.pieces)
        lineage = None if bounds is None else LineageFacts(bounds)
        copied.append(CopiedRowGroup(placement.file.path, fact, checksums, lineage))
    index_bytes = sum(piece.size for group in groups for piece in column_indexes_of(group, lacks))
    return CopiedInput(placement, tuple(copied), index_bytes, indexes, pages)


def write_copy(layout: Layout, path: str, schema: ParquetSchema, storage: Storage) -> WrittenCopy | NotCopyable:
    """Stream the row groups of a layout's inputs to ``path``; on failure no file remains there.

    Raises:
        FileUnreadable: a page of an input has a wrong checksum.
        StorageError: an input cannot be read, or the file cannot be written.
    """
    placement: Placement | None = None
    copied: list[CopiedInput] = []
    try:
        files = [placement.file for placement in layout.placements]
        with storage.translated(path), bounded_output(storage, path) as sink, input_streams(files, storage) as opened:
            sink.write(MAGIC)
            for placement in layout.placements:
                with storage.translated(placement.file.path):
                    copied.append(_copy_input(placement, sink, schema, layout.lacks, opened))
            tail = write_tail(sink, layout, copied, schema, storage)
            size = int(sink.tell())
    except BaseException as error:
        storage.delete([path])
        if isinstance(error, DamagedPage) and placement is not None:
            damaged = placement.file.path
            raise FileUnreadable(f"file {damaged} cannot be read: {error}", path=damaged) from error
        if isinstance(error, CannotCopy) and placement is not None:
            return NotCopyable(placement.file.path, str(error))
        raise
    if isinstance(tail, NotCopyable):
        storage.delete([path])
        return tail
    return WrittenCopy(path, size, *tail)


def _copy_input(placement: Placement, sink: Any, schema: ParquetSchema, lacks: Lacks, opened: OpenInput) -> CopiedInput:
    file = placement.file
    groups = file.carried()
    chunks = {data_pages(chunk.meta_data): chunk.meta_data for group in groups for chunk in group.columns}
    facts = agreed_facts(file, groups, lacks)
    with opened(file) as stream:
        indexes = read_pieces(stream, [piece for group in groups for piece in indexes_of(group, lacks)])
        crcs, pages = copy_ranges(stream, sink, file.ranges, chunks)
    return _copied_input(placement, groups, facts, crcs, indexes, pages, schema, lacks)


# A store assembles the new file (rule: store-copies-the-judged-object): it copies the ranges of the inputs, and we send
# page indexes and the footer.  We read only the inputs' page indexes, and ranges that are too short for a part.  So
# pages are not checked by ``PageWalk``, but by ``ends_are_certain`` and ``claimed_pages``.  If these checks are not
# enough, or the store copies no ranges, the bytes are streamed.

_MOST_SENT = 1 / 3
"""The largest share of the file that we send: our bytes between inputs of 16 MB become parts of 5 MiB, a third."""
_READ_AT_ONCE = 8


def copy_in_store(
    layout: Layout, path: str, schema: ParquetSchema, storage: Storage
) -> WrittenCopy | NotCopyable | None:
    """Let the store assemble the file; ``None``: there is no file, and the bytes must be streamed.

    Raises:
        StorageError: page indexes of an input cannot be read.
    """
    if not may_copy_ranges(storage, path) or not _is_worth_it(layout):
        return None
    with storage.translated(path):
        reads = direct_reads(storage)
    inputs = _inputs(layout, schema, storage, reads)
    if not isinstance(inputs, list):
        return inputs
    end = BytesIO()
    tail = write_tail(end, layout, inputs, schema, storage)
    if isinstance(tail, NotCopyable):
        return tail
    planned = plan_parts([*_data(layout), end.getvalue()])
    if planned is None:
        return None
    try:
        assembled = assemble(storage, path, planned)
    except ObjectChanged as changed:
        return NotCopyable(str(changed), "changed after its footer was read")
    if isinstance(assembled, str):
        return None
    return WrittenCopy(path, sum(map(size_of, planned)), *tail, assembled, planned)


def _is_worth_it(layout: Layout) -> bool:
    files = [placement.file for placement in layout.placements]
    if not all(is_s3(file.path) and file.footer.etag for file in files):
        return False
    parts = plan_parts(_data(layout))
    if parts is None:
        return False
    # The size of the end is estimated: offset indexes are seldom larger than column indexes.
    end = sum(2 * file.column_index_bytes + len(file.footer.thrift) for file in files)
    size = sum(map(size_of, parts)) + end
    return sent_bytes(parts) + end <= _MOST_SENT * size


def _data(layout: Layout) -> Iterator[Content]:
    """The magic bytes and the copied ranges of the new file."""
    ranges = [
        ObjectRange(file.path, file.footer.etag or "", piece.start, piece.end)
        for file in (placement.file for placement in layout.placements)
        for piece in file.ranges
    ]
    # The first input also begins with the magic bytes; if we sent them, they would become a part of 5 MiB.
    if ranges and ranges[0].start == len(MAGIC):
        yield replace(ranges[0], start=0)
    else:
        yield MAGIC
        yield from ranges[:1]
    yield from ranges[1:]


def _inputs(
    layout: Layout, schema: ParquetSchema, storage: Storage, reads: ReadRange
) -> list[CopiedInput] | NotCopyable | None:
    """The copied row groups of every input; ``None``: the end of a chunk is not certain."""
    lacks = layout.lacks

    def read(placement: Placement) -> CopiedInput | None:
        footer, groups = placement.file.footer, placement.file.carried()
        if not ends_are_certain([group for group in footer.metadata().row_groups if group.num_rows], footer.start):
            return None
        facts = agreed_facts(placement.file, groups, lacks)
        wanted = [piece for group in groups for piece in indexes_of(group, lacks)]
        with storage.translated(footer.path):
            indexes = read_pieces(ranged_stream(footer, reads), wanted)
        pages = claimed_pages(groups, indexes)
        return _copied_input(placement, groups, facts, None, indexes, pages, schema, lacks)

    found: list[CopiedInput] = []
    with WorkThreads(_READ_AT_ONCE, thread_name_prefix="page-indexes") as pool:
        for first in range(0, len(layout.placements), _READ_AT_ONCE):
            some = layout.placements[first : first + _READ_AT_ONCE]
            for placement, running in [(placement, pool.submit(read, placement)) for placement in some]:
                try:
                    known = running.result()
                except CannotCopy as error:
                    return NotCopyable(placement.file.path, str(error))
                if known is None:
                    return None
                found.append(known)
    return found


def write_tail(
    sink: Any, layout: Layout, inputs: Sequence[CopiedInput], schema: ParquetSchema, storage: Storage
) -> tuple[tuple[CopiedRowGroup, ...], tuple[int, ...]] | NotCopyable:
    """Write new lineage columns, page indexes and footer to ``sink``, which is at the end of the copied ranges.

    Returns:
        The row groups with their new lineage columns, and their offsets in the new file.

    Raises:
        StorageError: row ids of an input cannot be read, or the file cannot be written.
    """
    start, lacks = layout.data_end, layout.lacks
    current = inputs[0]
    lineage: list[tuple[LineageChunks | None, ...]] = []
    try:
        for current in inputs:
            lineage.append(write_lineage(current.placement.file, sink, start, schema, lacks, storage))
            start += sum(new.place.size for new in lineage[-1] if new is not None)
        written = [new for some in lineage for new in some if new is not None]
        column_index_bytes = sum(input.column_index_bytes for input in inputs)
        for new in written:
            numbered = enumerate(new.column_indexes, len(schema.columns) - LINEAGE_COLUMNS)
            column_index_bytes += sum(piece.size for number, (piece, _) in numbered if lacks.has_column_index(number))
        moved = MovedRowGroups(start, start + column_index_bytes, lacks)
        for current, some in zip(inputs, lineage, strict=True):
            groups = current.placement.file.carried()
            placement, indexes, pages = spliced(current.placement, groups, some)
            moved.add(groups, placement, current.indexes | indexes, current.pages | pages)
        sink.write(moved.column_indexes)
        sink.write(moved.offset_indexes)
        files, writers = [input.placement.file for input in inputs], {new.created_by for new in written}
        sink.write(framed(footer_bytes(files, moved.row_groups, schema, writers)))
    except CannotCopy as error:
        return NotCopyable(current.placement.file.path, str(error))
    copied = [group for input in inputs for group in input.row_groups]
    row_groups = map(_with_lineage, copied, (new for some in lineage for new in some))
    return tuple(row_groups), tuple(moved.split_offsets)


def _with_lineage(group: CopiedRowGroup, new: LineageChunks | None) -> CopiedRowGroup:
    if new is None:
        return group
    facts = group.facts.and_columns(new.facts)
    return CopiedRowGroup(group.source, facts, group.checksums + new.checksums, new.lineage)


_STEP_BYTES = 1024 * 1024

OpenInput: TypeAlias = Callable[[CopyableFile], Any]
"""Returns a context manager with a stream of the file."""


@contextmanager
def input_streams(files: Sequence[CopyableFile], storage: Storage) -> Iterator[OpenInput]:
    """A function that opens these files, which must be read in order; on S3, the next file is read ahead."""
    if not all(is_s3(file.path) for file in files):
        yield lambda file: _in_steps(storage, file.path)
        return
    announced = (read for file in files for read in _reads(file.path, file.footer.etag, _expected(file)))
    with reading_ahead(storage, announced) as reads:
        yield lambda file: ranged_stream(file.footer, reads)


def ranged_stream(footer: Footer, reads: ReadRange) -> RangedStream:
    """A stream of the footer's file on S3; bytes that came with the footer are not read again."""
    if footer.before:
        known = ObjectRange(footer.path, footer.etag, footer.before_start, footer.start)
        reads = beside_known(reads, known, footer.before)
    return RangedStream(reads, footer.path, footer.etag)


@contextmanager
def stream_of_pieces(
    stream: Any, path: str, etag: str | None, pieces: Iterable[Piece], storage: Storage
) -> Iterator[Any]:
    """A stream that reads these pieces of a file ahead; for a store other than S3, the open stream."""
    if not is_s3(path):
        yield _Steps(stream)
        return
    with reading_ahead(storage, _reads(path, etag, pieces)) as reads:
        yield RangedStream(reads, path, etag)


@contextmanager
def _in_steps(storage: Storage, path: str) -> Iterator[_Steps]:
    with storage.open_input(path) as stream:
        yield _Steps(stream)


class _Steps:
    """An open file that is read in steps which fit into the processor's caches (platform: arrow-allocators)."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def seek(self, position: int) -> None:
        self._stream.seek(position)

    def read_buffer(self, size: int) -> Any:
        """At most ``size`` bytes; none at the end of the file."""
        return self._stream.read_buffer(min(size, _STEP_BYTES))


def _expected(file: CopyableFile) -> Iterator[Piece]:
    """The pieces to read: the page indexes, unless they came with the footer, then the data.

    Decoding the footer to find the indexes is expensive, so this assumes that they are in the largest gap between the
    ranges.
    """
    bounds = [Piece(0, len(MAGIC)), *file.ranges, Piece(file.footer.start, file.footer.start)]
    widest = max((Piece(a.end, b.start) for a, b in pairwise(bounds)), key=lambda gap: gap.size)
    if file.column_index_bytes <= widest.size <= BLOCK_BYTES and file.column_index_bytes and not file.footer.before:
        yield widest
    yield from file.ranges


def _reads(path: str, etag: str | None, pieces: Iterable[Piece]) -> Iterator[ObjectRange]:
    for piece in pieces:
        for cut in cuts(piece):
            yield ObjectRange(path, etag, cut.start, cut.end)


BLOCK_BYTES = 8 * 1024 * 1024
"""Bytes per request to a store, large enough that requests cost little."""
_NEAR = 64 * 1024
"""Pieces with a gap up to this size are read with a single request."""


def cuts(piece: Piece) -> Iterator[Piece]:
    """The blocks in which a piece is read."""
    for start in range(piece.start, piece.end, BLOCK_BYTES):
        yield Piece(start, min(start + BLOCK_BYTES, piece.end))


def blocks(stream: Any, piece: Piece) -> Iterator[memoryview]:
    """The bytes of a piece in order; a block that the caller releases is freed before the next block is read.

    Raises CannotCopy if the file became shorter or was replaced."""
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
    stream: Any, sink: Any, ranges: Iterable[Piece], chunks: Mapping[Piece, ColumnMetaData]
) -> tuple[dict[Piece, int], dict[Piece, list[Piece]]]:
    """Write the ranges to ``sink``, a block at a time; return the checksum and the data pages of each column chunk.

    Raises:
        CannotCopy: a column chunk does not contain the pages that its footer describes.
        DamagedPage: a page has a wrong checksum.
    """
    watched = iter(sorted(chunks))
    current = next(watched, None)
    walk = None if current is None else PageWalk(chunks[current])
    found: dict[Piece, int] = {}
    pages: dict[Piece, list[Piece]] = {}
    crc = 0
    for piece in ranges:
        position = piece.start
        for block in blocks(stream, piece):
            sink.write(block)
            end = position + len(block)
            while current is not None and walk is not None and current.start < end:
                part = block[max(current.start, position) - position : current.end - position]
                walk.feed(part)
                crc = zlib.crc32(part, crc)
                del part
                if current.end > end:
                    break
                walk.end()
                found[current], pages[current] = crc, walk.pages
                crc = 0
                current = next(watched, None)
                walk = None if current is None else PageWalk(chunks[current])
            position = end
            del block
    return found, pages


def checksums(stream: Any, pieces: Iterable[Piece]) -> dict[Piece, int]:
    """The checksum of every piece; pieces do not overlap and are read in ascending order."""
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
                crc = zlib.crc32(block[max(current.start, position) - position : current.end - position], crc)
                if current.end > end:
                    break
                found[current] = crc
                crc = 0
                current = next(waiting, None)
            position = end
            del block
    return found


def read_pieces(stream: Any, pieces: Iterable[Piece]) -> dict[Piece, bytes]:
    """The bytes of small pieces; those near each other are read together."""
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
