"""Tables of several catalogs on this disk, as their writers see them; PyIceberg writes, renames and registers."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from sqlalchemy import delete, update

from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.state.sqlite.store import SqliteStateStore
from support.ownership.witness import real_path

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string())])
# As PyIceberg numbers the columns of a new table.
_WITH_FIELD_IDS = pa.schema(
    [field.with_metadata({"PARQUET:field_id": str(number)}) for number, field in enumerate(SCHEMA, start=1)]
)
CATALOGS = ("lake0", "lake1", "lake2")
_NAMESPACE = "ns"
_OLD_DAYS = 10
SPELLINGS = ("file:///{root}/wh", "file:///{root}/wh", "/{root}/wh", "file:///{root}/link")
"""How one place may be written; ``link`` leads to ``wh``."""


class Lake:
    """Catalogs, state store and warehouse below one folder, copied from a template that costs 50 ms to make."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "wh"
        self.state = SqliteStateStore(folder / "state.db")
        settings = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "init_catalog_tables": "false"}
        self._settings = {**settings, "warehouse": self.warehouse.as_uri()}
        # Asked a hundred times in a case, by whichever thread a pass is interrupted in.
        self._reader = sqlite3.connect(folder / "catalog.db", isolation_level=None, check_same_thread=False)
        self._opened: dict[int, tuple[SqlCatalog, OurSqlCatalog]] = {}
        self._aged: set[str] = set()
        self._names = 0

    @classmethod
    def copied(cls, template: Path, folder: Path) -> Lake:
        shutil.copytree(template, folder, symlinks=True)
        return cls(folder)

    @classmethod
    def make_template(cls, folder: Path) -> None:
        (folder / "wh").mkdir(parents=True)
        (folder / "link").symlink_to("wh")
        for name in CATALOGS:
            catalog = SqlCatalog(name, uri=f"sqlite:///{folder / 'catalog.db'}")
            catalog.create_namespace(_NAMESPACE)
            catalog.close()
        SqliteStateStore(folder / "state.db").require_writable()

    def close(self) -> None:
        self._reader.close()
        for writer, ours in self._opened.values():
            writer.close()
            ours.close()
        shutil.rmtree(self.folder)

    def writer(self, catalog: int) -> SqlCatalog:
        return self._open(catalog)[0]

    def ours(self, catalog: int) -> OurSqlCatalog:
        return self._open(catalog)[1]

    def _open(self, catalog: int) -> tuple[SqlCatalog, OurSqlCatalog]:
        if catalog not in self._opened:
            name = CATALOGS[catalog]
            self._opened[catalog] = SqlCatalog(name, **self._settings), OurSqlCatalog(name, self._settings)
        return self._opened[catalog]

    def spelled(self, real: str, spelling: int) -> str:
        """An address of something below the warehouse, by its real path."""
        root = str(self.folder).lstrip("/")
        relative = os.path.relpath(real, real_path(str(self.warehouse)))
        return f"{SPELLINGS[spelling % len(SPELLINGS)].format(root=root)}/{relative}".removesuffix("/.")

    # -- entries of catalogs

    def create(self, catalog: int, name: str, location: str, properties: Mapping[str, str]) -> Table:
        return self.writer(catalog).create_table(
            (_NAMESPACE, name), schema=SCHEMA, location=location, properties=dict(properties)
        )

    def load(self, catalog: int, name: str) -> Table:
        return self.writer(catalog).load_table((_NAMESPACE, name))

    def register(self, catalog: int, name: str, location: str) -> None:
        self.writer(catalog).register_table((_NAMESPACE, name), location)

    def lose(self, catalog: int, name: str, like: str) -> None:
        """Register a table of its own that is like another one, and remove its metadata file."""
        document = json.loads(Path(real_path(like)).read_text())
        path = self.warehouse / name / "metadata" / "00000-lost.metadata.json"
        path.parent.mkdir(parents=True)
        location = {"table-uuid": str(uuid.uuid4()), "location": path.parents[1].as_uri()}
        path.write_text(json.dumps({**document, **location}))
        self.register(catalog, name, path.as_uri())
        path.unlink()

    def rename(self, catalog: int, old: str, new: str) -> None:
        self.writer(catalog).rename_table((_NAMESPACE, old), (_NAMESPACE, new))

    def pointers(self) -> dict[tuple[int, str], str]:
        """Metadata location by entry."""
        rows = self._reader.execute("SELECT catalog_name, table_name, metadata_location FROM iceberg_tables")
        return {(CATALOGS.index(catalog), name): location for catalog, name, location in rows.fetchall()}

    def point(self, catalog: int, name: str, location: str) -> None:
        """As a restored database does, past every check."""
        mine = IcebergTables.catalog_name == CATALOGS[catalog], IcebergTables.table_name == name
        with self._open(catalog)[0].engine.begin() as connection:
            connection.execute(update(IcebergTables).where(*mine).values(metadata_location=location))

    def forget(self, catalog: int, name: str) -> None:
        """Drop the entry; no file goes."""
        mine = IcebergTables.catalog_name == CATALOGS[catalog], IcebergTables.table_name == name
        with self._open(catalog)[0].engine.begin() as connection:
            connection.execute(delete(IcebergTables).where(*mine))

    # -- files

    def stray(self, folder: str, ids: Sequence[int]) -> str:
        """A data file that no commit names; its real path."""
        self._names += 1
        path = Path(folder) / f"stray-{self._names}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_rows(ids).cast(_WITH_FIELD_IDS), path)
        return real_path(str(path))

    @staticmethod
    def add_files(table: Table, files: Sequence[DataFile]) -> None:
        """Commit files that lie there already, as ``add_files`` does."""
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in files:
                append.append_data_file(file)

    @staticmethod
    def described(table: Table, path: str) -> DataFile:
        return parquet_file_to_data_file(table.io, table.metadata, path)

    def append(self, table: Table, ids: Sequence[int]) -> None:
        table.append(_rows(ids))

    def overwrite(self, table: Table, ids: Sequence[int]) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Delete operation did not match any records")  # an empty table
            table.overwrite(_rows(ids))

    def files(self) -> frozenset[str]:
        """Real paths of all that lies in the warehouse."""
        root = real_path(str(self.warehouse))
        return frozenset(os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)

    def age(self) -> None:
        """All that lies there has lain there for days."""
        then = time.time() - _OLD_DAYS * 86_400
        for path in self.files() - self._aged:
            os.utime(path, (then, then))
            self._aged.add(path)


def _rows(ids: Sequence[int]) -> pa.Table:
    columns: dict[str, Any] = {"id": list(ids), "part": ["p"] * len(ids)}
    return pa.table(columns, schema=SCHEMA)
