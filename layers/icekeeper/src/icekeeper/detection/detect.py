"""Detect which tables of some catalogs need work, from their metadata, policies and recorded passes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.detection.list_tables import CatalogSource, why_empty
from icekeeper.detection.proposal import FleetReport
from icekeeper.detection.scan import LOADING_THREADS, ManifestCounter, Scanner
from icekeeper.errors import PolicyError, RequestRefused, StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.machine.resources import search_cycles_seldom
from icekeeper.metadata.avro_files import open_avro
from icekeeper.metadata.document import Snapshot
from icekeeper.model import TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import ResolvedPolicy
from icekeeper.policy.policy_file import check_patterns
from icekeeper.state.lake_stats import Gathered
from icekeeper.state.store import StateStore
from icekeeper.storage.allowed_locations import ALLOWED_LOCATIONS, AllowedLocations
from icekeeper.storage.storage import Storage
from icekeeper.text import counted

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
    patterns: Sequence[str] = (),
) -> FleetReport:
    """Which tables of these catalogs need work, and why.

    Reads one metadata document per table, and the manifest list of each new head whose summary lacks the number of
    manifests.

    ``cursor`` is that of the last report; ``overrides`` and ``unsafe`` are as for a pass.  At most ``threads`` tables
    are loaded at a time.  ``run`` is the run whose passes follow, if any: they use what the scan has recorded.  With
    ``patterns``, only tables that match one of them are looked at.

    Raises:
        PolicyError: the deployment's settings are wrong, or a pattern matches no name.
        RequestRefused: the overrides come from a request, and every table's policy forbids them.
        StorageError: the state cannot be used, or the policy file cannot be read.
    """
    given = overrides or {}
    settings = policies.deployment(given, unsafe=unsafe).policy
    check_patterns(patterns)
    state.require_writable()
    search_cycles_seldom()
    asked = _Asked(policies, given, unsafe)
    first_sweeps = Gathered(state.sweeps.record_all)
    scanner = Scanner(
        settings,
        state,
        clock(),
        resolve_policy=asked.resolve,
        plan_sweep=lambda identity, due: first_sweeps.add((identity, due)),
        threads=threads,
        run=run,
        count_manifests=_manifest_counter(),
        check_request=policies.of_requests(given).of,
        own_policy=asked.own if "operations" in given else None,  # work of other operations may be due as well
        patterns=patterns,
    )
    with state.kept_open():  # otherwise SQLite checkpoints its log each time the last connection closes
        report = scanner.scan(sources, cursor)
        try:
            first_sweeps.write_rest()
        except StorageError as error:
            log.warning("the times of first sweeps could not be recorded; the next scan decides them again: %s", error)
    asked.require_admitted()
    return report


@dataclass(slots=True)
class _Asked:
    """The settings of a call, for each table of a scan; :meth:`resolve` may be called from several threads."""

    policies: TablePolicies
    overrides: Mapping[str, str]
    unsafe: bool
    is_admitted: bool = False
    """Whether the policy of some table admits them."""
    refusals: list[str] = field(default_factory=list)

    def resolve(self, catalog: Catalog, loaded: LoadedTable) -> ResolvedPolicy:
        """A table's policy with these settings; raises as :meth:`TablePolicies.of`."""
        try:
            resolved = self.policies.of(catalog, loaded, self.overrides, unsafe=self.unsafe)
        except RequestRefused as refused:
            self.refusals.append(str(refused))
            raise
        self.is_admitted = True
        return resolved

    def own(self, catalog: Catalog, loaded: LoadedTable) -> ResolvedPolicy:
        """A table's policy without these settings."""
        return self.policies.of(catalog, loaded, {}, unsafe=self.unsafe)

    def require_admitted(self) -> None:
        """Raise RequestRefused if tables have refused the settings, and none has admitted them."""
        if self.refusals and not self.is_admitted:
            others = len(self.refusals) - 1
            shared = f" (as for {counted(others, 'other table')})" if others else ""
            raise RequestRefused(f"{min(self.refusals)}{shared}")


def look_again(
    catalog: Catalog,
    state: StateStore,
    policies: TablePolicies,
    table: TableName,
    *,
    overrides: Mapping[str, str],
    unsafe: bool,
    clock: Clock,
) -> None:
    """Record how a table looks now, as the next scan would, if a scan has recorded it before.

    A table that shares its UUID with another table is left to the next scan, which reads both.

    Raises:
        MaintenanceError: the table or the state cannot be read, or settings are wrong.
    """
    recorded = state.lake_stats.of_name(catalog.id, table)
    if not recorded or any("uuid_twice" in stats.warnings for stats in recorded):
        return
    Scanner(
        policies.deployment(overrides, unsafe=unsafe).policy,
        state,
        clock(),
        resolve_policy=lambda catalog, loaded: policies.of(catalog, loaded, overrides, unsafe=unsafe),
        plan_sweep=lambda identity, due: None,
        count_manifests=_manifest_counter(),
    ).look_again(catalog, table, recorded)


def _manifest_counter() -> ManifestCounter:
    """Counts manifests by the blocks of a manifest list; reads at most 8 MB of it, enough for 60,000 manifests."""

    @lru_cache(maxsize=32)  # a catalog may give each table credentials of its own
    def store(properties: tuple[tuple[str, str], ...]) -> Storage:
        return Storage(dict(properties))

    def count(loaded: LoadedTable, head: Snapshot) -> int:
        if head.manifest_list is None:
            return len(head.inline_manifests)
        properties = {key: value for key, value in loaded.io_properties.items() if key != ALLOWED_LOCATIONS}
        storage = store(tuple(sorted(properties.items()))).within(AllowedLocations.of(loaded.io_properties))
        found = storage.read_start(head.manifest_list)
        return open_avro(found.data, head.manifest_list).count(is_whole=len(found.data) == found.size)

    return count


def detect_catalog(
    catalog: Catalog,
    state: StateStore,
    policies: TablePolicies,
    *,
    overrides: Mapping[str, str] | None = None,
    unsafe: bool = False,
    clock: Clock = system_clock,
    patterns: Sequence[str] = (),
) -> FleetReport:
    """Like :func:`detect` for one open catalog; the note says why no table was found.

    Raises:
        PolicyError: the deployment's settings are wrong, or no table matches the patterns.
        StorageError: the catalog cannot be listed, or the state cannot be used.
    """
    source = CatalogSource(catalog.id.name, lambda: catalog, may_be_empty=True)  # the note says why no table was found
    report = detect([source], state, policies, overrides=overrides, unsafe=unsafe, clock=clock, patterns=patterns)
    for skip in report.skipped:
        if not skip.table:
            raise StorageError(f"{catalog.id}: {skip.reason}")
    if patterns and not (report.listed or report.proposals or report.skipped):
        raise PolicyError(f"no table of catalog {catalog.id} matches '{' '.join(patterns)}'")
    if report.warnings:
        return replace(report, note=" ".join(report.warnings))
    if report.listed or report.proposals or report.skipped:
        return report
    settings = policies.deployment(overrides or {}, unsafe=unsafe)
    return replace(report, note=why_empty(catalog.id, tuple(catalog.list_tables()), settings))
