"""A table that Iceberg-Java and we change in turns, or at once: both swap the same pointer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.pointer import PointerCatalog, commit_document, load_document
from icekeeper.errors import CommitConflict
from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from support.java_writer import JavaTable
from support.maintained_table import NAME, MaintainedTable


class _JavasPointer:
    """A catalog of one table: where Java's table operations are, there is the table."""

    name = "shared"
    warehouse = "shared"

    def __init__(self, java: JavaTable) -> None:
        self._java = java
        self._storage = Storage({})

    built_in_maintenance = None

    def list_tables(self) -> Iterator[TableName]:
        yield NAME

    def load(self, table: TableName) -> LoadedTable:
        location = self._java.metadata_location
        return LoadedTable(table, load_document(self._storage, location), location, location, {})

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        def swap(location: str) -> str:
            if self._java.metadata_location != base.token:
                raise CommitConflict("Java was faster")
            self._java.take_over(location)
            return location

        pointers = PointerCatalog(storage=self._storage, load=self.load, clock=system_clock)
        return commit_document(pointers, base, requirements, updates, swap=swap)


class SharedTable(MaintainedTable):
    """Java's table under our maintenance; ``engine.during`` runs between the plan and the commit."""

    def __init__(self, java: JavaTable, folder: Path) -> None:
        super().__init__(_JavasPointer(java), folder, sweeps_all=True)

    def live_keys(self) -> set[int]:
        """Columns that live equality deletes go by."""
        return {field_id for entry in self.entries() for field_id in entry.file.equality_ids or ()}
