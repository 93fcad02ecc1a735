"""A process of Icekeeper that works on tables: it pauses or dies at any request, and its store may fail.

A process takes a number of steps (a request to the store, the catalog or the state store, a wait) and then pauses until
it may take more.  At any step it may die: every later step fails, as after SIGKILL.  A store may fail before or after
it has acted.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from icekeeper.catalogs.catalog import Catalog
from icekeeper.deletion import other_tables
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import CommitStateUnknown, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import CatalogId, TableName
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteFile, SqliteStateStore, SqliteTable
from icekeeper.state.store import StateStore
from icekeeper.storage.storage import DeleteReport, Storage
from support.maintained_table import without_leases

_Found = TypeVar("_Found")

PROCESS = "model.process"
"""The FileIO property that names the process of a store."""
_STUCK_S = 30.0
ALL = 1_000_000
"""A number of steps that no pass reaches."""
WORK_DONE = "work done"
"""All groups of a rewrite are written; a process may pause at this moment, which is not a step."""


class Killed(BaseException):
    """The process was killed; it makes no further requests."""


@dataclass
class Process:
    """Runs one pass at a time in a separate thread, and only as many steps as allowed."""

    name: str
    faults: dict[int, str] = field(default_factory=dict)
    """Faults by step: ``kill before``, ``kill after``, ``fail before``, ``fail after``."""
    answers: dict[int, str] = field(default_factory=dict)
    """Faults by commit (:meth:`Client.commit`)."""
    steps: int = 0
    commits: int = 0
    is_killed: bool = False
    outcome: Any = None
    """The result or error of the work; ``None`` while it runs."""
    trace: list[str] = field(default_factory=list)
    before_listing: Callable[[], None] = lambda: None
    soon: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    """Actions elsewhere by the step before which they happen."""
    stops_before: Callable[[str], bool] = lambda what: False
    """Whether the process pauses before a step with this name, even if it may take more steps."""
    _thread: threading.Thread | None = None
    _left: int = 0
    _waiting: int = 0
    _outside: int = 0
    """The threads that wait for their turn, and those in a step."""
    _inside: threading.local = field(default_factory=threading.local)
    _turn: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_at_work(self) -> bool:
        return self._thread is not None

    def begin(self, work: Callable[[], object]) -> None:
        """Start work, which pauses before its first step."""
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
        """Let the pass take so many steps; return after these steps or at its end."""
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
        """Take a step: a request and its answer."""
        is_inner = getattr(self._inside, "is_outside", False)  # such as the read of a metadata file within a load
        with self._turn:
            self._outside -= is_inner
            self._waiting += 1
            if not is_inner and self.stops_before(what):
                self._left = 0
            if self._stands_still:
                self._turn.notify_all()
            while self._left <= 0 and not self.is_killed:
                self._turn.wait()
            self._waiting -= 1
            self._outside += 1
            if self.is_killed:
                self._outside -= not is_inner
                raise Killed
            fault = None
            if what != WORK_DONE:
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
        for step, happen in [item for item in self.soon if item[0] <= self.steps]:
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
        if (what, fault) == ("commit", "fail after"):  # a catalog never reports that it failed before
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
    """A state store's items, where each change is a step, except within a transaction."""

    def __init__(self, file: SqliteFile, process: Process) -> None:
        super().__init__(file)
        self._process = process
        self._inside = threading.local()

    def _step(self, what: str, call: Callable[[], Any]) -> Any:
        if getattr(self._inside, "depth", 0) or threading.current_thread().name == "icekeeper-lease":
            return call()  # the lease's thread counts real seconds

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

    def change(self, pk: str, sk: str, decide: Any, **named: Any) -> bool:
        return bool(self._step("change", lambda: super(_Items, self).change(pk, sk, decide, **named)))

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


# A maintainer.


class _Engine(LocalEngine):
    """An engine that works in the thread of the pass."""

    def __init__(self, process: Process) -> None:
        super().__init__(1)
        self._process = process

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], on_done: Callable[[int], None]) -> list[Any]:
        results = super().map(function, tasks, on_done)
        self._process.outward(WORK_DONE, lambda: None)
        return results


@cache
def _empty_state() -> bytes:
    """A state file without items, cached because creating it takes 50 ms."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStateStore(Path(folder) / "state.db")
        store.require_writable()
        return (Path(folder) / "state.db").read_bytes()


class Maintainer:
    """A process that runs passes; those that share a state file share leases and job records."""

    def __init__(
        self,
        name: str,
        folder: Path,
        catalog: Callable[[Process], Catalog],
        now_ms: Callable[[], int],
        *,
        before_listing: Callable[[], None] = lambda: None,
        other_catalog: Callable[[Process, CatalogId], Catalog | None] = lambda process, recorded: None,
        table_settings: str = "all",
    ) -> None:
        self.process = Process(name, before_listing=before_listing)
        _PROCESSES[name] = self.process
        state = folder / "state.db"
        if not state.exists():
            state.write_bytes(_empty_state())
        self._waits: list[float] = []
        self.runtime = Runtime(
            catalog(self.process),
            StateStore(_Items(SqliteFile(state), self.process)),
            environment={"ICEKEEPER_TABLE_SETTINGS": table_settings} if table_settings else {},
            clock=now_ms,
            store_clock=lambda storage, location, may_write: now_ms(),
            sleep=self._wait,
            monotonic_s=lambda: sum(self._waits),
            other_catalog=partial(other_catalog, self.process),
        )

    def _wait(self, seconds: float) -> None:
        self.process.outward("wait", lambda: self._waits.append(seconds))

    def begin(
        self,
        table: TableName,
        settings: Mapping[str, str],
        faults: Mapping[int, str] | None = None,
        answers: Mapping[int, str] | None = None,
        *,
        dry_run: bool = False,
        names_table: bool = False,
    ) -> None:
        """Start a pass over a table."""
        self.process.faults, self.process.answers = dict(faults or {}), dict(answers or {})
        engine = _Engine(self.process)
        self.process.begin(
            lambda: self.runtime.maintain(
                table, settings, engine, unsafe=True, dry_run=dry_run, names_table=names_table
            )
        )

    def do(self, work: Callable[[Runtime], _Found]) -> _Found:
        """Let the process do work to its end, without faults."""
        found: list[_Found] = []

        def all_of_it() -> bool:
            found.append(work(self.runtime))
            return True

        self.process.faults, self.process.answers = {}, {}
        self.process.begin(all_of_it)
        self.process.go(ALL)
        if isinstance(self.process.outcome, BaseException):
            raise self.process.outcome
        return found[0]


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Let passes read, check and delete in their own thread, one request after the other; for tables this small, more
    threads would take half the CPU."""

    def submit(pool: WorkThreads, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **more))
        except Exception as error:
            done.set_exception(error)
        return done

    with (
        mock.patch.object(WorkThreads, "submit", submit),
        mock.patch.object(other_tables, "in_limited_time", lambda work, limit_s, name: work()),
    ):
        yield


@contextmanager
def all_watched(*, leases: bool) -> Iterator[None]:
    """Make every request of a maintainer a step; without ``leases``, each runs as if it held the table's lease."""
    with ExitStack() as stack:
        for name in (*_REQUESTS, "delete"):
            stack.enter_context(_watched(name))
        if not leases:
            stack.enter_context(without_leases())
        yield
