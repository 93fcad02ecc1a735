"""Many items per request: up to 25 are written or 100 read, and items that DynamoDB left unprocessed are sent again.

The numbers are DynamoDB's (API reference, BatchWriteItem and BatchGetItem).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.items import Item, decoded, encoded
from icekeeper.state.dynamodb.table import DynamoTable

__all__ = ["delete_all", "get_all", "put_all"]

_WRITES = 25
_READS = 100
_ATTEMPTS = 30


def put_all(table: DynamoTable, items: Iterable[Item]) -> None:
    """Write items with different keys, replacing those there; when the call fails, some of them may be written."""
    _write(table, ({"PutRequest": {"Item": encoded(item)}} for item in items))


def delete_all(table: DynamoTable, keys: Iterable[tuple[str, str]]) -> None:
    """Remove the items of different keys, if they are there."""
    _write(table, ({"DeleteRequest": {"Key": encoded({"pk": pk, "sk": sk})}} for pk, sk in keys))


def get_all(table: DynamoTable, keys: Iterable[tuple[str, str]]) -> Iterator[Item]:
    """The items under different keys, as far as there are any, in no particular order."""
    pending = iter(keys)
    while some := [encoded({"pk": pk, "sk": sk}) for pk, sk in islice(pending, _READS)]:
        asked: dict[str, Any] = {table.name: {"Keys": some, "ConsistentRead": True}}
        for attempt in range(_ATTEMPTS):
            with table.translated():
                answer = table.client.batch_get_item(RequestItems=asked)
            yield from map(decoded, answer["Responses"].get(table.name, ()))
            asked = answer.get("UnprocessedKeys") or {}
            if not asked:
                break
            table.pause(attempt)
        else:
            raise StorageError(f"the state table {table.name} does not keep up: items were left unread")


def _write(table: DynamoTable, requests: Iterator[dict[str, Any]]) -> None:
    while some := list(islice(requests, _WRITES)):
        asked: dict[str, Any] = {table.name: some}
        for attempt in range(_ATTEMPTS):
            with table.translated():
                answer = table.client.batch_write_item(RequestItems=asked)
            asked = answer.get("UnprocessedItems") or {}
            if not asked:
                break
            table.pause(attempt)
        else:
            raise StorageError(f"the state table {table.name} does not keep up: items were left unwritten")
