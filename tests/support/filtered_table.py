"""A table of Iceberg-Java with every type and transform, and the rows that filters find."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg import expressions as py
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.duckdb_session import DuckDB
from support.java_writer import JavaTable, JavaTables, Row, nanos_to_text
from support.maintained_table import registered_table
from support.values import AWKWARD_UUIDS, DOMAINS

# Filters in the languages of Iceberg-Java, PyIceberg and DuckDB, and values that are hard to prune by.

_FLOATS = (float("nan"), -0.0, 0.0, 1.5, -1.5, float("inf"), float("-inf"), 7.0)
_STRINGS = (
    "",
    "a",
    "0123456789abcdef",
    "0123456789abcdefg",
    "0123456789abcde\ud7ff and on",  # the next code point would be a surrogate
    "0123456789abcde\U0010ffff and on",  # there is no next code point
    "\uffff",
    "\U00010000",  # a pair of surrogates, which UTF-16 puts before the last
    "\U0010ffff" * 20,
)
_BINARIES = (b"", b"\x00", b"\xff" * 20, b"0123456789abcde\xff and on", b"0123456789abcdef", b"\x80" * 17, b"\x7f")
_DECIMALS = ("decimal(1, 0)", "decimal(4, 2)", "decimal(9, 2)", "decimal(18, 0)", "decimal(19, 3)", "decimal(38, 10)")


def _decimals(kind: str) -> tuple[Any, ...]:
    precision, scale = map(int, kind[8:-1].split(","))
    # The least number is even, because `truncate` of an odd least number would be too small for the type.
    unscaled = (10**precision - 1, 2 - 10**precision, 0, 1, -1, 10 ** (precision - 1), -128, -129, 255, 256)
    exact = decimal.Context(prec=76)
    return tuple(
        decimal.Decimal(n).scaleb(-scale, exact)
        for n in dict.fromkeys(unscaled)
        if 2 - 10**precision <= n < 10**precision
    )


_HARD: Mapping[str, Sequence[Any]] = {
    "float": _FLOATS,
    "double": (*_FLOATS, 1.5e300, -1.5e300),
    "string": _STRINGS,
    "binary": _BINARIES,
    "fixed[3]": (b"\x00\x00\x00", b"\xff\xff\xff", b"abc", b"\x7f\xff\xff", b"\x80\x00\x00"),
    "date": tuple(
        datetime.date(*d) for d in ((1970, 1, 1), (1969, 12, 31), (1969, 1, 1), (1582, 10, 4), (2024, 2, 29))
    ),
    "uuid": (*DOMAINS["uuid"], *(uuid.UUID(bytes=value) for value in AWKWARD_UUIDS[17::23])),
}
_TIMES = ("date", "time", "timestamp", "timestamptz")
_SINCE_V3 = ("timestamp_ns",)  # DuckDB 1.5 reads no table with a timestamptz_ns
_NUMBERS = ("int", "long", "float", "double")
TYPES = ("boolean", *_NUMBERS, "string", *_TIMES, *_DECIMALS, "uuid", "fixed[3]", "binary", *_SINCE_V3)


def values_of(kind: str) -> tuple[Any, ...]:
    """Values of a type, including null."""
    values = _decimals(kind) if kind.startswith("decimal") else _HARD.get(kind, DOMAINS.get(kind, ()))
    return (None, *values)


@dataclass(frozen=True)
class Filter:
    """A condition on a column."""

    column: str
    kind: str
    name: str
    """The name of the operator."""
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.column} ({self.kind}) {self.name} {' '.join(map(repr, self.values))}".strip()

    @property
    def _asked(self) -> tuple[str, ...]:
        """Further conditions: for Java's row filters null is the least value, for those of Java and DuckDB NaN is the
        greatest, and bounds include neither (platform: nan-filters-change)."""
        if self.name not in ("<", "<=", ">", ">="):
            return ()
        return ("is not null", "is not nan") if self.kind in ("float", "double") else ("is not null",)

    def java(self, jvm: Any) -> Any:
        """An ``org.apache.iceberg.expressions.Expression``."""
        make = jvm.org.apache.iceberg.expressions.Expressions
        values = [_java(self.kind, value, jvm) for value in self.values]
        if self.name == "in":
            return getattr(make, "in")(self.column, jvm.java.util.ArrayList(values))
        made = getattr(make, _JAVA[self.name])(self.column, *values)
        for name in self._asked:
            made = getattr(make, "and")(made, getattr(make, _JAVA[name])(self.column))
        return made

    def pyiceberg(self) -> Any:
        values = [_python(self.kind, value) for value in self.values]
        if self.name == "in":
            make: Any = py.In  # pydantic's plugin misreads its parameters
            return make(self.column, set(values))
        made = _PYICEBERG[self.name](self.column, *values)
        for name in self._asked:
            made = py.And(made, _PYICEBERG[name](self.column))
        return made

    def sql(self) -> str:
        """The condition in DuckDB's SQL."""
        values = [_sql(self.kind, value) for value in self.values]
        if self.name == "in":
            return f"{self.column} IN ({', '.join(values)})"
        if self.name == "starts with":
            return f"starts_with({self.column}, {values[0]})"
        if self.name in _SQL:
            return _SQL[self.name].format(self.column)
        more = (_SQL[name].format(self.column) for name in self._asked)
        return " AND ".join([f"{self.column} {self.name} {values[0]}", *more])


_JAVA = {
    "=": "equal",
    "!=": "notEqual",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
    "starts with": "startsWith",
    "is null": "isNull",
    "is not null": "notNull",
    "is nan": "isNaN",
    "is not nan": "notNaN",
}
_PYICEBERG: Mapping[str, Any] = {
    "=": py.EqualTo,
    "!=": py.NotEqualTo,
    "<": py.LessThan,
    "<=": py.LessThanOrEqual,
    ">": py.GreaterThan,
    ">=": py.GreaterThanOrEqual,
    "starts with": py.StartsWith,
    "is null": py.IsNull,
    "is not null": py.NotNull,
    "is nan": py.IsNaN,
    "is not nan": py.NotNaN,
}
_SQL = {"is null": "{} IS NULL", "is not null": "{} IS NOT NULL", "is nan": "isnan({})", "is not nan": "NOT isnan({})"}


def filters_of(column: str, kind: str) -> list[Filter]:
    """Every comparison of a column with every value, and all other conditions."""
    values = [value for value in values_of(kind)[1:] if value == value]
    found = [Filter(column, kind, name) for name in ("is null", "is not null")]
    if kind in ("float", "double"):
        found += [Filter(column, kind, name) for name in ("is nan", "is not nan")]
    comparisons = ("=", "!=", "<", "<=", ">", ">=") if kind != "boolean" else ("=", "!=")
    found += [Filter(column, kind, name, (value,)) for value in values for name in comparisons]
    found += [Filter(column, kind, "in", tuple(values[start::2])) for start in (0, 1) if len(values) > 2]
    if kind == "string":
        prefixes = {value[:length] for value in values for length in (1, 15, 16, 17) if value}
        found += [Filter(column, kind, "starts with", (prefix,)) for prefix in sorted(prefixes)]
    return found


def _text(kind: str, value: Any) -> str:
    if kind.endswith("_ns"):
        return nanos_to_text(value) + ("+00:00" if kind.startswith("timestamptz") else "")
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


def _java(kind: str, value: Any, jvm: Any) -> Any:
    if isinstance(value, bytes):
        return jvm.java.nio.ByteBuffer.wrap(bytearray(value))
    return value if isinstance(value, bool | float) or kind in ("int", "long") else _text(kind, value)


def _python(kind: str, value: Any) -> Any:
    if isinstance(value, bytes | bool | float | decimal.Decimal | uuid.UUID) or kind in ("int", "long"):
        return value
    return _text(kind, value)


def _sql(kind: str, value: Any) -> str:
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
    names = {"int": "INTEGER", "long": "BIGINT", "string": "VARCHAR", "timestamp_ns": "TIMESTAMP_NS"}
    sql_type = "BLOB" if kind in ("binary", "fixed[3]") else names.get(kind, kind.upper())
    text = _text(kind, value).replace("'", "''")
    return f"'{text}'::{sql_type}"


# A table of Iceberg-Java with every type, partitioned by every transform, and the rows that filters find.
#
# Each type has a partition column (``p…``) and a column that only column bounds can prune (``v…``).

PARTITIONS = 6
_WIDENED = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}
"""Types of columns → their types from the second commit on."""
_PROPERTIES = {"commit.manifest-merge.enabled": "false", "commit.manifest.target-size-bytes": "40000"}
Answer: TypeAlias = frozenset[int] | str
"""The ids of rows, or the error of the reader."""


def types_of(format_version: int) -> tuple[str, ...]:
    return tuple(kind for kind in TYPES if format_version > 2 or not kind.endswith("_ns"))


def transforms_of(kind: str) -> Iterator[str]:
    """The transforms that the specification allows for a type, and that the writer and all readers support."""
    if kind.endswith("_ns"):  # Java's generic writer cannot
        return
    # PyIceberg 0.12 cannot read a manifest with two partition fields of the same decimal type, or with a fixed field.
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
    """Three commits with a file for each of six partitions; from v2 on, rows are deleted afterwards."""
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
    """Append a file per partition; return the path and the first row of each."""
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
    """Delete the first row of each of these files by position, in v2 twice, so that there are delete files to merge."""
    if format_version > 2:
        table.delete_by_vectors({path: [0] for path, _ in files})
        return
    for whole in (True, False):
        deletes = [table.position_deletes({path: [0]}, 0, row, "parquet", whole_paths=whole) for path, row in files]
        table.row_delta(deletes=deletes)


@dataclass(frozen=True)
class FilteredReads:
    """Three readers apply the same conditions to two states of a table."""

    java: JavaTable
    duckdb: DuckDB
    jvm: Any
    filters: Sequence[Filter]
    every: int = 1
    """PyIceberg, the slowest reader, evaluates only each ``every``-th filter."""

    @classmethod
    def on(
        cls, java: JavaTable, tables: JavaTables, duckdb: DuckDB, start: int, step: int, every: int
    ) -> FilteredReads:
        """With each ``step``-th of all conditions on the table's columns, and more conditions on uuids."""
        columns = [(field["name"], field["type"]) for field in java.schema["fields"] if field["name"] != "id"]
        filters = [condition for column in columns for condition in filters_of(*column)]
        of_uuids = [condition for condition in filters if condition.kind == "uuid"]
        chosen = dict.fromkeys([*filters[start::step], *of_uuids[start :: -(-step // 5)]])
        return cls(java, duckdb, tables.jvm, list(chosen), every)

    def problems(self, before: str, after: str) -> list[str]:
        """Filters by which a reader finds fewer right rows, or more wrong rows, in the second metadata file."""
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
                    shown = f"{_shown(new)}, before {_shown(old)}, in truth {_shown(true)}"
                    found.append(f"{reader}: {condition}: {shown}")
        return found

    def _truth(self, location: str) -> Mapping[str, Mapping[Filter, Answer]]:
        """The rows that each reader finds if it filters every single row, without pruning."""
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
    """Filter rows as PyIceberg filters the rows of a file."""
    if condition.kind == "uuid":  # Arrow compares only the stored bytes
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
    """Readers also fail on the table before: DuckDB 1.5 finds no uuid between bounds, and fails on some decimals with
    varying messages.  Then no found row may be lost, and no wrong row may be found."""
    if isinstance(new, str) or isinstance(true, str):
        return isinstance(old, str)
    return (
        (frozenset() if isinstance(old, str) else old & true) <= new <= (true if isinstance(old, str) else true | old)
    )


def _shown(answer: Answer) -> str:
    return answer[:80] if isinstance(answer, str) else str(sorted(answer))


# A table of Iceberg-Java, compacted by copying row groups, and the rows that filters find before and after.


def problems_of_copies(
    format_version: int, tables: JavaTables, duckdb: DuckDB, folder: Path, *, step: int
) -> list[str]:
    """The problems of readers with each ``step``-th condition.

    In a v2 table, position deletes may apply to all files, each of which is one row group; no row group is copied.
    """
    java = made_table(tables, format_version, folder / "table")
    before = java.metadata_location
    table = registered_table(before, folder)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert outcome.metrics["compact.bytes_copied"] > 0
    reads = FilteredReads.on(java, tables, duckdb, 7 % step, step, every=3)
    return reads.problems(before, table.metadata_location)
