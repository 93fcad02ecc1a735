"""Detect which tables of some catalogs need work, from their metadata, policies and recorded passes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import Catalog
from icekeeper.detection.assessor import Assessor, Observer, assessor
from icekeeper.detection.list_tables import CatalogSource, why_empty
from icekeeper.detection.proposal import CatalogReport, FleetReport, NextRun
from icekeeper.detection.scan import LOADING_THREADS, Scanner
from icekeeper.errors import StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.machine.resources import search_cycles_seldom
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.state.leases import taken_slots
from icekeeper.state.store import Gathered, StateStore

log = logging.getLogger(__name__)


def detect(
    sources: Sequence[CatalogSource],
    state: StateStore,
    policies: TablePolicies,
    *,
    overrides: Mapping[str, str] | None = None,
    unsafe: bool = False,
    clock: Clock = system_clock,
    cursor: tuple[str, str] | None = None,
    threads: int = LOADING_THREADS,
    run: str = "",
) -> FleetReport:
    """Which tables of these catalogs need work, and why; reads one metadata document per table.

    ``cursor`` is that of the last report; ``overrides`` and ``unsafe`` are as for a pass.  At most ``threads`` tables
    are loaded at a time.  ``run`` is the run whose passes follow, if any: they use what the scan has recorded.

    Raises:
        PolicyError: the deployment's settings are wrong.
        StorageError: the state cannot be used, or the policy file cannot be read.
    """
    given = overrides or {}
    settings = policies.deployment(given, unsafe=unsafe).policy
    state.require_writable()
    search_cycles_seldom()
    now_ms = clock()
    first_sweeps = Gathered(state.schedules.record_all)

    def assessor_of(catalog: Catalog, observe: Observer) -> Assessor:
        return assessor(
            catalog,
            resolve_policy=lambda loaded: policies.of(catalog, loaded, given, unsafe=unsafe),
            store=state,
            now_ms=now_ms,
            observe=observe,
            plan_sweep=lambda identity, due: first_sweeps.add((identity, due)),
        )

    with state.kept_open():  # otherwise SQLite empties its log whenever the last connection closes
        check = policies.of_requests(given).of
        report = Scanner(settings, state, now_ms, threads, run=run, check_request=check).scan(
            sources, assessor_of, cursor
        )
        try:
            first_sweeps.write_rest()
        except StorageError as error:
            log.warning("the times of first sweeps could not be recorded; the next scan decides them again: %s", error)
    return report


def detect_catalog(
    catalog: Catalog,
    state: StateStore,
    policies: TablePolicies,
    *,
    overrides: Mapping[str, str] | None = None,
    unsafe: bool = False,
    clock: Clock = system_clock,
) -> CatalogReport:
    """Like :func:`detect` for one open catalog, and what a scheduled run would begin with.

    If the scan found no table, the report's note says why.

    Raises:
        PolicyError: the deployment's settings are wrong.
        StorageError: the catalog cannot be listed, or the state cannot be used.
    """
    source = CatalogSource(catalog.name, lambda: catalog, may_be_empty=True)  # the note says why it is empty
    report = detect([source], state, policies, overrides=overrides, unsafe=unsafe, clock=clock)
    settings = policies.deployment(overrides or {}, unsafe=unsafe)
    found = CatalogReport.of(catalog.name, report)
    at_work = taken_slots(state.leases, settings.policy.max_concurrent_jobs, now_ms=clock())
    found = replace(found, next_run=NextRun(settings, [one.table for one in found.proposals], at_work))
    if report.warnings:
        return replace(found, note=" ".join(report.warnings))
    if report.listed or found.proposals or found.skipped:
        return found
    return replace(found, note=why_empty(catalog.name, catalog.warehouse, tuple(catalog.list_tables()), settings))
