"""How variants are stored in the files of a table: found in a footer, put into a schema, told apart."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from icekeeper.errors import TableUnsupported
from icekeeper.operations.compaction.terms.write_properties import writer_options
from icekeeper.row_group_copy.footer import fitted_schema, parquet_schema, read_footer
from icekeeper.row_group_copy.footer_structs import CannotCopy, LogicalType, SchemaElement, VariantType
from icekeeper.rows.arrow_schema import (
    UNSHREDDED,
    StoredVariant,
    arrow_schema,
    leaf_columns,
    stored_schema,
    variant_ids,
    variants_of_file,
    with_variants,
)
from icekeeper.rows.file_rows import projected_rows, schema_of
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.storage import Storage
from support.rewrites import struct

INNER = pa.struct([("value", pa.binary()), ("typed_value", pa.int8())])
SHREDDED = pa.struct(
    [
        pa.field("metadata", pa.binary(), False),
        pa.field("value", pa.binary()),
        pa.field("typed_value", pa.struct([("a", INNER), ("b", pa.list_(pa.field("element", INNER)))])),
    ]
)
MANY = {"type": "list", "element-id": 5, "element": "variant", "element-required": False}
NAMED = {"type": "map", "key-id": 8, "key": "string", "value-id": 9, "value": "variant", "value-required": False}
INSIDE = struct((4, "w", "variant"), (6, "many", MANY), (7, "named", NAMED))
SCHEMA = struct((1, "id", "long"), (2, "v", "variant"), (3, "s", INSIDE))
STORED = ((2, SHREDDED), (4, UNSHREDDED), (5, UNSHREDDED), (9, UNSHREDDED))


def test_a_variant_is_a_column_with_the_leaf_columns_of_its_files() -> None:
    assert stored_schema(SCHEMA) == SCHEMA
    assert variant_ids(SCHEMA) == [2, 4, 5, 9]
    schema = with_variants(SCHEMA, STORED)
    leaves = leaf_columns(schema)
    assert [(leaf.field_id, leaf.parquet_path) for leaf in leaves] == [
        (1, "id"),
        (2, "v.metadata"),
        (2, "v.value"),
        (2, "v.typed_value.a.value"),
        (2, "v.typed_value.a.typed_value"),
        (2, "v.typed_value.b.list.element.value"),
        (2, "v.typed_value.b.list.element.typed_value"),
        (4, "s.w.metadata"),
        (4, "s.w.value"),
        (5, "s.many.list.element.metadata"),
        (5, "s.many.list.element.value"),
        (8, "s.named.key_value.key"),
        (9, "s.named.key_value.value.metadata"),
        (9, "s.named.key_value.value.value"),
    ]
    assert {leaf.field_id for leaf in leaves if leaf.repeated} == {2, 4, 5, 8, 9}
    assert [b".".join(column.path).decode() for column in parquet_schema(schema).columns] == [
        leaf.parquet_path for leaf in leaves
    ]
    assert variants_of_file(arrow_schema(schema), [2, 4, 5, 9]) == STORED
    copied = pickle.loads(pickle.dumps(schema))
    assert arrow_schema(copied).equals(arrow_schema(schema), check_metadata=True)
    assert isinstance(copied["fields"][1]["type"], StoredVariant)
    assert with_variants(struct((1, "id", "long")), ()) == struct((1, "id", "long"))


def test_no_part_of_a_variant_gets_a_bloom_filter() -> None:
    """Arrow fails at one of booleans; Iceberg-Java makes none either, because the parts have no field ids."""
    leaves = leaf_columns(with_variants(SCHEMA, STORED))
    wanted = {f"write.parquet.bloom-filter-enabled.column.{leaf.name}": "true" for leaf in leaves}
    assert set(writer_options(wanted, leaves, 10)["bloom_filter_options"]) == {"id", "s.named.key_value.key"}


def test_a_file_without_a_variant_counts_as_not_shredded() -> None:
    assert variants_of_file(arrow_schema(struct((1, "id", "long"))), [2]) == ((2, UNSHREDDED),)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (pa.schema([("v", SHREDDED)]), "it has no field ids"),
        (arrow_schema(struct((2, "v", "binary"))), "it stores no variant in column 2"),
        (arrow_schema(struct((2, "v", struct((3, "metadata", "binary"))))), "it stores no variant in column 2"),
    ],
    ids=["no ids", "bytes", "a struct"],
)
def test_a_file_that_stores_something_else_is_refused(stored: pa.Schema, why: str) -> None:
    with pytest.raises(TableUnsupported, match=why):
        variants_of_file(stored, [2])


def wanted(kind: pa.StructType) -> Any:
    return parquet_schema(with_variants(struct((1, "id", "long"), (2, "v", "variant")), ((2, kind),)))


def test_only_files_with_the_same_columns_of_a_variant_share_an_output() -> None:
    target = wanted(SHREDDED)
    fitted_schema(target.elements, target)
    assert [element.logical_type for element in target.elements if element.name == b"v"] == [
        LogicalType(variant=VariantType(1))
    ]

    def refused(elements: Any, why: str) -> None:
        with pytest.raises(CannotCopy, match=re.escape(why)):
            fitted_schema(elements, target)

    refused(wanted(UNSHREDDED).elements, "another children")
    later = [_with_version(element, 2) if element.name == b"v" else element for element in target.elements]
    refused(later, "has a column 'v' that differs from the table's current schema: another annotation")
    fitted_schema([_with_version(e, None) if e.name == b"v" else e for e in target.elements], target)


def _with_version(element: SchemaElement, version: int | None) -> SchemaElement:
    return replace(element, logical_type=LogicalType(variant=VariantType(version)))


def test_arrow_writes_the_columns_into_which_duckdb_shreds(tmp_path: Path) -> None:
    """So files of DuckDB are copied, except those with decimals of 19 to 37 digits, which it writes in 16 bytes."""
    parts = ["i::TINYINT", "i::SMALLINT", "i::INTEGER", "i::BIGINT", "i::FLOAT", "i::DOUBLE", "i::DECIMAL(9, 2)"]
    parts += ["i::DECIMAL(18, 2)", "i::DECIMAL(38, 3)", "true", "'a'", "'a'::BLOB", "uuid()", "DATE '2020-01-01'"]
    parts += ["TIME '01:02:03'", "TIMESTAMP '2020-01-01'", "TIMESTAMPTZ '2020-01-01'", "TIMESTAMP_NS '2020-01-01'"]
    parts += ["[i]", "{'x': [{'y': i}]}"]
    value = ", ".join(f"f{number}: {part}" for number, part in enumerate(parts))
    query = f"SELECT i::BIGINT AS id, {{{value}}}::VARIANT AS v FROM range(9) t(i)"
    duckdb.sql(f"COPY ({query}) TO '{tmp_path / 'a.parquet'}' (FORMAT parquet, FIELD_IDS {{id: 1, v: 2}})")
    footer = read_footer(str(tmp_path / "a.parquet"), Storage({}))
    variants = variants_of_file(schema_of(footer.seen_by_arrow()), [2])
    schema = with_variants(struct((1, "id", "long"), (2, "v", "variant")), variants)
    target = parquet_schema(schema)
    assert len(target.columns) == 3 + 2 * (len(parts) + 2)
    fitted_schema(footer.metadata().schema, target)
    (rows,) = projected_rows(ReadableFile(str(tmp_path / "a.parquet")), schema, Storage({}))
    assert rows.num_rows == 9
