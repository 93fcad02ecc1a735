"""Tables with deletes: by position (delete files, deletion vectors), clustered or spread, and by keys as CDC does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from benchmarks.tables.event_tables import EVENTS, append_files, in_processes
from benchmarks.tables.rows import data_file, event_rows, write_file
from benchmarks.tables.table_writer import TableWriter
from icekeeper.metadata.puffin import encode_puffin
from icekeeper.model import DataFile, FileContent

_PATH_ID, _POSITION_ID = 2147483546, 2147483545
"""Specification, "Reserved Field IDs"."""
_ROW_GROUPS = 4
_SHARE = 100
"""One row of so many is deleted."""


def _large_file(folder: Path, rows: int, number: int) -> DataFile:
    """A file of several row groups, so that some may hold no deleted row."""
    path, table = folder / "data" / f"{number:05d}.parquet", event_rows(number * rows, rows)
    write_file(path, table, rows // _ROW_GROUPS)
    return data_file(path, EVENTS, table)


def _positions(number: int, files: int, rows: int, clustered: bool) -> Sequence[int]:
    """One per cent of all rows: evenly in every file, or side by side in the first row groups of the first files."""
    if not clustered:
        return range(number % _SHARE, rows, _SHARE)
    left = files * rows // _SHARE - number * (rows // _ROW_GROUPS)
    return range(max(0, min(left, rows // _ROW_GROUPS)))


def make_deleted_positions(folder: Path, files: int, rows: int, *, clustered: bool, vectors: bool) -> None:
    """Large files of which one row in a hundred is deleted, by delete files (v2) or deletion vectors (v3)."""
    writer = TableWriter(folder, EVENTS, format_version=3 if vectors else 2)
    data = in_processes(partial(_large_file, folder, rows), files)
    append_files(writer, data)
    found = [(file.file_path, _positions(n, files, rows, clustered)) for n, file in enumerate(data)]
    deleted = [(path, positions) for path, positions in found if positions]
    writer.add_snapshot(deletes=_vectors(folder, deleted) if vectors else _delete_files(folder, deleted))
    writer.save()


def _delete_files(folder: Path, deleted: Sequence[tuple[str, Sequence[int]]]) -> list[DataFile]:
    """One for each data file, as Spark writes them by default."""
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": str(_PATH_ID).encode()}),
            pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": str(_POSITION_ID).encode()}),
        ]
    )
    made = []
    for number, (data_path, positions) in enumerate(deleted):
        path = folder / "data" / f"{number:05d}-deletes.parquet"
        table = pa.table({"file_path": [data_path] * len(positions), "pos": list(positions)}, schema=schema)
        pq.write_table(table, path, compression="zstd")
        limits = {_PATH_ID: data_path.encode()}
        made.append(delete_file(path, FileContent.POSITION_DELETES, len(positions), bounds=limits))
    return made


def delete_file(
    path: Path, content: FileContent, rows: int, *, bounds: dict[int, bytes] | None = None, keys: Sequence[int] = ()
) -> DataFile:
    """The manifest entry of a Parquet file with so many deletes of an unpartitioned table."""
    return DataFile(
        content=content,
        file_path=str(path),
        file_format="PARQUET",
        partition=(),
        record_count=rows,
        file_size_in_bytes=path.stat().st_size,
        lower_bounds=bounds,
        upper_bounds=bounds,
        equality_ids=tuple(keys) or None,
    )


def _vectors(folder: Path, deleted: Sequence[tuple[str, Sequence[int]]]) -> list[DataFile]:
    """All in one Puffin file."""
    vectors = [(path, BitMap64(positions)) for path, positions in deleted]
    data, blobs = encode_puffin(vectors, {})
    path = folder / "data" / "00000-deletes.puffin"
    path.write_bytes(data)
    return [
        DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=str(path),
            file_format="PUFFIN",
            partition=(),
            record_count=len(bitmap),
            file_size_in_bytes=len(data),
            referenced_data_file=data_path,
            content_offset=blob.offset,
            content_size_in_bytes=blob.length,
        )
        for (data_path, bitmap), blob in zip(vectors, blobs, strict=True)
    ]


def make_cdc(folder: Path, files: int, rows: int, checkpoints: int, keys: int) -> None:
    """Upserts as Flink writes them: each checkpoint deletes keys all over the table and writes their rows anew."""
    writer = TableWriter(folder, EVENTS)
    append_files(writer, in_processes(partial(_large_file, folder, rows), files))
    schema = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    rng = random.Random(15)
    for checkpoint in range(checkpoints):
        ids = pa.array(sorted(rng.sample(range(files * rows), keys)), pa.int64())
        new = event_rows(files * rows + checkpoint * keys, keys)
        new = new.set_column(0, new.schema.field(0), ids)
        data, deletes = (folder / "data" / f"cdc-{checkpoint:03d}{kind}.parquet" for kind in ("", "-deletes"))
        write_file(data, new)
        pq.write_table(pa.table([ids], schema=schema), deletes, compression="zstd")
        writer.add_snapshot(
            [data_file(data, EVENTS, new)], [delete_file(deletes, FileContent.EQUALITY_DELETES, keys, keys=(1,))]
        )
    writer.save()
