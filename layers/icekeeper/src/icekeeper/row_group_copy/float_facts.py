"""Counts the NaN of float columns whose manifest entries do not count them (rule 210).

PyIceberg's entries count none.  Where footers do, as DuckDB's from 2.0 on (platform 103), they are believed; else the
column alone is decoded.  Decoding also finds bounds where the entry has none, as DuckDB writes none beside NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import BoundedSemaphore
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.metadata.single_value import encode
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable_file import CopyableFile, FloatFacts
from icekeeper.row_group_copy.footer_structs import RowGroup
from icekeeper.row_group_copy.refusal import CannotCopy
from icekeeper.rows.arrow_schema import LeafColumn
from icekeeper.rows.file_rows import BATCH_ROWS
from icekeeper.rows.parquet_reader import ParquetRows, open_parquet
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["uncounted_floats", "with_float_facts", "with_found_facts"]

# A column chunk may take 32 MiB while it is read.
_FILES_AT_ONCE = BoundedSemaphore(4)


def uncounted_floats(entry: DataFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]) -> frozenset[int]:
    """The ids of the float columns whose NaN an output's entry counts, and this one does not (pure)."""
    counted = entry.nan_value_counts or {}
    return frozenset(
        leaf.field_id
        for leaf in leaves
        if leaf.is_float and not leaf.repeated and modes[leaf.field_id] != "none" and leaf.field_id not in counted
    )


def with_float_facts(
    file: CopyableFile,
    leaves: Sequence[LeafColumn],
    wanted: Collection[int],
    unbound: Collection[int],
    storage: Storage,
) -> CopyableFile:
    """The file with what each of its row groups holds in the float columns with the ids ``wanted``.

    Of those that are ``unbound`` bounds are wanted, too.

    Raises:
        CannotCopy: a column cannot be decoded.
        StorageError: the file does not exist, or the store failed.
    """
    footer = file.footer.metadata()
    facts: dict[int, dict[int, FloatFacts]] = {group.number: {} for group in file.groups}
    unknown: list[tuple[int, LeafColumn]] = []
    for one in file.groups:
        for number, leaf in enumerate(leaves):
            if leaf.field_id not in wanted:
                continue
            found = None if leaf.field_id in unbound else _told(footer.row_groups[one.number], number)
            if found is None:
                unknown.append((one.number, leaf))
            else:
                facts[one.number][leaf.field_id] = found
    if unknown:
        for group, i, decoded in _decoded(file, unknown, storage):
            facts[group][i] = decoded
    return replace(file, groups=tuple(replace(one, floats=facts[one.number]) for one in file.groups))


def with_found_facts(entry: DataFile, file: CopyableFile, leaves: Sequence[LeafColumn]) -> DataFile:
    """The entry of the row groups of ``file`` with what was found of them (pure)."""
    nans = dict(entry.nan_value_counts or {})
    lower, upper = dict(entry.lower_bounds or {}), dict(entry.upper_bounds or {})
    for leaf in leaves:
        i = leaf.field_id
        found = [group.floats[i] for group in file.groups if i in group.floats]
        if not found:
            continue
        nans[i] = sum(one.nans for one in found)
        bounds = [one.bounds for one in found if one.bounds is not None]
        if bounds and i not in lower and all(one.is_decoded for one in found):
            # A zero may have either sign.
            least, most = min(low for low, _ in bounds) or -0.0, max(high for _, high in bounds) or 0.0
            lower[i], upper[i] = encode(leaf.iceberg_type, least), encode(leaf.iceberg_type, most)
    return replace(entry, nan_value_counts=nans, lower_bounds=lower, upper_bounds=upper)


def _told(group: RowGroup, column: int) -> FloatFacts | None:
    """What the footer says of the NaN of a column chunk, if that is certain."""
    meta = group.columns[column].meta_data
    told = meta.statistics
    if told is None:
        return None
    if told.null_count == meta.num_values:
        return FloatFacts(0)
    most = meta.num_values - (told.null_count or 0)
    return None if told.nan_count is None or not 0 <= told.nan_count <= most else FloatFacts(told.nan_count)


def _decoded(
    file: CopyableFile, chunks: Sequence[tuple[int, LeafColumn]], storage: Storage
) -> Iterator[tuple[int, int, FloatFacts]]:
    """Row group, column id and facts of every column chunk, decoded one after the other."""
    path = file.path
    try:
        with _FILES_AT_ONCE, storage.open_input(path, file.footer.file_size) as stream:
            opened = open_parquet(stream, not is_local(path), None, BATCH_ROWS)
            for group, leaf in chunks:
                yield group, leaf.field_id, _facts(opened, group, leaf)
    except (pa.ArrowException, OSError, ValueError) as error:
        if failed_by_store(error):
            with storage.translated(path):
                raise
        raise CannotCopy(f"cannot be read: {str(error).splitlines()[0]}") from error


def _facts(opened: ParquetRows, group: int, leaf: LeafColumn) -> FloatFacts:
    nans, lows, highs = 0, [], []
    batches = opened.file.iter_batches(
        batch_size=opened.batch_rows, row_groups=[group], columns=[leaf.parquet_path], use_threads=False
    )
    for batch in batches:
        values = _only_leaf(batch.columns, leaf).drop_null()
        numbers = values.filter(pc.invert(pc.is_nan(values)))
        nans += len(values) - len(numbers)
        if len(numbers):
            ends = pc.min_max(numbers).as_py()
            lows.append(ends["min"])
            highs.append(ends["max"])
    return FloatFacts(nans, (min(lows), max(highs)) if lows else None, is_decoded=True)


def _only_leaf(columns: Sequence[Any], leaf: LeafColumn) -> pa.Array:
    """The values of the one column that was read, null in null structs; a path may name two to pyarrow (platform 9)."""
    while len(columns) == 1 and pa.types.is_struct(columns[0].type):
        columns = columns[0].flatten()
    if len(columns) != 1:
        raise CannotCopy(f"has several columns of the path {leaf.parquet_path}")
    return columns[0]
