"""Advice on the order of rows, bloom filters, deletes and upkeep: each rule on both sides of its thresholds."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from icekeeper.advice.advise import (
    GB,
    MB,
    Advice,
    DeleteFacts,
    PartitionTotals,
    StatisticsFacts,
    TableSummary,
    bloom_advice,
    delete_advice,
    format_advice,
    metadata_advice,
    sort_advice,
    statistics_advice,
)
from support.advised import column, one, summary

# -- order of rows


def test_keys_whose_lookups_open_many_files_are_worth_sorting_by() -> None:
    assert one(sort_advice, columns=(column(7.9, is_key=True),)) is None
    assert one(sort_advice, columns=(column(40.0),)) is None  # nothing tells that anyone looks it up
    found = one(sort_advice, columns=(column(8.0, is_key=True),))
    assert found is not None
    assert (found.kind, found.statement) == ("sort_order", "ALTER TABLE ns.t WRITE ORDERED BY id")
    assert one(sort_advice, columns=(column(8.0, is_key=True),), clustered_by=("other",)) is None
    two = one(sort_advice, columns=(column(8.0, is_key=True), column(9.0, is_key=True, name="sku")))
    assert two is not None
    assert (two.kind, two.statement) == (
        "z_order",
        "icekeeper policy set ns.t strategy=zorder zorder_columns=sku,id",
    )


def test_a_sorted_table_that_is_deeper_than_passes_leave_it() -> None:
    assert one(sort_advice, columns=(column(12.0),), clustered_by=("id",)) is None
    found = one(sort_advice, columns=(column(12.1),), clustered_by=("id",))
    assert found is not None
    assert (found.kind, found.statement) == ("worn_clustering", "icekeeper maintain ns.t --operations compact")
    assert one(sort_advice, columns=(column(99.0),), clustered_by=("id", "sku")) is None


def test_bloom_filters_for_many_values_that_bounds_do_not_divide() -> None:
    eight = (PartitionTotals((), 8, GB),)

    def of(point: float = 8.0, records: int = 1_000_000, files: int = 8, **facts: Any) -> Advice | None:
        totals = (replace(eight[0], files=files),)
        known = column(point, **({"type": "uuid", "distinct": 100_000} | facts))
        return one(bloom_advice, columns=(known,), partitions=totals, records=records)

    found = of()
    assert found is not None
    assert found.statement == (
        "ALTER TABLE ns.t SET TBLPROPERTIES ('write.parquet.bloom-filter-enabled.column.id'='true')"
    )
    assert of(point=7.2) is not None
    assert of(point=7.1) is None
    assert of(distinct=99_999) is None
    assert of(records=1_000_001) is None
    assert of(files=7, point=7.0) is None
    assert of(value_bytes=64.0) is not None
    assert of(value_bytes=64.1) is None
    assert of(type="double") is None
    assert of(has_bloom_filter=True) is None
    assert of(distinct=None) is None
    assert of(depth=None) is None


# -- upkeep


def deletes(**facts: Any) -> DeleteFacts:
    known: dict[str, Any] = {"commits": 7, "passes": 3, "positions": 50, "bytes_rewritten": GB, "came_back": True}
    return DeleteFacts(**(known | facts))


def test_deletes_that_return_after_every_pass() -> None:
    many = one(delete_advice, deletes=deletes())
    assert many is not None
    assert (many.kind, many.statement) == (
        "deletion_vectors",
        "ALTER TABLE ns.t SET TBLPROPERTIES ('format-version'='3')",
    )
    rare = one(delete_advice, deletes=deletes(commits=6))
    assert rare is not None
    assert rare.kind == "copy_on_write"
    assert "'write.merge.mode'='copy-on-write'" in rare.statement
    assert one(delete_advice, deletes=deletes(passes=2)) is None
    assert one(delete_advice, deletes=deletes(came_back=False)) is None
    assert one(delete_advice, deletes=deletes(equalities=1)) is None  # no setting of the table changes how Flink writes
    assert one(delete_advice, deletes=deletes(positions=0)) is None
    assert list(delete_advice(replace(summary(deletes=deletes()), format_version=3))) == []


def test_metadata_logs_that_leave_files_behind_or_are_too_long() -> None:
    assert one(metadata_advice, metadata_log=99) is None
    full = one(metadata_advice, metadata_log=100)
    assert full is not None
    assert "'write.metadata.delete-after-commit.enabled'='true'" in full.statement
    assert one(metadata_advice, metadata_log=100, drops_old_metadata=True) is None
    assert one(metadata_advice, metadata_log=500, metadata_log_limit=1000) is None
    long = one(metadata_advice, metadata_log=501, metadata_log_limit=1000)
    assert long is not None
    assert "'write.metadata.previous-versions-max'='100'" in long.statement


def test_statistics_that_are_missing_or_stale() -> None:
    none = StatisticsFacts()
    missing = one(statistics_advice, records=1_000_000, statistics=none)
    assert missing is not None
    assert missing.statement == "icekeeper maintain ns.t --operations compute_statistics"
    assert one(statistics_advice, records=999_999, statistics=none) is None
    assert one(statistics_advice, records=10**7, statistics=StatisticsFacts(True, 0.19)) is None
    stale = one(statistics_advice, records=10**7, statistics=StatisticsFacts(True, 0.2))
    assert stale is not None
    assert "20 % of its rows changed" in stale.message


def test_formats_worth_an_upgrade() -> None:
    assert list(format_advice(replace(summary(files=0), format_version=1))) == []
    (version,) = format_advice(replace(summary(files=1), format_version=1))
    assert version.statement == "ALTER TABLE ns.t SET TBLPROPERTIES ('format-version'='2')"
    assert one(format_advice, files=1) is None
    half = {"AVRO": 128 * MB, "PARQUET": 128 * MB}
    found = one(format_advice, files=2, size=256 * MB, bytes_by_format=half)
    assert found is not None
    assert found.kind == "file_format"
    assert one(format_advice, files=2, size=257 * MB, bytes_by_format=half) is None
    assert one(format_advice, files=2, size=255 * MB, bytes_by_format={"AVRO": 255 * MB}) is None


def test_a_command_that_is_to_be_pasted_runs_nothing_else() -> None:
    """Names are chosen by whoever may write the table."""
    name, key = "ns.t;touch /tmp/x", "$(id)"
    keys = (column(9.0, name=key, is_key=True), column(9.0, name="id", is_key=True))
    no_statistics = StatisticsFacts(exist=False)
    tables = {
        "z_order": replace(summary(columns=keys), table=name),
        "worn_clustering": replace(summary(columns=(column(99.0, name=key),), clustered_by=(key,)), table=name),
        "statistics": replace(summary(records=10**7, statistics=no_statistics), table=name),
    }
    found = {kind: shlex.split(_advised(kind, table)) for kind, table in tables.items()}
    assert found == {
        "z_order": ["icekeeper", "policy", "set", name, "strategy=zorder", f"zorder_columns={key},id"],
        "worn_clustering": ["icekeeper", "maintain", name, "--operations", "compact"],
        "statistics": ["icekeeper", "maintain", name, "--operations", "compute_statistics"],
    }


def _advised(kind: str, table: TableSummary) -> str:
    (found,) = [one.statement for one in (*sort_advice(table), *statistics_advice(table)) if one.kind == kind]
    return found
