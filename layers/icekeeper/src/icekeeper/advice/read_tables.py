"""Read the metadata documents and manifests of tables, but no data files, and summarise them for advice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from icekeeper.advice.advise import (
    MANY_VALUES,
    Advice,
    ColumnFacts,
    DeleteFacts,
    PartitionField,
    PartitionTotals,
    TableSummary,
    advise_all,
)
from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.errors import MaintenanceError, PolicyError, TableUnsupported
from icekeeper.health.examine import (
    deletes_old_metadata,
    health_head,
    metadata_log_limit,
    summary_counter,
    summary_counters,
)
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.entry_columns import metric_of
from icekeeper.metadata.overlap_depth import Extent, column_extent, measure_depth, total_depth
from icekeeper.metadata.puffin import THETA_SKETCH
from icekeeper.metadata.statistics import statistics_by_snapshot
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, LiveEntry, ManifestContent, PartitionValue, TableName
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.rows.arrow_schema import LeafColumn, leaf_columns
from icekeeper.storage.storage import Storage

_Partition = tuple[int, tuple[PartitionValue, ...]]


def summarise(
    table: str,
    metadata: TableMetadata,
    head: Snapshot | None,
    policy: Policy,
    *,
    deletes: Callable[[], Iterable[LiveEntry]],
    data: Callable[[], Iterable[LiveEntry]],
) -> TableSummary:
    """The numbers of a table at ``head``; ``deletes`` and ``data`` return its live entries, and are called once."""
    history = [] if head is None else list(metadata.ancestors(head.snapshot_id))
    leaves = {leaf.field_id: leaf for leaf in leaf_columns(metadata.current_schema) if not leaf.repeated}
    keys = {int(i) for i in metadata.current_schema.get("identifier-field-ids") or ()}
    keys |= {i for live in deletes() for i in live.entry.file.equality_ids or ()}
    distinct = _distinct_values(metadata, history)
    clustered_by = _clustered_by(metadata, policy, leaves)
    measured = {i for i, leaf in leaves.items() if i in keys or leaf.name in clustered_by}
    measured |= {i for i in leaves if distinct.get(i, 0) >= MANY_VALUES}
    files = _Files({i: leaves[i].iceberg_type for i in measured})
    for live in data():
        files.add(live.entry.file, live.manifest.partition_spec_id)
    fields = _fields(metadata, leaves)
    return TableSummary(
        table=table,
        format_version=metadata.format_version,
        target_bytes=policy.target_file_size_bytes,
        small_bytes=policy.min_file_size_bytes,
        converts=policy.convert_equality_deletes,
        files=sum(files.count.values()),
        size=sum(files.size.values()),
        records=files.records,
        bytes_by_format=dict(files.by_format),
        fields=tuple(found for _, found in fields),
        partitions=files.totals(metadata.default_spec_id, [position for position, _ in fields]),
        columns=tuple(_column(files, leaves[i], distinct, keys, metadata) for i in sorted(measured)),
        clustered_by=clustered_by,
        deletes=_delete_facts(history),
        changed_share=_changed_share(metadata, history),
        metadata_log=len(metadata.metadata_log),
        metadata_log_limit=metadata_log_limit(metadata),
        drops_old_metadata=deletes_old_metadata(metadata),
    )


@dataclass(slots=True)
class _Files:
    """Sums over the data files, and the extents of values in the measured columns (``types``: field id → type)."""

    types: Mapping[int, str]
    records: int = 0
    count: Counter[_Partition] = field(default_factory=Counter)
    size: Counter[_Partition] = field(default_factory=Counter)
    by_format: Counter[str] = field(default_factory=Counter)
    value_bytes: Counter[int] = field(default_factory=Counter)
    values: Counter[int] = field(default_factory=Counter)
    extents: defaultdict[int, defaultdict[_Partition, list[Extent]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, file: DataFile, spec_id: int) -> None:
        partition = spec_id, file.partition
        self.records += file.record_count
        self.count[partition] += 1
        self.size[partition] += file.file_size_in_bytes
        self.by_format[file.file_format.upper()] += file.file_size_in_bytes
        measured = frozenset(self.types)
        for field_id, kind in self.types.items():
            extent = column_extent(file, field_id, kind, measured)
            if extent is not None:
                self.extents[field_id][partition].append(extent)
            size, values = (metric_of(file, name, measured).get(field_id) for name in ("column_sizes", "value_counts"))
            if size is not None and values is not None:
                self.value_bytes[field_id] += size
                self.values[field_id] += values

    def totals(self, spec_id: int, positions: Sequence[int]) -> tuple[PartitionTotals, ...]:
        """The partitions of one spec, with the values at these positions."""
        return tuple(
            PartitionTotals(tuple(partition[1][p] for p in positions), count, self.size[partition])
            for partition, count in self.count.items()
            if partition[0] == spec_id
        )


def _column(
    files: _Files, leaf: LeafColumn, distinct: Mapping[int, int], keys: Collection[int], metadata: TableMetadata
) -> ColumnFacts:
    i = leaf.field_id
    return ColumnFacts(
        name=leaf.name,
        type=leaf.iceberg_type,
        depth=total_depth(map(measure_depth, files.extents[i].values())) if i in files.extents else None,
        distinct=distinct.get(i),
        value_bytes=files.value_bytes[i] / files.values[i] if files.values[i] else None,
        is_key=i in keys,
        has_bloom_filter=metadata.property_flag(
            f"write.parquet.bloom-filter-enabled.column.{leaf.name}", default=False
        ),
    )


def _fields(metadata: TableMetadata, leaves: Mapping[int, LeafColumn]) -> list[tuple[int, PartitionField]]:
    """The current spec's fields except void fields, each with its position among all fields."""
    found = []
    for position, raw in enumerate(metadata.specs[metadata.default_spec_id]["fields"]):
        leaf = leaves.get(int(raw.get("source-id") or 0))
        if raw["transform"] != "void" and leaf is not None:
            found.append((position, PartitionField(raw["name"], leaf.name, leaf.iceberg_type, raw["transform"])))
    return found


def _clustered_by(metadata: TableMetadata, policy: Policy, leaves: Mapping[int, LeafColumn]) -> tuple[str, ...]:
    """The columns of a curve, or the first one of a sort order."""
    try:
        recipe = choose_recipe(metadata, policy)
    except (PolicyError, TableUnsupported):  # compaction and health report it
        return ()
    if recipe is None:
        return ()
    columns = recipe.columns if recipe.text.startswith("zorder") else recipe.columns[:1]
    return tuple(leaves[c.field_id].name for c in columns if c.field_id in leaves)


def _distinct_values(metadata: TableMetadata, history: Sequence[Snapshot]) -> dict[int, int]:
    """Field id → number of distinct values, from the newest sketch."""
    files = statistics_by_snapshot(metadata)
    found: dict[int, int] = {}
    for snapshot in history:
        for blob in files[snapshot.snapshot_id].blobs if snapshot.snapshot_id in files else ():
            text = str(blob.get("ndv"))
            if blob.type == THETA_SKETCH and len(blob.fields) == 1 and text.isascii() and text.isdigit():
                found.setdefault(blob.fields[0], int(text))
    return found


def _delete_facts(history: Sequence[Snapshot]) -> DeleteFacts:
    commits = passes = rewritten = positions = equalities = 0
    came_back = False
    for snapshot in history:
        counters = summary_counters(snapshot)
        if RUN_ID_KEY in counters:
            if summary_counter(counters, "removed-delete-files"):
                passes += 1
                rewritten += summary_counter(counters, "removed-files-size") or 0
            continue
        if summary_counter(counters, "added-delete-files"):
            commits += 1
            came_back = came_back or not passes  # the newest snapshot comes first
            positions += summary_counter(counters, "added-position-deletes") or 0
            equalities += summary_counter(counters, "added-equality-deletes") or 0
    return DeleteFacts(
        commits=commits,
        passes=passes,
        bytes_rewritten=rewritten,
        positions=positions,
        equalities=equalities,
        came_back=came_back,
    )


def _changed_share(metadata: TableMetadata, history: Sequence[Snapshot]) -> float | None:
    files = statistics_by_snapshot(metadata)
    total = summary_counter(summary_counters(history[0]), "total-records") if history else None
    changed = 0
    for snapshot in history:
        known = files.get(snapshot.snapshot_id)
        if known is not None and any(blob.type == THETA_SKETCH for blob in known.blobs):
            return min(1.0, changed / total) if total else 0.0
        if snapshot.operation != "replace":
            counters = summary_counters(snapshot)
            changed += sum(summary_counter(counters, f"{what}-records") or 0 for what in ("added", "deleted"))
    return None


SettingsOf = Callable[[LoadedTable], ResolvedPolicy]
"""Resolves the settings of a table; raises PolicyError."""


def advise_table(catalog: Catalog, table: TableName, settings_of: SettingsOf) -> Sequence[Advice]:
    """The advice for one table.

    Raises:
        PolicyError: the table is unknown, or its settings are wrong.
        MetadataUnreadable: a manifest list or manifest cannot be read.
        StorageError: the catalog does not answer.
    """
    loaded = catalog.load(table)
    return advise_all([_read(loaded, settings_of(loaded))])[str(loaded.name)]


def advise_catalog(
    catalog: Catalog, settings_of: SettingsOf
) -> tuple[Mapping[str, Sequence[Advice]], Mapping[str, str]]:
    """Table → its advice, and table → why it could not be read.

    For a table with wrong settings, the defaults are used; health and passes report the errors.

    Raises:
        StorageError: the catalog cannot be listed.
    """
    found: list[TableSummary] = []
    unread: dict[str, str] = {}
    for name in catalog.list_tables():
        try:
            loaded = catalog.load(name)
            try:
                settings: ResolvedPolicy | PolicyError = settings_of(loaded)
            except PolicyError as error:
                settings = error
            found.append(_read(loaded, settings))
        except MaintenanceError as error:
            unread[str(name)] = str(error)
    return advise_all(found), unread


def _read(loaded: LoadedTable, settings: ResolvedPolicy | PolicyError) -> TableSummary:
    head = health_head(loaded.metadata, settings)
    reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
    manifests = [] if head is None else reader.manifests(head)
    return summarise(
        str(loaded.name),
        loaded.metadata,
        head,
        settings.policy if isinstance(settings, ResolvedPolicy) else Policy(),
        deletes=lambda: reader.live_entries(manifests, ManifestContent.DELETES),
        data=lambda: reader.live_entries(manifests, ManifestContent.DATA),
    )
