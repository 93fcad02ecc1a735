"""Requests for a pass in the SQLite state file."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from operator import eq
from typing import Any

from icekeeper.state.sqlite.file import SqliteFile
from icekeeper.state.store import MaintenanceRequest, stored_request

__all__ = ["SqliteRequests"]

log = logging.getLogger(__name__)

_FIELDS = ("catalog", "warehouse", "table_name", "uuid", "location", "requested_ms", "settings")


class SqliteRequests:
    """A :class:`icekeeper.state.store.RequestStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def file(self, request: MaintenanceRequest) -> None:
        identity = request.identity
        told = (identity.catalog, identity.warehouse, str(identity.table), identity.uuid, identity.location)
        with self._file.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (identity.lease_key, *told, request.requested_ms, _text(request)),
            )

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        with self._file.reading() as read:
            rows = read(
                f"SELECT table_key, {', '.join(_FIELDS)} FROM requests ORDER BY requested_ms, table_name, table_key"
            )
        return tuple(_understood(rows))

    def claim(self, request: MaintenanceRequest) -> bool:
        statement = "DELETE FROM requests WHERE table_key = ? AND requested_ms = ? AND settings = ?"
        return self._file.write(statement, request.identity.lease_key, request.requested_ms, _text(request)) > 0


def _understood(rows: Sequence[Sequence[Any]]) -> Iterator[MaintenanceRequest]:
    """The requests, without what else lies among them (rule 265)."""
    for key, *values in rows:
        try:
            yield stored_request(dict(zip(_FIELDS, values, strict=True)), partial(eq, key))
        except ValueError as error:
            log.error(
                "a request is passed over: the row %s of the table requests is damaged (%s); delete it", key, error
            )


def _text(request: MaintenanceRequest) -> str:
    return json.dumps(dict(request.settings), sort_keys=True)
