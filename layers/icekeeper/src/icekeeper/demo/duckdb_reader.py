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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from icekeeper.errors import StorageError

__all__ = ["Snapshot", "TableChecksum", "read_arrow", "read_checksum", "read_checksums", "read_rows"]

_TIMEOUT_S = 600.0
Snapshot: TypeAlias = tuple[str, int | None]
"""A metadata file and the id of a snapshot; ``None`` is the current one."""


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
    (checksum,) = read_checksums([(metadata_location, snapshot_id)], s3=s3)
    return checksum


def read_checksums(snapshots: Sequence[Snapshot], *, s3: Mapping[str, str] | None = None) -> list[TableChecksum]:
    """The same for many snapshots, in their order, by one process: to start it takes longer than to read a small table.

    Raises:
        StorageError: as above; it names the first one that cannot be read.
    """
    answers = map(json.loads, _run(snapshots, s3, None).splitlines())
    return [TableChecksum(rows=answer["rows"], checksum=answer["checksum"]) for answer in answers]


def read_arrow(
    metadata_location: str, *, s3: Mapping[str, str] | None = None, snapshot_id: int | None = None
) -> pa.Table:
    """Return the rows of a snapshot as an Arrow table, columns in alphabetical order; arguments as above."""
    with tempfile.TemporaryDirectory(prefix="icekeeper-duckdb-") as folder:
        output = Path(folder) / "rows.arrow"
        _run([(metadata_location, snapshot_id)], s3, output)
        with pa.OSFile(str(output)) as source:
            return pa.ipc.open_file(source).read_all()


def read_rows(
    metadata_location: str, *, s3: Mapping[str, str] | None = None, snapshot_id: int | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a snapshot as dictionaries, in no particular order; arguments as above."""
    rows: list[dict[str, Any]] = read_arrow(metadata_location, s3=s3, snapshot_id=snapshot_id).to_pylist()
    return rows


def _run(snapshots: Sequence[Snapshot], s3: Mapping[str, str] | None, output: Path | None) -> str:
    """What the process writes: a line for each checksum or, with an ``output`` for the rows, nothing."""
    request = {
        "snapshots": list(snapshots),
        "s3": {key: value for key, value in s3.items() if key.startswith("s3.")} if s3 else None,
        "output": str(output) if output else None,
    }
    command = [sys.executable, "-P", "-m", "icekeeper.demo.duckdb_child"]  # (rule 295)
    try:  # the request goes through standard input: it holds credentials, which arguments would show to everyone
        answer = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        names = ", ".join(metadata_location for metadata_location, _ in snapshots)
        raise StorageError(f"DuckDB did not read {names} within {_TIMEOUT_S:g} s.") from error
    if answer.returncode == 0:
        return answer.stdout
    metadata_location, _ = snapshots[min(len(answer.stdout.splitlines()), len(snapshots) - 1)]
    if answer.returncode < 0:
        name = signal.Signals(-answer.returncode).name
        raise StorageError(f"DuckDB was ended by {name} while reading {metadata_location}.")
    lines = answer.stderr.strip().splitlines() or ["no message"]
    raise StorageError(f"DuckDB could not read {metadata_location}: {lines[-1]}")
