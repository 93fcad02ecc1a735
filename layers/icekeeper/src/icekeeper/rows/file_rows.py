"""Reads a data or delete file of any format as Arrow batches with field ids.

Parquet, ORC and Avro keep field ids as attributes of their columns (specification, "Parquet", "ORC", "Avro"; ORC's
``iceberg.id``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import orc

from icekeeper.errors import FileUnreadable, MetadataUnreadable, StorageError, TableUnsupported
from icekeeper.rows.avro_rows import AvroRows
from icekeeper.rows.parquet_reader import ParquetRows, open_parquet
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.paths import is_local
from icekeeper.storage.storage import Storage

__all__ = ["BATCH_ROWS", "READABLE_FORMATS", "FileRows", "open_rows", "projected_rows", "reading"]

# Rows of a batch; so many keep a worker's memory flat at full speed (platform 8).
BATCH_ROWS = 128 * 1024
READABLE_FORMATS = frozenset({"PARQUET", "ORC", "AVRO"})


@dataclass(frozen=True, slots=True)
class FileRows:
    """An open file: its Arrow schema with field ids; ``batches(names)`` reads these top-level columns."""

    schema: pa.Schema
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]


def open_rows(
    stream: pa.NativeFile,
    file_format: str,
    row_group: int | None = None,
    *,
    few_reads: bool = False,
    verify_checksums: bool = True,
) -> FileRows:
    """Open a file; the stream must stay open while batches are read.  ``row_group`` and ``verify_checksums``: as in
    :class:`.ReadableFile`.

    ``few_reads``: each read of the stream takes long, so that the columns of a row group are better read in one.

    Raises:
        TableUnsupported: the format is not read by this version.
        pa.ArrowException, OSError: the file is damaged.
    """
    kind = file_format.upper()
    if kind == "PARQUET":
        parquet = open_parquet(stream, few_reads, row_group, BATCH_ROWS, verify_checksums)
        return FileRows(parquet.file.schema_arrow, lambda names: _parquet(parquet, names))
    if kind == "ORC":
        file = orc.ORCFile(stream)
        return FileRows(file.schema, lambda names: _orc(file, names))
    if kind == "AVRO":
        avro = AvroRows(stream)
        return FileRows(avro.schema, avro.batches)
    raise TableUnsupported(f"{file_format} files are not read by this version of Icekeeper")


def _parquet(parquet: ParquetRows, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    file = parquet.file
    if not names:
        footer = file.metadata
        for groups in parquet.portions:
            rows = footer.num_rows if groups is None else sum(footer.row_group(n).num_rows for n in groups)
            yield from _without_columns(rows)
        return
    # A dot in a column name means a path to pyarrow (platform 9), so such files are read whole.
    wanted = None if any("." in name for name in names) else list(names)
    rows, threads = parquet.batch_rows, parquet.threads
    for groups in parquet.portions:
        yield from file.iter_batches(batch_size=rows, row_groups=groups, columns=wanted, use_threads=threads)


def _orc(file: orc.ORCFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if not names:
        yield from _without_columns(file.nrows)
        return
    wanted = None if any("." in name for name in names) else list(names)
    for stripe in range(file.nstripes):
        batch = file.read_stripe(stripe, columns=wanted)
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _without_columns(rows: int) -> Iterator[pa.RecordBatch]:
    """Batches without columns: the file has none of the wanted ones, so only the number of its rows matters."""
    for start in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - start)
        yield pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def projected_rows(
    file: ReadableFile,
    schema: Mapping[str, Any],
    storage: Storage,
    *,
    must_hold: Collection[int] = (),
    opened: pa.NativeFile | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of all rows of a file, in file order, as rows of an Iceberg schema; at most one row group is in memory.

    ``must_hold`` are the ids of columns that the file itself must have: no default and no partition value replaces
    them.  ``opened`` are the bytes of the file, where they are there already.

    Raises:
        FileUnreadable: the file is missing, damaged, or cannot be read as that schema.
        StorageError: the store failed.
    """
    with reading(file.path, storage):
        few_reads = opened is None and not is_local(file.path)
        with storage.open_input(file.path, file.file_size_in_bytes) if opened is None else opened as stream:
            rows = open_rows(
                stream,
                file.file_format,
                file.row_group,
                few_reads=few_reads,
                verify_checksums=file.verify_checksums,
            )
            projection = Projection(
                rows.schema, schema, file.identity_values, file.name_mapping, must_hold, file.by_position
            )
            for batch in rows.batches(projection.file_columns):
                yield projection.apply(batch)


@contextmanager
def reading(path: str, storage: Storage) -> Iterator[None]:
    """Whatever shows that a data or delete file is not there, or not as the table says, names the file (rule 215).

    Raises:
        FileUnreadable: as said; also in place of what says that the file is no delete file, or of another schema.
        StorageError: the store failed, which says nothing of the file.
    """
    try:
        yield
    except (MetadataUnreadable, TableUnsupported, pa.ArrowException, OSError, ValueError) as error:
        if failed_by_store(error):
            with storage.translated(path):
                raise
        # Arrow breaks lines, and quotes the byte that it stumbled over.
        text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
        raise FileUnreadable(text if path in text else f"file {path} cannot be read: {text}", path=path) from error
    except StorageError as error:
        if isinstance(error, FileUnreadable) or not storage.shows_missing(path, error):
            raise
        raise FileUnreadable(str(error), path=path) from error
