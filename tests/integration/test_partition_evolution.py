"""Tables whose partitioning or partition columns have changed, or whose partition values are unusual."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestampType

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.types import decode, encode
from icekeeper.operations.compaction.terms.output_names import civil_date, partition_path
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, equality_delete
from support.java_writer import BY_REGION, JavaTable, JavaTables
from support.maintained_table import (
    MaintainedTable,
    compacted,
    maintained_table,
    new_table,
    outcome_of,
    registered_table,
)
from support.readers import duckdb_rows, pyiceberg_rows
from support.v3 import delete_positions, file_of, lineage, upgrade

# After partition evolution: small files of old specs merge into partitions of the current spec, and never multiply.

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), NestedField(3, "day", DateType())
)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as table:
        table.pyiceberg.create_namespace("ns")
        yield table


def append(table: MaintainedTable, first: int, region: str | list[str], day: int = 0) -> None:
    """Append ten rows in a single file, or in a file per partition of the current spec."""
    regions = [region] * 10 if isinstance(region, str) else region
    ids = range(first, first + len(regions))
    days = pa.array([day] * len(regions), pa.int32()).cast(pa.date32())
    table.table.append(pa.table({"id": pa.array(ids, pa.int64()), "region": regions, "day": days}))


def rows(table: MaintainedTable) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in duckdb_rows(table.loaded.metadata_location))


def files(table: MaintainedTable) -> Counter[tuple[int, tuple[Any, ...]]]:
    """Live data files by spec and partition, as PyIceberg sees them."""
    tasks = StaticTable.from_metadata(table.loaded.metadata_location).scan().plan_files()
    return Counter((t.file.spec_id, tuple(t.file.partition[i] for i in range(len(t.file.partition)))) for t in tasks)


def test_small_files_of_an_old_spec_merge_with_files_of_the_new_spec(made: MaintainedTable) -> None:
    """Unpartitioned files of a single region move to its partition; a single mixed file keeps its spec."""
    made.pyiceberg.create_table("ns.t", SCHEMA, properties={"format-version": "2"})
    for number in range(3):
        append(made, number * 100, "us")
        append(made, number * 100 + 50, "eu")
    append(made, 900, ["us", "eu"])
    with made.table.update_spec() as update:
        update.add_identity("region")
    append(made, 1000, "us")
    before = rows(made)
    outcome = compacted(made)
    assert outcome.summary == "compacted 7 files into 2 (across 2 bins)"
    assert files(made) == {(1, ("us",)): 1, (1, ("eu",)): 1, (0, ()): 1}
    assert rows(made) == before
    assert made.runtime.verify(made.loaded.name).ok
    assert compacted(made).status is Status.SKIPPED


@pytest.mark.parametrize("reason", ["asked to keep", "live equality deletes"])
def test_files_keep_their_spec(made: MaintainedTable, reason: str) -> None:
    """On request, and while a writer may still write equality deletes under the old spec
    (rule: rows-stay-in-reach-of-deletes)."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    made.pyiceberg.create_table("ns.t", SCHEMA, partition_spec=spec, properties={"format-version": "2"})
    for number in range(2):
        append(made, number * 100, "us")
        append(made, number * 100 + 50, "eu")
    if reason == "live equality deletes":
        commit_deletes(made, [equality_delete(3, "us")])
    with made.table.update_spec() as update:
        update.remove_field("region")
    before = rows(made)
    overrides = {"output_spec": "keep"} if reason == "asked to keep" else {}
    assert compacted(made, **overrides).summary == "compacted 4 files into 2 (across 2 bins)"
    assert files(made) == {(0, ("us",)): 1, (0, ("eu",)): 1}
    assert rows(made) == before


@pytest.mark.parametrize("version", [2, 3])
def test_mixed_files_are_divided_by_partition_if_that_makes_fewer_files(made: MaintainedTable, version: int) -> None:
    """Six files of three regions each, one of them null, become a file per region; rows, values and layout agree.

    Rows that have ids keep them.
    """
    made.pyiceberg.create_table("ns.t", SCHEMA, properties={"format-version": "2"})
    for number in range(6):
        regions = ["us", "eu", None, "us", "eu", "us"] if number % 2 else ["eu", "us", None]
        days = pa.array([number] * len(regions), pa.int32()).cast(pa.date32())
        ids = pa.array(range(number * 10, number * 10 + len(regions)), pa.int64())
        made.table.append(pa.table({"id": ids, "region": pa.array(regions, pa.string()), "day": days}))
    with made.table.update_spec() as update:
        update.add_identity("region")
    if version == 3:
        upgrade(made)
        delete_positions(made, {file_of(made, 0): [1]})
    before, ids = rows(made), lineage(made)
    outcome = compacted(made, proof="full")
    assert outcome.summary == "compacted 6 files into 3 (across 1 bins)"
    assert files(made) == {(1, ("us",)): 1, (1, ("eu",)): 1, (1, (None,)): 1}
    assert (rows(made), lineage(made)) == (before, ids)
    tasks = StaticTable.from_metadata(made.loaded.metadata_location).scan("region = 'us'").plan_files()
    assert ["/data/region=us/" in task.file.file_path for task in tasks] == [True]
    assert made.runtime.verify(made.loaded.name).ok
    assert compacted(made).status is Status.SKIPPED


def test_rows_are_not_divided_into_more_files(made: MaintainedTable) -> None:
    """Three files of three regions each: there are as many partitions as files, so they merge in their own spec."""
    made.pyiceberg.create_table("ns.t", SCHEMA, properties={"format-version": "2"})
    for number in range(3):
        append(made, number * 10, ["us", "eu", "cn"])
    with made.table.update_spec() as update:
        update.add_identity("region")
    before = rows(made)
    assert compacted(made).summary == "compacted 3 files into 1 (across 1 bins)"
    assert files(made) == {(0, ()): 1}
    assert rows(made) == before


def test_a_newer_equality_delete_drops_a_group_that_changes_its_spec(made: MaintainedTable) -> None:
    """The delete is committed during the rewrite, under a partition of the new spec."""
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "day"))
    made.pyiceberg.create_table("ns.t", SCHEMA, partition_spec=spec, properties={"format-version": "2"})
    for number in range(4):
        append(made, number * 10, ["us", "eu"])
    with made.table.update_spec() as update:
        update.remove_field("day")
        update.add_identity("region")
    made.engine.during = lambda: commit_deletes(made, [equality_delete(1, "us")], spec_id=1)
    outcome = compacted(made)
    assert outcome.status is Status.FAILED
    assert "a partition that rows were moved out of or into" in (outcome.reason or "")
    head = made.loaded.metadata.current_snapshot
    assert head is not None
    assert head.operation == "delete"
    assert {m.partition_spec_id for m in made.reader.manifests(head)} == {0, 1}


# Dates outside of Python's range: a year with five digits is a common mistake of writers.

DATES = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestampType()))
DAY = 6_672_980
"""20240-01-01."""


def test_dates_of_any_year_are_partition_values() -> None:
    cycle = 146_097
    for days in (0, -1, 59, 11_016, 19_782):
        date = datetime.date(1970, 1, 1) + datetime.timedelta(days)
        for cycles in (-30, 0, 45):
            assert civil_date(days + cycles * cycle) == (date.year + 400 * cycles, date.month, date.day)
    assert civil_date(DAY) == (20240, 1, 1)


@pytest.mark.parametrize(
    ("transform", "value", "path"), [("month", 18270 * 12, "p=20240-01"), ("hour", DAY * 24 + 7, "p=20240-01-01-07")]
)
def test_old_files_move_to_partitions_of_far_years(transform: str, value: int, path: str, tmp_path: Path) -> None:
    with maintained_table(tmp_path) as made:
        made.pyiceberg.create_namespace("ns")
        # PyIceberg cannot write bounds of such dates.
        properties = {"format-version": "2", "write.metadata.metrics.default": "none"}
        table = made.pyiceberg.create_table("ns.t", DATES, properties=properties)
        moment = (DAY * 24 + 7) * 3600 * 10**6
        rows = pa.table({"id": [1, 2], "at": pa.array([moment] * 2, pa.int64()).cast(pa.timestamp("us"))})
        table.append(rows)
        table.append(rows)
        with made.table.update_spec() as update:
            update.add_field("at", transform, "p")
        outcome = outcome_of(made.maintain(operations="compact"), Operation.COMPACT)
        assert outcome.status is Status.SUCCEEDED, outcome
        tasks = list(StaticTable.from_metadata(made.loaded.metadata_location).scan().plan_files())
        assert Counter((t.file.partition[0], t.file.record_count) for t in tasks) == {(value, 4): 1}
        assert f"/{path}/" in tasks[0].file.file_path
        spec = made.loaded.metadata.specs[1]
        assert partition_path(spec, (value,), made.loaded.metadata.schemas_current_first) == path


# In format v3 a partition field may have several columns; its values are not specified, so no file moves.

TWO_COLUMNS = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))

PROPERTIES = {"format-version": "2", "write.metadata.metrics.default": "counts"}
"""Columns that the table is sorted by have bounds all the same."""


@pytest.fixture
def empty_table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as table:
        yield table


def created(empty_table: MaintainedTable, transform: str, sources: list[int]) -> None:
    """Create three files, partitioned by the second column; then set these sources and a sort order in the metadata."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    empty_table.create(TWO_COLUMNS, partition_spec=spec, properties=PROPERTIES)
    empty_table.fill(3)

    def rename(document: dict[str, Any]) -> None:
        for spec in document["partition-specs"]:
            for field in spec["fields"]:
                del field["source-id"]
                field.update({"source-ids": sources, "transform": transform})
        ordered = {"transform": "identity", "source-ids": [2], "direction": "asc", "null-order": "nulls-first"}
        document.update({"sort-orders": [{"order-id": 1, "fields": [ordered]}], "default-sort-order-id": 1})

    empty_table.rewrite_document(rename)


def test_a_table_partitioned_by_several_columns_at_once_is_left_alone(empty_table: MaintainedTable) -> None:
    """Its partition field counts as an unknown transform."""
    created(empty_table, "truncate[3]", [1, 2])
    before = empty_table.live_files()
    outcome = empty_table.maintain(rewrite_all="true")
    for operation in (Operation.COMPACT, Operation.REWRITE_MANIFESTS):
        part = outcome_of(outcome, operation)
        assert part.status is Status.REFUSED, part
        assert "partition transform multi-argument truncate[3] is unknown" in part.summary
    assert outcome_of(outcome, Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    assert empty_table.live_files() == before


def test_a_list_of_a_single_column_equals_that_column(empty_table: MaintainedTable) -> None:
    created(empty_table, "identity", [2])
    outcome = empty_table.run(Operation.COMPACT, strategy="binpack")
    assert outcome.status is Status.SUCCEEDED, outcome
    (file,) = empty_table.data_files()
    assert file.lower_bounds
    assert set(file.lower_bounds) == {2}


# Columns with an identity partition whose type was promoted
# (rule: promoted-values-keep-old-width).

DAY_US = 86_400_000_000
TODAY = datetime.datetime.now(datetime.UTC).date()


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A file of today and a file of a month ago, in partitions of a date that was promoted to a timestamp."""
    columns = pa.schema([("id", pa.int64()), ("part", pa.date32())])
    table = new_table(local_catalog, tmp_path, schema=columns)
    with table.table.update_spec() as update:
        update.add_identity("part")
    for row_id, age in enumerate((0, 0, 30)):
        day = TODAY - datetime.timedelta(days=age)
        table.table.append(pa.table({"id": [row_id], "part": [day]}, schema=columns))
    table.rewrite_document(_promote)
    return table


def _promote(document: dict[str, Any]) -> None:
    (old,) = document["schemas"]
    new = json.loads(json.dumps(old)) | {"schema-id": 1}
    new["fields"][1]["type"] = "timestamp"
    document["schemas"] = [old, new]
    document["current-schema-id"] = 1


def test_a_promoted_partition_value_keeps_its_day(table: MaintainedTable) -> None:
    """Read as microseconds, every day would be in January 1970, past any retention."""
    days = (TODAY - datetime.date(1970, 1, 1)).days
    assert partition_types(table.metadata, table.metadata.default_spec_id) == ["timestamp"]
    assert sorted(file.partition for file in table.data_files()) == sorted(
        (d * DAY_US,) for d in (days, days, days - 30)
    )
    outcome = table.run(Operation.EXPIRE_PARTITIONS, partition_retention_hours="240")
    assert outcome.status is Status.SUCCEEDED, outcome.reason
    assert sorted(file.partition for file in table.data_files()) == [(days * DAY_US,)] * 2
    # The remaining file was rewritten under the new type.
    assert table.run(Operation.REWRITE_MANIFESTS, min_manifests_to_rewrite="2").status is Status.SUCCEEDED
    assert sorted(file.partition for file in table.data_files()) == [(days * DAY_US,)] * 2
    table.assert_sound()


@pytest.mark.parametrize(("kind", "units"), [("timestamp", 10**6), ("timestamptz_ns", 10**9)])
def test_an_old_bound_keeps_its_day(kind: str, units: int) -> None:
    """Bounds of columns and of partitions in a manifest list keep their four bytes
    (rule: promoted-values-keep-old-width)."""
    assert decode(kind, encode("date", -3)) == -3 * 86_400 * units
    assert decode(kind, encode(kind, -3)) == -3


# Columns that differ from the identity partition of their file.  Iceberg-Java shows the partition's value, DuckDB the
# column's (platform: readers-disagree-on-identity); after a move all readers would show the column's value.

ID_REGION_AND_DAY = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "region", "type": "string", "required": False},
        {"id": 3, "name": "day", "type": "int", "required": False},
    ],
}
UNLIKE: list[list[str | None]] = [[None, None], ["old", "old"], ["us", None]]
"""The regions of files that are in the partition ``us``."""
NO_METRICS = {"write.metadata.metrics.default": "none"}


class InUs:
    """A table partitioned by region with all files in partition ``us``, written and read by Iceberg-Java."""

    def __init__(self, java_tables: JavaTables, folder: Path, **properties: str) -> None:
        self.java = java_tables.create(
            ID_REGION_AND_DAY, BY_REGION, {"format-version": "2", **properties}, folder / "table"
        )
        self._folder, self._rows = folder, 0

    def add(self, *files: list[str | None]) -> None:
        """Add files with these regions in their rows, each of another day."""
        for regions in files:
            first, self._rows = self._rows, self._rows + len(regions)
            rows = [{"1": first + n, "2": region, "3": n} for n, region in enumerate(regions)]
            self.java.append([self.java.data_file(rows, 0, ["us"], "parquet")])

    def given_up(self, change: Callable[[Any], Any] = lambda update: update) -> MaintainedTable:
        """The table for our passes, after the region has left the spec."""
        self.java.repartition(lambda update: change(update.removeField("region")))
        return registered_table(self.java.metadata_location, self._folder)

    def seen(self, table: MaintainedTable) -> tuple[Counter[tuple[int, str | None]], Counter[tuple[int, str | None]]]:
        """Ids and regions that Iceberg-Java and DuckDB read."""
        self.java.take_over(table.metadata_location)
        by_java = Counter((row["1"], row["2"]) for row in self.java.rows())
        return by_java, Counter((row["id"], row["region"]) for row in duckdb_rows(table.metadata_location))


def test_readers_show_the_partition_or_the_column(java_tables: JavaTables, tmp_path: Path) -> None:
    made = InUs(java_tables, tmp_path)
    made.add(*UNLIKE)
    columns = [None, None, "old", "old", "us", None]
    assert [row["2"] for row in made.java.rows()] == ["us"] * 6
    for read in (duckdb_rows, pyiceberg_rows):
        assert [
            row["region"] for row in sorted(read(made.java.metadata_location), key=lambda row: row["id"])
        ] == columns


def test_files_that_differ_from_their_partition_keep_their_spec(java_tables: JavaTables, tmp_path: Path) -> None:
    """Their metrics show the difference; the other files of the partition move, and readers see no change
    (rule: leave-identity-only-with-equal-values)."""
    made = InUs(java_tables, tmp_path)
    made.add(*UNLIKE, ["us", "us"], ["us", "us"])
    table = made.given_up()
    before = made.seen(table)
    unlike = {file.file_path for file in table.data_files()[:3]}
    would = table.run(Operation.COMPACT, dry_run=True)
    outcome = table.run(Operation.COMPACT)
    assert would.summary == f"would compact{outcome.summary.removeprefix('compacted')}"
    start, _, rest = outcome.summary.partition("file:")
    assert start == "compacted 5 files into 2 (across 2 bins); 3 files stay in an old spec: "
    path, _, why = f"file:{rest}".partition(", ")
    assert path in unlike
    assert why == "whose columns differ from its partition, so readers disagree"
    assert files(table) == {(0, ("us",)): 1, (1, ()): 1}
    assert made.seen(table) == before
    assert table.run(Operation.COMPACT).status is Status.SKIPPED


@pytest.mark.parametrize("settings", [{}, {"strategy": "sort", "sort_order": "id"}, {"min_row_group_copy_bytes": "1"}])
def test_files_found_to_differ_from_their_partition_are_recorded(
    settings: dict[str, str], java_tables: JavaTables, tmp_path: Path
) -> None:
    """Without metrics only their rows show the difference; for a week no pass reads them again."""
    made = InUs(java_tables, tmp_path, **NO_METRICS)
    made.add(*UNLIKE, ["us", "us"], ["us", "us"])
    table = made.given_up()
    before = made.seen(table)
    outcome = table.run(Operation.COMPACT, **settings)
    assert outcome.status is Status.SUCCEEDED, outcome
    found = "was left alone, because its column region differs from its identity partition, so readers disagree"
    assert "left 3 file(s) out: file:" in outcome.summary
    assert outcome.summary.endswith(found)
    assert files(table) == {(0, ("us",)): 3, (1, ()): 1}
    assert made.seen(table) == before
    again = table.run(Operation.COMPACT, **settings)
    assert (again.status, again.metrics.get("compact.bins_failed", 0)) == (Status.SKIPPED, 0)
    assert "3 file(s) stay unchanged: " in (again.reason or "")


def test_rows_that_differ_from_their_partition_are_not_divided(java_tables: JavaTables, tmp_path: Path) -> None:
    """Divided by day they would become fewer files, but they are merged in their own spec."""
    made = InUs(java_tables, tmp_path)
    for _ in range(3):
        made.add(["old", "us"])
    expressions = java_tables.jvm.org.apache.iceberg.expressions.Expressions
    table = made.given_up(lambda update: update.addField(expressions.truncate("day", 1)))
    before = made.seen(table)
    outcome = table.run(Operation.COMPACT)
    assert outcome.summary.startswith("compacted 3 files into 1 (across 1 bins)")
    assert files(table) == {(0, ("us",)): 1}
    assert made.seen(table) == before


@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REWRITE_POSITION_DELETES])
def test_equality_deletes_by_a_column_that_differs_from_its_partition_are_not_applied(
    operation: Operation, java_tables: JavaTables, tmp_path: Path
) -> None:
    """Java compares keys with the partition's value: it deletes row 0 and keeps row 1.  DuckDB does the
    opposite."""
    made = InUs(java_tables, tmp_path)
    made.add(["old", "old"], ["us", "us"], ["us", "us"])
    keys = [{"1": 0, "2": "us"}, {"1": 1, "2": "old"}, {"1": 2, "2": "us"}]
    made.java.row_delta(deletes=[made.java.equality_deletes(keys, [1, 2], 0, ["us"], "parquet")])
    table = registered_table(made.java.metadata_location, tmp_path)
    before = made.seen(table)
    assert [sorted(row_id for row_id, _ in rows) for rows in before] == [[1, 3, 4, 5], [0, 3, 4, 5]]
    outcome = table.run(operation, convert_equality_deletes="true")
    assert "left 1 file(s) out: " in outcome.summary, outcome
    assert made.seen(table) == before
    assert table.live_deletes()["EQUALITY_DELETES"] == 1


def test_files_without_the_column_move_with_the_value_of_their_partition(
    java_tables: JavaTables, tmp_path: Path
) -> None:
    """Migrated tables have such files (specification, "Column Projection")."""
    made = InUs(java_tables, tmp_path)
    for number in range(2):
        path = tmp_path / f"migrated-{number}.parquet"
        field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
        pq.write_table(pa.table([pa.array([number])], schema=pa.schema([field])), path)
        file = made.java.iceberg.DataFiles.builder(made.java.table.spec()).withPath(path.as_uri())
        file = file.withFormat("parquet").withPartitionPath("region=us").withFileSizeInBytes(path.stat().st_size)
        made.java.append([file.withRecordCount(1).build()])
    table = made.given_up()
    before = made.seen(table)
    assert before == (Counter({(0, "us"): 1, (1, "us"): 1}),) * 2
    assert Counter(row["region"] for row in pyiceberg_rows(table.metadata_location)) == {"us": 2}
    assert table.run(Operation.COMPACT).summary == "compacted 2 files into 1 (across 1 bins)"
    assert files(table) == {(1, ()): 1}
    assert made.seen(table) == before


@pytest.mark.parametrize("region", ["us", "old"])
def test_row_groups_are_copied_from_an_identity_partition_only_if_footers_agree(
    region: str, java_tables: JavaTables, tmp_path: Path
) -> None:
    made = InUs(java_tables, tmp_path, **NO_METRICS)
    made.add([region] * 40, [region] * 40)
    table = made.given_up()
    before = made.seen(table)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="100", proof="full")
    is_like = region == "us"
    assert (outcome.metrics["compact.bytes_copied"] > 0) is is_like
    assert files(table) == ({(1, ()): 1} if is_like else {(0, ("us",)): 2})
    assert made.seen(table) == before


# Iceberg-Java writes partition values of fixed bytes with their length, which is not Avro, and expects it when it reads
# (platform: java-misreads-fixed-partitions).

ID_AND_FIXED = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "c", "type": "fixed[3]", "required": False},
    ],
}
BY_FIXED = [{"name": "c", "transform": "identity", "source-id": 2, "field-id": 1000}]
FIXED = [None, None, None, b"abc", b"abc", b"abc", b"xyz", b"xyz", b"xyz"]


def nine_rows(java_tables: JavaTables, folder: Path, fields: list[dict[str, Any]]) -> JavaTable:
    """Nine files of a single row, some with nulls, by Iceberg-Java."""
    spec = {"spec-id": 0, "fields": fields}
    java = java_tables.create(ID_AND_FIXED, spec, {"format-version": "2"}, folder / "table")
    rows = [{"1": number, "2": value} for number, value in enumerate(FIXED)]
    java.append([java.data_file([row], 0, row, "parquet") for row in rows])
    return java


def fixed_rows(java: JavaTable) -> list[Any]:
    return [row["2"] for row in sorted(java.rows(), key=lambda row: row["1"])]


def test_only_java_reads_its_own_partitions_by_fixed_bytes(java_tables: JavaTables, tmp_path: Path) -> None:
    java = nine_rows(java_tables, tmp_path, BY_FIXED)
    assert fixed_rows(java) == FIXED
    assert [row["c"] for row in duckdb_rows(java.metadata_location)] != FIXED
    table = registered_table(java.metadata_location, tmp_path)
    before = table.files()
    for outcome in table.maintain().operations:
        assert outcome.status in (Status.SKIPPED, Status.REFUSED, Status.FAILED), outcome
    assert table.files() == before
    with pytest.raises(MetadataUnreadable, match="damaged or truncated"):
        table.entries()


def test_no_file_moves_to_a_partition_by_fixed_bytes(java_tables: JavaTables, tmp_path: Path) -> None:
    """Java could not read the table with the value as the specification encodes it."""
    java = nine_rows(java_tables, tmp_path, [])
    java.repartition(lambda update: update.addField("c"))
    table = registered_table(java.metadata_location, tmp_path)
    outcome = table.run(Operation.COMPACT)
    start, _, rest = outcome.summary.partition("file:")
    assert start == "compacted 9 files into 1 (across 1 bins); 9 files stay in an old spec: "
    assert rest.endswith(", because Iceberg-Java cannot read partitions by the fixed bytes of c")
    assert files(table) == {(0, ()): 1}
    java.take_over(table.metadata_location)
    assert fixed_rows(java) == FIXED
    assert Counter(row["c"] for row in duckdb_rows(table.metadata_location)) == Counter(FIXED)
    assert table.run(Operation.COMPACT).status is Status.SKIPPED
