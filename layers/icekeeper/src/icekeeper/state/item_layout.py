"""The layout of items: partition keys, sort keys and lists of paths, in DynamoDB and in SQLite alike.

The quotas are DynamoDB's; a SQLite file keeps them too, so that one contract holds for both.  docs/state.md says how
long records are kept.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.model import CatalogId
from icekeeper.state.identity import TableIdentity
from icekeeper.state.items import Item, ItemTable, named, understood

KEPT_MS = 400 * 24 * HOUR_MS
"""Records of tables that are gone expire after this time.  Pending deletions and orphans are then found again by
listing, and unreadable files by the next pass."""

# Service quotas of Amazon DynamoDB, in bytes of UTF-8.
_LONGEST_PARTITION_KEY = 2048
_LONGEST_SORT_KEY = 1024

REQUESTS = "requests#all"
"""The partition of requests, the only partition that people may be allowed to write (docs/requests.md)."""


def named_key(kind: str, name: str) -> str:
    """The partition of one kind of record under a name."""
    return _fitted(f"{kind}#{name}", _LONGEST_PARTITION_KEY)


def table_key(identity: TableIdentity) -> str:
    """The partition of everything that detection reads about a table in one query, such as pins and staged loads."""
    return named_key("table", identity.key)


def copy_key(identity: TableIdentity) -> str:
    """The partition of the records about one copy of a table."""
    return named_key("copy", json.dumps([identity.key, identity.place], ensure_ascii=False))


def now_prefix(kind: str, identity: TableIdentity) -> str:
    """The prefix of the sort keys, in the partition of a table, of one kind of record about one copy of it."""
    return f"now#{kind}#{digest(identity.place)}"


@lru_cache(maxsize=64)
def catalog_key(kind: str, catalog: CatalogId) -> str:
    """The partition of one kind of record about all tables of a catalog."""
    return named_key(kind, json.dumps(catalog, ensure_ascii=False))


def sort_key(prefix: str, text: str) -> str:
    """A sort key; keys are ordered as their texts, if these differ in the first 900 bytes."""
    return _fitted(f"{prefix}{text}", _LONGEST_SORT_KEY)


def digest(text: str) -> str:
    """A part of a key, for text that may be long."""
    return hashlib.sha256(text.encode()).hexdigest()


def _fitted(key: str, limit: int) -> str:
    """A key above ``limit`` bytes is cut, and ends with a digest of the whole key."""
    try:
        full = key.encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{key!r} is not text that the state can store") from error
    if len(full) <= limit:
        return key
    end = hashlib.sha256(full).hexdigest()
    return f"{full[: limit - len(end) - 1].decode(errors='ignore')}~{end}"


_sorted_json = json.JSONEncoder(sort_keys=True).encode


def json_text(values: Mapping[str, Any]) -> str:
    """The mapping as JSON; equal mappings have equal text."""
    return _sorted_json(dict(values))


# A list of paths may be very long, so it is stored in compressed parts in its own partition.  An item of DynamoDB has
# at most 400 KB; a part stays below that even uncompressed.
_BYTES_PER_PART = 300_000
_PATHS_PER_PART = 1000


def new_list_id() -> str:
    """A new id for a list; if a slow writer adds to a list that was replaced, the new list is not affected."""
    return uuid.uuid4().hex


def write_paths(
    table: ItemTable, list_id: str, paths: Iterable[str], *, call: int = 0, expires_s: int | None = None
) -> int:
    """Add paths to a list and return their number; ``call`` numbers the calls that add to one list."""
    count = 0

    def items() -> Iterator[Item]:
        nonlocal count
        for number, part in enumerate(_parts(paths)):
            count += len(part)
            packed = zlib.compress(json.dumps(part).encode())
            yield {"pk": _list_key(list_id), "sk": f"{call:09d}#{number:09d}", "paths": packed, "expires_s": expires_s}

    table.put_all(items())
    return count


def read_paths(table: ItemTable, list_id: str) -> Iterator[Sequence[str]]:
    """The paths of a list, at most a thousand at a time, in the order in which they were recorded."""
    for part in table.query(_list_key(list_id)):
        limits = FileLimits(named(part))
        with understood(part):
            paths: list[str] = parsed_json(limits.unpack("zlib", part["paths"]), limits)
        yield paths


def delete_paths(table: ItemTable, list_id: str) -> None:
    """Remove a list."""
    table.clear(_list_key(list_id))


def _list_key(list_id: str) -> str:
    return f"paths#{list_id}"


def _parts(paths: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for path in paths:
        length = len(json.dumps(path)) + 2
        if part and (size + length > _BYTES_PER_PART or len(part) == _PATHS_PER_PART):
            yield part
            part, size = [], 0
        part.append(path)
        size += length
    if part:
        yield part
