"""Where the table of ``support.chaos`` is: in a SQLite catalog, or in a table bucket behind troubled proxies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.demo import seaweedfs
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from support import v3
from support.deletes import create_by_region
from support.maintained_table import MaintainedTable
from support.proxies import Troubles, troubled_proxy

STORES = ("sql", "seaweedfs")
WRITERS_REPEAT_THEMSELVES = {"commit.retry.num-retries": "0"}
"""PyIceberg would repeat an append whose first attempt landed, and count no lost swap."""


@dataclass
class Store:
    """A table of 80 rows in two partitions, and how processes and DuckDB reach it."""

    table: MaintainedTable
    environment: Mapping[str, str]
    """Of the command, whose catalog is ``local``."""
    pause_s: tuple[float, float] = 0.02, 0.2
    """Between two commits of a writer, at least and at most."""
    s3: Mapping[str, str] | None = None
    troubles: Troubles = field(default_factory=lambda: Troubles(random.Random(0)))
    restart: Callable[[], None] | None = None
    """Kills the server, and starts it again with what it had stored."""


@contextmanager
def store_of(name: str, folder: Path, version: int, seed: int) -> Iterator[Store]:
    """One of :data:`STORES`; SeaweedFS has tables of format v2 only, because PyIceberg creates no other."""
    with _sql(folder, version) if name == "sql" else _seaweedfs(folder, seed) as store:
        if version == 2:  # PyIceberg writes no v3
            with store.table.table.transaction() as transaction:
                transaction.set_properties(WRITERS_REPEAT_THEMSELVES)
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
    """Writers and passes reach the catalog and the files through a proxy each."""
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
            yield Store(table, _environment(folder, properties), (0.2, 1.0), direct, troubles, restart)


def _environment(folder: Path, properties: Mapping[str, str]) -> Mapping[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))}
    catalog = {
        f"PYICEBERG_CATALOG__LOCAL__{key.upper().replace('.', '__').replace('-', '_')}": text
        for key, text in properties.items()
    }
    return {**kept, **catalog, "ICEKEEPER_STATE": str(folder / "state.db")}


@contextmanager
def _restartable(server: SeaweedFSServer) -> Iterator[Callable[[], None]]:
    """Restarts keep the ports and the keys, so that nobody needs to know of them; only from this thread."""
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
        seaweedfs._wait_until_ready(replace(server, pid=process.pid), process, log, 60)

    yield restart
    if started:
        seaweedfs._stop(started[-1], server.ports, 8)
