"""Filters as Iceberg-Java, PyIceberg and DuckDB are told them, and values on which pruning goes wrong."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg import expressions as py

from support.java_writer import nanos_to_text
from support.uuids import AWKWARD_UUIDS
from support.values import DOMAINS

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
    # The least one is even: `truncate` makes a smaller number of an odd one, which then does not fit.
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
    """Values of a type, null included."""
    values = _decimals(kind) if kind.startswith("decimal") else _HARD.get(kind, DOMAINS.get(kind, ()))
    return (None, *values)


@dataclass(frozen=True)
class Filter:
    """One condition on one column."""

    column: str
    kind: str
    name: str
    """Of the operator."""
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.column} ({self.kind}) {self.name} {' '.join(map(repr, self.values))}".strip()

    @property
    def _asked(self) -> tuple[str, ...]:
        """What is asked besides: to Java's filters of single rows nulls are less than all else, to those of Java and
        DuckDB NaN is greater, and bounds tell of neither (platform 81)."""
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
        """For DuckDB."""
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
_SQL = {
    "is null": "{} IS NULL",
    "is not null": "{} IS NOT NULL",
    "is nan": "isnan({})",
    "is not nan": "NOT isnan({})",
}


def filters_of(column: str, kind: str) -> list[Filter]:
    """Every comparison of a column with every value, and all else that can be asked."""
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
