"""The manifest entry of a written file: counts and bounds.

Sources: specification, "Manifests"; Java's ``ParquetMetrics``.  Counts and bounds come from the
file's footer.  Footers may lack bounds, nulls and NaN of floats, and nulls of columns without bounds; these are
counted in the batches.  Bounds contain every value (rule: metrics-contain-every-value): truncated upper bounds round
up, and a column has bounds only if every row group has bounds.  Columns inside lists and maps only get their size,
because Parquet counts an empty list as a null element.  Columns of uuids have no bounds, not even in the footer
(:attr:`.LeafColumn.has_bounds`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.metadata.types import comparable, encode, is_utf8, truncated_lower, truncated_upper
from icekeeper.model import DataFile, FileContent, PartitionValue
from icekeeper.operations.compaction.terms.write_properties import is_misread
from icekeeper.rows.arrow_schema import column_at, leaf_columns


@dataclass(slots=True)
class _Column:
    """Counts of a column; ``path`` leads to it through structs."""

    path: tuple[int, ...]
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
        found = float_range(array)
        if found is not None:
            low, high = found
            self.range = (low, high) if self.range is None else (min(low, self.range[0]), max(high, self.range[1]))


# The bits of infinity; those of positive floats are below, those of positive NaN above.
_INFINITY = {32: 0x7F80_0000, 64: 0x7FF0_0000_0000_0000}


def float_range(values: pa.Array) -> tuple[float, float] | None:
    """The least and greatest float that is not NaN; ``None``: there is none."""
    bits = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    # Floats without a sign have the order of their bits, and Arrow compares integers six times faster.
    low, high = pc.min_max(bits).as_py().values()
    if low is not None and low >= 0 and high <= _INFINITY[values.type.bit_width]:
        low, high = pa.array([low, high], bits.type).view(values.type).to_pylist()
    else:
        low, high = pc.min_max(values).as_py().values()
    # If all values are NaN, Arrow's least value is above the greatest, or NaN itself.
    return (low, high) if low is not None and low <= high else None


class PassingCounts:
    """Counts values that a footer may lack, while batches of an Iceberg schema are written; ``columns`` is by field id.

    It counts float columns, and the nulls of columns without bounds, outside of lists and maps.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.leaves = leaf_columns(schema)
        paths = dict(_paths(schema["fields"]))
        self.columns = {
            leaf.field_id: _Column(paths[leaf.field_id], leaf.is_float)
            for leaf in self.leaves
            if not leaf.repeated and (leaf.is_float or not leaf.has_bounds)
        }

    def add(self, batch: pa.RecordBatch) -> None:
        for column in self.columns.values():
            column.add(column_at(batch, column.path))

    @property
    def misread_columns(self) -> frozenset[int]:
        """Ids of columns whose statistics readers would misread if all rows so far were a single row group."""
        seen = ((i, column.range, column.nans) for i, column in self.columns.items())
        return frozenset(i for i, found, nans in seen if found is not None and is_misread(*found, nans))


def _paths(fields: Sequence[Mapping[str, Any]], above: tuple[int, ...] = ()) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The field id and the path (:func:`.column_at`) of each primitive column outside of lists and maps."""
    for position, field in enumerate(fields):
        kind, path = field["type"], (*above, position)
        if isinstance(kind, str):
            yield int(field["id"]), path
        elif kind["type"] == "struct":
            yield from _paths(kind["fields"], path)


def entry_of_file(
    path: str,
    size: int,
    partition: tuple[PartitionValue, ...],
    footer: pq.FileMetaData,
    counts: PassingCounts,
    modes: Mapping[int, str],
) -> DataFile:
    """The manifest entry of a file; the columns of its footer are in the order of ``counts.leaves``."""
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
        # A variant has several leaf columns.
        sizes[leaf.field_id] = sizes.get(leaf.field_id, 0) + sum(chunk.total_compressed_size for chunk in chunks)
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
        if passed is None or not passed.is_float:
            bounds = _bounds(leaf.iceberg_type, statistics, mode)
        elif passed.range is None:
            continue
        else:
            # A zero becomes -0.0 and 0.0, as in footers (platform: java-signed-zero-and-nan).
            low, high = passed.range[0] or -0.0, passed.range[1] or 0.0
            bounds = encode(leaf.iceberg_type, low), encode(leaf.iceberg_type, high)
        if bounds is not None:
            lower[leaf.field_id] = bounds[0]
            if bounds[1] is not None:
                upper[leaf.field_id] = bounds[1]
    return DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=partition,
        record_count=footer.num_rows,
        file_size_in_bytes=size,
        column_sizes=sizes,
        value_counts=values,
        null_value_counts=nulls,
        nan_value_counts={i: c.nans for i, c in counts.columns.items() if c.is_float and modes[i] != "none"},
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
            return None  # values without bounds: only NaN, or too long for the writer
    if not lows:
        return None
    low = encode(iceberg_type, min(lows, key=lambda v: comparable(iceberg_type, v)))
    high = encode(iceberg_type, max(highs, key=lambda v: comparable(iceberg_type, v)))
    if iceberg_type == "string" and not (is_utf8(low) and is_utf8(high)):
        # Iceberg-Java cannot read such bounds (platform: java-invalid-utf8), and no others would be correct.
        return None
    if mode == "full":
        return low, high
    length = int(re.sub(r"\D", "", mode))
    return truncated_lower(iceberg_type, low, length), truncated_upper(iceberg_type, high, length)


def _first_offset(chunk: Any) -> int:
    if chunk.has_dictionary_page:
        return min(int(chunk.dictionary_page_offset), int(chunk.data_page_offset))
    return int(chunk.data_page_offset)
