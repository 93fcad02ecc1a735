"""Column metrics of a written Parquet file, as a manifest entry carries them.

Counts and bounds come from the file's own footer, other counts from the batches as they pass.  Modes follow
:mod:`.metrics_modes` (specification, "Manifests"; Java's ``ParquetMetrics``) (rule 25): bounds contain
every value, truncated upper bounds round up, columns inside lists and maps get their size and nothing else (Parquet
counts an empty list as a null element), the whole file has bounds for a column only if every row group has.

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

from icekeeper.metadata.single_value import comparable, encode, truncated_lower, truncated_upper
from icekeeper.operations.compaction.arrow_schema import LeafColumn

__all__ = ["FileMetrics", "PassingCounts", "file_metrics"]


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """Maps keyed by column field id; sizes in bytes."""

    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...]


@dataclass(slots=True)
class PassingCounts:
    """Counts while batches pass what a footer does not tell: NaN of float columns, nulls of columns without bounds.

    By field id; columns inside lists and maps are not looked at.
    """

    leaves: Sequence[LeafColumn]
    nans: dict[int, int] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    _paths: list[tuple[int, list[int]]] = field(default_factory=list)

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
            if leaf.repeated:
                return
            if pa.types.is_floating(kind):
                self.nans[leaf.field_id] = 0
            elif leaf.has_bounds:
                return
            else:
                self.nulls[leaf.field_id] = 0
            self._paths.append((leaf.field_id, path))

    def add(self, batch: pa.RecordBatch) -> None:
        for field_id, path in self._paths:
            array = batch.column(path[0])
            for index in path[1:]:
                array = pc.struct_field(array, [index])  # nulls of the parent are nulls here
            if field_id in self.nulls:
                self.nulls[field_id] += array.null_count
            else:
                self.nans[field_id] += pc.sum(pc.is_nan(array)).as_py() or 0


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
        if leaf.field_id in counts.nulls:
            nulls[leaf.field_id] = counts.nulls[leaf.field_id]
        elif all(s is not None and s.has_null_count for s in statistics):
            nulls[leaf.field_id] = sum(s.null_count for s in statistics)
        if mode == "counts":
            continue
        bounds = _bounds(leaf.iceberg_type, statistics, mode)
        if bounds is not None:
            lower[leaf.field_id] = bounds[0]
            if bounds[1] is not None:
                upper[leaf.field_id] = bounds[1]
    return FileMetrics(
        column_sizes=sizes,
        value_counts=values,
        null_value_counts=nulls,
        nan_value_counts={i: n for i, n in counts.nans.items() if modes[i] != "none"},
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=tuple(sorted(_first_offset(group.column(0)) for group in groups if group.num_columns)),
    )


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
    if mode == "full":
        return low, high
    length = int(re.sub(r"\D", "", mode))
    return truncated_lower(iceberg_type, low, length), truncated_upper(iceberg_type, high, length)


def _first_offset(chunk: Any) -> int:
    if chunk.has_dictionary_page:
        return min(int(chunk.dictionary_page_offset), int(chunk.data_page_offset))
    return int(chunk.data_page_offset)
