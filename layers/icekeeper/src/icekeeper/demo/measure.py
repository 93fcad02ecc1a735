"""Measures a table's files and planning cost, and reads its rows with DuckDB, which shares no code with us.

DuckDB runs in a process of its own (:mod:`icekeeper.demo.duckdb_child`), because damaged metadata can make it abort
(platform: duckdb-aborts-on-manifests).  It reads metadata files directly, without a catalog, and never writes,
installs or downloads anything.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import StorageError
from icekeeper.metadata.table_reader import TableReader, reachable_files
from icekeeper.model import ManifestContent
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

_TIMEOUT_S = 600.0
Snapshot: TypeAlias = tuple[str, int | None]
"""A metadata file and the id of a snapshot; ``None`` is the current snapshot."""


@dataclass(frozen=True, slots=True)
class TableChecksum:
    """The rows of one snapshot as a multiset: equal for equal rows, whatever the order of files and columns.

    ``checksum`` is the sum over all rows of a 64-bit hash of all columns, in hexadecimal.  Compare it only with a
    checksum of the same version of DuckDB.
    """

    rows: int
    checksum: str


def read_checksums(snapshots: Sequence[Snapshot], *, s3: Mapping[str, str] | None = None) -> list[TableChecksum]:
    """Count and hash the rows of some snapshots, in their order, by one process.

    Args:
        snapshots: metadata files as local paths, ``file:`` or ``s3://`` addresses; each snapshot is read with the
            schema it was written with.
        s3: PyIceberg's properties ``s3.endpoint``, ``s3.access-key-id``, ``s3.secret-access-key``, ``s3.region`` where
            the tables are on S3; others are ignored, so all properties of a catalog may be given.

    Raises:
        StorageError: DuckDB is not installed, cannot read a table (it names the first), or ended abnormally.
    """
    answers = map(json.loads, _run(snapshots, s3).splitlines())
    return [TableChecksum(rows=answer["rows"], checksum=answer["checksum"]) for answer in answers]


def _run(snapshots: Sequence[Snapshot], s3: Mapping[str, str] | None) -> str:
    """Run the process and return its output: one line per checksum."""
    request = {
        "snapshots": list(snapshots),
        "s3": {key: value for key, value in s3.items() if key.startswith("s3.")} if s3 else None,
    }
    command = [sys.executable, "-P", "-m", "icekeeper.demo.duckdb_child"]  # (rule: no-imports-from-current-folder)
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


@dataclass(frozen=True, slots=True)
class Figures:
    """A table in numbers.  ``planning_requests`` are the objects a query planner opens before it reads data: the
    metadata file, the manifest list, and every manifest with live files."""

    data_files: int
    stored_bytes: int
    snapshots: int
    manifests: int
    orphans: int
    planning_requests: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)


Contents: TypeAlias = tuple[TableChecksum, TableChecksum | None]
"""The rows at the head and at a tag (``None``: the table has none), counted and hashed by DuckDB."""


def measure(loaded: LoadedTable, storage: Storage) -> Figures:
    """Count a table's files, snapshots and orphans, from its metadata and one listing of its location."""
    metadata = loaded.metadata
    reader = TableReader(metadata, storage.read)
    head = metadata.current_snapshot
    manifests = [] if head is None else [m for m in reader.manifests(head) if m.may_have_live_files]
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    needed = {normalise(path) for path in reachable_files(reader, loaded.metadata_location)}
    listed = list(storage.list(metadata.location))
    # Metadata files that left the metadata log are not counted: they are small, and no failed writer left them.
    unknown = [f for f in listed if normalise(f.path) not in needed and not f.path.endswith(".metadata.json")]
    return Figures(
        data_files=sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in data),
        stored_bytes=sum(found.size for found in listed),
        snapshots=len(metadata.snapshots),
        manifests=len(manifests),
        orphans=len(unknown),
        planning_requests=2 + len(manifests),
    )


def read_contents(tables: Sequence[tuple[LoadedTable, str | None]], s3: Mapping[str, str]) -> list[Contents]:
    """Read every row of each table with DuckDB, at the head and at its tag, if it has a tag.

    Raises:
        StorageError: DuckDB cannot read a table.
    """
    snapshots: list[Snapshot] = []
    for loaded, tag in tables:
        snapshots.append((loaded.metadata_location, None))
        if tag is not None:
            snapshots.append((loaded.metadata_location, loaded.metadata.refs[tag].snapshot_id))
    found = iter(read_checksums(snapshots, s3=s3))
    return [(next(found), None if tag is None else next(found)) for _, tag in tables]
