"""Row groups that Iceberg-Java wrote are copied; parquet-mr reads the copy, also by page indexes and Bloom filters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from icekeeper.metadata.document_files import parse_document
from icekeeper.model import DataFile
from icekeeper.row_group_copy.footer import Footer, read_footer
from icekeeper.row_group_copy.footer_structs import FileMetaData
from support.copied import STORAGE, copied, parquet_file, target_of
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.mixed_footers import mixed_fields

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
# Page indexes and Bloom filters leave most rows out.
FILTERS: dict[str, Callable[[Any], bool]] = {
    "id = 731 OR point.x = 17": lambda row: row.id == 731 or row.point.x == 17,
    "text = 'text 203'": lambda row: row.text == "text 203",
}


def footer_of(path: Path | str) -> FileMetaData:
    footer = read_footer(str(path), STORAGE)
    assert isinstance(footer, Footer), footer
    return footer.metadata()


def ordinals(path: Path | str) -> list[int | None]:
    return [group.ordinal for group in footer_of(path).row_groups]


def test_parquet_mr_reads_the_rows_of_a_copy(iceberg_java: IcebergJava, tmp_path: Path) -> None:
    session: SparkSession = iceberg_java.session
    table = JavaTable.create(session, "copied_row_groups", DDL)
    for first in (0, 400):
        table.sql(ROWS.format(first, first + 400))
    metadata = parse_document(STORAGE.read(table.metadata_location), table.name)
    theirs = sorted((table.folder / "data").glob("*.parquet"), key=lambda path: pq.read_table(path)["id"][0].as_py())
    # Arrow writes the same rows again, as compaction does: both writers meet in one file.
    ours = pq.read_table(theirs[0])
    ours = ours.set_column(0, ours.schema.field(0), pa.array([row.as_py() + 800 for row in ours["id"]], pa.int64()))
    again = parquet_file(tmp_path / "again.parquet", ours, row_group_size=200, store_schema=False)
    inputs = [*theirs, again]
    made = copied(inputs, tmp_path / "copy.parquet", target_of(metadata.current_schema))
    assert isinstance(made, DataFile), str(made)
    counts = [pq.read_metadata(path).num_row_groups for path in inputs]
    assert counts[0] > 1
    # Java numbers row groups, Arrow does not (rule 200).
    assert [ordinals(path) for path in inputs] == [list(range(count)) for count in counts[:2]] + [[None] * counts[2]]
    assert ordinals(made.file_path) == list(range(sum(counts)))
    assert mixed_fields(footer_of(made.file_path)) == []

    copy = session.read.parquet(made.file_path)
    rows = copy.collect()
    # Collected without an order: the rows come as they lie in the file.
    assert [row.id for row in rows] == [n for path in inputs for n in pq.read_table(path)["id"].to_pylist()]
    assert sorted(map(str, rows)) == sorted(map(str, session.read.parquet(*map(str, inputs)).collect()))
    for condition, wanted in FILTERS.items():
        found = copy.where(condition).collect()
        assert sorted(map(str, found)) == sorted(str(row) for row in rows if wanted(row))
        assert found
    table.drop()
