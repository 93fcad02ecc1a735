"""Metrics for Prometheus: what scans and passes have recorded in the state, as gauges and counters.

Everything comes from the state, so counters survive restarts, and all processes that share the state serve the same.
``prometheus_client`` is an optional dependency, imported when metrics are made.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from icekeeper.errors import PolicyError
from icekeeper.health.examine import AGE_COUNTER, lake_totals
from icekeeper.machine.metering import RequestKind
from icekeeper.report.outcome import PassOutcome, Status, request_key
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.store import StateStore
from icekeeper.text import escaped

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

MOST_TABLES = 1000
"""Tables with metrics of their own: those with the most warnings first, then the largest."""
# Reading the state of 10,000 tables costs seconds and, on DynamoDB, money; scans are minutes apart.
_FRESH_S = 60.0

# Counter of a table in the state → name and meaning of the gauge.
_LAKE: Mapping[str, tuple[str, str]] = {
    "lake_data_files": ("data_files", "data files of the current snapshot"),
    "lake_delete_files": ("delete_files", "delete files of the current snapshot"),
    "lake_position_deletes": ("position_deletes", "rows in its position delete files"),
    "lake_equality_deletes": ("equality_deletes", "rows in its equality delete files"),
    "lake_records": ("records", "rows in its data files"),
    "lake_bytes": ("bytes", "bytes of its data and delete files"),
    "lake_average_file_bytes": ("average_file_bytes", "bytes per data or delete file"),
    "lake_history_bytes": ("history_bytes", "bytes of files that only older snapshots and other branches hold"),
    "lake_manifests": ("manifests", "manifests of the current snapshot"),
    "lake_snapshots": ("snapshots", "snapshots"),
    "lake_refs": ("refs", "branches and tags"),
    AGE_COUNTER: ("oldest_snapshot_age_seconds", "age of the oldest snapshot, when last seen"),
    "lake_clustering_depth": ("clustering_depth", "files that a lookup in the clustering columns opens on average"),
    "lake_metadata_log": ("metadata_log_entries", "older metadata files that the table names"),
    "lake_statistics_files": ("statistics_files", "statistics files, of columns and partitions"),
}
# Metric of an outcome → name of the counter, without ``_total``.
_DONE: Mapping[str, str] = {
    "compact.files_merged": "files_merged",
    "compact.files_written": "files_written",
    "compact.bytes_read": "rewrite_bytes_read",
    "compact.bytes_written": "rewrite_bytes_written",
    "expire_snapshots.snapshots_expired": "snapshots_expired",
    "expire_snapshots.files_deleted": "files_deleted",
    "expire_snapshots.bytes_freed": "bytes_freed",
    "expire_partitions.partitions_expired": "partitions_expired",
    "remove_orphans.orphans_removed": "orphans_removed",
    "remove_orphans.bytes_freed": "bytes_freed",
}
_COUNTERS: Mapping[str, str] = {
    "scans": "scans of the catalog for tables that need maintenance",
    "pass_seconds": "seconds that recorded passes took",
    "files_merged": "data files that compaction replaced",
    "files_written": "data files that compaction wrote instead",
    "rewrite_bytes_read": "bytes of the files that compaction replaced",
    "rewrite_bytes_written": "bytes of the files that compaction wrote",
    "snapshots_expired": "snapshots that were expired",
    "files_deleted": "files that were deleted because only expired snapshots needed them",
    "orphans_removed": "orphan files that were deleted",
    "partitions_expired": "partitions that were dropped because of their age",
    "bytes_freed": "bytes of the files that expiry and the removal of orphans deleted",
}
_PREFIX = "icekeeper_"


@dataclass(frozen=True, slots=True)
class MetricFacts:
    """The type, meaning and labels of a metric."""

    kind: str
    meaning: str
    labels: tuple[str, ...]


def _metrics() -> Iterator[tuple[str, MetricFacts]]:
    of_catalog, of_table = ("catalog",), ("catalog", "table")
    yield "catalog_tables", MetricFacts("gauge", "tables that scans have seen", of_catalog)
    yield "catalog_tables_warned", MetricFacts("gauge", "tables that have a warning", of_catalog)
    unshown = f"tables without metrics of their own, because only {MOST_TABLES} have them"
    yield "catalog_tables_left_out", MetricFacts("gauge", unshown, of_catalog)
    for name, meaning in _LAKE.values():
        yield f"catalog_{name}", MetricFacts("gauge", f"over all tables: {meaning}", of_catalog)
    for name, meaning in _LAKE.values():
        yield f"table_{name}", MetricFacts("gauge", meaning, of_table)
    yield "table_warning", MetricFacts("gauge", "1: the table has a warning of this kind", (*of_table, "kind"))
    changed = "when a scan last saw the table changed"
    yield "table_observed_timestamp_seconds", MetricFacts("gauge", changed, of_table)
    recorded = "passes that changed, found or refused something, by how they ended"
    yield "passes_total", MetricFacts("counter", recorded, (*of_catalog, "status"))
    done = "operations of these passes that were not skipped"
    yield "operations_total", MetricFacts("counter", done, (*of_catalog, "operation", "status"))
    sent = "requests that these passes sent to stores and catalogs"
    yield "requests_total", MetricFacts("counter", sent, (*of_catalog, "kind"))
    for name, meaning in _COUNTERS.items():
        yield f"{name}_total", MetricFacts("counter", meaning, of_catalog)


METRICS: Mapping[str, MetricFacts] = {f"{_PREFIX}{name}": facts for name, facts in _metrics()}
"""All metrics by name."""


def amounts_of(outcome: PassOutcome, duration_ms: int) -> dict[str, int]:
    """What a pass adds to the totals of its catalog; labels of a counter follow its name after dots."""
    found: Counter[str] = Counter({f"passes.{outcome.status.value}": 1, "pass_ms": max(0, duration_ms)})
    for operation in outcome.operations:
        if operation.status is not Status.SKIPPED:
            found[f"operations.{operation.operation.value}.{operation.status.value}"] += 1
    for key, value in outcome.metrics.items():
        if key in _DONE:
            found[_DONE[key]] += int(value)
        for kind in RequestKind:
            if key.endswith(request_key(kind)):
                found[f"requests.{kind.value}"] += int(value)
    return dict(found)


class StateMetrics:
    """The metrics of all catalogs in a state, read at most once a minute; a collector of ``prometheus_client``."""

    def __init__(
        self,
        state: StateStore,
        catalogs: Sequence[str] = (),
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``catalogs``: only these; by default all catalogs in the state."""
        self._state, self._catalogs, self._monotonic_s = state, frozenset(catalogs), monotonic_s
        self._lock = Lock()
        self._read_s: float | None = None
        self._found: Sequence[Metric] = ()

    def registry(self) -> CollectorRegistry:
        """A registry of this collector alone.

        Raises:
            PolicyError: ``prometheus_client`` is not installed.
        """
        try:
            from prometheus_client import CollectorRegistry
        except ImportError:
            raise PolicyError(
                "metrics need prometheus_client, which is not installed: run pip install 'icekeeper[metrics]'"
            ) from None

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that the registry need not read the state to know the names."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The metrics; called by ``prometheus_client``.

        Raises:
            StorageError: the state cannot be read.
        """
        with self._lock:
            now_s = self._monotonic_s()
            if self._read_s is None or now_s - self._read_s > _FRESH_S:
                self._found = [*_families(self._samples())]
                self._read_s = now_s
            return self._found

    def _samples(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Name, values of the labels, and value of each sample."""
        totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
        lakes: defaultdict[str, dict[str, LakeStats]] = defaultdict(dict)
        for catalog, amounts in self._state.totals.all():
            if self._catalogs and catalog.name not in self._catalogs:
                continue
            totals[catalog.name] += amounts
            for stats in self._state.lake_stats.of_catalog(catalog):
                if not stats.identity.uuid:  # the table could not be read: its earlier stats count
                    continue
                name = str(stats.identity.table)
                known = lakes[catalog.name].get(name)
                if known is None or known.observed_ms < stats.observed_ms:
                    lakes[catalog.name][name] = stats
        left = MOST_TABLES
        for name in sorted(totals):
            label, tables = escaped(name), lakes[name]
            yield from _of_totals(label, totals[name])
            shown = sorted(tables, key=lambda name: _priority(tables[name]))[:left]
            left -= len(shown)
            yield from _of_lake(label, tables.values(), len(tables) - len(shown))
            for name in shown:
                yield from _of_table((label, escaped(name)), tables[name])


def _priority(stats: LakeStats) -> tuple[float, float, str]:
    return -len(stats.warnings), -stats.counters.get("lake_bytes", 0), str(stats.identity.table)


def _of_totals(catalog: str, totals: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for name, amount in totals.items():
        counter, *labels = name.split(".")
        if counter in ("passes", "operations", "requests"):
            yield f"{counter}_total", (catalog, *labels), amount
    yield "pass_seconds_total", (catalog,), totals.get("pass_ms", 0) / 1000
    for name in _COUNTERS:
        if name != "pass_seconds":
            yield f"{name}_total", (catalog,), totals.get(name, 0)


def _of_lake(catalog: str, tables: Iterable[LakeStats], left_out: int) -> Iterator[tuple[str, tuple[str, ...], float]]:
    totals = lake_totals(tables)
    yield "catalog_tables", (catalog,), totals["lake_tables"]
    yield "catalog_tables_warned", (catalog,), totals["lake_tables_warned"]
    yield "catalog_tables_left_out", (catalog,), left_out
    for key, (name, _) in _LAKE.items():
        if key in totals:
            yield f"catalog_{name}", (catalog,), _in_base_units(key, totals[key])


def _in_base_units(key: str, value: float) -> float:
    return value * 3600 if key == AGE_COUNTER else value


def _of_table(labels: tuple[str, str], stats: LakeStats) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for key, (name, _) in _LAKE.items():
        if key in stats.counters:
            yield f"table_{name}", labels, _in_base_units(key, stats.counters[key])
    for kind in sorted(stats.warnings):
        yield "table_warning", (*labels, kind), 1
    yield "table_observed_timestamp_seconds", labels, stats.observed_ms / 1000


def _families(samples: Iterable[tuple[str, tuple[str, ...], float]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found: defaultdict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    for name, labels, value in samples:
        found[f"{_PREFIX}{name}"].append((labels, value))
    for name, facts in METRICS.items():
        kind = CounterMetricFamily if facts.kind == "counter" else GaugeMetricFamily
        family = kind(name, facts.meaning.capitalize() + ".", labels=facts.labels)
        for labels, value in found[name]:
            family.add_metric(labels, value)
        if family.samples:
            yield family
