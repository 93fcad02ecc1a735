"""Column metrics of a written Parquet file, as a manifest entry carries them.

Counts and bounds come from the file's own footer.  What a footer may not tell is counted in the batches as they pass:
bounds, nulls and NaN of floats, nulls of columns without bounds.  Modes follow :mod:`.metrics_modes` (specification,
"Manifests"; Java's ``ParquetMetrics``) (rule 25): bounds contain every value, truncated upper bounds round up, columns
inside lists and maps get their size and nothing else (Parquet counts an empty list as a null element), the whole file
has bounds for a column only if every row group has.

Columns of uuids have no bounds, neither here nor in the footer (:attr:`.LeafColumn.has_bounds`) (rule 26).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.metadata.single_value import comparable, encode, is_utf8, truncated_lower, truncated_upper
from icekeeper.operations.compaction.writing.float_statistics import is_misread
from icekeeper.rows.arrow_schema import LeafColumn

__all__ = ["FileMetrics", "PassingCounts", "file_metrics"]


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """The metrics of a manifest entry: mappings by field id; sizes in bytes."""

    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...]


@dataclass(slots=True)
class _Column:
    """What has passed of one column; ``path`` are the positions that lead to it through structs."""

    path: list[int]
    is_float: bool
    nulls: int = 0
    nans: int = 0
    range: tuple[float, float] | None = None
    """The least and greatest float that is not NaN."""

    def add(self, array: pa.Array) -> None:
        self.nulls += array.null_count
        if not self.is_float:
            return
        self.nans += pc.sum(pc.is_nan(array)).as_py() or 0
        found = pc.min_max(array).as_py()
        low, high = found["min"], found["max"]
        if low is not None and low <= high:  # both are NaN where all values are
            self.range = (low, high) if self.range is None else (min(low, self.range[0]), max(high, self.range[1]))


@dataclass(slots=True)
class PassingCounts:
    """Counts in passing batches what a footer may not tell; ``columns`` is by field id.

    These are float columns, and the nulls of columns without bounds, outside of lists and maps.
    """

    leaves: Sequence[LeafColumn]
    columns: dict[int, _Column] = field(default_factory=dict)

    def prepare(self, schema: pa.Schema) -> None:
        """Find these columns once, from the schema of the batches."""
        ids = iter(self.leaves)
        for index, column in enumerate(schema):
            self._find(column.type, [index], ids)

    def _find(self, kind: pa.DataType, path: list[int], ids: Any) -> None:
        if pa.types.is_struct(kind):
            for i in range(kind.num_fields):
                self._find(kind.field(i).type, [*path, i], ids)
        elif pa.types.is_map(kind):
            self._find(kind.key_type, path, ids)
            self._find(kind.item_type, path, ids)
        elif pa.types.is_list(kind):
            self._find(kind.value_type, path, ids)
        else:
            leaf = next(ids)
            if not leaf.repeated and (leaf.is_float or not leaf.has_bounds):
                self.columns[leaf.field_id] = _Column(path, leaf.is_float)

    def add(self, batch: pa.RecordBatch) -> None:
        for column in self.columns.values():
            array = batch.column(column.path[0])
            for index in column.path[1:]:
                array = pc.struct_field(array, [index])  # nulls of the parent are nulls here
            column.add(array)

    @property
    def misread_columns(self) -> frozenset[int]:
        """Ids of the columns whose statistics readers would misread if all rows so far were one row group."""
        seen = ((i, column.range, column.nans) for i, column in self.columns.items())
        return frozenset(i for i, found, nans in seen if found is not None and is_misread(*found, nans))


def file_metrics(footer: pq.FileMetaData, counts: PassingCounts, modes: Mapping[int, str]) -> FileMetrics:
    """Metrics of a whole file from its footer, whose columns are in the order of the counted leaves."""
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    for index, leaf in enumerate(counts.leaves):
        mode = modes[leaf.field_id]
        if mode == "none":
            continue
        chunks = [group.column(index) for group in groups]
        sizes[leaf.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if leaf.repeated:
            continue
        values[leaf.field_id] = sum(chunk.num_values for chunk in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        passed = counts.columns.get(leaf.field_id)
        if passed is not None:
            nulls[leaf.field_id] = passed.nulls
        elif all(s is not None and s.has_null_count for s in statistics):
            nulls[leaf.field_id] = sum(s.null_count for s in statistics)
        if mode == "counts":
            continue
        if passed is not None and passed.is_float:
            bounds = _float_bounds(leaf.iceberg_type, passed.range)
        else:
            bounds = _bounds(leaf.iceberg_type, statistics, mode)
        if bounds is not None:
            lower[leaf.field_id] = bounds[0]
            if bounds[1] is not None:
                upper[leaf.field_id] = bounds[1]
    return FileMetrics(
        column_sizes=sizes,
        value_counts=values,
        null_value_counts=nulls,
        nan_value_counts={i: c.nans for i, c in counts.columns.items() if c.is_float and modes[i] != "none"},
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=tuple(sorted(_first_offset(group.column(0)) for group in groups if group.num_columns)),
    )


def _float_bounds(iceberg_type: str, found: tuple[float, float] | None) -> tuple[bytes, bytes | None] | None:
    """The bounds of floats, encoded; a zero becomes -0.0 as lower and 0.0 as upper bound, as in footers
    (platform 71)."""
    if found is None:
        return None
    return encode(iceberg_type, found[0] or -0.0), encode(iceberg_type, found[1] or 0.0)


def _bounds(iceberg_type: str, statistics: Sequence[Any], mode: str) -> tuple[bytes, bytes | None] | None:
    lows, highs = [], []
    for s in statistics:
        if s is None:
            return None
        if s.has_min_max:
            lows.append(s.min_raw)
            highs.append(s.max_raw)
        elif not s.has_null_count or s.num_values:
            return None  # values without bounds: NaN only, or longer than the writer keeps
    if not lows:
        return None
    low = encode(iceberg_type, min(lows, key=lambda v: comparable(iceberg_type, v)))
    high = encode(iceberg_type, max(highs, key=lambda v: comparable(iceberg_type, v)))
    if iceberg_type == "string" and not (is_utf8(low) and is_utf8(high)):
        return None  # Iceberg-Java cannot read such bounds (platform 108), and none else would be right (rule 217)
    if mode == "full":
        return low, high
    length = int(re.sub(r"\D", "", mode))
    return truncated_lower(iceberg_type, low, length), truncated_upper(iceberg_type, high, length)


def _first_offset(chunk: Any) -> int:
    if chunk.has_dictionary_page:
        return min(int(chunk.dictionary_page_offset), int(chunk.data_page_offset))
    return int(chunk.data_page_offset)
