"""What full scans cost when row groups stay small, for the default of ``min_row_group_copy_bytes``.

    python -m benchmarks.scan_row_groups [--megabytes 256] [--rounds 5]

The same rows in one file of Spark's for each size of row groups.  DuckDB, pyarrow (as PyIceberg scans) and Spark read
all columns from local disk.  Prints CPU seconds as multiples of those for the file with the largest row groups (the
least of all rounds, in turn, so that a busy machine counts less), and how much larger each file is.
The claim it checks: from the default on full scans lose no more than 2 %, and files grow by no more than 5 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.tables.rows import event_rows, write_file
from icekeeper.engines.spark import find_java_home

MEGABYTE = 1024 * 1024
SIZES_MB = (8, 12, 16, 20, 24, 32, 96)
"""Spark's ``parquet.block.size``: what it holds in memory for a row group, about as much as it writes."""
_ROWS_AT_ONCE, _MEGABYTES_AT_ONCE = 500_000, 20


def make_files(
    session: SparkSession, folder: Path, megabytes: int, sizes_mb: Sequence[int] = SIZES_MB
) -> dict[int, Path]:
    """One file for each size of row groups, in MB, with the same rows, written by Spark as its tables are."""
    source = folder / "source"
    source.mkdir()
    parts = max(1, round(megabytes / _MEGABYTES_AT_ONCE))
    for number in range(parts):
        write_file(source / f"{number}.parquet", event_rows(number * _ROWS_AT_ONCE, _ROWS_AT_ONCE))
    rows = session.read.parquet(str(source)).coalesce(1)
    found = {}
    for size in sizes_mb:
        written = folder / str(size)
        options = {"parquet.block.size": str(size * MEGABYTE), "compression": "zstd"}
        rows.write.options(**options).parquet(str(written))
        (found[size],) = written.glob("*.parquet")
    return found


def row_group_megabytes(path: Path) -> float:
    """The average size of the row groups of a file."""
    footer = pq.read_metadata(path)
    groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
    size = sum(group.column(n).total_compressed_size for group in groups for n in range(group.num_columns))
    return float(size) / len(groups) / MEGABYTE


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
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as scratch:
        folder = Path(scratch)
        os.environ |= {"JAVA_HOME": find_java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        session = builder.config("spark.log.level", "ERROR").config("spark.local.dir", scratch).getOrCreate()
        files = make_files(session, folder, asked.megabytes)
        readers: dict[str, Callable[[Path], float]] = {
            "DuckDB": by_duckdb,
            "pyarrow": by_pyarrow,
            "Spark": by_spark(session),
        }
        for scan in readers.values():
            scan(files[SIZES_MB[-1]])
        taken: dict[tuple[str, int], list[float]] = {}
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
            print(
                f"{row_group_megabytes(path):10.1f} MB  {grown:9.3f}  {'  '.join(f'{ratio:.3f}' for ratio in ratios)}"
            )


if __name__ == "__main__":
    main()
