"""Proof before commit that written files hold exactly the live rows of the inputs (rule: prove-before-commit).

:class:`RowProof` collects :class:`Evidence` of rows on their way to the writer, :func:`proof_of_file` collects it from
a written file.  The evidence of batches, files and tasks can be added in any order, and the order of rows does not
matter.  There are two levels (policy key ``proof``):

``counts``
    compares with the footers, read back from storage: the number of rows; and for every leaf column the number of
    values that are not null, and the least and greatest of numbers, times and texts.
``full``
    also reads the files back and compares a checksum of all rows (:func:`row_checksum`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeeper.errors import MaintenanceError, OutputUnproved, RowsNotKept
from icekeeper.metadata.types import NUMBERS
from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.terms.write_properties import row_group_bytes
from icekeeper.operations.compaction.work.file_entry import float_range
from icekeeper.rows.apply_deletes import DeletedRows
from icekeeper.rows.arrow_schema import as_list, fields_with, leaf_columns, leaf_values
from icekeeper.rows.file_rows import projected_rows, read_parquet_footer
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import ReadableFile, ReadTask
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.storage import Storage

# Beyond this size a larger batch saves nothing: the work on its bytes takes longer than the calls.
_MOST_BATCH_BYTES = 4 * 1024 * 1024
_BATCHES_PER_ROW_GROUP = 32


def write_proven(
    task: RewriteTask,
    storage: Storage,
    result: RewriteResult,
    write: Callable[[Iterator[pa.RecordBatch]], tuple[DataFile, ...] | None],
    deletes: DeletedRows | None = None,
) -> tuple[DataFile, ...] | None:
    """Pass the live rows to ``write``, prove the files that it returns, and return them; ``None`` is returned without
    proof.

    The rows that were read are added to ``result``; ``deletes`` is as for :func:`.read_rows`.

    Raises:
        StorageError: an input cannot be read or an output cannot be written.
        RowsNotKept: the files do not hold the rows that were read.
        OutputUnproved: the store failed before the proof; the files were deleted if possible
            (rule: prove-before-commit).
    """
    counted = Tally()
    proof = RowProof(task.schema, task.proof)
    # A small part of a row group, because a row group ends with a batch.
    row_group = min(row_group_bytes(task.table_properties), task.row_group_memory_bytes)
    batch_bytes = min(_MOST_BATCH_BYTES, row_group // _BATCHES_PER_ROW_GROUP)
    try:
        # Closing ends the reader's threads.
        with closing(read_rows(task, storage, counted, deletes)) as rows:
            files = write(proof.watch(rows, batch_bytes))
    finally:
        result.rows_read += counted.read
        result.rows_deleted += counted.deleted
    if files is None:
        return None
    paths = [file.file_path for file in files]
    try:
        written = sum([proof_of_file(path, task.schema, storage, task.proof) for path in paths], Evidence())
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        if failed_by_store(error):
            storage.delete(paths)
            raise OutputUnproved(error) from error
        problem: str | None = f"the written files cannot be read back: {error}"
    else:
        problem = disproof(task, proof.evidence, written, rows_read=counted.read, rows_deleted=counted.deleted)
    if problem is not None:
        raise RowsNotKept(problem, paths)
    return files


def checksum_at(task: ReadTask, numbers: BitMap64, storage: Storage) -> tuple[int, int]:
    """How many rows of a task's inputs have these row numbers, and the checksum of these rows (:func:`row_checksum`).

    Rows are numbered through all inputs; the task must not have deletes.

    Raises:
        StorageError: an input cannot be read.
    """
    firsts = accumulate((source.record_count for source in task.inputs), initial=0)
    inputs = (replace(source, number_from=first) for source, first in zip(task.inputs, firsts, strict=False))
    wanted, columns = pa.array(numbers.to_array(), pa.int64()), len(task.schema["fields"])
    rows = checksum = 0
    with closing(read_rows(replace(task, inputs=tuple(inputs)), storage, Tally())) as batches:
        for batch in batches:
            found = batch.filter(pc.is_in(batch.column(columns), wanted)).select(range(columns))
            rows += found.num_rows
            checksum += row_checksum(found)
    return rows, checksum % WORD


COUNTS = "counts"
FULL = "full"
Range: TypeAlias = tuple[Any, Any]
Leaf: TypeAlias = tuple[int, str]
"""The field id and the name of a leaf column; the leaf columns of a variant share its id."""
# The least and greatest of NUMBERS are cheap to find in a batch, and the footer has them bit for bit.  So are those of
# texts, but a footer has no bounds if values are long.
_TEXTS = frozenset({"string", "binary"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of some rows; picklable.  Mappings are by leaf column."""

    rows: int = 0
    present: Mapping[Leaf, int] = field(default_factory=dict)
    """The number of values that are not null; every value inside a list or map counts."""
    bounds: Mapping[Leaf, Range | None] = field(default_factory=dict)
    """Least and greatest raw value of numbers, times and texts, without NaN; ``None``: unknown.

    A column without any such value is missing.
    """
    checksum: int | None = 0
    """See :func:`row_checksum`; ``None``: some of the rows were not read."""

    def __add__(self, other: Evidence) -> Evidence:
        whole = self.checksum is not None and other.checksum is not None
        return Evidence(
            self.rows + other.rows,
            {
                leaf: self.present.get(leaf, 0) + other.present.get(leaf, 0)
                for leaf in {**self.present, **other.present}
            },
            _joined(self.bounds, other.bounds),
            ((self.checksum or 0) + (other.checksum or 0)) % WORD if whole else None,
        )

    def contradiction(self, written: Evidence) -> str | None:
        """A sentence about the first difference between these rows and the written rows; ``None`` if there is no
        difference."""
        if self.rows != written.rows:
            return f"{self.rows} rows went to the writer, but the written files have {written.rows}"
        for leaf, count in self.present.items():
            found = written.present.get(leaf, 0)
            if count != found:
                return f"column {leaf[1]} had {count} values, but has {found} in the written files"
        for leaf in {**self.bounds, **written.bounds}:
            ours, theirs = self.bounds.get(leaf, ()), written.bounds.get(leaf, ())
            if ours is not None and theirs is not None and ours != theirs:
                return f"column {leaf[1]} had values {_range(ours)}, but has {_range(theirs)} in the written files"
        if None not in (self.checksum, written.checksum) and self.checksum != written.checksum:
            return "the checksums of the rows before and after writing differ"
        return None


def _joined(first: Mapping[Leaf, Range | None], second: Mapping[Leaf, Range | None]) -> dict[Leaf, Range | None]:
    joined = dict(first)
    for leaf, other in second.items():
        known = joined.get(leaf, other)
        if known is None or other is None:
            joined[leaf] = None
        else:
            joined[leaf] = min(known[0], other[0]), max(known[1], other[1])
    return joined


def _range(bounds: tuple[Any, ...]) -> str:
    return f"from {bounds[0]} to {bounds[1]}" if bounds else "nothing"


def disproof(task: RewriteTask, read: Evidence, written: Evidence, *, rows_read: int, rows_deleted: int) -> str | None:
    """Why the written files do not hold the live rows of a task's inputs; ``None`` if they do.

    ``rows_read`` is the number of rows found in the inputs, ``rows_deleted`` the number of deleted rows among them.
    """
    promised = task.record_count
    if rows_read != promised or rows_read - rows_deleted != read.rows:
        return (
            f"row counts differ: {promised} in manifests, {rows_read} read, {rows_deleted} of them deleted, "
            f"{read.rows} written"
        )
    return read.contradiction(written)


class RowProof:
    """Collects evidence of rows without keeping them."""

    def __init__(self, schema: Mapping[str, Any], level: str) -> None:
        self._leaves = leaf_columns(schema)
        self._columns = len(schema["fields"])
        self._full = level == FULL
        self._rows = self._checksum = 0
        self._present = {(leaf.field_id, leaf.name): 0 for leaf in self._leaves}
        self._bounds: dict[Leaf, Range | None] = {}

    def watch(self, batches: Iterable[pa.RecordBatch], enough_bytes: int = 0) -> Iterator[pa.RecordBatch]:
        """Add and yield all rows in their order, with small batches joined into batches of about ``enough_bytes``.

        Joined batches save work per batch.  Larger batches are not copied; empty batches are left out.
        """
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            size = batch.nbytes
            if held and size >= enough_bytes:
                yield self._added(held)
                held_bytes = 0
            held.append(batch)
            held_bytes += size
            if held_bytes >= enough_bytes:
                yield self._added(held)
                held_bytes = 0
        if held:
            yield self._added(held)

    def _added(self, held: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Add all batches as a single batch and return it; the list is emptied to free the parts."""
        batch = held[0] if len(held) == 1 else pa.concat_batches(held)
        held.clear()
        self.add(batch)
        return batch

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the evidence of a batch."""
        if not batch.num_rows:
            return
        if batch.num_columns > self._columns:  # row numbers are not written
            batch = batch.select(range(self._columns))
        self._rows += batch.num_rows
        leaves = iter(self._leaves)
        for column in batch.columns:
            for leaf, values in leaf_values(column, leaves):
                key = leaf.field_id, leaf.name
                self._present[key] += len(values) - values.null_count
                if leaf.iceberg_type in NUMBERS or leaf.iceberg_type in _TEXTS:
                    found = _least_and_greatest(values)
                    if found is not None:
                        self._bounds = _joined(self._bounds, {key: found})
        if self._full:
            self._checksum += row_checksum(batch)

    @property
    def evidence(self) -> Evidence:
        checksum = self._checksum % WORD if self._full else None
        return Evidence(self._rows, dict(self._present), dict(self._bounds), checksum)


def _least_and_greatest(values: pa.Array) -> Range | None:
    if pa.types.is_floating(values.type):
        return float_range(values)
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    elif pa.types.is_string(values.type):
        values = values.view(pa.binary())
    low, high = pc.min_max(values).as_py().values()
    return None if low is None else (low, high)


def proof_of_file(path: str, schema: Mapping[str, Any], storage: Storage, level: str) -> Evidence:
    """Evidence of the rows of a written Parquet file: from its footer, or for ``full`` from all rows, read back.

    Raises:
        StorageError: the file is missing or cannot be read.
    """
    if level != FULL:
        with storage.translated(path):
            footer = read_parquet_footer(path, storage)
            return _proof_of_footer(footer, _counted(path, footer, schema, storage), schema)
    read = RowProof(schema, level)
    for batch in projected_rows(ReadableFile(path), schema, storage):
        read.add(batch)
    return read.evidence


def _proof_of_footer(footer: pq.FileMetaData, counted: Evidence, schema: Mapping[str, Any]) -> Evidence:
    """Evidence from the footer's statistics; ``counted`` is the evidence of columns without statistics."""
    present = dict(counted.present)
    bounds = dict(counted.bounds)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    for index, leaf in enumerate(leaf_columns(schema)):
        key = leaf.field_id, leaf.name
        if key in counted.present:
            continue
        for chunk in (group.column(index) for group in groups):
            statistics = chunk.statistics
            count = chunk.num_values - statistics.null_count
            present[key] = present.get(key, 0) + count
            if leaf.iceberg_type in NUMBERS and statistics.has_min_max:
                bounds = _joined(bounds, {key: (statistics.min_raw, statistics.max_raw)})
            elif leaf.is_float and count:  # this or another row group of the column has only NaN
                bounds = _joined(bounds, {key: None})
            elif leaf.iceberg_type in _TEXTS and count:
                known = (_bytes(statistics.min_raw), _bytes(statistics.max_raw)) if statistics.has_min_max else None
                bounds = _joined(bounds, {key: known})
    return Evidence(footer.num_rows, present, bounds, None)


def _counted(path: str, footer: pq.FileMetaData, schema: Mapping[str, Any], storage: Storage) -> Evidence:
    """Evidence of the columns without statistics (uuids, some floats), which are read."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    leaves = leaf_columns(schema)
    unmeasured = {
        leaf.field_id for i, leaf in enumerate(leaves) if any(group.column(i).statistics is None for group in groups)
    }
    fields = fields_with(schema["fields"], unmeasured)
    read = RowProof({**schema, "fields": fields}, COUNTS)
    if unmeasured:
        with storage.open_input(path) as stream:
            file = pq.ParquetFile(stream, metadata=footer, page_checksum_verification=True)
            for batch in file.iter_batches(
                columns=[leaf.parquet_path for leaf in leaves if leaf.field_id in unmeasured]
            ):
                read.add(batch)
    return read.evidence


def _bytes(raw: str | bytes) -> bytes:
    return raw.encode() if isinstance(raw, str) else bytes(raw)


# Arrow has no hash kernel and NumPy is not a dependency, so hashes use Arrow's wrapping 64-bit arithmetic.  Fixed-width
# values are hashed by the finaliser of SplitMix64 (Steele, Lea, Flood 2014), bytes and elements by multilinear hashing
# (a sum of products with a fixed pseudo-random number per position).  The result is the same in every process.  It
# finds mistakes; it does not protect against attackers.

WORD = 2**64

# Hashing a slice of rows takes about 30 times its size; this limits it to a few dozen MB.
_SLICE_BYTES = 1024 * 1024
# Longer values are hashed individually to limit memory.
_LONG_BYTES = 64 * 1024
_GOLDEN = 0x9E3779B97F4A7C15
_NULL = 0x5D8E6B2C9A1F4703
_U64 = pa.uint64()


def row_checksum(batch: pa.RecordBatch) -> int:
    """A checksum over every column that does not depend on the order of rows: the sum of 64-bit row hashes.

    The sum is taken modulo 2^64.  Checksums of several batches add up to the checksum of all their rows.
    """
    rows = max(1, batch.num_rows * _SLICE_BYTES // max(1, batch.nbytes))
    total = 0
    for start in range(0, batch.num_rows, rows):
        hashes = _mixed(_combined([_hashes(column) for column in batch.slice(start, rows).columns]))
        total += pc.sum(hashes).as_py() or 0
    return total % WORD


def _combined(columns: Sequence[pa.Array]) -> pa.Array:
    """One hash per row from the hashes of its columns; it changes if two columns are exchanged."""
    total = _mixed(pc.add(columns[0], _word(_GOLDEN)))
    for number, column in enumerate(columns[1:], start=2):
        total = pc.add(total, _mixed(pc.add(column, _word(number * _GOLDEN))))
    return total


def _hashes(array: pa.Array) -> pa.Array:
    """One hash per value, including nulls."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_struct(kind):
        hashes = _combined([_hashes(child) for child in array.flatten()])
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        lists = as_list(array)
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        hashes = _of_sequences(_mixed(_hashes(lists.flatten())), lengths)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        hashes = _of_bytes(array.cast(pa.binary()))
    else:
        hashes = _mixed(_bits(array))
    return pc.if_else(pc.is_null(array), _word(_NULL), hashes) if array.null_count else hashes


def _bits(array: pa.Array) -> pa.Array:
    """Fixed-width values as 64 bits, equal only if the values are equal bit for bit."""
    kind = array.type
    if pa.types.is_decimal(kind):
        words = pa.Array.from_buffers(_U64, 2 * len(array), [None, array.buffers()[1]], offset=2 * array.offset)
        pairs = pa.FixedSizeListArray.from_arrays(words, 2)
        return pc.add(pc.list_element(pairs, 0), _mixed(pc.list_element(pairs, 1)))
    if pa.types.is_boolean(kind):
        return array.cast(pa.uint8()).cast(_U64)
    if kind.bit_width < 64:  # of narrow integers, only a variant has 8 or 16 bits
        return array.view(f"int{kind.bit_width}").cast(pa.int64()).view(_U64)
    return array.view(pa.int64()).view(_U64)


def _of_bytes(array: pa.Array) -> pa.Array:
    array = pc.fill_null(array, b"")
    is_long = pc.greater(pc.binary_length(array), _LONG_BYTES)
    if not pc.any(is_long).as_py():
        return _of_short_bytes(array)
    digests = [hashlib.blake2b(value, digest_size=8).digest() for value in array.filter(is_long).to_pylist()]
    words = pa.array([int.from_bytes(digest, "little") for digest in digests], _U64)
    return pc.replace_with_mask(_of_short_bytes(pc.if_else(is_long, pa.scalar(b""), array)), is_long, words)


def _of_short_bytes(array: pa.Array) -> pa.Array:
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets_buffer], offset=array.offset)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if data_buffer is None or first == last:
        data = pa.array([], _U64)
    else:
        data = pa.Array.from_buffers(pa.uint8(), last - first, [None, data_buffer], offset=first).cast(_U64)
    return _of_sequences(data, pc.binary_length(array))


def _of_sequences(items: pa.Array, lengths: pa.Array) -> pa.Array:
    """One hash per sequence; ``items`` has the items of all sequences in order."""
    lengths = lengths.cast(pa.int64())
    ends = pc.cumulative_sum(lengths)
    starts = pc.subtract(ends, lengths)
    if not len(items):
        return _mixed(lengths.view(_U64))
    longest = pc.max(lengths).as_py()
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    owner = pc.list_parent_indices(pa.LargeListArray.from_arrays(offsets, items))
    place = pc.subtract(pa.arange(0, len(items)), starts.take(owner))
    factors = _mixed(pc.multiply(pa.arange(1, longest + 1).cast(_U64), _word(_GOLDEN)))
    products = pc.multiply(pc.add(items, _word(1)), factors.take(place))
    sums = pa.concat_arrays([pa.array([0], _U64), pc.cumulative_sum(products)])
    total = pc.subtract(sums.take(ends), sums.take(starts))
    return _mixed(pc.add(total, lengths.view(_U64)))


def _mixed(words: pa.Array) -> pa.Array:
    words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _word(30))), _word(0xBF58476D1CE4E5B9))
    words = pc.multiply(pc.bit_wise_xor(words, pc.shift_right(words, _word(27))), _word(0x94D049BB133111EB))
    return pc.bit_wise_xor(words, pc.shift_right(words, _word(31)))


def _word(value: int) -> pa.Scalar:
    return pa.scalar(value % WORD, _U64)
