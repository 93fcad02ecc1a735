"""Proofs of results that have no rows: live files as DuckDB's Avro reader sees them, the files of a history."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable

_AVRO = """
import importlib.util, json, pathlib, sys, duckdb
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
spec = importlib.util.find_spec("duckdb_extension_avro")
extension = next(pathlib.Path(spec.origin).parent.glob("extensions/*/*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
connection.execute("SET enable_progress_bar = false")
paths = json.load(sys.stdin)
"""
_DIGEST_QUERY = """
rows = total = 0
for first in range(0, len(paths), 50):
    names = ", ".join("'" + path + "'" for path in paths[first : first + 50])
    digest = "count(*), coalesce(sum(hash(data_file.file_path)::HUGEINT), 0)"
    found = connection.execute(f"SELECT {digest} FROM read_avro([{names}]) WHERE status <> 2").fetchone()
    rows, total = rows + found[0], total + found[1]
print(json.dumps([rows, format(total, "x")]))
"""
_SMALL_QUERY = """
found = []
for first in range(0, len(paths), 50):
    names = ", ".join("'" + path + "'" for path in paths[first : first + 50])
    small = "status <> 2 AND data_file.file_size_in_bytes < " + sys.argv[1]
    what = "data_file.file_path, data_file.partition.p, data_file.file_size_in_bytes"
    found += connection.execute(f"SELECT {what} FROM read_avro([{names}]) WHERE {small}").fetchall()
print(json.dumps(found))
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
    return LiveFiles(*_asked(metadata_location, _DIGEST_QUERY))


_MOST_LEFT = 0.01
"""The share of the small files that may wait for others to join them."""


def plan_problem(answer: Mapping[str, Any], metadata_location: str, small_bytes: int) -> str | None:
    """What is wrong with a plan that must have nearly every file below a size once, and nothing else.

    Its ``groups`` (the first ones of very many) name their partitions: together they have no more of a partition than
    there is.

    Raises:
        RuntimeError: DuckDB cannot read the manifests.
    """
    small = {
        path: (f"p={value}", size) for path, value, size in _asked(metadata_location, _SMALL_QUERY, str(small_bytes))
    }
    planned = Path(answer["planned_files"]).read_text().splitlines()
    if len(set(planned)) < len(planned) or not small.keys() >= set(planned):
        return "a file is planned twice, or is not small"
    if len(planned) < (1 - _MOST_LEFT) * len(small):
        return f"{len(planned):,} files are planned, {len(small):,} are small"
    totals = answer["plan"]["totals"]
    if (totals["files"], totals["bytes_in"]) != (len(planned), sum(small[path][1] for path in planned)):
        return f"its groups have {totals['files']:,} files of {totals['bytes_in']:,} bytes"
    there, grouped = Counter[str](), Counter[str]()
    for path in planned:
        there[small[path][0]] += small[path][1]
    for group in answer["plan"]["groups"]:
        grouped[group["partition"]] += group["bytes_in"]
    if wrong := grouped - there:
        return f"its groups have more of {min(wrong)} than there is"
    return None


def _asked(metadata_location: str, query: str, *arguments: str) -> list[Any]:
    """DuckDB's answer about the manifests of the current snapshot."""
    table = StaticTable.from_metadata(metadata_location)
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    paths = [manifest.manifest_path.removeprefix("file://") for manifest in manifests]
    command = [sys.executable, "-c", _AVRO + query, *arguments]
    done = subprocess.run(command, input=json.dumps(paths), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"DuckDB cannot read manifests: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    found: list[Any] = json.loads(done.stdout)
    return found


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
