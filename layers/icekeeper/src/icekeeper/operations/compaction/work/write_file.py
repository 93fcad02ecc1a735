"""Writes Parquet data files as the table's properties ask, and returns their manifest entries.

Sources: Iceberg table properties ``write.parquet.*``; specification, "Parquet".  A file is written row group by row
group.  The entry has metrics from the footer and from counts of the rows, and a column gets no dictionary if a sample
of its values shows that it saves nothing.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.machine.resources import task_cores
from icekeeper.metadata.types import comparable, encode, is_utf8, truncated_lower, truncated_upper
from icekeeper.model import DataFile, FileContent, PartitionValue
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.operations.compaction.terms.write_properties import (
    dictionary_bytes,
    is_misread,
    metrics_modes,
    row_group_bytes,
    writer_options,
)
from icekeeper.operations.compaction.work.row_maps import RowMapWriter
from icekeeper.rows.arrow_schema import LeafColumn, arrow_schema, column_at, leaf_columns, leaf_values
from icekeeper.storage.arrow_files import WriteOnly
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage


def write_evenly(rows: Iterator[pa.RecordBatch], task: RewriteTask, storage: Storage) -> tuple[DataFile, ...]:
    """Write rows in their order into ``task.output_count`` files of equal numbers of rows; fewer if few rows are live.

    Raises:
        StorageError: an input cannot be read or an output cannot be written; no output of this attempt remains.
    """
    per_file = max(1, math.ceil(task.record_count / task.output_count))
    source = rows

    def rows_of_one_file() -> Iterator[pa.RecordBatch]:
        """The next rows; ``rows`` are then the remaining ones, the rest of the last batch first."""
        nonlocal rows
        wanted = per_file
        while wanted > 0 and (batch := next(rows, None)) is not None:
            if batch.num_rows > wanted:
                rows = chain([batch.slice(wanted)], source)
                batch = batch.slice(0, wanted)
            wanted -= batch.num_rows
            yield batch

    paths = [task.outputs.path(number) for number in range(task.output_count)]
    files: list[DataFile] = []
    try:
        for path in paths:
            # The last file takes all remaining rows, in case manifest entries have a too small count.
            file = write_data_file(path, rows if path == paths[-1] else rows_of_one_file(), task, storage)
            files += [] if file is None else [file]
    except BaseException:
        storage.delete(paths)
        raise
    return tuple(files)


# Bytes of memory beside the rows of a row group.  Data of the file that waits for its upload: less than Arrow's own
# streams keep (platform: boto3-uploads-in-one-request).
_ROOM = 40 * 1024 * 1024
# Sorted rows, which stay in memory while row groups are made of them.
_SORTED_BYTES = 64 * 1024 * 1024
# The batch from which live rows are copied.
_FILTERED_BYTES = 32 * 1024 * 1024
# Keys of equality deletes, and the rows that are compared with them at once.
_LOOKUP_BYTES = 24 * 1024 * 1024
# However small the table wants row groups, a file has about this many at most.
_MOST_ROW_GROUPS = 1000


def write_data_file(
    path: str,
    batches: Iterable[pa.RecordBatch],
    task: RewriteTask,
    storage: Storage,
    on_row_group: Callable[[int], None] | None = None,
) -> DataFile | None:
    """Write batches of ``task.schema`` to ``path`` and return the entry; ``None`` and no file if there are no rows.

    ``on_row_group`` is called with the file's size so far, each time when all batches read until then are written.

    Raises:
        StorageError: the file cannot be written.
        PolicyError: a ``write.parquet.*`` property is malformed.
    """
    counts = PassingCounts(task.schema)

    def options(first: pa.Table) -> dict[str, Any]:
        # The first row group is counted by now; for later ones only the entries of the inputs are known.
        unmeasured = task.misread_columns | counts.misread_columns
        plain = columns_without_dictionary(first, counts.leaves, dictionary_bytes(task.table_properties))
        return writer_options(task.table_properties, counts.leaves, first.num_rows, unmeasured, plain)

    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    row_maps = RowMapWriter(path, task, storage) if task.keeps_row_maps else nullcontext()
    with _Output(path, task, options, storage) as output, row_maps as row_map:
        for batch in batches:
            if not batch.num_rows:
                continue
            if row_map is not None:
                batch = row_map.taken_from(batch)
            counts.add(batch)
            pending.append(batch)
            pending_bytes += batch.nbytes
            if pending_bytes >= output.row_group_arrow_bytes:
                output.write(pending)
                pending, pending_bytes = [], 0
                if on_row_group is not None:
                    on_row_group(output.size)
        if pending:
            output.write(pending)
    if output.footer is None:
        return None
    modes = metrics_modes(task.schema, task.table_properties)
    return entry_of_file(path, output.size, task.partition, output.footer, counts, modes)


def _row_group_memory(path: str, task: RewriteTask, storage: Storage) -> int:
    """Bytes for the rows of a row group: the task's memory less what it needs besides (rule: bounded-worker-memory)."""
    besides = 0 if task.recipe is None else _SORTED_BYTES
    if task.deletes:
        besides += _FILTERED_BYTES
    if any(delete.equality_ids for delete in task.deletes):
        besides += _LOOKUP_BYTES
    if storage.uses_boto3(path):
        besides += _ROOM
    return max(task.row_group_memory_bytes // 2, task.row_group_memory_bytes - besides)


class _Output:
    """The file being written; it is opened with the first row group, so that without rows there is no file."""

    def __init__(
        self, path: str, task: RewriteTask, options: Callable[[pa.Table], Mapping[str, Any]], storage: Storage
    ) -> None:
        """``options`` returns the writer's options for the rows of the first row group."""
        self.size = 0
        self.footer: pq.FileMetaData | None = None
        self._path = path
        self._schema = arrow_schema(task.schema)
        self._options = options
        self._storage = storage
        # The target size in the file, and the largest size in memory, where rows are several times larger.
        self._row_group_bytes = row_group_bytes(task.table_properties)
        self._row_group_memory = _row_group_memory(path, task, storage)
        self._arrow_bytes = 0
        self._opened = ExitStack()
        self._sink: Any = None
        self._writer: RowGroupWriter | None = None

    @property
    def row_group_arrow_bytes(self) -> int:
        """Arrow bytes to collect for a row group of the target size, estimated from the row groups so far."""
        wanted = self._row_group_bytes
        if self._arrow_bytes:
            # More row groups would make the footer too large for readers (rule: cap-costly-properties).
            wanted = max(wanted, self._sink.tell() // _MOST_ROW_GROUPS)
            wanted = self._arrow_bytes * wanted // max(1, self._sink.tell())
        return min(wanted, self._row_group_memory)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Write the batches as one row group; the list is emptied."""
        table = pa.Table.from_batches(batches, self._schema)
        batches.clear()
        with self._storage.translated(self._path):
            if self._writer is None:
                options = self._options(table)
                self._sink = self._opened.enter_context(bounded_output(self._storage, self._path, _ROOM))
                self._writer = row_group_writer(self._sink, table, options)
            self._arrow_bytes += table.nbytes
            rows = [table]
            del table
            self._writer.write_row_group(rows)
            self.size = self._sink.tell()

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: Any) -> None:
        """Complete the file; after an error, remove it."""
        if error[1] is not None:
            self._opened.__exit__(*error)
            return
        with self._storage.translated(self._path), self._opened:
            if self._writer is not None:
                self.footer = self._writer.close()
                self.size = self._sink.tell()


# All cores of the task encode a row group; the bytes are the same (rule: same-bytes-on-any-cores).

# A smaller row group is encoded in the time that it takes to divide the work.
_WORTH_THREADS_BYTES = 4 * 1024 * 1024
# After a row group of this size, decoding has freed enough memory to release it.
_WORTH_RELEASE_BYTES = 64 * 1024 * 1024


class RowGroupWriter(Protocol):
    """Writes the row groups of a file."""

    def write_row_group(self, rows: list[pa.Table]) -> None:
        """Write the only table in ``rows`` as one row group, or as several if it has too many rows.

        The table is removed from the list, so that its memory can be freed before all of it is written.
        """

    def close(self) -> pq.FileMetaData | None:
        """Write the end of the file and return the footer, which may be missing after an error."""


def row_group_writer(sink: Any, first: pa.Table, options: Mapping[str, Any]) -> RowGroupWriter:
    """A writer whose first table will be ``first``; ``options`` are those of ``ParquetWriter``."""
    cores = task_cores()
    if cores > 1 and first.num_columns > 1 and first.nbytes >= _WORTH_THREADS_BYTES:
        # Imported here, so that small files and one core start without it and without Thrift.
        from icekeeper.operations.compaction.work.side_by_side import side_by_side_writer

        writer = side_by_side_writer(sink, first, options, cores)
        if writer is not None:
            return writer
    return _ColumnByColumn(sink, first.schema, options)


class _HeldBack(WriteOnly):
    """A sink that can keep the last bytes in memory, so that they can be changed."""

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._kept: bytearray | None = None

    def write(self, data: Any) -> int:
        if self._kept is None:
            self._sink.write(data)
        else:
            self._kept += memoryview(data)
        return len(data)

    def tell(self) -> int:
        """The number of bytes written, kept ones included."""
        return int(self._sink.tell()) + len(self._kept or b"")

    def flush(self) -> None:
        """Do nothing; the sink itself is flushed when it is closed."""

    def keep(self) -> bytearray:
        """Keep all bytes from now on, in the returned array."""
        self._kept = bytearray()
        return self._kept


class _ColumnByColumn:
    """Arrow's own writer."""

    def __init__(self, sink: Any, schema: pa.Schema, options: Mapping[str, Any]) -> None:
        self._sink, self._held_back = sink, _HeldBack(sink)
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(self._held_back, schema, metadata_collector=self._footers, **options)

    def write_row_group(self, rows: list[pa.Table]) -> None:
        table = rows.pop()
        if table.nbytes >= _WORTH_RELEASE_BYTES:
            # Release the memory that decoding has freed (platform: columns-encode-independently).
            pa.default_memory_pool().release_unused()
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> pq.FileMetaData | None:
        end = self._held_back.keep()
        self._writer.close()
        (footer,) = self._footers
        if footer.num_row_groups > 1:
            # A column has bounds in all row groups or in none (rule: uniform-footers).
            from icekeeper.row_group_copy.footer import FRAME, framed
            from icekeeper.row_group_copy.new_footer import with_one_voice

            start = len(end) - FRAME - int.from_bytes(end[-FRAME:-4], "little")
            end[start:] = framed(with_one_voice(bytes(end[start:-FRAME]), footer))
        self._sink.write(end)
        return footer


# Metrics of a manifest entry (specification, "Manifests"; Java's ``ParquetMetrics``).  Counts and bounds come from the
# file's footer.  Footers may lack bounds, nulls and NaN of floats, and nulls of columns without bounds; these are
# counted in the batches.  Bounds contain every value (rule: metrics-contain-every-value): truncated upper bounds round
# up, and a column has bounds only if every row group has.  Columns inside lists and maps get their size only, because
# Parquet counts an empty list as a null element.  Columns of uuids have no bounds, in the footer neither
# (:attr:`.LeafColumn.has_bounds`) (rule: no-uuid-bounds).


@dataclass(slots=True)
class _Column:
    """Counts of one column; ``path`` leads to it through structs."""

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
        found = pc.min_max(array).as_py()
        low, high = found["min"], found["max"]
        if low is not None and low <= high:  # both are NaN if all values are
            self.range = (low, high) if self.range is None else (min(low, self.range[0]), max(high, self.range[1]))


class PassingCounts:
    """Counts values that a footer may lack while batches of an Iceberg schema are written; ``columns`` is by field id.

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
        """Ids of columns whose statistics readers would misread if all rows so far were one row group."""
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
        sizes[leaf.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
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
        # Iceberg-Java cannot read such bounds (platform: java-invalid-utf8), and no others would be correct
        # (rule: text-byte-for-byte).
        return None
    if mode == "full":
        return low, high
    length = int(re.sub(r"\D", "", mode))
    return truncated_lower(iceberg_type, low, length), truncated_upper(iceberg_type, high, length)


def _first_offset(chunk: Any) -> int:
    if chunk.has_dictionary_page:
        return min(int(chunk.dictionary_page_offset), int(chunk.data_page_offset))
    return int(chunk.data_page_offset)


# Arrow's writer uses a dictionary for every column until it is full, even if values hardly repeat.  Hashing them takes
# half of the writing time, and the file becomes larger, because the dictionary is as long as the values
# (platform: arrow-useless-dictionaries).  parquet-mr drops a dictionary that saves nothing in the first page
# (``DictionaryValuesWriter.isCompressionSatisfying``).  Here a sample of the file's first row group shows how many
# distinct values it probably has.  In doubt the column keeps its dictionary.

# Enough to distinguish 200,000 different values from unique ones, in a few milliseconds per column.
_SAMPLE_ROWS = 32 * 1024
# A row group of this size is sampled completely.
_LEAST_ROWS = 1024
# At most one of this many rows is sampled, because hashing them is the cost of a dictionary.
_SHARE = 4
# The sample has stretches of rows: adjacent rows are similar, and copying single rows costs more.
_STRETCH_ROWS = 256
# A dictionary is too long if it would be this many times as long as allowed.
_MARGIN = 2.0


def columns_without_dictionary(group: pa.Table, leaves: Sequence[LeafColumn], limit: int) -> frozenset[int]:
    """Ids of leaf columns for which a dictionary would not be shorter than the values, or longer than ``limit`` (pure).

    ``group`` has the rows of one row group, ``leaves`` are all its leaf columns, ``limit`` is in bytes.
    """
    if not group.num_rows or not leaves:
        return frozenset()
    sample = _sample(group)
    scale = group.num_rows / sample.num_rows
    order = iter(leaves)
    found: set[int] = set()
    for column in sample.columns:
        for leaf, values in leaf_values(column, order):
            if leaf.iceberg_type != "boolean" and not _pays(values, scale, limit):
                found.add(leaf.field_id)
    return frozenset(found)


def _sample(table: pa.Table) -> pa.RecordBatch:
    """Stretches of rows, each from a random place in one of equal parts of the row group; the same in every run."""
    rows = table.num_rows
    wanted = max(_LEAST_ROWS, min(_SAMPLE_ROWS, rows // _SHARE))
    if rows > wanted:
        part = rows // (wanted // _STRETCH_ROWS)
        places = random.Random(0)
        starts = (start + places.randrange(part - _STRETCH_ROWS + 1) for start in range(0, rows - part + 1, part))
        table = pa.concat_tables([table.slice(start, _STRETCH_ROWS) for start in starts])
    return table.combine_chunks().to_batches()[0]


def _pays(sampled: pa.Array, scale: float, limit: int) -> bool:
    """Whether a dictionary is probably short enough for ``scale`` times as many values as were sampled."""
    if isinstance(sampled, pa.ExtensionArray):
        sampled = sampled.storage
    present = int(len(sampled) - sampled.null_count)
    if not present:
        return True
    width = _plain_bytes(sampled) / present
    values = present * scale
    distinct = _likely_distinct(int(pc.count_distinct(sampled, mode="only_valid").as_py()), present, values)
    dictionary = distinct * width
    index_bits = max(1, math.ceil(math.log2(max(2.0, distinct))))
    return dictionary <= _MARGIN * limit and dictionary + values * index_bits / 8 < values * width


def _likely_distinct(seen: int, sampled: int, values: float) -> float:
    """A lower estimate of the distinct values among ``values``, if ``sampled`` of these have ``seen`` distinct ones."""
    if values <= sampled:
        return seen
    repeated = sampled - seen
    # Chance may have hidden repetitions: add two standard deviations.
    seen = max(1, sampled - math.ceil(repeated + 2 * math.sqrt(repeated) + 2))
    kinds = _kinds(seen, sampled)
    return -kinds * math.expm1(-values / kinds)


def _kinds(seen: int, drawn: int) -> float:
    """The number of equally frequent kinds from which ``drawn`` draws give ``seen`` different ones.

    If some kinds are more frequent than others, there are more.
    """
    low, high = float(seen), 1e15
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if -middle * math.expm1(-drawn / middle) < seen:
            low = middle
        else:
            high = middle
    return low


def _plain_bytes(values: pa.Array) -> float:
    """The bytes of the values in pages without a dictionary (Parquet format, "Encodings", PLAIN)."""
    kind = values.type
    present = int(len(values) - values.null_count)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4.0 * present + float(pc.sum(pc.binary_length(values)).as_py() or 0)
    if pa.types.is_decimal(kind):
        # Parquet format, "DECIMAL": the size of an integer that holds all digits, else the fewest bytes.
        bits = math.ceil(math.log2(10 ** int(kind.precision))) + 1
        return float(present * next((size for size in (4, 8) if bits <= 8 * size), math.ceil(bits / 8)))
    return float(present * kind.bit_width / 8)
