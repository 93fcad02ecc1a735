"""Writes the new file: ranges of every input as they are read, and what follows them (:mod:`.write_tail`)."""

from __future__ import annotations

from typing import Any

from icekeeper.errors import FileUnreadable
from icekeeper.row_group_copy.chunk_checks import data_pages
from icekeeper.row_group_copy.copied_input import (
    CopiedInput,
    CopiedRowGroup,
    WrittenCopy,
    agreed_facts,
    stored_lineage,
)
from icekeeper.row_group_copy.footer import MAGIC
from icekeeper.row_group_copy.footer_decisions import Lacks
from icekeeper.row_group_copy.input_streams import OpenInput, input_streams
from icekeeper.row_group_copy.layout import Layout, Placement
from icekeeper.row_group_copy.new_row_groups import column_indexes_of, indexes_of
from icekeeper.row_group_copy.refusal import CannotCopy, DamagedPage, NotCopyable
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.stream import copy_ranges, read_pieces
from icekeeper.row_group_copy.write_tail import write_tail
from icekeeper.storage.part_upload import bounded_output
from icekeeper.storage.storage import Storage

__all__ = ["write_copy"]


def write_copy(
    layout: Layout, path: str, schema: ParquetSchema, storage: Storage, *, verify_checksums: bool = True
) -> WrittenCopy | NotCopyable:
    """Write the row groups of a layout's inputs to ``path``; nothing is left there unless all were copied.

    Raises:
        FileUnreadable: with ``verify_checksums`` a page of an input has another checksum than its bytes.
        StorageError: an input cannot be read or the file not written; nothing is left of it.
    """
    placement: Placement | None = None
    copied: list[CopiedInput] = []
    try:
        files = [one.file for one in layout.placements]
        with storage.translated(path), bounded_output(storage, path) as sink, input_streams(files, storage) as opened:
            sink.write(MAGIC)
            for placement in layout.placements:
                with storage.translated(placement.file.path):
                    copied.append(_copy_input(placement, sink, schema, layout.lacks, opened, verify_checksums))
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
    inputs, split_offsets = tail
    row_groups = tuple(group for one in inputs for group in one.complete_row_groups)
    return WrittenCopy(path, size, row_groups, split_offsets)


def _copy_input(
    placement: Placement, sink: Any, schema: ParquetSchema, lacks: Lacks, opened: OpenInput, verify_checksums: bool
) -> CopiedInput:
    file = placement.file
    groups = file.carried()
    chunks = {data_pages(chunk.meta_data): chunk.meta_data for group in groups for chunk in group.columns}
    facts = agreed_facts(file, groups, lacks)
    with opened(file) as stream:
        indexes = read_pieces(stream, [piece for group in groups for piece in indexes_of(group, lacks)])
        crcs, pages = copy_ranges(stream, sink, file.ranges, chunks, verify_checksums=verify_checksums)
    copied = (
        CopiedRowGroup(file.path, one, tuple(crcs[piece] for piece in one.pieces), stored_lineage(group, schema))
        for one, group in zip(facts, groups, strict=True)
    )
    index_bytes = sum(piece.size for group in groups for piece in column_indexes_of(group, lacks))
    return CopiedInput(placement, tuple(copied), index_bytes, indexes, pages)
