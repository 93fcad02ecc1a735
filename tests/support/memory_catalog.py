"""A catalog in memory that loses answers, swaps and tables on demand, and a commit with retries to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.transaction import Committed, CommitTerms, commit_with_retries
from icekeeper.errors import CatalogBusy, CommitRefused, CommitStateUnknown
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import apply_updates, check_requirements
from icekeeper.model import CatalogId, Nothing, TableName
from support.tables import new_document, snapshot

NAME = TableName(("ns",), "t")
Script = Callable[["MemoryCatalog", Callable[[], LoadedTable]], LoadedTable]


@dataclass
class MemoryCatalog:
    """A REST-like catalog that checks only requirements.  A script decides whether a commit lands."""

    id: CatalogId = field(default_factory=lambda: CatalogId("memory", ""))
    version: int = 1
    metadata: TableMetadata = field(default_factory=lambda: TableMetadata(new_document("s3://b/t", 2)))
    scripts: list[Script] = field(default_factory=list)
    load_errors: list[Exception] = field(default_factory=list)
    lagging: list[LoadedTable] = field(default_factory=list)
    commits: int = 0

    built_in_maintenance = None

    def list_tables(self) -> Iterator[TableName]:
        yield NAME

    def load(self, table: TableName) -> LoadedTable:
        if self.load_errors:
            raise self.load_errors.pop(0)
        if self.lagging:
            return self.lagging.pop(0)
        location = f"v{self.version}"
        return LoadedTable(table, self.metadata, location, location, {})

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self.commits += 1

        def land() -> LoadedTable:
            check_requirements(self.metadata, requirements)
            self.change(*updates)
            return self.load(base.name)

        return self.scripts.pop(0)(self, land) if self.scripts else land()

    def change(self, *updates: Mapping[str, Any]) -> None:
        self.metadata = apply_updates(self.metadata, updates, metadata_location=f"v{self.version}", now_ms=1)
        self.version += 1


def append(snapshot_id: int, sequence: int, parent: int | None = None) -> list[dict[str, Any]]:
    raw = snapshot(snapshot_id, format_version=2, sequence_number=sequence, parent_id=parent)
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    return [{"action": "add-snapshot", "snapshot": raw}, ref]


@dataclass
class Run:
    """A commit with retries; attempt n stages ``staged-n`` and adds snapshot 100 + n."""

    catalog: MemoryCatalog
    discarded: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    attempts: int = 0
    cannot_have_landed: bool = True
    traces: list[TableMetadata] = field(default_factory=list)
    renew: Callable[[], None] = lambda: None

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        self.attempts += 1
        wanted, current = 100 + self.attempts, head.metadata.current_snapshot
        parent = None if current is None else current.snapshot_id
        return PreparedCommit(
            requirements=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
            updates=append(wanted, head.metadata.last_sequence_number + 1, parent),
            landed=lambda metadata: wanted in metadata.snapshots,
            staged=[f"staged-{self.attempts}"],
            snapshot_id=wanted,
            cannot_have_landed=lambda metadata: self.cannot_have_landed,
        )

    def find_traces(self, base: LoadedTable) -> list[TableMetadata]:
        """The metadata files that the store holds besides the catalog's."""
        return self.traces

    def go(self, *, max_retries: int = 2, patience_s: float = 0.0) -> Committed | Nothing:
        return commit_with_retries(
            self.catalog,
            self.catalog.load(NAME),
            self.prepare,
            CommitTerms(
                max_retries=max_retries,
                patience_s=patience_s,
                discard=self.discarded.extend,
                pinned_metadata=tuple,
                renew=self.renew,
                traces=self.find_traces,
                sleep=self.waits.append,
                monotonic_s=lambda: sum(self.waits),
            ),
        )


def lost_to_another(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    catalog.change(*append(catalog.commits, catalog.metadata.last_sequence_number + 1))
    return land()


def unknown_and_lost(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    catalog.change(*append(catalog.commits, catalog.metadata.last_sequence_number + 1))
    raise CommitStateUnknown("no answer")


def unknown_but_landed(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    land()
    raise CommitStateUnknown("no answer")


def unknown(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    raise CommitStateUnknown("no answer")


def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    raise CommitRefused("HTTP 403: not you")


def busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    raise CatalogBusy("HTTP 429: later")
