"""The tables of the suite by name; ``scale`` is the share of the full size, in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tables.kept_table import KeptTable, kept_table
from benchmarks.tables.rows import EVENT_COLUMNS, data_file, event_rows, schema_of, wide_rows, write_file
from benchmarks.tables.table_writer import TableWriter
from icekeeper.model import DataFile

__all__ = ["DATASETS", "WARM_UP", "dataset"]

EVENTS = schema_of(EVENT_COLUMNS)
WARM_UP = "warm_up"
"""Four small files: what a contestant does before anything is measured."""
_FILES_A_SNAPSHOT = 50
_WIDE_COLUMNS = 2_000


def _event_file(folder: Path, rows: int, number: int) -> DataFile:
    path, table = folder / "data" / f"{number:05d}.parquet", event_rows(number * rows, rows)
    write_file(path, table)
    return data_file(path, EVENTS, table)


def _wide_file(folder: Path, rows: int, schema: Mapping[str, Any], number: int) -> DataFile:
    path, table = folder / "data" / f"{number:05d}.parquet", wide_rows(number * rows, rows, _WIDE_COLUMNS)
    write_file(path, table)
    return data_file(path, schema, table)


def in_processes(make: Callable[[int], DataFile], files: int) -> list[DataFile]:
    """The files with the numbers from 0 on, made by as many processes as there are cores."""
    with ProcessPoolExecutor() as pool:
        return list(pool.map(make, range(files), chunksize=max(1, files // 32)))


def append_files(writer: TableWriter, files: Sequence[DataFile], a_snapshot: int = _FILES_A_SNAPSHOT) -> None:
    """Commit them, so many at a time."""
    for first in range(0, len(files), a_snapshot):
        writer.add_snapshot(files[first : first + a_snapshot])


def _append_only(folder: Path, files: int, rows: int) -> None:
    writer = TableWriter(folder, EVENTS)
    append_files(writer, in_processes(partial(_event_file, folder, rows), files))
    writer.save()


def _wide(folder: Path, files: int, rows: int) -> None:
    names = [("id", "long"), *((f"c{n:04d}", "string" if n % 3 == 2 else "double") for n in range(1, _WIDE_COLUMNS))]
    schema = schema_of(names)
    writer = TableWriter(folder, schema)
    append_files(writer, in_processes(partial(_wide_file, folder, rows, schema), files))
    writer.save()


DATASETS: Mapping[str, Callable[[Path, float], None]] = {
    WARM_UP: lambda folder, scale: _append_only(folder, 4, 2_000),
    "append_only": lambda folder, scale: _append_only(folder, max(4, round(200 * scale)), 50_000),
    "append_only_16mb": lambda folder, scale: _append_only(folder, max(2, round(20 * scale)), 550_000),
    "tiny_files": lambda folder, scale: _append_only(folder, max(8, round(2_000 * scale)), 950),
    "wide": lambda folder, scale: _wide(folder, max(2, round(100 * scale)), 1_000),
}


def dataset(work: Path, name: str, scale: float) -> KeptTable:
    """The table, made now unless it is kept from an earlier run."""
    make = DATASETS[name]
    full_name = name if name == WARM_UP else f"{name}_{scale:g}".replace(".", "_")
    return kept_table(work, full_name, lambda folder: make(folder, scale))
