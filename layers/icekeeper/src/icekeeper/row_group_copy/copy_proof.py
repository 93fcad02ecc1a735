"""Proves that a new file contains exactly the copied row groups, with their row lineage (rule: prove-before-commit).

The file is read back from the store.  Arrow reads its footer and must find the row groups of the inputs in order, with
the same rows, sizes, values, encodings and bounds, and without overlap.  The bytes of each column chunk must have the
checksum that they had when they were read from the input.  A column of one row group of each input is decoded, and so
are the lineage columns of all row groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.machine.metering import WorkThreads
from icekeeper.row_group_copy.footer import LINEAGE_COLUMNS, MAGIC, ParquetSchema, joined
from icekeeper.row_group_copy.footer_decisions import RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer_structs import CannotCopy
from icekeeper.row_group_copy.lineage import NOTHING, LineageFacts, values_checksum
from icekeeper.row_group_copy.write_copy import CopiedRowGroup, WrittenCopy, checksums, stream_of_pieces
from icekeeper.rows.read_task import LINEAGE_NAMES, InheritedLineage
from icekeeper.storage.arrow_files import ObjectChanged, etag_of
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.multipart import AssembledObject
from icekeeper.storage.part_plan import ObjectRange, etag_problem, size_of
from icekeeper.storage.read_ahead import direct_reads
from icekeeper.storage.storage import Storage


def disproof(written: WrittenCopy, schema: ParquetSchema, storage: Storage) -> str | None:
    """Why the file does not contain what was read from the inputs; ``None``: it does.

    Raises:
        StorageError: the file cannot be read.
    """
    with storage.translated(written.path), storage.open_input(written.path) as stream:
        if stream.size() != written.size:
            return f"{written.size} bytes were written, but the file has {stream.size()}"
        try:
            file = pq.ParquetFile(stream, pre_buffer=True)
            facts = list(row_group_facts(file.metadata))
            expected = [group.lineage for group in written.row_groups]
            return (
                other_facts(written.row_groups, facts)
                or _other_bytes(written, facts, stream, storage)
                or (other_lineage(expected, facts, file) if schema.has_lineage else None)
                # Lineage columns, which are all decoded, do not count as the sample.
                or _undecodable(written.row_groups, [fact.columns(len(schema.data_leaves)) for fact in facts], file)
            )
        except (pa.ArrowException, OSError, CannotCopy) as error:
            if failed_by_store(error):
                raise
            return f"it cannot be read back: {str(error).splitlines()[0]}"


def other_facts(copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts]) -> str | None:
    """How the new footer, as read by Arrow, differs from the inputs' footers; ``None``: it does not."""
    if len(copied) != len(found):
        return f"{len(copied)} row groups were copied, but Arrow reads {len(found)}"
    for number, (before, after) in enumerate(zip(copied, found, strict=True)):
        if before.facts.rows != after.rows:
            return f"row group {number} had {before.facts.rows} rows, but Arrow reads {after.rows}"
        if before.facts.digests != after.digests:
            return f"Arrow reads another description of row group {number} than in its source {before.source}"
    taken = sorted(piece for fact in found for piece in fact.pieces)
    if any(after.start < before.end for before, after in pairwise(taken)):
        return "Arrow reads column chunks that overlap"
    return None


def _other_bytes(written: WrittenCopy, found: Sequence[RowGroupFacts], stream: Any, storage: Storage) -> str | None:
    pieces = sorted(piece for fact in found for piece in fact.pieces)
    with stream_of_pieces(stream, written.path, etag_of(stream), joined(pieces), storage) as ahead:
        read = checksums(ahead, pieces)
    for number, (before, after) in enumerate(zip(written.row_groups, found, strict=True)):
        if before.checksums != tuple(read[piece] for piece in after.pieces):
            return f"the bytes of row group {number} differ from those that were read from {before.source}"
    return None


def _undecodable(
    copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts], file: pq.ParquetFile, share: float = 0
) -> str | None:
    for number, columns in _samples(copied, found, share):
        group = file.metadata.row_group(number)
        paths = [group.column(column).path_in_schema for column in columns]
        decoded = file.read_row_group(number, columns=paths, use_threads=False)
        if decoded.num_rows != found[number].rows:
            return f"row group {number} decodes to {decoded.num_rows} instead of {found[number].rows} rows"
    return None


def _samples(
    copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts], share: float
) -> Iterator[tuple[int, list[int]]]:
    """The smallest row group of each input, and its smallest columns: at least one, up to ``share`` of the input."""

    def size(number: int) -> int:
        return sum(piece.size for piece in found[number].pieces)

    for _, group in groupby(range(len(copied)), key=lambda number: copied[number].source):
        numbers = list(group)
        left = share * sum(map(size, numbers))
        number = min(numbers, key=size)
        pieces = found[number].pieces
        chosen: list[int] = []
        for column in sorted(range(len(pieces)), key=lambda column: pieces[column].size):
            left -= pieces[column].size
            if chosen and left < 0:
                break
            chosen.append(column)
        yield number, chosen


# Proves a file that its store assembled from ranges that we did not read
# (rule: prove-before-commit, store-copies-the-judged-object).
#
# It trusts the store to copy each range from the object with the given ETag, and to join the parts in order.  It
# compares what can be observed: the ETags of the parts and of the object, the size, and some bytes of every range, read
# from its source after the copy and from the new file.  The new footer is read back as above, and columns of a row
# group of each input are decoded, because bytes in a wrong place cannot be decoded.  Checksums of all bytes and checks
# of page headers are left out, because they would need all bytes.

_DECODED = 0.01
"""Share of the bytes of an input to decode, at least one column chunk."""
_READ_AT_ONCE = 8


def store_disproof(written: WrittenCopy, made: AssembledObject, schema: ParquetSchema, storage: Storage) -> str | None:
    """Why the file does not contain the row groups of its inputs; ``None``: all checks passed.

    Raises:
        StorageError: the file cannot be read.
    """
    problem = etag_problem(made.etag, made.part_etags)
    if problem is not None:
        return problem
    with storage.translated(written.path), storage.open_input(written.path) as stream:
        if stream.size() != written.size:
            return f"its parts have {written.size} bytes, but the file has {stream.size()}"
        found = etag_of(stream)
        if found is not None and found.strip('"') != made.etag.strip('"'):
            return f"the object has the ETag {found}, but the assembled object had {made.etag}"
        try:
            file = pq.ParquetFile(stream)
            facts = list(row_group_facts(file.metadata))
            expected = [group.lineage for group in written.row_groups]
            return (
                _other_stored_bytes(written, made, storage)
                or other_facts(written.row_groups, facts)
                or (other_lineage(expected, facts, file) if schema.has_lineage else None)
                or _undecodable(written.row_groups, facts, file, _DECODED)
            )
        except (pa.ArrowException, OSError, CannotCopy, ObjectChanged) as error:
            if failed_by_store(error):
                raise
            return f"it cannot be read back: {str(error).splitlines()[0]}"


def _other_stored_bytes(written: WrittenCopy, made: AssembledObject, storage: Storage) -> str | None:
    """Which sampled bytes of the new file differ from their source; it must also begin with the magic bytes."""
    begin = ObjectRange(written.path, made.etag, 0, len(MAGIC))
    expected: list[tuple[ObjectRange, ObjectRange | None]] = [(begin, None)]
    position = 0
    for part in written.parts:
        if isinstance(part, ObjectRange):
            sample, moved = part.sample, position - part.start
            expected.append((replace(begin, start=sample.start + moved, end=sample.end + moved), part))
        position += size_of(part)
    read = direct_reads(storage)
    with WorkThreads(_READ_AT_ONCE, thread_name_prefix="compared-bytes") as pool:
        found = pool.map(read, [here for here, _ in expected])
        for (here, copied), data in zip(expected, found, strict=True):
            if bytes(data) == (MAGIC if copied is None else made.samples.get(copied)):
                continue
            if copied is None:
                return "it does not begin as a Parquet file"
            return f"the bytes from {here.start} differ from those from {copied.sample.start} of {copied.path}"
    return None


# Lineage columns are decoded for every row group, whether they were copied or encoded, because they identify the rows,
# and a null would have another meaning than in the input.

_BATCH_ROWS = 128 * 1024
_READ_BYTES = 16 * 1024 * 1024
"""Row groups are read together up to this size of their lineage columns, to save requests."""


def other_lineage(
    expected: Sequence[LineageFacts | None], found: Sequence[RowGroupFacts], file: pq.ParquetFile
) -> str | None:
    """Why the lineage columns of ``file`` differ from what is expected of each row group; ``None``: they do not."""
    for run in _runs(found):
        rows = _Rows(file.iter_batches(_BATCH_ROWS, run, list(LINEAGE_NAMES), use_threads=False))
        for number in run:
            problem = _problem(expected[number], rows.taken(found[number].rows), found[number].rows)
            if problem is not None:
                return f"row group {number} {problem}"
    return None


def _runs(found: Sequence[RowGroupFacts]) -> Iterator[list[int]]:
    """The numbers of all row groups, in lists that are read at once."""
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
    """Divides the rows of batches, whose ends differ from those of row groups."""

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
        return "has row ids that are not expected"
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
        return "has row ids or last changes outside of the bounds in its footer"
    return None


def _is_inherited(batch: pa.RecordBatch, inherited: InheritedLineage) -> bool:
    row_ids, changes = batch.columns
    first = inherited.first_row_id
    same = pc.all(pc.equal(changes, inherited.sequence_number)).as_py()
    return bool(same) and row_ids.equals(pa.arange(first, first + batch.num_rows))
