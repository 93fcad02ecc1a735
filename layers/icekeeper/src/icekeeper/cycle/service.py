"""The cycle: every interval, this process detects, and workers maintain the tables, those with the most need first.

Each worker is a thread that waits for a pass (:mod:`icekeeper.cycle.pass_process`).  A detection never waits for
passes.  Leases exclude tables that are still maintained; proposals of an earlier detection that no worker has started
are replaced.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from types import MappingProxyType

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.cycle.pass_process import COMMAND, LastGood, PassEnd, PassOrder
from icekeeper.detection.detect import detect
from icekeeper.detection.list_tables import CatalogSource, selects_table
from icekeeper.detection.proposal import FleetReport, Proposal
from icekeeper.engines.engine import UNDER_SUBMIT
from icekeeper.errors import LeaseHeld, MaintenanceError, PolicyError, StorageError
from icekeeper.machine.clock import Clock, iso_utc, system_clock
from icekeeper.maintenance.run_pass import PASS_LEASE_MS
from icekeeper.model import CatalogId
from icekeeper.pass_context.table_policy import TablePolicies, policy_address
from icekeeper.policy import Policy
from icekeeper.report.activity import is_json, json_line
from icekeeper.report.outcome import PassStatus, in_plain_words
from icekeeper.state.claims import CutWork, cut_again
from icekeeper.state.identity import Entry, TableIdentity
from icekeeper.state.leases import HeldLease, holder_name, kept_alive, note_detection, take_slot
from icekeeper.state.store import StateStore
from icekeeper.text import counted, masked

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """How the pass over one table ended: a status of a pass, or ``skipped``."""

    catalog: str
    table: str
    status: str
    summary: str
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        return self.status in ("succeeded", "skipped")

    def line(self, now_ms: int, *, as_json: bool = False) -> str:
        """``2026-01-31T12:00:00Z lake ns.t succeeded in 3.2 s: compact: …``"""
        text = in_plain_words(masked(" ".join(self.summary.split())))
        if as_json:
            fields: dict[str, object] = {"catalog": self.catalog, "table": self.table, "status": self.status}
            level = "INFO" if self.is_well else "ERROR"
            return run_json(now_ms, text, "table_result", level, {**fields, "seconds": round(self.seconds, 3)})
        taken = f" in {self.seconds:.1f} s" if self.seconds else ""
        return f"{iso_utc(now_ms)} {self.catalog} {self.table} {self.status}{taken}: {text}"


def run_json(now_ms: int, message: str, event: str, level: str, fields: Mapping[str, object]) -> str:
    """A line of ``icekeeper run`` as JSON, with the names that log lines use."""
    about = {"level": level, "message": message, "timestamp": iso_utc(now_ms), "name": "icekeeper.run"}
    return json_line({**about, "event": event, **fields})


def run_line(now_ms: int, sentence: str, environment: Mapping[str, str], **fields: object) -> str:
    """A sentence as a line of ``icekeeper run``, in the format of the environment."""
    if is_json(environment):
        return run_json(now_ms, sentence, "run", "INFO", fields)
    return f"{iso_utc(now_ms)} {sentence}"


_SLOT_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Work:
    """A table that a detection proposed."""

    order: PassOrder
    most: int
    """``max_concurrent_jobs`` of the deployment, read before the detection."""
    detection: int
    """The detection's number; after a later detection this work is not started any more."""


def workers_of(policy: Policy, environment: Mapping[str, str] = MappingProxyType({})) -> int:
    """How many tables a process maintains at once: at most as many as all processes with the same state.

    A driver that ``spark-submit`` started has one Spark context, so one pass at a time uses it.
    """
    if UNDER_SUBMIT in environment:
        return 1
    return min(policy.max_concurrent_jobs_per_worker, policy.max_concurrent_jobs)


class Service:
    """One process of ``icekeeper run``; :meth:`stop` may be called by a signal handler or another thread."""

    def __init__(
        self,
        state: StateStore,
        run_pass: Callable[[PassOrder, Event], PassEnd],
        notify: Callable[[str], object],
        *,
        catalogs: Sequence[str],
        patterns: Sequence[str] = (),
        environment: Mapping[str, str],
        overrides: Mapping[str, str] = MappingProxyType({}),
        schedule: Mapping[str, str] = MappingProxyType({}),
        open_catalog: Callable[[str], Catalog] = open_catalog,
        clock: Clock = system_clock,
        stop: Event | None = None,
        on_cycle: Callable[[float, bool], object] = lambda interval_s, has_ended: None,
        on_pass: Callable[[], object] = lambda: None,
        verify_interval_ms: int = 0,
    ) -> None:
        """``run_pass`` runs a pass, and ends it after its current operation once the event is set; ``notify`` writes a
        line for people; setting ``stop`` is the same as calling :meth:`stop`.

        ``on_cycle`` is called at the begin and end of each cycle, with its interval in seconds; ``on_pass`` after each
        pass.

        Tables that ``verify`` has not looked at for ``verify_interval_ms`` are verified after the passes of a cycle,
        those that waited longest first; 0: none.

        With ``patterns``, only tables that match one of them are looked at.  ``overrides`` are settings for detection
        and for passes without a request, ``schedule`` those for this process only: interval and workers.
        """
        self._state, self._run_pass, self._notify, self._stop = state, run_pass, notify, stop or Event()
        self._environment, self._overrides, self._schedule, self._clock = environment, overrides, schedule, clock
        self._on_cycle, self._on_pass = on_cycle, on_pass
        self._as_json, self._patterns = is_json(environment), patterns
        self._cursor: tuple[str, str] | None = None
        self._verify_interval_ms, self._tried_ms = verify_interval_ms, dict[Entry, int]()
        self._ids: dict[str, CatalogId] = {}
        self._detections = 0
        self._waiting: list[Future[bool]] = []
        self._warned: frozenset[str] = frozenset()
        self._policy_file = ""
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
            Exception: ``notify`` raised it; running passes have ended after their current operation.
        """
        policies, policy = self._rules.current()
        for catalog in self._catalogs.values():
            with suppress(StorageError):  # a catalog that does not answer is tried again
                catalog.current()
        is_well = True
        workers = workers_of(policy, self._environment)
        with ThreadPoolExecutor(workers, thread_name_prefix="icekeeper-run") as pool:
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
        address = policy_address(self._environment, of_user=True)
        if self._policy_file and not address:  # without it, retentions could become shorter
            raise PolicyError(f"policy file {self._policy_file} does not exist any more")
        self._policy_file = address
        policies = TablePolicies(self._environment, of_user=True)
        return policies, policies.deployment({**self._overrides, **self._schedule}).policy

    def _detect(self, pool: ThreadPoolExecutor, policies: TablePolicies, policy: Policy, *, once: bool) -> bool:
        """Look at every table once, and submit those that need work; return whether there was no error.

        Tables of an earlier detection that no worker has started are replaced.
        """
        self._on_cycle(policy.detection_interval_s, False)
        opened: dict[str, str] = {}
        started_ms, run = self._clock(), uuid.uuid4().hex
        sources = [CatalogSource(name, partial(self._open, name, opened)) for name in self._catalogs]
        try:
            report = detect(
                sources,
                self._state,
                policies,
                overrides=self._overrides,
                clock=self._clock,
                cursor=self._cursor,
                run=run,
                patterns=self._patterns,
            )
        except MaintenanceError as error:
            if once:
                raise
            self._say(f"no table could be read: {error}")
            return False
        self._cursor = report.cursor
        interval_ms = 0 if once else int(policy.detection_interval_s * 1000)
        with suppress(StorageError):  # the next detection records that requests are served
            if not self._patterns:
                note_detection(self._state.leases, now_ms=self._clock(), interval_ms=interval_ms)
        self._report_detection(report)
        self._on_cycle(policy.detection_interval_s, True)
        self._detections += 1
        running = [future for future in self._waiting if not future.cancel() and not future.done()]
        orders = [
            PassOrder(
                proposal=proposal,
                catalog=opened[proposal.catalog],
                policies=policies.without_results(),
                # A request for a pass over one table must not change how often other tables are detected.
                overrides={} if proposal.is_requested and self._patterns else {**self._overrides},
                detected_ms=started_ms,
                run=run,
                timeout_s=policy.job_timeout_s,
                retries=policy.job_retry_limit,
            )
            for proposal in report.proposals
        ]
        if self._verify_interval_ms:
            orders += self._verifications(opened, policies, policy, run)
        works = [_Work(order, policy.max_concurrent_jobs, self._detections) for order in orders]
        self._waiting = running + [pool.submit(self._maintain, work) for work in works]
        return report.errors == 0

    def _verifications(
        self, opened: Mapping[str, str], policies: TablePolicies, policy: Policy, run: str
    ) -> list[PassOrder]:
        """Orders to verify the tables that are due, by the lake stats that the scan has recorded."""
        now_ms, due = self._clock(), list[tuple[int, TableIdentity]]()
        try:
            lake = [stats for catalog in opened for stats in self._state.lake_stats.of_catalog(self._ids[catalog])]
        except StorageError as error:
            self._say(f"no table is verified in this cycle: {error}")
            return []
        for stats in lake:
            # A table that could not be verified waits as long as the others.
            last_ms = max(stats.verified_ms, self._tried_ms.get(stats.identity.entry, 0))
            is_due = now_ms - last_ms >= self._verify_interval_ms and not stats.verdict.is_unread
            if is_due and selects_table(policy, stats.identity.table, self._patterns):
                due.append((last_ms, stats.identity))
        return [
            PassOrder(
                proposal=Proposal.of(identity, "its files were not verified for long"),
                catalog=opened[identity.catalog.name],
                policies=policies.without_results(),
                overrides={},
                detected_ms=now_ms,
                run=run,
                timeout_s=policy.job_timeout_s,
                retries=0,
                only_verifies=True,
            )
            for _, identity in sorted(due, key=lambda found: (found[0], found[1].entry))
        ]

    def _open(self, name: str, opened: dict[str, str]) -> Catalog:
        catalog = self._catalogs[name].current()
        opened[catalog.id.name], self._ids[catalog.id.name] = name, catalog.id
        return catalog

    def _maintain(self, work: _Work) -> bool:
        """Run the pass over a table and print its result, which may be an error.

        A pass that is not started, because the process ends or there was a later detection, has no result.
        """
        started_s = time.monotonic()
        try:
            end = self._with_slot(work)
        except StorageError as error:
            end = PassEnd("failed", str(error))
        if end is None:
            return True
        self._on_pass()
        is_pass = not work.order.only_verifies
        if is_pass and end.status == PassStatus.FAILED and not end.is_recorded:
            with suppress(StorageError):  # a figure only
                self._state.totals.add(work.order.proposal.identity.catalog, {f"passes.{PassStatus.FAILED}": 1})
        if not is_pass and end.status != "skipped":
            self._tried_ms[work.order.proposal.identity.entry] = self._clock()
        result = TableResult(
            catalog=work.order.proposal.catalog,
            table=work.order.proposal.table,
            status=end.status,
            summary=self._cut_off(work.order, end.summary) if end.is_cut and is_pass else end.summary,
            seconds=time.monotonic() - started_s,
        )
        self._notify(result.line(self._clock(), as_json=self._as_json))
        return result.is_well

    def _with_slot(self, work: _Work) -> PassEnd | None:
        """Wait for a free slot; return the end of the pass, or ``None`` if it was not started."""
        holder, leases = holder_name(COMMAND, uuid.uuid4().hex), self._state.leases
        while not self._stop.is_set() and self._detections == work.detection:
            try:
                slot = take_slot(leases, holder, work.most, now_ms=self._clock(), ttl_ms=PASS_LEASE_MS)
            except LeaseHeld:
                self._stop.wait(_SLOT_PAUSE_S)
                continue
            with kept_alive(HeldLease(leases, slot, PASS_LEASE_MS, self._clock)):
                return self._run_pass(work.order, self._stop)
        return None

    def _cut_off(self, order: PassOrder, why: str) -> str:
        """Record that a table was cut off; return the sentence."""
        proposal = order.proposal
        try:
            why = cut_again(
                self._state.cut_offs, proposal.identity.entry, CutWork.PASS, why, now_ms=self._clock()
            ).sentence
        except StorageError as error:
            why = f"{why}; this could not be recorded: {error}"
        return f"cut off: {why}"

    def _report_detection(self, report: FleetReport) -> None:
        for skip in report.skipped:
            if skip.is_error:
                result = TableResult(
                    catalog=skip.catalog, table=skip.table or "*", status="failed", summary=skip.reason
                )
                self._notify(result.line(self._clock(), as_json=self._as_json))
        for warning in report.warnings:
            if warning not in self._warned:  # detections repeat their warnings
                self._say(warning)
        self._warned = frozenset(report.warnings)
        needy = len(report.proposals) + report.beyond_limit
        need = f"{needy} {'needs' if needy == 1 else 'need'} maintenance"
        beyond = f", {report.beyond_limit} of them beyond max_jobs_per_detection" if report.beyond_limit else ""
        late = f", {report.not_reached} not reached" if report.not_reached else ""
        counts = {"tables": report.scanned, "proposals": len(report.proposals), "errors": report.errors}
        self._say(f"{counted(report.scanned, 'table')} scanned{late}, {need}{beyond}", **counts)

    def _say(self, sentence: str, **fields: object) -> None:
        self._notify(run_line(self._clock(), sentence, self._environment, **fields))
