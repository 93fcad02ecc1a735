"""Format v3 between Iceberg-Java and us: rows keep their lineage, and deletion vectors are applied."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.puffin import DELETION_VECTOR, decode_deletion_vector, decode_footer, encode_deletion_vector
from icekeeper.model import DataFile, ManifestContent, ManifestFile
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from support.command import Command
from support.iceberg_java import IcebergJava
from support.java_table import JavaTable
from support.maintained_table import KEEPING_SNAPSHOTS, MaintainedTable, local_path, outcome_of, registered_table
from support.readers import canonical, duckdb_rows, pyiceberg_rows

Lineage = list[tuple[int, str, int | None, int | None]]

MERGE_ON_READ = """'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read',
    'write.merge.mode' = 'merge-on-read', 'commit.manifest-merge.enabled' = 'false'"""


def create(session: SparkSession, folder: Path, version: int) -> JavaTable:
    ddl = f"""CREATE TABLE {{table}} (id BIGINT, part STRING, name STRING) USING iceberg PARTITIONED BY (part)
        TBLPROPERTIES ('format-version' = '{version}', {MERGE_ON_READ})"""
    return JavaTable.create(session, f"lineage_{folder.name}", ddl)


def insert(table: JavaTable, start: int, end: int) -> None:
    """Insert rows into both partitions, a file in each.

    The query may give nulls: otherwise Spark makes the columns required in the file, and row groups of such files share
    no output with those of a rewrite.
    """
    table.sql(
        "INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, CASE id % 2 WHEN 0 THEN 'even' WHEN 1 THEN 'odd' END, "
        f"CONCAT('n', id) FROM (SELECT IF(id < 0, NULL, id) AS id FROM RANGE({start}, {end}))"
    )


def lineage(java: IcebergJava, location: str) -> Lineage:
    """The id column, name, row id and last updated sequence number of every row, as Java reads them."""
    frame = java.session.read.format("iceberg").load(location)
    found = frame.select("id", "name", "_row_id", "_last_updated_sequence_number").collect()
    return sorted((tuple(row) for row in found), key=lambda row: (row[0], row[1]))


def maintained(location: str, folder: Path, **settings: Any) -> MaintainedTable:
    """The verified table after a pass."""
    folder.mkdir()
    table = registered_table(location, folder)
    outcome = table.maintain(**settings)
    assert outcome.status is PassStatus.SUCCEEDED, outcome.summary
    if "compact" in settings.get("operations", "compact"):
        assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED
    assert not table.problems()
    return table


def manifests(table: MaintainedTable) -> tuple[TableMetadata, list[ManifestFile]]:
    reader = table.reader
    snapshot = reader.metadata.current_snapshot
    assert snapshot is not None
    return reader.metadata, reader.manifests(snapshot)


def live(table: MaintainedTable, content: ManifestContent) -> list[DataFile]:
    _, listed = manifests(table)
    wanted = [m for m in listed if m.content is content]
    return [e.file for _, entries in table.reader.entries(wanted) for e in entries if e.is_live]


def rows_agree(location: str, java: IcebergJava) -> None:
    answer = canonical(java.rows(location))
    assert canonical(duckdb_rows(location)) == answer
    assert canonical(pyiceberg_rows(location)) == answer


@pytest.fixture
def changed(spark_session: SparkSession, tmp_path: Path) -> Iterator[JavaTable]:
    """Three files per partition, with stored row ids and deletion vectors from updates, deletes and a merge."""
    table = create(spark_session, tmp_path, 3)
    for start in range(0, 30, 10):
        insert(table, start, start + 10)
    table.sql("UPDATE {table} SET name = 'updated' WHERE id % 10 = 3")
    table.sql("DELETE FROM {table} WHERE id IN (0, 7, 12)")
    table.sql(
        "MERGE INTO {table} t USING (SELECT id * 7 AS id FROM RANGE(0, 9)) s ON t.id = s.id WHEN MATCHED THEN UPDATE "
        "SET name = 'merged' WHEN NOT MATCHED THEN INSERT (id, part, name) VALUES (s.id, 'odd', 'new')"
    )
    yield table
    table.drop()


def test_rows_keep_their_lineage(changed: JavaTable, iceberg_java: IcebergJava, tmp_path: Path) -> None:
    """Java reads the same multiset of rows, row ids and numbers before and after; both sides can then continue."""
    before = lineage(iceberg_java, changed.metadata_location)
    assert len({row_id for _, _, row_id, _ in before}) == len(before) == 33
    assert len({number for _, _, _, number in before}) == 5
    planned = registered_table(changed.metadata_location, tmp_path)
    vectors = live(planned, ManifestContent.DELETES)
    assert {file.file_format for file in vectors} == {"PUFFIN"}
    assert len({file.file_path for file in vectors}) < len(vectors)
    for file in vectors:
        puffin = local_path(file.file_path).read_bytes()
        assert file.content_offset is not None
        assert file.content_size_in_bytes is not None
        blob = puffin[file.content_offset : file.content_offset + file.content_size_in_bytes]
        assert encode_deletion_vector(decode_deletion_vector(blob, file.file_path, file.record_count)) == blob
        (listed,) = [b for b in decode_footer(puffin, file.file_path) if b.offset == file.content_offset]
        assert (listed.type, listed.length, listed.fields) == (DELETION_VECTOR, len(blob), (2147483645,))
        assert listed.properties == {
            "referenced-data-file": file.referenced_data_file,
            "cardinality": str(file.record_count),
        }

    # First data and delete manifests: rewritten manifests keep row ids and vectors.
    deletes = sorted(map(repr, vectors))
    rewritten = maintained(changed.metadata_location, tmp_path / "manifests", operations="rewrite_manifests")
    _, listed_now = manifests(rewritten)
    assert sorted(m.content for m in listed_now) == [ManifestContent.DATA, ManifestContent.DELETES]
    assert sorted(map(repr, live(rewritten, ManifestContent.DELETES))) == deletes
    assert lineage(iceberg_java, rewritten.metadata_location) == before

    ours = maintained(rewritten.metadata_location, tmp_path / "first", rewrite_all="true", **KEEPING_SNAPSHOTS)
    assert not live(ours, ManifestContent.DELETES)
    assert len(live(ours, ManifestContent.DATA)) == 2
    assert lineage(iceberg_java, ours.metadata_location) == before
    rows_agree(ours.metadata_location, iceberg_java)

    changed.take_over(ours.metadata_location)
    insert(changed, 100, 104)
    changed.sql("UPDATE {table} SET name = 'again' WHERE id IN (3, 101)")
    changed.sql("DELETE FROM {table} WHERE id IN (13, 24)")
    after = lineage(iceberg_java, changed.metadata_location)
    untouched = [row for row in before if row[0] not in (3, 13, 24)]
    assert set(untouched) < set(after)
    assert {row[0]: row[2] for row in before}[3] == {row[0]: row[2] for row in after}[3]
    assert len({row_id for _, _, row_id, _ in after}) == len(after) == len(before) - 2 + 4
    changed.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    changed.call("rewrite_manifests")
    assert lineage(iceberg_java, changed.metadata_location) == after

    # Files with stored lineage, with lineage stored for some rows, and without it are copied.
    copies = MERGE_ON_READ.replace("merge-on-read", "copy-on-write")
    changed.sql(f"ALTER TABLE {{table}} SET TBLPROPERTIES ({copies})")
    changed.sql("UPDATE {table} SET name = 'copied' WHERE id = 5")
    changed.sql("DELETE FROM {table} WHERE id = 6")
    for start in (200, 210):
        insert(changed, start, start + 10)
    after = lineage(iceberg_java, changed.metadata_location)
    again = maintained(changed.metadata_location, tmp_path / "second", min_row_group_copy_bytes="1")
    footers = [pq.read_metadata(local_path(file.file_path)) for file in live(again, ManifestContent.DATA)]
    assert [footer.num_row_groups for footer in footers] == [3, 3]
    assert lineage(iceberg_java, again.metadata_location) == after
    rows_agree(again.metadata_location, iceberg_java)


def test_rows_of_an_upgraded_table_get_their_ids_from_the_commit(
    spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """They have none before; outputs have no lineage columns, and unchanged files get ids in the same commit, also in
    v1 manifests."""
    table = create(spark_session, tmp_path, 1)
    insert(table, 0, 10)
    table.sql("ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '2')")
    for start in (10, 20):
        insert(table, start, start + 10)
    table.sql("DELETE FROM {table} WHERE id IN (2, 5, 11)")
    table.sql("ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')")
    before = lineage(iceberg_java, table.metadata_location)
    assert {row[2:] for row in before} == {(None, None)}
    ours = maintained(
        table.metadata_location, tmp_path / "first", operations="compact", rewrite_enabled="false", min_input_files="9"
    )
    metadata, listed = manifests(ours)
    data = [m for m in listed if m.content is ManifestContent.DATA]
    assert all(m.first_row_id is not None for m in data)
    assert all(m.first_row_id is None for m in listed if m.content is ManifestContent.DELETES)
    assert not live(ours, ManifestContent.DELETES)
    outputs = [file for file in live(ours, ManifestContent.DATA) if "/compact-" in file.file_path]
    assert outputs
    for file in outputs:
        assert not {2147483540, 2147483539} & (file.value_counts or {}).keys()
    after = lineage(iceberg_java, ours.metadata_location)
    assert [row[:2] for row in after] == [row[:2] for row in before]
    ids = [row[2] for row in after]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    assert max(i for i in ids if i is not None) < metadata.next_row_id
    rows_agree(ours.metadata_location, iceberg_java)

    # After that, rows keep their ids.
    table.take_over(ours.metadata_location)
    table.sql("DELETE FROM {table} WHERE id = 21")
    again = maintained(table.metadata_location, tmp_path / "second", rewrite_all="true")
    kept = lineage(iceberg_java, again.metadata_location)
    assert [row[:3] for row in kept] == [row[:3] for row in after if row[0] != 21]
    table.drop()


def test_a_vector_replaces_the_position_deletes_it_absorbed(
    spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path
) -> None:
    """A table upgraded between two deletes has both kinds; both are applied once, and neither is left."""
    table = create(spark_session, tmp_path, 2)
    insert(table, 0, 20)
    table.sql("ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.granularity' = 'partition')")
    insert(table, 20, 40)
    table.sql("DELETE FROM {table} WHERE id IN (2, 4, 22, 24)")
    table.sql("ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')")
    table.sql("DELETE FROM {table} WHERE id IN (6, 8)")
    planned = registered_table(table.metadata_location, tmp_path)
    assert {file.file_format for file in live(planned, ManifestContent.DELETES)} == {"PARQUET", "PUFFIN"}
    before = lineage(iceberg_java, table.metadata_location)
    assert len(before) == 34
    ours = maintained(table.metadata_location, tmp_path / "first", rewrite_all="true", operations="compact")
    assert not live(ours, ManifestContent.DELETES)
    assert lineage(iceberg_java, ours.metadata_location) == before
    table.drop()


@pytest.mark.parametrize("version", [2, 3])
def test_java_reads_the_position_deletes_that_we_merged(
    spark_session: SparkSession, iceberg_java: IcebergJava, tmp_path: Path, version: int
) -> None:
    """They are merged into a file per partition, or into deletion vectors; Java then continues."""
    table = create(spark_session, tmp_path, 2)
    insert(table, 0, 20)
    insert(table, 20, 40)
    for row_id in (2, 4, 22, 23):
        table.sql(f"DELETE FROM {{table}} WHERE id = {row_id}")
    table.sql(f"ALTER TABLE {{table}} SET TBLPROPERTIES ('format-version' = '{version}')")
    before = canonical(iceberg_java.rows(table.metadata_location))
    assert len(before) == 36
    ours = maintained(table.metadata_location, tmp_path / "first", operations="rewrite_position_deletes")
    merged = live(ours, ManifestContent.DELETES)
    # In v2 the only delete file of the other partition is unchanged.
    assert sorted(file.record_count for file in merged) == ([1, 3] if version == 2 else [1, 1, 2])
    assert canonical(iceberg_java.rows(ours.metadata_location)) == before
    rows_agree(ours.metadata_location, iceberg_java)
    table.take_over(ours.metadata_location)
    table.sql("DELETE FROM {table} WHERE id IN (6, 26)")
    table.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    assert len(iceberg_java.rows(table.metadata_location)) == 34
    table.drop()


def test_rebuilt_manifest_lists_and_a_rollback_keep_rows_and_lineage(
    changed: JavaTable,
    iceberg_java: IcebergJava,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The lists of Java's first insert, of an update with deletion vectors and of a merge are lost and proven."""
    command = Command(tmp_path, monkeypatch, capsys)
    command.register(changed.metadata_location)
    monkeypatch.setenv("ICEKEEPER_ALLOWED_PREFIXES", f"C.ns={changed.folder.as_uri()}")
    (tmp_path / "registered").mkdir()
    reader = registered_table(changed.metadata_location, tmp_path / "registered").reader

    def read(snapshot_id: int) -> Lineage:
        frame = iceberg_java.session.read.format("iceberg").option("snapshot-id", str(snapshot_id))
        columns = ("id", "name", "_row_id", "_last_updated_sequence_number")
        return sorted(map(tuple, frame.load(changed.metadata_location).select(*columns).collect()))

    inserted, _, _, updated, _, merged = reader.metadata.in_commit_order
    for snapshot in (inserted, updated, merged):
        before = read(snapshot.snapshot_id)
        lost = local_path(str(snapshot.manifest_list))
        lost.unlink()
        lost.with_name(f".{lost.name}.crc").unlink()
        answer = command("repair", "ns.t", "--yes", "--json")
        assert answer.code == 0, answer.out
        assert read(snapshot.snapshot_id) == before
    assert command("rollback", "ns.t", "--yes", "--to", str(updated.snapshot_id)).code == 0
    ((_, location),) = command.pointers()
    assert lineage(iceberg_java, location) == read(updated.snapshot_id)
    refs = {ref["name"]: ref["snapshot_id"] for ref in iceberg_java.metadata_table(location, "refs")}
    assert refs == {"main": updated.snapshot_id, f"icekeeper-before-{merged.snapshot_id}": merged.snapshot_id}
