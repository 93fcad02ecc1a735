"""Variants by Iceberg-Java and DuckDB: every kind of storage under every operation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.java_writer import JavaTables
from support.maintained_table import maintained_table
from support.variants import JAVA_CANNOT_READ, SHREDDINGS, WRITERS, append, seen_by_java, variant_table

READ_BY_JAVA = [(s, w) for s in SHREDDINGS for w in WRITERS if (s, w) != ("plain", "duckdb") and s != JAVA_CANNOT_READ]


@pytest.mark.parametrize(("stored", "writer"), READ_BY_JAVA)
def test_java_reads_each_storage_and_each_kind_of_null(
    stored: str, writer: str, tmp_path: Path, java_tables: JavaTables
) -> None:
    with maintained_table(tmp_path) as made:
        table = variant_table(made)
        append(table, range(100, 110), "us", stored, writer)
        found = {number: json.loads(row) for number, row in seen_by_java(table, java_tables).items()}
    null = "Variant(type=NULL, value=null)"
    assert (found[0]["3"], found[0]["4"], found[0]["6"]) == (None, None, None)
    assert found[100]["3"] == (None if writer == "arrow" else null)
    assert found[101]["3"] == null
    assert found[101]["4"] == ({"5": null} if writer == "arrow" else None)
    assert (
        found[102]["3"]
        == "VariantObject(fields={a: Variant(type=INT64, value=102), b: Variant(type=STRING, value=text 102)})"
    )
