"""Format v3 between Iceberg-Java and us: rows keep their ids and their last change, deletion vectors are applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.puffin import decode_footer
from icekeeper.model import DataFile, ManifestContent, ManifestFile
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from icekeeper.storage_paths import normalise
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.passes import KEEPING_SNAPSHOTS, TableUnderMaintenance, outcome_of
from support.readers import canonical, duckdb_rows, pyiceberg_rows

Lineage = list[tuple[int, str, int | None, int | None]]

MERGE_ON_READ = """'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read',
    'write.merge.mode' = 'merge-on-read', 'commit.manifest-merge.enabled' = 'false'"""


def create(session: SparkSession, folder: Path, version: int) -> JavaTable:
    ddl = f"""CREATE TABLE {{table}} (id BIGINT, part STRING, name STRING) USING iceberg PARTITIONED BY (part)
        TBLPROPERTIES ('format-version' = '{version}', {MERGE_ON_READ})"""
    return JavaTable.create(session, f"lineage_{folder.name}", ddl)


def insert(table: JavaTable, start: int, end: int) -> None:
    """Rows of both partitions, one file in each."""
    table.sql(
        "INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, IF(id % 2 = 0, 'even', 'odd'), CONCAT('n', id) FROM RANGE("
        f"{start}, {end})"
    )


def lineage(java: IcebergJava, location: str) -> Lineage:
    """Every row's id column, name, row id and last change, as Java reads them."""
    frame = java.session.read.format("iceberg").load(location)
    found = frame.select("id", "name", "_row_id", "_last_updated_sequence_number").collect()
    return sorted((tuple(row) for row in found), key=lambda row: (row[0], row[1]))


def maintained(location: str, folder: Path, **settings: str) -> TableUnderMaintenance:
    """The table after a pass of ours, found whole."""
    folder.mkdir()
    table = TableUnderMaintenance(location, folder)
    outcome = table.maintain(**settings)
    assert outcome.status is PassStatus.SUCCEEDED, outcome.summary
    if "compact" in settings.get("operations", "compact"):
        assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED
    assert not table.problems()
    return table


def manifests(table: TableUnderMaintenance) -> tuple[TableMetadata, list[ManifestFile]]:
    reader = table.reader()
    snapshot = reader.metadata.current_snapshot
    assert snapshot is not None
    return reader.metadata, reader.manifests(snapshot)


def live(table: TableUnderMaintenance, content: ManifestContent) -> list[DataFile]:
    _, listed = manifests(table)
    wanted = [m for m in listed if m.content is content]
    return [e.file for _, entries in table.reader().entries(wanted) for e in entries if e.is_live]


def rows_agree(location: str, java: IcebergJava) -> None:
    answer = canonical(java.rows(location))
    assert canonical(duckdb_rows(location)) == answer
    assert canonical(pyiceberg_rows(location)) == answer


@pytest.fixture
def changed(spark_session: SparkSession, tmp_path: Path) -> Iterator[JavaTable]:
    """Five files per partition; updates, deletes and a merge left rows with ids of their own, and deletion vectors."""
    table = create(spark_session, tmp_path, 3)
    for start in range(0, 50, 10):
        insert(table, start, start + 10)
    table.sql("UPDATE {table} SET name = 'updated' WHERE id % 10 = 3")
    table.sql("DELETE FROM {table} WHERE id IN (0, 7, 12, 31)")
    table.sql(
        "MERGE INTO {table} t USING (SELECT id * 7 AS id FROM RANGE(0, 9)) s ON t.id = s.id WHEN MATCHED THEN UPDATE "
        "SET name = 'merged' WHEN NOT MATCHED THEN INSERT (id, part, name) VALUES (s.id, 'odd', 'new')"
    )
    yield table
    table.drop()


def test_rows_keep_their_ids_and_their_last_change(
    changed: JavaTable, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """Before and after, read by Java: the same multiset of rows, row ids and numbers; and both may go on from there."""
    before = lineage(iceberg_java, changed.metadata_location)
    assert len({row_id for _, _, row_id, _ in before}) == len(before) == 49
    assert len({number for _, _, _, number in before}) == 7
    planned = TableUnderMaintenance(changed.metadata_location, tmp_path)
    vectors = live(planned, ManifestContent.DELETES)
    assert {file.file_format for file in vectors} == {"PUFFIN"}
    assert len({file.file_path for file in vectors}) < len(vectors)

    ours = maintained(changed.metadata_location, tmp_path / "first", rewrite_all="true", **KEEPING_SNAPSHOTS)
    assert not live(ours, ManifestContent.DELETES)
    assert len(live(ours, ManifestContent.DATA)) == 2
    assert lineage(iceberg_java, ours.metadata_location) == before
    rows_agree(ours.metadata_location, iceberg_java)

    changed.take_over(ours.metadata_location)
    insert(changed, 100, 104)
    changed.sql("UPDATE {table} SET name = 'again' WHERE id IN (3, 101)")
    changed.sql("DELETE FROM {table} WHERE id IN (13, 44)")
    after = lineage(iceberg_java, changed.metadata_location)
    untouched = [row for row in before if row[0] not in (3, 13, 44)]
    assert set(untouched) < set(after)
    assert {row[0]: row[2] for row in before}[3] == {row[0]: row[2] for row in after}[3]
    assert len({row_id for _, _, row_id, _ in after}) == len(after) == len(before) - 2 + 4
    changed.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    changed.call("rewrite_manifests")
    assert lineage(iceberg_java, changed.metadata_location) == after

    again = maintained(changed.metadata_location, tmp_path / "second", rewrite_all="true")
    assert lineage(iceberg_java, again.metadata_location) == after
    rows_agree(again.metadata_location, iceberg_java)
