"""Compaction of the same tables by Icekeeper and by Iceberg-Java 1.10.2, in turn, in one run.

    PYTHONPATH=tests python benchmarks/compaction.py [--files 40] [--rows 100000] [--rounds 1]

Iceberg-Java writes the tables: append-only, with position deletes (5 % of the rows), with CDC-like equality deletes
(ten checkpoints).  Both sides then rewrite every file from the same snapshot: ours on the local engine in two
processes, Java's ``rewrite_data_files`` in one JVM with two cores.  Prints wall and CPU seconds, and their ratios.
The claim it checks: the decoding path costs no more than half of Iceberg-Java's CPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from icekeeper.catalogs.load import open_catalog
from icekeeper.demo.duckdb_reader import read_arrow
from icekeeper.engines.local import LocalEngine
from icekeeper.engines.worker_processes import end_worker_server
from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from support.iceberg_java import start_spark

PROCESSES = 2
CHECKPOINTS = 10
TARGET_MB = 128
# Above 32 bits py4j hands over a Long, which a bigint column wants.
_FIRST_ID = 2**33
_COLUMNS = """
    id bigint, user_id int, at timestamp, day date, country string, page string, amount double, score float,
    price decimal(12, 2), flag boolean
"""
_ROWS = """
    select id, cast(hash(id) % 100000 as int), timestamp_micros(1700000000000000 + id * 997),
           date_add(date'2024-01-01', cast(id % 365 as int)),
           element_at(array('us', 'de', 'fr', 'jp', 'br', 'in', 'cn', 'gb'), cast(1 + abs(hash(id, 1)) % 8 as int)),
           concat('/product/', abs(hash(id, 2)) % 5000, '/', hex(abs(hash(id, 3)) % 104729)),
           abs(hash(id, 4)) / 1000.0D, cast(abs(hash(id, 5)) / 1000.0D as float),
           cast(abs(hash(id, 6)) % 1000000 / 100.0 as decimal(12, 2)), id % 3 = 0
    from range({first}, {last}, 1, 1)
"""


class Cost(NamedTuple):
    """Seconds by the clock and of CPU."""

    wall_s: float
    cpu_s: float


def make_table(session: SparkSession, name: str, files: int, rows: int) -> None:
    """A format v2 table of so many files."""
    properties = "'format-version'='2', 'write.delete.mode'='merge-on-read', 'write.parquet.compression-codec'='zstd'"
    session.sql(f"create table java.bench.{name} ({_COLUMNS}) using iceberg tblproperties ({properties})")
    for first in range(_FIRST_ID, _FIRST_ID + files * rows, rows):
        session.sql(f"insert into java.bench.{name} {_ROWS.format(first=first, last=first + rows)}")


def add_position_deletes(session: SparkSession, name: str) -> None:
    """One row of twenty, by Spark's merge-on-read."""
    session.sql(f"delete from java.bench.{name} where id % 20 = 7")


def add_equality_deletes(session: SparkSession, name: str, rows: int, total: int) -> None:
    """Upserts: per checkpoint keys all over the table are deleted and come again, as Flink writes them."""
    jvm: Any = session._jvm
    gateway: Any = session.sparkContext._gateway
    iceberg = jvm.org.apache.iceberg
    table = iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, f"java.bench.{name}")
    schema = table.schema().select(jvm.java.util.Collections.singletonList("id"))
    keys = gateway.new_array(jvm.int, 1)
    keys[0] = table.schema().findField("id").fieldId()
    factory = iceberg.data.GenericAppenderFactory(table.schema(), table.spec(), keys, schema, None)
    files = iceberg.io.OutputFileFactory.builderFor(table, 1, jvm.java.lang.System.nanoTime()).build()
    for checkpoint in range(CHECKPOINTS):
        writer = factory.newEqDeleteWriter(files.newOutputFile(), iceberg.FileFormat.PARQUET, None)
        record = iceberg.data.GenericRecord.create(schema)
        deleted = range(_FIRST_ID + checkpoint, _FIRST_ID + total, max(1, total // (rows // 50)))
        for key in deleted:
            record.setField("id", key)
            writer.write(record)
        writer.close()
        table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
        session.sql(f"refresh table java.bench.{name}")
        ids = ", ".join(map(str, deleted))
        rows_again = _ROWS.format(first=0, last=total).replace(
            "from range", f"from (select explode(array({ids})) id) --"
        )
        session.sql(f"insert into java.bench.{name} {rows_again}")
        table.refresh()


def timed(cpu: Callable[[], float], work: Callable[[], object]) -> Cost:
    """What the work costs."""
    wall, used = time.perf_counter(), cpu()
    work()
    return Cost(time.perf_counter() - wall, cpu() - used)


def own_cpu() -> float:
    """CPU seconds of this process and its finished children; the JVM is none of them while it runs."""
    end_worker_server()  # only then its workers count as ours
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def jvm_cpu(session: SparkSession) -> Callable[[], float]:
    """CPU seconds of the JVM so far."""
    jvm: Any = session._jvm
    stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")

    def seconds() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return seconds


def current_metadata(session: SparkSession, name: str) -> str:
    """Where Iceberg-Java left the table's newest metadata."""
    jvm: Any = session._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, f"java.bench.{name}")
    return str(table.operations().current().metadataFileLocation())


def roll_back(session: SparkSession, name: str) -> None:
    """To the snapshot before the newest."""
    history = session.sql(f"select snapshot_id from java.bench.{name}.history order by made_current_at").collect()
    session.sql(f"call java.system.rollback_to_snapshot('bench.{name}', {history[-2][0]})")


def checksum(metadata_location: str) -> tuple[Any, ...]:
    """Rows and order-independent sums, read by DuckDB."""
    rows = read_arrow(metadata_location)
    query = 'select count(*), sum(id), sum(hash(id, user_id, "at", country, page, amount, price, flag)) from rows'
    found = duckdb.sql(query).fetchone()
    assert found is not None
    del rows
    return found


def compact_ours(folder: Path, metadata_location: str) -> str:
    """Where the table's metadata is afterwards."""
    uri = f"sqlite:///{folder / 'catalog.db'}"
    properties = {"type": "sql", "uri": uri, "warehouse": folder.as_uri()}
    catalog = SqlCatalog("local", **properties)
    catalog.create_namespace("ns")
    catalog.register_table("ns.t", metadata_location)
    catalog.close()
    runtime = Runtime(open_catalog("local", properties), SqliteStateStore(folder / "state.db"), environment={})
    settings = {"operations": "compact", "rewrite_all": "true", "target_file_size_mb": str(TARGET_MB)}
    outcome = runtime.maintain(TableName(("ns",), "t"), settings, LocalEngine(PROCESSES))
    if outcome.status.value != "succeeded":
        raise SystemExit(f"compaction failed: {outcome.summary}")
    return runtime.catalog.load(TableName(("ns",), "t")).metadata_location


def main() -> int:
    """Measure and print; 1 when rows differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as name:
        folder = Path(name)
        session = start_spark(folder)
        cpu_of_java = jvm_cpu(session)
        make_table(session, "warm_up", 4, options.rows)
        session.sql(
            "call java.system.rewrite_data_files(table => 'bench.warm_up', options => map('rewrite-all', 'true'))"
        )
        print(f"{options.files} files of {options.rows:,} rows, ten mixed columns")
        print(f"{'table':18} {'ours wall':>9} {'cpu':>7} {'Java wall':>10} {'cpu':>7}   ours / Java (wall, cpu)")
        for kind in ("append_only", "position_deletes", "equality_deletes"):
            make_table(session, kind, options.files, options.rows)
            if kind == "position_deletes":
                add_position_deletes(session, kind)
            elif kind == "equality_deletes":
                add_equality_deletes(session, kind, options.rows, options.files * options.rows)
            start = current_metadata(session, kind)
            ours: list[Cost] = []
            javas: list[Cost] = []
            for number in range(options.rounds):
                ours_folder = folder / f"{kind}-{number}"
                ours_folder.mkdir()
                after: list[str] = []
                # B023: both are called before the loop goes on
                ours.append(timed(own_cpu, lambda: after.append(compact_ours(ours_folder, start))))  # noqa: B023
                call = (
                    f"call java.system.rewrite_data_files(table => 'bench.{kind}', options => map('rewrite-all', "
                    f"'true', 'target-file-size-bytes', '{TARGET_MB * 1024 * 1024}'))"
                )
                javas.append(timed(cpu_of_java, lambda: session.sql(call).collect()))  # noqa: B023
                if checksum(after[0]) != checksum(current_metadata(session, kind)):
                    print(f"{kind}: the two disagree about the rows", file=sys.stderr)
                    return 1
                roll_back(session, kind)
            medians = [
                statistics.median(getattr(cost, part) for cost in costs)
                for costs in (ours, javas)
                for part in Cost._fields
            ]
            pairs = list(zip(ours, javas, strict=True))
            ratios = [statistics.median(getattr(o, p) / getattr(j, p) for o, j in pairs) for p in Cost._fields]
            print(
                f"{kind:18} {medians[0]:8.1f}s {medians[1]:6.1f}s {medians[2]:9.1f}s {medians[3]:6.1f}s   "
                f"{ratios[0]:.2f}, {ratios[1]:.2f}"
            )
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
