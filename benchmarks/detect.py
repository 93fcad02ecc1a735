"""Detection over 10,000 tables, served from this disk.

    PYTHONPATH=tests python benchmarks/detect.py [--tables 10000] [--catalogs 4] [--threads 16] [--latency-ms 0]

The tables are in SQL catalogs over SQLite files, their metadata documents are JSON files as Spark leaves them: 10 to
50 snapshots, 20 columns, properties of their own, summaries of every kind.  State is a SQLite file.  A first scan sees
every table for the first time and records its health, a second one sees nothing new.  Prints seconds, tables per
second, the peak memory of the process that scans, and reads of metadata documents per table.  ``--latency-ms`` adds the
answer time of a store to every read.  The claim it checks: within 300 s and 512 MB, exactly one read per table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

from pyiceberg.catalog.sql import SqlCatalog as PyIcebergSqlCatalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.clock import HOUR_MS
from icekeeper.detection.catalogs import CatalogSource
from icekeeper.detection.detect import detect
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.storage import Storage
from icekeeper.table_policy import TablePolicies
from support.tables import new_document, snapshot

CHILD = "--child"
NOW_MS = 1_760_000_000_000
COLUMNS = 20
MB = 1024 * 1024


def make_document(location: str, chance: random.Random) -> dict[str, Any]:
    """A table that somebody appends to every few hours, in one of several conditions."""
    count, files, every_ms = chance.randint(10, 50), 0, chance.randint(1, 12) * HOUR_MS
    average, deletes = chance.choice((1, 40, 300)) * MB, chance.choice((0, 0, 0, 7))
    snapshots: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        added = chance.randint(1, 20)
        files += added
        summary = {
            "operation": "append",
            "spark.app.id": "local-1700000000000",
            "added-data-files": added,
            "added-records": added * 1000,
            "added-files-size": added * average,
            "changed-partition-count": 3,
            "total-records": files * 1000,
            "total-files-size": files * average,
            "total-data-files": files,
            "total-delete-files": deletes,
            "total-position-deletes": deletes * 10,
            "total-equality-deletes": 0,
            "manifests-created": 1,
            "manifests-kept": number % 8,
        }
        raw = snapshot(
            chance.getrandbits(62),
            format_version=2,
            sequence_number=number,
            timestamp_ms=NOW_MS - (count - number) * every_ms,
            parent_id=snapshots[-1]["snapshot-id"] if snapshots else None,
        )
        snapshots.append(raw | {"summary": {key: str(value) for key, value in summary.items()}})
    head = snapshots[-1]["snapshot-id"]
    fields = [
        {"id": n, "name": f"a_column_{n}", "required": False, "type": chance.choice(("long", "string", "double"))}
        for n in range(1, COLUMNS + 1)
    ]
    log = [
        {"timestamp-ms": s["timestamp-ms"], "metadata-file": f"{location}/metadata/{n:05d}-x.metadata.json"}
        for n, s in enumerate(snapshots)
    ]
    properties = {"owner": "spark", "write.parquet.compression-codec": "zstd"}
    if not chance.randrange(5):
        properties |= {"icekeeper.target_file_size_mb": "128", "history.expire.max-snapshot-age-ms": "86400000"}
    return new_document(location, 2) | {
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "last-column-id": COLUMNS,
        "properties": properties,
        "current-snapshot-id": head,
        "refs": {"main": {"snapshot-id": head, "type": "branch"}},
        "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in snapshots],
        "metadata-log": log,
        "last-sequence-number": len(snapshots),
        "last-updated-ms": NOW_MS,
    }


def properties_of(folder: Path, number: int) -> dict[str, str]:
    """One catalog's, in PyIceberg's words."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / f'catalog-{number}.db'}",
        "warehouse": (folder / f"warehouse-{number}").as_uri(),
    }


def make_fleet(folder: Path, tables: int, catalogs: int) -> int:
    """Bytes of metadata."""
    chance, size = random.Random(1), 0
    for number in range(catalogs):
        PyIcebergSqlCatalog(f"c{number}", **properties_of(folder, number)).close()
        rows = []
        for index in range(number, tables, catalogs):
            location = folder / f"warehouse-{number}" / "ns" / f"t{index:05d}"
            (location / "metadata").mkdir(parents=True)
            path = location / "metadata" / "00050-x.metadata.json"
            size += path.write_text(json.dumps(make_document(location.as_uri(), chance)))
            rows.append((f"c{number}", "ns", location.name, path.as_uri()))
        with closing(sqlite3.connect(folder / f"catalog-{number}.db")) as connection, connection:
            connection.executemany(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location,"
                " iceberg_type) VALUES (?, ?, ?, ?, 'TABLE')",
                rows,
            )
    return size


def scan(folder: Path, catalogs: int, threads: int, latency_s: float) -> dict[str, Any]:
    """One scan, as a function would do it."""
    reads: Counter[str] = Counter()
    read = Storage.read

    def counted(storage: Storage, path: str) -> bytes:
        reads[path] += 1
        time.sleep(latency_s)
        return read(storage, path)

    sources = [
        CatalogSource(f"c{n}", lambda n=n: open_catalog(f"c{n}", properties_of(folder, n)))  # type: ignore[misc]
        for n in range(catalogs)
    ]
    state = SqliteStateStore(folder / "state.db")
    cpu_s, started_s = time.process_time(), time.perf_counter()
    with mock.patch.object(Storage, "read", counted):
        report = detect(sources, state, TablePolicies({}), clock=lambda: NOW_MS + HOUR_MS, threads=threads)
    return {
        "seconds": round(time.perf_counter() - started_s, 1),
        "cpu_s": round(time.process_time() - cpu_s, 1),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "tables": report.scanned,
        "proposals": len(report.proposals),
        "skipped": len(report.skipped),
        "errors": report.errors,
        "tables_read": len(reads),
        "most_reads_of_a_table": max(reads.values()),
    }


def main() -> None:
    """Make the fleet, then scan it twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--catalogs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument(CHILD, dest="child", type=Path)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(scan(options.child, options.catalogs, options.threads, options.latency_ms / 1000)))
        return
    with tempfile.TemporaryDirectory() as name:
        size = make_fleet(Path(name), options.tables, options.catalogs)
        print(f"{options.tables} tables, {size // options.tables // 1024} KB of metadata each")
        for which in ("first scan", "second scan"):
            # A process of its own, so that making the tables does not count.
            command = [sys.executable, __file__, CHILD, name, *sys.argv[1:]]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
            found = json.loads(done.stdout)
            print(f"{which}: {found}, {found['tables'] / found['seconds']:.0f} tables/s")


if __name__ == "__main__":
    main()
