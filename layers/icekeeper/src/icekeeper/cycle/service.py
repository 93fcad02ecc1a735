"""The cycle: every interval a detection, whose tables some workers maintain, the neediest first.

A detection never waits for passes: tables that are still at work are left out by their leases, and what an earlier
detection proposed and no worker has begun is decided anew.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.cycle.last_good import LastGood
from icekeeper.cycle.maintain_proposal import Work, maintain_proposal
from icekeeper.cycle.settings import CycleSettings
from icekeeper.cycle.told import TableResult
from icekeeper.detection.catalogs import CatalogSource
from icekeeper.detection.detect import detect
from icekeeper.detection.proposal import FleetProposal, FleetReport
from icekeeper.engines.engine import Engine
from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.machine.clock import Clock, iso_utc, system_clock
from icekeeper.pass_context.context import SharedRun
from icekeeper.runtime import Runtime
from icekeeper.state.detection_mark import note_detection
from icekeeper.state.store import StateStore
from icekeeper.table_policy import TablePolicies
from icekeeper.text import counted

__all__ = ["Service", "ServiceOptions"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What ``icekeeper run`` was called with."""

    catalogs: Sequence[str]
    environment: Mapping[str, str]
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings for detection and for passes that nobody requested."""
    schedule: Mapping[str, str] = field(default_factory=dict)
    """Settings for this process alone: interval and workers."""
    open_catalog: Callable[[str], Catalog] = open_catalog
    clock: Clock = system_clock


@dataclass(frozen=True, slots=True)
class _Rules:
    """What one cycle goes by: the policy file as it was read before its detection, for all its passes too."""

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
        """``tell`` gets each line for people; who sets ``stop`` calls :meth:`stop`."""
        self._options, self._state, self._engine, self._tell = options, state, engine, tell
        self._stop = stop or Event()
        self._cursor: tuple[str, str] | None = None
        self._detections = 0
        self._run = SharedRun(uuid.uuid4().hex)
        self._waiting: list[Future[bool]] = []
        self._warned: frozenset[str] = frozenset()
        self._rules = LastGood(self._read_rules, self._say)
        self._catalogs = {
            # What does not answer is no change of its settings: it is told with every detection.
            name: LastGood(partial(options.open_catalog, name), self._say, (PolicyError,))
            for name in options.catalogs
        }

    def stop(self) -> None:
        """Begin nothing more; what is at work ends with the operation that it is in."""
        self._stop.set()

    def run(self, *, once: bool = False) -> bool:
        """Detect and maintain until stopped, or once; whether nothing went wrong, of which only ``once`` tells.

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
                self._stop.set()  # also after an interrupt: the pool waits for its threads
        return not once or (is_well and all(future.result() for future in done))

    def _require_known_catalogs(self) -> None:
        """Raise PolicyError for a catalog that is not configured; one that does not answer may do so later."""
        for catalog in self._catalogs.values():
            with suppress(StorageError):
                catalog.current()

    def _read_rules(self) -> _Rules:
        policies = TablePolicies(self._options.environment)
        given = {**self._options.overrides, **self._options.schedule}
        return _Rules(policies, CycleSettings.of(policies.deployment(given).policy))

    def _detect(self, pool: ThreadPoolExecutor, rules: _Rules, *, once: bool) -> bool:
        """Look at every table once, and hand those that need work to the workers."""
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
        self._run.name = run  # also for passes that an earlier detection proposed: this look is newer
        self._note_detection(rules.settings, once=once)
        self._tell_detection(report)
        self._detections += 1
        self._replace_waiting(pool, rules.settings, report.proposals, opened, started_ms)
        return report.errors == 0

    def _note_detection(self, settings: CycleSettings, *, once: bool) -> None:
        """Let those who file requests know that somebody looks for them."""
        interval_ms = 0 if once else int(settings.interval_s * 1000)
        with suppress(StorageError):  # the next detection leaves it
            note_detection(self._state.leases, now_ms=self._options.clock(), interval_ms=interval_ms)

    def _replace_waiting(
        self,
        pool: ThreadPoolExecutor,
        settings: CycleSettings,
        proposals: Sequence[FleetProposal],
        opened: Mapping[str, Runtime],
        started_ms: int,
    ) -> None:
        """Let the workers go on with these proposals, instead of those that none of them has begun."""
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
            if warning not in self._warned:  # it is the same with every detection
                self._say(warning)
        self._warned = frozenset(report.warnings)
        needy = len(report.proposals) + report.beyond_limit
        need = f"{needy} {'needs' if needy == 1 else 'need'} maintenance"
        beyond = f", {report.beyond_limit} of them beyond max_jobs_per_detection" if report.beyond_limit else ""
        late = f", {report.not_reached} not reached" if report.not_reached else ""
        self._say(f"{counted(report.scanned, 'table')} looked at{late}, {need}{beyond}")

    def _say(self, sentence: str) -> None:
        self._tell(f"{iso_utc(self._options.clock())} {sentence}")
