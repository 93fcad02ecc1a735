"""Proof that a new file holds exactly the copied row groups, with their row lineage (rule: prove-before-commit)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.machine.metering import WorkThreads
from icekeeper.row_group_copy.footer import LINEAGE_COLUMNS, MAGIC, ParquetSchema, Piece, joined
from icekeeper.row_group_copy.footer_decisions import RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer_structs import CannotCopy
from icekeeper.row_group_copy.lineage import NOTHING, LineageFacts, values_checksum
from icekeeper.row_group_copy.write_copy import CopiedRowGroup, StoredCopy, WrittenCopy, checksums, stream_of_pieces
from icekeeper.rows.read_task import LINEAGE_NAMES, InheritedLineage
from icekeeper.storage.arrow_files import ObjectChanged, etag_of
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.part_plan import CopiedRange, etag_problem
from icekeeper.storage.read_ahead import Read, direct_reads
from icekeeper.storage.storage import Storage

# Proof that the rows of a new file have the ids and last changes that a reader found before
# (rule: prove-before-commit).
#
# The two columns are decoded for every row group, whether they were copied or encoded anew: they decide which row a row
# is, and a null among them would stand for something else than before.

_BATCH_ROWS = 128 * 1024
_READ_BYTES = 16 * 1024 * 1024
"""Row groups are read together up to so many bytes of these columns, so that a store is asked seldom."""


def other_lineage(
    expected: Sequence[LineageFacts | None], found: Sequence[RowGroupFacts], file: pq.ParquetFile
) -> str | None:
    """Why the lineage columns of ``file`` do not hold what is expected of each row group, in words; ``None``: they do.

    ``found`` is what Arrow says of the row groups.
    """
    for run in _runs(found):
        rows = _Rows(file.iter_batches(_BATCH_ROWS, run, list(LINEAGE_NAMES), use_threads=False))
        for number in run:
            problem = _problem(expected[number], rows.taken(found[number].rows), found[number].rows)
            if problem is not None:
                return f"row group {number} {problem}"
    return None


def _runs(found: Sequence[RowGroupFacts]) -> Iterator[list[int]]:
    """The numbers of all row groups, of which each list is read at once."""
    run: list[int] = []
    size = 0
    for number, facts in enumerate(found):
        own = sum(piece.size for piece in facts.pieces[-LINEAGE_COLUMNS:])
        if run and size + own > _READ_BYTES:
            yield run
            run, size = [], 0
        run.append(number)
        size += own
    if run:
        yield run


class _Rows:
    """Deals out the rows of batches, which end elsewhere than row groups."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._rest: pa.RecordBatch | None = None

    def taken(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The next rows, fewer if there are no more."""
        while rows:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                return
            self._rest = batch.slice(rows) if batch.num_rows > rows else None
            rows -= min(rows, batch.num_rows)
            yield batch if self._rest is None else batch.slice(0, batch.num_rows - self._rest.num_rows)


def _problem(expected: LineageFacts | None, batches: Iterable[pa.RecordBatch], rows: int) -> str | None:
    if expected is None:
        return "has row ids of which nothing is known"
    seen, checksums = 0, NOTHING
    bounds: list[list[int]] = [[], []]
    for batch in batches:
        if any(column.null_count for column in batch.columns):
            return "has rows without a stored id or last change"
        if expected.inherited is not None and not _is_inherited(batch, expected.inherited.after(seen)):
            return "has other row ids or last changes than its rows had"
        if expected.checksums is not None:
            checksums = values_checksum(batch, checksums)
        for column, extremes in zip(batch.columns, bounds, strict=True):
            extremes.extend(value.as_py() for value in pc.min_max(column).values())
        seen += batch.num_rows
    if seen != rows:
        return f"decodes to row ids of {seen} rows of {rows}"
    if expected.checksums not in (None, checksums):
        return "has other row ids or last changes than its rows had"
    if expected.bounds != tuple((min(extremes), max(extremes)) for extremes in bounds):
        return "has row ids or last changes beyond the bounds that its footer tells"
    return None


def _is_inherited(batch: pa.RecordBatch, inherited: InheritedLineage) -> bool:
    row_ids, changes = batch.columns
    first = inherited.first_row_id
    same = pc.all(pc.equal(changes, inherited.sequence_number)).as_py()
    return bool(same) and row_ids.equals(pa.arange(first, first + batch.num_rows))


# Proof that a new file holds exactly the row groups that were copied into it (rule: prove-before-commit).
#
# The file is read back from the store.  Arrow reads its footer and must see the row groups of the inputs in order:
# their rows, sizes, values, encodings and bounds, every column chunk in a place of its own.  The bytes there must have
# the checksum that they had when they were read from the input.  Of every input one column of one row group is decoded,
# and of all row groups the lineage columns (:mod:`.lineage_proof`), which for that reason do not count as that one.


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


# Proof for a new file that its store assembled of ranges nobody read
# (rule: prove-before-commit, store-copies-the-judged-object).
#
# It rests on the store: that it copied each range from the object with the ETag that was seen when its footer was read,
# and put the parts together in order.  What can be seen of that is compared: the ETags of the parts and of the object
# where they tell something, its size, and of every range some bytes within, as its source had them after it was copied
# and as they are in the new file.
#
# That the ranges lie where the new footer says is shown by reading that back: Arrow must see the row groups of the
# inputs in order, with the same rows, sizes, values, encodings and bounds, every column chunk in a place of its own;
# and columns of one row group of each input are decoded, for what lies elsewhere than a footer says does not decode.
#
# Checksums of all bytes and the headers of all pages, which :mod:`.proof` and :mod:`.pages` look at, would take reading
# all of them.

_DECODED = 0.01
"""Of the bytes of an input, at least one column chunk."""
_READ_AT_ONCE = 8


def store_disproof(stored: StoredCopy, schema: ParquetSchema, storage: Storage) -> str | None:
    """Why the file does not hold the row groups of its inputs, in words; ``None``: nothing speaks against it.

    Raises:
        StorageError: the file cannot be read.
    """
    written, made = stored.written, stored.made
    problem = etag_problem(made.etag, made.part_etags)
    if problem is not None:
        return problem
    with storage.translated(written.path), storage.open_input(written.path) as stream:
        if stream.size() != written.size:
            return f"its parts have {written.size} bytes, {stream.size()} are there"
        found = etag_of(stream)
        if found is not None and found.strip('"') != made.etag.strip('"'):
            return f"the object has the ETag {found}, the one that was put together {made.etag}"
        try:
            file = pq.ParquetFile(stream)
            facts = list(row_group_facts(file.metadata))
            expected = [group.lineage for group in written.row_groups]
            return (
                _other_stored_bytes(stored, storage)
                or other_facts(written.row_groups, facts)
                or (other_lineage(expected, facts, file) if schema.has_lineage else None)
                or _undecodable_in_store(written.row_groups, facts, file)
            )
        except (pa.ArrowException, OSError, CannotCopy, ObjectChanged) as error:
            if failed_by_store(error):
                raise
            return f"it cannot be read back: {str(error).splitlines()[0]}"


def _other_stored_bytes(stored: StoredCopy, storage: Storage) -> str | None:
    """Whether bytes within a copied range are not those of its source; the new file begins with the magic."""
    made = stored.made
    expected: list[tuple[Read, CopiedRange | None]] = [(Read(made.path, made.etag, 0, len(MAGIC)), None)]
    position = 0
    for part in stored.parts:
        if isinstance(part, CopiedRange):
            sample, moved = part.sample, position - part.start
            expected.append((Read(made.path, made.etag, sample.start + moved, sample.end + moved), part))
        position += part.size
    read = direct_reads(storage)
    with WorkThreads(_READ_AT_ONCE, thread_name_prefix="compared-bytes") as pool:
        found = pool.map(read, [here for here, _ in expected])
        for (here, copied), data in zip(expected, found, strict=True):
            if bytes(data) == (MAGIC if copied is None else made.samples.get(copied)):
                continue
            if copied is None:
                return "it does not begin as a Parquet file"
            return f"byte {here.start} and those that follow are not those from {copied.sample.start} of {copied.path}"
    return None


def _undecodable_in_store(
    copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts], file: pq.ParquetFile
) -> str | None:
    for number, columns in _samples(copied, found):
        group = file.metadata.row_group(number)
        paths = [group.column(column).path_in_schema for column in columns]
        decoded = file.read_row_group(number, columns=paths, use_threads=False)
        if decoded.num_rows != found[number].rows:
            return f"row group {number} decodes to {decoded.num_rows} rows of {found[number].rows}"
    return None


def _samples(copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts]) -> Iterator[tuple[int, list[int]]]:
    """Of the smallest row group of each input the smallest column chunks, as numbers of row group and columns."""

    def size(number: int) -> int:
        return sum(piece.size for piece in found[number].pieces)

    for _, group in groupby(range(len(copied)), key=lambda number: copied[number].source):
        numbers = list(group)
        left = _DECODED * sum(map(size, numbers))
        number = min(numbers, key=size)
        pieces = found[number].pieces
        chosen: list[int] = []
        for column in sorted(range(len(pieces)), key=lambda column: pieces[column].size):
            left -= pieces[column].size
            if chosen and left < 0:
                break
            chosen.append(column)
        yield number, chosen
