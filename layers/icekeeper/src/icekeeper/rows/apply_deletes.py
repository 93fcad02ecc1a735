"""Finds the deleted rows of a task's inputs while they are read (specification, "Delete Formats").

Position deletes and deletion vectors become one bitmap per input; equality deletes become lookups (:mod:`.equality`).
Delete files are read once per task and streamed.  If a task has more equality keys than its memory holds, they are
taken in portions, and each portion is turned into positions by reading the key columns of the inputs, so that memory
stays bounded (rule 171).  Rows are looked up several batches at a time: a call costs as much as the keys are many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeeper.errors import FileUnreadable, MetadataUnreadable, TableUnsupported
from icekeeper.model import FileContent
from icekeeper.rows.arrow_schema import column_at, column_path, fields_with, leaf_columns
from icekeeper.rows.equality import EqualityLookup, deleted_rows
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.key_ranges import ColumnRange, keys_within
from icekeeper.rows.other_spellings import SpelledFiles
from icekeeper.rows.parts import Part, portions
from icekeeper.rows.position_rows import position_rows, vector_positions
from icekeeper.rows.positions import live_at
from icekeeper.rows.read_task import DeleteFile, InputFile, ReadableFile, ReadTask
from icekeeper.rows.row_memory import likely_row_bytes
from icekeeper.storage.storage import Storage

__all__ = ["DeletedRows", "deleted_rows_of", "null_means_two_things", "read_schema"]

# What a key takes besides its own bytes while it is sorted, or while Arrow hashes it to look rows up.
KEY_BYTES = 48
# So many times that where keys are hashed to find the distinct ones: those of several columns, or without an order.
_HASHED = 3
_WITHOUT_ORDER = ("boolean", "float", "double", "uuid", "fixed")
# What a row takes while it is looked up.
_ROW_BYTES = 48
_PUFFIN = "PUFFIN"


@dataclass(frozen=True, slots=True)
class _LookupOfDeletes:
    """A lookup, and the delete files that it was made from, as indexes into the task's ``deletes``."""

    lookup: EqualityLookup
    deletes: frozenset[int]

    def applies_to(self, source: InputFile) -> bool:
        """Whether one of these delete files applies to the input.

        The others then do no harm.  They are of its partition or of several, and apply to it unless they are older or
        their bounds exclude its rows.
        """
        return not self.deletes.isdisjoint(source.deletes)


def deleted_rows_of(task: ReadTask, storage: Storage) -> DeletedRows | None:
    """What is deleted of a task's inputs, or of some of them; ``None``: nothing.

    Raises:
        FileUnreadable: a delete file cannot be read; then no row that it may delete may be written.
        StorageError: the store failed.
    """
    return DeletedRows(task, read_schema(task), storage) if task.deletes else None


def read_schema(task: ReadTask) -> dict[str, Any]:
    """The schema that inputs are read in: with the columns that only equality deletes need."""
    return {**task.schema, "fields": [*task.schema["fields"], *task.key_fields]}


class DeletedRows:
    """Reads the delete files of one task once, and tells for every batch which of its rows are live."""

    def __init__(self, task: ReadTask, table_schema: Mapping[str, Any], storage: Storage) -> None:
        """``table_schema`` is that of the batches: it has the columns that equality deletes compare, too.

        Raises:
            FileUnreadable: a delete file, or an input that its keys are looked up in, cannot be read.
            MetadataUnreadable: a delete names a data file in another spelling.
            StorageError: the store failed.
        """
        self._task = task
        self._schema = table_schema
        self._positions: dict[str, BitMap64] = defaultdict(BitMap64)
        self._sorted: dict[str, pa.Array] = {}
        self._lookups: list[_LookupOfDeletes] = []
        self._read_positions(storage)
        self._paths = _key_paths(task, table_schema)
        keys, size = _expected_keys(task, table_schema)
        # One half is for the keys, the other for the rows that are looked up among them.
        are_few = size <= task.key_memory_bytes // 2
        for found in _lookups(task, self._schema, storage):
            if are_few:
                self._lookups.append(found)
            else:
                self._turn_into_positions(found, storage)
        # Rows to look up at once, so that their lookup costs more than to hash the keys; 0: as they come.
        self.portion_rows = 2 * keys if self._lookups else 0

    def are_deleted(self, path: str, positions: range) -> bool:
        """Whether any of these positions of a file is deleted by position deletes or a deletion vector."""
        deleted = self._positions.get(path)
        return deleted is not None and bool(deleted.range_cardinality(positions.start, positions.stop))

    def keys_within(self, source: InputFile, ranges: Mapping[int, ColumnRange]) -> int:
        """How many keys that are not positions by now may remove rows of an input whose columns have these ranges."""
        lookups = [found.lookup for found in self._lookups if found.applies_to(source)]
        return sum(keys_within(lookup, ranges, source.sequence_number) for lookup in lookups)

    def match_rows_of(self, source: InputFile, storage: Storage) -> bool:
        """Whether a key removes any row of an input, or of its row group; only its key columns are read.

        Raises:
            StorageError: it cannot be read.
        """
        for found in self._lookups:
            if found.applies_to(source):
                fields, paths = self._key_columns(found.lookup)
                masks = (
                    mask
                    for part in self._key_parts(source, fields, storage)
                    for mask in _matches(found.lookup, [part], paths)
                )
                if any(pc.any(mask).as_py() for mask in masks):
                    return True
        return False

    def live_masks(self, parts: Sequence[Part]) -> list[pa.Array | None]:
        """Per part a mask of its live rows; ``None``: all are live.  Batches have the columns of ``table_schema``."""
        by_key: list[pa.Array | None] = [None] * len(parts)
        for found in self._lookups:
            reached = [i for i, part in enumerate(parts) if found.applies_to(part.source)]
            for i, mask in zip(reached, _matches(found.lookup, [parts[i] for i in reached], self._paths), strict=True):
                known = by_key[i]
                by_key[i] = mask if known is None else pc.or_(known, mask)
        return [self._live(part, deleted) for part, deleted in zip(parts, by_key, strict=True)]

    def _live(self, part: Part, deleted: pa.Array | None) -> pa.Array | None:
        live = None if deleted is None or not pc.any(deleted).as_py() else pc.invert(deleted)
        at = self._at_positions(part.source, part.first_row, part.batch.num_rows)
        if live is None or at is None:
            return at if live is None else live
        return pc.and_(live, at)

    def _at_positions(self, source: InputFile, first_row: int, length: int) -> pa.Array | None:
        if source.path not in self._positions:
            return None
        if source.path not in self._sorted:
            self._sorted[source.path] = pa.array(self._positions[source.path].to_array(), pa.int64())
        positions = self._sorted[source.path]
        start = bisect_left(positions, first_row, key=_value)
        end = bisect_left(positions, first_row + length, lo=start, key=_value)
        return live_at(pc.subtract(positions.slice(start, end - start), first_row), length) if start < end else None

    def _read_positions(self, storage: Storage) -> None:
        wanted: dict[int, set[str]] = defaultdict(set)
        for source in self._task.inputs:
            for number in source.deletes:
                wanted[number].add(source.path)
        for number, paths in wanted.items():
            delete = self._task.deletes[number]
            if delete.content is FileContent.EQUALITY_DELETES:
                continue
            if delete.file_format.upper() == _PUFFIN:
                self._read_vector(delete, paths, storage)
                continue
            count, spelled = 0, SpelledFiles(paths)
            verify = self._task.verify_checksums
            for rows in position_rows(delete.path, delete.file_format, storage, verify_checksums=verify):
                count += rows.count
                for path, positions in rows.by_path:
                    if path in paths:
                        self._positions[path].update(positions.to_pylist())
                    else:
                        spelled.refuse(delete.path, path)
            _require_whole(delete, count)

    def _read_vector(self, delete: DeleteFile, paths: set[str], storage: Storage) -> None:
        offset, size = delete.content_offset, delete.content_size_in_bytes
        if offset is None or size is None or paths != {delete.referenced_data_file}:
            raise FileUnreadable(
                f"the deletion vector in {delete.path} does not say where it is, or of which file", path=delete.path
            )
        self._positions[paths.pop()].update(vector_positions(delete.path, offset, size, delete.record_count, storage))

    def _turn_into_positions(self, portion: _LookupOfDeletes, storage: Storage) -> None:
        """Look up a portion of the keys in every input that it applies to, and note the positions of matching rows."""
        lookup = portion.lookup
        fields, paths = self._key_columns(lookup)
        reached = (source for source in self._task.inputs if portion.applies_to(source))
        rows = (part for source in reached for part in self._key_parts(source, fields, storage))
        for parts in portions(rows, max(1, self._task.key_memory_bytes // 2 // _ROW_BYTES)):
            for part, mask in zip(parts, _matches(lookup, parts, paths), strict=True):
                found = pc.indices_nonzero(mask)
                if len(found):
                    positions = pc.add(found.cast(pa.uint64()), part.first_row)
                    self._positions[part.source.path].update(memoryview(positions.buffers()[1]).cast("Q")[: len(found)])

    def _key_columns(self, lookup: EqualityLookup) -> tuple[Sequence[Mapping[str, Any]], dict[int, tuple[int, ...]]]:
        """The fields that a lookup compares, and the path to each among them."""
        fields = fields_with(self._schema["fields"], lookup.field_ids)
        return fields, {i: column_path(fields, i) or () for i in lookup.field_ids}

    def _key_parts(self, source: InputFile, fields: Sequence[Mapping[str, Any]], storage: Storage) -> Iterator[Part]:
        """Read only ``fields`` of a data file, as batches with the position of their first row."""
        first_row = source.first_row
        for batch in projected_rows(self._task.readable(source), {"type": "struct", "fields": fields}, storage):
            yield Part(source, first_row, batch)
            first_row += batch.num_rows


def _matches(lookup: EqualityLookup, parts: Sequence[Part], paths: Mapping[int, tuple[int, ...]]) -> Iterator[pa.Array]:
    """Per part a mask of the rows that the lookup deletes."""
    if not parts:
        return
    columns = [pa.concat_arrays([column_at(part.batch, paths[i]) for part in parts]) for i in lookup.field_ids]
    rows = [part.batch.num_rows for part in parts]
    numbers = [pa.repeat(pa.scalar(p.source.sequence_number, pa.int64()), p.batch.num_rows) for p in parts]
    deleted = deleted_rows([(lookup, columns)], pa.concat_arrays(numbers), sum(rows))
    for end, count in zip(accumulate(rows), rows, strict=True):
        yield deleted.slice(end - count, count)


def _key_paths(task: ReadTask, schema: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    """The path of every column that equality deletes compare, by field id.

    Raises:
        TableUnsupported: a column is not in the schema, or in a list or map (specification, "Equality Delete Files").
    """
    paths = {}
    for field_id in {i for delete in task.deletes for i in delete.equality_ids}:
        path = column_path(schema["fields"], field_id)
        if path is None:
            raise TableUnsupported(f"an equality delete uses column {field_id}, which is unknown, or in a list or map")
        paths[field_id] = path
    return paths


def _expected_keys(task: ReadTask, schema: Mapping[str, Any]) -> tuple[int, int]:
    """How many keys equality deletes have by their manifest entries, and about what looking them up takes."""
    kinds = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(schema)}
    keys = size = 0
    for delete in task.deletes:
        if delete.content is FileContent.EQUALITY_DELETES:
            keys += delete.record_count
            types = [kinds[i] for i in delete.equality_ids if i in kinds]
            size += delete.record_count * (_working_bytes(types) + likely_row_bytes(types))
    return keys, size


def _working_bytes(types: Sequence[str]) -> int:
    """What a key of columns of these types takes besides its own bytes."""
    is_sorted = len(types) == 1 and not types[0].startswith(_WITHOUT_ORDER)
    return KEY_BYTES if is_sorted else _HASHED * KEY_BYTES


def _lookups(task: ReadTask, schema: Mapping[str, Any], storage: Storage) -> Iterator[_LookupOfDeletes]:
    """The task's equality deletes as lookups per set of columns and partition, each within half of its memory."""
    partitions: dict[int, set[int]] = defaultdict(set)
    for source in task.inputs:
        for number in source.deletes:
            partitions[number].add(source.partition_number)
    # A delete file that applies to inputs of one partition only may be one of that partition: its keys must not meet
    # rows of others.
    by_key: dict[tuple[tuple[int, ...], int | None], list[int]] = defaultdict(list)
    for number, reached in partitions.items():
        delete = task.deletes[number]
        if delete.content is FileContent.EQUALITY_DELETES:
            home = next(iter(reached)) if len(reached) == 1 else None
            by_key[tuple(sorted(delete.equality_ids)), home].append(number)
    for (field_ids, _), numbers in by_key.items():
        fields = fields_with(schema["fields"], field_ids)
        paths = [column_path(fields, i) or () for i in field_ids]
        ambiguous = [number for number, path in enumerate(paths) if null_means_two_things(fields, path)]
        key_schema = {"type": "struct", "fields": fields}
        working_bytes = _working_bytes([leaf.iceberg_type for leaf in leaf_columns(key_schema)])
        held: list[tuple[list[pa.Array], pa.Array]] = []
        size = 0
        for number in numbers:
            delete = task.deletes[number]
            sequence_number = pa.scalar(delete.sequence_number, pa.int64())
            # A key column that the file lacks is an error and not a key of nulls (rule 11).
            file = ReadableFile(delete.path, delete.file_format, verify_checksums=task.verify_checksums)
            batches = projected_rows(file, key_schema, storage, must_hold=field_ids)
            count = 0
            for batch in batches:
                count += batch.num_rows
                keys = [column_at(batch, path) for path in paths]
                for column in ambiguous:
                    if keys[column].null_count:
                        raise _ambiguous_null(delete.path, fields, paths[column])
                held.append((keys, pa.repeat(sequence_number, batch.num_rows)))
                size += working_bytes * batch.num_rows + sum(key.nbytes for key in keys)
                if size >= task.key_memory_bytes // 2:
                    lookup, held, size = _lookup(field_ids, held), [], 0
                    yield _LookupOfDeletes(lookup, frozenset(numbers))
            _require_whole(delete, count)
        if held:
            yield _LookupOfDeletes(_lookup(field_ids, held), frozenset(numbers))


def null_means_two_things(fields: Sequence[Mapping[str, Any]], path: Sequence[int]) -> bool:
    """Whether a column can be null in two ways that Java tells apart: by itself and with its struct (rule 242)."""
    optional = 0
    for position in path:
        field = fields[position]
        optional += not field.get("required", False)
        fields = field["type"]["fields"] if isinstance(field["type"], Mapping) else ()
    return optional > 1


def _ambiguous_null(delete_path: str, fields: Sequence[Mapping[str, Any]], path: Sequence[int]) -> MetadataUnreadable:
    names = []
    for position in path:
        names.append(str(fields[position]["name"]))
        fields = fields[position]["type"]["fields"] if isinstance(fields[position]["type"], Mapping) else ()
    return MetadataUnreadable(
        f"{delete_path} deletes rows by a null in {'.'.join(names)}: Iceberg-Java tells a null struct from a null "
        "column in it, other readers do not, so whom it deletes is not known; its files were left alone. Delete these "
        "rows by another key, and remove this delete file"
    )


def _require_whole(delete: DeleteFile, rows: int) -> None:
    """Raise FileUnreadable where a delete file holds fewer rows than its manifest entry says.

    An Avro file that was cut off between two blocks looks whole; the data rows that its missing rows delete would come
    back.  More rows than promised are applied: tables of other engines have such entries, and readers do not mind.
    """
    if rows < delete.record_count:
        raise FileUnreadable(
            f"{delete.path} holds {rows} rows, its manifest says {delete.record_count}", path=delete.path
        )


def _lookup(field_ids: tuple[int, ...], held: Sequence[tuple[Sequence[pa.Array], pa.Array]]) -> EqualityLookup:
    columns = [pa.concat_arrays([keys[i] for keys, _ in held]) for i in range(len(field_ids))]
    return EqualityLookup.build(field_ids, columns, pa.concat_arrays([numbers for _, numbers in held]))


def _value(scalar: pa.Scalar) -> int:
    return int(scalar.as_py())
