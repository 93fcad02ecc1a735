"""The same merge three ways, in turn: two bare processes with plain pyarrow, the local engine, the Spark engine.

    python -m benchmarks.merge [--files 200] [--rows 50000] [--rounds 3]

Prints seconds, rows and ratios to the bare processes; these, the Spark session and its Python workers are started
before the clock, the local engine's processes are not.
The claim it checks: merging through Spark costs no more than 1.3 × the bare merge.
"""

from __future__ import annotations

import argparse
import decimal
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine, local_session
from icekeeper.engines.worker_processes import end_worker_server
from icekeeper.operations.compaction.terms.output_names import OutputNames
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.rows.read_task import InputFile

PROCESSES = 2
COLUMNS: Sequence[tuple[str, str]] = (
    ("id", "long"),
    ("user_id", "int"),
    ("at", "timestamp"),
    ("day", "date"),
    ("country", "string"),
    ("page", "string"),
    ("amount", "double"),
    ("score", "float"),
    ("price", "decimal(12, 2)"),
    ("flag", "boolean"),
)
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": i, "name": n, "required": False, "type": t} for i, (n, t) in enumerate(COLUMNS, start=1)],
}


def make_file(path: Path, number: int, rows: int) -> None:
    """Ten mixed columns with ids; values are pseudo-random, so that they compress as real ones do."""
    words = pa.array([f"/product/{i:05d}/{i * 7919 % 104729:x}" for i in range(5_000)])
    countries = pa.array(["us", "de", "fr", "jp", "br", "in", "cn", "gb"])

    def below(limit: int, column: int) -> pa.Array:
        return pc.floor(pc.multiply(pc.random(rows, initializer=number * 16 + column), limit)).cast(pa.int64())

    first = number * rows
    columns = [
        pa.array(range(first, first + rows), pa.int64()),
        below(10**6, 1).cast(pa.int32()),
        pc.add(below(86_400 * 10**6, 2), 1_700_000_000_000_000).cast(pa.timestamp("us")),
        pc.add(below(400, 3), 19_000).cast(pa.int32()).cast(pa.date32()),
        countries.take(below(len(countries), 4)),
        words.take(below(len(words), 5)),
        pc.multiply(pc.random(rows, initializer=number * 16 + 6), 1000.0),
        pc.random(rows, initializer=number * 16 + 7).cast(pa.float32()),
        pc.multiply(below(10**7, 8).cast(pa.decimal128(21, 2)), pa.scalar(decimal.Decimal("0.01"))).cast(
            pa.decimal128(12, 2), safe=False
        ),
        pc.less(pc.random(rows, initializer=number * 16 + 9), 0.1),
    ]
    fields = [
        pa.field(name, column.type, metadata={b"PARQUET:field_id": str(i)})
        for i, ((name, _), column) in enumerate(zip(COLUMNS, columns, strict=True), start=1)
    ]
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), path, compression="zstd", compression_level=3)


def bare_merge(work: tuple[Sequence[str], str]) -> int:
    """What anyone would write: stream every file into one writer."""
    paths, output = work
    writer = None
    rows = 0
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=131_072, use_threads=False):
            if writer is None:
                writer = pq.ParquetWriter(output, batch.schema, compression="zstd", compression_level=3)
            writer.write_batch(batch)
            rows += batch.num_rows
    if writer is not None:
        writer.close()
    return rows


def peak_mb() -> int:
    """Largest resident set of any child process so far, in MB."""
    end_worker_server()  # only then its workers count as ours
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024


def tasks_for(files: Sequence[Path], rows: int, groups: int, folder: Path) -> list[RewriteTask]:
    """The files dealt out to as many tasks as there are groups."""
    return [
        RewriteTask(
            group_id=group,
            inputs=tuple(InputFile(str(f), rows, f.stat().st_size) for f in files[group::groups]),
            schema=SCHEMA,
            partition=(),
            outputs=OutputNames(str(folder), f"merged-{group}"),
            table_properties={"write.parquet.compression-level": "3"},
            io_properties={},
        )
        for group in range(groups)
    ]


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """Seconds, and the rows that the work reports."""
    started = time.perf_counter()
    rows = work()
    return time.perf_counter() - started, rows


def main() -> int:
    """Measure and print; 1 when a way lost rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, default=PROCESSES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as name, local_session() as session:
        folder = Path(name)
        files = [folder / f"in-{number}.parquet" for number in range(options.files)]
        for number, path in enumerate(files):
            make_file(path, number, options.rows)
        size = sum(path.stat().st_size for path in files)
        print(
            f"{len(files)} files, {size / 1e6:.0f} MB, {options.files * options.rows:,} rows, {options.groups} groups"
        )
        tasks = tasks_for(files, options.rows, options.groups, folder)
        spark, local = SparkEngine(session.sparkContext), LocalEngine(PROCESSES)
        shares = [([i.path for i in task.inputs], task.outputs.path()) for task in tasks]
        small = [replace(task, inputs=task.inputs[:1]) for task in tasks]
        spark.map(rewrite_group, small, lambda done: None)  # starts the Python workers

        pool = ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn"))
        list(pool.map(bare_merge, [(paths[:1], output) for paths, output in shares]))  # starts the processes

        def bare() -> int:
            return sum(pool.map(bare_merge, shares))

        ways: dict[str, Callable[[], int]] = {
            "bare processes": bare,
            "local engine": lambda: sum(r.rows_read for r in local.map(rewrite_group, tasks, lambda done: None)),
            "spark engine": lambda: sum(r.rows_read for r in spark.map(rewrite_group, tasks, lambda done: None)),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, work in ways.items():
                taken, rows = timed(work)
                if rows != options.files * options.rows:
                    print(f"{way} merged {rows} rows instead of {options.files * options.rows}", file=sys.stderr)
                    return 1
                seconds[way].append(taken)
        for way, taken_all in seconds.items():
            ratios = [t / b for t, b in zip(taken_all, seconds["bare processes"], strict=True)]
            print(
                f"{way:15} {statistics.median(taken_all):6.2f} s   "
                f"{statistics.median(ratios):4.2f} × the bare processes (round by round)"
            )
        pool.shutdown()
        print(f"largest resident set of a child process: {peak_mb()} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
