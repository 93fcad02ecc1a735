"""A table that maintainers and writers share, and its catalog, whose answers are lost, late, doubled or wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast
from unittest import mock

from icekeeper.catalogs.catalog import LoadedTable, missing_table
from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.pointer import TableFiles, commit_document, next_metadata_location
from icekeeper.errors import CatalogBusy, CommitConflict, CommitRefused, CommitStateUnknown, MaintenanceError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document, render_document
from icekeeper.metadata.updates import apply_updates, check_requirements, same_table
from icekeeper.model import CatalogId, TableName
from icekeeper.storage.storage import Storage
from support.maintained_table import NAME
from support.model.process import PROCESS, Maintainer, Process, all_watched
from support.model.reader import local

SENT_ANSWERS = (
    "lost",
    "silent",
    "late",
    "soon",
    "soon",
    "late twin",
    "doubled",
    "refused",
    "denied",
    "busy",
    "kill before",
    "kill after",
)
"""Faults of a process's commit."""
Landed = Callable[[TableMetadata | None, TableMetadata, str], None]


class Entries(Protocol):
    """The entries of a catalog with the metadata file of each table, and commits that are still pending."""

    @property
    def warehouse(self) -> str:
        """The address of the warehouse."""

    @property
    def late(self) -> list[Callable[[], object]]:
        """Commits that reach the catalog after the client has given up."""

    def names(self) -> Iterable[TableName]: ...

    def at(self, name: TableName) -> str | None:
        """The metadata file of a table; ``None`` if the table does not exist."""

    def put(self, name: TableName, location: str, document: TableMetadata, by: str) -> None:
        """Point an entry at another metadata file."""

    def deliver(self, commit: Callable[[], object] | None = None) -> None: ...


_BEGIN_MS = 1_790_000_000_000
"""September 2026, before any real time, so that a file that was not dated yet is young."""


@dataclass
class World:
    """A table: its folder, its metadata document, the clock of its store, and pending commits."""

    folder: Path
    by_requirements: bool
    """Whether the catalog checks requirements, as REST catalogs do, or swaps a pointer."""
    landed: Landed
    """Called with the states before and after each commit, and the author."""
    name: TableName = NAME
    metadata: TableMetadata | None = None
    location: str = ""
    """The location of the newest metadata file."""
    late: list[Callable[[], object]] = field(default_factory=list)
    ahead_ms: int = 0
    asked: int = 0
    """How often the time was asked for: each time takes a millisecond, so that a seed repeats the clock, too."""
    _dated: set[str] = field(default_factory=set)

    @property
    def warehouse(self) -> str:
        return (self.folder / "warehouse").as_uri()

    def names(self) -> Iterable[TableName]:
        return [self.name]

    def at(self, name: TableName) -> str | None:
        return self.location if name == self.name else None

    def put(self, name: TableName, location: str, document: TableMetadata, by: str) -> None:
        self.point_at(location, document, by)

    def now_ms(self) -> int:
        self.asked += 1
        return _BEGIN_MS + self.asked + self.ahead_ms

    @property
    def table(self) -> TableMetadata:
        assert self.metadata is not None
        return self.metadata

    def publish(self, document: TableMetadata, by: str) -> None:
        """Write a new state and make it the current one."""
        location = next_metadata_location(document, self.location)
        path = Path(local(location))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(render_document(document, compress=False))
        self.point_at(location, document, by)

    def point_at(self, location: str, document: TableMetadata, by: str) -> None:
        before, self.metadata, self.location = self.metadata, document, location
        self.landed(before, document, by)

    def change(self, by: str, **fields: Any) -> None:
        """Commit a writer's change of the document, logged as any other commit."""
        document = {**self.table.document, **fields}
        self.publish(
            apply_updates(TableMetadata(document), [], metadata_location=self.location, now_ms=self.now_ms()), by
        )

    def deliver(self, commit: Callable[[], object] | None = None) -> None:
        """Deliver a pending commit: this commit, unless it has arrived, or the oldest."""
        if commit is None:
            commit = self.late[0]
        if commit in self.late:
            self.late.remove(commit)
            with suppress(MaintenanceError):  # the answer is lost
                commit()

    def pass_time(self, hours: float) -> None:
        """Move the clock."""
        self.date_files()
        self.ahead_ms += int(hours * 3_600_000)

    @contextmanager
    def later(self, hours: float) -> Iterator[None]:
        """Do something at a later time, and then reset the clock."""
        self.pass_time(hours)
        try:
            yield
        finally:
            self.ahead_ms -= int(hours * 3_600_000)

    def date_files(self) -> None:
        """Date all new files by the clock of the store."""
        now_s = self.now_ms() / 1000
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = f"{folder}/{name}"
                if path not in self._dated:
                    self._dated.add(path)
                    with suppress(FileNotFoundError):
                        os.utime(path, (now_s, now_s))


class Client:
    """A catalog as a process sees it; ``identity`` is its name and warehouse in the process's configuration."""

    built_in_maintenance = None

    def __init__(self, entries: Entries, process: Process, identity: CatalogId) -> None:
        self.id = identity
        self._entries, self._process = entries, process
        self._files = TableFiles(ConfiguredCatalog(identity.name, CatalogKind.SQL, {"warehouse": entries.warehouse}))
        self._files._io_properties = {PROCESS: process.name}
        self._files.storage = Storage({PROCESS: process.name})

    def list_tables(self) -> Iterator[TableName]:
        return iter(self._entries.names())

    def load(self, table: TableName) -> LoadedTable:
        return cast(LoadedTable, self._process.outward("load", lambda: self._load(table)))

    def _load(self, table: TableName) -> LoadedTable:
        location = self._entries.at(table)
        if location is None:
            raise missing_table(self, table)
        return self._files.load(table, location, location)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        """As :meth:`icekeeper.catalogs.catalog.Catalog.commit`; the process's faults determine the answer."""
        return commit_document(
            base,
            requirements,
            updates,
            swap=lambda location: self._sent(lambda: self._swap(base, location)),
            storage=self._files.storage,
            load=self.load,
            conflict_is_proof=False,
        )

    def _sent(self, send: Callable[[], Any]) -> Any:
        self._process.commits += 1
        answer = self._process.answers.get(self._process.commits)
        return self._process.outward("commit", lambda: self._answered(send, answer))

    def _answered(self, send: Callable[[], Any], answer: str | None) -> Any:
        process, entries = self._process, self._entries
        if answer is not None:
            process.trace.append(f"{process.name}: commit {process.commits} is {answer} (step {process.steps})")
        if answer == "kill before":
            process.die("commit")
        if answer == "silent":
            raise CommitStateUnknown("no answer")
        if answer in ("late", "soon"):
            entries.late.append(send)
            if answer == "soon":  # while the process still checks for the commit, or right after
                process.soon.append((process.steps + 1 + 3 * process.steps % 10, lambda: entries.deliver(send)))
            raise CommitStateUnknown("no answer")
        if answer == "refused":
            raise CommitRefused("HTTP 403: not you")
        if answer == "busy":
            raise CatalogBusy("HTTP 429: later")
        try:
            result = send()
        except MaintenanceError:
            if answer in ("lost", "denied"):
                raise CommitStateUnknown("no answer") from None
            raise
        if answer == "kill after":
            process.die("commit")
        if answer == "lost":
            raise CommitStateUnknown("no answer")
        if answer == "denied":
            raise CommitRefused("HTTP 403: not you")
        if answer == "late twin":
            entries.late.append(send)
        return send() if answer == "doubled" else result

    def _swap(self, base: LoadedTable, location: str) -> str:
        if self._entries.at(base.name) != base.token:
            raise CommitConflict(f"{base.name} is no longer at {base.token}")
        document = parse_document(Path(local(location)).read_bytes(), location)
        self._entries.put(base.name, location, document, self._process.name)
        return location


class DecidingClient(Client):
    """A catalog that checks requirements, as REST catalogs do."""

    def __init__(self, world: World, process: Process, identity: CatalogId) -> None:
        super().__init__(world, process, identity)
        self._world = world

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        return cast(LoadedTable, self._sent(lambda: self._decide(base, requirements, updates)))

    def _decide(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        world = self._world
        if base.name != world.name:
            raise CommitRefused(f"HTTP 404: there is no table {base.name}")
        added = [update["snapshot"] for update in updates if update["action"] == "add-snapshot"]
        if world.table.format_version > 2 and any("first-row-id" not in snapshot for snapshot in added):
            raise CommitRefused("HTTP 400: Cannot add a snapshot: first-row-id is null")
        check_requirements(world.table, [*same_table(base.metadata), *requirements])
        after = apply_updates(world.table, updates, metadata_location=world.location, now_ms=world.now_ms())
        world.publish(after, self._process.name)
        return LoadedTable(base.name, after, world.location, world.location, base.io_properties)


def maintainer_of(world: World, name: str) -> Maintainer:
    """A process that maintains the table of a world."""
    identity = CatalogId("model", world.warehouse)
    kind = DecidingClient if world.by_requirements else Client

    def catalog(process: Process) -> Client:
        return kind(world, process, identity)

    return Maintainer(name, world.folder, catalog, world.now_ms, before_listing=world.date_files)


@contextmanager
def watched(world: World, *, leases: bool) -> Iterator[None]:
    """As :func:`all_watched`; the catalog has the clock of the world."""
    with (
        all_watched(leases=leases),
        mock.patch("icekeeper.catalogs.pointer.system_clock", world.now_ms),
        mock.patch("icekeeper.catalogs.pointer.store_now_ms", side_effect=lambda *_: world.now_ms()),
    ):
        yield
