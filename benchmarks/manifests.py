"""Rewriting many manifests by Icekeeper and by Iceberg-Java 1.10.2, in turn, in one run.

    PYTHONPATH=tests python -m benchmarks.manifests [--manifests 1000] [--entries 200] [--columns 15] [--rounds 1]

One table, as hourly commits leave it: every manifest holds as many files in every partition, with statistics of all
columns.  Both sides rewrite its manifests from the same snapshot: ours on the local engine in two processes, Java's
``rewrite_manifests`` in one JVM with two cores.  Data files do not exist: neither side looks at them.  Prints wall and
CPU seconds, the peak memory of the largest process, manifests written, and how many of them a planner opens for one
partition, with the ratios.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.compaction import jvm_cpu, own_cpu, timed
from icekeeper.engines.local import LocalEngine
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_blocks import ManifestAssembler, entry_blocks
from icekeeper.metadata.manifest_copy import EntryCopier, StoredEntry
from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest, encode_manifest_list, partition_types
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.operations.manifests.partition_ranges import average_opened, partition_order, range_of
from icekeeper.storage.storage import Storage
from support.files_on_disk import local_path
from support.iceberg_java import start_spark
from support.java_table import JavaTable
from support.maintained_table import registered_table

PROCESSES = 2
PARTITIONS = 100
# So many that the same statistics never come twice within what deflate looks back to.
TEMPLATES = 64
MARK = b"manifest-00000"
SNAPSHOT = 4_000_000_000


def files(columns: int, entries: int, seed: int) -> Iterator[DataFile]:
    """Files of every partition, with statistics like those of real columns."""
    chance = random.Random(seed)
    for number in range(entries):
        rows = chance.randrange(50_000, 90_000)
        every = range(1, columns + 1)
        yield DataFile(
            content=FileContent.DATA,
            file_path=f"s3://bucket/warehouse/ns/t/data/{MARK.decode()}/{chance.getrandbits(128):032x}-{number:05}.parquet",
            file_format="PARQUET",
            partition=(number % PARTITIONS,),
            record_count=rows,
            file_size_in_bytes=chance.randrange(10**7, 10**8),
            column_sizes={c: chance.randrange(10**4, 10**6) for c in every},
            value_counts=dict.fromkeys(every, rows),
            null_value_counts={c: chance.randrange(100) if c % 4 == 0 else 0 for c in every},
            nan_value_counts={},
            lower_bounds={c: chance.getrandbits(60).to_bytes(8, "little") for c in every},
            upper_bounds={c: chance.getrandbits(60).to_bytes(8, "little") for c in every},
            split_offsets=(4,),
            sort_order_id=0,
        )


def add_manifests(metadata_location: str, manifests: int, entries: int, columns: int) -> str:
    """The metadata file of the table with one more snapshot, which has these manifests."""
    document = json.loads(local_path(metadata_location).read_text())
    metadata = TableMetadata(document)
    storage, copier = Storage({}), EntryCopier(metadata, 0)
    templates: list[list[StoredEntry]] = []
    for seed in range(TEMPLATES):
        made = [ManifestEntry(EntryStatus.ADDED, SNAPSHOT, 1, 1, file) for file in files(columns, entries, seed)]
        encoded = encode_manifest(
            metadata,
            spec_id=0,
            content=ManifestContent.DATA,
            entries=made,
            path="",
            snapshot=NewSnapshot(SNAPSHOT, 1),
        )
        templates.append(list(copier.copy(encoded.data, encoded.manifest)))
    assembler = ManifestAssembler(metadata, 0, ManifestContent.DATA)
    listed: list[ManifestFile] = []
    for number in range(manifests):
        mark = f"manifest-{number:05}".encode()
        own = [entry._replace(data=entry.data.replace(MARK, mark)) for entry in templates[number % TEMPLATES]]
        put = assembler.assemble(list(entry_blocks(own)), f"{metadata.metadata_directory}/{mark.decode()}.avro")
        storage.write(put.manifest.manifest_path, put.data)
        listed.append(put.manifest)
    new = [_committed(manifest) for manifest in listed]
    path = f"{metadata.metadata_directory}/snap-{SNAPSHOT}.avro"
    storage.write(path, encode_manifest_list(2, new, snapshot_id=SNAPSHOT, parent_snapshot_id=None, sequence_number=1))
    snapshot = {
        "snapshot-id": SNAPSHOT,
        "sequence-number": 1,
        "timestamp-ms": metadata.last_updated_ms,
        "manifest-list": path,
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    document |= {
        "snapshots": [snapshot],
        "current-snapshot-id": SNAPSHOT,
        "refs": {"main": {"type": "branch", "snapshot-id": SNAPSHOT}},
        "last-sequence-number": 1,
    }
    made_location = f"{metadata.metadata_directory}/made.metadata.json"
    storage.write(made_location, json.dumps(document).encode())
    return made_location


def _committed(manifest: ManifestFile) -> ManifestFile:

    return replace(manifest, sequence_number=1, added_snapshot_id=SNAPSHOT)


def outcome(metadata_location: str) -> tuple[int, int, float]:
    """Manifests, live entries, and manifests opened for one partition, of the current snapshot."""
    metadata = TableMetadata(json.loads(local_path(metadata_location).read_text()))
    head = metadata.current_snapshot
    assert head is not None
    listed = TableReader(metadata, Storage({}).read).manifests(head)
    types = partition_types(metadata, 0)
    partitions = [partition_order(types, (number,)) for number in range(PARTITIONS)]
    opened = average_opened([range_of(types, m) for m in listed], partitions)
    live = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in listed)
    return len(listed), live, opened


def own_peak_mb() -> float:
    """Of the largest process: this one, or a worker that has ended."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def jvm_peak_mb(session: SparkSession) -> float:
    """Of the JVM, since it started."""
    jvm: Any = session._jvm
    status = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def rewrite_ours(folder: Path, metadata_location: str) -> str:
    """Where the table's metadata is afterwards."""
    folder.mkdir()
    table = registered_table(metadata_location, folder)
    passed = table.maintain("rewrite_manifests", engine=LocalEngine(PROCESSES))
    print(f"ours: {passed.summary}", file=sys.stderr)
    return table.metadata_location


def main() -> int:
    """Measure and print; 1 when entries were lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifests", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--columns", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as name:
        folder = Path(name)
        session = start_spark(folder)
        columns = ", ".join(f"c{number} bigint" for number in range(2, options.columns + 1))
        ddl = f"create table {{table}} (p int, {columns}) using iceberg partitioned by (p)"
        java = JavaTable.create(session, "manifests", ddl)
        warm_up = JavaTable.create(session, "warm_up", ddl)
        warm_up.take_over(add_manifests(warm_up.metadata_location, 20, PARTITIONS, options.columns))
        warm_up.call("rewrite_manifests")
        start = add_manifests(java.metadata_location, options.manifests, options.entries, options.columns)
        print(
            f"{options.manifests} manifests of {options.entries} entries with statistics of {options.columns} columns"
        )
        print(f"opened for one partition before: {outcome(start)[2]:.1f}")
        costs: Mapping[str, list[Any]] = {"ours": [], "Java": []}
        after: dict[str, str] = {}
        for number in range(options.rounds):
            sides: list[tuple[str, Callable[[], float], Callable[[], object]]] = [
                ("ours", own_cpu, lambda n=number: after.update(ours=rewrite_ours(folder / str(n), start))),  # type: ignore[misc]
                ("Java", jvm_cpu(session), lambda: java.call("rewrite_manifests")),
            ]
            java.take_over(start)
            for side, clock, work in sides:
                costs[side].append(timed(clock, work))
        after["Java"] = java.metadata_location
        for side, peak in (("ours", own_peak_mb()), ("Java", jvm_peak_mb(session))):
            wall, cpu = (statistics.median(getattr(cost, p) for cost in costs[side]) for p in ("wall_s", "cpu_s"))
            written, live, opened = outcome(after[side])
            print(
                f"{side:5} {wall:7.1f} s wall {cpu:7.1f} s CPU {peak:7.0f} MB; {written} manifests, {opened:.2f} opened"
            )
            if live != options.manifests * options.entries:
                print(f"{side}: {live} entries are left", file=sys.stderr)
                return 1
        pairs = list(zip(costs["ours"], costs["Java"], strict=True))
        ratios = [statistics.median(getattr(o, p) / getattr(j, p) for o, j in pairs) for p in ("wall_s", "cpu_s")]
        print(f"ours / Java: {ratios[0]:.2f} wall, {ratios[1]:.2f} CPU")
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
