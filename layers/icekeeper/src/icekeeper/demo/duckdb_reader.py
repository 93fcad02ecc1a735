"""Read a table with DuckDB: an Iceberg implementation that shares no code with ours.

DuckDB runs in a process of its own (:mod:`icekeeper.demo.duckdb_child`), because damaged metadata can make it abort.
It reads metadata files directly, without a catalog, and never writes, installs or downloads anything (platform 18).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from icekeeper.errors import StorageError

__all__ = ["TableChecksum", "read_arrow", "read_checksum", "read_rows"]

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class TableChecksum:
    """The rows of one snapshot as a multiset: equal for equal rows in any order, of files and of columns.

    ``checksum`` is the sum over all rows of a 64-bit hash of all columns, in hexadecimal.  It may be compared only with
    one made by the same version of DuckDB.
    """

    rows: int
    checksum: str


def read_checksum(
    metadata_location: str, *, s3: Mapping[str, str] | None = None, snapshot_id: int | None = None
) -> TableChecksum:
    """Count and hash the rows of a snapshot (the current one unless named) in one streaming query.

    Args:
        metadata_location: the table metadata file, as a local path, ``file:`` or ``s3://`` address.
        s3: PyIceberg's properties ``s3.endpoint``, ``s3.access-key-id``, ``s3.secret-access-key``, ``s3.region`` where
            the table is on S3; others are ignored, so a catalog's properties may be given whole.
        snapshot_id: read this snapshot, with the schema it was written with.

    Raises:
        StorageError: DuckDB is not installed, cannot read the table, or ended abnormally.
    """
    answer = json.loads(_run("checksum", metadata_location, s3, snapshot_id, None))
    return TableChecksum(rows=answer["rows"], checksum=answer["checksum"])


def read_arrow(
    metadata_location: str, *, s3: Mapping[str, str] | None = None, snapshot_id: int | None = None
) -> pa.Table:
    """Return the rows of a snapshot as an Arrow table, columns in alphabetical order; arguments as above."""
    with tempfile.TemporaryDirectory(prefix="icekeeper-duckdb-") as folder:
        output = Path(folder) / "rows.arrow"
        _run("rows", metadata_location, s3, snapshot_id, output)
        with pa.OSFile(str(output)) as source:
            return pa.ipc.open_file(source).read_all()


def read_rows(
    metadata_location: str, *, s3: Mapping[str, str] | None = None, snapshot_id: int | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a snapshot as dictionaries, in no particular order; arguments as above."""
    rows: list[dict[str, Any]] = read_arrow(metadata_location, s3=s3, snapshot_id=snapshot_id).to_pylist()
    return rows


def _run(
    what: str, metadata_location: str, s3: Mapping[str, str] | None, snapshot_id: int | None, output: Path | None
) -> str:
    request = {
        "what": what,
        "metadata_location": metadata_location,
        "snapshot_id": snapshot_id,
        "s3": {key: value for key, value in s3.items() if key.startswith("s3.")} if s3 else None,
        "output": str(output) if output else None,
    }
    command = [sys.executable, "-m", "icekeeper.demo.duckdb_child"]
    try:  # the request goes through standard input: it holds credentials, which arguments would show to everyone
        answer = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"DuckDB did not read {metadata_location} within {_TIMEOUT_S:g} s.") from error
    if answer.returncode == 0:
        return answer.stdout
    if answer.returncode < 0:
        name = signal.Signals(-answer.returncode).name
        raise StorageError(f"DuckDB was ended by {name} while reading {metadata_location}.")
    lines = answer.stderr.strip().splitlines() or ["no message"]
    raise StorageError(f"DuckDB could not read {metadata_location}: {lines[-1]}")
