"""Table metadata documents for tests, as an engine writes them."""

from __future__ import annotations

import uuid
from typing import Any

CREATED_MS = 1_700_000_000_000


def new_document(location: str, format_version: int, **more: Any) -> dict[str, Any]:
    """An empty table with one column.  As in Iceberg 0.9, a v1 document has no refs and no sequence numbers."""
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
    document: dict[str, Any] = {
        "format-version": format_version,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-updated-ms": CREATED_MS,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [schema],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": -1,
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    if format_version == 1:
        document |= {"schema": schema, "partition-spec": []}
    else:
        document |= {"last-sequence-number": 0, "refs": {}}
    if format_version == 3:
        document |= {"current-snapshot-id": None, "next-row-id": 0}
    return document | more


def snapshot(
    snapshot_id: int,
    *,
    format_version: int,
    sequence_number: int = 1,
    timestamp_ms: int = CREATED_MS + 1000,
    parent_id: int | None = None,
    first_row_id: int = 0,
    added_rows: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """A snapshot whose manifest list need not exist, because catalogs do not read it."""
    raw: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "timestamp-ms": timestamp_ms,
        "summary": {"operation": "append"},
        "manifest-list": f"s3://nowhere/snap-{snapshot_id}.avro",
        "schema-id": 0,
    }
    if parent_id is not None:
        raw["parent-snapshot-id"] = parent_id
    if format_version > 1:
        raw["sequence-number"] = sequence_number
    if format_version > 2:
        raw |= {"first-row-id": first_row_id, "added-rows": added_rows}
    return raw | more
