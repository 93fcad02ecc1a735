"""Whether a contestant's result is right, judged by readers that are not ours: DuckDB for rows, PyIceberg for files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import StaticTable

from icekeeper.demo.duckdb_reader import TableChecksum, read_checksum

__all__ = ["Expected", "NotProven", "expected_rows", "prove"]

_FILES_QUERY = """
import json, sys, duckdb
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
scan = "read_parquet([" + ", ".join("'" + path + "'" for path in json.load(sys.stdin)) + "])"
columns = sorted(row[0] for row in connection.execute("DESCRIBE SELECT * FROM " + scan).fetchall())
names = ", ".join('"' + name + '"' for name in columns)
query = "SELECT count(*), coalesce(sum(hash(" + names + ")::HUGEINT), 0) FROM " + scan
rows, total = connection.execute(query).fetchone()
print(json.dumps({"rows": rows, "checksum": format(total, "x")}))
"""


class NotProven(Exception):
    """A result is wrong, or nobody could read it; its time does not count."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the table must hold afterwards."""

    rows: TableChecksum
    bytes: int
    most_files: int | None


def expected_rows(metadata_location: str) -> TableChecksum:
    """Of the table as it is."""
    return read_checksum(metadata_location)


def prove(kind: str, answer: Mapping[str, Any], expected: Expected) -> str:
    """What was found to be right, in words.

    Raises:
        NotProven: something was not.
    """
    if kind == "bytes":
        if answer["bytes"] != expected.bytes:
            raise NotProven(f"{answer['bytes']} bytes instead of {expected.bytes}")
        return f"{expected.bytes:,} bytes"
    try:
        if kind == "files":
            found, files = _rows_of_files(answer["files"]), len(answer["files"])
        else:
            found, files = read_checksum(answer["metadata_location"]), live_files(answer["metadata_location"])
    except Exception as error:
        raise NotProven(f"it cannot be read: {error}") from error
    if found != expected.rows:
        raise NotProven(f"DuckDB reads other rows: {found.rows:,} instead of {expected.rows.rows:,}, or other values")
    if expected.most_files is not None and files > expected.most_files:
        raise NotProven(f"{files} data files are left, {expected.most_files} are wanted")
    return f"DuckDB: {found.rows:,} rows, checksum as before; {files} data file(s)"


def live_files(metadata_location: str) -> int:
    """Data files of the current snapshot, as PyIceberg reads its manifests."""
    return int(StaticTable.from_metadata(metadata_location).inspect.data_files().num_rows)


def _rows_of_files(paths: Sequence[str]) -> TableChecksum:
    # In a process of its own, as every use of DuckDB here: other versions of it are loaded elsewhere.
    done = subprocess.run(
        [sys.executable, "-c", _FILES_QUERY], input=json.dumps(list(paths)), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotProven(f"DuckDB cannot read it: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return TableChecksum(**json.loads(done.stdout))
