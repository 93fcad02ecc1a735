"""A scan over many catalogs, in several threads and within one time budget: requested tables first, then all tables."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.other_tables import UNKNOWN_WAREHOUSE
from icekeeper.detection.assess import assess_table, next_sweep_ms, settled_operations
from icekeeper.detection.list_tables import (
    CatalogSource,
    FleetTable,
    ListedCatalog,
    empty_catalogs,
    listed_catalog,
    listing_warnings,
    requested_tables,
    round_robin,
    unmatched_patterns,
    unmatched_requests,
)
from icekeeper.detection.priority import urgency
from icekeeper.detection.proposal import FleetReport, Proposal, Skip
from icekeeper.detection.seen_tables import SeenTables
from icekeeper.detection.signals import SweepPlanner
from icekeeper.errors import MaintenanceError, PolicyError, RequestRefused, StorageError
from icekeeper.health.examine import examine, health_head, listed_manifests, summary_counters
from icekeeper.health.lake_log import LakeLog, Twins
from icekeeper.machine.clock import HOUR_MS, Reached, within_budget
from icekeeper.metadata.document import Snapshot
from icekeeper.model import CatalogId, TableName
from icekeeper.operations.policy_fit import fitting
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.policy.policy_file import matches
from icekeeper.report.activity import scan_finished, scan_started
from icekeeper.state.claims import LEAST_LIMIT_S, CatalogLook, CutOff, CutWork, cut_again, look_reason, waiting_cuts
from icekeeper.state.findings import CatalogScan, Verdict
from icekeeper.state.identity import Entry, TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.requests import UNSERVED_MS, MaintenanceRequest
from icekeeper.state.store import Glance, PassRecord, StateStore
from icekeeper.text import counted, masked

log = logging.getLogger(__name__)

# A load is two requests of about 50 ms each: 10,000 tables in 300 s need seven threads if nothing is slow.
LOADING_THREADS = 16
# The largest share of the time for listing several catalogs: a slow catalog must leave time for tables of the others.
_LISTING_SHARE = 0.5

RequestChecker = Callable[[Catalog, LoadedTable, Mapping[str, str]], object]
"""Resolves the policy of a table with the settings of a request; raises PolicyError to refuse the request."""
ManifestCounter = Callable[[LoadedTable, Snapshot], int]
"""Counts the manifests of a snapshot by its manifest list; raises MaintenanceError."""
PolicyResolver = Callable[[Catalog, LoadedTable], ResolvedPolicy]
"""Resolves the settings of a table; raises PolicyError."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One catalog during the scan."""

    catalog: Catalog
    selected: tuple[TableName, ...]
    health: LakeLog
    twins: Twins
    seen: SeenTables | None
    """``None``: the scan looks at one table only."""
    whole: frozenset[TableName] | None
    """Every table of the catalog; ``None``: some are not listed."""
    requested: Sequence[TableName]
    """The tables to load first."""
    filed: Mapping[str, Sequence[MaintenanceRequest]]
    """The requests filed under the catalog's own name, by table name; several if the table was recreated."""
    pending: Mapping[str, MaintenanceRequest]
    """Requests of all catalogs by lease key: a table may have another name here than in the request."""
    fleet: int
    """How many tables the scan selects in all catalogs."""
    not_looked_at: Mapping[str, CutOff]
    """By key of the name: tables that the scan does not load yet, because loading them took too long."""
    not_maintained: Mapping[str, CutOff]
    """By key of the name: tables that get no pass yet, because their last pass took too long."""
    looked_at_again: frozenset[str]
    """Keys of tables that are loaded again after an earlier load took too long."""

    def entry(self, table: TableName) -> Entry:
        return Entry(self.catalog.id, table.key)


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of the scan for one table."""

    found: Proposal | Skip
    request: MaintenanceRequest | None = None
    stale: tuple[MaintenanceRequest, ...] = ()
    """Requests for an earlier table of this name, which no longer exists."""
    refused: str | None = None
    """Why the request is refused: the deployment does not admit it, or its settings are wrong."""


@dataclass(frozen=True, slots=True)
class Scanner:
    """A scan of catalogs with the deployment's settings.

    Tables with a pending request come first, whatever the filters.  The others follow in round-robin order after a
    cursor; the report has the cursor for the next scan.  ``detection_timeout_s`` bounds the whole scan; at most
    ``max_jobs_per_detection`` proposals remain, chosen by urgency.  The health of every loaded table is recorded.  If
    there are several catalogs, a catalog that is not listed within half of the time is skipped.

    A request for a table that no longer exists is reported and dropped.  The run that serves a request claims it.

    A scan with patterns looks only at tables that match them, so it serves only the requests for these tables.
    """

    settings: Policy
    """The settings of the deployment."""
    store: StateStore
    now_ms: int
    resolve_policy: PolicyResolver
    plan_sweep: SweepPlanner
    threads: int = LOADING_THREADS
    """Also the largest number of metadata documents in memory."""
    monotonic_s: Callable[[], float] = time.monotonic
    run: str = ""
    """The run whose passes use the records of the scan; empty: no run follows."""
    count_manifests: ManifestCounter | None = None
    """``None``: where a summary lacks the number, it is unknown."""
    check_request: RequestChecker = lambda catalog, loaded, settings: None
    own_policy: PolicyResolver | None = None
    """Resolves the settings of a table without those of the call, for the record of its health; ``None``: use
    ``resolve_policy``."""
    patterns: Sequence[str] = ()
    """The patterns of the call; without any, all tables that the filters select."""

    def scan(self, sources: Sequence[CatalogSource], cursor: tuple[str, str] | None = None) -> FleetReport:
        """Assess the selected tables of these catalogs; each is loaded once.

        Raises:
            StorageError: requests cannot be read from the state store or dropped.
        """
        started_s = self.monotonic_s()
        scan_started(len(sources))
        deadline_s = started_s + self.settings.detection_timeout_s
        catalogs, skipped = self._opened(sources, deadline_s)
        warnings: list[str] = []
        unmatched = () if skipped else tuple(unmatched_patterns(catalogs, self.patterns))
        places = self._places(catalogs, skipped, warnings)
        entries = [FleetTable(name, str(table), table) for name, place in places.items() for table in place.selected]
        asked = [FleetTable(name, str(table), table) for name, place in places.items() for table in place.requested]
        asked_for = {entry.cursor for entry in asked}
        selected = {entry.cursor for entry in entries}
        order = round_robin((entry for entry in entries if entry.cursor not in asked_for), cursor)
        reached = within_budget(
            lambda entry: self._look_at(places[entry.catalog], entry, is_selected=entry.cursor in selected),
            [*round_robin(asked, None), *order],
            threads=self.threads,
            budget_s=max(0.0, deadline_s - self.monotonic_s()),
            name="icekeeper-detect",
            monotonic_s=self.monotonic_s,
            around=self.store.kept_open,  # opening a SQLite state takes ten times as long as reading an item
        )
        refused = self._record(places, reached)
        proposals, more, beyond_limit = self._ranked(reached, places)
        done = {entry.cursor for entry, _ in reached.done}
        missed = [entry for entry in (*asked, *order) if entry.cursor not in done]
        late, hung = _late_reason(self.settings), {entry.cursor for entry in reached.hung}
        skipped += more
        slow = look_reason(self.settings.detection_timeout_s)
        for cut in missed:
            is_hung = cut.cursor in hung
            skipped.append(Skip(cut.text, slow if is_hung else late, is_error=is_hung, catalog=cut.catalog))
        report = FleetReport(
            scanned=len(reached.done),
            listed=len(selected),
            proposals=tuple(proposals),
            skipped=tuple(sorted(skipped, key=lambda skip: (skip.warning is None, skip.catalog, skip.table))),
            cursor=_next_cursor(order, reached.begun - len(asked), cursor),
            not_reached=len(missed),
            beyond_limit=beyond_limit,
            warnings=(*listing_warnings(catalogs), *unmatched, *warnings, *refused),
            empty_catalogs=len(empty_catalogs(catalogs)),
        )
        scan_finished(
            listed=report.listed,
            scanned=report.scanned,
            proposals=len(report.proposals),
            skipped=len(report.skipped),
            errors=report.errors,
            seconds=self.monotonic_s() - started_s,
        )
        return report

    def look_again(self, catalog: Catalog, table: TableName, recorded: Sequence[LakeStats]) -> None:
        """Record how a table looks after a pass or a change of its settings; ``recorded`` are its stats so far.

        Raises:
            MaintenanceError: the table cannot be read, or its settings are wrong; the latter is recorded.
        """
        scan, cuts = self.store.scans.of_catalog(catalog.id), self.store.cut_offs.of_catalog(catalog.id)
        place = _Place(
            catalog,
            (table,),
            LakeLog(self.store, catalog.id, recorded),
            Twins(),
            seen=None,
            whole=None,
            requested=(),
            filed={},
            pending={},
            fleet=1 if scan is None else scan.listed,
            not_looked_at={},
            not_maintained=waiting_cuts(cuts, CutWork.PASS, self.now_ms),
            looked_at_again=frozenset(),
        )
        loaded = catalog.load(table)
        try:
            self._assess(place, loaded, identity_of(catalog, loaded), is_requested=False)
        finally:
            place.health.finish()

    def _look_at(self, place: _Place, entry: FleetTable, *, is_selected: bool) -> _Found:
        """Load and assess a table, unless it waits because this took too long before."""
        waiting = place.not_looked_at.get(entry.table.key)
        if waiting is not None:
            return _Found(_unfit(entry, f"not looked at: {waiting.sentence}"))
        if not entry.table.is_plain:  # its text would denote another table, or no table
            reason = "no pass can refer to it: a part of its name is empty or has a dot; rename the table or namespace"
            return _Found(_unfit(entry, reason))
        return self._reach(place, entry, is_selected=is_selected)

    def _reach(self, place: _Place, entry: FleetTable, *, is_selected: bool) -> _Found:
        """Load and assess a table; a request counts only for the same table, not for a new one of that name."""
        catalog = place.catalog
        filed_here = tuple(place.filed.get(entry.text, ()))
        try:
            loaded = catalog.load(entry.table)
        except PolicyError as error:  # the catalog no longer has the table
            return _Found(_unfit(entry, str(error)), stale=filed_here)
        except Exception as error:
            if place.seen is not None:
                place.seen.failed(entry.table, error)
            skip = _skip_of(entry, error)
            place.health.unread(entry.table, skip.reason, self.now_ms)
            return _Found(skip)
        try:
            identity = identity_of(catalog, loaded)
            request = place.pending.get(identity.lease_key)
        except Exception as error:
            return _Found(_skip_of(entry, error))
        stale = tuple(other for other in filed_here if other is not request)
        if request is None and not is_selected:
            reason = "a pass was requested for a table of this name that is gone"
            return _Found(Skip(entry.text, reason, catalog=entry.catalog), stale=stale)
        refused = None
        if request is not None:
            try:
                self.check_request(catalog, loaded, request.settings)
            except PolicyError as error:
                refused = str(error)
            except StorageError:  # the pass will check the request again
                pass
        if refused is not None and not is_selected:
            return _Found(Skip(entry.text, refused, catalog=entry.catalog), request, stale, refused)
        is_requested = request is not None and refused is None
        try:
            found = self._assess(place, loaded, identity, is_requested=is_requested)
        except Exception as error:
            found = _skip_of(entry, error)
        return _Found(found, request, stale, refused)

    def _assess(
        self, place: _Place, loaded: LoadedTable, identity: TableIdentity, *, is_requested: bool
    ) -> Proposal | Skip:
        """Assess a loaded table, and record its health and where it has files."""
        memory = self.store.glance(identity, now_ms=self.now_ms)
        try:
            resolved = self.resolve_policy(place.catalog, loaded)
            if not is_requested:  # a pass answers the request
                fitting(loaded.metadata, resolved)
        except RequestRefused:  # not about the table's own settings
            raise
        except PolicyError as error:
            self._observe(place, loaded, identity, error, memory, Verdict(left_alone=str(error)))
            raise
        manifests = self._counted(place, loaded, identity, resolved)

        def assessed(policy: ResolvedPolicy, plan_sweep: SweepPlanner) -> Proposal | Skip:
            return assess_table(
                loaded,
                identity,
                policy,
                memory,
                now_ms=self.now_ms,
                plan_sweep=plan_sweep,
                is_requested=is_requested,
                fleet=place.fleet,
                manifests=manifests if isinstance(manifests, int) else None,
            )

        found: Proposal | Skip | None = None
        try:
            recorded = found = assessed(resolved, self.plan_sweep)
            if self.own_policy is not None:
                resolved = fitting(loaded.metadata, self.own_policy(place.catalog, loaded))
                recorded = assessed(resolved, lambda identity, due: None)
        except Exception as error:
            wrong = error if isinstance(error, PolicyError) else resolved
            self._observe(place, loaded, identity, wrong, memory, Verdict(left_alone=masked(str(error))), manifests)
            if found is not None and isinstance(error, PolicyError):
                return found  # only operations that the call does not run have wrong settings
            raise
        sweep_ms = next_sweep_ms(
            identity, loaded.metadata, resolved, memory.sweeps, fleet=place.fleet, now_ms=self.now_ms
        )
        self._observe(place, loaded, identity, resolved, memory, _verdict(recorded, sweep_ms), manifests)
        return found

    def _counted(
        self, place: _Place, loaded: LoadedTable, identity: TableIdentity, resolved: ResolvedPolicy
    ) -> int | MaintenanceError | None:
        """The number of manifests where the head's summary lacks it: as the last scan recorded it for this head, else
        by its manifest list."""
        head = health_head(loaded.metadata, resolved)
        if head is None or self.count_manifests is None or listed_manifests(summary_counters(head)) is not None:
            return None
        known = place.health.manifests(identity, head.snapshot_id)
        if known is not None:
            return known
        try:
            return self.count_manifests(loaded, head)
        except MaintenanceError as error:
            return error

    def _observe(
        self,
        place: _Place,
        loaded: LoadedTable,
        identity: TableIdentity,
        resolved: ResolvedPolicy | PolicyError,
        memory: Glance,
        verdict: Verdict,
        manifests: int | MaintenanceError | None = None,
    ) -> None:
        if place.seen is not None:
            place.seen.observe(loaded)
        stats = examine(
            identity,
            loaded.metadata,
            resolved,
            now_ms=self.now_ms,
            manifests=manifests,
            idle=lambda policy: settled_operations(loaded.metadata, policy, memory, self.now_ms),
            memory=memory,
            cut_off=place.not_maintained.get(loaded.name.key),
            twins=place.twins.of(identity),
        )
        place.health.observe(replace(stats, verdict=verdict))

    def _note_cuts(self, places: Mapping[str, _Place], reached: Reached[FleetTable, _Found]) -> None:
        """Record the tables whose assessment hung, and forget those where it succeeded again."""
        counts = self.settings.detection_timeout_s >= LEAST_LIMIT_S
        try:
            for entry in reached.hung if counts else ():
                place = places[entry.catalog]
                cut_again(
                    self.store.cut_offs,
                    place.entry(entry.table),
                    CutWork.LOOK,
                    look_reason(self.settings.detection_timeout_s),
                    now_ms=self.now_ms,
                )
                place.health.unread(entry.table, look_reason(self.settings.detection_timeout_s), self.now_ms)
            for entry, _ in reached.done:
                place = places[entry.catalog]
                if entry.table.key in place.looked_at_again:
                    self.store.cut_offs.forget(place.entry(entry.table), CutWork.LOOK)
        except StorageError as error:  # the next scan detects them again
            log.warning("the tables that were not read in time could not be recorded: %s", error)

    def _count(self, place: _Place) -> None:
        try:
            self.store.totals.add(place.catalog.id, {"scans": 1})
        except StorageError as error:  # a figure only
            log.warning("the scan could not be added to the totals: %s", error)

    def _record(self, places: Mapping[str, _Place], reached: Reached[FleetTable, _Found]) -> list[str]:
        """Record the results of the scan; return the sentences about refused requests."""
        self._note_cuts(places, reached)
        counts = Counter(entry.catalog for entry, _ in reached.done)
        for place in places.values():
            place.health.finish()
            self._count(place)
            if place.seen is not None:
                place.seen.finish(place.whole, self.run, self.now_ms)
            scanned = counts[place.catalog.id.name]
            # Not if it covers only a part of the catalog, or no table of it in time.
            if not self.patterns and (scanned or not place.selected):
                self._note_scan(place, scanned)
        # No run will serve the requests for tables that no longer exist, unless under another name.
        served = {found.request.identity.lease_key for _, found in reached.done if found.request is not None}
        for request in (request for _, found in reached.done for request in found.stale):
            if request.identity.lease_key not in served:
                self.store.requests.claim(request)
        answered = [self._answer(table) for _, table in reached.done if table.refused is not None]
        return [why for why in answered if why]

    def _note_scan(self, place: _Place, scanned: int) -> None:
        """Record for the report page when the catalog was scanned, and how much of it."""
        catalog, listed = place.catalog.id, len(place.selected)
        scan = CatalogScan(catalog=catalog, scanned_ms=self.now_ms, listed=listed, scanned=scanned)
        try:
            self.store.scans.record(scan)
        except StorageError as error:
            log.warning("the scan of catalog %s could not be recorded: %s", catalog, error)

    def _answer(self, found: _Found) -> str:
        """Record in the journal why a request is refused, and drop it, because a retry would be refused too."""
        request, why = found.request, found.refused or ""
        if request is None or not self.store.requests.claim(request):
            return ""
        # Not earlier than the request, or its sender would not find the answer.  A forged time must not keep the entry
        # at the top of the journal for years.
        at_ms = max(self.now_ms, min(request.requested_ms, self.now_ms + HOUR_MS))
        record = PassRecord(
            identity=request.identity,
            run_id=self.run or "detection",
            started_ms=at_ms,
            finished_ms=at_ms,
            status="refused",
            summary=why,
            engine="",
        )
        try:
            self.store.record_pass(record)
        except StorageError as error:  # this must not stop the passes of other tables
            log.warning("the refusal of the request could not be written to the journal: %s", error)
        return why

    def _opened(self, sources: Sequence[CatalogSource], deadline_s: float) -> tuple[list[ListedCatalog], list[Skip]]:
        """The catalogs that were listed in time, and a skip with the reason for each of the others."""
        left_s = max(0.0, deadline_s - self.monotonic_s())
        opened = within_budget(
            lambda source: listed_catalog(source, self.settings, self.patterns),
            sources,
            threads=self.threads,
            budget_s=left_s * (_LISTING_SHARE if len(sources) > 1 else 1),
            name="icekeeper-list",
            monotonic_s=self.monotonic_s,
        )
        answered = {id(source) for source, _ in opened.done}
        late = _late_reason(self.settings)
        skipped = [result for _, result in opened.done if isinstance(result, Skip)]
        for source in sources:
            if id(source) not in answered:
                skipped.append(Skip("", late, is_error=True, catalog=source.name))
        if self.run:
            found = {source.name for source in sources if source.may_be_empty}
            self._note_unopened([skip for skip in skipped if skip.catalog not in found])
        return [result for _, result in opened.done if isinstance(result, ListedCatalog)], skipped

    def _note_unopened(self, skipped: Iterable[Skip]) -> None:
        """Record unknown catalogs that were not listed, for the passes of the run; passes try known catalogs again."""
        looks = (look.catalog for look in self.store.claims.looks())
        known = {catalog.name.lower() for catalog in looks if catalog.warehouse != UNKNOWN_WAREHOUSE}
        for name, reason in {skip.catalog: skip.reason for skip in skipped}.items():
            if name.lower() not in known and not name.startswith("arn:"):
                look = CatalogLook(
                    catalog=CatalogId(name, UNKNOWN_WAREHOUSE), run=self.run, looked_ms=self.now_ms, failure=reason
                )
                self.store.claims.record_look(look)

    def _places(self, catalogs: Sequence[ListedCatalog], skipped: list[Skip], warnings: list[str]) -> dict[str, _Place]:
        """The catalogs by name; if two have the same name, the second is added to ``skipped``."""
        pending = self.store.requests.pending(warnings.append)
        strangers = unmatched_requests(pending, [listed.catalog for listed in catalogs])
        if not skipped:  # else the requests may be for a catalog that does not answer now
            warnings += self._expired(strangers, catalogs)
        by_key = {request.identity.lease_key: request for request in pending}
        fleet = sum(len(listed.selected) for listed in catalogs)
        places: dict[str, _Place] = {}
        twins = Twins()
        for listed in catalogs:
            catalog = listed.catalog
            name = catalog.id.name
            if name in places:
                skipped.append(Skip("", "another catalog has the same name", is_error=True, catalog=name))
                continue
            health = LakeLog(self.store, catalog.id)
            twins.know(health.tables)
            whole = listed.tables if listed.left_out is None else None
            if whole is not None:
                health.forget_all_but(whole)
            cuts = self.store.cut_offs.of_catalog(catalog.id)
            not_looked_at = waiting_cuts(cuts, CutWork.LOOK, self.now_ms)
            requested, filed = requested_tables(listed, pending, strangers)
            places[name] = _Place(
                catalog,
                listed.selected,
                health,
                twins,
                SeenTables(self.store, catalog),
                whole,
                [table for table in requested if matches(str(table), self.patterns)],
                filed,
                by_key,
                fleet,
                not_looked_at,
                waiting_cuts(cuts, CutWork.PASS, self.now_ms),
                frozenset(cut.entry.table for cut in cuts if cut.work is CutWork.LOOK) - not_looked_at.keys(),
            )
        return places

    def _expired(self, strangers: Iterable[MaintenanceRequest], catalogs: Sequence[ListedCatalog]) -> list[str]:
        """Drop requests that no catalog could serve for long, or with a time in the future; return the sentence."""
        listed = {str(table).lower() for catalog in catalogs for table in catalog.tables or ()}
        dropped = [
            request
            for request in strangers
            if not self.now_ms - UNSERVED_MS <= request.requested_ms <= self.now_ms + HOUR_MS
            and str(request.identity.table).lower() not in listed
            and self.store.requests.claim(request)
        ]
        if not dropped:
            return []
        lost, days = dropped[0].identity, UNSERVED_MS // (24 * HOUR_MS)
        return [
            f"{counted(len(dropped), 'request')} dropped: for {days} days no catalog here had the table, such as "
            f"{lost.table} of catalog {lost.catalog}"
        ]

    def _ranked(
        self, reached: Reached[FleetTable, _Found], places: Mapping[str, _Place]
    ) -> tuple[list[Proposal], list[Skip], int]:
        """The proposals ordered by priority, a skip for each other table, and how many tables are beyond the limit.

        Tables that are being maintained are skipped.  If there are too many proposals, the most urgent are chosen.
        Leases are read only until there are enough proposals.
        """
        wanted: list[tuple[tuple[object, ...], tuple[object, ...], FleetTable, Proposal]] = []
        skipped: list[Skip] = []
        for entry, result in reached.done:
            found, request = result.found, result.request if result.refused is None else None
            if isinstance(found, Skip):
                skipped.append(found)
                continue
            if request is not None:
                found = replace(found, is_requested=True, settings=dict(request.settings))
            # Requests come first, the oldest request before the others.
            asked = (request is None, 0 if request is None else request.requested_ms)
            by_urgency = (*asked, -urgency(found.priority, found.waited_ms), -found.priority, *entry.cursor)
            wanted.append((by_urgency, (*asked, -found.priority, *entry.cursor), entry, found))
        proposals: list[tuple[tuple[object, ...], Proposal]] = []
        limit, beyond_limit = self.settings.max_jobs_per_detection, 0
        chosen: dict[str, Proposal] = {}
        for _, by_need, entry, found in sorted(wanted, key=lambda proposal: proposal[0]):
            key, warning = found.identity.lease_key, found.warning
            if len(proposals) >= limit:
                beyond_limit += 1
                why = f"beyond max_jobs_per_detection {limit}"
            elif (first := chosen.get(key)) is not None:
                # With the run's one lease, both would be maintained at the same time.
                why, warning = f"it is the same table as {first.table} of catalog {first.catalog}", None
            elif cut := places[entry.catalog].not_maintained.get(entry.table.key):
                why = f"not maintained: {cut.sentence}"
            elif holder := self._holder(key):
                why = f"being maintained by {holder}"
            else:
                proposals.append((by_need, found))
                chosen[key] = found
                continue
            skipped.append(Skip(entry.text, why, warning=warning, catalog=entry.catalog))
        return [found for _, found in sorted(proposals, key=lambda proposal: proposal[0])], skipped, beyond_limit

    def _holder(self, lease_key: str) -> str | None:
        try:
            lease = self.store.leases.current(lease_key, now_ms=self.now_ms)
        except StorageError:  # the run takes the lease before it begins
            return None
        return None if lease is None else lease.who


def _verdict(found: Proposal | Skip, sweep_due_ms: int) -> Verdict:
    if isinstance(found, Proposal):
        return Verdict(reasons=found.reasons, priority=found.priority, sweep_due_ms=sweep_due_ms)
    return Verdict(left_alone=found.reason, sweep_due_ms=sweep_due_ms)


def _late_reason(settings: Policy) -> str:
    return f"not reached within detection_timeout_s {settings.detection_timeout_s}"


def _unfit(entry: FleetTable, reason: str) -> Skip:
    return Skip(entry.text, reason, is_error=True, catalog=entry.catalog)


def _skip_of(entry: FleetTable, error: Exception) -> Skip:
    """What an exception becomes, so that the scan continues."""
    if isinstance(error, RequestRefused):
        return Skip(entry.text, str(error), catalog=entry.catalog)
    if isinstance(error, MaintenanceError):
        return _unfit(entry, str(error))
    if isinstance(error, OSError):
        return _unfit(entry, f"the table cannot be read: {error}")
    if isinstance(error, AttributeError | KeyError | TypeError | ValueError):
        # A document that violates the specification must not stop the scan of the other tables.
        return _unfit(entry, f"the metadata does not follow the specification: {type(error).__name__} {error}")
    # Nor must a bug that one table triggers.
    log.error("%s could not be assessed", entry.text, exc_info=error)
    return _unfit(entry, f"the table cannot be assessed: {type(error).__name__} {error}")


def _next_cursor(order: Sequence[FleetTable], begun: int, cursor: tuple[str, str] | None) -> tuple[str, str] | None:
    """The last table that was begun; the old cursor if no table was begun, ``None`` if all were."""
    if begun >= len(order):
        return None
    return order[begun - 1].cursor if begun > 0 else cursor
