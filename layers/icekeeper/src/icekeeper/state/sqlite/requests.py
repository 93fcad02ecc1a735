"""Requests for a pass in the SQLite state file."""

from __future__ import annotations

import json

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite.file import THIS_TABLE, SqliteFile, identity_columns

__all__ = ["SqliteRequests"]


class SqliteRequests:
    """A :class:`icekeeper.state.requests.RequestStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def file(self, request: MaintenanceRequest) -> None:
        self._file.write(
            "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?, ?)",
            *identity_columns(request.identity),
            request.requested_ms,
            _text(request),
        )

    def pending(self, catalog: str, warehouse: str) -> tuple[MaintenanceRequest, ...]:
        rows = self._file.read(
            "SELECT table_name, uuid, requested_ms, settings FROM requests WHERE catalog = ? AND warehouse = ? "
            "ORDER BY requested_ms, table_name, uuid",
            catalog,
            warehouse,
        )
        return tuple(
            MaintenanceRequest(
                identity=TableIdentity(catalog, warehouse, TableName.parse(table), uuid),
                requested_ms=requested_ms,
                settings=json.loads(settings),
            )
            for table, uuid, requested_ms, settings in rows
        )

    def claim(self, request: MaintenanceRequest) -> bool:
        statement = f"DELETE FROM requests WHERE {THIS_TABLE} AND requested_ms = ? AND settings = ?"
        columns = identity_columns(request.identity)
        return self._file.write(statement, *columns, request.requested_ms, _text(request)) > 0


def _text(request: MaintenanceRequest) -> str:
    return json.dumps(dict(request.settings), sort_keys=True)
