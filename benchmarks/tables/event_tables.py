"""Tables of events without deletes: many files, large files, tiny files, many columns, many partitions, sorted runs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.tables.rows import EVENT_COLUMNS, data_file, event_rows, schema_of, wide_rows, write_file
from benchmarks.tables.table_writer import TableWriter
from icekeeper.model import DataFile

EVENTS = schema_of(EVENT_COLUMNS)
_FILES_A_SNAPSHOT = 50
_FEW_FILES = 4
_WIDE_COLUMNS = 2_000


def _event_file(folder: Path, rows: int, number: int) -> DataFile:
    path, table = folder / "data" / f"{number:05d}.parquet", event_rows(number * rows, rows)
    write_file(path, table)
    return data_file(path, EVENTS, table)


def _wide_file(folder: Path, rows: int, schema: Mapping[str, Any], number: int) -> DataFile:
    path, table = folder / "data" / f"{number:05d}.parquet", wide_rows(number * rows, rows, _WIDE_COLUMNS)
    write_file(path, table)
    return data_file(path, schema, table)


def _sorted_file(folder: Path, rows: int, number: int) -> DataFile:
    path, table = folder / "data" / f"{number:05d}.parquet", event_rows(number * rows, rows)
    table = table.take(pc.sort_indices(table, sort_keys=[("user_id", "ascending"), ("at", "ascending")]))
    write_file(path, table)
    return data_file(path, EVENTS, table)


def _partition_file(folder: Path, rows: int, partitions: int, number: int) -> DataFile:
    """One file of a partition by day; every partition has as many."""
    day = number % partitions
    path, table = folder / "data" / f"day={day}" / f"{number:05d}.parquet", event_rows(number * rows, rows)
    position = table.schema.get_field_index("day")
    days = pa.array([day] * rows, pa.int32()).cast(pa.date32())
    table = table.set_column(position, table.schema.field(position), days)
    write_file(path, table)
    return data_file(path, EVENTS, table, partition=(day,))


def in_processes(make: Callable[[int], DataFile], files: int) -> list[DataFile]:
    """The files with the numbers from 0 on, made by as many processes as there are cores where that pays."""
    if files <= _FEW_FILES:
        return [make(number) for number in range(files)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(make, range(files), chunksize=max(1, files // 32)))


def append_files(writer: TableWriter, files: Sequence[DataFile], a_snapshot: int = _FILES_A_SNAPSHOT) -> None:
    """Commit them, so many at a time."""
    for first in range(0, len(files), a_snapshot):
        writer.add_snapshot(files[first : first + a_snapshot])


def make_append_only(folder: Path, files: int, rows: int) -> None:
    """Files of unsorted rows, 50 a snapshot."""
    writer = TableWriter(folder, EVENTS)
    append_files(writer, in_processes(partial(_event_file, folder, rows), files))
    writer.save()


def make_wide(folder: Path, files: int, rows: int) -> None:
    """Files of 2,000 columns."""
    names = [("id", "long"), *((f"c{n:04d}", "string" if n % 3 == 2 else "double") for n in range(1, _WIDE_COLUMNS))]
    schema = schema_of(names)
    writer = TableWriter(folder, schema)
    append_files(writer, in_processes(partial(_wide_file, folder, rows, schema), files))
    writer.save()


def make_sorted_runs(folder: Path, files: int, rows: int) -> None:
    """Files that are each sorted by ``user_id, at`` and all cover everything."""
    writer = TableWriter(folder, EVENTS)
    append_files(writer, in_processes(partial(_sorted_file, folder, rows), files))
    writer.save()


def make_partitioned(folder: Path, partitions: int, files_each: int, rows: int) -> None:
    """So many small files in each of many days."""
    day = {"source-id": 4, "field-id": 1000, "name": "day", "transform": "identity"}
    writer = TableWriter(folder, EVENTS, partition_fields=[day])
    files = in_processes(partial(_partition_file, folder, rows, partitions), partitions * files_each)
    append_files(writer, files, partitions)
    writer.save()
