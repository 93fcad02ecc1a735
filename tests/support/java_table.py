"""Tables that Iceberg-Java and Icekeeper change in turn, in Java's catalog or by a shared pointer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.pointer import commit_document, load_document
from icekeeper.errors import CommitConflict
from icekeeper.model import CatalogId, TableName
from icekeeper.storage.storage import Storage
from support.java_writer import JavaTable as WrittenTable
from support.maintained_table import NAME, MaintainedTable, local_path

# A table in Iceberg-Java's catalog, which Java and Icekeeper change in turn.


@dataclass(frozen=True)
class JavaTable:
    """A table in Iceberg-Java's Hadoop catalog, which takes over Icekeeper's commits as its next metadata file."""

    session: SparkSession
    name: str
    folder: Path

    @classmethod
    def create(cls, session: SparkSession, name: str, ddl: str) -> JavaTable:
        """Create a table; ``ddl`` has ``{table}`` in the place of its name."""
        safe = "".join(c if c.isalnum() else "_" for c in name)
        warehouse = Path(session.conf.get("spark.sql.catalog.java.warehouse") or "")
        table = cls(session, safe, warehouse / "db" / safe)
        table.sql(ddl)
        return table

    def sql(self, statement: str) -> list[Any]:
        return self.session.sql(statement.format(table=f"java.db.{self.name}")).collect()

    def call(self, procedure: str, arguments: str = "") -> Any:
        (row,) = self.sql(f"CALL java.system.{procedure}(table => 'db.{self.name}'{arguments})")
        return row

    @property
    def version(self) -> int:
        return int((self.folder / "metadata" / "version-hint.text").read_text())

    @property
    def metadata_location(self) -> str:
        return (self.folder / "metadata" / f"v{self.version}.metadata.json").as_uri().replace("file:///", "file:/", 1)

    def take_over(self, metadata_location: str) -> None:
        metadata, version = self.folder / "metadata", self.version + 1
        shutil.copy(local_path(metadata_location), metadata / f"v{version}.metadata.json")
        for checksum in metadata.glob(".*.crc"):  # Hadoop's checksums of replaced files
            checksum.unlink()
        (metadata / "version-hint.text").write_text(str(version))
        self.sql("REFRESH TABLE {table}")

    def drop(self) -> None:
        self.sql("DROP TABLE {table} PURGE")


# A table that Iceberg-Java and Icekeeper change in turn or at once: both swap the same pointer.


class _JavasPointer:
    """A catalog of one table, at the metadata file of Java's table operations."""

    id = CatalogId("shared", "shared")

    def __init__(self, java: WrittenTable) -> None:
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

        return commit_document(base, requirements, updates, swap=swap, storage=self._storage, load=self.load)


class SharedTable(MaintainedTable):
    """Java's table, maintained by Icekeeper; ``engine.during`` runs between the plan and the commit."""

    def __init__(self, java: WrittenTable, folder: Path) -> None:
        super().__init__(_JavasPointer(java), folder, sweeps_all=True)

    def live_keys(self) -> set[int]:
        """The key columns of live equality deletes."""
        return {field_id for entry in self.entries() for field_id in entry.file.equality_ids or ()}
