"""Unfinished deletions in the state table: one item per list, with the id of its paths (``path_lists``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from icekeeper.clock import HOUR_MS
from icekeeper.state.dynamodb.earlier import EarlierPartitions
from icekeeper.state.dynamodb.items import Item, copy_key, sort_key
from icekeeper.state.dynamodb.path_lists import delete_paths, new_list_id, read_paths, write_paths
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.identity import TableIdentity

__all__ = ["DynamoPendingDeletions"]

_PREFIX = "deletions#"
# A list that no run finished for this long expires; orphan removal finds its files by listing.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoPendingDeletions:
    """A :class:`icekeeper.state.pending_deletions.PendingDeletionStore`."""

    def __init__(self, table: DynamoTable, earlier: EarlierPartitions) -> None:
        self._table = table
        self._earlier = earlier

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        list_id, expires_s = new_list_id(), self._table.expires_s(_KEPT_MS)
        # The paths are written first, so that a list that is named is complete.
        count = write_paths(self._table, list_id, paths, expires_s=expires_s)
        named: Item = {"name": name, "list_id": list_id, "expires_s": expires_s}
        own, *others = self._partitions(identity)
        self._replace(own, name, named if count else REMOVED)
        for partition in others:
            self._replace(partition, name, REMOVED)

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        partitions = self._partitions(identity)
        names = (item["name"] for partition in partitions for item in self._table.query(partition, _PREFIX))
        return tuple(sorted(set(names), key=str.encode))

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        for partition in self._partitions(identity):
            found = self._table.get(partition, sort_key(_PREFIX, name))
            if found is not None:
                return read_paths(self._table, found["list_id"])
        return iter(())

    def forget(self, identity: TableIdentity, name: str) -> None:
        for partition in self._partitions(identity):
            self._replace(partition, name, REMOVED)

    def _partitions(self, identity: TableIdentity) -> tuple[str, ...]:
        """The partitions that may hold lists of this copy; new ones go into the first."""
        return copy_key("copy", identity), *self._earlier.of_namesake(identity)

    def _replace(self, partition: str, name: str, wanted: Item) -> None:
        before: Item | None = None

        def decide(found: Item | None) -> Item | None:
            nonlocal before
            before = found
            return wanted if wanted or found else None

        self._table.change(partition, sort_key(_PREFIX, name), decide)
        if before is not None:
            delete_paths(self._table, before["list_id"])
