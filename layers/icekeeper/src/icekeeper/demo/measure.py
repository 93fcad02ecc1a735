"""What the demonstration compares: a table's files and costs, and its rows as another engine reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.demo.duckdb_reader import Snapshot, TableChecksum, read_checksums
from icekeeper.metadata.reachability import reachable_files
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

__all__ = ["Contents", "Figures", "measure", "read_contents"]


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


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows at the head and at a tag (``None``: the table has none), counted and hashed by DuckDB."""

    head: TableChecksum
    tagged: TableChecksum | None

    def to_json(self) -> dict[str, Any]:
        return {"head": asdict(self.head), "tagged": None if self.tagged is None else asdict(self.tagged)}


def measure(loaded: LoadedTable, storage: Storage) -> Figures:
    """Count a table's files, snapshots and orphans, from its metadata and one listing of its location."""
    metadata = loaded.metadata
    reader = TableReader(metadata, storage.read)
    head = metadata.current_snapshot
    manifests = [] if head is None else [m for m in reader.manifests(head) if m.may_have_live_files]
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    needed = {normalise(path) for path in reachable_files(reader, loaded.metadata_location)}
    listed = list(storage.list(metadata.location))
    # Metadata files that the log no longer names are not counted: they are small, and no writer left them by mistake.
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
    """Read every row of each table with DuckDB, at the head and at its tag, if it has one.

    Raises:
        StorageError: DuckDB cannot read a table.
    """
    snapshots: list[Snapshot] = []
    for loaded, tag in tables:
        snapshots.append((loaded.metadata_location, None))
        if tag is not None:
            snapshots.append((loaded.metadata_location, loaded.metadata.refs[tag].snapshot_id))
    found = iter(read_checksums(snapshots, s3=s3))
    return [Contents(next(found), None if tag is None else next(found)) for _, tag in tables]
