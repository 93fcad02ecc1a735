"""The numbers that advice goes by, summed up from a document and live entries."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from icekeeper.advice.advise import MB, ColumnFacts, DeleteFacts, PartitionField, PartitionTotals, TableSummary
from icekeeper.advice.read_tables import summarise
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import FileContent, LiveEntry
from icekeeper.policy import Policy
from support.plans import data_file, live_file
from support.settings import NOW_MS, policy
from support.tables import new_document

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


def of(
    table: TableMetadata,
    data: Sequence[LiveEntry] = (),
    deletes: Sequence[LiveEntry] = (),
    settings: Policy | None = None,
) -> TableSummary:
    head = table.current_snapshot
    return summarise("ns.t", table, head, settings or Policy(), deletes=lambda: deletes, data=lambda: data)


def test_partitions_are_those_of_the_current_spec_without_void_fields() -> None:
    older = live_file(data_file("o", 7 * MB, [], records=5, file_format="avro"), spec_id=0)
    found = of(metadata({}), [file("a", 1, 0, 9), file("b", 1, 0, 9), file("c", 2, 0, 9), older])
    assert found.fields == (PartitionField("day", "day", "date", "identity"),)
    assert found.partitions == (PartitionTotals((1,), 2, 20 * MB), PartitionTotals((2,), 1, 10 * MB))
    assert (found.files, found.size, found.records) == (4, 37 * MB, 305)
    assert found.bytes_by_format == {"PARQUET": 30 * MB, "AVRO": 7 * MB}
    assert found.files_per_partition == (2 * 20 + 10) / 30


def test_keys_are_identifier_fields_and_those_of_equality_deletes() -> None:
    data = [file("a", 1, 0, 9), file("b", 1, 5, 9), file("c", 2, 0, 9)]
    assert of(metadata({}), data).columns == ()
    (identified,) = of(metadata({}, schema={"identifier-field-ids": [1]}), data).columns
    assert (identified.name, identified.is_key) == ("id", True)
    assert identified.depth is not None
    assert (identified.depth.deepest, identified.depth.files) == (2, 3)
    delete = replace(data_file("d", 1), content=FileContent.EQUALITY_DELETES, equality_ids=(2,))
    (deleted,) = of(metadata({}), data, [live_file(delete)]).columns
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


def test_columns_of_many_values_are_measured_by_the_newest_sketch() -> None:
    statistics = [sketch(1, 2, 5_000_000), sketch(2, 2, 150_000)]
    data = [file("a", 1, 0, 9, column_sizes={2: 1000}, value_counts={2: 100})]
    properties = {"write.parquet.bloom-filter-enabled.column.sku": "true"}
    found = of(metadata({}, {}, statistics=statistics, properties=properties), data)
    (column,) = found.columns
    assert column == ColumnFacts(
        name="sku", type="string", depth=column.depth, distinct=150_000, value_bytes=10.0, has_bloom_filter=True
    )
    assert of(metadata({}, {}, statistics=[sketch(2, 2, 99_999)]), data).columns == ()


def test_statistics_grow_old_by_the_rows_that_came_and_went() -> None:
    changes: list[dict[str, str]] = [
        {},
        {"added-records": "10", "deleted-records": "5"},
        {"added-records": "5", "total-records": "100"},
    ]
    assert of(metadata(*changes, statistics=[sketch(1, 2, 9)])).statistics.changed_share == 0.2
    rewritten = {"operation": "replace", "added-records": "90", "deleted-records": "90", "total-records": "100"}
    kept = of(metadata({}, rewritten, statistics=[sketch(1, 2, 9)])).statistics
    assert (kept.exist, kept.changed_share) == (True, 0.0)
    assert not of(metadata(*changes)).statistics.exist


def test_deletes_that_came_back_after_a_pass_of_ours() -> None:
    deleting = {"operation": "overwrite", "added-delete-files": "1", "added-position-deletes": "7"}
    ours = {
        "operation": "replace",
        "icekeeper.run-id": "r",
        "removed-delete-files": "1",
        "removed-files-size": "500",
    }
    assert of(metadata(deleting, ours)).deletes == DeleteFacts(commits=1, passes=1, bytes_rewritten=500, positions=7)
    back = of(metadata(deleting, ours, {}, {**deleting, "added-equality-deletes": "2"})).deletes
    assert back == DeleteFacts(commits=2, passes=1, bytes_rewritten=500, positions=14, equalities=2, came_back=True)


def test_the_clustering_is_that_of_the_policy() -> None:
    data = [file("a", 1, 0, 9)]
    by_id = of(metadata({}), data, settings=policy(strategy="sort", sort_order="id, sku").policy)
    assert (by_id.clustered_by, [c.name for c in by_id.columns]) == (("id",), ["id"])
    curve = of(metadata({}), data, settings=policy(strategy="zorder", zorder_columns="id,sku").policy)
    assert curve.clustered_by == ("id", "sku")
    wrong = of(metadata({}), data, settings=policy(strategy="sort", sort_order="gone").policy)
    assert wrong.clustered_by == ()


def test_a_table_without_a_snapshot_is_empty() -> None:
    empty = of(metadata())
    assert (empty.files, empty.partitions, empty.deletes) == (0, (), DeleteFacts())
