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

from benchmarks.metadata_proof import LiveFiles, history_problem, live_file_digest, plan_problem
from icekeeper.demo.measure import TableChecksum, read_checksums

_FILES_QUERY = """
import json, sys
from icekeeper.demo.duckdb_child import connect
paths, s3 = json.load(sys.stdin)
connection = connect(s3)
connection.execute("SET enable_progress_bar = false")
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


_SMALL_BYTES = 192 * 1024 * 1024
"""By default a smaller file is merged: three quarters of 256 MB."""


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
    sorted_by: Sequence[str] = ()
    """Columns by which the rows of every file must be sorted."""


def expected_rows(metadata_location: str) -> TableChecksum:
    """Of the table as it is."""
    (found,) = read_checksums([(metadata_location, None)])
    return found


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
            return _planned(answer)
        if kind in ("orphans", "detected"):
            return _counted(answer, expected)
        if kind == "history":
            return _history(answer, expected)
        if kind == "live_files":
            return _live(answer, expected)
        if kind == "files":
            found, files = _rows_of_files(answer["files"], expected.s3), len(answer["files"])
        else:
            (found,) = read_checksums([(answer["metadata_location"], None)], s3=expected.s3)
            files = live_files(answer["metadata_location"], expected.s3 or {})
    except NotProven:
        raise
    except Exception as error:
        raise NotProven(f"it cannot be read: {error}") from error
    assert expected.rows is not None
    if found != expected.rows:
        raise NotProven(f"DuckDB reads other rows: {found.rows:,} instead of {expected.rows.rows:,}, or other values")
    if expected.sorted_by and (unsorted := _unsorted_files(answer["metadata_location"], expected.sorted_by)):
        raise NotProven(f"{unsorted} of {files} data files are not sorted by {', '.join(expected.sorted_by)}")
    if expected.most_files is not None and files > expected.most_files:
        raise NotProven(f"{files} data files are left, {expected.most_files} are wanted")
    return f"DuckDB: {found.rows:,} rows, checksum as before; {files} data file(s)"


def _planned(answer: Mapping[str, Any]) -> str:
    problem = plan_problem(answer, answer["metadata_location"], _SMALL_BYTES)
    if problem is not None:
        raise NotProven(problem)
    totals = answer["plan"]["totals"]
    return f"DuckDB: {totals['files']:,} small files, each once, in {totals['groups']:,} groups"


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


def live_paths(metadata_location: str) -> list[str]:
    """The local paths of the data files of the current snapshot, as PyIceberg reads its manifests."""
    files = StaticTable.from_metadata(metadata_location).inspect.data_files()["file_path"].to_pylist()
    return [path.removeprefix("file://").removeprefix("file:") for path in files]


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


_ORDER_QUERY = """
import json, sys, duckdb
connection = duckdb.connect()
connection.execute("SET enable_progress_bar = false")
paths, columns = json.load(sys.stdin)
key = "row(" + ", ".join('"' + column + '"' for column in columns) + ")"
unsorted = 0
for path in paths:
    rows = f"SELECT {key} AS key, file_row_number AS n FROM read_parquet('{path}', file_row_number = true)"
    steps = f"SELECT key, lag(key) OVER (ORDER BY n) AS before FROM ({rows})"
    unsorted += connection.execute(f"SELECT count(*) > 0 FROM ({steps}) WHERE key < before").fetchone()[0]
print(int(unsorted))
"""


def _unsorted_files(metadata_location: str, columns: Sequence[str]) -> int:
    """How many of the data files DuckDB does not find sorted by these columns."""
    return int(ask_duckdb(_ORDER_QUERY, [live_paths(metadata_location), list(columns)]))


def _rows_of_files(paths: Sequence[str], s3: Mapping[str, str] | None = None) -> TableChecksum:
    return TableChecksum(**json.loads(ask_duckdb(_FILES_QUERY, [list(paths), s3 and dict(s3)])))


def ask_duckdb(query: str, about: Sequence[Any]) -> str:
    """What a program of DuckDB's prints that gets ``about`` as JSON.

    Raises:
        NotProven: it failed.
    """
    # In a process of its own, as every use of DuckDB here: other versions of it are loaded elsewhere.
    command = [sys.executable, "-c", query]
    done = subprocess.run(command, input=json.dumps(about), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotProven(f"DuckDB cannot read it: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout
