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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Generic, TypeVar

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.cycle.supervisor import STOP, TableResult, what_was_done
from icekeeper.detection.detect import detect
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import FleetReport, Proposal
from icekeeper.engines.engine import Engine, EngineName
from icekeeper.errors import LeaseHeld, MaintenanceError, PlanStale, PolicyError, StorageError
from icekeeper.machine.clock import Board, Clock, at_work, iso_utc, show_on, system_clock
from icekeeper.maintenance.table_lease import PASS_LEASE_MS, AttemptLimits, Turn, attempted, why_needless
from icekeeper.pass_context.context import SharedRun
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import Policy
from icekeeper.report.outcome import PassOutcome
from icekeeper.runtime import Runtime, open_engine
from icekeeper.state.claims import CutWork, Entry
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
            self._say(str(error))
            return self._good[0]
        if self._told is not None:
            self._tell("settings are read again, and hold")
            self._told = None
        self._good = [value]
        return value

    def _say(self, problem: str) -> None:
        if problem != self._told:
            self._tell(f"{problem}; until that is mended, the last good settings hold")
            self._told = problem


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """The deployment's settings for scheduling, read before each detection."""

    interval_s: float
    workers: int
    """Tables that this process maintains at once."""
    slots: int
    """Tables that all processes with the same state maintain at once."""
    timeout_s: float
    """After this time a pass starts no further operation or round of file groups."""
    retries: int
    """Further attempts after a pass failed."""

    @classmethod
    def of(cls, policy: Policy) -> CycleSettings:
        """The settings of a deployment's policy; no process has more workers than there are slots."""
        return cls(
            interval_s=policy.detection_interval_s,
            workers=min(policy.max_concurrent_jobs_per_worker, policy.max_concurrent_jobs),
            slots=policy.max_concurrent_jobs,
            timeout_s=policy.job_timeout_s,
            retries=policy.job_retry_limit,
        )


COMMAND = "icekeeper run"
_SLOT_PAUSE_S = 2.0
# After ``job_timeout_s`` a pass ends with its current operation; after this many times that time it is killed.
_HARD = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A table that detection proposed, and what its pass needs."""

    proposal: Proposal
    detected_ms: int
    """When the detection that proposed it began."""
    runtime: Runtime
    overrides: Mapping[str, str]
    """Settings of the call; the settings of a request override them."""
    settings: CycleSettings
    engine: Engine
    stop: Event
    """Set when the process must end: no further operation starts."""
    is_current: Callable[[], bool]
    """False after a later detection: then this work is not started any more."""
    clock: Clock = system_clock

    @property
    def entry(self) -> Entry:
        return self.proposal.catalog, self.proposal.warehouse, self.identity.table.key

    @property
    def identity(self) -> TableIdentity:
        return self.proposal.identity

    @property
    def chosen(self) -> Mapping[str, str]:
        """The settings of the pass."""
        return self.proposal.settings if self.proposal.is_requested else self.overrides


def maintain_proposal(work: Work) -> TableResult | None:
    """Run the pass over a table; an error becomes the result.

    ``None``: the pass was not started, because the process ends or there was a later detection.
    """
    started_s = time.monotonic()
    try:
        status, summary = _with_slot(work) or ("", "")
    except (LeaseHeld, PlanStale) as reason:
        status, summary = "skipped", str(reason)
    except MaintenanceError as error:
        status, summary = "failed", str(error)
    except Exception as error:  # one table must not end the process
        log.exception("the pass over %s broke", work.proposal.table)
        status, summary = "failed", f"{type(error).__name__}: {error}"
    if not status:
        return None
    return TableResult(
        catalog=work.proposal.catalog,
        table=work.proposal.table,
        status=status,
        summary=summary,
        seconds=time.monotonic() - started_s,
    )


def _with_slot(work: Work) -> tuple[str, str] | None:
    """Wait for a free slot; return status and summary of the pass, or ``None`` if it was not started."""
    holder = holder_name(COMMAND, uuid.uuid4().hex)
    leases = work.runtime.state.leases
    while not work.stop.is_set() and work.is_current():
        try:
            slot = take_slot(leases, holder, work.settings.slots, now_ms=work.clock(), ttl_ms=PASS_LEASE_MS)
        except LeaseHeld:
            work.stop.wait(_SLOT_PAUSE_S)
            continue
        with kept_alive(HeldLease(leases, slot, PASS_LEASE_MS, work.clock)):
            limit_s = _HARD * work.settings.timeout_s
            why = f"its pass did not end within {_HARD:g} times job_timeout_s {work.settings.timeout_s:g}"
            with at_work(CutWork.PASS, work.entry, limit_s=limit_s, why=why):
                return _attempts(work)
    return None


def _why_not(state: StateStore, work: Work) -> str | None:
    pending = state.requests.pending() if work.proposal.is_requested else None
    is_pending = None if pending is None else any(one.identity.is_same_copy(work.identity) for one in pending)
    return why_needless(state, work.identity, work.detected_ms, now_ms=work.clock(), is_pending=is_pending)


def _attempts(work: Work) -> tuple[str, str]:
    table = work.identity.table
    runtime = work.runtime.of_requests(work.overrides) if work.proposal.is_requested else work.runtime
    turn = Turn(
        command=COMMAND,
        why_not=partial(_why_not, work.runtime.state, work),
        why_stop=lambda: "the process is about to end" if work.stop.is_set() else None,
        is_proposed=not work.proposal.is_requested,
    )
    outcome, stopped = attempted(
        lambda limited: runtime.maintain(table, work.chosen, work.engine, turn=limited),
        turn,
        AttemptLimits(work.settings.timeout_s, work.settings.retries),
        tell=partial(log.warning, "%s: %s", table),
        wait=work.stop.wait,
    )
    return outcome.status.value, _told(outcome, stopped)


def _told(outcome: PassOutcome, stopped: str | None) -> str:
    left = [part for part in outcome.operations if stopped is not None and part.reason == stopped]
    after = f"; {len(left)} operation(s) left: {stopped}" if left else ""
    return what_was_done(outcome) + after


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The arguments of ``icekeeper run``."""

    catalogs: Sequence[str]
    environment: Mapping[str, str]
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings for detection and for passes without a request."""
    schedule: Mapping[str, str] = field(default_factory=dict)
    """Settings for this process only: interval and workers."""
    open_catalog: Callable[[str], Catalog] = open_catalog
    clock: Clock = system_clock


@dataclass(frozen=True, slots=True)
class _Rules:
    """The policies and settings of one cycle, read before its detection; its passes use them, too."""

    policies: TablePolicies
    settings: CycleSettings


class Service:
    """One process of ``icekeeper run``; :meth:`stop` may be called by a signal handler or another thread."""

    def __init__(
        self,
        options: ServiceOptions,
        state: StateStore,
        engine: Engine,
        tell: Callable[[str], object],
        stop: Event | None = None,
    ) -> None:
        """``tell`` writes a line for people; setting ``stop`` is the same as calling :meth:`stop`."""
        self._options, self._state, self._engine, self._tell = options, state, engine, tell
        self._stop = stop or Event()
        self._cursor: tuple[str, str] | None = None
        self._detections = 0
        self._run = SharedRun(uuid.uuid4().hex)
        self._waiting: list[Future[bool]] = []
        self._warned: frozenset[str] = frozenset()
        self._rules = LastGood(self._read_rules, self._say)
        self._catalogs = {
            # Only wrong settings fall back: a catalog that does not answer is reported with every detection.
            name: LastGood(partial(options.open_catalog, name), self._say, (PolicyError,))
            for name in options.catalogs
        }

    def stop(self) -> None:
        """Start nothing more; running passes end after their current operation."""
        self._stop.set()

    def run(self, *, once: bool = False) -> bool:
        """Detect and maintain until stopped, or once; with ``once``, return whether nothing went wrong, else true.

        Raises:
            PolicyError: the settings or the name of a catalog are wrong.
            StorageError: with ``once``, the state cannot be used.
        """
        rules = self._rules.current()
        self._require_known_catalogs()
        is_well = True
        with ThreadPoolExecutor(rules.settings.workers, thread_name_prefix="icekeeper-run") as pool:
            try:
                while not self._stop.is_set():
                    begun_s = time.monotonic()
                    is_well = self._detect(pool, rules, once=once) and is_well
                    if once:
                        break
                    self._stop.wait(max(0.0, rules.settings.interval_s - (time.monotonic() - begun_s)))
                    rules = self._rules.current() if not self._stop.is_set() else rules
                done = wait(self._waiting).done
            finally:
                self._stop.set()  # also after an interrupt, because the pool waits for its threads
        return not once or (is_well and all(future.result() for future in done))

    def _require_known_catalogs(self) -> None:
        """Raise PolicyError for a catalog that is not configured; a catalog that does not answer is tried again."""
        for catalog in self._catalogs.values():
            with suppress(StorageError):
                catalog.current()

    def _read_rules(self) -> _Rules:
        policies = TablePolicies(self._options.environment)
        given = {**self._options.overrides, **self._options.schedule}
        return _Rules(policies, CycleSettings.of(policies.deployment(given).policy))

    def _detect(self, pool: ThreadPoolExecutor, rules: _Rules, *, once: bool) -> bool:
        """Look at every table once, and submit those that need work; return whether there was no error."""
        opened: dict[str, Runtime] = {}
        started_ms = self._options.clock()
        run = uuid.uuid4().hex
        try:
            report = detect(
                [
                    CatalogSource(name, partial(self._open, catalog, rules.policies, opened))
                    for name, catalog in self._catalogs.items()
                ],
                self._state,
                rules.policies,
                overrides=self._options.overrides,
                clock=self._options.clock,
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
        self._note_detection(rules.settings, once=once)
        self._tell_detection(report)
        self._detections += 1
        self._replace_waiting(pool, rules.settings, report.proposals, opened, started_ms)
        return report.errors == 0

    def _note_detection(self, settings: CycleSettings, *, once: bool) -> None:
        """Record that requests are served."""
        interval_ms = 0 if once else int(settings.interval_s * 1000)
        with suppress(StorageError):  # the next detection records it
            note_detection(self._state.leases, now_ms=self._options.clock(), interval_ms=interval_ms)

    def _replace_waiting(
        self,
        pool: ThreadPoolExecutor,
        settings: CycleSettings,
        proposals: Sequence[Proposal],
        opened: Mapping[str, Runtime],
        started_ms: int,
    ) -> None:
        """Submit these proposals, instead of those that no worker has started."""
        number = self._detections
        running = [future for future in self._waiting if not future.cancel() and not future.done()]
        work = partial(
            Work,
            detected_ms=started_ms,
            overrides=self._options.overrides,
            settings=settings,
            engine=self._engine,
            stop=self._stop,
            is_current=lambda: self._detections == number,
            clock=self._options.clock,
        )
        self._waiting = running + [
            pool.submit(self._maintain, work(proposal=proposal, runtime=opened[proposal.catalog]))
            for proposal in proposals
        ]

    def _maintain(self, work: Work) -> bool:
        result = maintain_proposal(work)
        if result is None:
            return True
        self._tell(result.line(self._options.clock()))
        return result.is_well

    def _open(self, kept: LastGood[Catalog], policies: TablePolicies, opened: dict[str, Runtime]) -> Catalog:
        catalog = kept.current()
        opened[catalog.name] = Runtime(
            catalog, self._state, policies=policies, clock=self._options.clock, run=self._run
        )
        return catalog

    def _tell_detection(self, report: FleetReport) -> None:
        for skip in report.skipped:
            if skip.is_error:
                result = TableResult(
                    catalog=skip.catalog, table=skip.table or "*", status="failed", summary=skip.reason
                )
                self._tell(result.line(self._options.clock()))
        for warning in report.warnings:
            if warning not in self._warned:  # detections repeat their warnings
                self._say(warning)
        self._warned = frozenset(report.warnings)
        needy = len(report.proposals) + report.beyond_limit
        need = f"{needy} {'needs' if needy == 1 else 'need'} maintenance"
        beyond = f", {report.beyond_limit} of them beyond max_jobs_per_detection" if report.beyond_limit else ""
        late = f", {report.not_reached} not reached" if report.not_reached else ""
        self._say(f"{counted(report.scanned, 'table')} looked at{late}, {need}{beyond}")

    def _say(self, sentence: str) -> None:
        self._tell(f"{iso_utc(self._options.clock())} {sentence}")


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
            options = ServiceOptions(
                catalogs=call["catalogs"],
                environment=os.environ,
                overrides=call["overrides"],
                schedule=call["schedule"],
            )
            service = Service(options, open_state(os.environ), engine, lambda line: tell(line=line), stop)
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
