"""Expiry of a table with a long history, by Icekeeper and by Iceberg-Java 1.10.2, and of a wide one by us alone.

    PYTHONPATH=tests python -m benchmarks.expiry [--snapshots 2000] [--wide 5000x200] [--no-java]

*long*: real local files; every snapshot replaces one of ten data files by a new one, in a manifest of its own, so each
that expires frees a data file, a manifest and a manifest list.  All but the newest ten expire: by us, with every
deletion guarded, and by Java's own ``expireSnapshots()`` on a copy, in a warm JVM.  *wide*: 5,000 snapshots of 200
manifests each, of which one is exchanged per snapshot, served from memory behind the reading seam; 4,990 expire.  Of
that the plan alone is measured: which files are freed.  Prints wall and CPU seconds and the peak memory of the process;
each part runs in a process of its own.  The claims: expiry takes no longer than Java's, and the wide table less than
1 GB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile, TableName
from icekeeper.operations.expiry.unreferenced import unreferenced_files
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from support.tables import CREATED_MS, new_document, snapshot

KEPT = 10
LIVE_FILES = 10
FILE_BYTES = 4096
_MB = 1024 * 1024


def entry(path: str, snapshot_id: int) -> ManifestEntry:
    """A data file that the snapshot adds."""
    file = DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=(),
        record_count=10,
        file_size_in_bytes=FILE_BYTES,
    )
    return ManifestEntry(EntryStatus.ADDED, snapshot_id, snapshot_id, snapshot_id, file)


class History:
    """Metadata of a table whose every snapshot exchanges the oldest of ``width`` manifests for a new one."""

    def __init__(self, location: str, snapshots: int, width: int, write: Callable[[str, bytes], object]) -> None:
        self.document: dict[str, Any] = new_document(location, 2)
        base, listed = TableMetadata(self.document), list[ManifestFile]()
        raws = []
        for number in range(1, snapshots + 1):
            for part in range(width - len(listed) if number == 1 else 1):
                data = f"{location}/data/part-{number:06d}-{part:04d}.parquet"
                made = encode_manifest(
                    base,
                    spec_id=0,
                    content=ManifestContent.DATA,
                    entries=[entry(data, number)],
                    path=f"{location}/metadata/m-{number:06d}-{part:04d}.avro",
                    snapshot_id=number,
                    sequence_number=number,
                )
                write(made.manifest.manifest_path, made.data)
                write(data, b"x")
                listed.append(made.manifest)
            listed = listed[-width:]
            path = f"{location}/metadata/snap-{number:06d}.avro"
            parent = number - 1 or None
            write(
                path,
                encode_manifest_list(2, listed, snapshot_id=number, parent_snapshot_id=parent, sequence_number=number),
            )
            raw = snapshot(
                number, format_version=2, sequence_number=number, timestamp_ms=CREATED_MS + number, parent_id=parent
            )
            raws.append(raw | {"manifest-list": path})
        self.document |= {
            "snapshots": raws,
            "current-snapshot-id": snapshots,
            "last-sequence-number": snapshots,
            "last-updated-ms": CREATED_MS + snapshots,
            "refs": {"main": {"type": "branch", "snapshot-id": snapshots}},
            "snapshot-log": [{"snapshot-id": raw["snapshot-id"], "timestamp-ms": raw["timestamp-ms"]} for raw in raws],
        }


def make_long(folder: Path, snapshots: int) -> None:
    """Below ``folder``, in the layout of a Hadoop catalog, which Java then expires in."""

    def write(path: str, data: bytes) -> None:
        Path(path.removeprefix("file://")).write_bytes(data)

    for name in ("data", "metadata"):
        (folder / name).mkdir(parents=True)
    made = History(folder.as_uri(), snapshots, LIVE_FILES, write)
    (folder / "metadata" / "v1.metadata.json").write_text(json.dumps(made.document))
    (folder / "metadata" / "version-hint.text").write_text("1")


def ours(folder: Path, home: Path, results: Any) -> None:
    """A pass over the table as it lies."""
    properties = {"type": "sql", "uri": f"sqlite:///{home / 'catalog.db'}", "warehouse": home.as_uri()}
    catalog = SqlCatalog("bench", **{key: value for key, value in properties.items() if key != "type"})
    catalog.create_namespace("ns")
    with suppress(Exception):
        catalog.register_table("ns.t", (folder / "metadata" / "v1.metadata.json").as_uri())
    catalog.close()
    runtime = Runtime(open_catalog("bench", properties), SqliteStateStore(home / "state.db"), environment={})
    settings = {"operations": "expire_snapshots", "snapshot_retention_hours": "0", "max_snapshots_to_keep": str(KEPT)}

    def run() -> str:
        return runtime.maintain(TableName(("ns",), "t"), settings, LocalEngine(1)).summary

    results.send(measured(run))


def wide(snapshots: int, width: int, results: Any) -> None:
    """The plan for a table in memory; what that memory holds is measured before, and taken off."""
    objects: dict[str, bytes] = {}
    history = History("s3://b/t", snapshots, width, lambda path, data: objects.update({path: data}))
    metadata = TableMetadata(history.document)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run() -> str:
        reader = TableReader(metadata, objects.__getitem__)
        expired = set(range(1, snapshots - KEPT + 1))
        freed = unreferenced_files(reader, expired, ["s3://b/t"])
        return f"{len(freed.candidates.paths())} files are freed; the generated metadata took {before // 1024} MB"

    results.send(measured(run))


def measured(run: Callable[[], str]) -> tuple[str, float, float, int]:
    """Sentence, wall seconds, CPU seconds, peak resident kilobytes of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    sentence = run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return sentence, time.perf_counter() - wall, time.process_time() - cpu, peak


def in_a_process(name: str, function: Callable[..., None], *arguments: Any) -> float:
    """Run and print one part; its wall seconds."""
    here, there = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=function, args=(*arguments, there))
    process.start()
    sentence, wall, cpu, peak = here.recv()
    process.join()
    print(f"{name:<12} {wall:8.2f} s wall {cpu:8.2f} s CPU {peak / 1024:8.0f} MB peak   {sentence}", flush=True)
    return float(wall)


def java(scratch: Path, snapshots: int, results: Any) -> None:
    """Its own API, in a warm JVM, and its peak memory."""
    from support.iceberg_java import start_spark

    session = start_spark(scratch)
    session.sql("select 1").collect()
    pid = int(session._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]

    def cpu_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    jvm: Any = session._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, "java.bench.t")
    folder = scratch / "warehouse" / "bench" / "t"
    before = sum(1 for _ in folder.rglob("*"))
    wall, cpu = time.perf_counter(), cpu_s()
    table.expireSnapshots().expireOlderThan(2**62).retainLast(KEPT).cleanExpiredFiles(True).commit()
    took, used = time.perf_counter() - wall, cpu_s() - cpu
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
    files = before - sum(1 for _ in folder.rglob("*"))
    results.send((f"deleted about {files} file(s) of {snapshots} snapshots", took, used, peak))
    session.stop()


def main() -> None:
    """Every part in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--snapshots", type=int, default=2000)
    parser.add_argument("--wide", default="5000x200")
    parser.add_argument("--no-java", action="store_true")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="icekeeper-expiry-"))
    try:
        table = scratch / "java" / "warehouse" / "bench" / "t"
        make_long(scratch / "long", arguments.snapshots)
        if not arguments.no_java:
            (scratch / "template").mkdir()
            make_long(table, arguments.snapshots)
        mine = in_a_process("icekeeper", ours, scratch / "long", scratch)
        if not arguments.no_java:
            theirs = in_a_process("iceberg-java", java, scratch / "java", arguments.snapshots)
            print(f"icekeeper / iceberg-java: {mine / theirs:.2f} of the time")
        snapshots, _, width = arguments.wide.partition("x")
        in_a_process(f"{arguments.wide}", wide, int(snapshots), int(width))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
