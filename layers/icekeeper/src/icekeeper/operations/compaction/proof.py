"""Proof before commit: the written files hold exactly the rows that were handed to the writer (rule 32).

:class:`RowProof` watches the rows on their way to the writer; :func:`proof_of_file` looks at a written file.  Both give
:class:`Evidence`.  The evidence of batches, files and tasks can be added up in any order; the order of rows does not
matter.  There are two levels (policy key ``proof``):

``counts``
    compares with the footers, as read back from storage: the number of rows, and per column, nested ones too, how many
    values are not null, and the least and greatest of numbers, times and texts.
``full``
    reads the files back, and compares the checksum of all rows (:mod:`.row_hash`) too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.operations.compaction.row_hash import WORD, row_checksum
from icekeeper.rows.arrow_schema import fields_with, leaf_columns
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.leaf_values import leaf_values
from icekeeper.rows.parquet_footer import read_parquet_footer
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.storage import Storage

__all__ = ["COUNTS", "FULL", "Evidence", "RowProof", "disproof", "proof_of_file"]

COUNTS = "counts"
FULL = "full"
Range: TypeAlias = tuple[Any, Any]
# Types whose least and greatest value is cheap to find in a batch, and stands in the footer bit for bit.
_NUMBERS = frozenset(
    {"int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"}
)
# The same, but a footer has no bounds where values are long.
_TEXTS = frozenset({"string", "binary"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of some rows; picklable.  Mappings are by field id of leaf columns."""

    rows: int = 0
    present: Mapping[int, int] = field(default_factory=dict)
    """How many values are not null; a value inside a list or map counts by itself."""
    bounds: Mapping[int, Range | None] = field(default_factory=dict)
    """Least and greatest raw value of numbers, times and texts, NaN left out; ``None``: not known.

    A column without any such value is missing.
    """
    checksum: int | None = 0
    """The sum of the row hashes, see :mod:`.row_hash`; ``None``: some of the rows were not read."""

    def __add__(self, other: Evidence) -> Evidence:
        whole = self.checksum is not None and other.checksum is not None
        return Evidence(
            self.rows + other.rows,
            {i: self.present.get(i, 0) + other.present.get(i, 0) for i in {**self.present, **other.present}},
            _joined(self.bounds, other.bounds),
            ((self.checksum or 0) + (other.checksum or 0)) % WORD if whole else None,
        )

    def contradiction(self, written: Evidence, names: Mapping[int, str]) -> str | None:
        """The first difference between these rows and the written ones, in words; ``None``: there is none.

        ``names`` are the names of leaf columns by field id.
        """
        if self.rows != written.rows:
            return f"{self.rows} rows went to the writer, {written.rows} are in what it wrote"
        for field_id, count in self.present.items():
            found = written.present.get(field_id, 0)
            if count != found:
                return f"column {names[field_id]} had {count} values, {found} are in what was written"
        for field_id in {**self.bounds, **written.bounds}:
            ours, theirs = self.bounds.get(field_id, ()), written.bounds.get(field_id, ())
            if ours is not None and theirs is not None and ours != theirs:
                return f"column {names[field_id]} reached {_range(ours)}, in what was written {_range(theirs)}"
        if None not in (self.checksum, written.checksum) and self.checksum != written.checksum:
            return "the checksums of the rows before and after writing differ"
        return None


def _joined(first: Mapping[int, Range | None], second: Mapping[int, Range | None]) -> dict[int, Range | None]:
    joined = dict(first)
    for field_id, other in second.items():
        known = joined.get(field_id, other)
        joined[field_id] = None if known is None or other is None else _wider(known, other)
    return joined


def _wider(first: Range, second: Range) -> Range:
    return min(first[0], second[0]), max(first[1], second[1])


def _range(bounds: tuple[Any, ...]) -> str:
    return f"from {bounds[0]} to {bounds[1]}" if bounds else "nothing"


def disproof(
    read: Evidence, written: Evidence, names: Mapping[int, str], *, promised: int, rows_read: int, rows_deleted: int
) -> str | None:
    """Why the written files do not hold the live rows of the inputs, in words; ``None`` when they do.

    ``promised`` is how many rows the inputs hold by their manifest entries, ``rows_read`` how many were found in them.
    """
    if rows_read != promised or rows_read - rows_deleted != read.rows:
        return (
            f"rows do not add up: {promised} promised, {rows_read} read, {rows_deleted} of them deleted, "
            f"{read.rows} written"
        )
    return read.contradiction(written, names)


class RowProof:
    """Collects evidence of rows as they pass, without keeping them."""

    def __init__(self, schema: Mapping[str, Any], level: str) -> None:
        self._leaves = leaf_columns(schema)
        self._full = level == FULL
        self._rows = self._checksum = 0
        self._present = {leaf.field_id: 0 for leaf in self._leaves}
        self._bounds: dict[int, Range | None] = {}

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, each taken into account."""
        for batch in batches:
            self.add(batch)
            yield batch

    def add(self, batch: pa.RecordBatch) -> None:
        """Take one batch into account."""
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        leaves = iter(self._leaves)
        for column in batch.columns:
            for leaf, values in leaf_values(column, leaves):
                self._present[leaf.field_id] += len(values) - values.null_count
                if leaf.iceberg_type in _NUMBERS or leaf.iceberg_type in _TEXTS:
                    found = _least_and_greatest(values)
                    if found is not None:
                        self._bounds = _joined(self._bounds, {leaf.field_id: found})
        if self._full:
            self._checksum += row_checksum(batch)

    @property
    def evidence(self) -> Evidence:
        checksum = self._checksum % WORD if self._full else None
        return Evidence(self._rows, dict(self._present), dict(self._bounds), checksum)

    @property
    def names(self) -> dict[int, str]:
        """Names of leaf columns by field id."""
        return {leaf.field_id: leaf.name for leaf in self._leaves}


def _least_and_greatest(values: pa.Array) -> Range | None:
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    elif pa.types.is_string(values.type):
        values = values.view(pa.binary())
    found = pc.min_max(values).as_py()
    low, high = found["min"], found["max"]
    # Where all values are NaN, Arrow's least value is above the greatest, or NaN itself.
    return (low, high) if low is not None and low <= high else None


def proof_of_file(path: str, schema: Mapping[str, Any], storage: Storage, level: str) -> Evidence:
    """Evidence of the rows of a written Parquet file: from its footer, for ``full`` from every row as read back.

    Raises:
        StorageError: the file is not there or cannot be read.
    """
    if level != FULL:
        with storage.translated(path):
            footer = read_parquet_footer(path, storage)
            return _proof_of_footer(footer, _counted(path, footer, schema, storage), schema)
    read = RowProof(schema, level)
    for batch in projected_rows(ReadableFile(path), schema, storage):
        read.add(batch)
    return read.evidence


def _proof_of_footer(footer: pq.FileMetaData, counted: Evidence, schema: Mapping[str, Any]) -> Evidence:
    """Evidence by the footer's statistics; ``counted`` is that of the columns for which it has none."""
    present = dict(counted.present)
    bounds = dict(counted.bounds)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    for index, leaf in enumerate(leaf_columns(schema)):
        if leaf.field_id in counted.present:
            continue
        for chunk in (group.column(index) for group in groups):
            statistics = chunk.statistics
            count = chunk.num_values - statistics.null_count
            present[leaf.field_id] = present.get(leaf.field_id, 0) + count
            if leaf.iceberg_type in _NUMBERS and statistics.has_min_max:
                bounds = _joined(bounds, {leaf.field_id: (statistics.min_raw, statistics.max_raw)})
            elif leaf.is_float and count:  # a row group of NaN alone, or a column that has one (rule 200)
                bounds = _joined(bounds, {leaf.field_id: None})
            elif leaf.iceberg_type in _TEXTS and count:
                known = (_bytes(statistics.min_raw), _bytes(statistics.max_raw)) if statistics.has_min_max else None
                bounds = _joined(bounds, {leaf.field_id: known})
    return Evidence(footer.num_rows, present, bounds, None)


def _counted(path: str, footer: pq.FileMetaData, schema: Mapping[str, Any], storage: Storage) -> Evidence:
    """Evidence of the columns that have no statistics (those of uuids, some of floats): these are read."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    leaves = enumerate(leaf_columns(schema))
    unmeasured = [leaf for i, leaf in leaves if any(group.column(i).statistics is None for group in groups)]
    fields = fields_with(schema["fields"], {leaf.field_id for leaf in unmeasured})
    read = RowProof({**schema, "fields": fields}, COUNTS)
    if unmeasured:
        with storage.open_input(path) as stream:
            file = pq.ParquetFile(stream, metadata=footer, page_checksum_verification=True)
            for batch in file.iter_batches(columns=[leaf.parquet_path for leaf in unmeasured]):
                read.add(batch)
    return read.evidence


def _bytes(raw: str | bytes) -> bytes:
    return raw.encode() if isinstance(raw, str) else bytes(raw)
