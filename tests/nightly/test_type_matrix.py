"""The matrix type × operation × reader: every type of the specification, and why a cell is refused or not read.

A cell that is missing here succeeds, and every reader finds its rows.  A stated refusal or error that no longer occurs
fails, too, so that no gap closes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.table import StaticTable
from pyspark.errors.exceptions.captured import CapturedException

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.erasure.row_filter import Wanted
from icekeeper.errors import MaintenanceError
from icekeeper.model import FileContent
from icekeeper.report.activity import silent
from icekeeper.verification.deep import Extent, verify_deep
from support.duckdb_session import arrow_rows, shared_duckdb
from support.iceberg_java import IcebergJava
from support.java_writer import JavaTables
from support.judges.readers import SERVED
from support.judges.tables import NEEDS_JUDGES, served
from support.maintained_table import NAME, local_path
from support.source_tree import ROOT
from support.type_matrix import KINDS, TRANSFORMS, Kind, Written, shown, written
from support.v3 import live, manifests

pytestmark = NEEDS_JUDGES

_COPY = {"min_row_group_copy_bytes": "1"}
PASSES: Mapping[str, tuple[str, dict[str, str]]] = {
    "copy": ("compact", _COPY),
    "decode": ("compact", {}),
    "sort": ("compact", {"strategy": "sort", "sort_order": "v desc nulls last"}),
    "z-order": ("compact", {"strategy": "zorder", "sort_order": "id,v"}),
    **{transform: ("compact", {}) for transform in TRANSFORMS},
    "equality deletes": ("compact", {}),
    "where": ("compact", {"where": "v = {}"}),
    "rewrite_position_deletes": ("rewrite_position_deletes", {}),
    "expire": ("expire_snapshots", {}),
    "rewrite_manifests": ("rewrite_manifests", {}),
    "default": ("compact", _COPY),
    "statistics": ("compute_statistics", {"statistics_columns": "v"}),
}
"""Operations with their settings; the table of each has what it needs (:func:`support.type_matrix.written`)."""
READING = ("verify --deep", "erased")

ALL = tuple(KINDS)
NESTED, SHAPES = ("struct", "list", "map"), ("geometry", "geography")
OPAQUE = (*SHAPES, "variant")
NANOS = ("timestamp_ns", "timestamptz_ns")
IN_V3 = tuple(name for name, kind in KINDS.items() if kind.since == 3)
NOT_STORED: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("default",): ("unknown", *OPAQUE),  # the specification allows null only
    ("equality deletes",): ("unknown",),  # no file stores the key
    **{(t,): tuple(name for name, kind in KINDS.items() if not kind.applies(t)) for t in TRANSFORMS},
}
"""Operations → types for which the specification has no such table."""
REFUSED: Sequence[tuple[tuple[str, ...], tuple[str, ...], str]] = (
    (("sort", "z-order"), NESTED, "names column 'v', which does not exist in the table or cannot be sorted"),
    (("sort", "z-order"), ("unknown", *OPAQUE), ", which cannot be sorted"),
    (("identity",), ("fixed",), "because Iceberg-Java cannot read partitions by the fixed bytes of p"),
    (("equality deletes",), (*NESTED, *OPAQUE), ", which has no equality"),
    (("where", "erased"), (*NESTED, "unknown", *OPAQUE), "Could not convert 'x' into a"),
    (("statistics",), (*NESTED, "unknown", *OPAQUE), "for which there are no statistics"),
    (("rewrite_position_deletes",), IN_V3, "no position delete files eligible for merging"),
)
"""Operations and types → a part of the sentence of the outcome."""
_WITH_NULLS = ("copy", "expire", "rewrite_manifests")
UNREAD: Sequence[tuple[str, tuple[str, ...], tuple[str, ...], str | None]] = (
    ("duckdb", ("timestamptz_ns", "unknown"), (), "Unrecognized primitive type: "),
    ("duckdb", ("geography",), (), "Not implemented Error: Geography support"),
    ("duckdb", ("geometry",), ("expire", "rewrite_manifests"), "Conversion Error"),
    ("duckdb", NESTED, ("default",), "PrimitiveTypeValue failed to parse"),
    ("pyiceberg", SHAPES, (), "Cannot promote an binary to geo"),
    ("pyiceberg", ("variant",), (), "Unsupported field type: 'variant'"),
    ("pyiceberg", (*NESTED, *NANOS), ("default",), "Cannot deserialize bytes, type "),
    ("pyiceberg", NANOS, ("identity", "rewrite_manifests"), "Unknown logical/physical type combination"),
    ("java", SHAPES, ("copy", "decode"), "Unsupported logical type: GEO"),
    ("java", NESTED, ("default",), "Cannot create expression literal from"),
    ("spark", ("time",), (), "Spark does not support time fields"),
    ("spark", (*NANOS, "unknown", *SHAPES), (), "Cannot convert unknown type to Spark"),
    ("spark", ("variant",), (), "Unsupported type: variant"),
    ("spark", NESTED, ("default",), "Cannot create expression literal from"),
    ("iceberg-rust", ("unknown", *SHAPES), (), "Failed to load static table"),
    ("iceberg-rust", ("variant",), (), "Reading variant columns is not supported yet"),
    ("iceberg-rust", ("uuid", *NANOS), ("identity", "rewrite_manifests"), "Failed to load manifest"),
    ("datafusion", ("unknown",), (), "No field named v"),
    ("datafusion", ALL, ("rewrite_position_deletes",), None),
    ("polars", ALL, ("rewrite_position_deletes",), "position delete file not limited to one data file"),
    ("polars", (*NESTED, *NANOS), ("default",), "Cannot deserialize bytes, type "),
    ("polars", ("variant",), (), "Unsupported field type: 'variant'"),
    ("polars", SHAPES, ("copy", "decode"), "LogicalType union has no variant set"),
    ("chdb", ("unknown", *OPAQUE), (), "Cannot parse Iceberg table schema"),
    ("chdb", ("time",), (), "instead of"),  # it reads seconds as integers
    ("chdb", NESTED, (*_WITH_NULLS, "default"), "instead of"),  # it has no null structs, lists and maps
    ("chdb", ("binary",), (), "'utf-8' codec can't decode byte 0xff"),
    ("chdb", ("uuid",), ("identity", "rewrite_manifests"), "Cannot parse uuid"),
    ("chdb", NANOS, ("identity", "rewrite_manifests"), "Decimal math overflow"),
    ("chdb", ("decimal",), ("truncate[2]",), "Second argument must be of native integer type"),
)
"""Reader, types and operations (none: all) → a part of its error or wrong answer; ``None``: it is not run, because it
reads the data files only."""


@dataclass(frozen=True)
class Cell:
    """A table after its operation, and the outcome as text."""

    name: str
    operation: str
    made: Written
    answer: str

    @property
    def kind(self) -> Kind:
        return KINDS[self.name]

    @property
    def columns(self) -> list[str]:
        return ["id", "v", "d"] if self.operation == "default" else ["id", "v"]

    @property
    def refusal(self) -> str | None:
        """What the answer must say if the operation does not do its work."""
        found = [text for ops, names, text in REFUSED if self.operation in ops and self.name in names]
        return found[0] if found else None

    @property
    def is_judged(self) -> bool:
        return self.refusal is None and self.operation in PASSES and self.operation != "statistics"


def answer_of(kind: Kind, operation: str, made: Written) -> str:
    table = made.table
    try:
        if operation == "verify --deep":
            return str(problems(made))
        if operation == "erased":
            document = table.runtime.erased(NAME, Wanted(where=f"v = {kind.literal}"), LocalEngine(1))
            return f"{document['answer']} in {max(place['rows'] for place in document['places'])} rows"
        name, templates = PASSES[operation]
        settings: dict[str, Any] = {key: text.format(kind.literal) for key, text in templates.items()}
        (outcome,) = table.maintain(name, **settings).operations
    except MaintenanceError as error:
        return str(error)
    if operation == "statistics" and outcome.summary.startswith("computed"):
        (blob,) = table.metadata.document["statistics"][0]["blob-metadata"]
        return f"{outcome.summary}: {blob['properties']['ndv']} values"
    return outcome.summary


def problems(made: Written) -> list[str]:
    table = made.table
    found = verify_deep(table.loaded, table.storage, LocalEngine(1), Extent(), silent, table.verify())
    return [*(problem.detail for problem in found.problems), *found.unread.values()]


def wanted_answer(kind: Kind, operation: str) -> str:
    """The outcome of an operation that does its work."""
    command, _ = PASSES.get(operation, ("", {}))
    if operation == "verify --deep":
        return "[]"
    if operation == "erased":
        return "present in 3 rows"
    if command == "compact":
        files = {"where": 2, **dict.fromkeys(TRANSFORMS, 6)}.get(operation, 3)
        return f"compacted {files} files into "
    return {
        "rewrite_position_deletes": "rewrote 6 position delete files into 1",
        "expire_snapshots": "expired",
        "rewrite_manifests": "rewrote",
        "compute_statistics": "computed statistics of 1 column(s) over 9 row(s): 2 values",
    }[command]


@pytest.fixture(scope="module")
def cells(java_tables: JavaTables, tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    folder = tmp_path_factory.mktemp("types")
    absent = {(op, name) for (op,), names in NOT_STORED.items() for name in names}
    pairs = [(n, op) for n in KINDS for op in (*PASSES, *READING) if (op, n) not in absent]
    found = []
    for number, (name, operation) in enumerate(pairs):
        made = written(KINDS[name], operation, java_tables, folder / str(number))
        found.append(Cell(name, operation, made, answer_of(KINDS[name], operation, made)))
    return found


@pytest.mark.parametrize("name", KINDS)
def test_each_operation_does_its_work_or_says_why_not(name: str, cells: list[Cell]) -> None:
    wrong = []
    for cell in (cell for cell in cells if cell.name == name):
        wanted = cell.refusal or wanted_answer(cell.kind, cell.operation)
        if wanted not in cell.answer:
            wrong.append(f"{cell.operation}: {cell.answer}, not: {wanted}")
        wrong += [f"{cell.operation}: {problem}" for problem in problems(cell.made)]
        if cell.made.table.metadata.document["schemas"] != cell.made.schemas:
            wrong.append(f"{cell.operation}: other types or defaults")
        if cell.operation in TRANSFORMS and cell.refusal is None:
            used = {path for path, _ in live(cell.made.table)}
            specs = {m.partition_spec_id for m in manifests(cell.made.table) if m.manifest_path in used}
            wrong += [f"{cell.operation}: files are in specs {specs}"] if specs != {1} else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_java_refuses_partitions_that_the_specification_lacks(
    transform: str, java_tables: JavaTables, tmp_path: Path
) -> None:
    for name in NOT_STORED[(transform,)]:
        made = written(KINDS[name], transform, java_tables, tmp_path / name)
        if (name, transform) == ("unknown", "identity"):  # its partitions would all be null
            made.java.take_over(made.table.metadata_location)
            continue
        with pytest.raises((Py4JJavaError, CapturedException), match=r"Cannot|Unsupported"):
            made.java.take_over(made.table.metadata_location)


# The readers.

READERS = {"duckdb": "DuckDB", "pyiceberg": "PyIceberg", "java": "Iceberg-Java", "spark": "Spark 3.5"} | dict(
    zip(SERVED, ("iceberg-rust", "DataFusion", "polars", "ClickHouse"), strict=True)
)
Answer = list[list[Any]] | str
"""The rows, or the error of the reader."""


def gap(reader: str, cell: Cell) -> str | None:
    """A part of the reader's error for a cell; empty if it reads the rows, ``None`` if it is not run."""
    for who, names, operations, text in UNREAD:
        if who == reader and cell.name in names and cell.operation in (operations or PASSES):
            return text
    return ""


def _here(reader: str, java: IcebergJava) -> Callable[[Cell], list[list[Any]]]:
    def by_name(rows: Sequence[Mapping[str, Any]], cell: Cell) -> list[list[Any]]:
        return [[row[column] for column in cell.columns] for row in rows]

    def generic(cell: Cell) -> list[list[Any]]:
        cell.made.java.take_over(cell.made.table.metadata_location)
        return [list(row.values()) for row in cell.made.java.rows()]

    def pyiceberg(cell: Cell) -> list[list[Any]]:
        static = StaticTable.from_metadata(cell.made.table.metadata_location)
        return by_name(arrow_rows(static.scan().to_arrow()), cell)

    return {
        "duckdb": lambda cell: by_name(shared_duckdb().rows(cell.made.table.metadata_location), cell),
        "pyiceberg": pyiceberg,
        "java": generic,
        "spark": lambda cell: by_name(java.rows(cell.made.table.metadata_location), cell),
    }[reader]


def _rows_here(reader: str, cells: Sequence[Cell], java: IcebergJava) -> Iterator[Answer]:
    read = _here(reader, java)
    for cell in cells:
        try:
            yield read(cell)
        except (Exception, AssertionError) as error:  # whatever a reader raises
            yield " ".join(f"{type(error).__name__}: {error}".split())


def _rows_served(reader: str, cells: Sequence[Cell], folder: Path) -> Iterator[Answer]:
    answers: dict[str, Any] = {}
    for columns in {tuple(cell.columns) for cell in cells}:
        tables = [_task(n, cell) for n, cell in enumerate(cells) if tuple(cell.columns) == columns]
        sql = f"SELECT {', '.join(columns)} FROM t"
        answers |= served({"reader": reader, "questions": {"rows": sql}, "tables": tables}, folder)
    for number in range(len(cells)):
        yield answers[str(number)]["rows"]


def _task(number: int, cell: Cell) -> dict[str, Any]:
    table = cell.made.table
    data = [str(local_path(f.file_path)) for f in table.data_files() if f.content is FileContent.DATA]
    metadata = str(local_path(table.metadata_location))
    return {"name": str(number), "metadata": metadata, "folder": str(table.folder), "data": data}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_finds_every_row_or_cannot_read_the_type(
    reader: str, cells: list[Cell], iceberg_java: IcebergJava, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chosen = [cell for cell in cells if cell.is_judged and gap(reader, cell) is not None]
    folder = tmp_path_factory.getbasetemp()
    answers = _rows_served(reader, chosen, folder) if reader in SERVED else _rows_here(reader, chosen, iceberg_java)
    wrong = []
    for cell, answer in zip(chosen, answers, strict=True):
        wanted = shown(([number, *row] for number, row in cell.made.rows.items()), cell.kind)
        found = answer if isinstance(answer, str) else shown(answer, cell.kind)
        problem = "" if found == wanted else f"{str(found)[:400]} instead of {str(wanted)[:100]}"
        expected = gap(reader, cell)
        if not (expected in problem if expected else problem == ""):
            wrong.append(f"{cell.name}, {cell.operation}: {problem or 'the rows'}, not: {expected}")
    assert not wrong, "\n".join(wrong)


# The page.

_PAGE = ROOT / "docs" / "operations" / "index.md"
_COMPARES = ("sort", "z-order", "equality deletes", "where", "erased", "statistics")


def test_the_page_shows_the_matrix(cells: list[Cell]) -> None:
    found = {(cell.name, cell.operation): cell for cell in cells}

    def yes(name: str, operation: str) -> str:
        cell = found.get((name, operation))
        return "yes" if cell is not None and cell.refusal is None else "no"

    rows: dict[tuple[str, ...], list[str]] = {}
    for name in KINDS:
        (is_compared,) = {yes(name, operation) for operation in _COMPARES}
        by = ", ".join(t.partition("[")[0] for t in TRANSFORMS if yes(name, t) == "yes") or "no"
        unread = [READERS[r] for r in READERS if any(gap(r, found[name, o]) for o in ("copy", "decode"))]
        rows.setdefault((is_compared, by, yes(name, "default"), ", ".join(unread)), []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {' | '.join(row)} |".replace("|  |", "| |") for row, names in rows.items()]
    assert "\n".join(lines) in _PAGE.read_text(), "\n".join(lines)
