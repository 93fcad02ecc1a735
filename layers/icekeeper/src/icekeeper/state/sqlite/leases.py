"""Leases in the SQLite state file: its lock for writing makes reading and writing one step."""

from __future__ import annotations

from dataclasses import replace
from sqlite3 import Connection

from icekeeper.state.lease_errors import lease_held, lease_lost
from icekeeper.state.leases import Lease
from icekeeper.state.sqlite.file import SqliteFile

__all__ = ["SqliteLeases"]


class SqliteLeases:
    """A :class:`icekeeper.state.leases.LeaseStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int) -> Lease:
        wanted = Lease(key=key, holder=holder, expires_ms=now_ms + ttl_ms)
        with self._file.transaction() as connection:
            found = _lease(connection, key)
            if found is not None and found.holder == holder:
                wanted = _longer(wanted, found)
            elif found is not None and found.expires_ms > now_ms:
                raise lease_held(found)
            _write(connection, wanted)
        return wanted

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        with self._file.transaction() as connection:
            found = _lease(connection, lease.key)
            if found is None or found.holder != lease.holder:
                raise lease_lost(lease, None if found is None else found.holder)
            renewed = _longer(replace(found, expires_ms=now_ms + ttl_ms), found)
            _write(connection, renewed)
        return renewed

    def release(self, lease: Lease) -> bool:
        return self._file.write("DELETE FROM leases WHERE lease_key = ? AND holder = ?", lease.key, lease.holder) > 0

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        with self._file.connection() as connection:
            found = _lease(connection, key)
        return found if found is not None and found.expires_ms > now_ms else None


def _lease(connection: Connection, key: str) -> Lease | None:
    row = connection.execute("SELECT holder, expires_ms FROM leases WHERE lease_key = ?", (key,)).fetchone()
    return None if row is None else Lease(key=key, holder=row[0], expires_ms=row[1])


def _write(connection: Connection, lease: Lease) -> None:
    row = (lease.key, lease.holder, lease.expires_ms)
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", row)


def _longer(one: Lease, other: Lease) -> Lease:
    return max(one, other, key=lambda lease: lease.expires_ms)
