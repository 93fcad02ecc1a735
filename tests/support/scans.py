"""Scans over catalogs of prepared answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import FleetReport
from icekeeper.detection.scan import Scanner
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import CatalogId, TableName
from icekeeper.policy import Policy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import Glance
from icekeeper.storage.allowed_locations import AllowedLocations
from support.settings import NOW_MS, policy, resolved

# A catalog of prepared answers, for scans.


_NO_FILES = AllowedLocations((), from_operator=True).put_into({})


class PreparedCatalog:
    """Its tables have no files: a scan that reads one is refused, and asks no store.

    ``load`` raises an exception given in place of metadata; ``loads`` lists the loaded tables in order."""

    def __init__(
        self,
        tables: Mapping[str, TableMetadata | Exception],
        *,
        name: str = "C",
        warehouse: str = "s3://prod-lake/",
        on_load: Callable[[], object] = lambda: None,
    ) -> None:
        self.tables = dict(tables)
        self.id = CatalogId(name, warehouse)
        self.loads: list[str] = []
        self._on_load = on_load

    built_in_maintenance = None

    def list_tables(self) -> Iterator[TableName]:
        return iter([TableName.parse(name) for name in self.tables])

    def load(self, table: TableName) -> LoadedTable:
        self.loads.append(str(table))
        self._on_load()
        found = self.tables[str(table)]
        if isinstance(found, Exception):
            raise found
        return LoadedTable(table, found, "m", "m", _NO_FILES)

    def commit(self, base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        raise AssertionError("detection never commits")


# A scan over prepared catalogs with a state that counts its reads and writes.

FILES = "{} data files of 1 MB on average are below 192 MB"
IDLE = "no sign of work"


class CountedState(SqliteStateStore):
    """Counts the reads and writes of a scan."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.glances: Counter[TableIdentity] = Counter()
        self.stats_written: list[str] = []
        record = self.lake_stats.record

        def counting(*stats: Any) -> None:
            self.stats_written.extend(str(recorded.identity.table) for recorded in stats)
            record(*stats)

        self.lake_stats.record = counting  # type: ignore[method-assign]

    def glance(self, identity: TableIdentity, *, now_ms: int) -> Glance:
        self.glances[identity] += 1
        return super().glance(identity, now_ms=now_ms)


def source(catalog: PreparedCatalog) -> CatalogSource:
    return CatalogSource(catalog.id.name, lambda: catalog)


def with_uuid(metadata: TableMetadata, uuid: str) -> TableMetadata:
    return TableMetadata({**metadata.document, "table-uuid": uuid})


def scanned(
    state: SqliteStateStore,
    *catalogs: PreparedCatalog | CatalogSource,
    environment: Mapping[str, str] | None = None,
    cursor: tuple[str, str] | None = None,
    threads: int = 2,
    **values: object,
) -> FleetReport:
    """A scan with these deployment settings; ``environment`` reaches the tables' policies."""

    sources = [source(c) if isinstance(c, PreparedCatalog) else c for c in catalogs]
    return scanner_of(policy(**values).policy, state, environment, threads=threads).scan(sources, cursor)


def scanner_of(
    settings: Policy,
    state: SqliteStateStore,
    environment: Mapping[str, str] | None = None,
    *,
    threads: int = 1,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Scanner:
    return Scanner(
        settings,
        state,
        NOW_MS,
        resolve_policy=lambda catalog, loaded: resolved(loaded.metadata.properties, environment or {}),
        plan_sweep=state.sweeps.record,
        threads=threads,
        monotonic_s=monotonic_s,
    )


def request(name: str, uuid: str = "", requested_ms: int = 1, **settings: str) -> MaintenanceRequest:
    identity = TableIdentity(CatalogId("C", "s3://prod-lake/"), TableName.parse(name), uuid, "s3://b/t")
    return MaintenanceRequest(identity=identity, requested_ms=requested_ms, settings=settings)


def names(report: FleetReport) -> list[str]:
    return [item.table for item in report.proposals]
