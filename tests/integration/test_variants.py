"""Variants: rows, and the bytes of their values, are the same before and after each operation."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from support.variants import SHREDDINGS, WRITERS, annotated, write

AS_TEXT = [
    None,
    None,
    "{'a': 102, 'b': text 102}",
    "{'a': {'b': 154.5}, 'c': [103, NULL]}",
    "{'a': not a number, 'b': NULL}",
    "[105, mixed, {'a': [true, NULL]}]",
    "106",
    "text 107",
    "{'d': 2024-02-29, 'e': x108, 't': '2024-02-29 12:34:56.789'}",
    "{'a': 109, 'b': more, 'z': {'y': 36.333333333333336}}",
]


@pytest.mark.parametrize(
    ("stored", "writer"), [(s, w) for s in SHREDDINGS for w in WRITERS if (s, w) != ("plain", "duckdb")]
)
def test_readers_find_the_same_however_a_writer_stores_variants(stored: str, writer: str, tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    write(path, range(100, 110), "us", stored, writer)
    assert annotated(str(path)) == ({"v"} if writer == "duckdb" else {"v", "s", "l"})
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT v::VARCHAR FROM '{path}' ORDER BY id").fetchall()
    assert [text for (text,) in found] == AS_TEXT
