"""A table of every type, partitioned by every transform, made by Iceberg-Java, and what filters find in it.

Each type has a column that the table is partitioned by (``p…``) and one that only column bounds tell of (``v…``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.table import StaticTable

from support.duckdb_session import DuckDB
from support.filters import TYPES, Filter, filters_of, values_of
from support.java_writer import JavaTable, JavaTables, Row
from support.passes import TableUnderMaintenance

__all__ = ["Answers", "FilteredReads", "made_table"]

PARTITIONS = 12
_PROPERTIES = {"commit.manifest-merge.enabled": "false", "commit.manifest.target-size-bytes": "40000"}
_ANSWER = frozenset[int] | str
Answers = Mapping[str, list[_ANSWER]]
"""By reader, for every filter: ids, or why the reader cannot tell."""


def types_of(format_version: int) -> tuple[str, ...]:
    return tuple(kind for kind in TYPES if format_version > 2 or not kind.endswith("_ns"))


def transforms_of(kind: str) -> Iterator[str]:
    """All that the specification allows for a type."""
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
        yield {"timestamp": "hour", "timestamptz": "day", "timestamp_ns": "month", "timestamptz_ns": "year"}[kind]


def made_table(tables: JavaTables, format_version: int, folder: Path) -> JavaTable:
    """Two files for each of twelve partitions, in a commit each; then rows are deleted, from v2 on."""
    fields: list[dict[str, Any]] = [{"id": 1, "name": "id", "type": "int", "required": True}]
    parts: list[dict[str, Any]] = []
    for number, kind in enumerate(types_of(format_version)):
        for letter, field_id in (("p", 2 + 2 * number), ("v", 3 + 2 * number)):
            fields.append({"id": field_id, "name": f"{letter}{number}", "type": kind, "required": False})
        for transform in transforms_of(kind):
            name = f"p{number}_{transform.partition('[')[0]}"
            parts.append(
                {"name": name, "transform": transform, "source-id": 2 + 2 * number, "field-id": 1000 + len(parts)}
            )
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    properties = {**_PROPERTIES, "format-version": str(format_version)}
    table = tables.create(schema, {"spec-id": 0, "fields": parts}, properties, folder)
    first = _append(table, format_version, 0)
    _append(table, format_version, 1)
    if format_version > 1:
        _delete(table, format_version, first)
    return table


def _row(format_version: int, row_id: int, partition: int) -> Row:
    row: dict[str, Any] = {"1": row_id}
    for number, kind in enumerate(types_of(format_version)):
        values = values_of(kind)
        row[str(2 + 2 * number)] = values[partition % len(values)]
        row[str(3 + 2 * number)] = values[(row_id * 5 + row_id // len(values)) % len(values)]
    return row


def _append(table: JavaTable, format_version: int, commit: int) -> list[tuple[str, Row]]:
    files = []
    for partition in range(PARTITIONS):
        ids = (4 * partition + 2 * commit, 4 * partition + 2 * commit + 1)
        rows = [_row(format_version, row_id, partition) for row_id in ids]
        files.append((table.data_file(rows, 0, rows[0], "parquet"), rows[0]))
    table.append(file for file, _ in files)
    return [(file.location(), row) for file, row in files]


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
    """The same conditions on one table after another, by three readers."""

    java: JavaTable
    duckdb: DuckDB
    jvm: Any
    filters: Sequence[Filter]

    @classmethod
    def of(cls, java: JavaTable, duckdb: DuckDB, jvm: Any, *, every: bool) -> FilteredReads:
        columns = [field for field in java.schema["fields"] if field["name"] != "id"]
        filters = [f for field in columns for f in filters_of(field["name"], field["type"], every=every)]
        return cls(java, duckdb, jvm, filters)

    def truth(self) -> Answers:
        """What each reader says of all rows, one by one, in which nothing is pruned."""
        whole = StaticTable.from_metadata(self.java.metadata_location)
        rows, schema = whole.scan().to_arrow(), whole.schema()

        def by_arrow(condition: Filter) -> _ANSWER:
            try:
                found = rows.filter(expression_to_pyarrow(bind(schema, condition.pyiceberg(), True), schema))
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            return _ids(found["id"].to_pylist())

        location, conditions = self.java.metadata_location, [f.sql() for f in self.filters]
        in_java = self.java.ids_without_planning([f.java(self.jvm) for f in self.filters])
        return {
            "java": [_ids(found) for found in in_java],
            "duckdb": [_told(found) for found in self.duckdb.ids_where(location, conditions, planned=False)],
            "pyiceberg": [by_arrow(condition) for condition in self.filters],
        }

    def answers(self) -> Answers:
        """What planned scans find."""
        whole = StaticTable.from_metadata(self.java.metadata_location)

        def by_pyiceberg(condition: Filter) -> _ANSWER:
            try:
                found = whole.scan(condition.pyiceberg(), selected_fields=("id",)).to_arrow()
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            return _ids(found["id"].to_pylist())

        location, conditions = self.java.metadata_location, [f.sql() for f in self.filters]
        return {
            "java": [_ids(self.java.ids_where(f.java(self.jvm))) for f in self.filters],
            "duckdb": [_told(found) for found in self.duckdb.ids_where(location, conditions)],
            "pyiceberg": [by_pyiceberg(condition) for condition in self.filters],
        }

    def hidden(self, truth: Answers, before: Answers, after: Answers) -> list[str]:
        """Where a reader finds less, or more, than before and than it should."""
        problems = []
        for reader, found in after.items():
            for condition, true, old, new in zip(self.filters, truth[reader], before[reader], found, strict=True):
                if new in (true, old) or isinstance(true, str):
                    continue
                problems.append(f"{reader}: {condition}: {_shown(new)}, before {_shown(old)}, in truth {_shown(true)}")
        return problems


def under_maintenance(java: JavaTable, folder: Path) -> TableUnderMaintenance:
    folder.mkdir(parents=True, exist_ok=True)
    return TableUnderMaintenance(java.metadata_location, folder)


def _ids(found: Sequence[int]) -> frozenset[int]:
    twice = [row_id for row_id, count in Counter(found).items() if count > 1]
    assert not twice, f"rows found twice: {twice}"
    return frozenset(found)


def _told(found: list[int] | str) -> _ANSWER:
    return found if isinstance(found, str) else _ids(found)


def _shown(answer: _ANSWER) -> str:
    return answer[:80] if isinstance(answer, str) else str(sorted(answer))
