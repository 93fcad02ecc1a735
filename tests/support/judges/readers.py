"""Runs the queries in every reader, and reports wrong answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyiceberg.table import StaticTable

from support.duckdb_session import arrow_rows, shared_duckdb
from support.iceberg_java import IcebergJava
from support.judges.questions import COLUMNS, QUESTIONS, Question
from support.judges.served import plain
from support.judges.tables import Judged, served

SERVED = ("iceberg-rust", "datafusion", "polars", "chdb")
"""Readers in the judges' environment."""
HERE = ("duckdb", "pyiceberg")
READERS = (*SERVED, *HERE)
Answers = Mapping[str, Mapping[str, Any]]
"""Rows, or an error as text, by table and query."""
UNREAD: Mapping[tuple[str, str], str | None] = {
    # It reads only the data files.
    ("datafusion", "positions"): None,
    ("datafusion", "vectors"): None,
    # ClickHouse does not support deletion vectors.
    ("chdb", "vectors"): "Position deletes are supported only for parquet format",
    # Spark's vectorised reader cannot read booleans in RLE, which Arrow writes into pages of version 2.  Copied row
    # groups keep them, decoded files do not.
    ("java", "booleans in RLE"): "Cannot support vectorized reads for column [flag]",
    # This is polars' native reader; by default, polars leaves such tables to PyIceberg.
    ("polars", "partition-wide deletes"): "position delete file not limited to one data file",
    # polars' files declare string views of Arrow; Icekeeper's do not.
    ("pyiceberg", "string views"): "string_view",
    # PyArrow compares zeros by their bits if a footer's bounds are equal (platform: arrow-equal-bounds); Icekeeper
    # writes no such bounds.
    ("pyiceberg", "equal zeros"): "price IN (0.0, 7.25, 8.5): 1 rows",
}
"""Reader and unsupported feature → text of its error; ``None``: it is not run, because it would not notice."""


def problems(reader: str, tables: Sequence[Judged], folder: Path, java: IcebergJava | None = None) -> list[str]:
    """The wrong answers of a reader; a single process or session reads all tables."""
    readable = [table for table in tables if not any(UNREAD.get((reader, thing), "") is None for thing in table.has)]
    if reader in SERVED:
        questions = {question.sql: question.sql for question in QUESTIONS}
        task = {"reader": reader, "questions": questions, "tables": [_task(table) for table in readable]}
        answers: Answers = served(task, folder)
    else:
        ask = {"duckdb": _duckdb, "pyiceberg": _pyiceberg}.get(reader) or _spark(java)
        answers = {table.name: ask(table) for table in readable}
    return [problem for table in readable for problem in _problems_of(reader, table, answers[table.name])]


def _task(table: Judged) -> dict[str, Any]:
    return {key: value for key, value in asdict(table).items() if key in ("name", "metadata", "folder", "data")}


def _problems_of(reader: str, table: Judged, answers: Mapping[str, Any]) -> list[str]:
    refusals = [text for thing in table.has if (text := UNREAD.get((reader, thing))) is not None]
    failed: Counter[str] = Counter()
    found = []
    for question in QUESTIONS:
        answer = answers.get(question.sql, [])
        if isinstance(answer, str):
            failed[answer] += 1
        elif question.sql in answers and (problem := question.problem(table.rows, answer)) is not None:
            found.append(problem)
    found += [f"{count} questions: {error}" for error, count in failed.items()]
    wrong = [line for line in found if not any(text in line for text in refusals)]
    wrong += [f"no question fails with: {text}" for text in refusals if not any(text in line for line in found)]
    return [f"{reader}: {table.name}: {line}" for line in wrong]


def _duckdb(table: Judged) -> dict[str, Any]:
    chosen = [question for question in QUESTIONS if question.condition is not None]
    conditions = [question.condition or "" for question in chosen]
    found = shared_duckdb().ids_where(table.metadata, conditions)
    answers = {q.sql: a if isinstance(a, str) else [[i] for i in a] for q, a in zip(chosen, found, strict=True)}
    answers[QUESTIONS[0].sql] = _plain_rows(shared_duckdb().rows(table.metadata))
    return answers


def _pyiceberg(table: Judged) -> dict[str, Any]:
    """The answers of PyIceberg, which supports filters, but no order."""
    static = StaticTable.from_metadata(table.metadata)

    def answer(condition: str | None) -> Any:
        try:
            if condition is None:
                return _plain_rows(arrow_rows(static.scan().to_arrow()))
            scan = static.scan(row_filter=condition.replace("DATE '", "'"), selected_fields=("id",))
            return [[i] for i in scan.to_arrow()["id"].to_pylist()]
        except pa.ArrowException as error:
            return str(error)

    chosen = [question for question in QUESTIONS if question.condition is not None and not question.ordered]
    return {question.sql: answer(question.condition) for question in (QUESTIONS[0], *chosen)}


def _spark(java: IcebergJava | None) -> Callable[[Judged], dict[str, Any]]:
    assert java is not None, "no session of Spark was given"

    def ask(table: Judged) -> dict[str, Any]:
        java.session.read.format("iceberg").load(table.metadata).createOrReplaceTempView("t")
        return {question.sql: _collected(question) for question in QUESTIONS}

    def _collected(question: Question) -> list[list[Any]] | str:
        try:
            return [[plain(value) for value in row] for row in java.session.sql(question.sql).collect()]
        except Py4JJavaError as error:
            return " ".join(str(error).splitlines()[:2])[:500]

    return ask


def _plain_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    return [[plain(row[name]) for name in COLUMNS.names] for row in rows]
