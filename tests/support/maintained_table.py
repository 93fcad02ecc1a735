"""A local table that other writers and Icekeeper use, its files, its clock, and outcomes of passes."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import Table

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.engines.engine import Engine
from icekeeper.machine.clock import HOUR_MS, Clock, system_clock
from icekeeper.maintenance.run_pass import run_pass
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.table_reader import TableReader, reachable_files
from icekeeper.model import DataFile, FileContent, ManifestEntry, TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.activity import Progress, silent
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status, in_turn
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise, split_path
from icekeeper.storage.storage import Storage, StoreClock, store_now_ms
from icekeeper.verification.checks import Verification
from icekeeper.verification.verify import verify_table
from support import ready_tables
from support.readers import CanonicalRows, canonical, duckdb_rows, pyiceberg_ids, pyiceberg_rows
from support.scripted_catalog import ScriptedCatalog, ScriptedEngine

# Clocks of stores, for tests that set the time.


def ahead(hours: float) -> Callable[[], int]:
    """A clock that is so many hours ahead of this machine's."""
    return lambda: system_clock() + int(hours * HOUR_MS)


def same_clock(storage: Storage, location: str, may_write: bool) -> int | None:
    """The store has the clock of the test, so there is never a skew."""
    return None


def store_at(now_ms: Callable[[], int]) -> Callable[[Storage, str, bool], int | None]:
    """A store with a separate clock."""
    return lambda storage, location, may_write: now_ms()


# Files of local tables and their locations.

DAY_S = 86_400


def local_path(path: str) -> Path:
    """The path of a ``file:`` address, without decoding."""
    return Path(split_path(path).key)


def files_below(folder: Path) -> set[str]:
    """Every file below a folder, as normalised paths."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def grow_old(paths: Iterable[Path], days: float = 10) -> None:
    """Set the modification time of files to so many days ago."""
    then = time.time() - days * DAY_S
    for path in paths:
        os.utime(path, (then, then))


# Outcomes of passes.


def outcome_of(outcome: PassOutcome, operation: Operation) -> OperationOutcome:
    """The outcome of an operation within a pass."""
    return next(part for part in outcome.operations if part.operation is operation)


# Settings of passes in tests.

EAGER = {
    "min_input_files": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_older_than_hours": "0",
    "min_manifests_to_rewrite": "2",
}
"""A pass removes all it may: it keeps one snapshot, orphans have no grace period, and all thresholds are two."""

KEEPING_SNAPSHOTS: dict[str, Any] = {"operations": "compact,remove_orphans,rewrite_manifests"}


# A local table with other writers: PyIceberg or others write, Icekeeper maintains, and a test chooses the moments.

NAME = TableName(("ns",), "t")
ID_AND_PART = pa.schema([pa.field("id", pa.int64()), pa.field("part", pa.string())])
"""The table's columns by default."""


class MaintainedTable:
    """``ns.t`` in any catalog, with a separate state store.

    :func:`new_table`, :func:`registered_table` and :func:`maintained_table` make a table in a new SQLite catalog.
    """

    def __init__(
        self, catalog: Catalog, folder: Path, *, pyiceberg: SqlCatalog | None = None, sweeps_all: bool = False
    ) -> None:
        """``sweeps_all``: passes sweep everything below the location, as Iceberg-Java does."""
        self.catalog = ScriptedCatalog(catalog)
        self.engine = ScriptedEngine()
        self.state = SqliteStateStore(folder / "state.db")
        self.late_ms = 0
        """How far the clocks of passes and of the store are ahead of the system's clock."""
        self.waits: list[float] = []
        """Seconds that passes waited for other writers; they do not really sleep; the monotonic clock is the sum."""
        self.runtime = self.runtime_with()
        self._pyiceberg, self._sweeps_all = pyiceberg, sweeps_all

    # -- writers

    @property
    def pyiceberg(self) -> SqlCatalog:
        """The same catalog as PyIceberg sees it."""
        assert self._pyiceberg is not None, "only another engine writes to this table"
        return self._pyiceberg

    @property
    def table(self) -> Table:
        """The table as PyIceberg sees it now."""
        return self.pyiceberg.load_table("ns.t")

    def create(self, schema: Any = ID_AND_PART, **options: Any) -> Table:
        """Create the table with PyIceberg."""
        self.pyiceberg.create_namespace_if_not_exists("ns")
        return self.pyiceberg.create_table("ns.t", schema=schema, **options)

    def create_beside(self, name: str, location: str, **properties: str) -> Table:
        """Create another table in the catalog."""
        return self.pyiceberg.create_table(name, schema=ID_AND_PART, location=location, properties=properties)

    def append(self, *ids: int, part: str | None = "p") -> None:
        """Append a file with these ids."""
        self.table.append(self.new_rows(*ids, part=part))

    def fill(self, files: int, *, part: str = "p", start: int = 0) -> None:
        """Append that many files of two rows; an empty table gets a copy of files that an earlier call wrote."""

        def write() -> None:
            for number in range(start, start + files):
                self.append(number * 10, number * 10 + 1, part=part)

        table = self.table
        if table.metadata.snapshots:
            write()
        else:
            ready_tables.fill(self.pyiceberg, table, ("fill", files, part, start), write)

    def new_rows(self, *ids: int, part: str | None = "p") -> pa.Table:
        """Rows for this table or another table with its columns."""
        return pa.table({"id": list(ids), "part": [part] * len(ids)}, schema=ID_AND_PART)

    # -- passes

    def runtime_with(
        self, *, catalog: Catalog | None = None, clock: Clock | None = None, store_clock: StoreClock | None = None
    ) -> Runtime:
        """The runtime of a command; ``clock`` is also the store's clock, unless ``store_clock`` is given."""
        return Runtime(
            catalog or self.catalog,
            self.state,
            environment={"ICEKEEPER_TABLE_SETTINGS": "all"},  # tables may set targets of kilobytes
            clock=clock or self._now,
            store_clock=store_clock or (same_clock if clock else self._store_now),
            sleep=self.waits.append,
            monotonic_s=lambda: sum(self.waits),
            other_catalog=lambda recorded: None,
        )

    def maintain(
        self,
        operations: str = "all",
        *,
        catalog: Catalog | None = None,
        engine: Engine | None = None,
        dry_run: bool = False,
        run_id: str | None = None,
        clock: Clock | None = None,
        store_clock: StoreClock | None = None,
        progress: Progress = silent,
        **settings: str,
    ) -> PassOutcome:
        """Run a pass that removes all it may (:data:`support.maintained_table.EAGER`).

        Without a ``run_id``, the pass is that of a command, which a pipeline's lease keeps out.
        """
        runtime = self.runtime_with(catalog=catalog, clock=clock, store_clock=store_clock)
        chosen = {**EAGER, **settings}
        if operations != "all":
            chosen["operations"] = operations
        if self._sweeps_all:
            chosen.setdefault("orphan_sweep_prefixes", self.metadata.location)
        if run_id is None:
            more: dict[str, Any] = {"dry_run": dry_run, "unsafe": True, "progress": progress, "names_table": True}
            return runtime.maintain(NAME, chosen, engine or self.engine, **more)
        loaded = runtime.catalog.load(NAME)
        resolved = runtime.policy(loaded, chosen, unsafe=True)
        return run_pass(runtime.context(loaded, resolved, engine or self.engine, run_id=run_id, dry_run=dry_run))

    def run(self, operation: Operation, **more: Any) -> OperationOutcome:
        """Run a pass with a single operation and return its outcome."""
        (outcome,) = self.maintain(operation.value, **more).operations
        return outcome

    def _now(self) -> int:
        return system_clock() + self.late_ms

    def _store_now(self, storage: Storage, location: str, may_write: bool) -> int | None:
        return None if self.late_ms else store_now_ms(storage, location, may_write)

    # -- the table's state; these calls bypass the hooks of the catalog

    @property
    def loaded(self) -> LoadedTable:
        return self.catalog.inner.load(NAME)

    @property
    def metadata(self) -> TableMetadata:
        return self.loaded.metadata

    @property
    def metadata_location(self) -> str:
        return self.loaded.metadata_location

    @property
    def storage(self) -> Storage:
        return Storage(self.loaded.io_properties)

    @property
    def handle(self) -> TableHandle:
        """The table as commands that change its records open it."""
        return TableHandle(self.catalog, NAME, self.state, system_clock)

    @property
    def folder(self) -> Path:
        """The table's location."""
        return Path(normalise(self.metadata.location))

    @property
    def reader(self) -> TableReader:
        loaded = self.loaded
        return TableReader(loaded.metadata, Storage(loaded.io_properties).read)

    def entries(self, snapshot_id: int | None = None) -> list[ManifestEntry]:
        """The live entries of a snapshot, by default of the head."""
        reader = self.reader
        snapshot = reader.metadata.snapshots[snapshot_id] if snapshot_id else reader.metadata.current_snapshot
        assert snapshot is not None
        return [e for _, found in reader.entries(reader.manifests(snapshot)) for e in found if e.is_live]

    def data_files(self) -> list[DataFile]:
        return [entry.file for entry in self.entries()]

    def live_files(self) -> set[str]:
        """Paths of data and delete files of the current snapshot, as its manifests spell them."""
        return {entry.file.file_path for entry in self.entries()}

    def live_deletes(self) -> Counter[str]:
        """Delete files of the current snapshot by content."""
        return Counter(e.file.content.name for e in self.entries() if e.file.content is not FileContent.DATA)

    def rows(self, snapshot_id: int | None = None) -> CanonicalRows:
        """The rows as PyIceberg reads them."""
        return canonical(pyiceberg_rows(self.metadata_location, snapshot_id))

    def ids(self, snapshot_id: int | None = None) -> list[int]:
        """The ids as PyIceberg reads them."""
        return pyiceberg_ids(self.metadata_location, snapshot_id)

    def readers_agree(self) -> list[int]:
        """The ids at the head; PyIceberg and DuckDB must read the same."""
        assert canonical(duckdb_rows(self.metadata_location)) == self.rows()
        return self.ids()

    def files(self) -> set[str]:
        """Every file below the table's location, as normalised paths."""
        return files_below(self.folder)

    def reachable(self) -> set[str]:
        loaded = self.loaded
        return {normalise(path) for path in reachable_files(self.reader, loaded.metadata_location)}

    def unreferenced(self) -> set[str]:
        """Files that are not reachable, except metadata files."""
        return {path for path in self.files() - self.reachable() if not path.endswith(".metadata.json")}

    def verify(self) -> Verification:
        return verify_table(self.loaded, self.storage)

    def problems(self) -> Counter[tuple[str, str]]:
        """The problems that ``verify`` finds, by kind and file."""
        return Counter((problem.kind.value, problem.path) for problem in self.verify().problems)

    def assert_sound(self) -> None:
        """Check that every file is present and every count adds up."""
        assert not self.problems()

    # -- changes to files without a commit

    def plant(self, relative: str, data: bytes = b"x", *, days_old: float = 10) -> str:
        """Write a file below the table's location and return its path."""
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        grow_old([path], days_old)
        return str(path)

    def rewrite_document(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the current metadata file in place."""
        path = Path(normalise(self.metadata_location))
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))


def new_table(
    pyiceberg: SqlCatalog, folder: Path, *, appends: int = 0, allowed: Path | None = None, **options: Any
) -> MaintainedTable:
    """A new table with :data:`ID_AND_PART` in a PyIceberg catalog whose database and warehouse are in the folder.

    ``appends`` is the number of files of two rows.  ``allowed`` is the prefix where the operator allows files of
    tables; the default is the warehouse.
    """
    table = MaintainedTable(our_catalog(folder, allowed=allowed), folder, pyiceberg=pyiceberg)
    table.create(**options)
    if appends:
        table.fill(appends)
    return table


def compacted(table: MaintainedTable, **settings: Any) -> OperationOutcome:
    """Run a pass with only compaction and return its outcome."""
    return table.run(Operation.COMPACT, **settings)


def registered_table(metadata_location: str, folder: Path) -> MaintainedTable:
    """A table at any location, registered in a new catalog in the folder."""
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri())
    catalog.create_namespace(NAME.namespace)
    with suppress(ValidationError):  # PyIceberg registers a table with v1's inline manifests, but cannot parse it
        catalog.register_table((*NAME.namespace, NAME.name), metadata_location)
    catalog.close()
    metadata_path = Path(normalise(metadata_location))
    home = parse_document(metadata_path.read_bytes(), metadata_location).location
    ours = our_catalog(folder, folder, allowed=f"{metadata_path.parent.parent},{home}")
    return MaintainedTable(ours, folder, sweeps_all=True)


@contextmanager
def maintained_table(folder: Path) -> Iterator[MaintainedTable]:
    """A new catalog in the folder, closed at the end; the test creates the table with any columns."""
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True, exist_ok=True)
    writer = SqlCatalog("local", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=warehouse.as_uri())
    ours = our_catalog(folder)
    try:
        yield MaintainedTable(ours, folder, pyiceberg=writer)
    finally:
        writer.close()
        ours.close()


def our_catalog(folder: Path, warehouse: Path | None = None, allowed: Path | str | None = None) -> OurSqlCatalog:
    """Icekeeper's view of the SQLite catalog of a folder; ``allowed`` as in :func:`new_table`."""
    address = (warehouse or folder / "warehouse").as_uri()
    properties = {"uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": address}
    rules = os.environ.get(ALLOWED_PREFIXES, "") if allowed is None else f"*={address},{allowed}"
    return OurSqlCatalog(ConfiguredCatalog("local", CatalogKind.SQL, properties, rules))


# Dry runs and the passes that follow them must report the same figures.


def figures(outcome: OperationOutcome) -> list[str]:
    """The numbers in a summary that a dry run also reports: of statistics the columns, but no count of entries."""
    found = re.findall(r"\d+", re.sub(r"\(\d+ entries\)", "", outcome.summary))
    return found[:1] if outcome.operation is Operation.COMPUTE_STATISTICS else found


def dry_run(made: MaintainedTable, operations: str = "all", **settings: Any) -> PassOutcome:
    """Run a dry run, which must change neither the table nor its files."""
    before = made.files(), made.metadata_location
    outcome = made.maintain(operations, dry_run=True, **settings)
    assert (made.files(), made.metadata_location) == before
    return in_turn(outcome)


def assert_agree(would: PassOutcome, did: PassOutcome) -> None:
    """Check that both have the same operations, statuses and figures, and that the pass changes the planned files.

    The summary of the pass may have further figures that only the work yields.
    """
    assert [part.operation for part in would.operations] == [part.operation for part in did.operations]
    for planned, done in zip(would.operations, did.operations, strict=True):
        sentences = f"{planned.operation.value}: {planned.summary} / {done.summary}"
        assert planned.status == done.status, sentences
        assert figures(planned) == figures(done)[: len(figures(planned))], sentences
        assert set(planned.files_planned) <= set(done.files_planned), sentences


# Sweeps of a table for orphans.

ORPHANS = Operation.REMOVE_ORPHANS
SETTINGS = {"orphan_older_than_hours": "72"}


def sweep(table: MaintainedTable, **more: Any) -> OperationOutcome:
    return table.run(ORPHANS, **{**SETTINGS, **more})


def metadata_of(table: MaintainedTable, **changes: Any) -> bytes:
    return json.dumps({**table.metadata.document, **changes}).encode()


def assert_refused(table: MaintainedTable, *words: str, **more: Any) -> None:
    """Check that a sweep is refused with these words in its reason, and deletes no file."""
    table.plant("data/bait.parquet")
    before = table.files()
    outcome = sweep(table, **more)
    assert outcome.status is Status.REFUSED, outcome
    assert outcome.files_deleted == ()
    for word in words:
        assert word in (outcome.reason or ""), outcome.reason
    assert table.files() >= before


# Passes without leases: the guards of rows and files must still hold.


@contextmanager
def without_leases() -> Iterator[None]:
    """Within the block, every pass of this process runs as if it held its table's lease."""
    unguarded = SimpleNamespace(is_lost=False, require=lambda: None)
    with mock.patch("icekeeper.maintenance.run_pass.leased", return_value=nullcontext(unguarded)):
        yield
