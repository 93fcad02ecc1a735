"""Sorting and z-ordering a file group, beside a plain pyarrow sort of the same files in the same run.

    python -m benchmarks.cluster [--files 60] [--rows 50000] [--rounds 1] [--java]

The plain sort reads everything into memory, sorts by two columns and writes files of the same target size in one
process: the least that anyone's sort must do.  ``--java`` adds Iceberg-Java's rewrite_data_files of the same rows and
needs the development dependencies.  Spark's workers are started before the clock, the local engine's are not.
Printed: seconds, CPU seconds of this process and its finished children, ratios.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.merge import PROCESSES, SCHEMA, make_file
from icekeeper.engines.engine import Engine
from icekeeper.engines.local import LocalEngine
from icekeeper.engines.spark import SparkEngine, local_session
from icekeeper.operations.compaction.clustering.exchange import cluster_groups
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.task import OutputNames, RewriteTask
from icekeeper.policy import Strategy
from icekeeper.rows.read_task import InputFile

# user_id and at: the columns by which event tables are most often filtered.
KEYS = (KeyColumn(2), KeyColumn(3))
NAMES = ("user_id", "at")
MB = 1024 * 1024


def task_for(files: Sequence[Path], rows: int, folder: Path, strategy: Strategy, target: int) -> RewriteTask:
    """All files as one group."""
    return RewriteTask(
        group_id=0,
        inputs=tuple(InputFile(str(f), rows, f.stat().st_size) for f in files),
        schema=SCHEMA,
        partition=(),
        outputs=OutputNames(str(folder), strategy.value),
        table_properties={"write.parquet.compression-level": "3"},
        io_properties={},
        recipe=ClusterRecipe(strategy, KEYS, target, target * 3 // 4),
    )


def plain_sort(files: Sequence[Path], folder: Path, target: int) -> int:
    """What anyone would write for data that fits into memory."""
    table = pa.concat_tables([pq.read_table(path, use_threads=False) for path in files])
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in NAMES])
    table = table.combine_chunks()
    count = max(1, round(sum(path.stat().st_size for path in files) / target))
    step = -(-table.num_rows // count)
    for number in range(count):
        part = table.take(order.slice(number * step, step))
        pq.write_table(part, folder / f"plain-{number}.parquet", compression="zstd", compression_level=3)
    return int(table.num_rows)


def clustered(engine: Engine, task: RewriteTask) -> int:
    """Rows that the engine wrote."""
    (result,) = cluster_groups(
        engine, [task], will_write=lambda paths: None, discard=lambda paths: None, on_done=lambda done: None
    )
    if result.error is not None:
        raise SystemExit(result.error)
    return sum(file.record_count for file in result.written)


def java_ways(session: Any, files: Sequence[Path], target: int) -> dict[str, Callable[[], int]]:
    """Iceberg-Java over a table that holds the same rows in as many files."""

    def rewritten(order: str) -> int:
        session.sql(
            f"CALL java.system.rewrite_data_files(table => 'db.bench', strategy => 'sort', sort_order => '{order}', "
            f"options => map('rewrite-all', 'true', 'target-file-size-bytes', '{target}'))"
        ).collect()
        return int(session.table("java.db.bench").count())

    # Iceberg-Java cannot z-order timestamps without a zone.
    session.conf.set("spark.sql.parquet.inferTimestampNTZ.enabled", "false")
    session.read.parquet(*(str(path) for path in files)).repartition(len(files)).writeTo("java.db.bench").create()
    return {
        "java sort": lambda: rewritten(", ".join(NAMES)),
        "java zorder": lambda: rewritten(f"zorder({', '.join(NAMES)})"),
    }


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> int:
    """Measure and print; 1 when a way lost rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--target-mb", type=int, default=16)
    parser.add_argument("--java", action="store_true")
    options = parser.parse_args()
    target, expected = options.target_mb * MB, options.files * options.rows
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as name, ExitStack() as started_here:
        folder = Path(name)
        files = [folder / f"in-{number}.parquet" for number in range(options.files)]
        for number, path in enumerate(files):
            make_file(path, number, options.rows)
        size = sum(path.stat().st_size for path in files)
        print(f"{len(files)} files, {size / 1e6:.0f} MB, {expected:,} rows, target {options.target_mb} MB")
        ways: dict[str, Callable[[], int]] = {"plain sort": lambda: plain_sort(files, folder, target)}
        session: Any
        if options.java:
            sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
            from support.iceberg_java import start_spark

            session = start_spark(folder / "spark")
            started_here.callback(session.stop)
        else:
            session = started_here.enter_context(local_session())
        engines: dict[str, Engine] = {"local": LocalEngine(PROCESSES), "spark": SparkEngine(session.sparkContext)}
        small = task_for(files[:2], options.rows, folder / "warm", Strategy.SORT, target)
        clustered(engines["spark"], small)  # starts the Python workers
        for strategy in (Strategy.SORT, Strategy.ZORDER):
            task = task_for(files, options.rows, folder, strategy, target)
            for engine_name, engine in engines.items():
                ways[f"{strategy.value}, {engine_name}"] = lambda e=engine, t=task: clustered(e, t)  # type: ignore[misc]
        if options.java:
            ways |= java_ways(session, files, target)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, work in ways.items():
                started, cpu = time.perf_counter(), cpu_seconds()
                if work() != expected:
                    print(f"{way} lost rows", file=sys.stderr)
                    return 1
                seconds[way].append(time.perf_counter() - started)
                print(f"{way:14} {seconds[way][-1]:6.2f} s wall, {cpu_seconds() - cpu:6.2f} s CPU of ours")
        for way, taken in seconds.items():
            ratio = statistics.median(t / p for t, p in zip(taken, seconds["plain sort"], strict=True))
            print(f"{way:14} {statistics.median(taken):6.2f} s   {ratio:4.2f} × the plain sort")
        for strategy in (Strategy.SORT, Strategy.ZORDER):
            sizes = sorted(path.stat().st_size / target for path in folder.glob(f"{strategy.value}-*.parquet"))
            print(f"{strategy.value}: {len(sizes)} outputs of {sizes[0]:.2f} to {sizes[-1]:.2f} × the target")
    return 0


if __name__ == "__main__":
    sys.exit(main())
