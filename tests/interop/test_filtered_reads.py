"""Bounds, footers, Bloom filters and manifest lists that we write hide no row from filters."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.duckdb_session import DuckDB
from support.filtered_table import FilteredReads, made_table, problems_of_copies
from support.iceberg_java import IcebergJava
from support.java_writer import JavaTable, JavaTables
from support.maintained_table import registered_table
from support.readers import duckdb_rows
from support.rewrites import rewritten, rows, struct, written

# Column bounds, footers and manifest lists that we write hide no row from filters.
#
# A digest of the whole table cannot show that.  ``tests/nightly`` runs more queries, after each operation, on tables
# of every format version.


def test_filters_find_the_same_rows_as_before(
    spark_session: object, java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    """They find the correct rows even if a reader missed some before: readers err on tables of others, too."""
    java = made_table(java_tables, 3, tmp_path / "table")
    before = java.metadata_location
    table = registered_table(before, tmp_path)
    (part,) = table.maintain(operations="compact", rewrite_all="true").operations
    assert part.status is Status.SUCCEEDED
    reads = FilteredReads.on(java, java_tables, duckdb, 3, 80, every=4)
    assert reads.problems(before, table.metadata_location) == []


# parquet-mr and DuckDB read the Bloom filters that we write.

BLOOMED = struct(
    (1, "id", "long"),
    (2, "text", "string"),
    (3, "point", struct((4, "x", "int"))),
    (5, "tags", {"type": "list", "element-id": 6, "element": "string", "element-required": False}),
    (7, "flag", "boolean"),
    (8, "plain", "long"),
)

LARGE = 2**40
"""py4j makes an int of a smaller number, which has another hash than the long in the file."""


def test_bloom_filters_are_read_by_parquet_mr_and_duckdb(iceberg_java: IcebergJava, tmp_path: Path) -> None:
    """Every value is found, most other values are not; columns without the setting, and booleans, have no filter."""
    count = 5000
    values: dict[str, list[Any]] = {
        "id": [LARGE + n * 3 for n in range(count)],
        "text": [f"key {n}" for n in range(count)],
        "point": [{"x": n * 5} for n in range(count)],
        "tags": [[f"tag {n}"] for n in range(count)],
        "flag": [n % 2 == 0 for n in range(count)],
        "plain": list(range(count)),
    }
    enabled = {
        f"write.parquet.bloom-filter-enabled.column.{name}": "true"
        for name in ("id", "text", "point.x", "tags.element", "flag", "nowhere")
    }
    properties = enabled | {
        "write.parquet.bloom-filter-enabled.column.plain": "false",
        "write.parquet.bloom-filter-fpp.column.id": "0.001",
    }
    file = written(rewritten(BLOOMED, [rows(BLOOMED, values)], tmp_path, table_properties=properties))
    jvm: Any = iceberg_java.session._jvm
    hadoop = iceberg_java.session._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path(file.file_path)
    reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(
        jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(path, hadoop)
    )
    (block,) = reader.getFooter().getBlocks()
    filters = {
        str(chunk.getPath().toDotString()): reader.getBloomFilterDataReader(block).readBloomFilter(chunk)
        for chunk in block.getColumns()
    }
    reader.close()
    assert {name for name, found in filters.items() if found is not None} == {
        "id",
        "text",
        "point.x",
        "tags.list.element",
    }

    def hits(name: str, hashes: list[Any]) -> int:
        return sum(filters[name].findHash(value) for value in hashes)

    binary = jvm.org.apache.parquet.io.api.Binary
    assert hits("id", [filters["id"].hash(LARGE + n * 3) for n in range(200)]) == 200
    assert hits("id", [filters["id"].hash(LARGE + n * 3 + 1) for n in range(200)]) < 5
    for name, prefix in (("text", "key"), ("tags.list.element", "tag")):
        present = [filters[name].hash(binary.fromString(f"{prefix} {n}")) for n in range(200)]
        absent = [filters[name].hash(binary.fromString(f"{prefix} {n}x")) for n in range(200)]
        assert (hits(name, present), hits(name, absent) < 15) == (200, True)
    with duckdb.connect() as connection:
        probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{file.file_path}', 'id', {{}})"
        excludes = [connection.sql(probe.format(LARGE + n)).fetchall() for n in (300, 301)]
    assert excludes == [[(False,)], [(True,)]]


def test_a_bloom_filter_is_no_larger_than_the_table_allows(tmp_path: Path) -> None:
    schema = struct((1, "id", "long"))
    table = rows(schema, {"id": list(range(20_000))})
    sizes = []
    for number, most in enumerate(("1024", "3000", "1048576")):
        folder = tmp_path / str(number)
        folder.mkdir()
        properties = {
            "write.parquet.bloom-filter-enabled.column.id": "true",
            "write.parquet.bloom-filter-max-bytes": most,
        }
        file = written(rewritten(schema, [table], folder, table_properties=properties))
        sizes.append(pq.read_metadata(file.file_path).row_group(0).column(0).bloom_filter_length)
    # A filter and its header, which has a few bytes.
    assert [size // 1024 for size in sizes] == [1, 2, 32]


# Copied row groups hide no row from filters either: their footers, bounds and page indexes are those of others.
#
# ``rewrite_all`` copies nothing, so the tests above see only files that we encoded.  ``tests/nightly`` runs more
# queries.


def test_filters_find_the_same_rows_in_copies(
    spark_session: object, java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    assert problems_of_copies(3, java_tables, duckdb, tmp_path, step=90) == []


# Filters find rows with a column's default once they are rewritten, also in copied files.
#
# Before, Iceberg-Java finds fewer of them: its row group filters treat a missing column as null
# (platform: java-cannot-read).

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "int", "required": True}]}


def test_java_finds_rows_by_a_default(java_tables: JavaTables, tmp_path: Path) -> None:
    java = java_tables.create(SCHEMA, {"spec-id": 0, "fields": []}, {"format-version": "3"}, tmp_path / "table")
    append(java, range(2))
    java.evolve(partial(_add_columns, java))
    added = {field["name"]: str(field["id"]) for field in java.schema["fields"]}
    append(java, range(2, 5), {added["n"]: 7, added["text"]: "other"})
    make = java_tables.jvm.org.apache.iceberg.expressions.Expressions
    conditions = [make.equal("n", 7), make.equal("text", "default"), make.isNull("n")]
    assert [sorted(java.ids_where(condition)) for condition in conditions] == [[2, 3, 4], [], []]

    table = registered_table(java.metadata_location, tmp_path)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert outcome.metrics["compact.bytes_copied"] > 0
    java.take_over(table.metadata_location)
    assert [sorted(java.ids_where(condition)) for condition in conditions] == [[0, 1, 2, 3, 4], [0, 1], []]
    assert sorted(row["id"] for row in duckdb_rows(table.metadata_location) if row["text"] == "default") == [0, 1]


def append(java: JavaTable, ids: range, values: dict[str, Any] | None = None) -> None:
    """Append a file for each row."""
    java.append(java.data_file([{"1": i, **(values or {})}], 0, [], "parquet") for i in ids)


def _add_columns(java: JavaTable, update: Any) -> None:
    update.addColumn("n", java.type("int"), java.literal(7))
    update.addColumn("text", java.type("string"), java.literal("default"))
