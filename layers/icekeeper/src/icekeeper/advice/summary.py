"""What advice is given from: the numbers of one table, small and frozen (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icekeeper.metadata.overlap_depth import OverlapDepth
from icekeeper.model import PartitionValue

__all__ = [
    "GB",
    "MB",
    "Advice",
    "ColumnFacts",
    "DeleteFacts",
    "PartitionField",
    "PartitionTotals",
    "StatisticsFacts",
    "TableSummary",
]

MB = 1024 * 1024
GB = 1024 * MB


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change, with what carries it."""

    kind: str
    message: str
    """What was found, in one sentence with its numbers."""
    numbers: Mapping[str, int | float | str]
    gain: str
    """What the change would bring, in one sentence."""
    statement: str
    """The command or the SQL (of Spark, with Iceberg's extensions) that does it."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of the current partition spec."""

    name: str
    column: str
    type: str
    """Iceberg type of the column."""
    transform: str

    @property
    def buckets(self) -> int | None:
        """N of ``bucket[N]``, else ``None``."""
        kind, _, number = self.transform.rstrip("]").partition("[")
        return int(number) if kind == "bucket" and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """The live data files of one partition of the current spec; sizes in bytes."""

    values: tuple[PartitionValue, ...]
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """A column that something is known of."""

    name: str
    type: str
    depth: OverlapDepth | None = None
    """Within partitions; ``None``: not measured."""
    distinct: int | None = None
    """Estimated number of distinct values, by the sketch in the newest statistics file."""
    value_bytes: float | None = None
    """Bytes on disk per value."""
    is_key: bool = False
    """Whether rows are looked up by it: an identifier field of the schema, or a key of equality deletes."""
    has_bloom_filter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFacts:
    """What the known history says of deletes and of the passes that applied them."""

    commits: int = 0
    """Snapshots that added delete files."""
    passes: int = 0
    """Snapshots of ours that removed delete files."""
    bytes_rewritten: int = 0
    """Bytes of the data files that those passes replaced."""
    positions: int = 0
    """Rows that were deleted by position."""
    equalities: int = 0
    """Equality deletes that were added."""
    came_back: bool = False
    """Whether delete files were added after the last of those passes."""


@dataclass(frozen=True, slots=True)
class StatisticsFacts:
    """Statistics of the columns' values."""

    exist: bool = False
    changed_share: float = 0.0
    """Rows that came or went since they were computed, as a share of the rows there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """One table at the head of its branch."""

    table: str
    format_version: int
    target_bytes: int
    small_bytes: int
    """Files below this size are small."""
    depth_limit: int
    """Policy key ``max_clustering_depth``."""
    files: int = 0
    size: int = 0
    """Bytes of the live data files."""
    records: int = 0
    bytes_by_format: Mapping[str, int] = field(default_factory=dict)
    """Format of data files, in capitals → their bytes."""
    fields: tuple[PartitionField, ...] = ()
    """Of the current spec, without those under a void transform."""
    partitions: tuple[PartitionTotals, ...] = ()
    """Of the current spec, with the values of ``fields``."""
    columns: tuple[ColumnFacts, ...] = ()
    clustered_by: tuple[str, ...] = ()
    """The columns by which passes cluster files; none: they are merged as they come."""
    deletes: DeleteFacts = DeleteFacts()
    statistics: StatisticsFacts = StatisticsFacts()
    metadata_log: int = 0
    metadata_log_limit: int = 100
    drops_old_metadata: bool = False
    """Whether metadata files that leave the log are deleted."""

    @property
    def files_per_partition(self) -> float:
        """On average over bytes: what a lookup in a partition chooses from."""
        size = sum(p.size for p in self.partitions)
        return sum(p.files * p.size for p in self.partitions) / size if size else 0.0
