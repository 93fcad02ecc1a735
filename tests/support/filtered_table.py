"""A table of every type, partitioned by every transform, made by Iceberg-Java, and what filters find in it.

Each type has a column that the table is partitioned by (``p…``) and one that only column bounds tell of (``v…``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable

from support.duckdb_session import DuckDB
from support.filters import TYPES, Filter, filters_of, values_of
from support.java_writer import JavaTable, JavaTables, Row

PARTITIONS = 6
_WIDENED = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}
"""Types of columns → what they are from the second commit on."""
_PROPERTIES = {"commit.manifest-merge.enabled": "false", "commit.manifest.target-size-bytes": "40000"}
Answer: TypeAlias = frozenset[int] | str
"""The ids of rows, or why the reader cannot tell."""


def types_of(format_version: int) -> tuple[str, ...]:
    return tuple(kind for kind in TYPES if format_version > 2 or not kind.endswith("_ns"))


def transforms_of(kind: str) -> Iterator[str]:
    """All that the specification allows for a type, and the writer and all readers can do."""
    if kind.endswith("_ns"):  # Java's generic writer cannot
        return
    # PyIceberg 0.12 cannot read a manifest in which two fields are decimals of one type, or one is fixed.
    if not kind.startswith("fixed"):
        yield "truncate[2]" if kind in ("decimal(4, 2)", "decimal(18, 0)") else "identity"
    if kind not in ("boolean", "float", "double"):
        yield "bucket[4]"
    if kind in ("int", "long"):
        yield "truncate[2]"
    if kind in ("string", "binary"):
        yield "truncate[16]"
    if kind == "date":
        yield "month"
    if kind.startswith("timestamp"):
        yield {"timestamp": "hour", "timestamptz": "day"}[kind]


def made_table(tables: JavaTables, format_version: int, folder: Path, *, partitioned: bool = True) -> JavaTable:
    """Three files for each of six partitions, in a commit each; then rows are deleted, from v2 on."""
    fields: list[dict[str, Any]] = [{"id": 1, "name": "id", "type": "int", "required": True}]
    parts: list[dict[str, Any]] = []
    for number, kind in enumerate(types_of(format_version)):
        source = len(fields) + 1
        fields.append({"id": source, "name": f"p{number}", "type": kind, "required": False})
        fields.append({"id": source + 1, "name": f"v{number}", "type": kind, "required": False})
        for transform in transforms_of(kind):
            name = f"p{number}_{transform.partition('[')[0]}"
            parts.append({"name": name, "transform": transform, "source-id": source, "field-id": 1000 + len(parts)})
    for number, kind in enumerate(_WIDENED):
        fields.append({"id": len(fields) + 1, "name": f"w{number}", "type": kind, "required": False})
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    properties = {**_PROPERTIES, "format-version": str(format_version)}
    table = tables.create(schema, {"spec-id": 0, "fields": parts if partitioned else []}, properties, folder)
    first = _append(table, 0)
    for number, kind in enumerate(_WIDENED.values()):
        table.evolve(partial(_widen, f"w{number}", table.type(kind)))
    _append(table, 1)
    _append(table, 2)
    if format_version > 1:
        _delete(table, format_version, first)
    return table


def _widen(column: str, kind: Any, update: Any) -> None:
    update.updateColumn(column, kind)


def _append(table: JavaTable, commit: int) -> list[tuple[str, Row]]:
    """Of each file its path, and a row of its partition."""
    files = []
    for partition in range(PARTITIONS):
        first = 4 * partition + commit
        rows = [_row(table, row_id, partition) for row_id in ([first, first + 3] if commit == 0 else [first])]
        files.append((table.data_file(rows, 0, rows[0], "parquet"), rows[0]))
    table.append(file for file, _ in files)
    return [(file.location(), row) for file, row in files]


def _row(table: JavaTable, row_id: int, partition: int) -> Row:
    row: dict[str, Any] = {"1": row_id}
    for field in table.schema["fields"][1:]:
        values = values_of(field["type"])
        number = partition if field["name"].startswith("p") else row_id * 5 + row_id // len(values)
        row[str(field["id"])] = values[(number + field["id"]) % len(values)]
    return row


def _delete(table: JavaTable, format_version: int, files: Sequence[tuple[str, Row]]) -> None:
    """One row of each of these files, by its position; twice, so that there are delete files to merge."""
    if format_version > 2:
        table.delete_by_vectors({path: [0] for path, _ in files})
        return
    for whole in (True, False):
        deletes = [table.position_deletes({path: [0]}, 0, row, "parquet", whole_paths=whole) for path, row in files]
        table.row_delta(deletes=deletes)


@dataclass(frozen=True)
class FilteredReads:
    """The same conditions put to one table after another, by three readers."""

    java: JavaTable
    duckdb: DuckDB
    jvm: Any
    filters: Sequence[Filter]
    every: int = 1
    """PyIceberg, the slowest, is asked only every so many filters."""

    @classmethod
    def on(
        cls, java: JavaTable, tables: JavaTables, duckdb: DuckDB, start: int, step: int, every: int
    ) -> FilteredReads:
        """With each ``step``-th of all conditions that can be put to the table's columns, of uuids with more."""
        columns = [(field["name"], field["type"]) for field in java.schema["fields"] if field["name"] != "id"]
        filters = [condition for column in columns for condition in filters_of(*column)]
        of_uuids = [condition for condition in filters if condition.kind == "uuid"]
        chosen = dict.fromkeys([*filters[start::step], *of_uuids[start :: -(-step // 5)]])
        return cls(java, duckdb, tables.jvm, list(chosen), every)

    def problems(self, before: str, after: str) -> list[str]:
        """Where a reader loses rows that it found before, or finds wrong ones; given are two metadata files."""
        found = []
        truth = self._truth(before)
        for reader, ask in (("java", self._in_java), ("duckdb", self._in_duckdb), ("pyiceberg", self._in_pyiceberg)):
            filters = self.filters[:: self.every] if reader == "pyiceberg" else self.filters
            filters = [condition for condition in filters if not isinstance(truth[reader][condition], str)]
            other = [(f, n) for f, n in zip(filters, ask(after, filters), strict=True) if n != truth[reader][f]]
            old_answers = ask(before, [f for f, _ in other])
            for (condition, new), old in zip(other, old_answers, strict=True):
                true = truth[reader][condition]
                if not _is_no_worse(old, new, true):
                    told = f"{_shown(new)}, before {_shown(old)}, in truth {_shown(true)}"
                    found.append(f"{reader}: {condition}: {told}")
        return found

    def _truth(self, location: str) -> Mapping[str, Mapping[Filter, Answer]]:
        """What each reader says of all rows, one by one: nothing is pruned."""
        self.java.take_over(location)
        possible = [f for f in self.filters if not f.kind.endswith("_ns")]
        in_java = self.java.ids_without_planning([f.java(self.jvm) for f in possible])
        unknown = dict.fromkeys(self.filters, "Java's generic reader cannot filter by nanoseconds")
        in_duckdb = self.duckdb.ids_where(location, [f.sql() for f in self.filters], planned=False)
        table = StaticTable.from_metadata(location)
        rows, schema = table.scan().to_arrow(), table.schema()
        return {
            "java": unknown | dict(zip(possible, map(_answer, in_java), strict=True)),
            "duckdb": dict(zip(self.filters, map(_answer, in_duckdb), strict=True)),
            "pyiceberg": {f: _by_arrow(f, rows, schema) for f in self.filters},
        }

    def _in_java(self, location: str, filters: Sequence[Filter]) -> list[Answer]:
        self.java.take_over(location)
        return [_answer(self.java.ids_where(f.java(self.jvm))) for f in filters]

    def _in_duckdb(self, location: str, filters: Sequence[Filter]) -> list[Answer]:
        return [_answer(found) for found in self.duckdb.ids_where(location, [f.sql() for f in filters])]

    def _in_pyiceberg(self, location: str, filters: Sequence[Filter]) -> list[Answer]:
        table = StaticTable.from_metadata(location)

        def answer(condition: Filter) -> Answer:
            try:
                found = table.scan(condition.pyiceberg(), selected_fields=("id",)).to_arrow()
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            return _answer(found["id"].to_pylist())

        return [answer(condition) for condition in filters]


def _by_arrow(condition: Filter, rows: pa.Table, schema: Schema) -> Answer:
    """As PyIceberg filters the rows of a file."""
    if condition.kind == "uuid":  # Arrow compares only what they are stored as
        column = rows.schema.get_field_index(condition.column)
        rows = rows.set_column(
            column,
            condition.column,
            pa.chunked_array([chunk.storage for chunk in rows.column(column).chunks], pa.binary(16)),
        )
    try:
        found = rows.filter(expression_to_pyarrow(bind(schema, condition.pyiceberg(), True), schema))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return _answer(found["id"].to_pylist())


def _answer(found: Sequence[int] | str) -> Answer:
    if isinstance(found, str):
        return found
    twice = [row_id for row_id, count in Counter(found).items() if count > 1]
    assert not twice, f"rows found twice: {twice}"
    return frozenset(found)


def _is_no_worse(old: Answer, new: Answer, true: Answer) -> bool:
    """Readers err on tables of others, too: DuckDB 1.5 finds no uuid between bounds, and fails on some decimals, in
    words that differ from one time to the next.  Then nothing that was found may be lost, and nothing wrong found."""
    if isinstance(new, str) or isinstance(true, str):
        return isinstance(old, str)
    return (
        (frozenset() if isinstance(old, str) else old & true) <= new <= (true if isinstance(old, str) else true | old)
    )


def _shown(answer: Answer) -> str:
    return answer[:80] if isinstance(answer, str) else str(sorted(answer))
