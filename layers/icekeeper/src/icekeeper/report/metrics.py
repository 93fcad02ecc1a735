"""Metrics for Prometheus: what scans and passes have recorded in the state, as gauges and counters.

Everything comes from the state, so counters survive restarts, and all processes that share the state serve the same.
Series that alerts compare begin with 0, before there is a scan or a failure, because an increase is only seen after a
sample.  The text format is that of https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

from icekeeper.health.examine import AGE_COUNTER, lake_totals
from icekeeper.health.table_state import TableState, state_of
from icekeeper.machine.metering import RequestKind
from icekeeper.model import CatalogId
from icekeeper.operation_facts import Operation
from icekeeper.report.outcome import PassOutcome, PassStatus, Status, request_key
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.store import StateStore
from icekeeper.text import escaped

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_TABLES = 1000
"""Tables with metrics of their own: those in the worst state first, then with the most warnings, then the largest."""
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
    ended = "when the last scan of the whole catalog ended, in seconds since 1970; 0: none has"
    yield "last_scan_timestamp_seconds", MetricFacts("gauge", ended, of_catalog)
    yield "catalog_tables", MetricFacts("gauge", "tables that scans have seen", of_catalog)
    yield "catalog_tables_in_state", MetricFacts("gauge", "tables in this state", (*of_catalog, "state"))
    yield "catalog_tables_warned", MetricFacts("gauge", "tables that have a warning", of_catalog)
    unshown = f"tables without metrics of their own, because only {MOST_TABLES} have them"
    yield "catalog_tables_left_out", MetricFacts("gauge", unshown, of_catalog)
    for name, meaning in _LAKE.values():
        yield f"catalog_{name}", MetricFacts("gauge", f"over all tables: {meaning}", of_catalog)
    for name, meaning in _LAKE.values():
        yield f"table_{name}", MetricFacts("gauge", meaning, of_table)
    yield "table_state", MetricFacts("gauge", "1: the table is in this state, which is not well", (*of_table, "state"))
    yield "table_warning", MetricFacts("gauge", "1: the table has a warning of this kind", (*of_table, "kind"))
    changed = "when a scan last saw the table changed"
    yield "table_observed_timestamp_seconds", MetricFacts("gauge", changed, of_table)
    recorded = "passes that changed, found or refused something, by how they ended"
    yield "passes_total", MetricFacts("counter", recorded, (*of_catalog, "status"))
    done = "operations of these passes that were not skipped and wait for no other table"
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
        if operation.status is not Status.SKIPPED and not operation.waits:  # the table that it waits for is counted
            found[f"operations.{operation.operation.value}.{operation.status.value}"] += 1
    for key, value in outcome.metrics.items():
        if key in _DONE:
            found[_DONE[key]] += int(value)
        for kind in RequestKind:
            if key.endswith(request_key(kind)):
                found[f"requests.{kind.value}"] += int(value)
    return dict(found)


def recorded_catalogs(state: StateStore) -> set[CatalogId]:
    """The catalogs that were scanned or maintained with this state.

    Raises:
        StorageError: the state cannot be read.
    """
    return {catalog for catalog, _ in state.totals.all()} | {scan.catalog for scan in state.scans.all()}


Sample: TypeAlias = tuple[str, tuple[str, ...], float]
"""Name without prefix, values of the labels, and value."""


class StateMetrics:
    """The metrics of all catalogs in a state, read at most once a minute."""

    def __init__(
        self,
        state: StateStore,
        catalogs: Sequence[str] = (),
        *,
        awaits_scan: bool = True,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``catalogs``: only these, also before the state knows them; by default all catalogs in the state.
        ``awaits_scan``: whether a catalog without a scan has the time 0 of its last scan, so that an alert rings.
        """
        self._state, self._catalogs, self._monotonic_s = state, frozenset(catalogs), monotonic_s
        self._awaits_scan = awaits_scan
        self._lock = Lock()
        self._read_s: float | None = None
        self._text = ""

    def text(self) -> str:
        """The metrics in Prometheus' text format.

        Raises:
            StorageError: the state cannot be read.
        """
        with self._lock:
            now_s = self._monotonic_s()
            if self._read_s is None or now_s - self._read_s > _FRESH_S:
                self._text = exposition(self._samples())
                self._read_s = now_s
            return self._text

    def _samples(self) -> Iterator[Sample]:
        totals: dict[str, Counter[str]] = {name: Counter() for name in self._catalogs}
        scanned_ms = Counter[str]()
        lakes: defaultdict[str, defaultdict[str, _Table]] = defaultdict(lambda: defaultdict(_Table))
        with self._state.kept_open():
            shown = {item for item in recorded_catalogs(self._state) if not self._catalogs or item.name in totals}
            for catalog, amounts in self._state.totals.all():
                if catalog in shown:
                    totals.setdefault(catalog.name, Counter()).update(amounts)
            for scan in self._state.scans.all():
                name = scan.catalog.name
                scanned_ms[name] = max(scanned_ms[name], scan.scanned_ms)
            for catalog in shown:
                for stats in self._state.lake_stats.of_catalog(catalog):
                    lakes[catalog.name][str(stats.identity.table)].add(stats)
        ranked = sorted((*table.priority, name, text) for name in lakes for text, table in lakes[name].items())
        first: defaultdict[str, list[str]] = defaultdict(list)
        for *_, name, text in ranked[:MOST_TABLES]:
            first[name].append(text)
        for name in sorted(totals.keys() | {catalog.name for catalog in shown}):
            label, tables = escaped(name), lakes[name]
            yield from _of_totals(label, totals.get(name, Counter()))
            if self._awaits_scan or scanned_ms[name]:
                yield "last_scan_timestamp_seconds", (label,), scanned_ms[name] / 1000
            yield from _of_lake(label, tables.values(), len(tables) - len(first[name]))
            for text in first[name]:
                yield from _of_table((label, escaped(text)), tables[text])


_STATES = tuple(TableState)


@dataclass(slots=True)
class _Table:
    """The records of a name: the newest that was read, and that of a scan that could not read the table."""

    stats: LakeStats | None = None
    unread: LakeStats | None = None

    def add(self, stats: LakeStats) -> None:
        if stats.verdict.is_unread:
            self.unread = stats
        elif self.stats is None or self.stats.observed_ms < stats.observed_ms:
            self.stats = stats

    @property
    def state(self) -> TableState:
        return state_of(self.stats, self.unread)[0]

    @property
    def priority(self) -> tuple[int, int, float]:
        stats = self.stats
        most = (0, 0) if stats is None else (-len(stats.warnings), -stats.counters.get("lake_bytes", 0))
        return _STATES.index(self.state), *most


def _of_totals(catalog: str, totals: Mapping[str, int]) -> Iterator[Sample]:
    for status in PassStatus:
        yield "passes_total", (catalog, status), totals.get(f"passes.{status}", 0)
    for operation in Operation:
        for ended in Status:
            if ended is not Status.SKIPPED:
                amount = totals.get(f"operations.{operation}.{ended}", 0)
                yield "operations_total", (catalog, operation, ended), amount
    for kind in RequestKind:
        yield "requests_total", (catalog, kind), totals.get(f"requests.{kind}", 0)
    yield "pass_seconds_total", (catalog,), totals.get("pass_ms", 0) / 1000
    for name in _COUNTERS:
        if name != "pass_seconds":
            yield f"{name}_total", (catalog,), totals.get(name, 0)


def _of_lake(catalog: str, tables: Collection[_Table], left_out: int) -> Iterator[Sample]:
    totals = lake_totals(table.stats for table in tables if table.stats is not None)
    states = Counter(table.state for table in tables)
    yield "catalog_tables", (catalog,), len(tables)
    for state in TableState:
        yield "catalog_tables_in_state", (catalog, state), states[state]
    yield "catalog_tables_warned", (catalog,), totals["lake_tables_warned"]
    yield "catalog_tables_left_out", (catalog,), left_out
    for key, (name, _) in _LAKE.items():
        if key in totals:
            yield f"catalog_{name}", (catalog,), _in_base_units(key, totals[key])


def _in_base_units(key: str, value: float) -> float:
    return value * 3600 if key == AGE_COUNTER else value


def _of_table(labels: tuple[str, str], table: _Table) -> Iterator[Sample]:
    if table.state is not TableState.WELL:
        yield "table_state", (*labels, table.state), 1
    if (stats := table.stats) is None:
        return
    for key, (name, _) in _LAKE.items():
        if key in stats.counters:
            yield f"table_{name}", labels, _in_base_units(key, stats.counters[key])
    for kind in sorted(stats.warnings):
        yield "table_warning", (*labels, kind), 1
    yield "table_observed_timestamp_seconds", labels, stats.observed_ms / 1000


def exposition(samples: Iterable[Sample]) -> str:
    """These samples in Prometheus' text format; a metric without samples is left out."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for short, values, value in samples:
        name = f"{_PREFIX}{short}"
        pairs = zip(METRICS[name].labels, values, strict=True)
        labels = ",".join(f'{label}="{text.translate(_IN_LABELS)}"' for label, text in pairs)
        found[name].append(f"{name}{{{labels}}} {value}\n")
    return "".join(
        f"# HELP {name} {facts.meaning.capitalize()}.\n# TYPE {name} {facts.kind}\n{''.join(found[name])}"
        for name, facts in METRICS.items()
        if name in found
    )


_IN_LABELS = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
