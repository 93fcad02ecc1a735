"""Requests for a pass in the state table: those of a catalog lie in one partition."""

from __future__ import annotations

import json

from icekeeper.model import TableName
from icekeeper.state.dynamodb.items import Item, catalog_key, json_text, sort_key
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest

__all__ = ["DynamoRequests"]


class DynamoRequests:
    """A :class:`icekeeper.state.requests.RequestStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def file(self, request: MaintenanceRequest) -> None:
        pk, sk = _key(request.identity)
        self._table.put({"pk": pk, "sk": sk, **_item(request)})

    def pending(self, catalog: str, warehouse: str) -> tuple[MaintenanceRequest, ...]:
        waiting = [
            MaintenanceRequest(
                identity=TableIdentity(catalog, warehouse, TableName.parse(item["table_name"]), item["uuid"]),
                requested_ms=item["requested_ms"],
                settings=json.loads(item["settings"]),
            )
            for item in self._table.query(catalog_key("requests", catalog, warehouse))
        ]
        return tuple(sorted(waiting, key=lambda request: (request.requested_ms, request.identity.key)))

    def claim(self, request: MaintenanceRequest) -> bool:
        this = _item(request)

        def decide(found: Item | None) -> Item | None:
            return REMOVED if found is not None and all(found[name] == value for name, value in this.items()) else None

        return self._table.change(*_key(request.identity), decide)


def _key(identity: TableIdentity) -> tuple[str, str]:
    return catalog_key("requests", identity.catalog, identity.warehouse), sort_key("", identity.key)


def _item(request: MaintenanceRequest) -> Item:
    return {
        "table_name": str(request.identity.table),
        "uuid": request.identity.uuid,
        "requested_ms": request.requested_ms,
        "settings": json_text(request.settings),
    }
