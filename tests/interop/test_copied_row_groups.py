"""Row groups that Iceberg-Java wrote are copied; parquet-mr and Iceberg-Java read the copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from icekeeper.commit.snapshot import FileReplacement, SnapshotWriter
from icekeeper.metadata.document_files import parse_document
from icekeeper.model import DataFile
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, copyable_part, merge_files
from icekeeper.storage.storage import Storage
from support.copied import STORAGE, copied, footer_of, mixed_fields, parquet_file, target_of
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.maintained_table import MaintainedTable, local_path, registered_table
from support.readers import canonical, duckdb_rows
from support.v3 import live

# Row groups that Iceberg-Java wrote are copied; parquet-mr reads the copy, also by page indexes and Bloom filters.

DDL = """
CREATE TABLE {table} (
    id BIGINT NOT NULL, text STRING, ratio DOUBLE, price DECIMAL(12, 2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ,
    raw BINARY, flag BOOLEAN, tags ARRAY<STRING>, sizes MAP<STRING, INT>, point STRUCT<x: INT, y: FLOAT>)
USING iceberg TBLPROPERTIES (
    'format-version' = '2', 'write.parquet.compression-codec' = 'zstd', 'write.parquet.page-row-limit' = '100',
    'write.parquet.row-group-size-bytes' = '4096', 'write.parquet.row-group-check-min-record-count' = '100',
    'write.parquet.row-group-check-max-record-count' = '100', 'write.parquet.bloom-filter-enabled.column.text' = 'true',
    'write.parquet.bloom-filter-max-bytes' = '1024')
"""
ROWS = """
INSERT INTO {{table}} SELECT id, IF(id % 5 = 0, NULL, concat('text ', id)), id / 3D, CAST(id AS DECIMAL(12, 2)),
    date_add(DATE'2024-01-01', CAST(id AS INT)), timestamp_seconds(id), timestamp_ntz'2024-01-01 00:00:00',
    CAST(concat('r', id) AS BINARY), id % 2 = 0, transform(sequence(0, id % 3), x -> concat('t', x)),
    map('k', CAST(id AS INT)), named_struct('x', CAST(id AS INT), 'y', CAST(id AS FLOAT)) FROM range({}, {}, 1, 1)
"""
# Page indexes and Bloom filters exclude most rows.
FILTERS: dict[str, Callable[[Any], bool]] = {
    "id = 731 OR point.x = 17": lambda row: row.id == 731 or row.point.x == 17,
    "text = 'text 203'": lambda row: row.text == "text 203",
}


def ordinals(path: Path | str) -> list[int | None]:
    return [group.ordinal for group in footer_of(path).row_groups]


def test_parquet_mr_reads_the_rows_of_a_copy(iceberg_java: IcebergJava, tmp_path: Path) -> None:
    session: SparkSession = iceberg_java.session
    table = JavaTable.create(session, "copied_row_groups", DDL)
    for first in (0, 400):
        table.sql(ROWS.format(first, first + 400))
    metadata = parse_document(STORAGE.read(table.metadata_location), table.name)
    theirs = sorted((table.folder / "data").glob("*.parquet"), key=lambda path: pq.read_table(path)["id"][0].as_py())
    # Arrow writes the same rows again, like compaction: the file has row groups of both writers.
    ours = pq.read_table(theirs[0])
    ours = ours.set_column(0, ours.schema.field(0), pa.array([row.as_py() + 800 for row in ours["id"]], pa.int64()))
    again = parquet_file(tmp_path / "again.parquet", ours, row_group_size=200, store_schema=False)
    inputs = [*theirs, again]
    made = copied(inputs, tmp_path / "copy.parquet", target_of(metadata.current_schema))
    assert isinstance(made, DataFile), str(made)
    counts = [pq.read_metadata(path).num_row_groups for path in inputs]
    assert counts[0] > 1
    # Java numbers row groups, Arrow does not.
    assert [ordinals(path) for path in inputs] == [list(range(count)) for count in counts[:2]] + [[None] * counts[2]]
    assert ordinals(made.file_path) == list(range(sum(counts)))
    assert mixed_fields(footer_of(made.file_path)) == []

    copy = session.read.parquet(made.file_path)
    rows = copy.collect()
    # Collected without an order: the rows have the order of the file.
    assert [row.id for row in rows] == [n for path in inputs for n in pq.read_table(path)["id"].to_pylist()]
    assert sorted(map(str, rows)) == sorted(map(str, session.read.parquet(*map(str, inputs)).collect()))
    for condition, wanted in FILTERS.items():
        found = copy.where(condition).collect()
        assert sorted(map(str, found)) == sorted(str(row) for row in rows if wanted(row))
        assert found
    table.drop()


# A commit of a file in place of all data files of a table, like a commit of compaction.


def replace_all(table: MaintainedTable, file: DataFile) -> None:
    """Commit ``file`` without a check that it holds the same rows."""
    loaded, reader = table.loaded, table.reader
    head = loaded.metadata.current_snapshot
    assert head is not None
    found = live(table)
    storage = Storage(loaded.io_properties)
    writer = SnapshotWriter(loaded.metadata, reader, storage.write, lambda paths: None, "main", "a copy", 0)
    newest = max(entry.sequence_number or 0 for _, entry in found)
    prepared = writer.replace_files(
        FileReplacement(frozenset(entry.file.key for _, entry in found), ((0, file),), newest),
        reader.manifests(head),
        {manifest for manifest, _ in found},
    )
    table.catalog.inner.commit(loaded, prepared.requirements, prepared.updates)


# A file with some row groups of another file has its own bounds, because Iceberg-Java treats bounds as values.

PARTS_DDL = """CREATE TABLE {table} (id BIGINT NOT NULL, price DECIMAL(12, 2), at TIMESTAMP, ratio DOUBLE, name STRING)
    USING iceberg TBLPROPERTIES ('format-version' = '2', 'write.parquet.compression-codec' = 'zstd',
    'write.parquet.row-group-size-bytes' = '600', 'write.parquet.row-group-check-min-record-count' = '50',
    'write.parquet.row-group-check-max-record-count' = '50')"""
PARTS_INSERT = """INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, CAST(id AS DECIMAL(12, 2)), timestamp_seconds(id),
    id / 8D, CONCAT('n', id) FROM RANGE(0, 300)"""
# Bounds of texts may be truncated; Java then reads all rows.
COLUMNS = ("id", "price", "at", "ratio")


def extremes(java: IcebergJava, location: str) -> dict[str, object]:
    """Java's results, from bounds where possible."""
    frame = java.session.read.format("iceberg").load(location)
    frame.createOrReplaceTempView("copied_parts")
    expressions = [f"{what}({column}) AS {what}_{column}" for column in COLUMNS for what in ("min", "max", "count")]
    (row,) = java.session.sql(f"SELECT {', '.join(expressions)} FROM copied_parts").collect()
    return dict(row.asDict())


def committed(location: str, folder: Path, made: DataFile) -> MaintainedTable:
    folder.mkdir()
    table = registered_table(location, folder)
    replace_all(table, made)
    return table


def test_java_returns_the_minimum_and_maximum_of_the_copied_rows(
    spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """With the bounds of the whole file it would return removed values (platform: java-min-max-from-bounds)."""
    table = JavaTable.create(spark_session, "copied_parts", PARTS_DDL)
    table.sql(PARTS_INSERT)
    (tmp_path / "planned").mkdir()
    planned = registered_table(table.metadata_location, tmp_path / "planned")
    (entry,) = planned.data_files()
    metadata = planned.loaded.metadata
    target = target_of(metadata.current_schema, mode="truncate(16)")
    file = copyable_file(entry, target, STORAGE)
    assert not isinstance(file, NotCopyable), str(file)
    assert file.row_groups > 3
    part = copyable_part(entry, file, [group.number for group in file.groups[1:-1]], target)
    assert not isinstance(part, NotCopyable), str(part)
    path = local_path(f"{metadata.data_location}/copied.parquet")
    made = merge_files([(entry, part)], str(path), target, STORAGE)
    assert isinstance(made, DataFile), str(made)

    right = committed(table.metadata_location, tmp_path / "right", made)
    assert not right.problems()
    rows = iceberg_java.rows(right.metadata_location)
    assert len(rows) == part.row_count
    assert canonical(duckdb_rows(right.metadata_location)) == canonical(rows)
    wanted: dict[str, object] = {}
    for column in COLUMNS:
        values = [row[column] for row in rows]
        wanted |= {f"min_{column}": min(values), f"max_{column}": max(values), f"count_{column}": len(values)}
    assert extremes(iceberg_java, right.metadata_location) == wanted

    wide = replace(made, lower_bounds=entry.lower_bounds, upper_bounds=entry.upper_bounds)
    wrong = committed(table.metadata_location, tmp_path / "wrong", wide)
    answered = extremes(iceberg_java, wrong.metadata_location)
    assert (answered["min_id"], answered["max_id"]) == (0, 299)
    assert canonical(iceberg_java.rows(wrong.metadata_location)) == canonical(rows)
    table.drop()
