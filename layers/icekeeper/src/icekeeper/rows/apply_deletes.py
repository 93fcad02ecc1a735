"""Finds the deleted rows of a task's inputs while they are read (specification, "Delete Formats").

Position deletes and deletion vectors become a bitmap per input; equality deletes become lookups
(:class:`.EqualityLookup`).  If a task has more equality keys than fit into memory, they are read in portions
(:mod:`.equality_keys`): the key columns of the inputs are read to convert each portion into positions
(rule: bounded-worker-memory).  Rows are looked up several batches at a time, because each call hashes the keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import methodcaller
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeeper.errors import FileUnreadable, MetadataUnreadable
from icekeeper.metadata.puffin import decode_deletion_vector
from icekeeper.model import FileContent
from icekeeper.rows.arrow_schema import column_at, column_path, fields_with
from icekeeper.rows.equality_deletes import ColumnRange, EqualityLookup, Span, keys_within
from icekeeper.rows.equality_keys import SHARE_OF_KEYS, expected_keys, key_paths, lookups, require_whole
from icekeeper.rows.file_rows import open_rows, projected_rows, reading
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.storage.paths import LOCAL_SCHEMES, S3_SCHEMES, is_local, normalise, split_path
from icekeeper.storage.storage import Storage

# The most Arrow bytes of batches that are looked up together.
_HELD_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of an input file; ``first_row`` is the position of the first row."""

    source: InputFile
    first_row: int
    batch: pa.RecordBatch


def portions(parts: Iterable[Part], rows: int) -> Iterator[list[Part]]:
    """The parts in order, in lists of at least ``rows`` rows, or fewer if memory is full; callers may empty a list."""
    held: list[Part] = []
    held_rows = held_bytes = 0
    for part in parts:
        held.append(part)
        held_rows += part.batch.num_rows
        if held_rows < rows:
            held_bytes += part.batch.nbytes
        if held_rows >= rows or held_bytes >= _HELD_BYTES:
            yield held
            held, held_rows, held_bytes = [], 0, 0
    if held:
        yield held


# Memory per row while it is looked up.
_ROW_BYTES = 48
_PUFFIN = "PUFFIN"
_AS_PY = methodcaller("as_py")


def deleted_rows_of(task: ReadTask, storage: Storage) -> DeletedRows | None:
    """The deleted rows of a task's inputs; ``None``: the task has no delete files.

    Raises:
        FileUnreadable: a delete file cannot be read; the caller must not write any row that it may delete.
        StorageError: the store failed.
    """
    return DeletedRows(task, storage) if task.deletes else None


def deleted_positions(task: ReadTask, storage: Storage) -> Mapping[str, BitMap64]:
    """Every deleted position of each of a task's inputs; keys are looked up in the inputs' key columns.

    Raises:
        FileUnreadable: a delete file cannot be read.
        StorageError: an input cannot be read.
    """
    deletes = deleted_rows_of(task, storage)
    return {} if deletes is None else deletes.all_positions(storage)


def positions_by_keys(task: ReadTask, storage: Storage) -> Mapping[str, BitMap64]:
    """Every deleted position of the inputs in which a key removes a row that no position delete removes.

    Raises:
        FileUnreadable: a delete file cannot be read.
        StorageError: an input cannot be read.
    """
    deletes = deleted_rows_of(task, storage)
    if deletes is None:
        return {}
    found = deletes.all_positions(storage)
    return {path: positions for path, positions in found.items() if deletes.is_deleted_by_key(path)}


def read_schema(task: ReadTask) -> dict[str, Any]:
    """The schema of the batches to read, including columns that only equality deletes need."""
    return {**task.schema, "fields": [*task.schema["fields"], *task.key_fields]}


class DeletedRows:
    """Reads the delete files of a task once, and returns which rows of each batch are live."""

    def __init__(self, task: ReadTask, storage: Storage) -> None:
        """Read the delete files.

        Raises:
            FileUnreadable: a delete file, or an input in which its keys are looked up, cannot be read.
            MetadataUnreadable: a delete spells the path of a data file differently.
            StorageError: the store failed.
        """
        self._task = task
        self._schema = read_schema(task)
        self._positions: dict[str, BitMap64] = defaultdict(BitMap64)
        self._sorted: dict[str, pa.Array] = {}
        self._lookups: list[EqualityLookup] = []
        self._spans: dict[tuple[tuple[int, ...], str, int | None], list[Span]] = {}
        self._read_positions(storage)
        self._by_position = {path: len(positions) for path, positions in self._positions.items()}
        self._paths = key_paths(task, self._schema)
        keys, size = expected_keys(task, self._schema)
        are_few = size <= task.key_memory_bytes // 2
        for lookup in lookups(task, self._schema, storage):
            if are_few:
                self._lookups.append(lookup)
            else:
                self._turn_into_positions(lookup, storage)
        # Rows to look up together, enough that hashing the keys does not dominate; 0: batch by batch.
        self.portion_rows = 2 * keys if self._lookups else 0

    def all_positions(self, storage: Storage) -> Mapping[str, BitMap64]:
        """Every deleted position of each input; keys are looked up in the inputs' key columns.

        Raises:
            StorageError: an input cannot be read.
        """
        while self._lookups:
            self._turn_into_positions(self._lookups.pop(), storage)
        return self._positions

    def is_deleted_by_key(self, path: str) -> bool:
        """Whether a key removes a row of a file that no position delete removes; call :meth:`all_positions` first."""
        return len(self._positions.get(path, ())) > self._by_position.get(path, 0)

    def are_deleted(self, path: str, positions: range) -> bool:
        """Whether any of these positions of a file is deleted by position deletes or a deletion vector."""
        deleted = self._positions.get(path)
        return deleted is not None and bool(deleted.range_cardinality(positions.start, positions.stop))

    def keys_within(self, source: InputFile, ranges: Mapping[int, ColumnRange]) -> int:
        """How many keys may remove rows of an input whose columns have these ranges.

        Keys that were converted into positions are not counted.
        """
        lookups = (lookup for lookup in self._lookups if lookup.applies_to(source))
        return sum(keys_within(lookup, ranges, source.sequence_number) for lookup in lookups)

    def match_rows_of(self, source: InputFile, storage: Storage) -> bool:
        """Whether a key removes any row of an input, or of its row group; reads only the key columns.

        Raises:
            StorageError: the input cannot be read.
        """
        for lookup in self._lookups:
            if lookup.applies_to(source):
                fields, paths = self._key_columns(lookup)
                for part in self._key_parts(source, fields, storage):
                    if any(pc.any(mask).as_py() for mask in _matches(lookup, [part], paths)):
                        return True
        return False

    def live_masks(self, parts: Sequence[Part]) -> list[pa.Array | None]:
        """A mask of live rows for each part; ``None``: all are live.  Batches have the :func:`read_schema`."""
        by_key: list[pa.Array | None] = [None] * len(parts)
        for lookup in self._lookups:
            reached = [i for i, part in enumerate(parts) if lookup.applies_to(part.source)]
            for i, mask in zip(reached, _matches(lookup, [parts[i] for i in reached], self._paths), strict=True):
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
        start = bisect_left(positions, first_row, key=_AS_PY)
        end = bisect_left(positions, first_row + length, lo=start, key=_AS_PY)
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
                offset, size = delete.content_offset, delete.content_size_in_bytes
                if offset is None or size is None or paths != {delete.referenced_data_file}:
                    raise FileUnreadable(
                        f"the entry of the deletion vector in {delete.path} lacks its position or its data file",
                        path=delete.path,
                    )
                vector = vector_positions(delete.path, offset, size, delete.record_count, storage)
                self._positions[paths.pop()].update(vector)
                continue
            count, spelled = 0, SpelledFiles(paths)
            for rows, by_path in position_rows(delete.path, delete.file_format, storage):
                count += rows
                for path, positions in by_path:
                    if path in paths:
                        self._positions[path].update(positions.to_pylist())
                    else:
                        spelled.refuse(delete.path, path)
            require_whole(delete, count)

    def _turn_into_positions(self, lookup: EqualityLookup, storage: Storage) -> None:
        """Look up a portion of the keys in the inputs and keep the positions of matching rows."""
        fields, paths = self._key_columns(lookup)
        reached = (source for source in self._task.inputs if lookup.applies_to(source))
        rows = (part for source in reached for part in self._rows_near(source, lookup, fields, paths, storage))
        most = int(self._task.key_memory_bytes * (1 - SHARE_OF_KEYS)) // _ROW_BYTES
        for parts in portions(rows, max(1, most)):
            for part, mask in zip(parts, _matches(lookup, parts, paths), strict=True):
                positions = part.batch.column(part.batch.num_columns - 1).filter(mask)
                found = memoryview(positions.buffers()[1]).cast("Q")[
                    positions.offset : positions.offset + len(positions)
                ]
                self._positions[part.source.path].update(found)

    def _rows_near(
        self,
        source: InputFile,
        lookup: EqualityLookup,
        fields: Sequence[Mapping[str, Any]],
        paths: Mapping[int, tuple[int, ...]],
        storage: Storage,
    ) -> Iterator[Part]:
        """The rows of an input within the bounds of the keys, with their positions as the last column."""
        name = lookup.field_ids, source.path, source.row_group
        spans = self._spans.get(name)
        if spans is not None and not lookup.may_reach(spans):
            return
        found = [Span() for _ in lookup.field_ids]
        for part in self._key_parts(source, fields, storage):
            columns = [column_at(part.batch, paths[i]) for i in lookup.field_ids]
            if spans is None:
                for span, column in zip(found, columns, strict=True):
                    span.add(column)
            positions = pa.arange(part.first_row, part.first_row + part.batch.num_rows).cast(pa.uint64())
            batch, mask = part.batch.append_column("", positions), lookup.within_bounds(columns)
            batch = batch if mask is None else batch.filter(mask)
            if batch.num_rows:
                yield replace(part, batch=batch)
        self._spans[name] = found if spans is None else spans

    def _key_columns(self, lookup: EqualityLookup) -> tuple[Sequence[Mapping[str, Any]], dict[int, tuple[int, ...]]]:
        """The fields that a lookup compares, and the path to each among them."""
        fields = fields_with(self._schema["fields"], lookup.field_ids)
        return fields, {i: column_path(fields, i) or () for i in lookup.field_ids}

    def _key_parts(self, source: InputFile, fields: Sequence[Mapping[str, Any]], storage: Storage) -> Iterator[Part]:
        first_row = source.first_row
        for batch in projected_rows(self._task.readable(source), {"type": "struct", "fields": fields}, storage):
            yield Part(source, first_row, batch)
            first_row += batch.num_rows


def _matches(lookup: EqualityLookup, parts: Sequence[Part], paths: Mapping[int, tuple[int, ...]]) -> Iterator[pa.Array]:
    """A mask of the rows that the lookup deletes, for each part."""
    if not parts:
        return
    columns = [pa.concat_arrays([column_at(part.batch, paths[i]) for part in parts]) for i in lookup.field_ids]
    rows = [part.batch.num_rows for part in parts]
    numbers = [pa.repeat(pa.scalar(p.source.sequence_number, pa.int64()), p.batch.num_rows) for p in parts]
    deleted = lookup.deleted_rows(columns, pa.concat_arrays(numbers))
    for end, count in zip(accumulate(rows), rows, strict=True):
        yield deleted.slice(end - count, count)


def live_at(deleted: pa.Array, length: int) -> pa.Array:
    """A mask of ``length`` rows: false at the deleted positions (at least one, ascending and distinct).

    Adjacent positions form runs.  The mask is decoded from the ends of the runs, without a lookup per row.
    """
    gaps = pc.pairwise_diff(deleted)
    starts = deleted.filter(pc.fill_null(pc.not_equal(gaps, 1), True))
    ends = pc.add(deleted, 1).filter(pa.concat_arrays([pc.not_equal(gaps.slice(1), 1), pa.array([True])]))
    # Live and deleted runs alternate, so these are the ends of all runs; a file may begin or end with either kind.
    turns = pa.concat_arrays([starts, ends])
    turns = turns.take(pc.array_sort_indices(turns)).cast(pa.int32())
    is_live = turns[0].as_py() > 0
    if not is_live:
        turns = turns.slice(1)
    if turns[-1].as_py() < length:
        turns = pa.concat_arrays([turns, pa.array([length], pa.int32())])
    odd = pc.equal(pc.bit_wise_and(pa.arange(0, len(turns)), 1), 1)
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(turns, pc.xor(odd, is_live)))


# The specification defines these names ("Position Delete Files"); some writers omit the field ids.
_COLUMNS = ("file_path", "pos")
# Before a larger vector is read, the file's size is checked, because memory is allocated before the read.
_USUAL_VECTOR = 64 * 1024 * 1024
_LARGEST_OFFSET = 2**62


PositionRows: TypeAlias = tuple[int, Sequence[tuple[str, pa.Array]]]
"""The number of rows of a batch, and the deleted positions of each data file.

A row with a null path or position counts and deletes nothing.
"""


def position_rows(path: str, file_format: str, storage: Storage) -> Iterator[PositionRows]:
    """Stream a position delete file batch by batch.

    Raises:
        FileUnreadable: it is missing, damaged, not a position delete file, or has a negative position.
        StorageError: the store failed.
    """
    with reading(path, storage), storage.open_input(path) as stream:
        schema, batches = open_rows(stream, file_format, few_reads=not is_local(path))
        if any(schema.get_field_index(name) < 0 for name in _COLUMNS):
            raise MetadataUnreadable(f"{path} lacks file_path or pos; it is not a position delete file")
        for batch in batches(_COLUMNS):
            table = pa.table({"path": batch.column("file_path").cast(pa.string()), "pos": batch.column("pos")})
            least = pc.min(table["pos"]).as_py()
            if least is not None and least < 0:
                # Bitmaps cannot contain it, and it is unknown which row is meant
                # (rule: unreadable-delete-blocks-its-files).
                raise MetadataUnreadable(f"{path} deletes position {least}, which no row has")
            grouped = table.drop_null().group_by("path", use_threads=False).aggregate([("pos", "list")])
            found = zip(grouped["path"].to_pylist(), grouped["pos_list"], strict=True)
            yield batch.num_rows, [(name, positions.values) for name, positions in found]


def vector_positions(path: str, offset: int, size: int, cardinality: int, storage: Storage) -> BitMap64:
    """The positions of a deletion vector in a Puffin file; offset, size and cardinality are from its manifest entry.

    Raises:
        FileUnreadable: it is missing, or its number of positions differs from its entry.
        StorageError: the store failed.
    """
    # The size of the file costs a request, so usual vectors are read without it.
    is_likely = 0 <= offset <= _LARGEST_OFFSET and 0 <= size <= _USUAL_VECTOR
    with reading(path, storage):
        with storage.open_input(path) as stream:
            if not is_likely and not 0 <= offset <= offset + size <= stream.size():
                raise MetadataUnreadable(f"the deletion vector in {path} is not at the position in its manifest")
            blob = stream.read_at(size, offset)
        return decode_deletion_vector(blob, path, cardinality)


# Position deletes that spell the path of their data file differently from its manifest are refused
# (rule: unreadable-delete-blocks-its-files).  Readers compare the text, as the specification says, so they do not apply
# such a delete.  Its writer meant existing rows: merging the delete, or dropping it as dangling, would lose it
# permanently.


class SpelledFiles:
    """Data files as their manifests spell them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for path in paths:
            self._by_name[_name(path)].append(path)

    def refuse(self, delete: str, named: str) -> None:
        """Raise MetadataUnreadable if a path in a delete is another spelling of one of the files."""
        for path in self._by_name.get(_name(named), ()):
            if path != named and normalise(path) == normalise(named):
                raise misspelled(delete, named, path)


def misspelled(delete: str, named: str, path: str) -> MetadataUnreadable:
    """The error about a delete file that spells the path of a data file differently from its manifest."""
    return MetadataUnreadable(
        f"{delete} deletes rows of {named}, which the manifests spell {path}: readers do not apply it, and it is "
        "unknown whether the rows should be deleted; commit the delete again with the manifests' spelling, or remove it"
    )


def other_spellings(path: str) -> frozenset[str]:
    """The other spellings of a path that writers use (pure)."""
    parts = split_path(path)
    keys = {parts.key, unquote(parts.key), "/".join(part for part in parts.key.split("/") if part)}
    if parts.scheme in LOCAL_SCHEMES:
        bare = {f"/{key.lstrip('/')}" for key in keys}
        found = {f"{scheme}{key}" for scheme in ("", "file:", "file://") for key in bare}
    else:
        schemes = S3_SCHEMES if parts.scheme in S3_SCHEMES else {parts.scheme}
        found = {f"{scheme}://{parts.authority}/{key}" for scheme in schemes for key in keys}
    return frozenset(found - {path})


def _name(path: str) -> str:
    return path.rpartition("/")[2]
