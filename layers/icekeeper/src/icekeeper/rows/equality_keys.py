"""Loads the keys of equality deletes, at most as many at a time as fit into memory (rule: bounded-worker-memory).

If there are more keys, they are divided into ranges of a key column.  For each range the delete files are read again,
which costs less than looking up every row in every portion of the keys: a row is only looked up in the range of its
value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import FileUnreadable, MetadataUnreadable, TableUnsupported
from icekeeper.metadata.types import UNORDERED, column_type
from icekeeper.model import FileContent
from icekeeper.rows.arrow_schema import column_at, column_path, fields_with, leaf_columns, likely_row_bytes
from icekeeper.rows.equality_deletes import EqualityLookup, comparable, has_order
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import DeleteFile, ReadableFile, ReadTask
from icekeeper.storage.storage import Storage

# Memory per key while it is sorted, in addition to twice its own bytes.
KEY_BYTES = 24
# Factor for keys of several columns or without an order: they are hashed to find the distinct keys.
_HASHED = 6
_WITHOUT_ORDER = ("boolean", "float", "double")
# The share of the memory for keys; the rest is for the rows that are looked up.
SHARE_OF_KEYS = 0.75
# Ranges are smaller by this factor than what fits, because a sample divides the keys.
_SPARE = 1.2
_SAMPLES = 256
"""Of a range."""


def key_paths(task: ReadTask, schema: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    """The path of every column that equality deletes compare, by field id.

    Raises:
        TableUnsupported: a column is not in the schema, or in a list or map (specification, "Equality Delete Files").
    """
    paths = {}
    for field_id in {i for delete in task.deletes for i in delete.equality_ids}:
        path = column_path(schema["fields"], field_id)
        if path is None:
            raise TableUnsupported(f"an equality delete uses column {field_id}, which is unknown, or in a list or map")
        kind = column_type(schema, field_id)
        if kind is None or kind.partition("(")[0] in UNORDERED:
            named = kind or "struct, list or map"
            raise TableUnsupported(
                f"an equality delete compares column {field_id} of type {named}, which has no equality"
            )
        paths[field_id] = path
    return paths


def expected_keys(task: ReadTask, schema: Mapping[str, Any]) -> tuple[int, int]:
    """The number of equality keys according to manifest entries, and an estimate of the lookup's memory in bytes."""
    kinds = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(schema)}
    keys = size = 0
    for delete in task.deletes:
        if delete.content is FileContent.EQUALITY_DELETES:
            keys += delete.record_count
            types = [kinds[i] for i in delete.equality_ids if i in kinds]
            size += delete.record_count * (_working_bytes(types) + 2 * likely_row_bytes(types))
    return keys, size


def _working_bytes(types: Sequence[str]) -> int:
    """Memory per key of these types, in addition to twice its own bytes."""
    is_sorted = len(types) == 1 and not types[0].startswith(_WITHOUT_ORDER)
    return KEY_BYTES if is_sorted else _HASHED * KEY_BYTES


@dataclass(frozen=True, slots=True)
class _Keys:
    """Delete files with the same set of columns and the same partition, unless they apply to several partitions."""

    field_ids: tuple[int, ...]
    numbers: Sequence[int]
    """Indexes into the task's ``deletes``."""
    fields: Sequence[Mapping[str, Any]]
    working_bytes: int

    def size_of(self, columns: Sequence[pa.Array]) -> int:
        """Memory that these keys take in a lookup."""
        return self.working_bytes * len(columns[0]) + 2 * sum(int(column.nbytes) for column in columns)


@dataclass(frozen=True, slots=True)
class _Range:
    """Keys whose value in a column is from ``least`` up to ``below``; null is in the range without a least value."""

    column: int = 0
    least: pa.Scalar | None = None
    below: pa.Scalar | None = None

    def holds(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """A mask of the keys in this range; ``None``: all."""
        mask, values = None, comparable(columns[self.column])
        if self.least is not None:
            mask = pc.greater_equal(values, self.least)
        if self.below is not None:
            is_below = pc.less(values, self.below)
            mask = is_below if mask is None else pc.and_(mask, is_below)
        return mask if mask is None else pc.fill_null(mask, self.least is None)


def lookups(task: ReadTask, schema: Mapping[str, Any], storage: Storage) -> Iterator[EqualityLookup]:
    """The task's equality deletes as lookups per set of columns and partition, each within the memory for keys.

    Raises:
        FileUnreadable: a delete file cannot be read.
        MetadataUnreadable: it is unknown which rows a delete file removes.
        StorageError: the store failed.
    """
    most = max(1, int(task.key_memory_bytes * SHARE_OF_KEYS))
    for keys in _key_sets(task, schema):
        for wanted in _ranges(keys, most, task, storage):
            yield from _lookups_in(wanted, keys, most, task, storage)


def _key_sets(task: ReadTask, schema: Mapping[str, Any]) -> Iterator[_Keys]:
    partitions: dict[int, set[int]] = defaultdict(set)
    for source in task.inputs:
        for number in source.deletes:
            partitions[number].add(source.partition_number)
    # A delete file that applies only to inputs of one partition may belong to that partition: its keys must not be
    # looked up for rows of other partitions.
    by_key: dict[tuple[tuple[int, ...], int | None], list[int]] = defaultdict(list)
    for number, reached in partitions.items():
        delete = task.deletes[number]
        if delete.content is FileContent.EQUALITY_DELETES:
            home = next(iter(reached)) if len(reached) == 1 else None
            by_key[tuple(sorted(delete.equality_ids)), home].append(number)
    for (field_ids, _), numbers in by_key.items():
        fields = fields_with(schema["fields"], field_ids)
        types = [leaf.iceberg_type for leaf in leaf_columns({"type": "struct", "fields": fields})]
        yield _Keys(field_ids, numbers, fields, _working_bytes(types))


def _ranges(keys: _Keys, most: int, task: ReadTask, storage: Storage) -> Iterable[_Range]:
    """Ranges of keys of about equal size that fit into ``most`` bytes; a single range if all keys fit or have no order.

    Ranges need not be exact: :func:`_lookups_in` divides a range that does not fit.
    """
    kinds = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns({"type": "struct", "fields": keys.fields})}
    rows = sum(task.deletes[number].record_count for number in keys.numbers)
    likely = rows * (keys.working_bytes + 2 * likely_row_bytes(kinds[i] for i in keys.field_ids))
    if likely <= most:
        return [_Range()]
    step = max(1, rows * most // (likely * _SAMPLES))
    size, sample = 0, list[list[pa.Array]]()
    for columns in (chunk for number in keys.numbers for chunk in _key_columns(keys, number, task, storage)):
        size += keys.size_of(columns)
        places = pa.arange(0, len(columns[0]), step)
        sample.append([comparable(column).take(places) for column in columns])
    joined = [pa.concat_arrays(parts) for parts in zip(*sample, strict=True)]
    ordered = [number for number, column in enumerate(joined) if has_order(column.type)]
    count = -(-int(_SPARE * size) // most)
    if count < 2 or not ordered:
        return [_Range()]
    best = max(ordered, key=lambda number: pc.count_distinct(joined[number]).as_py())
    values = joined[best].drop_null()
    values = values.take(pc.array_sort_indices(values))
    count = min(count, len(values))
    cuts = pc.unique(values.take(pa.array([len(values) * n // count for n in range(1, count)], pa.int64())))
    bounds = [None, *cuts, None]
    return [_Range(best, least, below) for least, below in pairwise(bounds)]


def _lookups_in(wanted: _Range, keys: _Keys, most: int, task: ReadTask, storage: Storage) -> Iterator[EqualityLookup]:
    """The keys of a range as lookups of at most about ``most`` bytes."""
    held: list[tuple[Sequence[pa.Array], int]] = []
    size = 0
    for number in keys.numbers:
        for columns in _key_columns(keys, number, task, storage):
            mask = wanted.holds(columns)
            if mask is not None:
                columns = [column.filter(mask) for column in columns]
            if not len(columns[0]):
                continue
            held.append((columns, task.deletes[number].sequence_number))
            size += keys.size_of(columns)
            if size >= most:
                yield _lookup(keys, held)
                size = 0
    if held:
        yield _lookup(keys, held)


def _lookup(keys: _Keys, held: list[tuple[Sequence[pa.Array], int]]) -> EqualityLookup:
    """A lookup of the keys in ``held``, which is emptied to free memory."""
    numbers = pa.concat_arrays([pa.repeat(pa.scalar(n, pa.int64()), len(columns[0])) for columns, n in held])
    parts = [list(column) for column in zip(*(columns for columns, _ in held), strict=True)]
    held.clear()
    columns = (pa.concat_arrays(parts.pop(0)) for _ in keys.field_ids)
    return EqualityLookup.build(keys.field_ids, columns, numbers, keys.numbers)


def _key_columns(keys: _Keys, number: int, task: ReadTask, storage: Storage) -> Iterator[list[pa.Array]]:
    """The key columns of a delete file, batch by batch."""
    delete, paths = task.deletes[number], [column_path(keys.fields, i) or () for i in keys.field_ids]
    ambiguous = [number for number, path in enumerate(paths) if null_means_two_things(keys.fields, path)]
    # A missing key column is an error, not a key of nulls (rule: unreadable-delete-blocks-its-files).
    file = ReadableFile(delete.path, delete.file_format)
    count = 0
    for batch in projected_rows(file, {"type": "struct", "fields": keys.fields}, storage, must_hold=keys.field_ids):
        count += batch.num_rows
        columns = [column_at(batch, path) for path in paths]
        for number in ambiguous:
            if columns[number].null_count:
                raise _ambiguous_null(delete.path, keys.fields, paths[number])
        yield columns
    require_whole(delete, count)


def require_whole(delete: DeleteFile, rows: int) -> None:
    """Raise FileUnreadable if a delete file has fewer rows than its manifest entry says.

    An Avro file that is truncated between two blocks seems complete; without this check, the rows that the missing
    entries delete would reappear.  More rows are accepted: some engines write such entries, and readers apply all rows.
    """
    if rows < delete.record_count:
        raise FileUnreadable(
            f"{delete.path} has {rows} rows, but its manifest says {delete.record_count}", path=delete.path
        )


def null_means_two_things(fields: Sequence[Mapping[str, Any]], path: Sequence[int]) -> bool:
    """Whether a column can be null itself and because of a null struct, which Java distinguishes
    (rule: equality-keys-by-value)."""
    return sum(not field.get("required", False) for field in _fields_on(fields, path)) > 1


def _ambiguous_null(delete_path: str, fields: Sequence[Mapping[str, Any]], path: Sequence[int]) -> MetadataUnreadable:
    name = ".".join(str(field["name"]) for field in _fields_on(fields, path))
    return MetadataUnreadable(
        f"{delete_path} deletes rows by a null in {name}: Iceberg-Java distinguishes a null struct from a "
        "null column in it, other readers do not, so it is unknown which rows it deletes; its data files were left "
        "alone; delete these rows by another key, and remove this delete file"
    )


def _fields_on(fields: Sequence[Mapping[str, Any]], path: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """The fields along a path, from the top."""
    for position in path:
        yield fields[position]
        kind = fields[position]["type"]
        fields = kind["fields"] if isinstance(kind, Mapping) else ()
