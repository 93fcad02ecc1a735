"""A table under maintenance: registered where it lies, passed over, verified, looked at file by file."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ValidationError

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.engine import Engine
from icekeeper.engines.local import LocalEngine
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent, TableName
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage.paths import split_path
from icekeeper.storage.storage import Storage

NAME = TableName(("ns",), "t")

# Everything that may go goes at once: one snapshot stays, orphans have no grace, two of anything are too many.
THOROUGH = {
    "min_input_files": "2",
    "snapshot_retention_hours": "0",
    "max_snapshots_to_keep": "1",
    "orphan_older_than_hours": "0",
    "min_manifests_to_rewrite": "2",
}
KEEPING_SNAPSHOTS = {"operations": "compact,remove_orphans,rewrite_manifests"}


class TableUnderMaintenance:
    """One table in a SQLite catalog of its own."""

    def __init__(self, metadata_location: str, folder: Path, *, engine: Engine | None = None) -> None:
        uri = f"sqlite:///{folder / 'catalog.db'}"
        catalog = SqlCatalog("local", uri=uri, warehouse=folder.as_uri())
        catalog.create_namespace(NAME.namespace)
        with suppress(ValidationError):  # v1's inline manifests: registered, though PyIceberg cannot parse them
            catalog.register_table((*NAME.namespace, NAME.name), metadata_location)
        catalog.close()
        properties = {"type": "sql", "uri": uri, "warehouse": folder.as_uri()}
        state = SqliteStateStore(folder / "state.db")
        self.runtime = Runtime(open_catalog("local", properties), state, environment={})
        self._engine = engine or LocalEngine(1)  # in this process: the groups are small

    def maintain(self, **overrides: str) -> PassOutcome:
        location = self.runtime.catalog.load(NAME).metadata.location
        # Everything below the location, as Iceberg-Java sweeps it.
        settings = {**THOROUGH, "orphan_sweep_prefixes": location, **overrides}
        return self.runtime.maintain(NAME, settings, self._engine, unsafe=True)

    @property
    def metadata_location(self) -> str:
        return self.runtime.catalog.load(NAME).metadata_location

    def reader(self) -> TableReader:
        loaded = self.runtime.catalog.load(NAME)
        return TableReader(loaded.metadata, Storage(loaded.io_properties).read)

    def problems(self) -> Counter[tuple[str, str]]:
        """What ``verify`` finds, by kind and file."""
        return Counter((problem.kind.value, problem.path) for problem in self.runtime.verify(NAME).problems)

    def live_files(self) -> set[str]:
        """Data and delete files of the current snapshot, as it spells them."""
        reader = self.reader()
        snapshot = reader.metadata.current_snapshot
        assert snapshot is not None
        return {path for _, (path, _) in reader.live_keys(reader.manifests(snapshot))}

    def live_deletes(self) -> Counter[str]:
        """Delete files of the current snapshot by content."""
        reader = self.reader()
        snapshot = reader.metadata.current_snapshot
        assert snapshot is not None
        deletes = [m for m in reader.manifests(snapshot) if m.content is ManifestContent.DELETES]
        return Counter(e.file.content.name for _, entries in reader.entries(deletes) for e in entries if e.is_live)


def local_path(path: str) -> Path:
    """Where a ``file:`` address lies; nothing in it is decoded."""
    return Path(split_path(path).key)


def outcome_of(outcome: PassOutcome, operation: Operation) -> OperationOutcome:
    """The part of a pass that one operation had."""
    return next(part for part in outcome.operations if part.operation is operation)
