"""Items of the state table: plain values in, DynamoDB's attribute values out, and keys that fit its limits.

Numbers are ints (DynamoDB keeps 38 digits); what holds fractions is stored as JSON text and comes back equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from icekeeper.errors import StorageError
from icekeeper.state.identity import TableIdentity

__all__ = [
    "REQUESTS",
    "Item",
    "catalog_key",
    "copy_key",
    "decoded",
    "encoded",
    "json_text",
    "named_key",
    "seen_key",
    "sort_key",
    "table_key",
]

Item: TypeAlias = dict[str, Any]

# Service quotas of Amazon DynamoDB, in bytes of UTF-8.
_LONGEST_PARTITION_KEY = 2048
_LONGEST_SORT_KEY = 1024


def encoded(item: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """DynamoDB's attribute values for text, whole numbers, booleans, bytes and sets of text; ``None`` is left out."""
    return {name: _encoded(value) for name, value in item.items() if value is not None}


def decoded(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    """The values of an item that :func:`encoded` made."""
    return {name: _decoded(value) for name, value in attributes.items()}


REQUESTS = "requests#all"
"""The partition of requests.  People may be allowed to write keys with this prefix and no others (docs/requests.md)."""


def named_key(kind: str, name: str) -> str:
    """The partition that holds one kind of thing under a name."""
    return _fitted(f"{kind}#{name}", _LONGEST_PARTITION_KEY)


def table_key(identity: TableIdentity) -> str:
    """The partition with a table's pins and staged loads, and with what else detection reads in the same query."""
    return named_key("table", identity.key)


def copy_key(kind: str, identity: TableIdentity) -> str:
    """The partition that holds one kind of thing about one copy of a table."""
    return named_key(kind, json.dumps([identity.key, identity.place], ensure_ascii=False))


def seen_key(identity: TableIdentity) -> tuple[str, str]:
    """Partition and sort key of what the last pass over one copy saw; in the partition of :func:`table_key`."""
    return table_key(identity), f"now#seen#{hashlib.sha256(identity.place.encode()).hexdigest()}"


def catalog_key(kind: str, catalog: str, warehouse: str) -> str:
    """The partition that holds one kind of thing about all tables of a catalog."""
    return named_key(kind, json.dumps([catalog, warehouse], ensure_ascii=False))


def sort_key(prefix: str, text: str) -> str:
    """A sort key of prefix and text; keys are in the order of their texts, if these differ in the first 900 bytes."""
    return _fitted(f"{prefix}{text}", _LONGEST_SORT_KEY)


def json_text(values: Mapping[str, Any]) -> str:
    """The mapping as JSON with sorted keys: equal mappings have equal text."""
    return json.dumps(dict(values), sort_keys=True)


def _fitted(key: str, limit: int) -> str:
    """The key, at most ``limit`` bytes long: a longer one is cut and ends with a digest of the whole."""
    try:
        full = key.encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{key!r} is no text that DynamoDB can keep") from error
    if len(full) <= limit:
        return key
    digest = hashlib.sha256(full).hexdigest()
    return f"{full[: limit - len(digest) - 1].decode(errors='ignore')}~{digest}"


def _encoded(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case bytes():
            return {"B": value}
        case frozenset():
            return {"SS": sorted(value)}
        case _:
            return {"S": str(value)}


def _decoded(attribute: Mapping[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    match kind:
        case "N":
            return int(value)
        case "SS":
            return frozenset(value)
        case _:
            return value
