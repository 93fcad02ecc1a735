"""Proofs of results that have no rows: live files as DuckDB's Avro reader sees them, the files of a history."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable

_QUERY = """
import importlib.util, json, pathlib, sys, duckdb
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
spec = importlib.util.find_spec("duckdb_extension_avro")
extension = next(pathlib.Path(spec.origin).parent.glob("extensions/*/*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
connection.execute("SET enable_progress_bar = false")
paths = json.load(sys.stdin)
rows = total = 0
for first in range(0, len(paths), 50):
    names = ", ".join("'" + path + "'" for path in paths[first : first + 50])
    digest = "count(*), coalesce(sum(hash(data_file.file_path)::HUGEINT), 0)"
    found = connection.execute(f"SELECT {digest} FROM read_avro([{names}]) WHERE status <> 2").fetchone()
    rows, total = rows + found[0], total + found[1]
print(json.dumps([rows, format(total, "x")]))
"""


class LiveFiles(NamedTuple):
    """The live data files of a snapshot as a multiset: their number and the sum of the hashes of their paths."""

    files: int
    digest: str


def live_file_digest(metadata_location: str) -> LiveFiles:
    """Of the current snapshot: PyIceberg reads the manifest list, DuckDB the manifests.

    Raises:
        RuntimeError: DuckDB cannot read them.
    """
    table = StaticTable.from_metadata(metadata_location)
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    paths = [manifest.manifest_path.removeprefix("file://") for manifest in manifests]
    done = subprocess.run(
        [sys.executable, "-c", _QUERY], input=json.dumps(paths), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"DuckDB cannot read manifests: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return LiveFiles(*json.loads(done.stdout))


def history_problem(answer: Mapping[str, Any], table_folder: Path, kept: int) -> str | None:
    """What is wrong after expiry: the snapshots kept, and the data files that they need and that are there."""
    table = StaticTable.from_metadata(answer["metadata_location"])
    snapshots = table.snapshots()
    if len(snapshots) != kept:
        return f"{len(snapshots)} snapshots are left, {kept} are wanted"
    manifests = {m.manifest_path: m for snapshot in snapshots for m in snapshot.manifests(table.io)}
    needed = {
        entry.data_file.file_path.removeprefix("file://")
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content is DataFileContent.DATA
    }
    there = {str(path) for path in (table_folder / "data").rglob("*.parquet")}
    if needed - there:
        return f"{len(needed - there)} needed data files are gone"
    if there - needed:
        return f"{len(there - needed)} freed data files are still there"
    return None
