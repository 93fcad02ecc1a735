"""Requests for a pass in the SQLite state file."""

from __future__ import annotations

import json

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite.file import SqliteFile, table_columns

__all__ = ["SqliteRequests"]


class SqliteRequests:
    """A :class:`icekeeper.state.requests.RequestStore`."""

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
                "SELECT catalog, warehouse, table_name, uuid, location, requested_ms, settings FROM requests "
                "ORDER BY requested_ms, table_name, table_key"
            )
            return tuple(
                MaintenanceRequest(
                    identity=TableIdentity(catalog, warehouse, TableName.parse(table), uuid, location),
                    requested_ms=requested_ms,
                    settings=json.loads(settings),
                )
                for catalog, warehouse, table, uuid, location, requested_ms, settings in rows
            )

    def claim(self, request: MaintenanceRequest) -> bool:
        identity = request.identity
        statement = "DELETE FROM requests WHERE table_key IN (?, ?, ?) AND requested_ms = ? AND settings = ?"
        columns = identity.lease_key, *table_columns(identity)  # the latter as earlier versions filed it
        return self._file.write(statement, *columns, request.requested_ms, _text(request)) > 0


def _text(request: MaintenanceRequest) -> str:
    return json.dumps(dict(request.settings), sort_keys=True)
