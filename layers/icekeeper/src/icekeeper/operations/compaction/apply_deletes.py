"""Which rows of the inputs are deleted: by position deletes, deletion vectors and equality deletes, while reading.

Positions become one bitmap per input; equality keys become lookups (:mod:`.equality`).  Delete files are read once per
task and streamed.  Where the equality keys of a task are too many to hold at once, they are taken in portions, each
turned into positions by one scan of the key columns, so that memory stays bounded (specification, "Delete Formats").
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeeper.errors import MetadataUnreadable, TableUnsupported
from icekeeper.metadata.puffin import decode_deletion_vector
from icekeeper.model import FileContent
from icekeeper.operations.compaction.equality import EqualityLookup, deleted_rows
from icekeeper.operations.compaction.file_rows import open_rows, projected_rows
from icekeeper.operations.compaction.task import DeleteFile, InputFile, RewriteTask
from icekeeper.storage import Storage

__all__ = ["DeletedRows"]

# The specification fixes these names ("Position Delete Files"); some writers leave out the field ids.
_POSITION_COLUMNS = ("file_path", "pos")
# Keys held at once; with two string columns of 50 bytes that is some 300 MB of Arrow.
MAX_KEYS = 2_000_000
_NUMBER = "icekeeper.sequence-number"
_PUFFIN = "PUFFIN"


class DeletedRows:
    """The deletes of one task, read once; tells for every batch which of its rows remain."""

    def __init__(self, task: RewriteTask, table_schema: Mapping[str, Any], storage: Storage) -> None:
        """``table_schema`` holds the key columns too.

        Raises:
            MetadataUnreadable, StorageError: a delete file cannot be read; then nothing may be merged.
        """
        self._task = task
        self._schema = table_schema
        self._positions: dict[str, BitMap64] = defaultdict(BitMap64)
        self._sorted: dict[str, pa.Array] = {}
        self._lookups: list[EqualityLookup] = []
        self._read_positions(storage)
        keys = sum(d.record_count for d in task.deletes if d.content is FileContent.EQUALITY_DELETES)
        for lookup in _lookups(task, self._schema, storage):
            if keys <= MAX_KEYS:
                self._lookups.append(lookup)
            else:
                self._turn_into_positions(lookup, storage)

    def keep(self, source: InputFile, first_row: int, columns: Mapping[int, pa.Array], length: int) -> pa.Array | None:
        """A mask of the rows that remain, ``None`` when all do.

        ``columns`` are by field id; their rows are ``first_row`` to ``first_row + length`` of the file.
        """
        deleted = self._at_positions(source, first_row, length)
        if self._lookups and source.deletes:
            by_key = _matches(self._lookups, source, columns, length)
            deleted = by_key if deleted is None else pc.or_(deleted, by_key)
        if deleted is None or not pc.any(deleted).as_py():
            return None
        return pc.invert(deleted)

    def _at_positions(self, source: InputFile, first_row: int, length: int) -> pa.Array | None:
        if source.path not in self._positions:
            return None
        if source.path not in self._sorted:
            self._sorted[source.path] = pa.array(self._positions[source.path].to_array(), pa.int64())
        positions = self._sorted[source.path]
        start = bisect_left(positions, first_row, key=_value)
        end = bisect_left(positions, first_row + length, lo=start, key=_value)
        if start == end:
            return None
        return pc.is_in(pa.arange(first_row, first_row + length), value_set=positions.slice(start, end - start))

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
            for path, positions in _position_rows(delete, paths, storage):
                self._positions[path].update(positions)

    def _read_vector(self, delete: DeleteFile, paths: set[str], storage: Storage) -> None:
        offset, size = delete.content_offset, delete.content_size_in_bytes
        if offset is None or size is None or paths != {delete.referenced_data_file}:
            raise MetadataUnreadable(f"the deletion vector in {delete.path} does not say where it is, or of which file")
        with storage.translated(delete.path), storage.open_input(delete.path) as stream:
            blob = stream.read_at(size, offset)
        self._positions[paths.pop()].update(decode_deletion_vector(blob, delete.path, delete.record_count))

    def _turn_into_positions(self, lookup: EqualityLookup, storage: Storage) -> None:
        """One portion of the keys against the key columns of every input."""
        fields = [f for f in self._schema["fields"] if f["id"] in lookup.field_ids]
        for source in self._task.inputs:
            if not source.deletes:
                continue
            first_row = 0
            batches = projected_rows(
                source.path,
                source.file_format,
                {"type": "struct", "fields": fields},
                storage,
                identity_values=source.identity_values,
                name_mapping_json=self._task.name_mapping_json,
            )
            for batch in batches:
                columns = {f["id"]: batch.column(i) for i, f in enumerate(fields)}
                found = pc.indices_nonzero(_matches([lookup], source, columns, batch.num_rows))
                self._positions[source.path].update(pc.add(found.cast(pa.int64()), first_row).to_pylist())
                first_row += batch.num_rows


def _matches(
    lookups: Sequence[EqualityLookup], source: InputFile, columns: Mapping[int, pa.Array], length: int
) -> pa.Array:
    asked = [(lookup, [_plain(columns[i]) for i in lookup.field_ids]) for lookup in lookups]
    return deleted_rows(asked, source.sequence_number, length)


def _position_rows(delete: DeleteFile, paths: set[str], storage: Storage) -> Iterator[tuple[str, list[int]]]:
    """Positions per wanted data file; rows with a null path delete nothing."""
    names = pa.array(sorted(paths), pa.string())
    with storage.translated(delete.path), storage.open_input(delete.path) as stream:
        rows = open_rows(stream, delete.file_format)
        if any(rows.schema.get_field_index(name) < 0 for name in _POSITION_COLUMNS):
            raise MetadataUnreadable(f"{delete.path} lacks file_path or pos; it is no position delete file")
        for batch in rows.batches(_POSITION_COLUMNS):
            path_column, positions = (batch.column(name) for name in _POSITION_COLUMNS)
            path_column = path_column.cast(pa.string())
            for path in pc.unique(path_column.filter(pc.is_in(path_column, value_set=names))).to_pylist():
                mine = positions.filter(pc.fill_null(pc.equal(path_column, path), False))
                yield path, pc.drop_null(mine).to_pylist()


def _lookups(task: RewriteTask, schema: Mapping[str, Any], storage: Storage) -> Iterator[EqualityLookup]:
    """The keys of the task's equality deletes, per set of columns, at most ``MAX_KEYS`` at a time."""
    by_key: dict[tuple[int, ...], list[DeleteFile]] = defaultdict(list)
    for delete in task.deletes:
        if delete.content is FileContent.EQUALITY_DELETES:
            by_key[tuple(sorted(delete.equality_ids))].append(delete)
    for field_ids, deletes in by_key.items():
        found = (f for f in schema["fields"] if f["id"] in field_ids)
        # Required, so that a delete file that lacks a key column is an error and not a key of nulls.
        fields = sorted(({**f, "required": True} for f in found), key=lambda f: int(f["id"]))
        if len(fields) != len(field_ids):
            raise TableUnsupported(f"an equality delete uses columns {list(field_ids)}, which are not all top-level")
        held: list[pa.RecordBatch] = []
        for delete in deletes:
            number = pa.scalar(delete.sequence_number, pa.int64())
            for batch in projected_rows(delete.path, delete.file_format, {"type": "struct", "fields": fields}, storage):
                held.append(batch.append_column(_NUMBER, pa.repeat(number, batch.num_rows)))
                if sum(b.num_rows for b in held) >= MAX_KEYS:
                    yield _lookup(field_ids, held)
                    held = []
        if held:
            yield _lookup(field_ids, held)


def _lookup(field_ids: tuple[int, ...], batches: Sequence[pa.RecordBatch]) -> EqualityLookup:
    columns = [pa.concat_arrays([_plain(batch.column(i)) for batch in batches]) for i in range(len(field_ids) + 1)]
    return EqualityLookup.build(field_ids, columns[:-1], columns[-1])


def _plain(array: pa.Array) -> pa.Array:
    """Arrow's lookups take storage types only."""
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _value(scalar: pa.Scalar) -> int:
    return int(scalar.as_py())
