"""A pass of ``icekeeper run``, and the process that it runs in.

Python cannot end a thread that hangs in C code.  So passes run in processes of their own, each of which maintains one
table at a time and then waits for the next.  A process whose pass exceeds its limit is killed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Generic, TypeVar

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.detection.proposal import Proposal
from icekeeper.engines.engine import Engine, EngineName
from icekeeper.errors import LeaseHeld, MaintenanceError, PlanStale, PolicyError, StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.maintenance.run_pass import Turn, why_needless
from icekeeper.pass_context.served import SharedRun
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.open import open_state
from icekeeper.state.store import StateStore
from icekeeper.text import counted

log = logging.getLogger(__name__)

COMMAND = "icekeeper run"
WORKER = "run-worker"
"""The hidden command of the process."""
# After ``job_timeout_s`` a pass ends with its current operation; after this many times that time it is killed.
_HARD = 1.25
_LOOK_S = 0.25
# Starting the process takes seconds, which do not count as time of a pass.
_START_S = 120.0
# A process that has nothing to do and still runs after this time waits for a hanging thread.
_LAST_S = 10.0
_PR_SET_PDEATHSIG = 1
_STOP, _END, _BEGUN = "stop", "end", "begun"

Value = TypeVar("Value")


class LastGood(Generic[Value]):
    """Settings that a long process reads repeatedly: after an error, the last good value applies.

    An error is reported once, and again when it changes.
    """

    def __init__(
        self,
        read: Callable[[], Value],
        notify: Callable[[str], object],
        errors: tuple[type[MaintenanceError], ...] = (MaintenanceError,),
    ) -> None:
        """``errors``: after these errors of ``read`` the last good value applies; others are raised."""
        self._read, self._notify, self._errors = read, notify, errors
        self._good: list[Value] = []
        self._logged: str | None = None

    def current(self) -> Value:
        """Read the value; after an error, return the last good value.

        Raises:
            MaintenanceError: the value cannot be read, and never was.
        """
        try:
            value = self._read()
        except self._errors as error:
            if not self._good:
                raise
            if (problem := str(error)) != self._logged:
                self._notify(f"{problem}; until this is corrected, the last good settings apply")
                self._logged = problem
            return self._good[0]
        if self._logged is not None:
            self._notify("the settings can be read again, and apply")
            self._logged = None
        self._good = [value]
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOrder:
    """A table to maintain, and everything that its process must know."""

    proposal: Proposal
    catalog: str
    """As the command names it."""
    policies: TablePolicies
    """Read before the detection that made the proposal."""
    overrides: Mapping[str, str]
    """The settings of the command."""
    detected_ms: int
    """When the detection began."""
    run: str
    """The detection's name."""
    timeout_s: int
    """``job_timeout_s``: then the pass begins no further operation."""
    retries: int
    only_verifies: bool = False
    """``verify`` instead of a pass; it changes nothing, so it may be killed at any time."""


@dataclass(frozen=True, slots=True)
class PassEnd:
    """How a pass ended: a status of a pass or ``skipped``, and a sentence."""

    status: str
    summary: str
    is_cut: bool = False
    """It did not end by itself: its process was killed, or died."""
    is_recorded: bool = False
    """Its outcome is in the state, also in the totals."""


def what_was_done(outcome: PassOutcome) -> str:
    """The summaries of the operations that did something or failed, or ``nothing to do``; what deletions wait for is
    left to ``icekeeper list``, because it would be the same for each table."""
    done = [part for part in outcome.operations if part.status is not Status.SKIPPED]
    why = "another table, which may need the files, cannot be read (icekeeper list names it)"
    parts = [f"{part.operation.value}: {why if part.waits else part.summary}" for part in done]
    if outcome.staged is not None:
        parts.append(outcome.staged.summary)
    return "; ".join(parts) or "nothing to do"


class Passes:
    """Runs one pass after the other in this process."""

    def __init__(
        self,
        environment: Mapping[str, str],
        engine: Engine,
        stop: Event,
        *,
        open_catalog: Callable[[str], Catalog] = open_catalog,
        clock: Clock = system_clock,
    ) -> None:
        self._environment, self._engine, self._stop, self._clock = environment, engine, stop, clock
        self._open_catalog = open_catalog
        self._run = SharedRun("")
        self._catalogs: dict[str, LastGood[Catalog]] = {}
        self._opened: dict[str, Catalog] = {}

    def maintain(self, order: PassOrder) -> PassEnd:
        """Run the pass; an error is returned as its end."""
        try:
            return self._verified(order) if order.only_verifies else self._pass(order)
        except (LeaseHeld, PlanStale) as reason:
            return PassEnd("skipped", str(reason))
        except MaintenanceError as error:
            return PassEnd("failed", f"verify: {error}" if order.only_verifies else str(error))
        except Exception as error:  # one table must not end the process
            log.exception("the pass over %s broke", order.proposal.table)
            return PassEnd("failed", f"{type(error).__name__}: {error}")

    @cached_property
    def _state(self) -> StateStore:
        return open_state(self._environment)

    def _verified(self, order: PassOrder) -> PassEnd:
        runtime = Runtime(self._catalog(order), self._state, policies=order.policies, clock=self._clock, run=self._run)
        found = runtime.verify(order.proposal.identity.table)
        checked = ", ".join(counted(count, what.removesuffix("s")) for what, count in found.checked.items())
        if found.ok:
            return PassEnd("succeeded", f"verify: ok ({checked})")
        first = found.problems[0]
        problems = f"{counted(len(found.problems), 'problem')} found, such as {first.kind.value} {first.path}"
        return PassEnd("failed", f"verify: damaged ({checked}): {problems}")

    def _pass(self, order: PassOrder) -> PassEnd:
        proposal, table = order.proposal, order.proposal.identity.table
        is_requested = proposal.is_requested
        catalog = self._catalog(order)
        runtime = Runtime(catalog, self._state, policies=order.policies, clock=self._clock, run=self._run)
        turn = Turn(
            command=COMMAND,
            why_not=partial(self._why_not, order),
            why_stop=lambda: "the process is about to end" if self._stop.is_set() else None,
            is_proposed=not is_requested,
            timeout_s=order.timeout_s,
            retries=order.retries,
            notify=partial(log.warning, "%s: %s", table),
            wait=self._stop.wait,
        )
        settings = proposal.settings if is_requested else order.overrides
        runtime = runtime.of_requests(order.overrides) if is_requested else runtime
        outcome = runtime.maintain(table, settings, self._engine, turn=turn)
        over = turn.why_over()
        left = [part for part in outcome.operations if over is not None and part.reason == over]
        after = f"; {len(left)} operation(s) left: {over}" if left else ""
        return PassEnd(outcome.status.value, what_was_done(outcome) + after, is_recorded=True)

    def _catalog(self, order: PassOrder) -> Catalog:
        """The catalog, opened anew for the passes of each detection."""
        if order.run != self._run.name:
            self._run = SharedRun(order.run)
            self._opened.clear()
        if order.catalog not in self._opened:
            kept = self._catalogs.setdefault(
                order.catalog,
                # The detection has reported the problem.
                LastGood(partial(self._open_catalog, order.catalog), log.debug, (PolicyError,)),
            )
            self._opened[order.catalog] = kept.current()
        return self._opened[order.catalog]

    def _why_not(self, order: PassOrder, digest: str) -> str | None:
        identity = order.proposal.identity
        is_requested = order.proposal.is_requested
        is_pending = self._state.requests.of_table(identity) is not None if is_requested else None
        return why_needless(
            self._state, identity, digest, order.detected_ms, now_ms=self._clock(), is_pending=is_pending
        )


class PassProcesses:
    """Runs passes in child processes, as many as threads call it at once; use it in a ``with`` block."""

    def __init__(self, engine: EngineName, environment: Mapping[str, str]) -> None:
        self._engine, self._environment = engine, environment
        self._idle: list[_PassProcess] = []
        # A child dies with the thread that started it (prctl(2), PR_SET_PDEATHSIG).
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="icekeeper-start")

    def __enter__(self) -> PassProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._idle:
            process.end()
        self._starter.shutdown()

    def __call__(self, order: PassOrder, stop: Event) -> PassEnd:
        """Run a pass, for at most 1.25 times its ``job_timeout_s``; ``stop`` ends it after its current operation.

        Raises:
            StorageError: no process starts.
        """
        process = self._taken()
        end = process.maintain(order, stop)
        if not end.is_cut:
            self._idle.append(process)
        return end

    def _taken(self) -> _PassProcess:
        with suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.is_alive:
                    return process
        return self._starter.submit(_PassProcess, self._engine, self._environment).result()


class _PassProcess:
    """A child process; it is killed with all processes that it has started."""

    def __init__(self, engine: EngineName, environment: Mapping[str, str]) -> None:
        self._orders, theirs = Pipe()
        self._has_begun = False
        with theirs:
            # A session of its own: signals of a terminal or group reach only this process, which passes on the stop.
            self._process = subprocess.Popen(
                # -P: import nothing from the current folder (rule: no-imports-from-current-folder).
                [sys.executable, "-P", "-m", "icekeeper", WORKER],
                stdin=theirs.fileno(),
                start_new_session=True,
                env=dict(environment),
            )
        self._send(engine)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def maintain(self, order: PassOrder, stop: Event) -> PassEnd:
        """Run a pass; if it is cut off, the process is dead afterwards.

        Raises:
            StorageError: the process does not start.
        """
        self._begin()
        self._send(order)
        try:
            end = self._end(order, _HARD * order.timeout_s, stop)
        except (EOFError, OSError):
            end = PassEnd("failed", "the process of its pass died", is_cut=True)
        if end is None:
            why = f"its pass did not end within {_HARD:g} times job_timeout_s {order.timeout_s:g}"
            end = PassEnd("failed", why, is_cut=True)
        if end.is_cut:
            self._kill()
        return end

    def _begin(self) -> None:
        with suppress(EOFError, OSError):
            if not self._has_begun and self._orders.poll(_START_S):
                self._has_begun = self._orders.recv() == _BEGUN
        if not self._has_begun:
            self._kill()
            raise StorageError("the process that runs passes does not start; the lines above may say why")

    def _end(self, order: PassOrder, limit_s: float, stop: Event) -> PassEnd | None:
        """Wait for the end of the pass; ``None``: it takes too long."""
        ends_s, is_stopped = monotonic() + limit_s, False
        while monotonic() < ends_s:
            if stop.is_set() and not is_stopped:
                is_stopped = True
                if order.only_verifies:
                    return PassEnd("skipped", "verify: the process is about to end", is_cut=True)
                self._send(_STOP)
            if self._orders.poll(_LOOK_S):
                end: PassEnd = self._orders.recv()
                return end
        return None

    def end(self) -> None:
        """End the idle process; kill it if that takes long."""
        self._send(_END)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_S)
        self._kill()

    def _send(self, message: object) -> None:
        with suppress(OSError):  # the process died, which the next read reports
            self._orders.send(message)

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._orders.close()


def work() -> None:
    """The child process, which may be killed at any time: run the passes that standard input orders.

    It never returns: the process exits without waiting for threads that hang.
    """
    _die_with_the_parent()
    for stopping in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stopping, lambda number, frame: None)  # only the parent stops it
    ours = _taken_from_stdin()
    engine_name, stop, orders = EngineName(ours.recv()), Event(), SimpleQueue[PassOrder | None]()
    Thread(target=_listen, args=(ours, stop, orders), daemon=True).start()
    with open_engine(engine_name) as engine:
        passes = Passes(os.environ, engine, stop)
        ours.send(_BEGUN)
        while (order := orders.get()) is not None:
            ours.send(passes.maintain(order))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _taken_from_stdin() -> Connection[Any, Any]:
    """The connection to the parent; processes that this process starts do not inherit it."""
    ours = Connection(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return ours


def _die_with_the_parent() -> None:
    """Let Linux kill this process when its parent dies, even while it runs no Python code (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _listen(ours: Connection[Any, Any], stop: Event, orders: SimpleQueue[PassOrder | None]) -> None:
    """Take orders; exit at once when the parent is gone."""
    with suppress(EOFError, OSError):
        while (message := ours.recv()) != _END:
            if isinstance(message, PassOrder):
                orders.put(message)
            else:
                stop.set()
        orders.put(None)
        return
    os._exit(1)
