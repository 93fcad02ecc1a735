"""A table in Iceberg-Java's own catalog, which it and we change in turns."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from support.files_on_disk import local_path


@dataclass(frozen=True)
class JavaTable:
    """A table in Iceberg-Java's Hadoop catalog; our commits are handed over as its next metadata file."""

    session: SparkSession
    name: str
    folder: Path

    @classmethod
    def create(cls, session: SparkSession, name: str, ddl: str) -> JavaTable:
        """``ddl`` says ``{table}`` where the name belongs."""
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
        for checksum in metadata.glob(".*.crc"):  # Hadoop's, of files that we replace
            checksum.unlink()
        (metadata / "version-hint.text").write_text(str(version))
        self.sql("REFRESH TABLE {table}")

    def drop(self) -> None:
        self.sql("DROP TABLE {table} PURGE")
