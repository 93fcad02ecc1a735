"""Unfinished deletions in the state table: one item per list, with the id of its paths (``path_lists``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.dynamodb.items import Item, copy_key, sort_key
from icekeeper.state.dynamodb.path_lists import delete_paths, new_list_id, read_paths, write_paths
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.identity import TableIdentity

__all__ = ["DynamoPendingDeletions"]

_PREFIX = "deletions#"
# A list that no run finished for this long expires; orphan removal finds its files by listing.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoPendingDeletions:
    """A :class:`icekeeper.state.store.PendingDeletionStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        list_id, expires_s = new_list_id(), self._table.expires_s(_KEPT_MS)
        # The paths are written first, so that a list that is named is complete.
        count = write_paths(self._table, list_id, paths, expires_s=expires_s)
        named: Item = {"name": name, "list_id": list_id, "expires_s": expires_s}
        self._replace(identity, name, named if count else REMOVED)

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        names = (item["name"] for item in self._table.query(copy_key("copy", identity), _PREFIX))
        return tuple(sorted(names, key=str.encode))

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        found = self._table.get(*_key(identity, name))
        return iter(()) if found is None else read_paths(self._table, found["list_id"])

    def forget(self, identity: TableIdentity, name: str) -> None:
        self._replace(identity, name, REMOVED)

    def _replace(self, identity: TableIdentity, name: str, wanted: Item) -> None:
        before: Item | None = None

        def decide(found: Item | None) -> Item | None:
            nonlocal before
            before = found
            return wanted if wanted or found else None

        self._table.change(*_key(identity, name), decide)
        if before is not None:
            delete_paths(self._table, before["list_id"])


def _key(identity: TableIdentity, name: str) -> tuple[str, str]:
    return copy_key("copy", identity), sort_key(_PREFIX, name)
