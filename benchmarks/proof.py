"""Whether a contestant's result is right, judged by readers that are not ours: DuckDB for rows, PyIceberg for files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from benchmarks.metadata_proof import LiveFiles, history_problem, live_file_digest
from icekeeper.demo.measure import TableChecksum, read_checksum

_FILES_QUERY = """
import json, sys, duckdb
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
connection.execute("SET enable_progress_bar = false")
paths = json.load(sys.stdin)
def scan(deletes):
    return "read_parquet(%r, filename = true)" % [path for path in paths if ("-deletes" in path) == deletes]
columns = [row[0] for row in connection.execute("DESCRIBE SELECT * FROM " + scan(False)).fetchall()]
names = ", ".join('"' + name + '"' for name in sorted(columns) if name != "filename")
rows = scan(False)
if any("-deletes" in path for path in paths):
    number = "coalesce(try_cast(regexp_extract(filename, 'cdc-([0-9]+)', 1) AS INTEGER), -1)"
    rows = f"(SELECT *, {number} AS written FROM {rows}) LEFT JOIN (SELECT id, max({number}) AS deleted"
    rows += f" FROM {scan(True)} GROUP BY id) USING (id) WHERE deleted IS NULL OR deleted <= written"
query = f"SELECT count(*), coalesce(sum(hash({names})::HUGEINT), 0) FROM {rows}"
count, total = connection.execute(query).fetchone()
print(json.dumps({"rows": count, "checksum": format(total, "x")}))
"""
"""Rows of plain files.  Of two rows with one id, where a file of deletes came between, the later one."""


class NotProven(Exception):
    """A result is wrong, or nobody could read it; its time does not count."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the table must hold afterwards."""

    rows: TableChecksum | None
    """``None`` where the table has none to read."""
    bytes: int
    most_files: int | None
    live: LiveFiles | None = None
    table_folder: Path = Path()
    kept_snapshots: int = 0
    counted: int = 0
    """Orphans, or tables of a fleet."""
    s3: Mapping[str, str] | None = None
    """PyIceberg's properties where the table is in a store."""


def expected_rows(metadata_location: str) -> TableChecksum:
    """Of the table as it is."""
    return read_checksum(metadata_location)


def expected_upserts(paths: Sequence[str]) -> TableChecksum:
    """Of a table of the dataset ``cdc``, from its files alone: DuckDB joins them with the deletes that came later.

    Its Iceberg reader compares every row with every deleted key, which takes minutes.
    """
    return _rows_of_files(paths)


def prove(kind: str, answer: Mapping[str, Any], expected: Expected) -> str:
    """What was found to be right, in words; ``kind`` is an entrant's or a row's.

    Raises:
        NotProven: something was not.
    """
    if kind == "bytes":
        if answer["bytes"] != expected.bytes:
            raise NotProven(f"{answer['bytes']} bytes instead of {expected.bytes}")
        return f"{expected.bytes:,} bytes"
    try:
        if kind == "plan":
            return f"{answer['planned']:,} files planned"
        if kind in ("orphans", "detected"):
            return _counted(answer, expected)
        if kind == "history":
            return _history(answer, expected)
        if kind == "live_files":
            return _live(answer, expected)
        if kind == "files":
            found, files = _rows_of_files(answer["files"]), len(answer["files"])
        else:
            found, files = (
                read_checksum(answer["metadata_location"], s3=expected.s3),
                live_files(answer["metadata_location"], expected.s3 or {}),
            )
    except NotProven:
        raise
    except Exception as error:
        raise NotProven(f"it cannot be read: {error}") from error
    assert expected.rows is not None
    if found != expected.rows:
        raise NotProven(f"DuckDB reads other rows: {found.rows:,} instead of {expected.rows.rows:,}, or other values")
    if expected.most_files is not None and files > expected.most_files:
        raise NotProven(f"{files} data files are left, {expected.most_files} are wanted")
    return f"DuckDB: {found.rows:,} rows, checksum as before; {files} data file(s)"


def _counted(answer: Mapping[str, Any], expected: Expected) -> str:
    if answer["planned"] != expected.counted:
        raise NotProven(f"{answer['planned']:,} were found, there are {expected.counted:,}")
    return f"{expected.counted:,} found"


def _history(answer: Mapping[str, Any], expected: Expected) -> str:
    problem = history_problem(answer, expected.table_folder, expected.kept_snapshots)
    if problem is not None:
        raise NotProven(problem)
    return f"PyIceberg: {expected.kept_snapshots} snapshots, just the data files that they need"


def _live(answer: Mapping[str, Any], expected: Expected) -> str:
    found = live_file_digest(answer["metadata_location"])
    if found != expected.live:
        raise NotProven(f"DuckDB reads {found.files:,} live files, or others than before")
    manifests = len(StaticTable.from_metadata(answer["metadata_location"]).inspect.manifests())
    return f"DuckDB: {found.files:,} live files as before; {manifests} manifests"


def live_files(metadata_location: str, properties: Mapping[str, str]) -> int:
    """Data files of the current snapshot, as PyIceberg reads its manifests."""
    return int(StaticTable.from_metadata(metadata_location, dict(properties)).inspect.data_files().num_rows)


def live_bytes(metadata_location: str, properties: Mapping[str, str]) -> int:
    """The size of the data files of the current snapshot, as its manifests say by PyIceberg."""
    files = StaticTable.from_metadata(metadata_location, dict(properties)).inspect.data_files()
    return sum(files["file_size_in_bytes"].to_pylist())


def files_opened(metadata_location: str, predicates: Sequence[str]) -> int:
    """Files that PyIceberg would open for each predicate, added up."""
    table = StaticTable.from_metadata(metadata_location)
    return sum(len(list(table.scan(row_filter=predicate).plan_files())) for predicate in predicates)


def _rows_of_files(paths: Sequence[str]) -> TableChecksum:
    # In a process of its own, as every use of DuckDB here: other versions of it are loaded elsewhere.
    done = subprocess.run(
        [sys.executable, "-c", _FILES_QUERY], input=json.dumps(list(paths)), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotProven(f"DuckDB cannot read it: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return TableChecksum(**json.loads(done.stdout))
