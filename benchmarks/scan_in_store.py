"""What full scans of files in a store cost when row groups stay small and every request takes a while.

    python -m benchmarks.scan_in_store [--megabytes 192] [--rounds 3] [--delay-ms 20]

The same files as ``scan_row_groups.py``, in SeaweedFS behind a proxy that delays every request.  DuckDB and pyarrow
(as PyIceberg scans) read all columns, with one thread for the decoding and, of pyarrow, its usual ones for reading.
Spark is missing: its package has no file system for S3.

Wall time on a shared machine means little, so it is put together: CPU seconds (the least of all rounds), and the delay
times the number of requests that wait for each other.  That number is found by scanning twice, once with a delay that
is ten times as long: what the scan takes longer, divided by the difference.  It is too high rather than too low, for a
reader that asks ahead hides the short delay better.  Printed are these seconds as multiples of those for the file with
the largest row groups, the requests of a scan, and how many of them wait for each other.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.sql import SparkSession

from benchmarks.delay_proxy import DelayProxy, delay_proxy
from benchmarks.scan_row_groups import SIZES_MB, make_files, row_group_megabytes
from icekeeper.demo.duckdb_child import connect
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from icekeeper.engines.java import find_java_home

_BUCKET = "files"
_LONGER = 10
"""Times the delay of the second scan."""


@dataclass(frozen=True)
class Scan:
    """One scan; requests are those that passed the proxy."""

    wall_s: float
    cpu_s: float
    requests: int


Reader = Callable[[SeaweedFSServer, str, str], None]
"""Reads all columns of an object: the server, the endpoint of the proxy, the key."""


def by_duckdb(server: SeaweedFSServer, endpoint: str, key: str) -> None:
    """A new database each time: nothing is cached."""
    properties = server.catalog_properties(_BUCKET)
    session = connect({**properties, "s3.endpoint": endpoint})
    session.execute("SET threads = 1")
    session.execute(f"select max(columns(*)) from read_parquet('s3://{_BUCKET}/{key}')").fetchall()


def by_pyarrow(server: SeaweedFSServer, endpoint: str, key: str) -> None:
    """Batch by batch, decoded by one thread."""
    store = fs.S3FileSystem(
        access_key=server.access_key,
        secret_key=server.secret_key,
        region=server.region,
        endpoint_override=endpoint,
    )
    for _ in ds.dataset(f"{_BUCKET}/{key}", filesystem=store, format="parquet").scanner(use_threads=False).to_batches():
        pass


READERS: dict[str, Reader] = {"DuckDB": by_duckdb, "pyarrow": by_pyarrow}


def scanned(read: Reader, server: SeaweedFSServer, proxy: DelayProxy, key: str) -> Scan:
    """What a scan takes behind this proxy."""
    proxy.counts()
    wall, cpu = time.perf_counter(), time.process_time()
    read(server, proxy.url, key)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Scan(wall, cpu, proxy.counts()[0])


def _files(scratch: Path, megabytes: int) -> dict[int, Path]:
    os.environ |= {"JAVA_HOME": find_java_home(), "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.log.level", "ERROR").config("spark.local.dir", str(scratch)).getOrCreate()
    try:
        return make_files(session, scratch, megabytes)
    finally:
        session.stop()


def _print(files: dict[int, Path], found: dict[tuple[str, int], list[tuple[Scan, Scan]]], delay_s: float) -> None:
    largest = SIZES_MB[-1]
    seconds, shown = {}, {}
    for (name, size), scans in found.items():
        cpu = min(scan.cpu_s for pair in scans for scan in pair)
        short, long = (min(pair[i].wall_s for pair in scans) for i in (0, 1))
        waits = max(0.0, (long - short) / (delay_s * (_LONGER - 1)))
        seconds[name, size] = cpu + delay_s * waits
        shown[name, size] = f"{cpu:7.2f} {scans[0][0].requests:9} {waits:7.1f}"
    print("row groups of  " + "  ".join(f"{name:>10}:  CPU s  requests  waiting    ratio" for name in READERS))
    for size, path in files.items():
        cells = [f"{'':11} {shown[n, size]} {seconds[n, size] / seconds[n, largest]:9.3f}" for n in READERS]
        print(f"{row_group_megabytes(path):10.1f} MB  {'  '.join(cells)}")


def main() -> None:
    """Make the files, put them into a store, scan them in turn, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
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
            found: dict[tuple[str, int], list[tuple[Scan, Scan]]] = {}
            with (
                delay_proxy(server.s3_endpoint, delay_s) as short,
                delay_proxy(server.s3_endpoint, delay_s * _LONGER) as long,
            ):
                for read in READERS.values():  # so that nothing is imported within the time
                    scanned(read, server, short, f"{SIZES_MB[-1]}.parquet")
                for number in range(asked.rounds):
                    print(f"round {number + 1} of {asked.rounds}", file=sys.stderr, flush=True)
                    for size in files:
                        for name, read in READERS.items():
                            pair = (
                                scanned(read, server, short, f"{size}.parquet"),
                                scanned(read, server, long, f"{size}.parquet"),
                            )
                            found.setdefault((name, size), []).append(pair)
        _print(files, found, delay_s)


if __name__ == "__main__":
    main()
