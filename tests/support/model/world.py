"""The store and the catalog that two maintainers and many writers share, and all that goes wrong between them.

A maintainer is a process that may take so many steps outwards (a request to the store, the catalog or the state, a
wait) and then stands still until it may take more.  At any of these it may die: then every further step of it fails,
as after SIGKILL.  A store may fail before or after it acted.  A catalog's answer may be lost, late, doubled or wrong.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

from icekeeper.catalogs.catalog import LoadedTable, missing_table
from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.pointer import TableFiles, commit_document, next_metadata_location
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document, render_document
from icekeeper.metadata.updates import apply_updates, check_requirements, same_table
from icekeeper.model import CatalogId, TableName
from icekeeper.report.outcome import PassOutcome
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteFile, SqliteTable
from icekeeper.state.store import StateStore
from icekeeper.storage.storage import DeleteReport, Storage
from support.maintained_table import NAME, without_leases
from support.model.reader import local

# A process of ours, and its steps outwards.

PROCESS = "model.process"
"""The FileIO property that says whose store it is."""
_STUCK_S = 30.0


class Killed(BaseException):
    """The process was killed; nothing of it that reaches outwards happens any more."""


@dataclass
class Process:
    """One pass at a time, in a thread of its own, as many steps at a time as it is allowed."""

    name: str
    faults: dict[int, str] = field(default_factory=dict)
    """What goes wrong at which step outwards: ``kill before``, ``kill after``, ``fail before``, ``fail after``."""
    answers: dict[int, str] = field(default_factory=dict)
    """What goes wrong with which commit (:meth:`Client.commit`)."""
    steps: int = 0
    commits: int = 0
    is_killed: bool = False
    outcome: PassOutcome | BaseException | None = None
    trace: list[str] = field(default_factory=list)
    before_listing: Callable[[], None] = lambda: None
    soon: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """What happens elsewhere before which step."""
    _thread: threading.Thread | None = None
    _left: int = 0
    _waiting: int = 0
    _outside: int = 0
    """Its threads that wait for their turn, and those that are in a step."""
    _inside: threading.local = field(default_factory=threading.local)
    _turn: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_at_work(self) -> bool:
        return self._thread is not None

    def begin(self, work: Callable[[], PassOutcome]) -> None:
        """Start a pass, which stands still before its first step outwards."""
        assert self._thread is None
        self.steps = self.commits = self._left = self._waiting = self._outside = 0
        self.soon.clear()
        self.is_killed, self.outcome = False, None

        def run() -> None:
            try:
                self.outcome = work()
            except BaseException as error:
                self.outcome = error
            with self._turn:
                self._turn.notify_all()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def go(self, steps: int) -> None:
        """Let the pass take so many steps; return when it has, or when it has ended."""
        thread = self._thread
        assert thread is not None
        until = time.monotonic() + _STUCK_S
        with self._turn:
            self._left = steps
            self._turn.notify_all()
            while self.outcome is None and not self._stands_still:
                self._turn.wait(1)
                assert time.monotonic() < until, f"{self.name} is stuck after {self.steps} steps"
        if self.outcome is not None:
            thread.join(_STUCK_S)
            self._thread = None

    @property
    def _stands_still(self) -> bool:
        return self._left <= 0 and self._waiting > 0 and not self._outside

    def outward(self, what: str, call: Callable[[], Any]) -> Any:
        """One step outwards: a request, and what comes back of it."""
        is_inner = getattr(self._inside, "is_outside", False)  # such as the read of a metadata file within a load
        with self._turn:
            self._outside -= is_inner
            self._waiting += 1
            if self._stands_still:
                self._turn.notify_all()
            while self._left <= 0 and not self.is_killed:
                self._turn.wait()
            self._waiting -= 1
            self._outside += 1
            if self.is_killed:
                self._outside -= not is_inner
                raise Killed
            self._left -= 1
            self.steps += 1
            fault = self.faults.get(self.steps)
        self._inside.is_outside = True
        try:
            return self._sent(what, call, fault)
        finally:
            self._inside.is_outside = is_inner
            with self._turn:
                self._outside -= not is_inner
                if self._stands_still:
                    self._turn.notify_all()

    def _sent(self, what: str, call: Callable[[], Any], fault: str | None) -> Any:
        for step, happen in [one for one in self.soon if one[0] <= self.steps]:
            self.soon.remove((step, happen))
            happen()
        if fault == "kill before":
            self.die(what)
        if fault == "fail before":
            return self._fail(what, fault)
        result = call()
        if fault == "kill after":
            self.die(what)
        return self._fail(what, fault) if fault == "fail after" else result

    def _fail(self, what: str, fault: str) -> Any:
        self.trace.append(f"{self.name}: {fault} {what} (step {self.steps})")
        if what == "delete":  # never raises (:meth:`.Storage.delete`)
            return None
        if (what, fault) == ("commit", "fail after"):  # a catalog never says that it failed before
            raise CommitStateUnknown("no answer")
        raise StorageError(f"the store failed {fault.removeprefix('fail ')} {what}")

    def die(self, what: str) -> None:
        """End the process here."""
        self.trace.append(f"{self.name}: killed at {what} (step {self.steps})")
        self.kill()
        raise Killed

    def kill(self) -> None:
        """Let every further step of the process fail."""
        with self._turn:
            self.is_killed = True
            self._turn.notify_all()


_PROCESSES: dict[str, Process] = {}


def _watched(name: str) -> Any:
    original = getattr(Storage, name)

    def call(self: Storage, *args: Any, **kwargs: Any) -> Any:
        process = _PROCESSES.get(self._properties.get(PROCESS, ""))
        if process is None:
            return original(self, *args, **kwargs)
        if name in ("list", "list_folder", "divide", "status"):
            process.before_listing()
        paths = list(args[0]) if name == "delete" else []
        if name == "delete":
            args = (paths, *args[1:])
        result = process.outward(name, lambda: original(self, *args, **kwargs))
        if name == "delete" and result is None:
            return DeleteReport((), dict.fromkeys(paths, "the store failed"), frozenset(paths))
        return result

    return mock.patch.object(Storage, name, call)


_REQUESTS = (
    "read",
    "read_end",
    "write",
    "open_input",
    "open_output",
    "list",
    "list_folder",
    "divide",
    "status",
    "size",
)


class _Items(SqliteTable):
    """A state store's items, each change of which is a step outwards; none inside a transaction."""

    def __init__(self, file: SqliteFile, process: Process) -> None:
        super().__init__(file)
        self._process = process
        self._inside = threading.local()

    def _step(self, what: str, call: Callable[[], Any]) -> Any:
        if getattr(self._inside, "depth", 0) or threading.current_thread().name == "icekeeper-lease":
            return call()  # the lease's own thread counts real seconds

        def inside() -> Any:
            self._inside.depth = 1
            try:
                return call()
            finally:
                self._inside.depth = 0

        return self._process.outward(f"state {what}", inside)

    def put_all(self, items: Any) -> None:
        items = list(items)
        self._step("put", lambda: super(_Items, self).put_all(items))

    def change(self, pk: str, sk: str, decide: Any) -> bool:
        return bool(self._step("change", lambda: super(_Items, self).change(pk, sk, decide)))

    def set_if(self, pk: str, sk: str, values: Any, **conditions: Any) -> Any:
        return self._step("set", lambda: super(_Items, self).set_if(pk, sk, values, **conditions))

    def delete(self, pk: str, sk: str) -> None:
        self._step("delete", lambda: super(_Items, self).delete(pk, sk))

    def delete_all(self, pk: str, sks: Any) -> None:
        sks = list(sks)
        self._step("delete", lambda: super(_Items, self).delete_all(pk, sks))

    def clear(self, pk: str) -> None:
        self._step("clear", lambda: super(_Items, self).clear(pk))

    @contextmanager
    def together(self, *, to_read: bool = False) -> Iterator[None]:
        self._step("transaction", lambda: None)
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            with super().together(to_read=to_read):
                yield
        finally:
            self._inside.depth -= 1


# The catalog.

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
Landed = Callable[[TableMetadata | None, TableMetadata, str], None]


@dataclass
class World:
    """One table: its folder, its metadata document, the clock of its store, and commits that are still on their way."""

    folder: Path
    by_requirements: bool
    """Whether the catalog decides by requirements, as REST catalogs do, or swaps a pointer."""
    landed: Landed
    """Called with the states before and after each commit, and who made it."""
    name: TableName = NAME
    metadata: TableMetadata | None = None
    location: str = ""
    """Of the newest metadata file."""
    late: list[Callable[[], object]] = field(default_factory=list)
    """Commits that reach the catalog after the client gave up."""
    ahead_ms: int = 0
    _dated: set[str] = field(default_factory=set)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

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
        """A writer's change of the document, logged as any other commit."""
        document = {**self.table.document, **fields}
        self.publish(
            apply_updates(TableMetadata(document), [], metadata_location=self.location, now_ms=self.now_ms()), by
        )

    def deliver(self, one: Callable[[], object] | None = None) -> None:
        """Bring in a commit that was on its way: this one, unless it is there by now, or the oldest."""
        if one is None:
            one = self.late[0]
        if one in self.late:
            self.late.remove(one)
            with suppress(MaintenanceError):  # nobody hears the answer
                one()

    def pass_time(self, hours: float) -> None:
        """Move the clock."""
        self.date_files()
        self.ahead_ms += int(hours * 3_600_000)

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
    """The catalog as one process sees it."""

    built_in_maintenance = None

    def __init__(self, world: World, process: Process) -> None:
        self.id = CatalogId("model", (world.folder / "warehouse").as_uri())
        self._world, self._process = world, process
        self._files = TableFiles(ConfiguredCatalog("model", CatalogKind.SQL, {"warehouse": self.id.warehouse}))
        self._files._io_properties = {PROCESS: process.name}
        self._files.storage = Storage({PROCESS: process.name})

    def list_tables(self) -> Iterator[TableName]:
        return iter([self._world.name])

    def load(self, table: TableName) -> LoadedTable:
        return cast(LoadedTable, self._process.outward("load", lambda: self._load(table)))

    def _load(self, table: TableName) -> LoadedTable:
        if table != self._world.name:
            raise missing_table(self, table)
        return self._files.load(table, self._world.location, self._world.location)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        """As :meth:`icekeeper.catalogs.catalog.Catalog.commit`; how it is answered the process's faults say."""
        if self._world.by_requirements:

            def send() -> LoadedTable:
                return self._decide(base, requirements, updates)

            return cast(LoadedTable, self._sent(send))
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
        process, world = self._process, self._world
        if answer is not None:
            process.trace.append(f"{process.name}: commit {process.commits} is {answer} (step {process.steps})")
        if answer == "kill before":
            process.die("commit")
        if answer == "silent":
            raise CommitStateUnknown("no answer")
        if answer in ("late", "soon"):
            world.late.append(send)
            if answer == "soon":  # while the process still looks for it, or right after
                process.soon.append((process.steps + 1 + 3 * process.steps % 10, lambda: world.deliver(send)))
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
            world.late.append(send)
        return send() if answer == "doubled" else result

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

    def _swap(self, base: LoadedTable, location: str) -> str:
        world = self._world
        if (base.name, base.token) != (world.name, world.location):
            raise CommitConflict(f"{base.name} is no longer at {base.token}")
        document = parse_document(Path(local(location)).read_bytes(), location)
        world.point_at(location, document, self._process.name)
        return location


# A maintainer.


class _Engine(LocalEngine):
    """Works in the thread of the pass."""

    def __init__(self) -> None:
        super().__init__(1)


class Maintainer:
    """A process that runs passes over the table; those that share a state file share leases and job records."""

    def __init__(self, world: World, name: str) -> None:
        self.process = Process(name, before_listing=world.date_files)
        self._world = world
        _PROCESSES[name] = self.process
        state = StateStore(_Items(SqliteFile(world.folder / "state.db"), self.process))
        self._waits: list[float] = []
        self._runtime = Runtime(
            Client(world, self.process),
            state,
            environment={"ICEKEEPER_TABLE_SETTINGS": "all"},
            clock=world.now_ms,
            store_clock=lambda storage, location, may_write: world.now_ms(),
            sleep=self._wait,
            monotonic_s=lambda: sum(self._waits),
            other_catalog=lambda recorded: None,
        )

    def _wait(self, seconds: float) -> None:
        self.process.outward("wait", lambda: self._waits.append(seconds))

    def begin(self, settings: Mapping[str, str], faults: Mapping[int, str], answers: Mapping[int, str]) -> None:
        """Start a pass over the table of today's name."""
        name = self._world.name
        self.process.faults, self.process.answers = dict(faults), dict(answers)
        self.process.begin(lambda: self._runtime.maintain(name, settings, _Engine(), unsafe=True))

    def verify(self) -> Any:
        """What ``icekeeper verify`` says of the table."""
        found: list[Any] = []

        def work() -> Any:
            found.append(self._runtime.verify(self._world.name))
            return found[0]

        self.process.faults, self.process.answers = {}, {}
        self.process.begin(work)
        self.process.go(1_000_000)
        if isinstance(self.process.outcome, BaseException):
            raise self.process.outcome
        return found[0]


@contextmanager
def all_watched(world: World, *, leases: bool) -> Iterator[None]:
    """Every request of a maintainer is one of its steps; without ``leases`` each believes that it holds the table's."""
    with ExitStack() as stack:
        for name in (*_REQUESTS, "delete"):
            stack.enter_context(_watched(name))
        stack.enter_context(mock.patch("icekeeper.catalogs.pointer.system_clock", world.now_ms))
        stack.enter_context(
            mock.patch("icekeeper.catalogs.pointer.store_now_ms", side_effect=lambda *_: world.now_ms())
        )
        if not leases:
            stack.enter_context(without_leases())
        yield
