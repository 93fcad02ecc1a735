"""SQL catalogs: PyIceberg's table of pointers, swapped by ``UPDATE … WHERE metadata_location = the base's``.

The statements are plain SQL.  SQLite is used through the standard library, any other database through SQLAlchemy, whose
import takes half as long as a whole small pass.
"""

from __future__ import annotations

import difflib
import os
import re
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from icekeeper.catalogs.catalog import LoadedTable, missing_table
from icekeeper.catalogs.commit_answer import CommitAnswer, error_of
from icekeeper.catalogs.configured import ConfiguredCatalog
from icekeeper.catalogs.pointer import TableFiles, commit_document
from icekeeper.errors import CommitConflict, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.text import address_to_show, mask

# The layout that PyIceberg (``catalog/sql.py``) and Iceberg-Java (``JdbcUtil``) share.  The SQL table also contains
# views; catalogs made by older versions have no column for the type.
_OURS = "catalog_name = :catalog"
_ONLY_TABLES = " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
_HAS_TYPES = "SELECT iceberg_type FROM iceberg_tables WHERE 1 = 0"
_NAMES = "SELECT catalog_name FROM iceberg_tables UNION SELECT catalog_name FROM iceberg_namespace_properties"
_TABLES = f"SELECT table_namespace, table_name FROM iceberg_tables WHERE {_OURS}%s ORDER BY table_namespace, table_name"
_NAMED = f"{_OURS}%s AND table_namespace = :namespace AND table_name = :name"
_POINTER = f"SELECT metadata_location FROM iceberg_tables WHERE {_NAMED}"
_SWAP = (
    "UPDATE iceberg_tables SET metadata_location = :new, previous_metadata_location = :old "
    f"WHERE {_NAMED} AND metadata_location = :old"
)
_SQLITE = re.compile(r"sqlite(?:\+pysqlite)?:///([^?]+)(\?.*)?")


class _Connection(Protocol):
    """The methods that both drivers have; leaving the connection without a commit rolls back."""

    def execute(self, statement: str, parameters: Mapping[str, str], /) -> Any: ...
    def commit(self) -> None: ...


class _Database(Protocol):
    @property
    def error(self) -> type[Exception]:
        """The base of the driver's errors."""

    def connect(self) -> AbstractContextManager[_Connection]: ...
    def close(self) -> None: ...


class _Sqlite:
    """A SQLite file.  Opening it takes ten times as long as a look at a table, so idle connections are kept."""

    error = sqlite3.Error

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[tuple[object, sqlite3.Connection]] = deque()

    @contextmanager
    def connect(self) -> Iterator[_Connection]:
        """A connection that no other thread uses meanwhile, to the file that the path names now."""
        file = self._file()
        while self._idle:
            of, connection = self._idle.pop()
            if of == file:
                break
            connection.close()
        else:
            connection = sqlite3.connect(self._path, check_same_thread=False)
        with ExitStack() as opened:
            opened.callback(connection.close)
            yield connection
            if not connection.in_transaction and file == self._file():  # closing rolls back
                opened.pop_all()
                self._idle.append((file, connection))

    def _file(self) -> object:
        """Process, device and inode: a file may replace another, and a fork must not use its parent's connection."""
        with suppress(OSError):
            found = os.stat(self._path)
            return os.getpid(), found.st_dev, found.st_ino
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()


class _SqlAlchemy:
    """Any database that SQLAlchemy has a driver for."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import SQLAlchemyError

        self.error: type[Exception] = SQLAlchemyError
        pings = str(properties.get("pool_pre_ping") or "").strip().lower() == "true"
        self._engine = create_engine(str(properties.get("uri")), pool_pre_ping=pings)

    @contextmanager
    def connect(self) -> Iterator[_Connection]:
        from sqlalchemy import Connection, text

        class Plain:
            def __init__(self, connection: Connection) -> None:
                self._connection, self.commit = connection, connection.commit

            def execute(self, statement: str, parameters: Mapping[str, str], /) -> Any:
                return self._connection.execute(text(statement), parameters)

        with self._engine.connect() as connection:
            yield Plain(connection)

    def close(self) -> None:
        self._engine.dispose()


def _sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite address; ``None``: another database, or a database that is not in a file."""
    found = _SQLITE.fullmatch(uri)
    path = "" if found is None else found[1]
    return None if path in ("", ":memory:") or path.startswith("file:") else Path(path)


def why_no_database(uri: str) -> str | None:
    """Why there is no SQLite file at an address, with the nearest name; ``None`` if there may be a database.

    This is checked before the database is opened, because opening creates the file.
    """
    file = _sqlite_file(uri)
    if file is None or file.exists():
        return None
    if not file.parent.is_dir():
        return f"unable to open its file: folder {file.parent} does not exist"
    beside = [entry.name for entry in file.parent.iterdir() if entry.is_file()]
    nearest = difflib.get_close_matches(file.name, beside, n=1)
    what_to_do = f" (did you mean '{nearest[0]}'?)" if nearest else "; correct the uri, or write a first table there"
    return f"unable to open {file}: the file does not exist{what_to_do}"


class SqlCatalog:
    """A catalog in a SQL database, in the layout that PyIceberg and Iceberg-Java's JDBC catalog share."""

    built_in_maintenance = None

    def __init__(self, configured: ConfiguredCatalog) -> None:
        """Connect to an existing database; nothing is created.

        Raises:
            PolicyError: the driver for this kind of database is not installed, or the database has this catalog only
                under a name in another case.
            StorageError: the database does not exist or cannot be reached.
        """
        self.id = configured.id
        self._configured = configured
        self._files = TableFiles(configured)
        uri = str(configured.properties.get("uri") or "")
        if missing := why_no_database(uri):
            raise StorageError(f"the database of catalog {self.id} cannot be used: {missing}")
        self._database = self._opened(uri)
        self._only_tables = _ONLY_TABLES if self._has_types() else ""
        self._require_spelling()

    def _opened(self, uri: str) -> _Database:
        file = _sqlite_file(uri)
        if file is not None and "?" not in uri:
            return _Sqlite(file)
        try:
            return _SqlAlchemy(self._configured.properties)
        except ImportError as error:
            raise PolicyError(f"catalog {self.id}: the driver of its database is not installed: {error}") from error
        except ValueError as error:  # if the password contains a slash, SQLAlchemy takes part of it for the port
            raise PolicyError(
                f"catalog {self.id}: its uri {address_to_show(uri)} cannot be parsed;"
                " percent-encode special characters of the password (/ as %2F)"
            ) from error
        except Exception as error:
            if type(error).__module__.startswith("sqlalchemy."):
                raise self._unusable(error) from error
            raise

    def _has_types(self) -> bool:
        try:
            with self._database.connect() as connection:
                connection.execute(_HAS_TYPES, {})
        except self._database.error:  # other errors are reported by the first use
            return False
        return True

    def _read(self, statement: str, **parameters: str) -> list[Any]:
        """The rows of a statement about this catalog."""
        try:
            with self._database.connect() as connection:
                return list(connection.execute(statement, {"catalog": self.id.name, **parameters}).fetchall())
        except self._database.error as error:
            raise self._unusable(error) from error

    def list_tables(self) -> Iterator[TableName]:
        rows = self._read(_TABLES % self._only_tables)
        yield from (TableName(tuple(namespace.split(".")), table) for namespace, table in rows)

    def load(self, table: TableName) -> LoadedTable:
        rows = self._read(_POINTER % self._only_tables, namespace=".".join(table.namespace), name=table.name)
        if not rows or not rows[0][0]:
            raise missing_table(self, table)
        location = str(rows[0][0])
        return self._files.load(table, location, location)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        return commit_document(
            base,
            requirements,
            updates,
            swap=lambda location: self._swap(base, location),
            storage=self._files.storage,
            load=self.load,
            conflict_is_proof=True,  # our own transaction saw no row at the base
        )

    def point_to(self, base: LoadedTable, location: str) -> None:
        self._swap(base, location)

    def _require_spelling(self) -> None:
        """Refuse a name that the database has only in another case, because the catalog would seem to be empty."""
        names: set[str] = set()
        with suppress(StorageError):  # the first use reports an error
            names.update(name for (name,) in self._read(_NAMES))
        spelled = sorted(other for other in names if other.lower() == self.id.name.lower())
        if spelled and self.id.name not in spelled:
            self.close()
            raise PolicyError(
                f"the database of catalog {self.id} spells its name '{spelled[0]}', and names of SQL catalogs are"
                f" case-sensitive; write --catalog {spelled[0]}"
            )

    def close(self) -> None:
        self._database.close()

    def _swap(self, base: LoadedTable, location: str) -> str:
        opened = ExitStack()
        try:
            connection = opened.enter_context(self._database.connect())
        except self._database.error as error:
            raise self._unusable(error) from error
        try:
            with opened:
                self._move(connection, base, location)
            return location
        except self._database.error as error:  # the rollback was not confirmed either
            words = f"the connection to the database of catalog {self.id} was lost"
            raise error_of(CommitAnswer.UNKNOWN, base.name, words) from error

    def _move(self, connection: _Connection, base: LoadedTable, location: str) -> None:
        """Swap the pointer in a transaction; leaving the connection rolls back, unless the database autocommits."""
        table = base.name
        named = {"catalog": self.id.name, "namespace": ".".join(table.namespace), "name": table.name}
        try:
            swap = connection.execute(_SWAP % self._only_tables, {**named, "old": base.token, "new": location})
        except self._database.error as error:
            raise error_of(CommitAnswer.REFUSED, table, str(self._unusable(error))) from error
        if swap.rowcount == 0:
            raise CommitConflict(f"{table} is no longer at {base.token}: another writer committed first")
        if swap.rowcount != 1:  # -1 where a driver does not count
            words = f"the driver of catalog {self.id} does not report how many rows it changed"
            raise error_of(CommitAnswer.REFUSED, table, words)
        try:
            connection.commit()
        except self._database.error as error:
            raise error_of(CommitAnswer.UNKNOWN, table, f"catalog {self.id} did not confirm the commit") from error

    def _unusable(self, error: Exception) -> StorageError:
        # Use the driver's own message, because SQLAlchemy's contains the statement and its parameters.
        reason = " ".join(mask(str(getattr(error, "orig", None) or error), self._configured.properties).split())
        return StorageError(f"the database of catalog {self.id} cannot be used: {reason}")
