"""What full scans of files in a store cost when row groups stay small and every request takes a while.

    python -m benchmarks.scan_in_store [--megabytes 80] [--rounds 2] [--delay-ms 20]

Files as those of ``scan_row_groups.py``, in SeaweedFS behind a proxy that delays every request.  DuckDB and pyarrow (as
PyIceberg scans) read all columns, with one thread and with two.  How they ask differs.
Spark is missing: its package has no file system for S3.

Wall time on a shared machine means little, so a scan's time is put together: CPU seconds (the least of all rounds)
divided by the threads, and the delay times the requests that wait for each other.  Their number is found by scanning
again with a delay many times as long: what the scan takes longer, divided by the difference.  That is rather too
high, for a reader that asks ahead hides a short delay better.  Printed are the time as a multiple of that for the file
with the largest row groups, the requests of a scan, and how many of them wait for each other.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.sql import SparkSession

from benchmarks.delay_proxy import DelayProxy, delay_proxy
from benchmarks.scan_row_groups import make_files, row_group_megabytes
from icekeeper.demo.duckdb_child import connect
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from icekeeper.engines.spark import find_java_home

_BUCKET = "files"
_LONGER = 25
"""Times the delay of the second scan."""
_SIZES_MB = (8, 16, 24, 32, 96)
"""As in ``scan_row_groups.py``, some of them."""
_THREADS = (1, 2)


@dataclass(frozen=True)
class Scan:
    """One scan; requests are those that passed the proxy."""

    wall_s: float
    cpu_s: float
    requests: int


Reader = Callable[[SeaweedFSServer, str, str, int], None]
"""Reads all columns of an object: the server, the endpoint of the proxy, the key, with so many threads."""


def by_duckdb(server: SeaweedFSServer, endpoint: str, key: str, threads: int) -> None:
    """A new database each time: nothing is cached."""
    properties = server.catalog_properties(_BUCKET)
    session = connect({**properties, "s3.endpoint": endpoint})
    session.execute(f"SET threads = {threads}")
    session.execute(f"select max(columns(*)) from read_parquet('s3://{_BUCKET}/{key}')").fetchall()


def by_pyarrow(server: SeaweedFSServer, endpoint: str, key: str, threads: int) -> None:
    """Batch by batch; besides those that decode there are Arrow's usual threads for reading."""
    store = fs.S3FileSystem(
        access_key=server.access_key, secret_key=server.secret_key, region=server.region, endpoint_override=endpoint
    )
    pa.set_cpu_count(threads)
    dataset = ds.dataset(f"{_BUCKET}/{key}", filesystem=store, format="parquet")
    for _ in dataset.scanner(use_threads=threads > 1).to_batches():
        pass


READERS: dict[str, Reader] = {"DuckDB": by_duckdb, "pyarrow": by_pyarrow}


@dataclass(frozen=True)
class Store:
    """The server, the same behind a short and a long delay."""

    server: SeaweedFSServer
    short: DelayProxy
    long: DelayProxy

    def scan(self, proxy: DelayProxy, reader: str, threads: int, size: int) -> Scan:
        """What a scan of the file with row groups of that size takes behind this proxy."""
        proxy.counts()
        wall, cpu = time.perf_counter(), time.process_time()
        READERS[reader](self.server, proxy.url, f"{size}.parquet", threads)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Scan(wall, cpu, proxy.counts()[0])


Found = dict[tuple[str, int, int], list[tuple[Scan, Scan]]]
"""By reader, threads and size: scans behind the short and the long delay."""


def _files(scratch: Path, megabytes: int) -> dict[int, Path]:
    os.environ |= {"JAVA_HOME": find_java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.log.level", "ERROR").config("spark.local.dir", str(scratch)).getOrCreate()
    try:
        return make_files(session, scratch, megabytes, _SIZES_MB)
    finally:
        session.stop()


def _measured(store: Store, sizes: Iterable[int], rounds: int) -> Found:
    found: Found = {}
    for reader in READERS:  # so that nothing is imported within the time
        store.scan(store.short, reader, 1, _SIZES_MB[-1])
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for size, reader, threads in itertools.product(sizes, READERS, _THREADS):
            pair = tuple(store.scan(proxy, reader, threads, size) for proxy in (store.short, store.long))
            found.setdefault((reader, threads, size), []).append((pair[0], pair[1]))
    return found


def _print(files: Mapping[int, Path], found: Found, delay_s: float) -> None:
    for reader, threads in itertools.product(READERS, _THREADS):
        print(f"{reader}, {threads} thread(s)\nrow groups of     CPU s  requests  waiting  time / that of the largest")
        lines: list[tuple[str, float]] = []
        for size, path in files.items():
            scans = found[reader, threads, size]
            cpu = min(scan.cpu_s for pair in scans for scan in pair)
            short, long = (min(pair[i].wall_s for pair in scans) for i in (0, 1))
            waits = max(0.0, (long - short) / (delay_s * (_LONGER - 1)))
            text = f"{row_group_megabytes(path):10.1f} MB  {cpu:8.2f} {scans[0][0].requests:9} {waits:8.1f}"
            lines.append((text, cpu / threads + delay_s * waits))
        for text, seconds in lines:
            print(f"{text}  {seconds / lines[-1][1]:8.3f}")


def main() -> None:
    """Make the files, put them into a store, scan them in turn, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--delay-ms", type=float, default=20)
    asked = parser.parse_args()
    delay_s = asked.delay_ms / 1000
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as scratch:
        folder = Path(scratch)
        files = _files(folder, asked.megabytes)
        room = 2 * len(files) * asked.megabytes << 20
        with running_seaweedfs(folder / "store", room_bytes=room) as server:
            client = server.client("s3")
            client.create_bucket(Bucket=_BUCKET)
            for size, path in files.items():
                client.upload_file(str(path), _BUCKET, f"{size}.parquet")
            with (
                delay_proxy(server.s3_endpoint, delay_s) as short,
                delay_proxy(server.s3_endpoint, delay_s * _LONGER) as long,
            ):
                found = _measured(Store(server, short, long), files, asked.rounds)
        _print(files, found, delay_s)


if __name__ == "__main__":
    main()
