"""Advice on partitions: too many for their bytes, too many or too few buckets, skewed buckets (pure)."""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from icekeeper.advice.sql import drop_field, replace_field
from icekeeper.advice.summary import GB, MB, Advice, PartitionField, TableSummary
from icekeeper.model import PartitionValue
from icekeeper.text import counted, size_text

__all__ = ["bucket_advice", "fitting_buckets", "partition_advice"]

# Fewer partitions cost little, however small they are.
FEWEST_PARTITIONS = 20
# So many of them must be too small: one slow week among full ones is no fault of the spec.
SMALL_SHARE = 0.8
# One bucket per 128 GB is what a single task still sorts in minutes; below 100 MB a bucket never fills a file.
BUCKET_BYTES, LEAST_BUCKET_BYTES = 128 * GB, 100 * MB
# By chance the largest of many buckets is hardly twice the mean.
SKEW = 4
# Each transform of a time, and the next coarser one: how many of the finer make one of the coarser, about.
_COARSER: Mapping[str, tuple[str, float]] = {
    "hour": ("day", 24),
    "day": ("month", 30.436875),
    "month": ("year", 12),
}


def partition_advice(table: TableSummary) -> Iterator[Advice]:
    """A coarser transform, or no partitioning, where most partitions can never fill a file."""
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
        f"{counted(after, 'partition')} instead of {len(sizes)}: about as many files fewer to open and to list",
        statement,
    )


def _coarser(table: TableSummary, number: int, chosen: PartitionField) -> tuple[str | None, int]:
    """The first transform whose partitions would fill a file, and how many there would be; ``None``: no such one."""
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
    """How many buckets suit so many bytes: one per 128 GB, a power of two, and none below 100 MB."""
    buckets = 1 << max(0, math.ceil(size / BUCKET_BYTES) - 1).bit_length()
    while buckets > 1 and size / buckets < LEAST_BUCKET_BYTES:
        buckets //= 2
    return buckets


def bucket_advice(table: TableSummary) -> Iterator[Advice]:
    """Another number of buckets, or another column where they are skewed."""
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
    gain = "statistics tell which column has values enough to bucket by"
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
