"""Lake stats in the state table: those of a catalog lie in one partition, of which a request reads a megabyte."""

from __future__ import annotations

import json
from collections.abc import Iterator

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import TableName
from icekeeper.state.dynamodb.batches import put_all
from icekeeper.state.dynamodb.items import Item, catalog_key, json_text, sort_key, understood
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LakeStats

__all__ = ["DynamoLakeStats"]

# Stats expire when their table was not seen for this long.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoLakeStats:
    """A :class:`icekeeper.state.store.LakeStatsStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def record(self, *stats: LakeStats) -> None:
        items = {_key(one.identity): self._item(one) for one in stats}
        put_all(self._table, items.values())  # which bear no key twice

    def _item(self, stats: LakeStats) -> Item:
        pk, sk = _key(stats.identity)
        return {
            "pk": pk,
            "sk": sk,
            "table_name": stats.identity.table.key,
            "uuid": stats.identity.uuid,
            "location": stats.identity.location,
            "observed_ms": stats.observed_ms,
            "snapshot_id": stats.snapshot_id,
            "counters": json_text(stats.counters),
            "warnings": json_text(stats.warnings),
            "policy": json_text(stats.policy),
            "expires_s": self._table.expires_s(_KEPT_MS, at_least_ms=stats.observed_ms),
        }

    def of_table(self, identity: TableIdentity) -> LakeStats | None:
        item = self._table.get(*_key(identity))
        return None if item is None else _stats(identity, item)

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        for item in self._table.query(catalog_key("lake", catalog, warehouse)):
            with understood(item):
                table, location = TableName.recorded(item["table_name"]), item["location"]
            identity = TableIdentity(catalog, warehouse, table, item["uuid"], location)
            yield _stats(identity, item)

    def forget(self, identity: TableIdentity) -> None:
        self._table.delete(*_key(identity))


def _key(identity: TableIdentity) -> tuple[str, str]:
    # The separator sorts before every character of a name, so that tables are ordered by name.
    sk = sort_key("", f"{identity.table.key}\x1f{identity.uuid}")
    return catalog_key("lake", identity.catalog, identity.warehouse), sk


def _stats(identity: TableIdentity, item: Item) -> LakeStats:
    with understood(item):
        return LakeStats(
            identity=identity,
            observed_ms=item["observed_ms"],
            snapshot_id=item.get("snapshot_id"),
            counters=json.loads(item["counters"]),
            warnings=json.loads(item["warnings"]),
            policy=json.loads(item["policy"]),
        )
