"""Bloom filters that we write, as parquet-mr and DuckDB read them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from support.iceberg_java import IcebergJava
from support.rewrites import rewritten, rows, struct, written

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
    """Every value is found, most others are not; columns nobody asked about, and booleans, have none."""
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
        return sum(filters[name].findHash(one) for one in hashes)

    binary = jvm.org.apache.parquet.io.api.Binary
    assert hits("id", [filters["id"].hash(LARGE + n * 3) for n in range(200)]) == 200
    assert hits("id", [filters["id"].hash(LARGE + n * 3 + 1) for n in range(200)]) < 5
    for name, prefix in (("text", "key"), ("tags.list.element", "tag")):
        present = [filters[name].hash(binary.fromString(f"{prefix} {n}")) for n in range(200)]
        absent = [filters[name].hash(binary.fromString(f"{prefix} {n}x")) for n in range(200)]
        assert (hits(name, present), hits(name, absent) < 15) == (200, True)
    script = (
        "import duckdb, sys\n"
        f"for value in ({LARGE + 300}, {LARGE + 301}):\n"
        "    found = duckdb.sql(f\"FROM parquet_bloom_probe('{sys.argv[1]}', 'id', {value})\").fetchall()\n"
        "    print([row[-1] for row in found])\n"
    )
    told = subprocess.run([sys.executable, "-c", script, file.file_path], capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[:2] == ["[False]", "[True]"]  # whether the filter excludes the row group


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
    # A filter and its header of a few bytes.
    assert [size // 1024 for size in sizes] == [1, 2, 32]
