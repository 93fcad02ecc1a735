"""Lists of paths in the state table, which may be very long: each has compressed parts in a partition of its own.

A list has an id that is used only once.  So parts that a slow writer adds to a list that was replaced meanwhile never
become part of the new list.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence

from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.state.dynamodb.batches import delete_all, put_all
from icekeeper.state.dynamodb.items import Item, understood
from icekeeper.state.dynamodb.table import DynamoTable

__all__ = ["delete_paths", "new_list_id", "read_paths", "write_paths"]

# An item may have 400 KB; the parts stay below it even where nothing can be compressed.
_BYTES_PER_PART = 300_000
_PATHS_PER_PART = 1000


def new_list_id() -> str:
    """An id that no list has had."""
    return uuid.uuid4().hex


def write_paths(
    table: DynamoTable, list_id: str, paths: Iterable[str], *, call: int = 0, expires_s: int | None = None
) -> int:
    """Add paths to a list and return how many.

    ``call`` numbers the calls that add to one list: parts of different calls have different keys, in their order.
    """
    count = 0

    def items() -> Iterator[Item]:
        nonlocal count
        for number, part in enumerate(_parts(paths)):
            count += len(part)
            packed = zlib.compress(json.dumps(part).encode())
            yield {"pk": _key(list_id), "sk": f"{call:09d}#{number:09d}", "paths": packed, "expires_s": expires_s}

    put_all(table, items())
    return count


def read_paths(table: DynamoTable, list_id: str) -> Iterator[Sequence[str]]:
    """The paths of a list, at most a thousand at a time, in the order of their recording."""
    for part in table.query(_key(list_id)):
        limits = FileLimits(f"the item {part['pk']} / {part['sk']} of the state table")
        with understood(part):
            paths: list[str] = parsed_json(limits.unpack("zlib", part["paths"]), limits)
        yield paths


def delete_paths(table: DynamoTable, list_id: str) -> None:
    """Remove the parts of a list."""
    delete_all(table, ((part["pk"], part["sk"]) for part in table.query(_key(list_id), attributes=("pk", "sk"))))


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


def _key(list_id: str) -> str:
    return f"paths#{list_id}"
