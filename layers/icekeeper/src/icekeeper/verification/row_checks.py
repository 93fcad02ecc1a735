"""Pure checks of what data and delete files hold against their manifest entries.

A check reports only what misleads a reader: a bound that excludes a value, a wrong count, a row outside of its
partition.  Messages name columns, never values, because findings are recorded and logged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, DELETE_POSITION_ID
from icekeeper.metadata.types import FLOATS, decimal_unscaled, decode, shape_of
from icekeeper.model import DataFile
from icekeeper.verification.checks import Problem, ProblemKind

_MOST_NOTES = 5


@dataclass(slots=True)
class ColumnFacts:
    """What the rows of a file hold in a column; ``low`` and ``high`` are raw values without NaN, ``None``: no value."""

    name: str
    iceberg_type: str
    is_nested: bool = False
    """Whether it is inside a struct: writers count the values of null structs differently."""
    values: int = 0
    """All values, nulls too."""
    nulls: int = 0
    nans: int = 0
    low: Any = None
    high: Any = None

    def add(self, array: pa.Array) -> None:
        """Take in the values of a batch, with their Arrow storage type."""
        self.values += len(array)
        self.nulls += array.null_count
        if self.iceberg_type in FLOATS:
            self.nans += pc.sum(pc.is_nan(array)).as_py() or 0
        if pa.types.is_string(array.type):  # some writers store texts that are not UTF-8
            array = array.view(pa.binary())
        elif pa.types.is_temporal(array.type):
            array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
        found = pc.min_max(array)
        low, high = (_raw(found[end]) for end in ("min", "max"))
        if low is not None and low == low:  # all values may be NaN
            self.widen(low, high)

    def widen(self, low: Any, high: Any) -> None:
        """Take in the least and greatest raw value of some rows; texts as bytes."""
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def _raw(scalar: pa.Scalar) -> Any:
    value = scalar.as_py()
    if value is None or not pa.types.is_decimal(scalar.type):
        return value
    digits = int("".join(map(str, value.as_tuple().digits)))
    return -digits if value.is_signed() else digits


def metric_notes(file: DataFile, rows: int, columns: Mapping[int, ColumnFacts]) -> Iterator[str]:
    """What a file's entry says wrongly about its rows; ``columns``: the file's own columns outside of lists and maps,
    by field id."""
    if rows != file.record_count:
        yield f"its entry says {file.record_count} rows, it has {rows}"
    for field_id, column in columns.items():
        values, nulls, nans = (
            (counts or {}).get(field_id)
            for counts in (file.value_counts, file.null_value_counts, file.nan_value_counts)
        )
        if values is not None and values != rows and not column.is_nested:
            yield f"its entry counts {values} values of column {column.name}, it has {rows}"
        if nulls is not None and _misleads(nulls, column, rows):
            yield f"its entry counts {nulls} nulls of column {column.name}, it has {column.nulls}"
        if nans is not None and nans != column.nans and not column.is_nested and column.iceberg_type in FLOATS:
            yield f"its entry counts {nans} NaN of column {column.name}, it has {column.nans}"
        yield from _bound_notes(file, field_id, column)


def _misleads(stated: int, column: ColumnFacts, rows: int) -> bool:
    """Whether a null count is wrong; of a column in a struct, whether readers skip the file by it."""
    if not column.is_nested:
        return stated != column.nulls
    return (stated == 0 and column.nulls > 0) or (stated == rows and column.nulls < rows)


def _bound_notes(file: DataFile, field_id: int, column: ColumnFacts) -> Iterator[str]:
    # Readers disagree about the order of uuids (platform: java-orders-uuids-signed); the bounds of shapes are boxes.
    if column.low is None or column.iceberg_type == "uuid" or shape_of(column.iceberg_type) is not None:
        return
    for bounds, is_lower in ((file.lower_bounds, True), (file.upper_bounds, False)):
        encoded = (bounds or {}).get(field_id)
        if encoded is None:
            continue
        name = f"its {'lower' if is_lower else 'upper'} bound of column {column.name}"
        try:
            bound = encoded if column.iceberg_type == "string" else decode(column.iceberg_type, encoded)
        except ValueError:
            yield f"{name} is no value of type {column.iceberg_type}"
            continue
        if column.iceberg_type.startswith("decimal"):
            bound = decimal_unscaled(bound)
        if isinstance(bound, float) and math.isnan(bound):
            continue  # Iceberg-Java, ``InclusiveMetricsEvaluator``: "NaN indicates unreliable bounds"
        # 0.0 and -0.0 count as equal: only some readers distinguish them.
        if bound > column.low if is_lower else bound < column.high:
            yield f"{name} excludes a value that it holds"


def entry_notes(file: DataFile, held: Collection[int]) -> Iterator[str]:
    """Bounds of fields that the file does not have: the entry describes another file.  ``held``: the file's ids."""
    unknown = {*(file.lower_bounds or ()), *(file.upper_bounds or ())}.difference(held)
    if unknown:
        yield f"its entry has bounds of field(s) {sorted(unknown)}, which it lacks"


def footer_notes(file: DataFile, footer: pq.FileMetaData) -> Iterator[str]:
    """How a Parquet footer contradicts itself or the file's entry."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if (rows := sum(group.num_rows for group in groups)) != footer.num_rows:
        yield f"its footer says {footer.num_rows} rows, its row groups have {rows}"
    if file.split_offsets and not are_usable_offsets(file.split_offsets, file.file_size_in_bytes, len(groups)):
        yield "its entry has split offsets that cannot be those of its row groups"


def are_usable_offsets(offsets: Sequence[int], size: int, row_groups: int) -> bool:
    """Whether readers may split a file there; writers count the start of a row group differently."""
    is_rising = all(first < second for first, second in pairwise(offsets))
    return is_rising and len(offsets) == row_groups and all(0 <= offset < size for offset in offsets)


@dataclass(slots=True)
class PositionFacts:
    """What a position delete file holds."""

    path: ColumnFacts
    position: ColumnFacts
    rows: int = 0
    strangers: int = 0
    """Rows that delete from another data file than its entry names."""

    @classmethod
    def empty(cls) -> PositionFacts:
        return cls(ColumnFacts("file_path", "string"), ColumnFacts("pos", "long"))

    def add(self, rows: int, by_path: Iterable[tuple[str, pa.Array]], named: str | None) -> None:
        """Take in a batch (:data:`.PositionRows`); ``named``: the only data file, if its entry names one."""
        self.rows += rows
        for path, positions in by_path:
            encoded = path.encode()
            self.path.widen(encoded, encoded)
            self.position.add(positions)
            self.strangers += len(positions) if named is not None and path != named else 0


def position_notes(file: DataFile, found: PositionFacts) -> Iterator[str]:
    """What the entry of a position delete file says wrongly: readers that believe it do not apply some deletes."""
    if found.rows != file.record_count:
        yield f"its entry says {file.record_count} rows, it has {found.rows}"
    for field_id, column in ((DELETE_FILE_PATH_ID, found.path), (DELETE_POSITION_ID, found.position)):
        yield from _bound_notes(file, field_id, column)
    if found.strangers:
        yield f"its entry names one data file, {found.strangers} of its rows delete from others"


def vector_notes(
    file: DataFile, cardinality: int, highest: int | None, rows: int | None, blob: Mapping[str, str] | None
) -> Iterator[str]:
    """How a deletion vector contradicts its entry, its data file or the footer of its Puffin file.

    ``highest``: its highest position; ``rows``: the rows of its data file, ``None`` if that is not live; ``blob``: the
    properties of the blob at its place by the footer, ``None`` if there is no such blob.
    """
    if cardinality != file.record_count:
        yield f"its entry says {file.record_count} positions, the vector holds {cardinality}"
    if rows is not None and highest is not None and highest >= rows:
        yield f"it deletes position {highest} of {file.referenced_data_file}, which has {rows} rows"
    if blob is None:
        yield f"the footer of its Puffin file has no vector at offset {file.content_offset}"
        return
    if blob.get("referenced-data-file", file.referenced_data_file) != file.referenced_data_file:
        yield f"the footer of its Puffin file names another data file than {file.referenced_data_file}"
    if blob.get("cardinality", str(cardinality)) != str(cardinality):
        yield "the footer of its Puffin file states another number of positions"


def noted(kind: ProblemKind, path: str, notes: Sequence[str]) -> list[Problem]:
    """One problem with all notes about a file, or none."""
    if not notes:
        return []
    more = len(notes) - _MOST_NOTES
    detail = "; ".join(notes[:_MOST_NOTES]) + (f"; and {more} more" if more > 0 else "")
    return [Problem(kind, path, detail, by_reading=True)]
