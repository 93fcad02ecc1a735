"""Proof that the rows of a new file have the ids and last changes that a reader found before (rule 32).

The two columns are decoded for every row group, whether they were copied or encoded anew: they decide which row a row
is, and a null among them would stand for something else than before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.row_group_copy.evidence import RowGroupFacts
from icekeeper.row_group_copy.lineage_facts import NOTHING, LineageFacts, values_checksum
from icekeeper.row_group_copy.schema_fit import LINEAGE_COLUMNS
from icekeeper.rows.lineage import LINEAGE_NAMES, InheritedLineage

__all__ = ["other_lineage"]

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
