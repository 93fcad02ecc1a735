"""A table under maintenance whose catalog, engine and storage can be interfered with at every step."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from unittest import mock

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import BuiltInMaintenance, Catalog, LoadedTable
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.clock import system_clock
from icekeeper.engines.local import LocalEngine
from icekeeper.metadata.reachability import reachable_files
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.report.outcome import PassOutcome
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.clocks import same_clock
from support.passes import NAME, THOROUGH
from support.readers import CanonicalRows, canonical, pyiceberg_rows

Task = TypeVar("Task")
Result = TypeVar("Result")
Hook = Callable[[], object]


def nothing() -> None:
    """What happens where nobody interferes."""


class WatchedCatalog:
    """A catalog that calls hooks; ``commit_instead`` replaces the commit itself."""

    def __init__(self, inner: Catalog) -> None:
        self.inner = inner
        self.before_load: Hook = nothing
        self.before_commit: Hook = nothing
        self.after_commit: Hook = nothing
        self.commit_instead: Callable[[LoadedTable, Sequence[Any], Sequence[Any]], LoadedTable] | None = None
        self.commits = 0

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def warehouse(self) -> str:
        return self.inner.warehouse

    @property
    def built_in_maintenance(self) -> BuiltInMaintenance | None:
        return self.inner.built_in_maintenance

    def list_tables(self) -> Iterator[TableName]:
        return self.inner.list_tables()

    def load(self, table: TableName) -> LoadedTable:
        self.before_load()
        return self.inner.load(table)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self.commits += 1
        self.before_commit()
        after = (self.commit_instead or self.inner.commit)(base, requirements, updates)
        self.after_commit()
        return after


class WatchedEngine(LocalEngine):
    """Runs in this process; ``during`` is called when every group is written, before anything is committed."""

    def __init__(self) -> None:
        super().__init__(1)
        self.during: Hook = nothing

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        results = super().map(function, tasks, on_done)
        self.during()
        return results


class SabotagedTable:
    """``ns.t`` in a SQL catalog below ``folder``; PyIceberg is the other writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.warehouse.mkdir(parents=True, exist_ok=True)
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder / 'catalog.db'}",
            "warehouse": self.warehouse.as_uri(),
        }
        self.writer = PyIcebergCatalog("local", **self.properties)
        self._sql = SqlCatalog("local", self.properties)
        self.catalog = WatchedCatalog(self._sql)
        self.engine = WatchedEngine()
        self.late_ms = 0
        """How much later it is, for the runtime, than the system's clock says."""
        self.waits: list[float] = []
        """Seconds that were waited for other writers."""
        self.runtime = Runtime(
            self.catalog,
            SqliteStateStore(folder / "state.db"),
            environment={},
            clock=lambda: system_clock() + self.late_ms,
            store_clock=same_clock,
            sleep=self.waits.append,
        )

    def close(self) -> None:
        self.writer.close()
        self._sql.close()

    def create(self, schema: pa.Schema, **properties: str) -> Table:
        self.writer.create_namespace_if_not_exists("ns")
        return self.writer.create_table("ns.t", schema=schema, properties=properties)

    def table(self) -> Table:
        return self.writer.load_table("ns.t")

    def maintain(self, **overrides: str) -> PassOutcome:
        return self.runtime.maintain(NAME, {**THOROUGH, **overrides}, self.engine, unsafe=True)

    def preview(self, **overrides: str) -> PassOutcome:
        """A dry run."""
        return self.runtime.maintain(NAME, {**THOROUGH, **overrides}, self.engine, dry_run=True, unsafe=True)

    def load(self) -> LoadedTable:
        return self.catalog.inner.load(NAME)

    def rows(self, snapshot_id: int | None = None) -> CanonicalRows:
        return canonical(pyiceberg_rows(self.load().metadata_location, snapshot_id))

    def reader(self) -> TableReader:
        loaded = self.load()
        return TableReader(loaded.metadata, Storage(loaded.io_properties).read)

    def files(self) -> set[str]:
        """Every file below the warehouse, normalised."""
        return {str(path) for path in self.warehouse.rglob("*") if path.is_file()}

    def reachable(self) -> set[str]:
        return {normalise(path) for path in reachable_files(self.reader(), self.load().metadata_location)}

    def unreachable(self) -> set[str]:
        """What lies about and nothing needs."""
        return self.files() - self.reachable()

    def assert_sound(self) -> None:
        """Every file is there and every count adds up."""
        verification = self.runtime.verify(NAME)
        assert not verification.problems


@contextmanager
def sabotaged_table(folder: Path) -> Iterator[SabotagedTable]:
    table = SabotagedTable(folder)
    try:
        yield table
    finally:
        table.close()


def restore(template: Path, folder: Path) -> None:
    """Put a folder back to what the template holds."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


class Steps:
    """Counts every step outwards (reads, writes, listings, deletions, swaps), and fails at one of them."""

    def __init__(self, fail_at: int | None, failure: Callable[[str], BaseException]) -> None:
        self.taken = 0
        self.where: str | None = None
        self._fail_at, self._failure, self._lock = fail_at, failure, threading.Lock()

    def step(self, what: str) -> None:
        with self._lock:
            self.taken += 1
            fails = self.taken == self._fail_at
        if fails:
            self.where = what
            raise self._failure(what)


class Interruptible(Protocol):
    """A table whose catalog calls hooks."""

    @property
    def catalog(self) -> WatchedCatalog: ...


@contextmanager
def counted_steps(
    table: Interruptible, fail_at: int | None, failure: Callable[[str], BaseException]
) -> Iterator[Steps]:
    """Every call to storage and catalog is a step; writes, deletions and commits are one before and one after."""
    steps = Steps(fail_at, failure)
    table.catalog.before_load = lambda: steps.step("load")
    table.catalog.before_commit = lambda: steps.step("before the commit")
    table.catalog.after_commit = lambda: steps.step("after the commit")

    def watched(name: str, *, after: bool) -> Any:
        original = getattr(Storage, name)

        def call(self: Storage, *args: Any, **kwargs: Any) -> Any:
            steps.step(f"before {name}")
            result = original(self, *args, **kwargs)
            if after:
                steps.step(f"after {name}")
            return result

        return mock.patch.object(Storage, name, call)

    with (
        watched("read", after=False),
        watched("list", after=False),
        watched("open_input", after=False),
        watched("write", after=True),
        watched("open_output", after=False),
        watched("delete", after=True),
    ):
        yield steps
