"""The database of a SQL catalog whose connections fail at a moment that a test chooses, for both drivers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.sql import SqlCatalog

DRIVERS = ("sqlite3", "sqlalchemy")


def sql_catalog(uri: str, driver: str, warehouse: str, name: str = "local") -> SqlCatalog:
    """The catalog in a SQLite file, by a driver of :data:`DRIVERS`; an address with options selects SQLAlchemy."""
    options = "" if driver == "sqlite3" else "?timeout=5"
    properties = {"uri": f"{uri}{options}", "warehouse": warehouse}
    return SqlCatalog(ConfiguredCatalog(name, CatalogKind.SQL, properties))


class DyingDatabase:
    """Wraps a catalog's database; connections fail only when a switch is set."""

    def __init__(self, catalog: Any) -> None:
        self._inner = catalog._database
        self.error = self._inner.error
        self.at_swap = self.after_commit = self.at_end = False
        """Whether the connection fails instead of a swap, after a commit has landed, and when it is closed."""
        self.rowcount: int | None = None
        """The row count that the driver reports for a swap; ``None`` for the true count."""
        catalog._database = self

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def connect(self) -> Iterator[Any]:
        try:
            with self._inner.connect() as connection:
                yield _Connection(self, connection)
        finally:
            if self.at_end:
                raise self.error("connection lost")


class _Connection:
    def __init__(self, database: DyingDatabase, connection: Any) -> None:
        self._database, self._connection = database, connection

    def execute(self, statement: str, parameters: Mapping[str, str], /) -> Any:
        is_swap = statement.startswith("UPDATE")
        if is_swap and self._database.at_swap:
            raise self._database.error("connection lost")
        result = self._connection.execute(statement, parameters)
        return _Counted(self._database.rowcount) if is_swap and self._database.rowcount is not None else result

    def commit(self) -> None:
        self._connection.commit()
        if self._database.after_commit:
            raise self._database.error("connection lost")


class _Counted:
    def __init__(self, rowcount: int) -> None:
        self.rowcount = rowcount


def address_of(folder: Path) -> str:
    """The address of the test catalog in a folder."""
    return f"sqlite:///{folder / 'catalog.db'}"
