"""Has a store assemble the new file: it copies the ranges of the inputs, we send page indexes and the footer.

What we read are the inputs' page indexes, and what is too short to be a part of its own.  So no page is looked at
(:mod:`.pages`); :mod:`.unread_chunks` says what is checked instead, and where that is not enough the bytes are
streamed, as they are where the store copies no ranges.  Both ways write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO

from icekeeper.machine.metering import WorkThreads
from icekeeper.row_group_copy.copied_input import (
    CopiedInput,
    CopiedRowGroup,
    WrittenCopy,
    agreed_facts,
    stored_lineage,
)
from icekeeper.row_group_copy.footer import MAGIC
from icekeeper.row_group_copy.footer_decisions import Lacks
from icekeeper.row_group_copy.input_streams import ranged_stream
from icekeeper.row_group_copy.layout import Layout, Placement
from icekeeper.row_group_copy.new_row_groups import column_indexes_of, indexes_of
from icekeeper.row_group_copy.refusal import CannotCopy, NotCopyable
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.stream import read_pieces
from icekeeper.row_group_copy.unread_chunks import claimed_pages, ends_are_certain
from icekeeper.row_group_copy.write_tail import write_tail
from icekeeper.storage.part_plan import Content, CopiedRange, OwnBytes, Part, plan_parts, sent_bytes
from icekeeper.storage.range_copies import AssembledObject, NotAssembled, assemble, may_copy_ranges
from icekeeper.storage.read_ahead import ReadRange, can_read_ahead, direct_reads
from icekeeper.storage.storage import Storage

__all__ = ["StoredCopy", "copy_in_store"]

_MOST_SENT = 1 / 3
"""Of the file: what files of 16 MB come to when a few bytes of our own between them make a part of 5 MiB."""
_READ_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A new file whose row groups have no checksums, for nobody read them."""

    written: WrittenCopy
    made: AssembledObject
    parts: tuple[Part, ...]


def copy_in_store(
    layout: Layout, path: str, schema: ParquetSchema, storage: Storage
) -> StoredCopy | NotCopyable | None:
    """Have the file assembled; ``None``, and no file, where its bytes are to be streamed.

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
    planned = plan_parts([*_data(layout), OwnBytes(end.getvalue())])
    if planned is None:
        return None
    made = assemble(storage, path, planned)
    if isinstance(made, NotAssembled):
        return NotCopyable(made.path, made.reason) if made.source_changed else None
    complete, split_offsets = tail
    row_groups = tuple(group for one in complete for group in one.complete_row_groups)
    return StoredCopy(WrittenCopy(path, made.size, row_groups, split_offsets), made, planned)


def _is_worth_it(layout: Layout) -> bool:
    files = [placement.file for placement in layout.placements]
    if not all(can_read_ahead(file.path) and file.footer.etag for file in files):
        return False
    parts = plan_parts(_data(layout))
    if parts is None:
        return False
    # Nobody knows yet how large the end is; offset indexes are seldom larger than column indexes.
    end = sum(2 * file.column_index_bytes + len(file.footer.thrift) for file in files)
    size = sum(part.size for part in parts) + end
    return sent_bytes(parts) + end <= _MOST_SENT * size


def _data(layout: Layout) -> Iterator[Content]:
    """Magic and data of the new file."""
    ranges = [
        CopiedRange(file.path, file.footer.etag or "", piece.start, piece.end)
        for file in (placement.file for placement in layout.placements)
        for piece in file.ranges
    ]
    # The first input begins with the magic as well; sent, it would be a part of 5 MiB.
    if ranges and ranges[0].start == len(MAGIC):
        yield replace(ranges[0], start=0)
    else:
        yield OwnBytes(MAGIC)
        yield from ranges[:1]
    yield from ranges[1:]


def _inputs(
    layout: Layout, schema: ParquetSchema, storage: Storage, reads: ReadRange
) -> list[CopiedInput] | NotCopyable | None:
    """What is said of every input; ``None``: where a chunk of one ends is not certain."""
    found: list[CopiedInput] = []
    read = partial(_read, schema=schema, lacks=layout.lacks, storage=storage, reads=reads)
    with WorkThreads(_READ_AT_ONCE, thread_name_prefix="page-indexes") as pool:
        for first in range(0, len(layout.placements), _READ_AT_ONCE):
            some = layout.placements[first : first + _READ_AT_ONCE]
            for placement, running in [(one, pool.submit(read, one)) for one in some]:
                try:
                    known = running.result()
                except CannotCopy as error:
                    return NotCopyable(placement.file.path, str(error))
                if known is None:
                    return None
                found.append(known)
    return found


def _read(
    placement: Placement, schema: ParquetSchema, lacks: Lacks, storage: Storage, reads: ReadRange
) -> CopiedInput | None:
    file = placement.file
    groups = file.carried()
    if not ends_are_certain([one for one in file.footer.metadata().row_groups if one.num_rows], file.footer.start):
        return None
    facts = agreed_facts(file, groups, lacks)
    wanted = [piece for group in groups for piece in indexes_of(group, lacks)]
    with storage.translated(file.path):
        indexes = read_pieces(ranged_stream(file.footer, reads), wanted)
    copied = (
        CopiedRowGroup(file.path, one, (), stored_lineage(group, schema))
        for one, group in zip(facts, groups, strict=True)
    )
    index_bytes = sum(piece.size for group in groups for piece in column_indexes_of(group, lacks))
    return CopiedInput(placement, tuple(copied), index_bytes, indexes, claimed_pages(groups, indexes))
