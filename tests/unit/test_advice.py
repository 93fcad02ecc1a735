"""Advice: each rule on both sides of each of its thresholds, and silence on a table that is well laid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.advice.advise import (
    GB,
    MB,
    ColumnFacts,
    DeleteFacts,
    PartitionField,
    PartitionTotals,
    TableSummary,
    advise,
    advise_all,
    bloom_advice,
    bucket_advice,
    fitting_buckets,
    metadata_advice,
    partition_advice,
)
from support.advised import column, one, summary

DAY = PartitionField("ts_day", "ts", "timestamptz", "day")
HOUR = PartitionField("ts_hour", "ts", "timestamptz", "hour")


def partitions(sizes: Sequence[int], *, first: int = 480_000) -> tuple[PartitionTotals, ...]:
    """One after the other in time."""
    return tuple(PartitionTotals((first + n,), 2, size) for n, size in enumerate(sizes))


# -- partitions


def test_partitions_that_can_never_fill_a_file_want_a_coarser_transform() -> None:
    hourly = partitions([10 * MB] * 240, first=24 * 20_000)
    found = one(partition_advice, fields=(HOUR,), partitions=hourly, files=480)
    assert found is not None
    assert found.kind == "over_partitioned"
    assert found.statement == "ALTER TABLE ns.t REPLACE PARTITION FIELD ts_hour WITH day(ts)"
    assert found.numbers == {"partitions": 240, "small_partitions": 240, "median_bytes": 10 * MB, "files": 480}
    assert found.gain.startswith("10 partitions instead of 240")
    # A day of an hourly MB is still too small, a month is not.
    sparse = one(partition_advice, fields=(HOUR,), partitions=partitions([MB] * 2400))
    assert sparse is not None
    assert sparse.statement.endswith("ts_hour WITH month(ts)")
    nothing_fits = one(partition_advice, fields=(DAY,), partitions=partitions([1024] * 400))
    assert nothing_fits is not None
    assert nothing_fits.statement == "ALTER TABLE ns.t DROP PARTITION FIELD ts_day"
    by_date = PartitionField("d", "d", "date", "identity")
    dates = one(partition_advice, fields=(by_date,), partitions=partitions([20 * MB] * 365))
    assert dates is not None
    assert dates.statement.endswith("REPLACE PARTITION FIELD d WITH month(d)")


@pytest.mark.parametrize(
    ("sizes", "speaks"),
    [
        ([191 * MB] * 20, True),
        ([191 * MB] * 19, False),
        ([192 * MB] * 20, False),
        ([10 * MB] * 80 + [500 * MB] * 20, True),
        ([10 * MB] * 79 + [500 * MB] * 21, False),
    ],
)
def test_too_few_or_too_few_small_partitions_are_no_fault(sizes: list[int], speaks: bool) -> None:
    assert (one(partition_advice, fields=(DAY,), partitions=partitions(sizes)) is not None) is speaks


# -- buckets


@pytest.mark.parametrize(
    ("size", "buckets"),
    [
        (0, 1),
        (99 * MB, 1),
        (128 * GB, 1),
        (128 * GB + 1, 2),
        (257 * GB, 4),
        (1024 * GB, 8),
        (1025 * GB, 16),
    ],
)
def test_the_fitting_number_of_buckets(size: int, buckets: int) -> None:
    assert fitting_buckets(size) == buckets


def bucketed(buckets: int, *sizes: int, outer: int = 1, name: str = "ns.t", **facts: Any) -> TableSummary:
    field = PartitionField("id_bucket", "id", "long", f"bucket[{buckets}]")
    fields = (field,) if outer == 1 else (DAY, field)
    totals = tuple(
        PartitionTotals((n,) if outer == 1 else (day, n), 1, size)
        for day in range(outer)
        for n, size in enumerate(sizes)
    )
    return replace(summary(fields=fields, partitions=totals, size=sum(p.size for p in totals), **facts), table=name)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (bucketed(16, *[99 * MB] * 16), "DROP PARTITION FIELD id_bucket"),
        (bucketed(16, *[100 * MB] * 16), None),
        (bucketed(2, *[256 * GB] * 2), "REPLACE PARTITION FIELD id_bucket WITH bucket(4, id)"),
        (bucketed(2, *[128 * GB] * 2), None),
        (bucketed(2, *[200 * GB] * 2), "REPLACE PARTITION FIELD id_bucket WITH bucket(4, id)"),
        (bucketed(3, *[99 * MB] * 3), "DROP PARTITION FIELD id_bucket"),
        (bucketed(1, 50 * MB), None),
        # By the day, not by all days together.
        (bucketed(8, *[20 * MB] * 8, outer=100), "DROP PARTITION FIELD id_bucket"),
        (bucketed(8, *[120 * MB] * 8, outer=100), None),
    ],
)
def test_buckets_by_their_bytes(table: TableSummary, change: str | None) -> None:
    found = [a for a in bucket_advice(table) if a.kind == "bucket_count"]
    assert [a.statement for a in found] == ([] if change is None else [f"ALTER TABLE ns.t {change}"])


def test_a_bucket_four_times_the_mean_is_skewed() -> None:
    even = [10 * GB] * 15
    assert list(bucket_advice(bucketed(16, *even, 49 * GB))) == []  # 3.9 times the mean
    (found,) = bucket_advice(bucketed(16, *even, 52 * GB))
    assert (found.kind, found.numbers["largest_bytes"]) == ("skewed_buckets", 52 * GB)
    assert found.statement == "icekeeper maintain ns.t --operations compute_statistics"
    other = ColumnFacts(name="user", type="long", distinct=1600)
    (better,) = bucket_advice(bucketed(16, *even, 52 * GB, columns=(other,)))
    assert better.statement.endswith("REPLACE PARTITION FIELD id_bucket WITH bucket(16, user)")
    (unsuited,) = bucket_advice(bucketed(16, *even, 52 * GB, columns=(replace(other, distinct=1599),)))
    assert unsuited.statement == found.statement
    # Four times a mean of little is little: below four files nothing is gained.
    small = [100 * MB] * 15
    assert [a.kind for a in bucket_advice(bucketed(16, *small, 1023 * MB))] == []
    assert [a.kind for a in bucket_advice(bucketed(16, *small, 1024 * MB))] == ["skewed_buckets"]


def test_tables_bucketed_by_one_key_with_different_numbers() -> None:
    orders, lines = bucketed(16, *[200 * MB] * 16, name="ns.orders"), bucketed(32, *[9 * GB] * 32, name="ns.lines")
    found = advise_all([orders, lines])
    assert found["ns.lines"] == []
    (advice,) = found["ns.orders"]
    assert advice.statement == "ALTER TABLE ns.orders REPLACE PARTITION FIELD id_bucket WITH bucket(32, id)"
    assert advice.numbers["other_table"] == "ns.lines"
    # Its buckets must keep 100 MB; and another key is another key.
    assert advise_all([bucketed(16, *[199 * MB] * 16, name="ns.orders"), lines])["ns.orders"] == []
    assert advise_all([bucketed(32, *[200 * MB] * 32, name="ns.orders"), lines])["ns.orders"] == []
    other_type = replace(orders, fields=(replace(orders.fields[0], type="string"),))
    assert advise_all([other_type, lines])["ns.orders"] == []


def test_fewer_buckets_come_before_fewer_partitions() -> None:
    """One cause, one piece of advice."""
    table = bucketed(8, *[MB] * 8, outer=100, files=800)
    assert [a.kind for a in advise(table)] == ["bucket_count"]


def test_a_table_that_is_well_laid_hears_nothing() -> None:
    daily = tuple(PartitionTotals((20_000 + n,), 4, GB) for n in range(365))
    table = summary(
        fields=(DAY,),
        partitions=daily,
        files=4 * 365,
        size=365 * GB,
        records=10**9,
        bytes_by_format={"PARQUET": 365 * GB},
        columns=(column(1.2, is_key=True, distinct=10**8),),
        clustered_by=("id",),
        metadata_log=100,
        drops_old_metadata=True,
        deletes=DeleteFacts(commits=1, passes=1, positions=5),
    )
    assert advise(table) == []


def test_names_that_are_no_plain_words_are_quoted_in_statements() -> None:
    odd = replace(summary(metadata_log=100), table="my-lake.t")
    (advice,) = metadata_advice(odd)
    assert advice.statement.startswith("ALTER TABLE `my-lake`.t SET TBLPROPERTIES (")
    field = PartitionField("it's `odd`", "the day", "date", "day")
    found = one(partition_advice, fields=(field,), partitions=partitions([20 * MB] * 365))
    assert found is not None
    assert found.statement == "ALTER TABLE ns.t REPLACE PARTITION FIELD `it's ``odd``` WITH month(`the day`)"
    key = column(8.0, type="uuid", distinct=10**6, name="it's")
    (bloom,) = bloom_advice(summary(columns=(key,), partitions=(PartitionTotals((), 8, GB),), records=10**6))
    assert bloom.statement.endswith(r"('write.parquet.bloom-filter-enabled.column.it\'s'='true')")
