"""Unfinished deletions in the state table: an item names the list, its paths lie apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icekeeper.clock import HOUR_MS
from icekeeper.state.dynamodb.items import Item, sort_key, table_key
from icekeeper.state.dynamodb.path_lists import delete_paths, new_list_id, read_paths, write_paths
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.identity import TableIdentity

__all__ = ["DynamoPendingDeletions"]

_PREFIX = "deletions#"
# A hint that nobody took up for so long is of no use; what it named is found by listing.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoPendingDeletions:
    """A :class:`icekeeper.state.pending_deletions.PendingDeletionStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        list_id, expires_s = new_list_id(), self._table.expires_s(_KEPT_MS)
        # The paths first: a list that is named is whole.
        count = write_paths(self._table, list_id, paths, expires_s=expires_s)
        named: Item = {"name": name, "list_id": list_id, "expires_s": expires_s}
        self._replace(identity, name, named if count else REMOVED)

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        return tuple(item["name"] for item in self._table.query(table_key("table", identity), _PREFIX))

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        found = self._table.get(table_key("table", identity), sort_key(_PREFIX, name))
        return iter(()) if found is None else read_paths(self._table, found["list_id"])

    def forget(self, identity: TableIdentity, name: str) -> None:
        self._replace(identity, name, REMOVED)

    def _replace(self, identity: TableIdentity, name: str, wanted: Item) -> None:
        before: Item | None = None

        def decide(found: Item | None) -> Item | None:
            nonlocal before
            before = found
            return wanted if wanted or found else None

        self._table.change(table_key("table", identity), sort_key(_PREFIX, name), decide)
        if before is not None:
            delete_paths(self._table, before["list_id"])
