"""A few tables of the matrix writer × operation × reader; tests/nightly has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.java_writer import JavaTables
from support.judges.readers import READERS, problems
from support.judges.tables import NEEDS_JUDGES, Judged, judged_tables

pytestmark = NEEDS_JUDGES
# Every writer's files are copied by row groups in one of them: a table is not made otherwise.
CASES = (
    (("java",), "copy beside decoded"),
    (("pyiceberg",), "copy"),
    (("duckdb 2",), "equality deletes"),
    (("arrow, sorted",), "copy"),
    (("java", "polars", "rust", "arrow with page index", "pyiceberg"), "vectors"),
    (("polars",), "manifests under position deletes"),
    (("rust",), "sort"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def tables(java_tables: JavaTables, folder: Path) -> list[Judged]:
    return judged_tables(CASES, folder, java_tables)


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_finds_the_rows_that_were_written(
    reader: str, tables: list[Judged], folder: Path, spark_session: object
) -> None:
    assert problems(reader, tables, folder) == []
