"""Opens data and delete files of any format and reads them as Arrow batches with field ids.

Parquet, ORC and Avro store field ids as attributes of their columns (specification, "Parquet", "ORC", "Avro").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.errors import FileUnreadable, MetadataUnreadable, StorageError, TableUnsupported
from icekeeper.machine.resources import task_cores
from icekeeper.metadata.types import decode
from icekeeper.model import DataFile, ManifestEntry
from icekeeper.rows.avro_rows import AvroRows
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

Batches: TypeAlias = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
"""Reads the top-level columns of these names."""
BATCH_ROWS = 128 * 1024
"""Rows of a batch: few enough to limit a worker's memory, and enough for full speed."""
READABLE_FORMATS = frozenset({"PARQUET", "ORC", "AVRO"})


def projected_rows(
    file: ReadableFile,
    schema: Mapping[str, Any],
    storage: Storage,
    *,
    must_hold: Collection[int] = (),
    opened: pa.NativeFile | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of all rows of a file, in file order, as rows of an Iceberg schema; at most one row group is in memory.

    ``must_hold``: the ids of columns that the file itself must have; no default and no partition value replaces them.
    ``opened``: the bytes of the file, if they are already in memory.

    Raises:
        FileUnreadable: the file is missing, damaged, cannot be read as that schema, or does not agree with its
            partition although it must.
        StorageError: the store failed.
    """
    with reading(file.path, storage):
        few_reads = opened is None and not is_local(file.path)
        with storage.open_input(file.path, file.file_size_in_bytes) if opened is None else opened as stream:
            stored, batches = open_rows(stream, file.file_format, file.row_group, few_reads=few_reads)
            projection = Projection(
                stored, schema, file.identity_values, file.name_mapping, must_hold, file.by_position
            )
            for batch in batches(projection.file_columns):
                rows = projection.apply(batch)
                if file.must_agree and (name := projection.column_unlike_partition(rows)) is not None:
                    raise TableUnsupported(
                        f"{file.path} was left alone, because its column {name} differs from its identity partition, "
                        "so readers disagree"
                    )
                yield rows


@contextmanager
def reading(path: str, storage: Storage) -> Iterator[None]:
    """Convert errors of reading a data or delete file into an error that names the file
    (rule: leave-out-unreadable-files).

    Raises:
        FileUnreadable: the file is missing, damaged, not a delete file, or of another schema.
        StorageError: the store failed; the file itself may be intact.
    """
    try:
        yield
    except (MetadataUnreadable, TableUnsupported, pa.ArrowException, OSError, ValueError) as error:
        if failed_by_store(error):
            with storage.translated(path):
                raise
        # Messages of Arrow have line breaks and unprintable bytes.
        text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
        raise FileUnreadable(text if path in text else f"file {path} cannot be read: {text}", path=path) from error
    except StorageError as error:
        if isinstance(error, FileUnreadable) or not storage.shows_missing(path, error):
            raise
        raise FileUnreadable(str(error), path=path) from error


def open_rows(
    stream: pa.NativeFile, file_format: str, row_group: int | None = None, *, few_reads: bool = False
) -> tuple[pa.Schema, Batches]:
    """Open a file: its Arrow schema with field ids, and its batches; the stream must stay open while these are read.

    ``row_group``: as in :class:`.ReadableFile`.  ``few_reads``: each read of the stream is slow, so the columns of a
    row group are read together.

    Raises:
        TableUnsupported: the format is not read by this version.
        pa.ArrowException, OSError: the file is damaged.
    """
    kind = file_format.upper()
    if kind == "PARQUET":
        parquet = open_parquet(stream, few_reads, row_group, BATCH_ROWS)
        return parquet.file.schema_arrow, partial(_parquet, parquet)
    if kind == "ORC":
        # Imported here: most tables have no such files.
        from icekeeper.rows.orc_rows import OrcRows

        file = OrcRows(stream)
        return (
            file.schema,
            lambda names: file.batches(_columns(names), BATCH_ROWS) if names else _without_columns(file.rows),
        )
    if kind == "AVRO":
        avro = AvroRows(stream)
        return avro.schema, avro.batches
    raise TableUnsupported(f"{file_format} files are not read by this version of Icekeeper")


def _parquet(parquet: ParquetRows, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    file = parquet.file
    if not names:
        footer = file.metadata
        for groups in parquet.portions:
            rows = footer.num_rows if groups is None else sum(footer.row_group(n).num_rows for n in groups)
            yield from _without_columns(rows)
        return
    rows, threads, wanted = parquet.batch_rows, parquet.threads, _columns(names)
    for groups in parquet.portions:
        yield from file.iter_batches(batch_size=rows, row_groups=groups, columns=wanted, use_threads=threads)


def _columns(names: Sequence[str]) -> list[str] | None:
    """The columns to read; ``None``: all, because pyarrow takes a name with a dot for a path."""
    return None if any("." in name for name in names) else list(names)


def _without_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Batches without columns, for a file that has none of the wanted columns: only the number of rows matters."""
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


# Parquet files are opened so that only pieces of a row group are in memory, however large it is.  Without a buffer
# size, Arrow reads whole column chunks (platform: arrow-allocators).

_SMALL_BYTES = 4 * 1024 * 1024
"""Files up to this size are read with Arrow's defaults, without checking their row groups."""
_THREADS_PAY_BYTES = 512 * 1024
"""Below this size, passing columns to threads takes longer than decoding them."""
_BUFFER_BYTES = 256 * 1024
"""Buffer of a column chunk on this machine."""
_AT_ONCE_BYTES = 32 * 1024 * 1024
"""The most bytes that are fetched with few requests: all of them are in memory before decoding starts."""
_BATCH_BYTES = 16 * 1024 * 1024
"""The most encoded, uncompressed bytes of a batch: batches of wide rows have fewer rows."""


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """An open Parquet file and how to read it."""

    file: pq.ParquetFile
    portions: tuple[list[int] | None, ...]
    """Row groups that are read together; ``None``: all of them."""
    batch_rows: int
    threads: bool
    """Whether Arrow may decode with threads."""


def open_parquet(stream: pa.NativeFile, few_reads: bool, row_group: int | None, batch_rows: int) -> ParquetRows:
    """Open a single row group or all; batches have ``batch_rows`` rows, or fewer if rows are wide.

    ``few_reads``: as in :func:`open_rows`.  Reading a page with a wrong checksum raises an error
    (rule: verify-page-checksums); Arrow checks only on request (platform: arrow-page-checksums).

    Raises:
        pa.ArrowException, OSError: the file is damaged.
    """
    options: dict[str, Any] = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
    size, share = int(stream.size()), 1.0
    if size > _SMALL_BYTES:
        footer = pq.read_metadata(stream)
        encoded = max(1, sum(_encoded_bytes(footer)))
        # Bytes of the file per encoded byte, estimated: the footer only has the sum of encoded bytes.
        share = size / encoded
        options |= {"metadata": footer, "buffer_size": _buffer_bytes(footer, share, few_reads)}
        batch_rows = max(1, min(batch_rows, _BATCH_BYTES * footer.num_rows // encoded))
    file = pq.ParquetFile(stream, pre_buffer=few_reads and not options.get("buffer_size"), **options)
    threads = size >= _THREADS_PAY_BYTES and arrow_threads()
    if row_group is not None:
        return ParquetRows(file, ([row_group],), batch_rows, threads)
    portions = tuple(_portions(file.metadata, share, batch_rows)) if few_reads else (None,)
    return ParquetRows(file, portions, batch_rows, threads)


def _encoded_bytes(footer: pq.FileMetaData) -> Iterator[int]:
    return (footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def _buffer_bytes(footer: pq.FileMetaData, share: float, few_reads: bool) -> int:
    """How much of a column chunk is buffered; 0: chunks are small enough to be read whole."""
    largest = max(_encoded_bytes(footer), default=0) * share
    wanted = _BUFFER_BYTES
    if few_reads:
        if largest <= _AT_ONCE_BYTES:
            return 0
        wanted = max(_BUFFER_BYTES, _AT_ONCE_BYTES // footer.num_columns)
    return wanted if wanted * footer.num_columns < largest else 0


def _portions(footer: pq.FileMetaData, share: float, batch_rows: int) -> Iterator[list[int]]:
    """Lists of row groups that together have the rows of a batch, or as many bytes as may be fetched at once."""
    portion: list[int] = []
    rows, size = 0, 0.0
    for number, encoded in enumerate(_encoded_bytes(footer)):
        portion.append(number)
        rows += footer.row_group(number).num_rows
        size += encoded * share
        if rows >= batch_rows or size >= _AT_ONCE_BYTES or number == footer.num_row_groups - 1:
            yield portion
            portion, rows, size = [], 0, 0.0


def arrow_threads() -> bool:
    """The ``use_threads`` argument for Arrow in this task; sizes Arrow's pool to the task's cores.

    Arrow has one thread pool per process, by default with a thread per core of the machine.  A worker runs one task at
    a time.
    """
    cores = task_cores()
    if cores > 1 and pa.cpu_count() != cores:
        pa.set_cpu_count(cores)
    return cores > 1


# apache/parquet-format, "File format": a file ends with the footer, its length in four bytes and the magic bytes.
_MAGIC = b"PAR1"
_FRAME = 8
_FIRST_READ = 64 * 1024


def read_parquet_footer(path: str, storage: Storage) -> pq.FileMetaData:
    """The footer of a Parquet file, read with a single request unless it is unusually large.

    Raises:
        StorageError: the file does not exist, or the store failed.
        pa.ArrowException: the file is not a Parquet file, or is damaged.
    """
    end, size, _ = storage.read_end(path, _FIRST_READ)
    wanted = int.from_bytes(end[-_FRAME:-4], "little") + _FRAME
    if len(end) < wanted <= size:
        end = storage.read_end(path, wanted).data
    # Arrow finds the footer from the end, and also checks the magic bytes at the start.
    return pq.read_metadata(pa.BufferReader(_MAGIC + end[-wanted:]))


def schema_of(footer: pq.FileMetaData) -> pa.Schema:
    """The Arrow schema of a Parquet file, as :func:`open_rows` returns it."""
    # The schema of the footer itself lacks Arrow's extension types, such as uuid.
    return pq.ParquetFile(pa.BufferReader(b""), metadata=footer).schema_arrow


# Arrow reads every timestamp of an ORC file as nanoseconds in 64 bits, which hold
# times from 1677 to 2262 only.
_MICROS = range(-(2**63) // 1000 + 1, 2**63 // 1000)
_MICRO_TIMES = ("timestamp", "timestamptz")


def why_unreadable(file: DataFile, deletes: Iterable[ManifestEntry], types: Mapping[int, str]) -> str | None:
    """Why this version cannot read a data file, by its manifest entry, as the end of a sentence; ``None``: it can.

    ``deletes``: the delete files that apply to it; ``types``: field id of each wanted column → its type.
    """
    if file.key_metadata is not None:
        return "is encrypted"
    for delete in deletes:
        if delete.file.key_metadata is not None:
            return f"needs delete file {delete.file.file_path}, which is encrypted"
    kind = file.file_format.upper()
    if kind not in READABLE_FORMATS:
        return f"is {kind}, which is not read"
    # Without bounds, only reading the file shows times out of range.
    for bounds in (file.lower_bounds, file.upper_bounds) if kind == "ORC" else ():
        for field_id, value in (bounds or {}).items():
            # A bound of four bytes is a day: the column was a date when the file was written.
            if types.get(field_id) in _MICRO_TIMES and len(value) == 8 and decode("timestamp", value) not in _MICROS:
                return "is ORC with timestamps before 1678 or after 2261, which are not read"
    return None
