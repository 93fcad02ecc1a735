"""Which tables of a fleet need work: the scan over many catalogs, put together from policy, state and plans."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from icekeeper.catalogs.catalog import Catalog
from icekeeper.clock import Clock, system_clock
from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.detection.assessor import Assessor, Observer, assessor
from icekeeper.detection.fleet import FLEET_THREADS, scan_fleet
from icekeeper.detection.fleet_catalogs import CatalogSource
from icekeeper.detection.layout_signals import Clustering
from icekeeper.detection.proposal import FleetReport
from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.clustering.recipe import choose_recipe
from icekeeper.operations.expiry.retention import plan_expiry
from icekeeper.policy import Policy, Strategy
from icekeeper.state.store import StateStore
from icekeeper.table_policy import TablePolicies

__all__ = ["choose_clustering", "detect_fleet"]


def choose_clustering(metadata: TableMetadata, policy: Policy) -> Clustering | None:
    """How compaction would cluster a table, and how its snapshots say that they are.

    Raises:
        PolicyError: the policy names an order or columns that the table does not have.
    """
    orders = policy.sort_order is not None or metadata.default_sort_order_fields
    if policy.strategy is Strategy.BINPACK or (policy.strategy is Strategy.AUTO and not orders):
        return None  # without a look at the schema, which of wide tables takes longer than all the rest
    try:
        recipe = choose_recipe(metadata, policy)
    except TableUnsupported:  # compaction says so, when there is another reason for a pass
        return None
    return None if recipe is None else Clustering(RECIPE_KEY, recipe.text)


def detect_fleet(
    sources: Sequence[CatalogSource],
    state: StateStore,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    clock: Clock = system_clock,
    cursor: tuple[str, str] | None = None,
    threads: int = FLEET_THREADS,
) -> FleetReport:
    """Which tables of these catalogs need work, and why; reads one metadata document per table.

    ``cursor`` is that of the last report.

    Raises:
        PolicyError: the deployment's settings are wrong.
        StorageError: the state cannot be used, or the policy file not be read.
    """
    chosen = os.environ if environment is None else environment
    given = overrides or {}
    policies = TablePolicies(chosen)
    settings = policies.deployment(given).policy
    state.require_writable()
    now_ms = clock()

    def assessor_of(catalog: Catalog, observe: Observer) -> Assessor:
        return assessor(
            catalog,
            resolve_policy=lambda loaded: policies.of(catalog, loaded, given),
            store=state,
            now_ms=now_ms,
            plan_expiry=plan_expiry,
            choose_clustering=choose_clustering,
            observe=observe,
        )

    return scan_fleet(sources, assessor_of, settings, state, now_ms=now_ms, cursor=cursor, threads=threads)
