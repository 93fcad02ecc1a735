"""The cycle and its worker process: every interval a detection, then workers maintain the neediest tables first.

A detection never waits for passes.  Leases exclude tables that are still maintained; proposals of an earlier detection
that no worker has started are replaced.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.cycle.supervisor import STOP, TableResult, run_line, what_was_done
from icekeeper.detection.detect import detect
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import FleetReport, Proposal
from icekeeper.engines.engine import Engine, EngineName
from icekeeper.errors import LeaseHeld, MaintenanceError, PlanStale, PolicyError, StorageError
from icekeeper.machine.clock import Board, Clock, at_work, show_on, system_clock
from icekeeper.maintenance.run_pass import PASS_LEASE_MS, Turn, why_needless
from icekeeper.pass_context.context import SharedRun
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import Policy
from icekeeper.report.activity import is_json
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.claims import CutWork
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import HeldLease, holder_name, kept_alive, note_detection, take_slot
from icekeeper.state.open import open_state
from icekeeper.state.store import StateStore
from icekeeper.text import counted

log = logging.getLogger(__name__)

Value = TypeVar("Value")


class LastGood(Generic[Value]):
    """Settings that a long process reads repeatedly: after an error, the last good value holds.

    An error is reported once, and again when it changes.
    """

    def __init__(
        self,
        read: Callable[[], Value],
        tell: Callable[[str], object],
        errors: tuple[type[MaintenanceError], ...] = (MaintenanceError,),
    ) -> None:
        """``errors``: after these errors of ``read`` the last good value holds; others are raised."""
        self._read, self._tell, self._errors = read, tell, errors
        self._good: list[Value] = []
        self._told: str | None = None

    def current(self) -> Value:
        """Read the value; after an error, return the last good one.

        Raises:
            MaintenanceError: the value cannot be read, and never was.
        """
        try:
            value = self._read()
        except self._errors as error:
            if not self._good:
                raise
            if (problem := str(error)) != self._told:
                self._tell(f"{problem}; until that is mended, the last good settings hold")
                self._told = problem
            return self._good[0]
        if self._told is not None:
            self._tell("settings are read again, and hold")
            self._told = None
        self._good = [value]
        return value


COMMAND = "icekeeper run"
_SLOT_PAUSE_S = 2.0
# After ``job_timeout_s`` a pass ends with its current operation; after this many times that time it is killed.
_HARD = 1.25


@dataclass(frozen=True, slots=True)
class _Work:
    """A table that a detection proposed."""

    proposal: Proposal
    runtime: Runtime
    policy: Policy
    """The deployment's settings for scheduling, read before the detection."""
    detected_ms: int
    """When the detection began."""
    detection: int
    """Its number; after a later one this work is not started any more."""

    @property
    def identity(self) -> TableIdentity:
        return self.proposal.identity


def workers_of(policy: Policy) -> int:
    """How many tables a process maintains at once: no more than all processes with the same state."""
    return min(policy.max_concurrent_jobs_per_worker, policy.max_concurrent_jobs)


class Service:
    """One process of ``icekeeper run``; :meth:`stop` may be called by a signal handler or another thread."""

    def __init__(
        self,
        state: StateStore,
        engine: Engine,
        tell: Callable[[str], object],
        *,
        catalogs: Sequence[str],
        environment: Mapping[str, str],
        overrides: Mapping[str, str] = MappingProxyType({}),
        schedule: Mapping[str, str] = MappingProxyType({}),
        open_catalog: Callable[[str], Catalog] = open_catalog,
        clock: Clock = system_clock,
        stop: Event | None = None,
        on_cycle: Callable[[float, bool], object] = lambda interval_s, has_ended: None,
    ) -> None:
        """``tell`` writes a line for people; setting ``stop`` is the same as calling :meth:`stop`.

        ``on_cycle`` is told at the begin and end of each cycle, with its interval in seconds.

        ``overrides`` are settings for detection and for passes without a request, ``schedule`` those for this process
        only: interval and workers.
        """
        self._state, self._engine, self._tell, self._stop = state, engine, tell, stop or Event()
        self._environment, self._overrides, self._schedule, self._clock = environment, overrides, schedule, clock
        self._on_cycle, self._as_json = on_cycle, is_json(environment)
        self._cursor: tuple[str, str] | None = None
        self._detections = 0
        self._run = SharedRun(uuid.uuid4().hex)
        self._waiting: list[Future[bool]] = []
        self._warned: frozenset[str] = frozenset()
        self._rules = LastGood(self._read_rules, self._say)
        # Only wrong settings fall back: a catalog that does not answer is reported with every detection.
        self._catalogs = {name: LastGood(partial(open_catalog, name), self._say, (PolicyError,)) for name in catalogs}

    def stop(self) -> None:
        """Start nothing more; running passes end after their current operation."""
        self._stop.set()

    def run(self, *, once: bool = False) -> bool:
        """Detect and maintain until stopped, or once; with ``once``, return whether nothing went wrong, else true.

        Raises:
            PolicyError: the settings or the name of a catalog are wrong.
            StorageError: with ``once``, the state cannot be used.
        """
        policies, policy = self._rules.current()
        for catalog in self._catalogs.values():
            with suppress(StorageError):  # a catalog that does not answer is tried again
                catalog.current()
        is_well = True
        with ThreadPoolExecutor(workers_of(policy), thread_name_prefix="icekeeper-run") as pool:
            try:
                while not self._stop.is_set():
                    begun_s = time.monotonic()
                    is_well = self._detect(pool, policies, policy, once=once) and is_well
                    if once:
                        break
                    self._stop.wait(max(0.0, policy.detection_interval_s - (time.monotonic() - begun_s)))
                    if not self._stop.is_set():
                        policies, policy = self._rules.current()
                done = wait(self._waiting).done
            finally:
                self._stop.set()  # also after an interrupt, because the pool waits for its threads
        return not once or (is_well and all(future.result() for future in done))

    def _read_rules(self) -> tuple[TablePolicies, Policy]:
        """The policies and settings of one cycle, read before its detection; its passes use them, too."""
        policies = TablePolicies(self._environment)
        return policies, policies.deployment({**self._overrides, **self._schedule}).policy

    def _detect(self, pool: ThreadPoolExecutor, policies: TablePolicies, policy: Policy, *, once: bool) -> bool:
        """Look at every table once, and submit those that need work; return whether there was no error.

        What no worker has started of an earlier detection is replaced.
        """
        self._on_cycle(policy.detection_interval_s, False)
        opened: dict[str, Runtime] = {}
        started_ms, run = self._clock(), uuid.uuid4().hex
        sources = [
            CatalogSource(name, partial(self._open, kept, policies, opened)) for name, kept in self._catalogs.items()
        ]
        try:
            report = detect(
                sources,
                self._state,
                policies,
                overrides=self._overrides,
                clock=self._clock,
                cursor=self._cursor,
                run=run,
            )
        except MaintenanceError as error:
            if once:
                raise
            self._say(f"nothing could be looked at: {error}")
            return False
        self._cursor = report.cursor
        self._run.name = run  # also for passes of an earlier detection, because this look is newer
        interval_ms = 0 if once else int(policy.detection_interval_s * 1000)
        with suppress(StorageError):  # the next detection records that requests are served
            note_detection(self._state.leases, now_ms=self._clock(), interval_ms=interval_ms)
        self._tell_detection(report)
        self._on_cycle(policy.detection_interval_s, True)
        self._detections += 1
        running = [future for future in self._waiting if not future.cancel() and not future.done()]
        works = [
            _Work(proposal, opened[proposal.catalog], policy, started_ms, self._detections)
            for proposal in report.proposals
        ]
        self._waiting = running + [pool.submit(self._maintain, work) for work in works]
        return report.errors == 0

    def _open(self, kept: LastGood[Catalog], policies: TablePolicies, opened: dict[str, Runtime]) -> Catalog:
        catalog = kept.current()
        opened[catalog.name] = Runtime(catalog, self._state, policies=policies, clock=self._clock, run=self._run)
        return catalog

    def _maintain(self, work: _Work) -> bool:
        """Run the pass over a table and print its result; an error is a result, too.

        A pass that is not started, because the process ends or there was a later detection, has none.
        """
        started_s = time.monotonic()
        try:
            status, summary = self._with_slot(work) or ("", "")
        except (LeaseHeld, PlanStale) as reason:
            status, summary = "skipped", str(reason)
        except MaintenanceError as error:
            status, summary = "failed", str(error)
        except Exception as error:  # one table must not end the process
            log.exception("the pass over %s broke", work.proposal.table)
            status, summary = "failed", f"{type(error).__name__}: {error}"
        if not status:
            return True
        result = TableResult(
            catalog=work.proposal.catalog,
            table=work.proposal.table,
            status=status,
            summary=summary,
            seconds=time.monotonic() - started_s,
        )
        self._tell(result.line(self._clock(), as_json=self._as_json))
        return result.is_well

    def _with_slot(self, work: _Work) -> tuple[str, str] | None:
        """Wait for a free slot; return status and summary of the pass, or ``None`` if it was not started."""
        holder, leases, policy = holder_name(COMMAND, uuid.uuid4().hex), self._state.leases, work.policy
        while not self._stop.is_set() and self._detections == work.detection:
            try:
                slot = take_slot(leases, holder, policy.max_concurrent_jobs, now_ms=self._clock(), ttl_ms=PASS_LEASE_MS)
            except LeaseHeld:
                self._stop.wait(_SLOT_PAUSE_S)
                continue
            with kept_alive(HeldLease(leases, slot, PASS_LEASE_MS, self._clock)):
                entry = work.proposal.catalog, work.proposal.warehouse, work.identity.table.key
                limit_s = _HARD * policy.job_timeout_s
                why = f"its pass did not end within {_HARD:g} times job_timeout_s {policy.job_timeout_s:g}"
                with at_work(CutWork.PASS, entry, limit_s=limit_s, why=why):
                    return self._pass(work)
        return None

    def _pass(self, work: _Work) -> tuple[str, str]:
        proposal, table = work.proposal, work.identity.table
        is_requested = proposal.is_requested
        runtime = work.runtime.of_requests(self._overrides) if is_requested else work.runtime
        turn = Turn(
            command=COMMAND,
            why_not=partial(self._why_not, work),
            why_stop=lambda: "the process is about to end" if self._stop.is_set() else None,
            is_proposed=not is_requested,
            timeout_s=work.policy.job_timeout_s,
            retries=work.policy.job_retry_limit,
            tell=partial(log.warning, "%s: %s", table),
            wait=self._stop.wait,
        )
        settings = proposal.settings if is_requested else self._overrides
        outcome = runtime.maintain(table, settings, self._engine, turn=turn)
        over = turn.why_over()
        left = [part for part in outcome.operations if over is not None and part.reason == over]
        after = f"; {len(left)} operation(s) left: {over}" if left else ""
        return outcome.status.value, what_was_done(outcome) + after

    def _why_not(self, work: _Work) -> str | None:
        is_requested = work.proposal.is_requested
        is_pending = self._state.requests.of_table(work.identity) is not None if is_requested else None
        return why_needless(self._state, work.identity, work.detected_ms, now_ms=self._clock(), is_pending=is_pending)

    def _tell_detection(self, report: FleetReport) -> None:
        for skip in report.skipped:
            if skip.is_error:
                result = TableResult(
                    catalog=skip.catalog, table=skip.table or "*", status="failed", summary=skip.reason
                )
                self._tell(result.line(self._clock(), as_json=self._as_json))
        for warning in report.warnings:
            if warning not in self._warned:  # detections repeat their warnings
                self._say(warning)
        self._warned = frozenset(report.warnings)
        needy = len(report.proposals) + report.beyond_limit
        need = f"{needy} {'needs' if needy == 1 else 'need'} maintenance"
        beyond = f", {report.beyond_limit} of them beyond max_jobs_per_detection" if report.beyond_limit else ""
        late = f", {report.not_reached} not reached" if report.not_reached else ""
        counts = {"tables": report.scanned, "proposals": len(report.proposals), "errors": report.errors}
        self._say(f"{counted(report.scanned, 'table')} looked at{late}, {need}{beyond}", **counts)

    def _say(self, sentence: str, **fields: object) -> None:
        self._tell(run_line(self._clock(), sentence, self._environment, **fields))


_BEAT_S = 0.5
_PR_SET_PDEATHSIG = 1


def work() -> None:
    """The worker process, which its supervisor may kill at any time: run the call in the first line of standard input.

    Sends its messages to the supervisor and never returns: the process exits without waiting for threads that hang.
    """
    _die_with_the_supervisor()
    call: dict[str, Any] = json.loads(sys.stdin.readline())
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, frame: None)  # only the supervisor stops the worker
    board = Board(Path(call["board"]))
    show_on(board)
    messages = os.fdopen(call["messages"], "w", buffering=1)

    def tell(**message: object) -> None:
        messages.write(f"{json.dumps(message)}\n")

    Thread(target=_beat, args=(board,), daemon=True).start()
    stop = Event()
    Thread(target=_obey, args=(stop,), daemon=True).start()
    try:
        with open_engine(EngineName(call["engine"])) as engine:
            service = Service(
                open_state(os.environ),
                engine,
                lambda line: tell(line=line),
                catalogs=call["catalogs"],
                environment=os.environ,
                overrides=call["overrides"],
                schedule=call["schedule"],
                stop=stop,
                on_cycle=lambda interval_s, has_ended: tell(interval_s=interval_s, has_ended=has_ended),
            )
            is_well = service.run(once=call["once"])
        tell(end=is_well)
    except MaintenanceError as error:
        hint = error.hint() if isinstance(error, PolicyError) else ""
        tell(error=type(error).__name__, message=f"{error}{hint}")
    sys.stdout.flush()
    sys.stderr.flush()
    messages.close()
    os._exit(0)


def _die_with_the_supervisor() -> None:
    """Have Linux kill this process when its parent dies, also while it runs no Python code (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _beat(board: Board) -> None:
    while True:
        board.beat()
        time.sleep(_BEAT_S)


def _obey(stop: Event) -> None:
    """Stop on request; exit at once when the supervisor is gone."""
    for line in sys.stdin:
        if line.strip() == STOP:
            stop.set()
    os._exit(1)
