"""Tables of format v3 with variants as DuckDB, Arrow and Java write them, and what independent readers find in them.

Every row with the same id has the same values, whatever writer wrote it.  ``v`` is a column, ``s.x`` is in a struct and
``l.element`` in a list.  DuckDB reads rows, paths and types; Iceberg-Java, which must see every kind of null, reads
objects; PyArrow reads the bytes.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.demo import duckdb_child
from support.deletes import commit_deletes, create_by_region, position_delete
from support.java_writer import JavaTables
from support.maintained_table import MaintainedTable, local_path
from support.plans import data_file
from support.v3 import Lineage, commit_files, data_files, lineage, upgrade

FIELDS: Sequence[Mapping[str, Any]] = (
    {"id": 3, "name": "v", "required": False, "type": "variant"},
    {
        "id": 4,
        "name": "s",
        "required": False,
        "type": {"type": "struct", "fields": [{"id": 5, "name": "x", "required": False, "type": "variant"}]},
    },
    {
        "id": 6,
        "name": "l",
        "required": False,
        "type": {"type": "list", "element-id": 7, "element": "variant", "element-required": False},
    },
)
"""The columns of a table besides ``id`` and ``region``."""

_VALUES = (
    "NULL::VARIANT",  # no value; DuckDB writes a variant that is null
    "'null'::JSON::VARIANT",
    "{'a': i, 'b': 'text ' || i}::VARIANT",
    "{'a': {'b': i * 1.5}, 'c': [i, NULL]}::VARIANT",
    "{'a': 'not a number', 'b': NULL}::VARIANT",
    "('[' || i || ', \"mixed\", {\"a\": [true, null]}]')::JSON::VARIANT",
    "i::VARIANT",
    "('text ' || i)::VARIANT",
    """{'d': DATE '2024-02-29', 'e': ('x' || i)::BLOB, 'f': 1.5::FLOAT, 'i': 7::TINYINT, 'j': (-300)::SMALLINT,
        'k': i::INTEGER, 'm': TIME '12:34:56', 'n': '2024-02-29 12:34:56.123456'::TIMESTAMP_NS, 'o': i > 5,
        'p': 1.25::DECIMAL(9, 2), 'q': 2.5::DECIMAL(30, 1), 't': TIMESTAMP '2024-02-29 12:34:56.789',
        'u': UUID '14356341-f63f-429c-9c33-51d1f5a769af'}::VARIANT""",
    "{'a': i, 'b': 'more', 'z': {'y': i::DOUBLE / 3}}::VARIANT",
)
SHREDDINGS: Mapping[str, str | None] = {
    "plain": None,
    "shredded": "STRUCT(a BIGINT, b VARCHAR)",
    "lists": "STRUCT(c BIGINT[], a VARCHAR)",
    "nested": "STRUCT(a STRUCT(b DECIMAL(9,1)), c BIGINT[])",
    "text": "VARCHAR",
    "types": "STRUCT(d DATE, e BLOB, f FLOAT, i TINYINT, j SMALLINT, k INTEGER, m TIME, n TIMESTAMP_NS, o BOOLEAN,"
    " p DECIMAL(9, 2), q DECIMAL(30, 1), t TIMESTAMP, u UUID)",
}
"""How a file stores its variants → the typed columns; ``plain``: only ``metadata`` and ``value``."""
JAVA_CANNOT_READ = "nested"
"""DuckDB leaves the names of a typed object's fields out of ``metadata``, where Java looks them up."""
WRITERS = ("arrow", "duckdb")
"""DuckDB writes no variant in a struct or list, so its files lack ``s`` and ``l``, and stores a variant that is null
where Arrow stores none."""


def variant_table(
    made: MaintainedTable,
    as_v2: Callable[[MaintainedTable], object] = lambda made: None,
    fields: Sequence[Mapping[str, Any]] = FIELDS,
) -> MaintainedTable:
    """A table by region of two files of ten rows, upgraded from v2: ids 0.. in us and 50.. in eu, without variants.

    ``as_v2`` changes it before the upgrade; ``fields`` are its other columns.
    """
    create_by_region(made, 1)
    as_v2(made)
    upgrade(made)

    def evolve(document: dict[str, Any]) -> None:
        (before,) = document["schemas"]
        document["schemas"].append({**before, "schema-id": 1, "fields": [*before["fields"], *fields]})
        document |= {"current-schema-id": 1, "last-column-id": 7}

    made.rewrite_document(evolve)
    return made


def delete_as_v2(made: MaintainedTable) -> None:
    """Delete ids 7 and 8 by two files of position deletes."""
    (path,) = (file.file_path for file in made.data_files() if file.partition == ("us",))
    for position in (7, 8):
        commit_deletes(made, [position_delete(path, position, "us")])


def partition_by(table: MaintainedTable, fields: Sequence[Mapping[str, Any]]) -> None:
    """Give the table another partition spec."""

    def change(document: dict[str, Any]) -> None:
        document["partition-specs"].append({"spec-id": 1, "fields": list(fields)})
        document |= {"default-spec-id": 1, "last-partition-id": 1001}

    table.rewrite_document(change)


BUCKETS = {"source-id": 1, "field-id": 1001, "name": "bucket", "transform": "bucket[2]"}


def append(
    table: MaintainedTable, ids: Sequence[int], region: str = "us", stored: str = "plain", writer: str = "arrow"
) -> str:
    """Append a data file with these ids as another engine does, and return its path."""
    location = table.loaded.metadata.data_location
    path = f"{location}/region={region}/{stored}-{writer}-{ids[0]}.parquet"
    write(local_path(path), ids, region, stored, writer)
    commit_files(table, [data_file(path, local_path(path).stat().st_size, (region,), records=len(ids))], {})
    return path


def write(path: Path, ids: Sequence[int], region: str, stored: str, writer: str) -> None:
    """Write a data file with field ids."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cases = " ".join(f"WHEN {number} THEN {value}" for number, value in enumerate(_VALUES))
    with duckdb.connect() as connection:
        connection.register("ids", pa.table({"i": pa.array(ids, pa.int64())}))
        columns = f"i AS id, '{region}' AS region, CASE i % 10 {cases} END AS v"
        connection.execute(f"CREATE TABLE t AS SELECT {columns} FROM ids")
        kind = SHREDDINGS[stored]
        if kind is None:
            columns = "id, region, variant_to_parquet_variant(v) AS v"
            found = connection.execute(f"SELECT {columns} FROM t ORDER BY id").to_arrow_table()
        else:
            options = (
                f"FORMAT parquet, COMPRESSION zstd, FIELD_IDS {{id: 1, region: 2, v: 3}}, SHREDDING {{v: '{kind}'}}"
            )
            connection.execute(f"COPY (FROM t ORDER BY id) TO '{path}' ({options})")
            if writer == "duckdb":
                return
            found = pq.ParquetFile(path).read()
    assert writer == "arrow", "DuckDB decides itself what it shreds"
    _write_with_arrow(path, found)


def _write_with_arrow(path: Path, found: pa.Table) -> None:
    """Write DuckDB's values also in a struct and in a list, without a value in every tenth row."""
    values = found["v"].combine_chunks()
    fields = [
        field.with_nullable(field.name == "typed_value" or (field.name == "value" and len(values.type) > 2))
        for field in values.type
    ]
    absent = pa.array([number % 10 == 0 for number in found["id"].to_pylist()])
    parts = [part.cast(field.type) for part, field in zip(values.flatten(), fields, strict=True)]
    values = pa.StructArray.from_arrays(parts, fields=fields, mask=absent)
    inside = pa.StructArray.from_arrays([values], fields=[_field("x", values.type, 5)], mask=absent)
    # Every list has its row's value and, except for the first row, the value before.
    starts = [max(0, 2 * number - 1) for number in range(len(values) + 1)]
    numbers = [n for number in range(len(values)) for n in (number, number - 1) if n >= 0]
    many = pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()), values.take(pa.array(numbers)), pa.list_(_field("element", values.type, 7))
    )
    arrays = [found["id"].combine_chunks(), found["region"].combine_chunks().cast(pa.string()), values, inside, many]
    names = zip(("id", "region", "v", "s", "l"), arrays, (1, 2, 3, 4, 6), strict=True)
    schema = pa.schema([_field(name, array.type, number) for name, array, number in names])
    pq.write_table(
        pa.table(arrays, schema), path, store_schema=False, compression="zstd", store_decimal_as_integer=True
    )
    _annotate(path, [("v", len(fields), 3), ("x", len(fields), 5), ("element", len(fields), 7)])


def _field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


# SchemaElement in Thrift's compact protocol, as Arrow writes it: name (4), num_children (5), field_id (9); then
# logicalType (10): VARIANT (16) of version 1 (1).
_VARIANT = bytes([0x1C, 0x0C, 0x20, 0x13, 0x01, 0, 0])


def _annotate(path: Path, groups: Sequence[tuple[str, int, int]]) -> None:
    """Say in the footer that these groups (name, children, field id) are variants, which Arrow does not."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8]
    for name, children, field_id in groups:
        element = bytes([0x18, len(name), *name.encode(), 0x15, 2 * children, 0x45, 2 * field_id])
        assert footer.count(element + b"\0") == 1
        footer = footer.replace(element + b"\0", element + _VARIANT + b"\0")
    path.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


# What readers find.

_PATHS = ("v", "v.a", "v.a.b", "v.b", "v.c[1]", "v.z.y", "s.x", "s.x.a", "l[1].b", "l[2]")


def seen_by_duckdb(table: MaintainedTable) -> Counter[tuple[Any, ...]]:
    """The id of each row, and each path's text and type; DuckDB applies the deletes."""
    names = {field["name"] for field in table.metadata.current_schema["fields"]}
    paths = [path for path in _PATHS if re.split(r"\W", path)[0] in names]
    columns = ", ".join(f"({path})::VARCHAR, variant_typeof(({path})::VARIANT)" for path in paths)
    query = f"SELECT id, region, {columns} FROM iceberg_scan('{table.metadata_location}')"
    return Counter(_iceberg().execute(query).fetchall())


@functools.cache
def _iceberg() -> Any:
    """DuckDB with its extension for Iceberg, in this process."""
    connection = duckdb_child.connect(None)
    connection.execute("SET enable_external_file_cache = false")  # tests put other bytes under the same name
    return connection


def seen_by_java(table: MaintainedTable, tables: JavaTables) -> dict[int, str]:
    """Id → the row with its types and its row id; no value is ``null``, a variant that is null is not."""
    return {row["1"]: json.dumps(row) for row in tables.open(table.metadata_location).rows(lineage=True)}


def stored(table: MaintainedTable) -> dict[int, str]:
    """Id → the bytes of every part of the variants in the row's data file, without deleted rows."""
    query = f"SELECT id FROM iceberg_scan('{table.metadata_location}')"
    alive = {row_id for (row_id,) in _iceberg().execute(query).fetchall()}
    tables = (pq.ParquetFile(local_path(file.file_path)).read() for file in data_files(table))
    rows = (row for found in tables for row in found.to_pylist() if row["id"] in alive)
    return {row["id"]: repr([row.get(column["name"]) for column in FIELDS]) for row in rows}


def annotated(path: str) -> Collection[str]:
    """The columns of a file that have or contain a variant, by the footer."""
    with duckdb.connect() as connection:
        described = connection.execute(f"DESCRIBE FROM '{local_path(path)}'").fetchall()
    return {name for name, kind, *_ in described if "VARIANT" in kind}


@dataclass(frozen=True)
class Kept:
    """What no operation may change."""

    rows: Counter[tuple[Any, ...]]
    stored: dict[int, str]
    lineage: Lineage

    @classmethod
    def of(cls, table: MaintainedTable) -> Kept:
        found = stored(table)
        ids = Counter({row: count for row, count in lineage(table).items() if row[0] in found})
        return cls(seen_by_duckdb(table), found, ids)
