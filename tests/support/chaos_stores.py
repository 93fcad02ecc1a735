"""Stores of the table of ``support.chaos``: a SQLite catalog, or a table bucket behind troubled proxies."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.demo import seaweedfs
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from icekeeper.errors import CommitConflict
from support import v3
from support.deletes import create_by_region
from support.java_writer import BY_REGION, ID_AND_REGION, JavaTables
from support.maintained_table import MaintainedTable
from support.proxies import Troubles, troubled_proxy


class JavaUpserts:
    """Iceberg-Java as a writer to a table in a SQLite catalog, with swaps like those of its JDBC catalog."""

    def __init__(self, java: JavaTables, folder: Path) -> None:
        self._java = java.create(ID_AND_REGION, BY_REGION, {}, folder / "java")
        self._database = folder / "catalog.db"

    def upsert(self, table: MaintainedTable, rows: Mapping[int, str]) -> None:
        """Write rows (id → region) and delete their old versions by key, in one commit on the newest head.

        Raises:
            CommitConflict: another commit came first, or the files of the head have expired.
        """
        base, java = table.metadata_location, self._java
        try:
            java.take_over(base)
            files, deletes = [], []
            for region in sorted(set(rows.values())):
                ids = [row for row, its in rows.items() if its == region]
                files.append(java.data_file([{"1": row, "2": region} for row in ids], 0, [region], "parquet"))
                deletes.append(java.equality_deletes([{"1": row} for row in ids], [1], 0, [region], "parquet"))
            java.row_delta(files, deletes)
        except Py4JJavaError as error:
            raise CommitConflict(str(error.java_exception)) from error
        with closing(sqlite3.connect(self._database, timeout=60)) as connection, connection:
            swapped = connection.execute(_SWAP, (java.metadata_location, base, base))
            if swapped.rowcount != 1:
                raise CommitConflict("another commit came first")


_SWAP = (
    "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
    " WHERE table_namespace = 'ns' AND table_name = 't' AND metadata_location = ?"
)


STORES = ("sql", "seaweedfs")
WRITERS_REPEAT_THEMSELVES = {"commit.retry.num-retries": "0"}
"""Writers count lost swaps; PyIceberg itself would repeat an append whose first attempt landed."""


@dataclass
class Store:
    """A table of 80 rows in two partitions, and how processes and DuckDB reach it."""

    table: MaintainedTable
    environment: Mapping[str, str]
    """The environment of the command, whose catalog is ``local``."""
    pause_s: tuple[float, float] = 0.1, 0.6
    """The least and the greatest pause between two commits of a writer."""
    s3: Mapping[str, str] | None = None
    troubles: Troubles = field(default_factory=lambda: Troubles(random.Random(0)))
    restart: Callable[[], None] | None = None
    """Kills the server and restarts it with its data."""
    upserts: JavaUpserts | None = None
    """Iceberg-Java, if the table has local files."""


@contextmanager
def store_of(name: str, folder: Path, version: int, seed: int, java: JavaTables | None = None) -> Iterator[Store]:
    """A store of :data:`STORES`; SeaweedFS has only tables of format v2, because PyIceberg creates no others."""
    with _sql(folder, version) if name == "sql" else _seaweedfs(folder, seed) as store:
        if version == 2:  # PyIceberg writes no v3
            with store.table.table.transaction() as transaction:
                transaction.set_properties(WRITERS_REPEAT_THEMSELVES)
        if java is not None and name == "sql":
            store.upserts = JavaUpserts(java, folder)
        yield store


@contextmanager
def _sql(folder: Path, version: int) -> Iterator[Store]:
    with v3.table_of_version(folder, version) as table:
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": (folder / "warehouse").as_uri(),
        }
        yield Store(table, _environment(folder, properties))


@contextmanager
def _seaweedfs(folder: Path, seed: int) -> Iterator[Store]:
    """Writers and passes reach the catalog and the files through two proxies."""
    troubles = Troubles(random.Random(seed))
    with running_seaweedfs(folder / "server") as server, _restartable(server) as restart:
        server.create_table_bucket("chaos")
        direct = server.catalog_properties("chaos")
        with (
            troubled_proxy(server.iceberg_uri, troubles) as catalog,
            troubled_proxy(server.s3_endpoint, troubles) as s3,
        ):
            properties = {**direct, "uri": catalog, "s3.endpoint": s3}
            ours, theirs = open_catalog("local", properties), load_catalog("local", **properties)
            table = MaintainedTable(ours, folder, pyiceberg=theirs)  # type: ignore[arg-type]
            create_by_region(table, 4)
            yield Store(table, _environment(folder, properties), (0.3, 1.5), direct, troubles, restart)


def _environment(folder: Path, properties: Mapping[str, str]) -> Mapping[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))}
    catalog = {
        f"PYICEBERG_CATALOG__LOCAL__{key.upper().replace('.', '__').replace('-', '_')}": text
        for key, text in properties.items()
    }
    return {**kept, **catalog, "ICEKEEPER_STATE": str(folder / "state.db")}


@contextmanager
def _restartable(server: SeaweedFSServer) -> Iterator[Callable[[], None]]:
    """A function that restarts the server with the same ports and keys; only this thread may call it."""
    started: list[subprocess.Popen[bytes]] = []
    log = server.directory / "weed.log"

    def restart() -> None:
        pid = started[-1].pid if started else server.pid
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        seaweedfs._remove_grpc_sockets(server.ports)
        weed = seaweedfs.weed_binary()
        process = seaweedfs._start(weed, server.directory, server.ports, log, server.access_key, server.secret_key)
        started.append(process)
        seaweedfs._wait_until_ready(replace(server, pid=process.pid), process, log)

    yield restart
    if started:
        seaweedfs._stop(started[-1], server.ports)
