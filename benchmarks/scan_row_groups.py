"""What full scans cost when row groups stay small, for the default of ``min_row_group_copy_bytes``.

    python benchmarks/scan_row_groups.py [--megabytes 128] [--rounds 5] [--latency-ms 20]

The same rows in one file for each size of row groups.  DuckDB, pyarrow (as PyIceberg scans) and Spark read
all columns from local disk, pyarrow once more while each of its reads waits as a request to a store does.  Prints CPU
seconds, and seconds by the clock for the reads that wait, as multiples of the file with the largest row groups (the
least of all rounds, in turn, so that a busy machine counts less), and how much larger each file is.
The claim it checks: from the default on full scans lose no more than 2 %, and files grow by no more than 5 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from merge import make_file
from pyarrow.fs import FSSpecHandler, PyFileSystem
from pyspark.sql import SparkSession

from icekeeper.engines.java import find_java_home

MEGABYTE = 1024 * 1024
SIZES_MB = (0.5, 1, 2, 4, 8, 16, 64)
_ROWS_AT_ONCE = 500_000
"""Rows that are made at once; about 20 MB of a file."""


def make_files(folder: Path, megabytes: int) -> dict[float, Path]:
    """One file for each size of row groups, in MB, with the same rows."""
    sample = folder / "sample.parquet"
    make_file(sample, 0, _ROWS_AT_ONCE)
    per_row = sample.stat().st_size / _ROWS_AT_ONCE
    parts = []
    for number in range(max(1, round(megabytes * MEGABYTE / sample.stat().st_size))):
        make_file(sample, number, _ROWS_AT_ONCE)
        parts.append(pq.read_table(sample))
    rows = pa.concat_tables(parts)
    found = {}
    for size in SIZES_MB:
        found[size] = folder / f"{size}.parquet"
        options = {"compression": "zstd", "store_decimal_as_integer": True, "write_page_index": True}
        pq.write_table(rows, found[size], row_group_size=int(size * MEGABYTE / per_row), **options)
    sample.unlink()
    return found


def by_duckdb(path: Path) -> float:
    """CPU seconds."""
    session = duckdb.connect(config={"threads": 1})
    started = time.process_time()
    session.sql(f"select max(columns(*)) from read_parquet('{path}')").fetchall()
    return time.process_time() - started


def by_pyarrow(path: Path) -> float:
    """CPU seconds."""
    started = time.process_time()
    for _ in ds.dataset(path).scanner(use_threads=False).to_batches():
        pass
    return time.process_time() - started


class _Waiting(FSSpecHandler):  # type: ignore[misc]  # pyarrow has no types for it
    """A local file system of which every read waits."""

    def __init__(self, file_system: object, seconds: float) -> None:
        super().__init__(file_system)
        self._seconds = seconds

    def open_input_file(self, path: str) -> pa.PythonFile:
        waits = self._seconds

        class File:
            """Reads by position, as many at a time as there are threads."""

            closed = False

            def __init__(self) -> None:
                self._file = Path(path).open("rb")

            def read(self, size: int = -1) -> bytes:
                time.sleep(waits)
                return self._file.read(size)

            def seek(self, *where: int) -> int:
                return self._file.seek(*where)

            def tell(self) -> int:
                return self._file.tell()

            def close(self) -> None:
                self._file.close()

        return pa.PythonFile(File(), mode="r")


def from_store(seconds: float) -> Callable[[Path], float]:
    """Seconds by the clock of a scan of which each read waits."""
    import fsspec

    store = PyFileSystem(_Waiting(fsspec.filesystem("file"), seconds))

    def scan(path: Path) -> float:
        started = time.monotonic()
        for _ in ds.dataset(str(path), filesystem=store).scanner().to_batches():
            pass
        return time.monotonic() - started

    return scan


def by_spark(session: SparkSession) -> Callable[[Path], float]:
    """CPU seconds of the Java process."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    stat = Path(f"/proc/{gateway.proc.pid}/stat")

    def cpu() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def scan(path: Path) -> float:
        started = cpu()
        session.read.parquet(str(path)).write.format("noop").mode("overwrite").save()
        return cpu() - started

    return scan


def main() -> None:
    """Make the files, scan them in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as scratch:
        folder = Path(scratch)
        files = make_files(folder, asked.megabytes)
        os.environ |= {"JAVA_HOME": find_java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        session = builder.config("spark.log.level", "ERROR").config("spark.local.dir", scratch).getOrCreate()
        readers: dict[str, Callable[[Path], float]] = {
            "DuckDB": by_duckdb,
            "pyarrow": by_pyarrow,
            "Spark": by_spark(session),
            f"pyarrow, {asked.latency_ms:g} ms a read": from_store(asked.latency_ms / 1000),
        }
        for scan in readers.values():
            scan(files[SIZES_MB[-1]])
        taken: dict[tuple[str, float], list[float]] = {}
        for number in range(asked.rounds):
            print(f"round {number + 1} of {asked.rounds}", file=sys.stderr)
            for size, path in files.items():
                for name, scan in readers.items():
                    taken.setdefault((name, size), []).append(scan(path))
        session.stop()
        largest = SIZES_MB[-1]
        print(f"row groups of  file size  {'  '.join(readers)}")
        for size, path in files.items():
            grown = path.stat().st_size / files[largest].stat().st_size
            ratios = (min(taken[name, size]) / min(taken[name, largest]) for name in readers)
            print(f"{size:>10g} MB  {grown:9.3f}  {'  '.join(f'{ratio:.3f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
