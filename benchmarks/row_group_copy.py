"""The same merge by copying row groups, by decoding with plain pyarrow, and by ``cat``, in turn, in one process each.

    python -m benchmarks.row_group_copy [--files 200] [--rows 50000] [--rounds 3] [--store [--delay-ms 20]]

Prints medians of seconds, CPU seconds and peak memory, and ratios to ``cat``.  The copy reads footers, judges, copies,
reads back and proves, ``copy v3`` with row ids and last changes for every row besides; imports and the making of files
are not counted.  Files are made once with pyarrow and are the same for all; rows are counted afterwards.  With
``--store`` the files lie in SeaweedFS, which copies them itself or is streamed from and to (``store_copies.py``).
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.merge import SCHEMA, make_file
from benchmarks.store_copies import compare_in_store
from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copyable import copy_target
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, merge_files
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.read_task import with_lineage
from icekeeper.storage.storage import Storage

_BLOCK = 8 * 1024 * 1024


def by_copy(inputs: Sequence[Path], output: Path) -> None:
    """Judge, copy, prove."""
    copied(inputs, output, SCHEMA)


def by_copy_with_lineage(inputs: Sequence[Path], output: Path) -> None:
    """The same for files of a v3 table, as other writers leave them: without columns of row lineage."""
    copied(inputs, output, with_lineage(SCHEMA))


def copied(inputs: Sequence[Path], output: Path, schema: Mapping[str, Any]) -> None:
    """Copy files into one of that schema; a row's id is its number."""
    storage = Storage({})
    target = copy_target(schema, "zstd", 1, {leaf.field_id: "none" for leaf in leaf_columns(schema)})
    judged = []
    first_row_id = 0
    for number, path in enumerate(inputs, start=1):
        entry = DataFile(
            content=FileContent.DATA,
            file_path=str(path),
            file_format="PARQUET",
            partition=(),
            record_count=pq.read_metadata(path).num_rows,
            file_size_in_bytes=path.stat().st_size,
            first_row_id=first_row_id,
        )
        first_row_id += entry.record_count
        file = copyable_file(entry, target, storage, number)
        if isinstance(file, NotCopyable):
            raise SystemExit(str(file))
        judged.append((entry, file))
    made = merge_files(judged, str(output), target, storage)
    if not isinstance(made, DataFile):
        raise SystemExit(str(made))


def by_decoding(inputs: Sequence[Path], output: Path) -> None:
    """Read and write with pyarrow, a file's rows at a time."""
    schema = pq.read_schema(inputs[0])
    with pq.ParquetWriter(output, schema, compression="zstd", store_decimal_as_integer=True) as writer:
        pending: list[pa.Table] = []
        for path in inputs:
            pending.append(pq.read_table(path))
            if sum(table.num_rows for table in pending) >= 1_000_000:
                writer.write_table(pa.concat_tables(pending))
                pending = []
        if pending:
            writer.write_table(pa.concat_tables(pending))


def by_cat(inputs: Sequence[Path], output: Path) -> None:
    """Copy the bytes, as ``cat`` does."""
    with output.open("wb") as sink:
        for path in inputs:
            with path.open("rb") as source:
                shutil.copyfileobj(source, sink, _BLOCK)


WAYS: dict[str, Callable[[Sequence[Path], Path], None]] = {
    "cat": by_cat,
    "copy": by_copy,
    "copy v3": by_copy_with_lineage,
    "decode": by_decoding,
}


def measured(way: str, inputs: Sequence[Path], output: Path) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak memory in MB of one merge; run in a process of its own."""
    WAYS[way](inputs[:1], output)  # so that nothing is imported within the time
    wall, cpu = time.perf_counter(), time.process_time()
    WAYS[way](inputs, output)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return time.perf_counter() - wall, time.process_time() - cpu, peak


def main() -> None:
    """Make files, merge them in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--delay-ms", type=float, default=20)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        inputs = [Path(name) / f"{number}.parquet" for number in range(arguments.files)]
        for number, path in enumerate(inputs):
            make_file(path, number, arguments.rows)
            # As Iceberg's writers write: decimals as integers, with a page index.
            table = pq.read_table(path)
            pq.write_table(table, path, compression="zstd", store_decimal_as_integer=True, write_page_index=True)
        size = sum(path.stat().st_size for path in inputs) / 1e6
        print(f"{arguments.files} files, {size:.0f} MB, {arguments.files * arguments.rows} rows")
        if arguments.store:
            compare_in_store(inputs, arguments.rounds, arguments.delay_ms)
            return
        output = Path(name) / "output.parquet"
        for _ in range(arguments.rounds):
            for way in WAYS:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    found[way].append(pool.apply(measured, (way, inputs, output)))
                if way != "cat" and pq.read_metadata(output).num_rows != arguments.files * arguments.rows:
                    sys.exit(f"{way} lost rows")
                output.unlink()
    base = [statistics.median(column) for column in zip(*found["cat"], strict=True)]
    for way, runs in found.items():
        wall, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"{way:8} {wall:6.2f} s {wall / base[0]:6.1f} ×   {cpu:6.2f} CPU s {cpu / base[1]:6.1f} ×   {peak:5.0f} MB"
        )


if __name__ == "__main__":
    main()
