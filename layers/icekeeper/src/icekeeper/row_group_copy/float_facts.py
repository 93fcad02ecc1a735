"""Counts the NaN of float columns whose manifest entries do not count them (rule 210).

PyIceberg's entries count none.  Where footers do, as DuckDB's from 2.0 on (platform 103), they are believed; else the
column alone is decoded.  Decoding also finds bounds where the entry has none, as DuckDB writes none beside NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import BoundedSemaphore

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

__all__ = ["uncounted_floats", "with_decoded_facts", "with_found_facts", "with_told_facts"]

# The columns of a row group may take 32 MiB while they are read.
_FILES_AT_ONCE = BoundedSemaphore(4)


def uncounted_floats(entry: DataFile, leaves: Sequence[LeafColumn], modes: Mapping[int, str]) -> frozenset[int]:
    """The ids of the float columns whose NaN an output's entry counts, and this one does not (pure)."""
    counted = entry.nan_value_counts or {}
    return frozenset(
        leaf.field_id
        for leaf in leaves
        if leaf.is_float and not leaf.repeated and modes[leaf.field_id] != "none" and leaf.field_id not in counted
    )


def with_told_facts(file: CopyableFile, leaves: Sequence[LeafColumn], wanted: Collection[int]) -> CopyableFile:
    """The file with the NaN of these float columns, by id, that the footer counts in each row group (pure).

    Raises:
        CannotCopy: the footer is damaged.
    """
    footer = file.footer.metadata()
    columns = [(number, leaf.field_id) for number, leaf in enumerate(leaves) if leaf.field_id in wanted]
    groups = []
    for one in file.groups:
        told = {i: _told(footer.row_groups[one.number], number) for number, i in columns}
        groups.append(replace(one, floats={i: facts for i, facts in told.items() if facts is not None}))
    return replace(file, groups=tuple(groups))


def with_decoded_facts(
    file: CopyableFile, leaves: Sequence[LeafColumn], wanted: Collection[int], storage: Storage
) -> CopyableFile:
    """The file with what each row group holds in these float columns, by id, decoded where nothing is known of them.

    Raises:
        CannotCopy: a column cannot be decoded.
        StorageError: the file does not exist, or the store failed.
    """
    unknown = {
        one.number: [leaf for leaf in leaves if leaf.field_id in {*wanted} - {*one.floats}] for one in file.groups
    }
    unknown = {number: columns for number, columns in unknown.items() if columns}
    if not unknown:
        return file
    found = dict(_decoded(file, unknown, storage))
    groups = (replace(one, floats={**one.floats, **found.get(one.number, {})}) for one in file.groups)
    return replace(file, groups=tuple(groups))


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
    file: CopyableFile, columns: Mapping[int, Sequence[LeafColumn]], storage: Storage
) -> Iterator[tuple[int, dict[int, FloatFacts]]]:
    """Of every row group, by number, the facts of some columns by id."""
    path = file.path
    try:
        with _FILES_AT_ONCE, storage.open_input(path, file.footer.file_size) as stream:
            opened = open_parquet(stream, not is_local(path), None, BATCH_ROWS)
            for group, leaves in columns.items():
                yield group, _facts(opened, group, leaves)
    except (pa.ArrowException, OSError, ValueError) as error:
        if failed_by_store(error):
            with storage.translated(path):
                raise
        raise CannotCopy(f"cannot be read: {str(error).splitlines()[0]}") from error


def _facts(opened: ParquetRows, group: int, leaves: Sequence[LeafColumn]) -> dict[int, FloatFacts]:
    found = {leaf.field_id: FloatFacts(0, is_decoded=True) for leaf in leaves}
    batches = opened.file.iter_batches(
        batch_size=opened.batch_rows,
        row_groups=[group],
        columns=[leaf.parquet_path for leaf in leaves],
        use_threads=False,
    )
    for batch in batches:
        columns = list(_without_structs(batch.columns))
        if len(columns) != len(leaves):  # a path may name two columns to pyarrow (platform 9)
            raise CannotCopy("has columns whose paths are the same to Arrow")
        for leaf, values in zip(leaves, columns, strict=True):
            found[leaf.field_id] = _with_values(found[leaf.field_id], values.drop_null())
    return found


def _without_structs(columns: Sequence[pa.Array]) -> Iterator[pa.Array]:
    """The values of leaf columns; null where a struct around them is."""
    for column in columns:
        if pa.types.is_struct(column.type):
            yield from _without_structs(column.flatten())
        else:
            yield column


def _with_values(known: FloatFacts, values: pa.Array) -> FloatFacts:
    numbers = values.filter(pc.invert(pc.is_nan(values)))
    nans = known.nans + len(values) - len(numbers)
    if not len(numbers):
        return replace(known, nans=nans)
    ends = pc.min_max(numbers).as_py()
    least, most = known.bounds or (ends["min"], ends["max"])
    return FloatFacts(nans, (min(least, ends["min"]), max(most, ends["max"])), is_decoded=True)
