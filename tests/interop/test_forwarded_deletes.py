"""Iceberg-Java deletes rows while we rewrite their files, and reads the forwarded and converted deletes
(rule: forward-newer-position-deletes, convert-before-dropping-keys)."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.duckdb_session import DuckDB
from support.java_table import SharedTable
from support.java_writer import BY_REGION, ID_AND_REGION, JavaTables
from support.maintained_table import local_path
from support.readers import pyiceberg_rows
from support.scripted_catalog import once

REGIONS = ("eu", "us")


class Deleting:
    """A table by Iceberg-Java with three files of ten rows in each region, from which Java deletes rows."""

    def __init__(self, java_tables: JavaTables, folder: Path, version: int = 2) -> None:
        self.java = java_tables.create(ID_AND_REGION, BY_REGION, {"format-version": str(version)}, folder / "table")
        self.live: set[int] = set()
        for number in range(6):
            region, first = REGIONS[number % 2], 100 * number
            rows = [{"1": row, "2": region} for row in range(first, first + 10)]
            self.java.append([self.java.data_file(rows, 0, (region,), "parquet")])
            self.live |= set(range(first, first + 10))
        self.table = SharedTable(self.java, folder)

    def places(self) -> dict[int, tuple[str, int, str]]:
        """Id → file, position and region of every row, including deleted rows."""
        found: dict[int, tuple[str, int, str]] = {}
        for entry in self.table.entries():
            if entry.file.content.name == "DATA":
                (region,) = entry.file.partition
                path = entry.file.file_path
                ids = pq.read_table(local_path(path), columns=["id"], partitioning=None).column("id").to_pylist()
                found |= {row: (path, position, str(region)) for position, row in enumerate(ids)}
        return found

    def delete_of(self, row: int) -> Any:
        """Java's delete file for this row."""
        path, position, region = self.places()[row]
        return self.java.position_deletes({path: [position]}, 0, (region,), "parquet")

    def delete(self, row: int) -> None:
        self.java.row_delta(deletes=[self.delete_of(row)])
        self.live.remove(row)

    def delete_by_vectors(self, *rows: int) -> None:
        places, found = self.places(), defaultdict[str, list[int]](list)
        for path, position, _ in sorted(places[row] for row in rows):
            found[path].append(position)
        self.java.delete_by_vectors(found)
        self.live -= set(rows)

    def readers(self, duckdb: DuckDB) -> list[Counter[int]]:
        location = self.table.metadata_location
        own = Counter(row["1"] for row in self.java.rows())
        return [own, *(Counter(r["id"] for r in read(location)) for read in (duckdb.rows, pyiceberg_rows))]


def test_java_reads_forwarded_vectors_and_adds_to_them(java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path) -> None:
    table = Deleting(java_tables, tmp_path, 3)
    table.delete_by_vectors(1, 101, 405)
    lineage = {row["1"]: row for row in table.java.rows(lineage=True)}
    table.table.engine.during = once(lambda: table.delete_by_vectors(0, 2, 409, 500))
    outcome = table.table.run(Operation.COMPACT, strategy="sort", sort_order="id desc")
    assert (outcome.metrics["compact.bins_dropped"], outcome.metrics["compact.rows_forwarded"]) == (0, 4)
    table.delete_by_vectors(3, 200)
    assert table.readers(duckdb) == [Counter(table.live)] * 3
    after = {row["1"]: row for row in table.java.rows(lineage=True)}
    assert after == {i: row for i, row in lineage.items() if i in table.live}
    table.table.assert_sound()


def test_java_refuses_a_delete_of_a_file_rewritten_in_between(
    java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    """Java's writer validates that the data file still exists; without this check its delete would be lost."""
    table = Deleting(java_tables, tmp_path)
    start, delete = table.java.snapshot_id, table.delete_of(7)
    path = table.places()[7][0]
    table.table.engine.during = once(lambda: table.delete(0))
    assert table.table.run(Operation.COMPACT).status is Status.SUCCEEDED
    late = table.java.table.newRowDelta().addDeletes(delete).validateFromSnapshot(start)
    with pytest.raises(Py4JJavaError, match="missing data files"):
        late.validateDataFilesExist([path]).commit()
    assert table.readers(duckdb) == [Counter(table.live)] * 3


# Equality deletes that become positions.


@pytest.mark.parametrize("order", ["conversion_first", "rewrite_first"])
def test_a_concurrent_rewrite_by_java_restores_no_row(
    java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path, order: str
) -> None:
    """Java's rewrite begins before the equality delete, so its output holds the row."""
    table = Deleting(java_tables, tmp_path)
    java, (path, _, region) = table.java, table.places()[0]
    start, number = java.snapshot_id, java.sequence_number
    found = java.table.newScan().planFiles().iterator()
    files = []
    while found.hasNext():
        files.append(found.next().file())
    (replaced,) = (file for file in files if str(file.location()) == path)
    output = java.data_file([{"1": row, "2": region} for row in range(10)], 0, (region,), "parquet")
    java.row_delta(deletes=[java.equality_deletes([{"1": 3}], [1], 0, (region,), "parquet")])
    table.live.discard(3)

    def rewrite() -> None:
        update = java.table.newRewrite().validateFromSnapshot(start).deleteFile(replaced).addFile(output)
        update.dataSequenceNumber(number).commit()

    if order == "rewrite_first":
        table.table.engine.during = once(rewrite)
    outcome = table.table.run(Operation.REWRITE_POSITION_DELETES, convert_equality_deletes="true")
    if order == "conversion_first":
        assert outcome.metrics["rewrite_position_deletes.equality_files_converted"] == 1
        with pytest.raises(Py4JJavaError, match="found new position delete for replaced data file"):
            rewrite()
    else:
        assert "EQUALITY_DELETES" in table.table.live_deletes()
        table.table.engine.during = lambda: None
        table.table.run(Operation.REWRITE_POSITION_DELETES, convert_equality_deletes="true")
    assert "EQUALITY_DELETES" not in table.table.live_deletes()
    assert table.readers(duckdb) == [Counter(table.live)] * 3
