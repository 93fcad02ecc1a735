"""Advice: each rule on both sides of its thresholds, and the figures that it uses."""

from __future__ import annotations

import shlex
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.advice.advise import (
    GB,
    MB,
    Advice,
    ColumnFacts,
    DeleteFacts,
    PartitionField,
    PartitionTotals,
    TableSummary,
    advise,
    advise_all,
    bloom_advice,
    bucket_advice,
    delete_advice,
    fitting_buckets,
    format_advice,
    metadata_advice,
    partition_advice,
    sort_advice,
    statistics_advice,
)
from icekeeper.advice.read_tables import summarise
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.overlap_depth import OverlapDepth
from icekeeper.model import FileContent, LiveEntry
from icekeeper.policy import Policy
from support.plans import data_file, live_file
from support.settings import NOW_MS, policy
from support.tables import new_document

Rule = Callable[[TableSummary], Iterator[Advice]]


def summary(**facts: Any) -> TableSummary:
    """A table with a good layout, except for these facts."""
    facts = {"changed_share": 0.0} | facts
    return TableSummary(table="ns.t", format_version=2, target_bytes=256 * MB, small_bytes=192 * MB, **facts)


def advice_by(rule: Rule, **facts: Any) -> Advice | None:
    found = list(rule(summary(**facts)))
    assert len(found) <= 1
    assert all(a.message and a.gain and a.statement and a.numbers for a in found)
    return found[0] if found else None


def column(point: float, **facts: Any) -> ColumnFacts:
    """A column of 40 files, of which ``point`` contain each value."""
    depth = OverlapDepth(files=40, size=40, point=point)
    defaults: dict[str, Any] = {"name": "id", "type": "long", "depth": depth}
    return ColumnFacts(**(defaults | facts))


# Each rule on both sides of each threshold; a table with a good layout gets no advice.

DAY = PartitionField("ts_day", "ts", "timestamptz", "day")
HOUR = PartitionField("ts_hour", "ts", "timestamptz", "hour")


def partitions(sizes: Sequence[int], *, first: int = 480_000) -> tuple[PartitionTotals, ...]:
    """Consecutive partitions."""
    return tuple(PartitionTotals((first + n,), 2, size) for n, size in enumerate(sizes))


# -- partitions


def test_partitions_too_small_to_fill_a_file_get_a_coarser_transform() -> None:
    hourly = partitions([10 * MB] * 240, first=24 * 20_000)
    found = advice_by(partition_advice, fields=(HOUR,), partitions=hourly, files=480)
    assert found is not None
    assert found.kind == "over_partitioned"
    assert found.statement == "ALTER TABLE ns.t REPLACE PARTITION FIELD ts_hour WITH day(ts)"
    assert found.numbers == {"partitions": 240, "small_partitions": 240, "median_bytes": 10 * MB, "files": 480}
    assert found.gain.startswith("10 partitions instead of 240")
    # With 1 MB per hour a day is still too small; a month is large enough.
    sparse = advice_by(partition_advice, fields=(HOUR,), partitions=partitions([MB] * 2400))
    assert sparse is not None
    assert sparse.statement.endswith("ts_hour WITH month(ts)")
    nothing_fits = advice_by(partition_advice, fields=(DAY,), partitions=partitions([1024] * 400))
    assert nothing_fits is not None
    assert nothing_fits.statement == "ALTER TABLE ns.t DROP PARTITION FIELD ts_day"
    by_date = PartitionField("d", "d", "date", "identity")
    dates = advice_by(partition_advice, fields=(by_date,), partitions=partitions([20 * MB] * 365))
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
def test_partition_advice_needs_many_partitions_most_of_them_small(sizes: list[int], speaks: bool) -> None:
    assert (advice_by(partition_advice, fields=(DAY,), partitions=partitions(sizes)) is not None) is speaks


def test_fitting_buckets_is_a_power_of_two_by_size() -> None:
    sizes = (0, 99 * MB, 128 * GB, 128 * GB + 1, 257 * GB, 1024 * GB, 1025 * GB)
    assert [fitting_buckets(size) for size in sizes] == [1, 1, 1, 2, 4, 8, 16]


# -- buckets


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
        # The size of a bucket counts per day, not over all days.
        (bucketed(8, *[20 * MB] * 8, outer=100), "DROP PARTITION FIELD id_bucket"),
        (bucketed(8, *[120 * MB] * 8, outer=100), None),
    ],
)
def test_the_size_of_buckets_decides_their_number(table: TableSummary, change: str | None) -> None:
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
    # A skewed bucket smaller than four files gets no advice.
    small = [100 * MB] * 15
    assert [a.kind for a in bucket_advice(bucketed(16, *small, 1023 * MB))] == []
    assert [a.kind for a in bucket_advice(bucketed(16, *small, 1024 * MB))] == ["skewed_buckets"]


def test_tables_bucketed_by_the_same_key_get_the_same_number_of_buckets() -> None:
    orders, lines = bucketed(16, *[200 * MB] * 16, name="ns.orders"), bucketed(32, *[9 * GB] * 32, name="ns.lines")
    found = advise_all([orders, lines])
    assert found["ns.lines"] == []
    (advice,) = found["ns.orders"]
    assert advice.statement == "ALTER TABLE ns.orders REPLACE PARTITION FIELD id_bucket WITH bucket(32, id)"
    assert advice.numbers["other_table"] == "ns.lines"
    # No advice if buckets would fall below 100 MB, if the numbers are equal, or if the keys differ in type.
    assert advise_all([bucketed(16, *[199 * MB] * 16, name="ns.orders"), lines])["ns.orders"] == []
    assert advise_all([bucketed(32, *[200 * MB] * 32, name="ns.orders"), lines])["ns.orders"] == []
    other_type = replace(orders, fields=(replace(orders.fields[0], type="string"),))
    assert advise_all([other_type, lines])["ns.orders"] == []


def test_advice_on_buckets_replaces_advice_on_partitions() -> None:
    """One cause gets one piece of advice."""
    table = bucketed(8, *[MB] * 8, outer=100, files=800)
    assert [a.kind for a in advise(table)] == ["bucket_count"]


def test_a_table_with_a_good_layout_gets_no_advice() -> None:
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


def test_statements_quote_names_with_special_characters() -> None:
    odd = replace(summary(metadata_log=100), table="my-lake.t")
    (advice,) = metadata_advice(odd)
    assert advice.statement.startswith("ALTER TABLE `my-lake`.t SET TBLPROPERTIES (")
    field = PartitionField("it's `odd`", "the day", "date", "day")
    found = advice_by(partition_advice, fields=(field,), partitions=partitions([20 * MB] * 365))
    assert found is not None
    assert found.statement == "ALTER TABLE ns.t REPLACE PARTITION FIELD `it's ``odd``` WITH month(`the day`)"
    key = column(8.0, type="uuid", distinct=10**6, name="it's")
    (bloom,) = bloom_advice(summary(columns=(key,), partitions=(PartitionTotals((), 8, GB),), records=10**6))
    assert bloom.statement.endswith(r"('write.parquet.bloom-filter-enabled.column.it\'s'='true')")


# -- order of rows


def kind_and_statement(rule: Rule, **facts: Any) -> tuple[str, str] | None:
    found = advice_by(rule, **facts)
    return None if found is None else (found.kind, found.statement)


def test_keys_whose_lookups_open_many_files_get_a_sort_order() -> None:
    key = column(8.0, is_key=True)
    assert kind_and_statement(sort_advice, columns=(column(7.9, is_key=True),)) is None
    assert kind_and_statement(sort_advice, columns=(column(40.0),)) is None, "nothing says that it is looked up"
    assert kind_and_statement(sort_advice, columns=(key,)) == ("sort_order", "ALTER TABLE ns.t WRITE ORDERED BY id")
    assert kind_and_statement(sort_advice, columns=(key,), clustered_by=("other",)) is None
    zorder = ("z_order", "icekeeper policy set ns.t strategy=zorder sort_order=sku,id")
    assert kind_and_statement(sort_advice, columns=(key, column(9.0, is_key=True, name="sku"))) == zorder
    # A clustered table whose files overlap more than after a pass.
    assert kind_and_statement(sort_advice, columns=(column(12.0),), clustered_by=("id",)) is None
    worn = ("worn_clustering", "icekeeper maintain ns.t --operations compact")
    assert kind_and_statement(sort_advice, columns=(column(12.1),), clustered_by=("id",)) == worn
    assert kind_and_statement(sort_advice, columns=(column(99.0),), clustered_by=("id", "sku")) is None


def test_columns_of_many_values_with_overlapping_bounds_get_bloom_filters() -> None:
    eight = (PartitionTotals((), 8, GB),)

    def bloom_with(point: float = 8.0, records: int = 1_000_000, files: int = 8, **facts: Any) -> Advice | None:
        totals = (replace(eight[0], files=files),)
        id_column = column(point, **({"type": "uuid", "distinct": 100_000} | facts))
        return advice_by(bloom_advice, columns=(id_column,), partitions=totals, records=records)

    found = bloom_with()
    assert found is not None
    assert found.statement == (
        "ALTER TABLE ns.t SET TBLPROPERTIES ('write.parquet.bloom-filter-enabled.column.id'='true')"
    )
    assert bloom_with(point=7.2) is not None
    assert bloom_with(point=7.1) is None
    assert bloom_with(distinct=99_999) is None
    assert bloom_with(records=1_000_001) is None
    assert bloom_with(files=7, point=7.0) is None
    assert bloom_with(value_bytes=64.0) is not None
    assert bloom_with(value_bytes=64.1) is None
    assert bloom_with(type="double") is None
    assert bloom_with(has_bloom_filter=True) is None
    assert bloom_with(distinct=None) is None
    assert bloom_with(depth=None) is None


# -- upkeep


def deletes(**facts: Any) -> DeleteFacts:
    defaults: dict[str, Any] = {"commits": 7, "passes": 3, "positions": 50, "bytes_rewritten": GB, "came_back": True}
    return DeleteFacts(**(defaults | facts))


def test_deletes_that_return_after_every_pass_get_advice() -> None:
    def advised(version: int = 2, converts: bool = False, **facts: Any) -> tuple[str, str] | None:
        table = replace(summary(deletes=deletes(**facts), converts=converts), format_version=version)
        found = list(delete_advice(table))
        return (found[0].kind, found[0].statement) if found else None

    assert advised() == ("deletion_vectors", "ALTER TABLE ns.t SET TBLPROPERTIES ('format-version'='3')")
    rare = advised(commits=6)
    assert rare is not None
    assert (rare[0], "'write.merge.mode'='copy-on-write'" in rare[1]) == ("copy_on_write", True)
    keys = ("convert_deletes", "icekeeper policy set ns.t convert_equality_deletes=true")
    assert advised(equalities=1) == keys
    for none in (
        advised(passes=2),
        advised(came_back=False),
        advised(equalities=1, converts=True),
        advised(positions=0),
        advised(version=3),
    ):
        assert none is None
    found = advice_by(delete_advice, deletes=deletes(equalities=1))
    assert found is not None
    assert found.message == (
        "3 passes rewrote 1 GB for the 1 equality delete of 7 commits, and they came back each time"
    )


def test_metadata_logs_that_keep_old_files_or_are_too_long_get_advice() -> None:
    for log, limit, drops, expected in (
        (99, 100, False, None),
        (100, 100, False, "'write.metadata.delete-after-commit.enabled'='true'"),
        (100, 100, True, None),
        (500, 1000, False, None),
        (501, 1000, False, "'write.metadata.previous-versions-max'='100'"),
    ):
        found = kind_and_statement(
            metadata_advice, metadata_log=log, metadata_log_limit=limit, drops_old_metadata=drops
        )
        assert (found is None) if expected is None else (found is not None and expected in found[1])


def test_missing_or_stale_statistics_get_advice() -> None:
    missing = advice_by(statistics_advice, records=1_000_000, changed_share=None)
    assert missing is not None
    assert missing.statement == "icekeeper maintain ns.t --operations compute_statistics"
    assert advice_by(statistics_advice, records=999_999, changed_share=None) is None
    assert advice_by(statistics_advice, records=10**7, changed_share=0.19) is None
    stale = advice_by(statistics_advice, records=10**7, changed_share=0.2)
    assert stale is not None
    assert "20 % of its rows changed" in stale.message


def test_old_format_versions_and_file_formats_get_advice() -> None:
    assert list(format_advice(replace(summary(files=0), format_version=1))) == []
    (version,) = format_advice(replace(summary(files=1), format_version=1))
    assert version.statement == "ALTER TABLE ns.t SET TBLPROPERTIES ('format-version'='2')"
    assert advice_by(format_advice, files=1) is None
    half = {"AVRO": 128 * MB, "PARQUET": 128 * MB}
    found = advice_by(format_advice, files=2, size=256 * MB, bytes_by_format=half)
    assert found is not None
    assert found.kind == "file_format"
    assert advice_by(format_advice, files=2, size=257 * MB, bytes_by_format=half) is None
    assert advice_by(format_advice, files=2, size=255 * MB, bytes_by_format={"AVRO": 255 * MB}) is None


def test_advised_commands_quote_hostile_names_for_the_shell() -> None:
    """Writers of a table choose these names."""
    name, key = "ns.t;touch /tmp/x", "$(id)"
    keys = (column(9.0, name=key, is_key=True), column(9.0, name="id", is_key=True))
    tables = {
        "z_order": replace(summary(columns=keys), table=name),
        "worn_clustering": replace(summary(columns=(column(99.0, name=key),), clustered_by=(key,)), table=name),
        "statistics": replace(summary(records=10**7, changed_share=None), table=name),
    }
    found = {kind: shlex.split(_advised(kind, table)) for kind, table in tables.items()}
    assert found == {
        "z_order": ["icekeeper", "policy", "set", name, "strategy=zorder", f'sort_order="{key}",id'],
        "worn_clustering": ["icekeeper", "maintain", name, "--operations", "compact"],
        "statistics": ["icekeeper", "maintain", name, "--operations", "compute_statistics"],
    }


def _advised(kind: str, table: TableSummary) -> str:
    (statement,) = [found.statement for found in (*sort_advice(table), *statistics_advice(table)) if found.kind == kind]
    return statement


# Summaries computed from a metadata document and live entries.

COLUMNS = (("id", "long"), ("sku", "string"), ("day", "date"))
LONG = struct.Struct("<q")


def metadata(*summaries: dict[str, str], **more: Any) -> TableMetadata:
    """A table of three columns, partitioned by day and an old field, with one snapshot per summary, ids from 1."""
    fields = [{"id": n + 1, "name": name, "type": kind, "required": False} for n, (name, kind) in enumerate(COLUMNS)]
    partition_fields = [
        {"field-id": 1000, "source-id": 1, "name": "old", "transform": "void"},
        {"field-id": 1001, "source-id": 3, "name": "day", "transform": "identity"},
    ]
    snapshots = [
        {
            "snapshot-id": n + 1,
            "timestamp-ms": NOW_MS + n,
            "sequence-number": n + 1,
            "summary": {"operation": "append"} | summary,
            **({"parent-snapshot-id": n} if n else {}),
        }
        for n, summary in enumerate(summaries)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields, **more.pop("schema", {})}
    document = new_document("s3://b/t", 2) | {
        "schemas": [schema],
        "partition-specs": [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": partition_fields}],
        "default-spec-id": 1,
        "snapshots": snapshots,
        "current-snapshot-id": len(snapshots) or -1,
    }
    return TableMetadata(document | more)


def file(path: str, day: int, low: int, high: int, **more: Any) -> LiveEntry:
    bounds: dict[str, Any] = {"lower_bounds": {1: LONG.pack(low)}, "upper_bounds": {1: LONG.pack(high)}}
    return live_file(data_file(path, 10 * MB, [None, day], records=100, **(bounds | more)), spec_id=1)


def summary_of(
    table: TableMetadata,
    data: Sequence[LiveEntry] = (),
    deletes: Sequence[LiveEntry] = (),
    settings: Policy | None = None,
) -> TableSummary:
    head = table.current_snapshot
    return summarise("ns.t", table, head, settings or Policy(), deletes=lambda: deletes, data=lambda: data)


def test_partitions_follow_the_current_spec_without_void_fields() -> None:
    older = live_file(data_file("o", 7 * MB, [], records=5, file_format="avro"), spec_id=0)
    found = summary_of(metadata({}), [file("a", 1, 0, 9), file("b", 1, 0, 9), file("c", 2, 0, 9), older])
    assert found.fields == (PartitionField("day", "day", "date", "identity"),)
    assert found.partitions == (PartitionTotals((1,), 2, 20 * MB), PartitionTotals((2,), 1, 10 * MB))
    assert (found.files, found.size, found.records) == (4, 37 * MB, 305)
    assert found.bytes_by_format == {"PARQUET": 30 * MB, "AVRO": 7 * MB}
    assert found.files_per_partition == (2 * 20 + 10) / 30


def test_identifier_fields_and_equality_delete_columns_are_keys() -> None:
    data = [file("a", 1, 0, 9), file("b", 1, 5, 9), file("c", 2, 0, 9)]
    assert summary_of(metadata({}), data).columns == ()
    (identified,) = summary_of(metadata({}, schema={"identifier-field-ids": [1]}), data).columns
    assert (identified.name, identified.is_key) == ("id", True)
    assert identified.depth is not None
    assert (round(identified.depth.point, 4), identified.depth.files) == (1.4815, 3)  # the average of two partitions
    delete = data_file("d", 1, content=FileContent.EQUALITY_DELETES, equality_ids=(2,))
    (deleted,) = summary_of(metadata({}), data, [live_file(delete)]).columns
    assert (deleted.name, deleted.is_key, deleted.depth is not None) == ("sku", True, True)


def sketch(snapshot_id: int, field_id: int, distinct: int) -> dict[str, Any]:
    blob = {
        "type": "apache-datasketches-theta-v1",
        "fields": [field_id],
        "snapshot-id": snapshot_id,
        "sequence-number": 1,
        "properties": {"ndv": str(distinct)},
    }
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": "s3://b/t/s.puffin",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [blob],
    }


def test_the_newest_sketch_counts_distinct_values() -> None:
    statistics = [sketch(1, 2, 5_000_000), sketch(2, 2, 150_000)]
    data = [file("a", 1, 0, 9, column_sizes={2: 1000}, value_counts={2: 100})]
    properties = {"write.parquet.bloom-filter-enabled.column.sku": "true"}
    found = summary_of(metadata({}, {}, statistics=statistics, properties=properties), data)
    (column,) = found.columns
    assert column == ColumnFacts(
        name="sku", type="string", depth=column.depth, distinct=150_000, value_bytes=10.0, has_bloom_filter=True
    )
    assert summary_of(metadata({}, {}, statistics=[sketch(2, 2, 99_999)]), data).columns == ()


def test_the_changed_share_counts_rows_added_and_deleted_since_the_statistics() -> None:
    changes: list[dict[str, str]] = [
        {},
        {"added-records": "10", "deleted-records": "5"},
        {"added-records": "5", "total-records": "100"},
    ]
    assert summary_of(metadata(*changes, statistics=[sketch(1, 2, 9)])).changed_share == 0.2
    rewritten = {"operation": "replace", "added-records": "90", "deleted-records": "90", "total-records": "100"}
    assert summary_of(metadata({}, rewritten, statistics=[sketch(1, 2, 9)])).changed_share == 0.0
    assert summary_of(metadata(*changes)).changed_share is None


def test_deletes_after_our_pass_count_as_come_back() -> None:
    deleting = {"operation": "overwrite", "added-delete-files": "1", "added-position-deletes": "7"}
    ours = {"operation": "replace", "icekeeper.run-id": "r", "removed-delete-files": "1", "removed-files-size": "500"}
    assert summary_of(metadata(deleting, ours)).deletes == DeleteFacts(
        commits=1, passes=1, bytes_rewritten=500, positions=7
    )
    back = summary_of(metadata(deleting, ours, {}, {**deleting, "added-equality-deletes": "2"})).deletes
    assert back == DeleteFacts(commits=2, passes=1, bytes_rewritten=500, positions=14, equalities=2, came_back=True)


def test_the_clustering_comes_from_the_policy() -> None:
    data = [file("a", 1, 0, 9)]
    by_id = summary_of(metadata({}), data, settings=policy(strategy="sort", sort_order="id, sku").policy)
    assert (by_id.clustered_by, [c.name for c in by_id.columns]) == (("id",), ["id"])
    curve = summary_of(metadata({}), data, settings=policy(strategy="zorder", sort_order="id,sku").policy)
    assert curve.clustered_by == ("id", "sku")
    wrong = summary_of(metadata({}), data, settings=policy(strategy="sort", sort_order="gone").policy)
    assert wrong.clustered_by == ()
    empty = summary_of(metadata())
    assert (empty.files, empty.partitions, empty.deletes) == (0, (), DeleteFacts())
