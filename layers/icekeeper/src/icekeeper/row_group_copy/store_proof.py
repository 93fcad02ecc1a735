"""Proof for a new file that its store assembled of ranges nobody read (rule 32, rule 131).

It rests on the store: that it copied each range from the object with the ETag that was seen when its footer was read,
and put the parts together in order.  What can be seen of that is compared: the ETags of the parts and of the object
where they tell something, its size, and of every range some bytes within, as its source had them after it was copied
and as they are in the new file.

That the ranges lie where the new footer says is shown by reading that back: Arrow must see the row groups of the inputs
in order, with the same rows, sizes, values, encodings and bounds, every column chunk in a place of its own; and columns
of one row group of each input are decoded, for what lies elsewhere than a footer says does not decode.

Checksums of all bytes and the headers of all pages, which :mod:`.proof` and :mod:`.pages` look at, would take reading
all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.machine.metering import WorkThreads
from icekeeper.row_group_copy.copied_input import CopiedRowGroup
from icekeeper.row_group_copy.evidence import RowGroupFacts, row_group_facts
from icekeeper.row_group_copy.footer import MAGIC
from icekeeper.row_group_copy.lineage_proof import other_lineage
from icekeeper.row_group_copy.proof import other_facts
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.row_group_copy.schema_fit import ParquetSchema
from icekeeper.row_group_copy.store_copy import StoredCopy
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.part_etags import etag_problem
from icekeeper.storage.part_plan import CopiedRange
from icekeeper.storage.read_ahead import Read, direct_reads
from icekeeper.storage.s3_ranges import ObjectChanged
from icekeeper.storage.storage import Storage
from icekeeper.storage.whole_reads import etag_of

__all__ = ["store_disproof"]

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
                _other_bytes(stored, storage)
                or other_facts(written.row_groups, facts)
                or (other_lineage(expected, facts, file) if schema.has_lineage else None)
                or _undecodable(written.row_groups, facts, file)
            )
        except (pa.ArrowException, OSError, CannotCopy, ObjectChanged) as error:
            if failed_by_store(error):
                raise
            return f"it cannot be read back: {str(error).splitlines()[0]}"


def _other_bytes(stored: StoredCopy, storage: Storage) -> str | None:
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


def _undecodable(copied: Sequence[CopiedRowGroup], found: Sequence[RowGroupFacts], file: pq.ParquetFile) -> str | None:
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
