"""A file that holds some row groups of another has bounds of its own, for Iceberg-Java takes bounds for values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from icekeeper.model import DataFile
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, copyable_part, merge_files
from support.committed_copies import replace_all
from support.copied import STORAGE, target_of
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.maintained_table import MaintainedTable, local_path, registered_table
from support.readers import canonical, duckdb_rows

DDL = """CREATE TABLE {table} (id BIGINT NOT NULL, price DECIMAL(12, 2), at TIMESTAMP, ratio DOUBLE, name STRING)
    USING iceberg TBLPROPERTIES ('format-version' = '2', 'write.parquet.compression-codec' = 'zstd',
    'write.parquet.row-group-size-bytes' = '600', 'write.parquet.row-group-check-min-record-count' = '50',
    'write.parquet.row-group-check-max-record-count' = '50')"""
INSERT = """INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, CAST(id AS DECIMAL(12, 2)), timestamp_seconds(id),
    id / 8D, CONCAT('n', id) FROM RANGE(0, 300)"""
# Of texts bounds may be cut: Java reads all rows as soon as one of them is asked for.
COLUMNS = ("id", "price", "at", "ratio")


def extremes(java: IcebergJava, location: str) -> dict[str, object]:
    """What Java answers, from bounds where it can."""
    frame = java.session.read.format("iceberg").load(location)
    frame.createOrReplaceTempView("copied_parts")
    asked = [f"{what}({column}) AS {what}_{column}" for column in COLUMNS for what in ("min", "max", "count")]
    (row,) = java.session.sql(f"SELECT {', '.join(asked)} FROM copied_parts").collect()
    return dict(row.asDict())


def committed(location: str, folder: Path, made: DataFile) -> MaintainedTable:
    folder.mkdir()
    table = registered_table(location, folder)
    replace_all(table, made)
    return table


def test_java_answers_least_and_greatest_values_of_the_rows_that_were_copied(
    spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """With the bounds of the whole file it answers values that are gone (platform 46)."""
    table = JavaTable.create(spark_session, "copied_parts", DDL)
    table.sql(INSERT)
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
