"""Row groups of a v3 table are copied with their lineage; Iceberg-Java finds the same ids and last changes of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from icekeeper.model import DataFile
from support.committed_copies import replace_all
from support.copied import Input, lineage_target, merged
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.maintained_table import MaintainedTable, local_path, registered_table
from support.readers import canonical, duckdb_rows
from support.v3 import live

DDL = """CREATE TABLE {table} (id BIGINT, name STRING) USING iceberg TBLPROPERTIES (
    'format-version' = '3', 'write.parquet.compression-codec' = 'zstd', 'write.parquet.page-row-limit' = '20',
    'write.parquet.row-group-size-bytes' = '600', 'write.parquet.row-group-check-min-record-count' = '50',
    'write.parquet.row-group-check-max-record-count' = '50')"""
# Spark makes columns required in files that cannot be null in a query; those that an update writes could be.
INSERT = """INSERT INTO {{table}} SELECT /*+ COALESCE(1) */ IF(id < 0, NULL, id), IF(id < 0, NULL, CONCAT('n', id))
    FROM RANGE({}, {})"""

Row = tuple[int, str, int, int]


def lineage(java: IcebergJava, location: str, where: str = "true") -> list[Row]:
    frame = java.session.read.format("iceberg").load(location)
    found = frame.select("id", "name", "_row_id", "_last_updated_sequence_number").where(where).collect()
    return sorted((tuple(row) for row in found), key=lambda row: row[0])


def copy_of_all(table: MaintainedTable) -> DataFile:
    """Commit one copy in the place of all data files; its entry."""
    metadata = table.loaded.metadata
    inputs = [Input(entry.file, entry.sequence_number or 0) for _, entry in live(table)]
    path = local_path(f"{metadata.data_location}/copied.parquet")
    made = merged(inputs, path, lineage_target(metadata.current_schema, mode="truncate(16)"))
    assert isinstance(made, DataFile), str(made)
    replace_all(table, made)
    return made


def test_java_finds_the_lineage_that_it_found_before(
    spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """Files without the columns, and files that updates left, where some rows inherit and others do not."""
    table = JavaTable.create(spark_session, "copied_lineage", DDL)
    for first in range(0, 600, 200):
        table.sql(INSERT.format(first, first + 200))
    table.sql("UPDATE {table} SET name = 'updated' WHERE id >= 200 AND id < 400 AND id % 5 = 1")
    before = lineage(iceberg_java, table.metadata_location)
    assert len({row[2] for row in before}) == len(before) == 600
    assert len({row[3] for row in before}) == 4

    ours = registered_table(table.metadata_location, tmp_path)
    stored = [entry.file.file_path for _, entry in live(ours) if "_row_id" in _columns(entry.file)]
    assert 0 < len(stored) < len(live(ours))
    made = copy_of_all(ours)
    assert not ours.problems()
    location = ours.loaded.metadata_location
    assert lineage(iceberg_java, location) == before
    assert canonical(duckdb_rows(location)) == canonical(iceberg_java.rows(location))
    # By page indexes, statistics and bounds of these columns most rows are left out.
    changed = before[201][3]
    filters: dict[str, Callable[[Row], bool]] = {
        f"_row_id = {before[401][2]}": lambda row: row[2] == before[401][2],
        "id = 231": lambda row: row[0] == 231,
        f"_last_updated_sequence_number = {changed} AND id > 300": lambda row: row[3] == changed and row[0] > 300,
    }
    for where, wanted in filters.items():
        kept = [row for row in before if wanted(row)]
        assert lineage(iceberg_java, location, where) == kept
        assert kept
    with duckdb.connect() as connection:
        columns = "id, name, _row_id, _last_updated_sequence_number"
        assert connection.sql(f"SELECT {columns} FROM '{made.file_path}' ORDER BY id").fetchall() == before

    # Java goes on from there.
    table.take_over(location)
    table.sql("UPDATE {table} SET name = 'again' WHERE id IN (3, 401)")
    after = lineage(iceberg_java, table.metadata_location)
    assert [row[2] for row in after] == [row[2] for row in before]
    assert [row for row in after if row[1] != "again"] == [row for row in before if row[0] not in (3, 401)]
    table.drop()


def _columns(file: DataFile) -> list[str]:
    with duckdb.connect() as connection:
        return [
            str(row[0]) for row in connection.sql(f"DESCRIBE SELECT * FROM '{local_path(file.file_path)}'").fetchall()
        ]
