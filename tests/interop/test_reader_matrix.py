"""The matrix writer × operation × reader: independent readers find the written rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.examples import NIGHTLY
from support.iceberg_java import IcebergJava
from support.java_writer import JavaTables
from support.judges.readers import READERS, problems
from support.judges.tables import ARROW, FOREIGN, NEEDS_JUDGES, OPERATIONS, Judged, judged_tables

pytestmark = NEEDS_JUDGES
# Each writer's files are copied by row groups in at least one case.
CASES = (
    (("java",), "copy beside decoded"),
    (("pyiceberg",), "copy"),
    (("duckdb 2",), "equality deletes"),
    (("arrow, sorted",), "copy"),
    (("java", "polars", "rust", "arrow with page index", "pyiceberg"), "vectors"),
    (("polars",), "manifests under position deletes"),
    (("rust",), "sort"),
)
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
    every = [(writers, operation) for writers in WRITERS for operation in OPERATIONS]
    return judged_tables(every if NIGHTLY else CASES, folder, java_tables)


@pytest.mark.parametrize("reader", [*READERS, *(["java"] if NIGHTLY else [])])
def test_a_reader_finds_the_written_rows(
    reader: str, tables: list[Judged], folder: Path, iceberg_java: IcebergJava
) -> None:
    assert problems(reader, tables, folder, iceberg_java) == []
