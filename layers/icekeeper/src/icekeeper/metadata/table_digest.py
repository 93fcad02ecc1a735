"""Digests of what plans go by beside a table's snapshots, and of what files are read by (pure)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from icekeeper.metadata.document import NAME_MAPPING, TableMetadata

__all__ = ["schema_digest", "table_digest"]

_LENGTH = 16
_SETTINGS = ("format-version", "current-schema-id", "default-spec-id", "default-sort-order-id", "properties")


def table_digest(metadata: TableMetadata) -> str:
    """A digest of format version, current schema, spec and sort order, and of all properties."""
    found = {key: metadata.document.get(key) for key in _SETTINGS}
    # Where a v1 writer left the ids out, these are the current ones.
    if found["current-schema-id"] is None:
        found |= {key: metadata.document.get(key) for key in ("schema", "partition-spec")}
    return _digest(found)


def schema_digest(metadata: TableMetadata) -> str:
    """A digest of what data files are read by: the current schema, and the name mapping."""
    return _digest({"schema": metadata.current_schema, "mapping": metadata.properties.get(NAME_MAPPING)})


def _digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:_LENGTH]
