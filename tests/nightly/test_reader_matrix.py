"""Writer × operation × reader: every table is read by readers that share no code; tests/interop asks of some tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.iceberg_java import IcebergJava
from support.java_writer import JavaTables
from support.judges.readers import READERS, problems
from support.judges.tables import ARROW, FOREIGN, NEEDS_JUDGES, OPERATIONS, Judged, judged_tables

pytestmark = NEEDS_JUDGES
WRITERS = (
    ("java",),
    ("pyiceberg",),
    *((writer,) for writer in (*ARROW, *FOREIGN)),
    ("pyiceberg", "java", "arrow with page index", "rust", "polars"),
    ("java", "duckdb 2", "arrow, sorted", "pyiceberg", "java"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def tables(java_tables: JavaTables, folder: Path) -> list[Judged]:
    cases = [(writers, operation) for writers in WRITERS for operation in OPERATIONS]
    return judged_tables(cases, folder, java_tables)


@pytest.mark.parametrize("reader", [*READERS, "java"])
def test_a_reader_finds_the_rows_that_were_written(
    reader: str, tables: list[Judged], folder: Path, iceberg_java: IcebergJava
) -> None:
    assert problems(reader, tables, folder, iceberg_java) == []
