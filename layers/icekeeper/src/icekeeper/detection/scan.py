"""A scan over many catalogs, in several threads and within one time budget: requested tables first, then all tables.

:class:`Scanner` is the entry; above it are its worker threads and the record of where tables have files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from threading import Lock
from typing import Generic, Protocol, TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.other_tables import UNKNOWN_WAREHOUSE, fitting, unseen_entry
from icekeeper.deletion.table_claims import first_look, is_seen, recorded_claims
from icekeeper.detection.assess import urgency
from icekeeper.detection.assessor import Assessor, Observer, idle_by_memory, load_or_skip, skip_on_error
from icekeeper.detection.list_tables import (
    CatalogSource,
    FleetTable,
    ListedCatalog,
    RequestedTables,
    empty_catalogs,
    listed_catalog,
    listing_warnings,
    requested_tables,
    round_robin,
    told_of_none,
)
from icekeeper.detection.proposal import FleetProposal, FleetReport, FleetSkip, Proposal, Skip
from icekeeper.errors import MetadataUnreadable, PolicyError, StorageError
from icekeeper.health.examine import examine
from icekeeper.health.lake_log import LakeLog, Twins
from icekeeper.machine.clock import HOUR_MS, at_work, in_daemon_thread
from icekeeper.model import TableName
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.policy.due import has_former_table
from icekeeper.report.activity import scan_finished, scan_started
from icekeeper.state.claims import (
    LATEST_LOOK_S,
    LEAST_LIMIT_S,
    CatalogLook,
    CutOff,
    CutWork,
    Entry,
    TableClaims,
    UnseenEntry,
    cut_again,
    look_reason,
    waiting_cuts,
)
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Gathered, Glance, MaintenanceRequest, PassRecord, StateStore

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

# No item is begun in the last tenth of the time, so that those in progress can finish; the rest hangs.
_BEGINNING_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Reached(Generic[Item, Result]):
    """The items that were done in time, with their results."""

    done: list[tuple[Item, Result]]
    begun: int
    """How many items, from the first, were begun."""
    hung: list[Item]
    """The items that were begun but are not done, although at least a tenth of the time was left."""


def within_budget(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    threads: int,
    budget_s: float,
    monotonic_s: Callable[[], float],
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Reached[Item, Result]:
    """The results of ``work`` that finished within ``budget_s`` seconds, in any order.

    Each thread enters ``around()`` once and processes its items within it.  At most ``threads`` items are in progress,
    which bounds the memory.  An item that hangs stays in a daemon thread, which does not delay the end of the process.
    An exception of ``work`` is raised.
    """
    started_s = monotonic_s()
    desk: _Desk[Item, Result] = _Desk(items, monotonic_s, started_s + _BEGINNING_SHARE * budget_s)

    def works() -> None:
        # Each thread takes its next item itself: a dispatching thread would wake up for every item.
        with around():
            while (number := desk.next_number()) is not None:
                desk.put(number, work(items[number]))

    try:
        running = [in_daemon_thread(works, f"icekeeper-detect_{n}") for n in range(min(threads, len(items)))]
        ended, _ = wait(running, max(0.0, started_s + budget_s - monotonic_s()), FIRST_EXCEPTION)
    finally:
        reached = desk.close()
    for one in ended:
        one.result()
    return reached


class _Desk(Generic[Item, Result]):
    """The queue of items and the store of results of :func:`within_budget`."""

    def __init__(self, items: Sequence[Item], monotonic_s: Callable[[], float], last_begin_s: float) -> None:
        self._items = items
        self._monotonic_s = monotonic_s
        self._last_begin_s = last_begin_s
        self._lock = Lock()
        self._is_closed = False
        self._begun = 0
        self._done: dict[int, Result] = {}

    def next_number(self) -> int | None:
        """The index of the next item; ``None``: there is none, or it is too late."""
        with self._lock:
            if self._is_closed or self._begun == len(self._items) or self._monotonic_s() >= self._last_begin_s:
                return None
            self._begun += 1
            return self._begun - 1

    def put(self, number: int, result: Result) -> None:
        """Store the result of an item; it is discarded if the time is over."""
        with self._lock:
            if not self._is_closed:
                self._done[number] = result

    def close(self) -> Reached[Item, Result]:
        """Return the results so far; no thread begins another item."""
        with self._lock:
            self._is_closed = True
            done = [(self._items[number], result) for number, result in self._done.items()]
            return Reached(done, self._begun, [self._items[n] for n in range(self._begun) if n not in self._done])


# Where tables have files (rule: look-at-every-served-table).  The scan loads every table anyway, so it records the
# locations in the metadata, and which tables have changed since their manifests were read.  Before the run's first
# deletion, passes read the manifests of these tables and load no other.


def note_unopened(state: StateStore, failed: Mapping[str, str], run: str, now_ms: int) -> None:
    """Record for the passes of a run the unknown catalogs (name → reason) that were not listed.

    Passes try known catalogs again themselves.

    Raises:
        StorageError: the state store failed.
    """
    known = {look.catalog.lower() for look in state.claims.looks() if look.warehouse != UNKNOWN_WAREHOUSE}
    for name, reason in failed.items():
        if name.lower() not in known and not name.startswith("arn:"):
            look = CatalogLook(catalog=name, warehouse=UNKNOWN_WAREHOUSE, run=run, looked_ms=now_ms, failure=reason)
            state.claims.record_look(look)


class SeenTables:
    """Records where the tables of one catalog have files; :meth:`observe` may be called from several threads.

    It raises no errors: a pass finds out what is missing here before it deletes.
    """

    def __init__(self, state: StateStore, catalog: Catalog) -> None:
        self._state, self._catalog = state, catalog
        self._lock, self._seen = Lock(), set[TableName]()
        self._failed: dict[TableName, Exception] = {}
        self._is_well = True
        self._news = Gathered(state.claims.record_first_looks)
        self._known: Mapping[TableName, TableClaims] | None = None
        """The existing records; read when the first table without its own bucket is observed."""
        self._are_alone = catalog.warehouse.startswith("arn:")
        """All tables are of S3 Tables, where each has its own bucket."""

    def observe(self, loaded: LoadedTable) -> None:
        """Record a loaded table."""
        if has_its_own_bucket(loaded.metadata.location):
            self._are_alone = True
            return
        if not self._is_well:
            return
        try:
            recorded = self._recorded().get(loaded.name)
            if is_seen(recorded, loaded):
                with self._lock:
                    self._seen.add(loaded.name)
            new = first_look(self._catalog, loaded, recorded)
            if new is not None:
                self._news.add(new)
        except StorageError as error:
            self._give_up(error)

    def failed(self, table: TableName, error: Exception) -> None:
        """Record a table with unreadable metadata, so that the passes of the run need not load it again.

        Errors of a store or catalog are not recorded: passes try again.
        """
        if isinstance(error, MetadataUnreadable | AttributeError | KeyError | TypeError | ValueError):
            with self._lock:
                self._failed[table] = error

    def finish(self, tables: Collection[TableName] | None, run: str, now_ms: int) -> None:
        """Write the remaining records; ``tables`` are all tables of the catalog, ``None``: they are not known.

        ``run`` is the run whose passes follow; empty: none.  The scan began at ``now_ms``.
        """
        name, warehouse = self._catalog.name, self._catalog.warehouse
        look = CatalogLook(catalog=name, warehouse=warehouse)
        try:
            self._news.write_rest()
            if not self._is_well or (self._are_alone and self._known is None):
                return
            if run and tables is not None:
                unseen = tuple(self._unseen(sorted(set(tables) - self._seen, key=str)))
                look = replace(look, run=run, looked_ms=now_ms, unseen=unseen)
            record = fitting(look)
            if (look.run and record is not None) or look.key not in {known.key for known in self._state.claims.looks()}:
                # Without a run, or if the record is too large, passes look at all tables of the catalog.
                self._state.claims.record_look(record or replace(look, run="", unseen=()))
        except StorageError as error:
            self._give_up(error)

    def _unseen(self, tables: Iterable[TableName]) -> Iterator[UnseenEntry]:
        for table in tables:
            error = self._failed.get(table)
            yield (
                UnseenEntry(table=table) if error is None else unseen_entry(table, self._recorded().get(table), error)
            )

    def _recorded(self) -> Mapping[TableName, TableClaims]:
        with self._lock:
            if self._known is None:
                self._known = recorded_claims(self._state, self._catalog)
            return self._known

    def _give_up(self, error: StorageError) -> None:
        with self._lock:
            if self._is_well:
                log.warning("where tables have files cannot be recorded, so passes look for themselves: %s", error)
            self._is_well = False


# A load is two requests of about 50 ms each: 10,000 tables in 300 s need seven threads if nothing is slow.
LOADING_THREADS = 16
# The largest share of the time for listing several catalogs: a slow one must leave time for the tables of the others.
_LISTING_SHARE = 0.5

RequestChecker = Callable[[Catalog, LoadedTable, Mapping[str, str]], object]
"""Resolves the policy of a table with the settings of a request; raises PolicyError to refuse the request."""


class AssessorOf(Protocol):
    """Makes the assessor of one catalog, which calls ``observe`` with every table."""

    def __call__(self, catalog: Catalog, observe: Observer) -> Assessor: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """One catalog during the scan."""

    catalog: Catalog
    selected: tuple[TableName, ...]
    assess_table: Assessor
    health: LakeLog
    seen: SeenTables
    whole: frozenset[TableName] | None
    """Every table of the catalog; ``None``: some are not listed."""
    requests: RequestedTables
    fleet: int
    """How many tables the scan selects in all catalogs."""
    not_looked_at: Mapping[str, CutOff]
    """By key of the name: tables that the scan does not load yet, because loading them was cut off."""
    not_maintained: Mapping[str, CutOff]
    """By key of the name: tables that get no pass yet, because their pass was cut off."""
    looked_at_again: frozenset[str]
    """Keys of tables that are loaded again after this was cut off."""

    def entry(self, table: TableName) -> Entry:
        return self.catalog.name, self.catalog.warehouse, table.key


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
    there are several catalogs, one that is not listed within half of the time is skipped.

    A request for a table that no longer exists is reported and dropped.  The run that serves a request claims it.
    """

    settings: Policy
    """The deployment's."""
    store: StateStore
    now_ms: int
    threads: int = LOADING_THREADS
    """Also the largest number of metadata documents in memory."""
    monotonic_s: Callable[[], float] = time.monotonic
    run: str = ""
    """The run whose passes use the records of the scan; empty: none follows."""
    check_request: RequestChecker = lambda catalog, loaded, settings: None

    def scan(
        self, sources: Sequence[CatalogSource], assessor_of: AssessorOf, cursor: tuple[str, str] | None = None
    ) -> FleetReport:
        """Assess the selected tables of these catalogs; each is loaded once.

        Raises:
            StorageError: requests cannot be read from the state store or dropped.
        """
        started_s = self.monotonic_s()
        scan_started(len(sources))
        deadline_s = started_s + self.settings.detection_timeout_s
        catalogs, skipped = self._opened(sources, deadline_s)
        places = self._places(catalogs, assessor_of, skipped)
        entries = [FleetTable(name, str(table), table) for name, place in places.items() for table in place.selected]
        asked = [FleetTable(name, str(one), one) for name, place in places.items() for one in place.requests.tables]
        asked_for = {entry.cursor for entry in asked}
        selected = {entry.cursor for entry in entries}
        order = round_robin((entry for entry in entries if entry.cursor not in asked_for), cursor)

        def reach(entry: FleetTable) -> _Found:
            return self._look_at(places[entry.catalog], entry, is_selected=entry.cursor in selected)

        reached = within_budget(
            reach,
            [*round_robin(asked, None), *order],
            threads=self.threads,
            budget_s=max(0.0, deadline_s - self.monotonic_s()),
            monotonic_s=self.monotonic_s,
            around=self.store.kept_open,  # opening a SQLite state takes ten times as long as reading it
        )
        refused = self._record(places, reached)
        proposals, more, beyond_limit = _ranked(reached, places, self.settings, self.store, self.now_ms)
        done = {entry.cursor for entry, _ in reached.done}
        missed = [entry for entry in (*asked, *order) if entry.cursor not in done]
        late, hung = _late_reason(self.settings), {entry.cursor for entry in reached.hung}
        skipped += more
        skipped += [FleetSkip(one.catalog, one.text, late) for one in missed if one.cursor not in hung]
        slow = look_reason(self.settings.detection_timeout_s)
        skipped += [FleetSkip(one.catalog, one.text, slow, is_error=True) for one in missed if one.cursor in hung]
        report = FleetReport(
            scanned=len(reached.done),
            listed=len(selected),
            proposals=tuple(proposals),
            skipped=tuple(sorted(skipped, key=lambda skip: (skip.catalog, skip.table))),
            cursor=_next_cursor(order, reached.begun - len(asked), cursor),
            not_reached=len(missed),
            beyond_limit=beyond_limit,
            warnings=(*listing_warnings(catalogs), *refused),
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

    def _look_at(self, place: _Place, entry: FleetTable, *, is_selected: bool) -> _Found:
        """Load and assess a table, unless it waits because this took too long before."""
        waiting = place.not_looked_at.get(entry.table.key)
        if waiting is not None:
            return _Found(Skip(entry.text, f"not looked at: {waiting.sentence}", is_error=True))
        limit_s = self.settings.detection_timeout_s
        why = look_reason(limit_s)
        with at_work(CutWork.LOOK, place.entry(entry.table), limit_s=limit_s + LATEST_LOOK_S, why=why):
            return _reach(place, entry, self.check_request, is_selected=is_selected)

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
            for entry, _ in reached.done:
                place = places[entry.catalog]
                if entry.table.key in place.looked_at_again:
                    self.store.cut_offs.forget(place.entry(entry.table), CutWork.LOOK)
        except StorageError as error:  # the next scan finds out again
            log.warning("which tables could not be looked at in time could not be recorded: %s", error)

    def _record(self, places: Mapping[str, _Place], reached: Reached[FleetTable, _Found]) -> list[str]:
        """Record the results of the scan; return the sentences about refused requests."""
        self._note_cuts(places, reached)
        for place in places.values():
            place.health.finish()
            place.seen.finish(place.whole, self.run, self.now_ms)
        self._drop_stale_requests(reached)
        answered = [self._answer(one) for _, one in reached.done if one.refused is not None]
        return [why for why in answered if why]

    def _answer(self, found: _Found) -> str:
        """Record in the journal why a request is refused, and drop it, because a retry would be refused too."""
        request, why = found.request, found.refused or ""
        if request is None or not self.store.requests.claim(request):
            return ""
        # Not before the request, or the answer would not be found.  A forged time must not top the journal for years.
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
            log.warning("that the request was refused is not in the journal: %s", error)
        return why

    def _opened(
        self, sources: Sequence[CatalogSource], deadline_s: float
    ) -> tuple[list[ListedCatalog], list[FleetSkip]]:
        """The catalogs that were listed in time, and a skip with the reason for each of the others.

        Raises:
            StorageError: the state cannot be read or written.
        """
        left_s = max(0.0, deadline_s - self.monotonic_s())
        opened = within_budget(
            lambda source: listed_catalog(source, self.settings),
            sources,
            threads=self.threads,
            budget_s=left_s * (_LISTING_SHARE if len(sources) > 1 else 1),
            monotonic_s=self.monotonic_s,
        )
        answered = {id(source) for source, _ in opened.done}
        late = _late_reason(self.settings)
        skipped = [result for _, result in opened.done if isinstance(result, FleetSkip)]
        skipped += [FleetSkip(source.name, "", late, True) for source in sources if id(source) not in answered]
        if self.run:
            found = {source.name for source in sources if source.may_be_empty}
            failed = {skip.catalog: skip.reason for skip in skipped if skip.catalog not in found}
            note_unopened(self.store, failed, self.run, self.now_ms)
        return [result for _, result in opened.done if isinstance(result, ListedCatalog)], skipped

    def _places(
        self, catalogs: Sequence[ListedCatalog], assessor_of: AssessorOf, skipped: list[FleetSkip]
    ) -> dict[str, _Place]:
        """The catalogs by name; if two have the same name, the second is added to ``skipped``.

        Raises:
            StorageError: the requests cannot be read from the state.
        """
        pending = self.store.requests.pending()
        strangers = told_of_none(pending, [listed.catalog for listed in catalogs])
        fleet = sum(len(listed.selected) for listed in catalogs)
        places: dict[str, _Place] = {}
        twins = Twins()
        for listed in catalogs:
            name = listed.catalog.name
            if name in places:
                skipped.append(FleetSkip(name, "", "another catalog has the same name", True))
            else:
                requests = requested_tables(listed, pending, strangers)
                places[name] = self._place(listed, assessor_of, requests, fleet, twins)
        return places

    def _place(
        self, listed: ListedCatalog, assessor_of: AssessorOf, requests: RequestedTables, fleet: int, twins: Twins
    ) -> _Place:
        catalog = listed.catalog
        health = LakeLog(self.store.lake_stats, catalog.name, catalog.warehouse)
        twins.know(health.tables)
        if listed.tables is not None and listed.left_out is None:
            health.forget_all_but(listed.tables)

        seen = SeenTables(self.store, catalog)
        cuts = self.store.cut_offs.of_catalog(catalog.name, catalog.warehouse)
        not_looked_at = waiting_cuts(cuts, CutWork.LOOK, self.now_ms)
        not_maintained = waiting_cuts(cuts, CutWork.PASS, self.now_ms)

        def observe(
            loaded: LoadedTable, identity: TableIdentity, resolved: ResolvedPolicy | PolicyError, memory: Glance
        ) -> None:
            seen.observe(loaded)
            stats = examine(
                identity,
                loaded.metadata,
                resolved,
                now_ms=self.now_ms,
                idle=lambda policy: idle_by_memory(loaded, policy, memory, self.now_ms),
                unreadable=memory.unreadable,
                has_former_table=has_former_table(memory.schedules),
                cut_off=not_maintained.get(loaded.name.key),
                twins=twins.of(identity),
            )
            health.observe(stats)

        whole = listed.tables if listed.left_out is None else None
        return _Place(
            catalog,
            listed.selected,
            assessor_of(catalog, observe),
            health,
            seen,
            whole,
            requests,
            fleet,
            not_looked_at,
            not_maintained,
            frozenset(one.entry[2] for one in cuts if one.work is CutWork.LOOK) - not_looked_at.keys(),
        )

    def _drop_stale_requests(self, reached: Reached[FleetTable, _Found]) -> None:
        """Claim the requests for tables that no longer exist, because no run will serve them."""
        served = {found.request.identity.lease_key for _, found in reached.done if found.request is not None}
        for request in (one for _, found in reached.done for one in found.stale):
            if request.identity.lease_key not in served:  # under another name
                self.store.requests.claim(request)


def _late_reason(settings: Policy) -> str:
    return f"not reached within detection_timeout_s {settings.detection_timeout_s}"


def _reach(place: _Place, entry: FleetTable, check_request: RequestChecker, *, is_selected: bool) -> _Found:
    """Load and assess one table; a request counts only for the same table, not for a new one of that name."""
    filed_here = place.requests.told_here(entry.table)
    if not entry.table.is_plain:  # its text would denote another table, or none
        reason = "no pass can refer to it: a part of its name is empty or has a dot; rename the table or namespace"
        return _Found(Skip(entry.text, reason, is_error=True))

    def load() -> tuple[LoadedTable, tuple[MaintenanceRequest, ...]] | Skip:
        try:
            loaded = load_or_skip(place.catalog, entry.table)
        except Exception as error:
            place.seen.failed(entry.table, error)
            raise
        if isinstance(loaded, Skip):
            return loaded
        return loaded, place.requests.meant(identity_of(place.catalog, loaded))

    reached = skip_on_error(entry.table, load)
    if isinstance(reached, Skip):
        return _Found(reached, stale=filed_here if reached.is_gone else ())
    loaded, meant = reached
    stale = tuple(request for request in filed_here if request not in meant)
    if not meant and not is_selected:
        return _Found(Skip(entry.text, "a pass was requested for a table of this name that is gone"), stale=stale)
    refused = _why_refused(meant, place.catalog, loaded, check_request)
    if refused is not None and not is_selected:
        return _Found(Skip(entry.text, refused), meant[0], stale, refused)
    is_requested = bool(meant) and refused is None
    found = skip_on_error(entry.table, lambda: place.assess_table(loaded, is_requested=is_requested, fleet=place.fleet))
    return _Found(found, meant[0] if meant else None, stale, refused)


def _why_refused(
    meant: Sequence[MaintenanceRequest], catalog: Catalog, loaded: LoadedTable, check_request: RequestChecker
) -> str | None:
    if not meant:
        return None
    try:
        check_request(catalog, loaded, meant[0].settings)
    except PolicyError as error:
        return str(error)
    except StorageError:  # the pass checks the request again
        return None
    return None


def _ranked(
    reached: Reached[FleetTable, _Found], places: Mapping[str, _Place], settings: Policy, store: StateStore, now_ms: int
) -> tuple[list[FleetProposal], list[FleetSkip], int]:
    """The proposals ordered by priority, a skip for each other table, and how many tables are beyond the limit.

    Tables that are being maintained are skipped.  If there are too many proposals, the most urgent are chosen.  Leases
    are read only until there are enough proposals.
    """
    wanted: list[tuple[tuple[object, ...], tuple[object, ...], FleetTable, FleetProposal]] = []
    skipped: list[FleetSkip] = []
    for entry, result in reached.done:
        found, request = result.found, result.request if result.refused is None else None
        if isinstance(found, Skip):
            skipped.append(FleetSkip(entry.catalog, entry.text, found.reason, found.is_error, found.warning))
            continue
        warehouse = places[entry.catalog].catalog.warehouse
        settings_of_request = {} if request is None else dict(request.settings)
        item = FleetProposal(entry.catalog, warehouse, found, request is not None, settings_of_request)
        # Requests first, the oldest before the others.
        asked = (request is None, 0 if request is None else request.requested_ms)
        by_urgency = (*asked, -urgency(found.priority, found.waited_ms), -found.priority, *entry.cursor)
        wanted.append((by_urgency, (*asked, -found.priority, *entry.cursor), entry, item))
    proposals: list[tuple[tuple[object, ...], FleetProposal]] = []
    beyond_limit, over_limit = 0, f"beyond max_jobs_per_detection {settings.max_jobs_per_detection}"
    chosen: dict[str, FleetProposal] = {}
    for _, by_need, entry, item in sorted(wanted, key=lambda one: one[0]):
        key, warning = item.identity.lease_key, item.proposal.warning
        if len(proposals) >= settings.max_jobs_per_detection:
            beyond_limit += 1
            skipped.append(FleetSkip(entry.catalog, entry.text, over_limit, warning=warning))
        elif (first := chosen.get(key)) is not None:
            # With the run's one lease, both would be maintained at the same time.
            same = f"it is the same table as {first.proposal.table} of catalog {first.catalog}"
            skipped.append(FleetSkip(entry.catalog, entry.text, same))
        elif cut := places[entry.catalog].not_maintained.get(entry.table.key):
            skipped.append(FleetSkip(entry.catalog, entry.text, f"not maintained: {cut.sentence}", warning=warning))
        elif holder := _holder(item, store, now_ms):
            skipped.append(FleetSkip(entry.catalog, entry.text, f"being maintained by {holder}", warning=warning))
        else:
            proposals.append((by_need, item))
            chosen[key] = item
    return [item for _, item in sorted(proposals, key=lambda one: one[0])], skipped, beyond_limit


def _holder(item: FleetProposal, store: StateStore, now_ms: int) -> str | None:
    try:
        lease = store.leases.current(item.identity.lease_key, now_ms=now_ms)
    except StorageError:  # the run takes the lease before it begins
        return None
    return None if lease is None else lease.who


def _next_cursor(order: Sequence[FleetTable], begun: int, cursor: tuple[str, str] | None) -> tuple[str, str] | None:
    """The last table that was begun; the old cursor if none was, ``None`` if all were."""
    if begun >= len(order):
        return None
    return order[begun - 1].cursor if begun > 0 else cursor
