"""Items of the state table: plain values in, DynamoDB's attribute values out, and keys that fit its limits.

Numbers are ints (DynamoDB keeps 38 digits); what holds fractions is stored as JSON text and comes back equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from icekeeper.errors import PolicyError, StorageError
from icekeeper.state.identity import TableIdentity

__all__ = [
    "REQUESTS",
    "Item",
    "catalog_key",
    "copy_key",
    "damaged",
    "decoded",
    "encoded",
    "json_text",
    "named_key",
    "seen_key",
    "sort_key",
    "table_key",
    "understood",
]

Item: TypeAlias = dict[str, Any]

# Service quotas of Amazon DynamoDB, in bytes of UTF-8.
_LONGEST_PARTITION_KEY = 2048
_LONGEST_SORT_KEY = 1024

_TYPE_NAMES = {"N": "whole number", "S": "text", "BOOL": "boolean", "B": "binary"}
# The types of what is computed with, parsed or compared; what else is in an item is told of or unknown.
_TYPES = {
    name: kind
    for kind, names in {
        "N": "until_ms changed_ms run_out_ms seen_ms counted_ms ended_ms observed_ms requested_ms started_ms "
        "finished_ms first_seen_ms tried_ms snapshot_id seen_sequence_number file_count turn sightings",
        "S": "name holder kind origin state prefixes list_id metadata_location fingerprint slack version entry folder "
        "folders data_roots uuid location counters warnings policy metrics settings table_name catalog warehouse "
        "schedule run_id status summary engine path why schema_digest look",
        "BOOL": "idle",
        "B": "paths",
    }.items()
    for name in names.split()
}


def encoded(item: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """DynamoDB's attribute values for text, whole numbers, booleans, bytes and sets of text; ``None`` is left out."""
    return {name: _encoded(value) for name, value in item.items() if value is not None}


def decoded(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    """The values of an item that :func:`encoded` made, which tell what the item lacks (rule 164).

    Raises:
        StorageError: an attribute that this package writes is of another type, also when a missing one is looked up.
    """
    item = _FoundItem()
    for name, attribute in attributes.items():
        ((kind, value),) = attribute.items()
        if kind != (wanted := _TYPES.get(name, kind)) or (kind == "N" and name in _TYPES and not _is_whole(value)):
            raise damaged(_key_of(attributes), f"its {name} is no {_TYPE_NAMES[wanted]}")
        item[name] = _decoded(kind, value)
    return item


def damaged(item: Mapping[str, Any], what: str) -> StorageError:
    """What to raise about an item of the state table that cannot be understood: its key, and what to do."""
    return StorageError(
        f"the item {item.get('pk', '?')} / {item.get('sk', '?')} of the state table is damaged ({what}); "
        "restore it from a backup, or delete it, and make again the pin or staged load that it held before anything "
        "is deleted"
    )


@contextmanager
def understood(item: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, values of the item that cannot be made sense of are told as damage (rule 164).

    Raises:
        StorageError: the block raised an error about a value.
    """
    try:
        yield
    except (AttributeError, OverflowError, PolicyError, RecursionError, TypeError, ValueError) as error:
        raise damaged(item, str(error)) from error


class _FoundItem(Item):
    """An item as it was read: looking up what it lacks tells its key."""

    def __missing__(self, name: str) -> Any:
        raise damaged(self, f"it has no {name}")


REQUESTS = "requests#all"
"""The partition of requests.  People may be allowed to write it, and no other one (docs/requests.md)."""


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


def _decoded(kind: str, value: Any) -> Any:
    match kind:
        case "N":
            return int(value) if _is_whole(value) else value  # an attribute that is not ours
        case "SS":
            return frozenset(value)
        case _:
            return value


def _is_whole(number: str) -> bool:
    return number.removeprefix("-").isdecimal()


def _key_of(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    return {name: next(iter(attributes[name].values())) for name in ("pk", "sk") if name in attributes}
