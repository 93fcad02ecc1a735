"""What a metadata file needs and says, as PyIceberg reads it; none of our own code is asked."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

Rows = tuple[int, ...]
"""The ids that a snapshot holds, sorted."""


@functools.lru_cache(maxsize=50_000)
def real_path(path: str) -> str:
    """Where a file lies, whatever its address looks like and through whatever links it is reached.

    The links of a case are there before its first table, and nothing changes them.
    """
    if path.startswith("file:"):
        path = unquote("/" + path.removeprefix("file:").lstrip("/"))
    return os.path.realpath(path)


@dataclass(frozen=True, slots=True)
class Sight:
    """One metadata file, read once: files keep what they hold for as long as they are there."""

    metadata: TableMetadata
    needed: frozenset[str]
    """Real paths of all that its snapshots and statistics need, its own included."""
    of_snapshot: dict[int, frozenset[str]]
    rows: dict[int, Rows]
    """By snapshot; one that needs a file that is gone is missing."""

    @property
    def missing(self) -> frozenset[str]:
        return frozenset(path for path in self.needed if not os.path.exists(path))

    @property
    def current(self) -> int | None:
        return self.metadata.current_snapshot_id

    @property
    def ancestors(self) -> frozenset[str]:
        """Real paths of the metadata files that this one came from, as far as its log goes."""
        return frozenset(real_path(entry.metadata_file) for entry in self.metadata.metadata_log)


class Witness:
    """Reads; remembers what immutable files said, so that a case does not read them at every step."""

    def __init__(self) -> None:
        self._sights: dict[str, Sight] = {}
        self._lists: dict[str, frozenset[str]] = {}
        self._entries: dict[str, tuple[str, ...]] = {}
        self._ids: dict[str, Rows] = {}

    def look(self, location: str) -> Sight | None:
        """``None``: the metadata file itself is gone."""
        path = real_path(location)
        if path not in self._sights:
            if not os.path.exists(path):
                return None
            self._sights[path] = self._read(path)
        return self._sights[path]

    def _read(self, path: str) -> Sight:
        table = StaticTable.from_metadata(Path(path).as_uri())
        of_snapshot, rows = {}, {}
        for snapshot in table.metadata.snapshots:
            needed, data = self._snapshot(table, snapshot)
            of_snapshot[snapshot.snapshot_id] = frozenset(needed)
            if data is not None:
                rows[snapshot.snapshot_id] = data
        statistics = (*table.metadata.statistics, *table.metadata.partition_statistics)
        named = {real_path(file.statistics_path) for file in statistics}
        needed_by_all = frozenset({path}).union(named, *of_snapshot.values())
        return Sight(table.metadata, needed_by_all, of_snapshot, rows)

    def _snapshot(self, table: StaticTable, snapshot: Snapshot) -> tuple[set[str], Rows | None]:
        """What it needs, and its rows; the rows of one that is broken are not known."""
        list_path = real_path(snapshot.manifest_list)
        needed, is_broken = {list_path}, False
        ids: list[int] = []
        if list_path not in self._lists:
            if not os.path.exists(list_path):
                return needed, None
            self._lists[list_path] = frozenset(self._read_list(table, snapshot))
        for manifest in self._lists[list_path]:
            needed.add(manifest)
            is_broken |= manifest not in self._entries
            for file in self._entries.get(manifest, ()):
                needed.add(file)
                found = self._ids_in(file)
                is_broken |= found is None
                ids += found or ()
        return needed, None if is_broken else tuple(sorted(ids))

    def _read_list(self, table: StaticTable, snapshot: Snapshot) -> set[str]:
        found = set()
        for manifest in snapshot.manifests(table.io):
            path = real_path(manifest.manifest_path)
            found.add(path)
            if path not in self._entries and os.path.exists(path):
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                files = [entry.data_file for entry in entries]
                assert all(file.content is DataFileContent.DATA for file in files), "no writer here writes deletes"
                self._entries[path] = tuple(real_path(file.file_path) for file in files)
        return found

    def _ids_in(self, path: str) -> Rows | None:
        if path not in self._ids:
            if not os.path.exists(path):
                return None
            self._ids[path] = tuple(pq.read_table(path, columns=["id"])["id"].to_pylist())
        return self._ids[path]

    def live_ids(self, path: str) -> Rows:
        """The rows of a data file that is there."""
        found = self._ids_in(path)
        assert found is not None, f"{path} is gone"
        return found

    @staticmethod
    def scan(location: str) -> Rows:
        """The rows at the head, by a real scan that trusts nothing remembered."""
        table = StaticTable.from_metadata(location)
        return tuple(sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()))

    @staticmethod
    def number(location: str) -> int:
        """Its generation: the number that every commit counts up in the name of the metadata file."""
        return int(real_path(location).rpartition("/")[2].partition("-")[0])
