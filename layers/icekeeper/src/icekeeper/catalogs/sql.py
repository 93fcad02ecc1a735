"""SQL catalogs: PyIceberg's table of pointers, swapped by ``UPDATE … WHERE metadata_location = the base's``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog as PyIcebergSqlCatalog
from sqlalchemy import Connection, make_url
from sqlalchemy.exc import SQLAlchemyError

from icekeeper.catalogs.addresses import CatalogKind
from icekeeper.catalogs.catalog import LoadedTable, TableBounds, missing_table
from icekeeper.catalogs.commit_answer import CommitAnswer, error_of
from icekeeper.catalogs.pointer import TableFiles, commit_document
from icekeeper.errors import CommitConflict, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pyiceberg_private.sql_engine import sql_catalog_names, sql_engine, sql_pointer, sql_swap, sql_tables
from icekeeper.text import address_to_show, mask


def why_no_database(uri: str) -> str | None:
    """Why there is no SQLite file at an address, with the nearest name; ``None`` where there may be a database.

    Checked before a client is made, because a client would create the file.
    """
    try:
        address = make_url(uri)
    except (SQLAlchemyError, ValueError):
        return None  # the client reports it
    path = address.database or ""
    if address.get_backend_name() != "sqlite" or path in ("", ":memory:") or path.startswith("file:"):
        return None
    file = Path(path)
    if file.exists():
        return None
    if not file.parent.is_dir():
        return f"unable to open its file: there is no folder {file.parent}"
    beside = [entry.name for entry in file.parent.iterdir() if entry.is_file()]
    nearest = difflib.get_close_matches(file.name, beside, n=1)
    return f"unable to open {file}: there is no such file" + (f" (did you mean '{nearest[0]}'?)" if nearest else "")


class SqlCatalog:
    """A catalog in a SQL database, in the layout that PyIceberg and Iceberg-Java's JDBC catalog share."""

    built_in_maintenance = None

    def __init__(
        self, name: str, properties: Mapping[str, Any], *, environment: Mapping[str, str] | None = None
    ) -> None:
        """Connect to an existing database; nothing is created.

        Raises:
            PolicyError: the driver for this kind of database is not installed, or the database has this catalog only in
                another spelling.
            StorageError: the database does not exist or cannot be reached.
        """
        self.name = name
        self.warehouse = str(properties.get("warehouse") or "")
        self._properties = dict(properties)
        self._files = TableFiles(properties, TableBounds(name, CatalogKind.SQL, self.warehouse, environment))

        if missing := why_no_database(str(properties.get("uri") or "")):
            raise StorageError(f"the database of catalog {name} cannot be used: {missing}")
        try:
            self._client = PyIcebergSqlCatalog(name, **{**properties, "init_catalog_tables": "false"})
        except ImportError as error:
            raise PolicyError(f"catalog {name}: the driver of its database is not installed: {error}") from error
        except SQLAlchemyError as error:
            raise self._unusable(error) from error
        except ValueError as error:  # with a slash in the password, SQLAlchemy takes a part of it for the port
            raise PolicyError(
                f"catalog {name}: its uri {address_to_show(str(properties['uri']))} cannot be parsed;"
                " write special characters of the password as %2F and the like"
            ) from error
        self._engine = sql_engine(self._client)
        self._pointer = sql_pointer(self._client)
        self._require_spelling()

    def list_tables(self) -> Iterator[TableName]:
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(sql_tables(self._client)).all()
        except SQLAlchemyError as error:
            raise self._unusable(error) from error
        yield from (TableName(tuple(namespace.split(".")), table) for namespace, table in rows)

    def load(self, table: TableName) -> LoadedTable:
        try:
            with self._engine.connect() as connection:
                named = {"namespace": ".".join(table.namespace), "table": table.name}
                location = connection.execute(self._pointer, named).scalar_one_or_none()
        except SQLAlchemyError as error:
            raise self._unusable(error) from error
        if not location:
            raise missing_table(self, table)
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

    def _require_spelling(self) -> None:
        """Refuse a name that the database has only in another case: the catalog would seem to have no tables."""
        names: set[str] = set()
        with suppress(SQLAlchemyError), self._engine.connect() as connection:  # the first use reports an error
            names.update(connection.execute(sql_catalog_names()).scalars())
        spelled = sorted(other for other in names if other.lower() == self.name.lower())
        if spelled and self.name not in spelled:
            self.close()
            raise PolicyError(
                f"the database of catalog {self.name} has it as '{spelled[0]}', and names of SQL catalogs are"
                f" case-sensitive; write --catalog {spelled[0]}"
            )

    def close(self) -> None:
        self._engine.dispose()

    def _swap(self, base: LoadedTable, location: str) -> str:
        try:
            connection = self._engine.connect()
        except SQLAlchemyError as error:
            raise self._unusable(error) from error
        try:
            with connection:
                self._move(connection, base, location)
            return location
        except SQLAlchemyError as error:  # the rollback was not confirmed either
            words = f"the database of catalog {self.name} was lost"
            raise error_of(CommitAnswer.UNKNOWN, base.name, words) from error

    def _move(self, connection: Connection, base: LoadedTable, location: str) -> None:
        """Swap the pointer in one transaction; leaving the connection rolls back, unless the database autocommits."""
        table = base.name
        statement = sql_swap(self._client, ".".join(table.namespace), table.name, base.token, location)
        try:
            changed = connection.execute(statement).rowcount
        except SQLAlchemyError as error:
            raise error_of(CommitAnswer.REFUSED, table, str(self._unusable(error))) from error
        if changed == 0:
            raise CommitConflict(f"{table} is no longer at {base.token}: another writer committed first")
        if changed != 1:  # -1 where a driver does not count
            words = f"the driver of catalog {self.name} does not say which rows it changed"
            raise error_of(CommitAnswer.REFUSED, table, words)
        try:
            connection.commit()
        except SQLAlchemyError as error:
            raise error_of(CommitAnswer.UNKNOWN, table, f"catalog {self.name} did not confirm it") from error

    def _unusable(self, error: SQLAlchemyError) -> StorageError:
        # The driver's own message: SQLAlchemy's contains the statement and its parameters.
        reason = " ".join(mask(str(getattr(error, "orig", None) or error), self._properties).split())
        return StorageError(f"the database of catalog {self.name} cannot be used: {reason}")
