"""A digest of what plans go by beside a table's snapshots (pure)."""

from __future__ import annotations

import hashlib
import json

from icekeeper.metadata.document import TableMetadata

__all__ = ["table_digest"]

_LENGTH = 16
_SETTINGS = ("format-version", "current-schema-id", "default-spec-id", "default-sort-order-id", "properties")


def table_digest(metadata: TableMetadata) -> str:
    """A digest of format version, current schema, spec and sort order, and of all properties."""
    found = {key: metadata.document.get(key) for key in _SETTINGS}
    # Where a v1 writer left the ids out, these are the current ones.
    if found["current-schema-id"] is None:
        found |= {key: metadata.document.get(key) for key in ("schema", "partition-spec")}
    return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()[:_LENGTH]
