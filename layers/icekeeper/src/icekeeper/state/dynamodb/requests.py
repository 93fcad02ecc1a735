"""Requests for a pass in the state table: all of them lie in one partition."""

from __future__ import annotations

import json

from icekeeper.model import TableName
from icekeeper.state.dynamodb.earlier import EarlierPartitions
from icekeeper.state.dynamodb.items import REQUESTS, Item, json_text, sort_key, understood
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest

__all__ = ["DynamoRequests"]


class DynamoRequests:
    """A :class:`icekeeper.state.requests.RequestStore`."""

    def __init__(self, table: DynamoTable, earlier: EarlierPartitions) -> None:
        self._table = table
        self._earlier = earlier

    def file(self, request: MaintenanceRequest) -> None:
        pk, sk = _key(request.identity)
        self._table.put({"pk": pk, "sk": sk, **_item(request)})

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        self._earlier.opened()
        waiting = [
            MaintenanceRequest(identity=_identity(item), requested_ms=item["requested_ms"], settings=_settings(item))
            for item in self._table.query(REQUESTS)
        ]
        return tuple(sorted(waiting, key=_in_turn))

    def claim(self, request: MaintenanceRequest) -> bool:
        this = request.requested_ms, json_text(request.settings)

        def decide(found: Item | None) -> Item | None:
            return REMOVED if found is not None and (found["requested_ms"], found["settings"]) == this else None

        keys = ((REQUESTS, sort_key("", key)) for key in (request.identity.lease_key, *request.identity.keys))
        return any(self._table.change(*key, decide) for key in keys)


def _in_turn(request: MaintenanceRequest) -> tuple[int, str, str]:
    return request.requested_ms, str(request.identity.table), request.identity.lease_key


def _key(identity: TableIdentity) -> tuple[str, str]:
    return REQUESTS, sort_key("", identity.lease_key)


def _identity(item: Item) -> TableIdentity:
    with understood(item):
        table = TableName.parse(item["table_name"])
        return TableIdentity(item["catalog"], item["warehouse"], table, item["uuid"], item["location"])


def _settings(item: Item) -> dict[str, str]:
    with understood(item):
        return dict(json.loads(item["settings"]))


def _item(request: MaintenanceRequest) -> Item:
    return {
        "catalog": request.identity.catalog,
        "warehouse": request.identity.warehouse,
        "table_name": str(request.identity.table),
        "uuid": request.identity.uuid,
        "location": request.identity.location,
        "requested_ms": request.requested_ms,
        "settings": json_text(request.settings),
    }
