"""Leases in the SQLite state file: its lock for writing makes reading and writing a lease atomic."""

from __future__ import annotations

from sqlite3 import Connection

from icekeeper.state.held_lease import of_the_living
from icekeeper.state.leases import Lease, renewed_lease, taken_lease
from icekeeper.state.sqlite.file import SqliteFile

__all__ = ["SqliteLeases"]


class SqliteLeases:
    """A :class:`icekeeper.state.leases.LeaseStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "") -> Lease:
        wanted = Lease(key=key, holder=holder, expires_ms=now_ms + ttl_ms, name=name)
        with self._file.transaction() as connection:
            taken = taken_lease(_lease(connection, key), wanted, now_ms=now_ms)
            _write(connection, taken)
        return taken

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        with self._file.transaction() as connection:
            renewed = renewed_lease(_lease(connection, lease.key), lease, expires_ms=now_ms + ttl_ms)
            _write(connection, renewed)
        return renewed

    def release(self, lease: Lease) -> bool:
        return self._file.write("DELETE FROM leases WHERE lease_key = ? AND holder = ?", lease.key, lease.holder) > 0

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        with self._file.connection() as connection:
            found = _lease(connection, key)
        return found if found is not None and found.holds_at(now_ms) else None


def _lease(connection: Connection, key: str) -> Lease | None:
    row = connection.execute("SELECT holder, expires_ms, name FROM leases WHERE lease_key = ?", (key,)).fetchone()
    if row is None:
        return None
    holder, expires_ms, name = row
    if not (isinstance(holder, str) and isinstance(expires_ms, int) and isinstance(name, str)):
        raise ValueError(f"the lease {key} is damaged: delete it")
    return of_the_living(Lease(key=key, holder=holder, expires_ms=expires_ms, name=name))


def _write(connection: Connection, lease: Lease) -> None:
    row = (lease.key, lease.holder, lease.expires_ms, lease.name)
    connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", row)
