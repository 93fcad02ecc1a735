"""Tables of every writer after one operation, and the judges' environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from icekeeper.model import FileContent
from icekeeper.report.outcome import Status
from support import v3
from support.deletes import commit_deletes, equality_delete, position_delete
from support.java_writer import JavaTables
from support.judges.questions import COLUMNS, FILES, Row, arrow_table, file_rows
from support.maintained_table import MaintainedTable, local_path, new_table, registered_table
from support.source_tree import ROOT

# The judges' environment, which ``make`` sets up, and calls into it.

_PYTHON = ROOT / os.environ.get("JUDGES_PYTHON", "build/judges/bin/python")
NEEDS_JUDGES = pytest.mark.skipif(
    "JUDGES_PYTHON" not in os.environ and not _PYTHON.exists(),
    reason="'make test' and 'make nightly' set up build/judges, an environment of other readers",
)
_SERVED = Path(__file__).with_name("served.py")


def served(task: Mapping[str, Any], folder: Path) -> Any:
    """The answers of a new process, which may read and write below the folder."""
    done = subprocess.run(
        [str(_PYTHON), str(_SERVED)],
        cwd=folder,
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# Tables of every writer, each after one operation, and their remaining rows.

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "text", StringType()),
    NestedField(3, "price", DoubleType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "amount", DecimalType(10, 2)),
    NestedField(6, "seen", TimestamptzType()),
    NestedField(7, "ratio", FloatType()),
    NestedField(8, "flag", BooleanType()),
    NestedField(9, "point", StructType(NestedField(11, "x", IntegerType()), NestedField(12, "y", DoubleType()))),
    NestedField(10, "tags", ListType(13, LongType(), element_required=False)),
)
ARROW: dict[str, dict[str, Any]] = {
    "arrow": {},
    "arrow with page index": {"write_page_index": True, "max_rows_per_page": 20, "row_group_size": 100},
    "arrow, sorted": {
        "sorting_columns": [pq.SortingColumn(4)],
        "data_page_version": "2.0",
        "use_dictionary": False,
        "write_page_checksum": True,
    },
}
"""pyarrow with various options of its writer."""
FOREIGN = ("duckdb 2", "rust", "polars")
"""Writers in the judges' environment."""
# Compaction of all small files that copies row groups where possible.
_COPY = {"min_row_group_copy_bytes": "1"}
OPERATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "copy": ("compact", _COPY),
    "copy beside decoded": ("compact", {"min_row_group_copy_bytes": "2000"}),
    "decode": ("compact", {"rewrite_all": "true"}),
    "sort": ("compact", {"strategy": "sort", "sort_order": "price desc nulls last, id asc nulls first"}),
    "z-order": ("compact", {"strategy": "zorder", "sort_order": "id,price"}),
    "position deletes": ("compact", _COPY),
    "equality deletes": ("compact", _COPY),
    "vectors": ("compact", _COPY),
    "rewrite position deletes": ("rewrite_position_deletes", {}),
    "rewrite manifests": ("rewrite_manifests", {}),
    "manifests under position deletes": ("rewrite_manifests", {}),
    "manifests under vectors": ("rewrite_manifests", {}),
    "expire": ("expire_snapshots", {}),
}
"""Operations of Icekeeper with their settings."""
DELETES = {
    "position deletes": "positions",
    "equality deletes": "equality",
    "vectors": "vectors",
    "rewrite position deletes": "positions",
    "manifests under position deletes": "positions",
    "manifests under vectors": "vectors",
}
"""The kind of deletes that a table has before its operation."""
_DELETED = (0, 17, 250, 600, 615)
"""The deleted ids: the first and last row of files, some between, and none of the third file."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A table after its operation; ``has`` lists features of :data:`support.judges.readers.UNREAD`."""

    name: str
    metadata: str
    folder: str
    data: tuple[str, ...]
    rows: tuple[Row, ...]
    has: frozenset[str] = frozenset()


@dataclass
class SourceFiles:
    """Parquet files of every writer, made once for any number of tables."""

    folder: Path
    made: dict[str, list[Path]] = field(default_factory=dict)

    def of(self, writer: str) -> list[Path]:
        """The writer's files, one for each of :data:`.FILES`."""
        if writer not in self.made:
            if writer in FOREIGN:
                self._make_foreign()
            else:
                self.made[writer] = [self._arrow_file(writer, number) for number in range(len(FILES))]
        return self.made[writer]

    def keep_javas(self, tables: JavaTables) -> None:
        """Make the files of Iceberg-Java, for tables of several writers."""
        java = _java_table(tables, self.folder / "java", 2)
        files = [java.data_file(_java_rows(file_rows(n)), 0, (), "PARQUET") for n in range(len(FILES))]
        self.made["java"] = [local_path(str(file.location())) for file in files]

    def _arrow_file(self, writer: str, number: int) -> Path:
        path = self.folder / f"{writer}-{number}.parquet"
        options = {"compression": "zstd", "store_decimal_as_integer": True, **ARROW[writer]}
        table = arrow_table(file_rows(number))
        pq.write_table(table.sort_by("amount") if "sorting_columns" in options else table, path, **options)
        return path

    def _make_foreign(self) -> None:
        """Make the files of all foreign writers in a single process."""
        files = []
        for number in range(len(FILES)):
            source = self.folder / f"{number}.feather"
            pyarrow.feather.write_feather(arrow_table(file_rows(number)), source)
            for writer in FOREIGN:
                path = self.folder / f"{writer}-{number}.parquet"
                self.made.setdefault(writer, []).append(path)
                files.append((writer, str(source), str(path)))
        served({"files": files}, self.folder)


def judged_tables(cases: Iterable[tuple[Sequence[str], str]], folder: Path, java: JavaTables) -> list[Judged]:
    """:func:`judged_table` for each of these writers and operations, each in a new folder."""
    sources = SourceFiles(folder)
    sources.keep_javas(java)
    return [judged_table(*case, sources, folder / str(number), java) for number, case in enumerate(cases)]


def judged_table(
    writers: Sequence[str], operation: str, sources: SourceFiles, folder: Path, java: JavaTables | None = None
) -> Judged:
    """A table with files of these writers in turn, after the operation, which must have succeeded.

    ``java`` makes the whole table if it is the only writer.
    """
    folder.mkdir(parents=True)
    deletes = DELETES.get(operation)
    if set(writers) == {"java"} and java is not None:
        table = _of_java(java, deletes, folder)
    else:
        table = _of_files(writers, deletes, sources, folder)
    name, settings = OPERATIONS[operation]
    before = _row_groups(table)
    (outcome,) = table.maintain(operations=name, **settings).operations
    assert outcome.status is Status.SUCCEEDED, outcome
    # Bounds in footers of polars are not trusted, so such files are decoded (rule: footer-bounds-by-known-writers).
    if "min_row_group_copy_bytes" in settings and {*writers} != {"polars"}:
        assert outcome.metrics["compact.bytes_copied"] > 0, outcome
    if operation == "copy" and "polars" not in writers:  # all files are copied, so no row groups are merged
        assert _row_groups(table) == before >= len(FILES), outcome
    gone = _DELETED if deletes else ()
    rows = [row for number in range(len(FILES)) for row in file_rows(number) if row["id"] not in gone]
    files = table.data_files()
    return Judged(
        name=f"{' and '.join(writers)}: {operation}",
        metadata=str(local_path(table.metadata_location)),
        folder=str(table.folder),
        data=tuple(str(local_path(f.file_path)) for f in files if f.content is FileContent.DATA),
        rows=tuple(rows),
        has=frozenset(_has(writers, operation)),
    )


def _row_groups(table: MaintainedTable) -> int:
    files = [file.file_path for file in table.data_files() if file.content is FileContent.DATA]
    return sum(pq.read_metadata(local_path(path)).num_row_groups for path in files)


def _has(writers: Sequence[str], operation: str) -> Iterator[str]:
    name, _ = OPERATIONS[operation]
    if "arrow, sorted" in writers and operation not in ("decode", "sort", "z-order"):
        yield "booleans in RLE"
    if name != "compact":
        if operation in DELETES:
            yield DELETES[operation]
            if name == "rewrite_position_deletes":
                yield "partition-wide deletes"
        elif writers[0] in ("pyiceberg", "rust", *ARROW):
            yield "equal zeros"
        if "polars" in writers:
            yield "string views"


def _of_files(writers: Sequence[str], deletes: str | None, sources: SourceFiles, folder: Path) -> MaintainedTable:
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=(folder / "warehouse").as_uri())
    table = new_table(catalog, folder, schema=SCHEMA)
    for number in range(len(FILES)):
        writer = writers[number % len(writers)]
        if writer == "pyiceberg":
            table.table.append(arrow_table(file_rows(number)))
            continue
        path = table.folder / "data" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sources.of(writer)[number], path)
        _add(table, path)
    _delete(table, deletes)
    return table


def _add(table: MaintainedTable, path: Path) -> None:
    """Append the file in a separate commit, with the entry that PyIceberg derives from the footer."""
    with table.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(parquet_file_to_data_file(table.table.io, table.table.metadata, path.as_uri()))


def _delete(table: MaintainedTable, deletes: str | None) -> None:
    """Delete all ids of :data:`_DELETED` in one commit."""
    if deletes == "equality":
        rows = [equality_delete(i, "") for i in _DELETED]
        commit_deletes(table, [(content, {**more, "partition": ()}) for content, more in rows])
    elif deletes is not None:
        places = _places([file.file_path for file in table.data_files()])
        if deletes == "vectors":
            v3.upgrade(table)
            v3.delete_positions(table, places)
        else:
            found = [position_delete(path, position, "") for path, all_of in places.items() for position in all_of]
            commit_deletes(table, [(content, {**more, "partition": ()}) for content, more in found])


def _of_java(tables: JavaTables, deletes: str | None, folder: Path) -> MaintainedTable:
    java = _java_table(tables, folder / "table", 3 if deletes == "vectors" else 2)
    files = [java.data_file(_java_rows(file_rows(number)), 0, (), "PARQUET") for number in range(len(FILES))]
    for file in files:
        java.append([file])
    places = _places([str(file.location()) for file in files])
    if deletes == "vectors":
        java.delete_by_vectors(places)
    elif deletes == "positions":
        named = [java.position_deletes({path: found}, 0, (), "PARQUET") for path, found in places.items()]
        java.row_delta(deletes=named)
    elif deletes == "equality":
        java.row_delta(deletes=[java.equality_deletes([{"1": i} for i in _DELETED], [1], 0, (), "PARQUET")])
    return registered_table(java.metadata_location, folder)


def _java_table(tables: JavaTables, folder: Path, format_version: int) -> Any:
    schema = json.loads(SCHEMA.model_dump_json())
    properties = {"format-version": str(format_version), "write.parquet.compression-codec": "zstd"}
    return tables.create(schema, {"spec-id": 0, "fields": []}, properties, folder)


def _java_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows by field id."""
    ids = {name: str(number) for number, name in enumerate(COLUMNS.names, 1)}
    points = [{"11": row["point"]["x"], "12": row["point"]["y"]} for row in rows]
    pairs = zip(rows, points, strict=True)
    return [{ids[name]: value for name, value in row.items()} | {ids["point"]: point} for row, point in pairs]


def _places(data: Sequence[str]) -> dict[str, list[int]]:
    """The positions of the deleted rows by data file."""
    found: dict[str, list[int]] = {}
    for path in data:
        ids = pq.read_table(local_path(path), columns=["id"])["id"].to_pylist()
        positions = [position for position, i in enumerate(ids) if i in _DELETED]
        if positions:
            found[path] = positions
    return found
