"""A catalog under test with helpers: new tables, their metadata files, parts of a commit."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyiceberg.catalog

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.load import open_catalog
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from support.tables import snapshot

CATALOGS = ["rest", "sql", "sqlalchemy", "s3tables", "glue"]
POINTERS = ["sql", "sqlalchemy", "s3tables", "glue"]
# The property with the address of the catalog.
ENDPOINT = {"rest_lake": "uri", "s3tables_lake": "s3tables.endpoint", "glue_lake": "glue.endpoint"}
VERSIONS = [1, 2, 3]


@dataclass
class Lake:
    """A catalog under test with its helpers."""

    name: str
    properties: dict[str, str]
    create: Callable[[str, int, dict[str, Any]], None]
    """Make table ``ns.NAME`` of a format version, with extra document fields if the catalog accepts them."""
    client: pyiceberg.catalog.Catalog | None = None
    opened: list[Any] = field(default_factory=list)

    def open(self, **more: str) -> Catalog:
        catalog = open_catalog(self.name, {**self.properties, **more})
        self.opened.append(catalog)
        return catalog

    def table(self, version: int = 2, **more: Any) -> TableName:
        name = f"t{uuid.uuid4().hex[:8]}"
        self.create(name, version, more)
        return TableName(("ns",), name)


def metadata_files(table: LoadedTable) -> set[str]:
    storage = Storage(table.io_properties)
    return {item.path for item in storage.list(table.metadata.metadata_directory)}


def set_property(key: str, value: str) -> dict[str, Any]:
    return {"action": "set-properties", "updates": {key: value}}


def main_at(snapshot_id: int | None) -> dict[str, Any]:
    return {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": snapshot_id}


def append(base: LoadedTable, snapshot_id: int) -> list[dict[str, Any]]:
    head = base.metadata.current_snapshot
    raw = snapshot(
        snapshot_id,
        format_version=base.metadata.format_version,
        sequence_number=base.metadata.last_sequence_number + 1,
        timestamp_ms=base.metadata.last_updated_ms + 1,
        parent_id=head.snapshot_id if head else None,
        first_row_id=base.metadata.document.get("next-row-id") or 0,
        added_rows=3,
    )
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    return [{"action": "add-snapshot", "snapshot": raw}, ref]
