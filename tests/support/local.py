"""A local table with writers beside us: PyIceberg writes, we maintain, and a test says when they meet."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.load import open_catalog
from icekeeper.clock import Clock, system_clock
from icekeeper.engines.engine import Engine
from icekeeper.engines.local import LocalEngine
from icekeeper.maintenance.run_pass import run_pass
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.reachability import reachable_files
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, ManifestEntry, TableName
from icekeeper.pass_context.context import operation_context
from icekeeper.policy import Operation, layers_for, resolve
from icekeeper.report.outcome import OperationOutcome, PassOutcome
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from icekeeper.storage.store_clock import StoreClock, store_now_ms
from icekeeper.verification.findings import Verification
from icekeeper.verification.verify import verify_table
from support.clocks import same_clock
from support.readers import canonical, duckdb_rows, pyiceberg_rows

NAME = TableName(("ns",), "t")
DAY_S = 86_400
# Everything that may go goes at once, and two of anything are too many.
EAGER = {
    "min_input_files": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_older_than_hours": "0",
    "min_manifests_to_rewrite": "2",
}


class ScriptedCatalog:
    """Counts loads and commits, and lets something happen just before or after the n-th commit (1 is the first).

    Where one action at the first commit is all, :func:`support.moments.at` says so.
    """

    def __init__(
        self,
        inner: Catalog,
        *,
        before_commit: Mapping[int, Callable[[], object]] | None = None,
        after_commit: Mapping[int, Callable[[], object]] | None = None,
    ) -> None:
        self._inner = inner
        self._before_commit = before_commit or {}
        self._after_commit = after_commit or {}
        self.loads = self.commits = 0

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def warehouse(self) -> str:
        return self._inner.warehouse

    built_in_maintenance = None

    def list_tables(self) -> Iterator[TableName]:
        return self._inner.list_tables()

    def load(self, table: TableName) -> LoadedTable:
        self.loads += 1
        return self._inner.load(table)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self.commits += 1
        self._before_commit.get(self.commits, _nothing)()
        after = self._inner.commit(base, requirements, updates)
        self._after_commit.get(self.commits, _nothing)()
        return after


class LocalTable:
    """``ns.t`` in a SQLite catalog: column ``id`` and the text ``part``, which it may be partitioned by."""

    SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string())])

    def __init__(self, catalog: SqlCatalog, folder: Path, **options: Any) -> None:
        self.pyiceberg = catalog
        self.catalog = open_catalog(
            "local",
            {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": (folder / "warehouse").as_uri()},
        )
        self.state = SqliteStateStore(folder / "state.db")
        self.waits: list[float] = []
        catalog.create_namespace_if_not_exists("ns")
        catalog.create_table("ns.t", schema=self.SCHEMA, **options)

    # -- the writers' side

    @property
    def table(self) -> Table:
        return self.pyiceberg.load_table("ns.t")

    def append(self, *ids: int, part: str = "p") -> None:
        """One file (per value of ``part``) with these ids."""
        rows = {"id": list(ids), "part": [part] * len(ids)}
        self.table.append(pa.table(rows, schema=self.SCHEMA))

    def fill(self, files: int, *, part: str = "p", start: int = 0) -> None:
        for number in range(start, start + files):
            self.append(number * 10, number * 10 + 1, part=part)

    def create_beside(self, name: str, location: str, **properties: str) -> Table:
        """Another table of the catalog."""
        return self.pyiceberg.create_table(name, schema=self.SCHEMA, location=location, properties=properties)

    def rows(self, *ids: int) -> pa.Table:
        return pa.table({"id": list(ids), "part": ["p"] * len(ids)}, schema=self.SCHEMA)

    # -- our side

    def maintain(
        self,
        operations: str = "all",
        *,
        catalog: Catalog | None = None,
        engine: Engine | None = None,
        dry_run: bool = False,
        run_id: str = "run-1",
        clock: Clock = system_clock,
        store_clock: StoreClock | None = None,
        **settings: str,
    ) -> PassOutcome:
        """A pass that spares nothing it may touch (:data:`EAGER`) and never really sleeps.

        A ``clock`` is the store's as well, unless that has its own.
        """
        chosen = catalog or self.catalog
        loaded = chosen.load(NAME)
        overrides = {**EAGER, **settings} | ({} if operations == "all" else {"operations": operations})
        context = operation_context(
            loaded,
            catalog=chosen,
            resolved=resolve(layers_for(loaded.metadata.properties, {}, overrides), unsafe=True),
            state=self.state,
            clock=clock,
            run_id=run_id,
            engine=engine or LocalEngine(1),
            dry_run=dry_run,
            sleep=self.waits.append,
            store_clock=store_clock or (store_now_ms if clock is system_clock else same_clock),
        )
        return run_pass(context)

    def run(self, operation: Operation, **more: Any) -> OperationOutcome:
        """One operation."""
        (outcome,) = self.maintain(operation.value, **more).operations
        return outcome

    # -- what is there

    @property
    def loaded(self) -> LoadedTable:
        return self.catalog.load(NAME)

    @property
    def metadata(self) -> TableMetadata:
        return self.loaded.metadata

    @property
    def storage(self) -> Storage:
        return Storage(self.loaded.io_properties)

    @property
    def folder(self) -> Path:
        return Path(normalise(self.metadata.location))

    @property
    def reader(self) -> TableReader:
        loaded = self.loaded
        return TableReader(loaded.metadata, Storage(loaded.io_properties).read)

    def entries(self, snapshot_id: int | None = None) -> list[ManifestEntry]:
        """The live entries of a snapshot, the head unless named."""
        reader = self.reader
        snapshot = reader.metadata.snapshots[snapshot_id] if snapshot_id else reader.metadata.current_snapshot
        assert snapshot is not None
        return [e for _, found in reader.entries(reader.manifests(snapshot)) for e in found if e.is_live]

    def data_files(self) -> list[DataFile]:
        return [entry.file for entry in self.entries()]

    def ids(self, snapshot_id: int | None = None) -> list[int]:
        """Read with PyIceberg."""
        return sorted(row["id"] for row in pyiceberg_rows(self.loaded.metadata_location, snapshot_id))

    def readers_agree(self) -> list[int]:
        """The ids at the head, which PyIceberg and DuckDB must read alike."""
        location = self.loaded.metadata_location
        assert canonical(duckdb_rows(location)) == canonical(pyiceberg_rows(location))
        return self.ids()

    def files(self) -> set[str]:
        """Every file under the table's folder, as normalised paths."""
        return {str(path) for path in self.folder.rglob("*") if path.is_file()}

    def reachable(self) -> set[str]:
        loaded = self.loaded
        return {normalise(path) for path in reachable_files(self.reader, loaded.metadata_location)}

    def unreferenced(self) -> set[str]:
        """What lies about and nothing needs, metadata files apart."""
        return {path for path in self.files() - self.reachable() if not path.endswith(".metadata.json")}

    def verify(self) -> Verification:
        return verify_table(self.loaded, self.storage)

    def plant(self, relative: str, data: bytes = b"x", *, days_old: float = 10) -> str:
        """Write a file below the table's location; its path."""
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        grow_old([path], days_old)
        return str(path)

    def rewrite_document(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the current metadata file where it lies."""
        path = Path(normalise(self.loaded.metadata_location))
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))


def grow_old(paths: Iterable[Path], days: float = 10) -> None:
    then = time.time() - days * DAY_S
    for path in paths:
        os.utime(path, (then, then))


def _nothing() -> None:
    return None
