"""Proof that a new file holds exactly the row groups that were copied into it (rule 32).

The file is read back from the store.  Arrow reads its footer and must see the row groups of the inputs in order: their
rows, sizes, values, encodings and bounds, every column chunk in a place of its own.  The bytes there must have the
checksum that they had when they were read from the input.  Of every input one column of one row group is decoded, and
of all row groups the lineage columns (:mod:`.lineage_proof`), which for that reason do not count as that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.chunk_checks import Piece, joined
from icekeeper.row_group_copy.copied_input import CopiedRowGroup, WrittenCopy
from icekeeper.row_group_copy.evidence import RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.input_streams import stream_of_pieces
from icekeeper.row_group_copy.lineage_proof import other_lineage
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.stream import checksums
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.storage import Storage
from icekeeper.storage.whole_reads import etag_of

__all__ = ["disproof", "other_facts"]


def disproof(written: WrittenCopy, schema: ParquetSchema, storage: Storage) -> str | None:
    """Why the file does not hold what was read from the inputs, in words; ``None``: it does.

    Raises:
        StorageError: the file cannot be read.
    """
    with storage.translated(written.path), storage.open_input(written.path) as stream:
        if stream.size() != written.size:
            return f"{written.size} bytes were written, {stream.size()} are there"
        try:
            file = pq.ParquetFile(stream, pre_buffer=True)
            facts = list(row_group_facts(file.metadata))
            expected = [group.lineage for group in written.row_groups]
            return (
                other_facts(written.row_groups, facts)
                or _other_bytes(written, facts, stream, storage)
                or (other_lineage(expected, facts, file) if schema.has_lineage else None)
                or _undecodable(written.row_groups, [one.columns(len(schema.data_leaves)) for one in facts], file)
            )
        except (pa.ArrowException, OSError, CannotCopy) as error:
            if failed_by_store(error):
                raise
            return f"it cannot be read back: {str(error).splitlines()[0]}"


def other_facts(copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts]) -> str | None:
    """What Arrow sees in the new footer that is not as it was in those of the inputs, in words; ``None``: nothing."""
    if len(copied) != len(found):
        return f"{len(copied)} row groups were copied, Arrow sees {len(found)}"
    for number, (before, after) in enumerate(zip(copied, found, strict=True)):
        if before.facts.rows != after.rows:
            return f"row group {number} had {before.facts.rows} rows, Arrow sees {after.rows}"
        if before.facts.said != after.said:
            return f"Arrow sees another description of row group {number} than of the one in {before.source}"
    taken = sorted(piece for one in found for piece in one.pieces)
    if any(after.start < before.end for before, after in pairwise(taken)):
        return "Arrow sees column chunks that overlap"
    return None


def _other_bytes(written: WrittenCopy, found: Sequence[RowGroupFacts], stream: Any, storage: Storage) -> str | None:
    pieces = sorted(piece for one in found for piece in one.pieces)
    with stream_of_pieces(stream, written.path, etag_of(stream), joined(pieces), storage) as ahead:
        read = checksums(ahead, pieces)
    for number, (before, after) in enumerate(zip(written.row_groups, found, strict=True)):
        if before.checksums != tuple(read[piece] for piece in after.pieces):
            return f"row group {number} has other bytes than were read from {before.source}"
    return None


def _undecodable(copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts], file: pq.ParquetFile) -> str | None:
    for number, column in _sample(copied, found):
        path = file.metadata.row_group(number).column(column).path_in_schema
        decoded = file.read_row_group(number, columns=[path], use_threads=False)
        if decoded.num_rows != found[number].rows:
            return f"row group {number} decodes to {decoded.num_rows} rows of {found[number].rows}"
    return None


def _sample(copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts]) -> Iterator[tuple[int, int]]:
    """The smallest column chunk of the smallest row group of each input, as numbers of row group and column."""

    def size(pieces: tuple[Piece, ...]) -> int:
        return sum(piece.size for piece in pieces)

    for _, numbers in groupby(range(len(copied)), key=lambda number: copied[number].source):
        number = min(numbers, key=lambda one: size(found[one].pieces))
        yield number, min(range(len(found[number].pieces)), key=lambda i: found[number].pieces[i].size)
