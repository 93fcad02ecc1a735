"""Requests for a pass in the state table: all of them lie in one partition."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.items import REQUESTS, Item, damaged, json_text, sort_key
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import MaintenanceRequest, stored_request

__all__ = ["DynamoRequests"]

log = logging.getLogger(__name__)


class DynamoRequests:
    """A :class:`icekeeper.state.store.RequestStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def file(self, request: MaintenanceRequest) -> None:
        pk, sk = _key(request.identity)
        self._table.put({"pk": pk, "sk": sk, **_item(request)})

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        return tuple(sorted(self._understood(), key=_in_turn))

    def _understood(self) -> Iterator[MaintenanceRequest]:
        """The requests, without what else lies among them (rule 265): to leave one out deletes less."""
        for item in self._table.query(REQUESTS, passed_over=_tell):
            try:
                yield stored_request(item, partial(_is_filed_under, item))
            except ValueError as error:
                _tell(damaged(item, str(error)))

    def claim(self, request: MaintenanceRequest) -> bool:
        this = request.requested_ms, json_text(request.settings)

        def decide(found: Item | None) -> Item | None:
            return REMOVED if found is not None and (found["requested_ms"], found["settings"]) == this else None

        return self._table.change(*_key(request.identity), decide)


def _is_filed_under(item: Item, key: str) -> bool:
    return bool(sort_key("", key) == item["sk"])


def _tell(error: StorageError) -> None:
    log.error("a request is passed over: %s", error)


def _in_turn(request: MaintenanceRequest) -> tuple[int, str, str]:
    return request.requested_ms, str(request.identity.table), request.identity.lease_key


def _key(identity: TableIdentity) -> tuple[str, str]:
    return REQUESTS, sort_key("", identity.lease_key)


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
