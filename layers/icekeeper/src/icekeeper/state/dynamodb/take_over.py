"""Moves the partitions of earlier versions into a table's own, once no earlier version runs any more."""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.state.dynamodb.earlier import EarlierPartitions
from icekeeper.state.dynamodb.items import Item, copy_key, seen_key, sort_key, table_key
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import TableIdentity

__all__ = ["EARLIER_SEEN", "take_over"]

EARLIER_SEEN = "now#seen"
"""The sort key under which earlier versions remembered what the last pass saw."""
# All but the journal, which may be long: its items stay where they are until they expire.
_TAKEN = ("now#", "clustering#", "deletions#")
# Two names of a table may each have had a pin of one name.
_NAMED = ("now#pin#", "now#load#", "deletions#")
_NAMES = 9


def take_over(table: DynamoTable, earlier: EarlierPartitions, identity: TableIdentity) -> None:
    """Move the items that earlier versions wrote for a table into its own partitions; most tables have none.

    Each item is moved atomically: at every moment it is in one place, and found.

    Raises:
        StorageError: the table cannot be used; items that were not moved still hold where they are.
    """
    for partition in earlier.to_take_over(identity):
        items = [item for prefix in _TAKEN for item in table.query(partition, prefix)]
        taken = [_take(table, item, identity) for item in items]
        if all(taken):
            earlier.forget(identity, partition)


def _take(table: DynamoTable, item: Item, identity: TableIdentity) -> bool:
    """Move one item; returns false when somebody changed it at this moment, so that the next pass moves it."""
    if any(table.move(item, moved) for moved in _moved(item, identity)):
        return True
    if "name" in item:
        return False
    table.delete(item["pk"], item["sk"])  # the new key has a newer item
    return True


def _moved(item: Item, identity: TableIdentity) -> Iterator[Item]:
    """The item under its new key, then under further names in case its name is taken."""
    sk: str = item["sk"]
    if sk == EARLIER_SEEN:
        pk, sk = seen_key(identity)
        yield {**item, "pk": pk, "sk": sk}
        return
    pk = table_key(identity) if sk.startswith("now#") else copy_key("copy", identity)
    yield {**item, "pk": pk}
    if "name" in item:
        prefix = next(prefix for prefix in _NAMED if sk.startswith(prefix))
        for number in range(2, _NAMES + 1):
            name = f"{item['name']}-{number}"
            yield {**item, "pk": pk, "sk": sort_key(prefix, name), "name": name}
