"""Orphans of a table with a million files, found by Icekeeper and by Iceberg-Java 1.10.2.

    PYTHONPATH=tests python -m benchmarks.orphans [--files 1000000] [--local-files 50000] [--no-java]

One table, whose manifests hold every file but each hundredth.  First a listing of a million paths that exist nowhere:
ours comes out of a generator behind the storage seam, Java gets the same paths as ``file_list_view``.  Then a folder
with real, empty files that both list.  Both only say what they would delete; Java's session has run before.  Prints
wall and CPU seconds and, of ours, the peak memory of the process.  The claim it checks: a million objects against a
million references well within 1 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import EncodedManifest, encode_manifest, encode_manifest_list
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, TableName
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage
from support.iceberg_java import start_spark
from support.tables import new_document, snapshot

ORPHAN_EVERY = 100
FILES_PER_MANIFEST = 10_000
SNAPSHOT_ID = 1
OLD_MS = 1_600_000_000_000
CHILD = "--child"


def data_path(location: str, number: int) -> str:
    """As Spark names them, in a thousand partitions."""
    return f"{location}/data/day={number % 1000:03d}/{number:08d}-0-6f4f1f7e-6a1c-4d8e-9e0b-000000000001-00001.parquet"


def _manifest(location: str, first: int, last: int) -> EncodedManifest:
    entries = [
        ManifestEntry(
            EntryStatus.ADDED,
            SNAPSHOT_ID,
            1,
            1,
            DataFile(
                content=FileContent.DATA,
                file_path=data_path(location, number),
                file_format="PARQUET",
                partition=(),
                record_count=1,
                file_size_in_bytes=1,
            ),
        )
        for number in range(first, last)
        if number % ORPHAN_EVERY
    ]
    path = f"{location}/metadata/{first:08d}-m0.avro"
    encoded = encode_manifest(
        TableMetadata(new_document(location, 2)),
        spec_id=0,
        content=ManifestContent.DATA,
        entries=entries,
        path=path,
        snapshot_id=SNAPSHOT_ID,
        sequence_number=1,
    )
    Path(path).write_bytes(encoded.data)
    return EncodedManifest(b"", encoded.manifest)


def make_table(folder: Path, files: int) -> str:
    """Where a Hadoop catalog looks for it; the metadata location."""
    metadata = folder / "metadata"
    metadata.mkdir(parents=True)
    location = str(folder)
    firsts = range(0, files, FILES_PER_MANIFEST)
    with ProcessPoolExecutor(2) as pool:
        lasts = [min(files, first + FILES_PER_MANIFEST) for first in firsts]
        manifests = [made.manifest for made in pool.map(_manifest, [location] * len(firsts), firsts, lasts)]
    manifest_list = metadata / "snap-1.avro"
    manifest_list.write_bytes(
        encode_manifest_list(2, manifests, snapshot_id=SNAPSHOT_ID, parent_snapshot_id=None, sequence_number=1)
    )
    one = snapshot(SNAPSHOT_ID, format_version=2, timestamp_ms=OLD_MS + 1) | {
        "manifest-list": str(manifest_list),
        "sequence-number": 1,
        "summary": {"operation": "append"},
    }
    document = new_document(
        location,
        2,
        **{
            "snapshots": [one],
            "current-snapshot-id": SNAPSHOT_ID,
            "refs": {"main": {"snapshot-id": SNAPSHOT_ID, "type": "branch"}},
            "last-sequence-number": 1,
            "last-updated-ms": OLD_MS + 1,
            "snapshot-log": [{"snapshot-id": SNAPSHOT_ID, "timestamp-ms": OLD_MS + 1}],
        },
    )
    path = metadata / "v1.metadata.json"
    path.write_text(json.dumps(document))
    (metadata / "version-hint.text").write_text("1")
    return str(path)


def make_files(folder: Path, files: int) -> None:
    """Empty, old ones."""
    for number in range(files):
        path = Path(data_path(str(folder), number))
        if number < 1000:
            path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (OLD_MS / 1000, OLD_MS / 1000))


def sweep(folder: Path, metadata_location: str, generated: int) -> dict[str, float]:
    """What our dry run finds, and what it costs this process; ``generated`` paths are listed, 0: those of the disk."""
    location = str(Path(metadata_location).parents[1])
    properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": folder.parent.as_uri()}
    catalog = SqlCatalog("local", **properties)
    catalog.create_namespace("ns")
    catalog.register_table("ns.t", metadata_location)
    catalog.close()
    runtime = Runtime(open_catalog("local", properties), SqliteStateStore(folder / "state.db"), environment={})

    def listed(self: Storage, prefix: str) -> Iterator[ListedObject]:
        return (ListedObject(data_path(location, number), 1, OLD_MS) for number in range(generated))

    listing: Callable[..., Any] = listed if generated else Storage.list
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    with mock.patch.object(Storage, "list", listing):
        settings = {"operations": "remove_orphans", "orphan_max_delete_ratio": "1"}
        outcome = runtime.maintain(TableName(("ns",), "t"), settings, LocalEngine(2), dry_run=True)
    (operation,) = outcome.operations
    if operation.status.value != "succeeded":
        raise SystemExit(operation.summary)
    return {
        "orphans": len(operation.files_planned),
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "mb_before": before / 1024,
    }


def in_child(folder: Path, metadata_location: str, generated: int) -> dict[str, float]:
    """The same in a process of its own, whose memory nothing else has used."""
    command = [sys.executable, __file__, CHILD, str(folder), metadata_location, str(generated)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def java(session: Any, table: str, view: str | None) -> tuple[int, float, float]:
    """Iceberg-Java's ``remove_orphan_files``: how many it finds, wall and CPU seconds."""
    jvm: Any = session._jvm
    stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat")

    def cpu() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    listing = "" if view is None else f", file_list_view => '{view}'"
    call = f"call java.system.remove_orphan_files(table => '{table}', dry_run => true{listing})"
    wall, used = time.perf_counter(), cpu()
    found = session.sql(call).count()
    return found, time.perf_counter() - wall, cpu() - used


def main() -> int:
    """Measure and print; 1 when the two disagree."""
    if sys.argv[1:2] == [CHILD]:
        print(json.dumps(sweep(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--local-files", type=int, default=50_000)
    parser.add_argument("--no-java", action="store_true")
    options = parser.parse_args()
    agreed = True
    with tempfile.TemporaryDirectory(prefix="icekeeper-bench-") as name:
        folder = Path(name)
        session = None if options.no_java else start_spark(folder)
        if session is not None:
            make_table(folder / "warehouse" / "bench" / "warm_up", 1000)
            java(session, "bench.warm_up", None)
        print(f"{'':24} {'orphans':>8} {'wall':>8} {'CPU':>8} {'peak memory':>12}")
        for title, count, generated in (
            ("generated listing", options.files, options.files),
            ("local folder", options.local_files, 0),
        ):
            table = title.replace(" ", "_")
            place = folder / "warehouse" / "bench" / table
            metadata_location = make_table(place, count)
            if not generated:
                make_files(place, count)
            (folder / table).mkdir()
            ours = in_child(folder / table, metadata_location, generated)
            print(
                f"{title + ', ours':24} {ours['orphans']:8.0f} {ours['wall']:7.1f}s {ours['cpu']:7.1f}s "
                f"{ours['mb']:8.0f} MB ({ours['mb_before']:.0f} MB before)"
            )
            if session is None:
                continue
            view = None
            if generated:
                view = "listing"
                number = "lpad(cast(id as string), 8, '0')"
                path = data_path(str(place), 0).replace("day=000", "' || day || '").replace("00000000-", "' || n || '-")
                session.sql(
                    f"create or replace temp view {view} as select '{path}' file_path, "
                    f"timestamp_millis({OLD_MS}) last_modified from (select {number} n, "
                    f"'day=' || lpad(cast(id % 1000 as string), 3, '0') day from range(0, {count}, 1, 2))"
                )
            found, wall, cpu = java(session, f"bench.{table}", view)
            print(f"{title + ', Java':24} {found:8d} {wall:7.1f}s {cpu:7.1f}s")
            agreed = agreed and found == ours["orphans"]
        if session is not None:
            session.stop()
    if not agreed:
        print("the two disagree about the orphans", file=sys.stderr)
    return 0 if agreed else 1


if __name__ == "__main__":
    sys.exit(main())
