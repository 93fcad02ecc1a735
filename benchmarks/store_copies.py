"""The same merge of files in a store, by the store's own copies and by streaming, for ``row_group_copy.py --store``.

The store is SeaweedFS behind a proxy that delays every request and counts what passes.  "one at a time" streams as the
code did before it read ahead.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from benchmarks.delay_proxy import DelayProxy, delay_proxy
from benchmarks.merge import SCHEMA
from icekeeper.demo.seaweedfs import running_seaweedfs
from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copyable import copy_target
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, merge_files
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.storage.storage import Storage

_BUCKET = "lake"
_FOLDER = f"s3://{_BUCKET}/ns/t/data"
WAYS = ("store", "stream", "one at a time")


def merged(way: str, entries: Sequence[DataFile], properties: Mapping[str, str]) -> int:
    """Judge, copy, prove; the size of the new file."""
    storage = Storage(properties)
    if way != "store":
        storage.no_range_copies.add(_BUCKET)
    target = copy_target(SCHEMA, "zstd", 1, {leaf.field_id: "none" for leaf in leaf_columns(SCHEMA)})
    judged = []
    for entry in entries:
        file = copyable_file(entry, target, storage)
        if isinstance(file, NotCopyable):
            raise SystemExit(str(file))
        judged.append((entry, file))
    made = merge_files(judged, f"{_FOLDER}/output.parquet", target, storage)
    if not isinstance(made, DataFile):
        raise SystemExit(str(made))
    return made.file_size_in_bytes


def compare_in_store(files: Sequence[Path], rounds: int, delay_ms: float) -> None:
    """Put the files into a store, merge them there in turn, print."""
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    size = sum(path.stat().st_size for path in files)
    with tempfile.TemporaryDirectory() as folder, running_seaweedfs(Path(folder), room_bytes=4 * size) as server:
        server.create_table_bucket(_BUCKET)
        direct = Storage(server.catalog_properties(_BUCKET))
        entries = [_stored(direct, path) for path in files]
        with delay_proxy(server.s3_endpoint, delay_ms / 1000) as proxy:
            properties = {**server.catalog_properties(_BUCKET), "s3.endpoint": proxy.url}
            for _ in range(rounds):
                for way in WAYS:
                    found[way].append(_in_a_process(way, entries, properties, proxy))
        with direct.open_input(f"{_FOLDER}/output.parquet") as stream:
            if pq.ParquetFile(stream).metadata.num_rows != sum(entry.record_count for entry in entries):
                sys.exit("rows were lost")
    print(f"in a store that takes {delay_ms:.0f} ms more for every request")
    for way, runs in found.items():
        wall, cpu, peak, requests, passed = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"{way:14} {wall:6.2f} s   {cpu:5.2f} CPU s   {peak:4.0f} MB   {requests:5.0f} requests   "
            f"{passed / 1e6:7.1f} MB through us, {passed / size:6.1%} of the data"
        )


def _stored(storage: Storage, path: Path) -> DataFile:
    to = f"{_FOLDER}/{path.name}"
    storage.write(to, path.read_bytes())
    return DataFile(
        content=FileContent.DATA,
        file_path=to,
        file_format="PARQUET",
        partition=(),
        record_count=pq.read_metadata(path).num_rows,
        file_size_in_bytes=path.stat().st_size,
    )


def _in_a_process(way: str, entries: Sequence[DataFile], properties: Mapping[str, str], proxy: DelayProxy) -> Any:
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe()
    process = context.Process(target=_measure, args=(way, entries, properties, proxy, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _measure(way: str, entries: Sequence[DataFile], properties: Mapping[str, str], proxy: DelayProxy, to: Any) -> None:
    """Seconds, CPU seconds, peak memory in MB (imports included), requests, bytes."""
    with patch("icekeeper.row_group_copy.write_copy.is_s3", lambda _: way != "one at a time"):
        merged(way, entries[:1], properties)  # so that nothing is imported within the time
        proxy.counts()
        wall, cpu = time.perf_counter(), time.process_time()
        merged(way, entries, properties)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    to.send((wall, cpu, _peak_mb(), *proxy.counts()))


def _peak_mb() -> float:
    """The peak memory of this process; ``getrusage`` would include the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
