"""Advice about a table's design: the numbers of a table, and the rules that read them.

:func:`advise` and :func:`advise_all` apply all rules.  Everything here is pure.
"""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from icekeeper.metadata.overlap_depth import OverlapDepth
from icekeeper.metadata.transforms import NO_BUCKETS, parse_transform
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.plan.plan_clustering import MAX_CLUSTERING_DEPTH
from icekeeper.text import counted, size_text

# Statements of Spark SQL with Iceberg's extensions.


def drop_field(table: str, field: str) -> str:
    """The statement that drops a partition field."""
    return f"ALTER TABLE {_name(table)} DROP PARTITION FIELD {_name(field)}"


def replace_field(table: str, field: str, column: str, transform: str, buckets: int | None = None) -> str:
    """The statement that replaces a partition field by a transform of a column."""
    number = "" if buckets is None else f"{buckets}, "
    return (
        f"ALTER TABLE {_name(table)} REPLACE PARTITION FIELD {_name(field)} WITH {transform}({number}{_name(column)})"
    )


def set_properties(table: str, properties: Mapping[str, str]) -> str:
    """The statement that sets table properties."""
    listed = ", ".join(f"{_text(key)}={_text(value)}" for key, value in properties.items())
    return f"ALTER TABLE {_name(table)} SET TBLPROPERTIES ({listed})"


def _name(name: str) -> str:
    return ".".join(
        part if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part) else "`" + part.replace("`", "``") + "`"
        for part in name.split(".")
    )


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


MB = 1024 * 1024
GB = 1024 * MB


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommended change."""

    kind: str
    message: str
    """The finding, in one sentence with its numbers."""
    numbers: Mapping[str, int | float | str]
    gain: str
    """The benefit of the change, in one sentence."""
    statement: str
    """The command or SQL that makes the change."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of the current partition spec; ``type`` is the Iceberg type of the column."""

    name: str
    column: str
    type: str
    transform: str

    @property
    def buckets(self) -> int | None:
        """N of ``bucket[N]``, else ``None``."""
        name, number = parse_transform(self.transform)
        return number if name == "bucket" else None


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """The live data files of one partition of the current spec; sizes in bytes."""

    values: tuple[PartitionValue, ...]
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """The known facts of a column."""

    name: str
    type: str
    depth: OverlapDepth | None = None
    """Within partitions; ``None``: not measured."""
    distinct: int | None = None
    """Estimated number of distinct values, from the sketch in the newest statistics file."""
    value_bytes: float | None = None
    """Bytes on disk per value."""
    is_key: bool = False
    """Lookups use it: it is an identifier field of the schema or a key of equality deletes."""
    has_bloom_filter: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFacts:
    """The deletes in the known snapshots, and the passes that applied them."""

    commits: int = 0
    """Snapshots that added delete files."""
    passes: int = 0
    """Our snapshots that removed delete files."""
    bytes_rewritten: int = 0
    """Bytes of the data files that those passes replaced."""
    positions: int = 0
    """Added position deletes."""
    equalities: int = 0
    """Added equality deletes."""
    came_back: bool = False
    """Delete files were added after the last of those passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """One table at the head of its branch."""

    table: str
    format_version: int
    target_bytes: int
    small_bytes: int
    """Files below this size are small."""
    converts: bool = False
    """Policy key ``convert_equality_deletes``."""
    files: int = 0
    size: int = 0
    """Bytes of the live data files."""
    records: int = 0
    bytes_by_format: Mapping[str, int] = field(default_factory=dict)
    """Format of data files, in capitals → their bytes."""
    fields: tuple[PartitionField, ...] = ()
    """Of the current spec, without void transforms."""
    partitions: tuple[PartitionTotals, ...] = ()
    """Of the current spec, with the values of ``fields``."""
    columns: tuple[ColumnFacts, ...] = ()
    clustered_by: tuple[str, ...] = ()
    """The columns that passes cluster files by; empty: passes do not cluster."""
    deletes: DeleteFacts = DeleteFacts()
    changed_share: float | None = None
    """Of the rows, those added or deleted since statistics were computed; ``None``: there are no statistics."""
    metadata_log: int = 0
    metadata_log_limit: int = 100
    drops_old_metadata: bool = False
    """Metadata files that leave the log are deleted."""

    @property
    def files_per_partition(self) -> float:
        """The average over bytes: the files among which a lookup in a partition selects."""
        size = sum(p.size for p in self.partitions)
        return sum(p.files * p.size for p in self.partitions) / size if size else 0.0


# Advice on the order of rows: columns to sort by, worn clustering, bloom filters.

# This many files opened per lookup are worth sorting the table once.
DEEP = 8
# Clustering in tiers may exceed the limit temporarily; no pass leaves three times the limit.
WORN = 3
# With more columns on a z-order curve, each gets too few bits.
MOST_CURVE_COLUMNS = 4
# With fewer distinct values, the dictionaries of the row groups are as good as a bloom filter.
MANY_VALUES, DISTINCT_SHARE = 100_000, 0.1
# A lookup opens this share of the files: bounds skip practically none.
COVERING_SHARE = 0.9
# Values of more bytes are texts, which are not looked up.
LONGEST_VALUE = 64


def sort_advice(table: TableSummary) -> Iterator[Advice]:
    """Sort by the columns of lookups, or sort again if clustering has worn off."""
    if table.clustered_by:
        yield from _worn(table)
        return
    keys = [c for c in table.columns if c.is_key and c.depth is not None and c.depth.point >= DEEP]
    keys.sort(key=lambda c: -(c.depth.point if c.depth else 0.0))
    keys = keys[:MOST_CURVE_COLUMNS]
    if not keys or keys[0].depth is None:
        return
    names = [c.name for c in keys]
    opened = keys[0].depth.point
    listed = ", ".join(names)
    statement = f"ALTER TABLE {_name(table.table)} WRITE ORDERED BY {_name(names[0])}"
    if len(names) > 1:
        terms = (name if re.fullmatch(r"[\w.]+", name) else f'"{name}"' for name in names)
        settings = ("strategy=zorder", f"sort_order={','.join(terms)}")
        statement = shlex.join(("icekeeper", "policy", "set", table.table, *settings))
    yield Advice(
        "sort_order" if len(names) == 1 else "z_order",
        f"rows are looked up by {listed}, and a lookup opens {opened:.1f} files of a partition on average",
        {"columns": ",".join(names), "files_per_lookup": round(opened, 1), "files": table.files},
        f"a lookup opens {MAX_CLUSTERING_DEPTH} files or fewer, as soon as passes sort by {listed}",
        statement,
    )


def _worn(table: TableSummary) -> Iterator[Advice]:
    first = next((c for c in table.columns if c.name == table.clustered_by[0]), None)
    if len(table.clustered_by) > 1 or first is None or first.depth is None:
        return  # on a curve, files overlap in each single column
    if first.depth.point <= WORN * MAX_CLUSTERING_DEPTH:
        return
    yield Advice(
        "worn_clustering",
        f"a lookup by {first.name} opens {first.depth.point:.1f} files of a partition on average, although the table "
        "is sorted by it",
        {"column": first.name, "files_per_lookup": round(first.depth.point, 1), "limit": MAX_CLUSTERING_DEPTH},
        f"at most {MAX_CLUSTERING_DEPTH} sorted runs over one value, or fewer than the tier factor of each size",
        shlex.join(("icekeeper", "maintain", table.table, "--operations", "compact")),
    )


def bloom_advice(table: TableSummary) -> Iterator[Advice]:
    """Bloom filters on columns with very many values whose bounds skip no file."""
    sorted_by = table.clustered_by[:1]
    for column in table.columns:
        if column.name not in sorted_by and not column.has_bloom_filter and _wants_bloom(table, column):
            assert column.depth is not None
            yield Advice(
                "bloom_filter",
                f"{column.name} has about {column.distinct} distinct values, and bounds leave "
                f"{column.depth.point:.1f} of {table.files_per_partition:.1f} files of a partition to open per lookup",
                {
                    "column": column.name,
                    "distinct_values": column.distinct or 0,
                    "files_per_lookup": round(column.depth.point, 1),
                    "files_per_partition": round(table.files_per_partition, 1),
                },
                "a lookup of a value reads the filters, and only the file that holds the value",
                set_properties(table.table, {f"write.parquet.bloom-filter-enabled.column.{column.name}": "true"}),
            )


def _wants_bloom(table: TableSummary, column: ColumnFacts) -> bool:
    if column.depth is None or column.distinct is None or column.type in NO_BUCKETS:
        return False
    has_many = column.distinct >= MANY_VALUES and column.distinct >= DISTINCT_SHARE * table.records
    covers_all = column.depth.point >= COVERING_SHARE * table.files_per_partition
    is_text = column.value_bytes is not None and column.value_bytes > LONGEST_VALUE
    return has_many and covers_all and table.files_per_partition >= DEEP and not is_text


# Advice on partitions: partitions that are too small, too many or too few buckets, skewed buckets.

# Fewer partitions cost little, however small they are.
FEWEST_PARTITIONS = 20
# At least this share must be too small: a few small partitions among full partitions are not a fault of the spec.
SMALL_SHARE = 0.8
# A single task sorts a bucket of 128 GB in minutes; a bucket below 100 MB never fills a file.
BUCKET_BYTES, LEAST_BUCKET_BYTES = 128 * GB, 100 * MB
# By chance, the largest of many buckets rarely exceeds twice the mean.
SKEW = 4
# Time transform → the next coarser transform, and about how many of the finer units it contains.
_COARSER: Mapping[str, tuple[str, float]] = {"hour": ("day", 24), "day": ("month", 30.436875), "month": ("year", 12)}


def partition_advice(table: TableSummary) -> Iterator[Advice]:
    """A coarser transform, or no partitioning, if most partitions can never fill a file."""
    sizes = [p.size for p in table.partitions]
    if len(sizes) < FEWEST_PARTITIONS:
        return
    small = sum(size < table.small_bytes for size in sizes)
    fields = [(number, f) for number, f in enumerate(table.fields) if f.buckets is None]
    if small < SMALL_SHARE * len(sizes) or not fields:
        return
    number, chosen = max(fields, key=lambda pair: len({p.values[pair[0]] for p in table.partitions}))
    transform, after = _coarser(table, number, chosen)
    statement = drop_field(table.table, chosen.name)
    if transform is not None:
        statement = replace_field(table.table, chosen.name, chosen.column, transform)
    median = round(statistics.median(sizes))
    yield Advice(
        "over_partitioned",
        f"{small} of {len(sizes)} partitions hold less than {size_text(table.small_bytes)} and can never fill a file; "
        f"the median holds {size_text(median)}",
        {"partitions": len(sizes), "small_partitions": small, "median_bytes": median, "files": table.files},
        f"{counted(after, 'partition')} instead of {len(sizes)}: correspondingly fewer files to open and to list",
        statement,
    )


def _coarser(table: TableSummary, number: int, chosen: PartitionField) -> tuple[str | None, int]:
    """The first coarser transform whose partitions fill a file (``None``: drop the field), and their number."""
    sizes = {p.values: p.size for p in table.partitions}
    transform = "day" if chosen.transform == "identity" and chosen.type == "date" else chosen.transform
    while transform in _COARSER:
        transform, per = _COARSER[transform]
        sizes = _regrouped(sizes, number, lambda value, per=per: value if value is None else math.floor(value / per))
        if statistics.median(sizes.values()) >= table.small_bytes:
            return transform, len(sizes)
    return None, len(_regrouped(sizes, number, lambda value: None))


def _regrouped(
    sizes: Mapping[tuple[PartitionValue, ...], int], number: int, change: Callable[..., PartitionValue]
) -> dict[tuple[PartitionValue, ...], int]:
    changed: Counter[tuple[PartitionValue, ...]] = Counter()
    for values, size in sizes.items():
        changed[(*values[:number], change(values[number]), *values[number + 1 :])] += size
    return dict(changed)


def fitting_buckets(size: int) -> int:
    """The number of buckets for a size in bytes: one per 128 GB, a power of two, none below 100 MB."""
    buckets = 1 << max(0, math.ceil(size / BUCKET_BYTES) - 1).bit_length()
    while buckets > 1 and size / buckets < LEAST_BUCKET_BYTES:
        buckets //= 2
    return buckets


def bucket_advice(table: TableSummary) -> Iterator[Advice]:
    """Another number of buckets, or another column if they are skewed."""
    for number, chosen in enumerate(table.fields):
        if chosen.buckets is None or not table.partitions:
            continue
        outer: Counter[tuple[PartitionValue, ...]] = Counter()
        inner: Counter[PartitionValue] = Counter()
        for p in table.partitions:
            outer[(*p.values[:number], *p.values[number + 1 :])] += p.size
            inner[p.values[number]] += p.size
        found = list(_bucket_count(table, chosen, chosen.buckets, list(outer.values())))
        yield from found or _skew(table, chosen, chosen.buckets, inner)


def _bucket_count(table: TableSummary, chosen: PartitionField, buckets: int, sizes: Sequence[int]) -> Iterator[Advice]:
    size = round(statistics.median(sizes))
    fitting = fitting_buckets(size)
    too_many = buckets >= 2 * fitting and size / buckets < LEAST_BUCKET_BYTES
    if not too_many and fitting < 2 * buckets:
        return
    each = size / buckets
    statement = replace_field(table.table, chosen.name, chosen.column, "bucket", fitting)
    if fitting == 1:
        statement = drop_field(table.table, chosen.name)
    yield Advice(
        "bucket_count",
        f"{chosen.name} makes {counted(buckets, 'bucket')} of {size_text(size)}, {size_text(each)} each; "
        f"{fitting} would fit",
        {"buckets": buckets, "fitting_buckets": fitting, "bytes": size, "bytes_per_bucket": round(each)},
        f"buckets of {size_text(size / fitting)}: "
        + ("files that reach their size" if too_many else "groups that one worker sorts and joins in minutes"),
        statement,
    )


def _skew(
    table: TableSummary, chosen: PartitionField, buckets: int, sizes: Mapping[PartitionValue, int]
) -> Iterator[Advice]:
    largest, mean = max(sizes.values()), sum(sizes.values()) / buckets
    if largest < SKEW * mean or largest < SKEW * table.target_bytes:
        return
    others = [c for c in table.columns if c.name != chosen.column and (c.distinct or 0) >= 100 * buckets]
    statement = shlex.join(("icekeeper", "maintain", table.table, "--operations", "compute_statistics"))
    gain = "statistics show which column has enough distinct values to bucket by"
    if others:
        best = max(others, key=lambda c: c.distinct or 0)
        statement = replace_field(table.table, chosen.name, best.name, "bucket", buckets)
        gain = f"{best.name} has {best.distinct} distinct values, so that its buckets come out even"
    yield Advice(
        "skewed_buckets",
        f"the largest bucket of {chosen.name} holds {size_text(largest)}, {largest / mean:.1f} times the mean of "
        f"{counted(buckets, 'bucket')}",
        {"buckets": buckets, "largest_bytes": largest, "mean_bytes": round(mean)},
        gain,
        statement,
    )


def shared_key_advice(tables: Sequence[TableSummary]) -> Iterator[tuple[str, Advice]]:
    """The table to change and the advice: the same key with different numbers of buckets prevents joins by bucket.

    A key is the same if column name and type are equal.  The smaller table is changed, and only if its buckets keep at
    least 100 MB.
    """
    by_key: defaultdict[tuple[str, str], list[tuple[TableSummary, PartitionField]]] = defaultdict(list)
    for table in tables:
        for partition in table.fields:
            if partition.buckets is not None:
                by_key[partition.column, partition.type].append((table, partition))
    for (column, _), group in by_key.items():
        largest, model = max(group, key=lambda pair: (pair[0].size, pair[0].table))
        for table, partition in group:
            buckets, wanted = partition.buckets or 0, model.buckets or 0
            if table.table == largest.table or buckets == wanted or table.size < wanted * LEAST_BUCKET_BYTES:
                continue
            yield (
                table.table,
                Advice(
                    "unequal_buckets",
                    f"{column} is bucketed by {buckets} here and by {wanted} in {largest.table}: joins by it shuffle "
                    "both tables",
                    {"buckets": buckets, "other_buckets": wanted, "other_table": largest.table, "bytes": table.size},
                    "joins bucket by bucket without a shuffle (storage-partitioned joins)",
                    replace_field(table.table, partition.name, column, "bucket", wanted),
                ),
            )


# Advice on properties: deletes, metadata log, statistics, formats.

# If deletes return after this many passes, it is the way the table is written, and not a coincidence.
RETURNING_PASSES = 3
# With at most this many deleting commits per pass, copy-on-write is cheaper than merge-on-read plus the pass.
RARE_COMMITS = 2
# Every commit reads and writes the metadata document; a log of 500 entries makes it larger than 100 KB.
LONGEST_LOG, USUAL_LOG = 500, 100
# With fewer rows, planners need no statistics; with a fifth of the rows changed, statistics mislead.
ROWS_WORTH_STATISTICS, STALE_SHARE = 1_000_000, 0.2
AVRO_SHARE = 0.5


def delete_advice(table: TableSummary) -> Iterator[Advice]:
    """Copy-on-write, or deletion vectors, if position deletes return after every pass; conversion if keys do."""
    found = table.deletes
    if found.passes < RETURNING_PASSES or not found.came_back:
        return
    if found.equalities and not table.converts:
        yield Advice(
            "convert_deletes",
            f"{counted(found.passes, 'pass', 'passes')} rewrote {size_text(found.bytes_rewritten)} for the "
            f"{counted(found.equalities, 'equality delete')} of {counted(found.commits, 'commit')}, and they came back "
            "each time",
            {
                "passes": found.passes,
                "deleting_commits": found.commits,
                "equality_deletes": found.equalities,
                "bytes_rewritten": found.bytes_rewritten,
            },
            "passes turn the keys into deleted positions, which readers skip, and rewrite a file only once many of its "
            "rows are deleted",
            f"icekeeper policy set {shlex.quote(table.table)} convert_equality_deletes=true",
        )
    if found.equalities or not found.positions:
        return
    commits = found.commits / found.passes
    numbers = {
        "passes": found.passes,
        "deleting_commits": found.commits,
        "deleted_rows": found.positions,
        "bytes_rewritten": found.bytes_rewritten,
    }
    message = (
        f"{counted(found.passes, 'pass', 'passes')} applied the deletes of {counted(found.commits, 'commit')} and "
        f"rewrote {size_text(found.bytes_rewritten)}, and deletes came back each time"
    )
    if commits <= RARE_COMMITS:
        modes = {f"write.{kind}.mode": "copy-on-write" for kind in ("delete", "update", "merge")}
        yield Advice(
            "copy_on_write",
            message,
            numbers,
            "the same bytes are rewritten once, by the writer, and readers apply no deletes meanwhile",
            set_properties(table.table, modes),
        )
    elif table.format_version == 2:
        yield Advice(
            "deletion_vectors",
            message,
            numbers,
            "one deletion vector per data file instead of more and more delete files; every reader must support format "
            "version 3",
            set_properties(table.table, {"format-version": "3"}),
        )


def metadata_advice(table: TableSummary) -> Iterator[Advice]:
    """A metadata log that leaves files in the store, or that is too long."""
    numbers = {"metadata_log": table.metadata_log, "limit": table.metadata_log_limit}
    if table.metadata_log >= table.metadata_log_limit and not table.drops_old_metadata:
        yield Advice(
            "metadata_log",
            f"the metadata log is full with {table.metadata_log} files, and every commit leaves another file behind",
            numbers,
            "one metadata file fewer in the store with every commit",
            set_properties(table.table, {"write.metadata.delete-after-commit.enabled": "true"}),
        )
    elif table.metadata_log > LONGEST_LOG:
        yield Advice(
            "metadata_log",
            f"the metadata log names {table.metadata_log} files, which every commit reads and writes",
            numbers,
            f"metadata documents with {USUAL_LOG} entries instead",
            set_properties(table.table, {"write.metadata.previous-versions-max": str(USUAL_LOG)}),
        )


def statistics_advice(table: TableSummary) -> Iterator[Advice]:
    """Statistics that are missing or out of date."""
    changed = table.changed_share
    if table.records < ROWS_WORTH_STATISTICS or (changed is not None and changed < STALE_SHARE):
        return
    why = "it has no statistics of its columns"
    if changed is not None:
        why = f"{changed * 100:.0f} % of its rows changed since statistics were computed"
    yield Advice(
        "statistics",
        f"the table has {table.records} rows, and {why}",
        {"records": table.records, "changed_share": round(changed or 0.0, 2)},
        "planners that choose joins by the number of distinct values",
        shlex.join(("icekeeper", "maintain", table.table, "--operations", "compute_statistics")),
    )


def format_advice(table: TableSummary) -> Iterator[Advice]:
    """A newer format version, or columnar files."""
    if table.format_version == 1 and table.files:
        yield Advice(
            "format_version",
            f"the table is of format version 1, with {counted(table.files, 'data file')}",
            {"format_version": 1, "files": table.files},
            "sequence numbers, row-level deletes and manifests that are inherited; no file is rewritten",
            set_properties(table.table, {"format-version": "2"}),
        )
    rows = table.bytes_by_format.get("AVRO", 0)
    if table.size >= table.target_bytes and rows >= AVRO_SHARE * table.size:
        yield Advice(
            "file_format",
            f"{size_text(rows)} of {size_text(table.size)} are Avro files, which have no bounds and no columns",
            {"avro_bytes": rows, "bytes": table.size},
            "queries read the columns that they need and skip files by bounds; passes merge into Parquet already",
            set_properties(table.table, {"write.format.default": "parquet"}),
        )


_RULES: Sequence[Callable[[TableSummary], Iterator[Advice]]] = (
    partition_advice,
    sort_advice,
    bloom_advice,
    delete_advice,
    metadata_advice,
    statistics_advice,
    format_advice,
)


def advise(table: TableSummary) -> list[Advice]:
    """The advice for one table."""
    buckets = list(bucket_advice(table))
    # Another number of buckets may be all that the partitions need.
    rules = _RULES[1:] if any(a.kind == "bucket_count" for a in buckets) else _RULES
    return buckets + [advice for rule in rules for advice in rule(table)]


def advise_all(tables: Sequence[TableSummary]) -> Mapping[str, list[Advice]]:
    """Table → its advice, with that of rules across tables."""
    found: defaultdict[str, list[Advice]] = defaultdict(list)
    for table in tables:
        found[table.table] = advise(table)
    for name, advice in shared_key_advice(tables):
        # Do not recommend two different numbers of buckets.
        if not any(other.kind == "bucket_count" for other in found[name]):
            found[name].append(advice)
    return found
