"""Assess a loaded table: resolve its policy, read its records from the state store, plan its expiry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.detection.assess import TableFindings, as_requested, assess, idle_operations, waited_ms, with_schedules
from icekeeper.detection.look_again import is_known_idle
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.detection.signals import Signal, due_sweep, schedule_signals, wanted_clustering
from icekeeper.errors import MaintenanceError, PolicyError, RequestRefused
from icekeeper.health.examine import unreadable_warning
from icekeeper.metadata.document import MAINTAINED_FORMAT_VERSIONS
from icekeeper.model import Nothing, TableName
from icekeeper.operations.expiry.retention import plan_expiry
from icekeeper.operations.policy_fit import check_fit
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.policy.due import FIRST_SWEEP, PolicyPart, due_parts, in_one_pass
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Glance, ScheduleRun, StateStore

log = logging.getLogger(__name__)

Result = TypeVar("Result")

PolicyResolver = Callable[[LoadedTable], ResolvedPolicy]
"""Resolves the settings of a table; raises PolicyError."""
Observer = Callable[[LoadedTable, TableIdentity, ResolvedPolicy | PolicyError, Glance], None]
"""Called with every loaded table, its settings or their error, and its records in the state store."""
SweepPlanner = Callable[[TableIdentity, ScheduleRun], None]
"""Called with the record of when the first sweep of a table is due."""


class Assessor(Protocol):
    """Assesses one loaded table; called from several threads.

    ``fleet`` is the number of tables that the scan selects; the first sweeps of many are spread over an interval.
    """

    def __call__(self, loaded: LoadedTable, *, is_requested: bool = False, fleet: int = 1) -> Proposal | Skip: ...


def assessor(
    catalog: Catalog,
    *,
    resolve_policy: PolicyResolver,
    store: StateStore,
    now_ms: int,
    observe: Observer | None = None,
    plan_sweep: SweepPlanner | None = None,
) -> Assessor:
    """An assessor for the tables of one catalog, at ``now_ms`` (epoch milliseconds).

    It reads the state store once per table.  For a table without a recorded sweep, it passes the time of the first
    sweep to ``plan_sweep`` (default: the store), unless the sweep is due now.

    Raises (when called):
        PolicyError: the table's settings are wrong.
        StorageError: the state cannot be read or written.
    """

    def settings_of(loaded: LoadedTable, identity: TableIdentity, memory: Glance) -> ResolvedPolicy:
        try:
            resolved = resolve_policy(loaded)
        except RequestRefused:  # not about the table's own settings
            raise
        except PolicyError as error:
            if observe is not None:
                observe(loaded, identity, error, memory)
            raise
        if observe is not None:
            observe(loaded, identity, resolved, memory)
        return resolved

    def assess_table(loaded: LoadedTable, *, is_requested: bool = False, fleet: int = 1) -> Proposal | Skip:
        identity = identity_of(catalog, loaded)
        memory = store.glance(identity, now_ms=now_ms)
        resolved = settings_of(loaded, identity, memory)
        parts = due_parts(resolved, memory.schedules, now_ms)
        rest = next((part.resolved for part in parts if part.schedule is None), resolved.unscheduled())
        misfit = _why_filters_misfit(loaded, resolved)
        found: Proposal | Skip
        if misfit is None:
            metadata, turns = loaded.metadata, memory.schedules
            due = due_sweep(
                plan_sweep or store.schedules.record, identity, metadata, rest, turns, fleet=fleet, now_ms=now_ms
            )
            found = _assess_rest(loaded, rest, memory, now_ms, due)
        else:
            found = misfit
        if resolved.schedules and misfit is None:
            found = _with_due(loaded, resolved, found, parts, memory.schedules, now_ms)
        found = as_requested(found, resolved, identity.uuid) if is_requested else found
        found = replace(found, warning=unreadable_warning(memory.unreadable))
        if isinstance(found, Skip):
            return found
        seen = () if memory.last_seen is None else (memory.last_seen.finished_ms,)
        passes_ms = (*seen, *(run.finished_ms for name, run in memory.schedules.items() if name != FIRST_SWEEP))
        return replace(found, location=identity.location, waited_ms=waited_ms(loaded.metadata, passes_ms, now_ms))

    return assess_table


def idle_by_memory(loaded: LoadedTable, resolved: ResolvedPolicy, memory: Glance, now_ms: int) -> frozenset[Operation]:
    """The operations of a policy and its schedules that certainly find nothing to do at ``now_ms``."""
    metadata, rest = loaded.metadata, resolved.unscheduled()
    clusters = rest.runs(Operation.COMPACT) and wanted_clustering(metadata, rest.policy) is not None
    idle = set(idle_operations(metadata, rest, memory.last_seen, clusters=clusters, now_ms=now_ms))
    busy: set[Operation] = set()
    for name in resolved.schedules:
        part = PolicyPart(name, resolved.of_schedule(name))
        is_idle = is_known_idle(metadata, part, memory.schedules.get(name), now_ms)
        (idle if is_idle else busy).update(part.operations)
    return frozenset(idle - busy)


def _why_filters_misfit(loaded: LoadedTable, resolved: ResolvedPolicy) -> Skip | None:
    """Skip a table if every pass would refuse a filter of its policy."""
    try:
        for part in resolved.parts():
            if part.policy.where is not None and part.why_disabled() is None:
                check_fit(loaded.metadata, part.policy, ())
    except PolicyError as error:
        return Skip(str(loaded.name), str(error), is_error=True)
    return None


def _with_due(
    loaded: LoadedTable,
    resolved: ResolvedPolicy,
    found: Proposal | Skip,
    parts: Sequence[PolicyPart],
    runs: Mapping[str, ScheduleRun],
    now_ms: int,
) -> Proposal | Skip:
    """Add the due schedules that may have work to the finding for the other operations."""
    metadata = loaded.metadata
    is_maintained = resolved.why_disabled() is None and metadata.format_version in MAINTAINED_FORMAT_VERSIONS
    if not is_maintained or metadata.head(resolved.policy.branch) is None:
        return found
    scheduled = {part.schedule: part for part in parts if part.schedule is not None}
    needed = [part for name, part in scheduled.items() if not is_known_idle(metadata, part, runs.get(name), now_ms)]
    chosen = in_one_pass(needed)
    signals = list(schedule_signals(resolved, chosen, runs, now_ms))
    names = [part.schedule for part in chosen if part.schedule is not None]
    return with_schedules(str(loaded.name), found, signals, names, metadata.uuid or "")


def _assess_rest(
    loaded: LoadedTable, resolved: ResolvedPolicy, memory: Glance, now_ms: int, due: tuple[Signal, ...]
) -> Proposal | Skip:
    """Assess the operations that no schedule names; without schedules, all operations."""
    metadata, policy = loaded.metadata, resolved.policy
    pinned = [pin.snapshot_id for pin in memory.pins]
    plan = plan_expiry(metadata, policy, now_ms=now_ms, pinned=pinned)
    grace_ms = policy.orphan_older_than_ms
    findings = TableFindings(
        now_ms=now_ms,
        expirable=0 if isinstance(plan, Nothing) else len(plan.snapshot_ids),
        expirable_refs=0 if isinstance(plan, Nothing) else len(plan.refs),
        last_seen=memory.last_seen,
        failed_loads=sum(load.can_be_cleaned(now_ms, grace_ms) for load in memory.loads),
        due=due,
        clustering=wanted_clustering(metadata, policy) if resolved.runs(Operation.COMPACT) else None,
        has_unreadable=bool(memory.unreadable),
    )
    return assess(str(loaded.name), metadata, resolved, findings)


def skip_on_error(table: TableName, work: Callable[[], Result]) -> Result | Skip:
    """The result of ``work``; an exception becomes a skip with a reason, so that the scan continues."""
    try:
        return work()
    except MaintenanceError as error:
        return Skip(str(table), str(error), is_error=not isinstance(error, RequestRefused))
    except OSError as error:
        return Skip(str(table), f"the table cannot be read: {error}", is_error=True)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # A document that violates the specification must not stop the scan of the other tables.
        reason = f"the metadata does not follow the specification: {type(error).__name__} {error}"
        return Skip(str(table), reason, is_error=True)
    except Exception as error:  # nor must a bug that one table triggers
        log.exception("%s could not be assessed", table)
        return Skip(str(table), f"the table cannot be assessed: {type(error).__name__} {error}", is_error=True)


def load_or_skip(catalog: Catalog, table: TableName) -> LoadedTable | Skip:
    """Load one table; a table that the catalog no longer has is skipped and marked as gone.

    Raises:
        MaintenanceError: the table cannot be loaded.
    """
    try:
        return catalog.load(table)
    except PolicyError as error:
        return Skip(str(table), str(error), is_error=True, is_gone=True)
