"""Detect which tables of some catalogs need work, from their metadata, policies and recorded passes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import Catalog
from icekeeper.detection.list_tables import CatalogSource, why_empty
from icekeeper.detection.proposal import FleetReport
from icekeeper.detection.scan import LOADING_THREADS, Scanner
from icekeeper.errors import StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.machine.resources import search_cycles_seldom
from icekeeper.pass_context.table_policy import TablePolicies
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
    first_sweeps = Gathered(state.schedules.record_all)
    scanner = Scanner(
        settings,
        state,
        clock(),
        resolve_policy=lambda catalog, loaded: policies.of(catalog, loaded, given, unsafe=unsafe),
        plan_sweep=lambda identity, due: first_sweeps.add((identity, due)),
        threads=threads,
        run=run,
        check_request=policies.of_requests(given).of,
    )
    with state.kept_open():  # otherwise SQLite empties its log whenever the last connection closes
        report = scanner.scan(sources, cursor)
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
) -> FleetReport:
    """Like :func:`detect` for one open catalog; the note says why no table was found.

    Raises:
        PolicyError: the deployment's settings are wrong.
        StorageError: the catalog cannot be listed, or the state cannot be used.
    """
    source = CatalogSource(catalog.name, lambda: catalog, may_be_empty=True)  # the note says why it is empty
    report = detect([source], state, policies, overrides=overrides, unsafe=unsafe, clock=clock)
    for skip in report.skipped:
        if not skip.table:
            raise StorageError(f"{catalog.name}: {skip.reason}")
    if report.warnings:
        return replace(report, note=" ".join(report.warnings))
    if report.listed or report.proposals or report.skipped:
        return report
    settings = policies.deployment(overrides or {}, unsafe=unsafe)
    return replace(report, note=why_empty(catalog.name, catalog.warehouse, tuple(catalog.list_tables()), settings))
