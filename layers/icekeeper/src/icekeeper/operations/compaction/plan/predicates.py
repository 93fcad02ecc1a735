"""Evaluate a filter on the possible values of its columns: three-valued logic over ranges of values (pure).

:meth:`Binding.truth` makes a function from :class:`.Values` to all truth values that the filter has for some possible
row.  So the results "no row matches" and "every row matches" are both certain
(rule: drop-only-fully-matched-partitions).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial, reduce
from typing import Any, TypeAlias

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
    StartsWith,
    UnaryPredicate,
)
from pyiceberg.expressions.literals import Literal, StringLiteral
from pyiceberg.types import TimeType, UUIDType

from icekeeper.metadata.transforms import CALENDAR
from icekeeper.metadata.types import (
    FLOATS,
    UNITS_PER_DAY,
    comparable,
    truncated_upper,
)
from icekeeper.operations.compaction.plan.value_ranges import Column, Values, has_buckets, may_hold, transformed
from icekeeper.policy.relative_time import (
    MICROS_PER_DAY,
    RelativeFilter,
    TransformedColumn,
    parse_moment,
    span_of,
)
from icekeeper.policy.values import did_you_mean

# If engines disagree (on the order of uuids, on 0.0 and -0.0, on a ``float`` and 0.1, on NaN), both results are
# possible.  A date is compared with a moment as its midnight in UTC, as in SQL. A transformed column is compared by
# whole years, months, days or hours on both sides: ``day(ts) < now()`` is every day before today.

TRUE = 1
"""The filter may be true for a row.  Truth values are flags: a set of them is their sum."""
FALSE = 2
NULL = 4

ValuesOf: TypeAlias = Callable[[Column], Values]
Truth: TypeAlias = Callable[[ValuesOf], int]
"""Maps the possible values of columns to the possible truth values of a filter."""

_Key: TypeAlias = Callable[[Any], Any]
_Comparison: TypeAlias = Callable[[Values, _Key, Sequence[Any]], int]
_NANOS_PER_DAY = 86_400 * 10**9


def _not(truth: Truth) -> Truth:
    def negated(values_of: ValuesOf) -> int:
        truths = truth(values_of)
        return (truths & NULL) | (FALSE if truths & TRUE else 0) | (TRUE if truths & FALSE else 0)

    return negated


def _and(left: Truth, right: Truth) -> Truth:
    def both(values_of: ValuesOf) -> int:
        a = left(values_of)
        if a == FALSE:
            return FALSE
        b = right(values_of)
        if not (a and b):
            return 0
        is_null = (a & NULL and b & (TRUE | NULL)) or (b & NULL and a & (TRUE | NULL))
        return (a & b & TRUE) | ((a | b) & FALSE) | (NULL if is_null else 0)

    return both


def _or(left: Truth, right: Truth) -> Truth:
    return _not(_and(_not(left), _not(right)))


@dataclass(frozen=True, slots=True)
class Binding:
    """The columns and times that a filter names."""

    columns: Mapping[str, Column]
    relative: RelativeFilter
    now_ms: int
    """Epoch milliseconds of ``now()``."""

    def truth(self, expression: BooleanExpression) -> Truth:
        """The truth values of ``expression``, parsed from ``relative.text``.

        Raises:
            ValueError: a column is missing, or a literal or transform does not fit its column.
        """
        match expression:
            case AlwaysTrue():
                return lambda values_of: TRUE
            case AlwaysFalse():
                return lambda values_of: FALSE
            case And():
                return _and(self.truth(expression.left), self.truth(expression.right))
            case Or():
                return _or(self.truth(expression.left), self.truth(expression.right))
            case Not():
                return _not(self.truth(expression.child))
            case UnaryPredicate():
                return self._unary(expression)
            case SetPredicate():
                return self._one_of(expression)
            case LiteralPredicate():
                return self._compared(type(expression), expression.term, expression.literal)
            case _:
                raise ValueError("'true' and 'false' cannot be combined with other conditions")

    def _column(self, term: Any) -> tuple[Column, TransformedColumn | None]:
        found = self.relative.columns.get(term.name)
        name = term.name if found is None else found.column
        if name not in self.columns:
            raise ValueError(f"the table has no column '{name}'{did_you_mean(name, self.columns)}")
        return self.columns[name], found

    def _unary(self, expression: UnaryPredicate) -> Truth:
        column, _ = self._column(expression.term)
        if isinstance(expression, IsNull | NotNull):
            truth = _null_test(column)
        elif column.kind in FLOATS:
            truth = _nan_test(column)
        else:
            raise ValueError(f"only a float or double is NaN, but column {column.name} is {column.kind}")
        return _not(truth) if isinstance(expression, NotNull | NotNaN) else truth

    def _one_of(self, expression: SetPredicate) -> Truth:
        column, found = self._column(expression.term)
        literals = sorted(expression.literals, key=lambda literal: str(literal.value))
        if found is not None and found.transform in CALENDAR:
            each = [self._compared(EqualTo, expression.term, literal) for literal in literals]
            truth = reduce(_or, each)
        else:
            values = [self._value(column, found, literal.value) for literal in literals]
            truth = _value_test(column, found, _is_one_of, values)
        return _not(truth) if isinstance(expression, NotIn) else truth

    def _compared(self, kind: type[LiteralPredicate], term: Any, literal: Literal[Any]) -> Truth:
        column, found = self._column(term)
        if found is not None and found.transform in CALENDAR:
            return self._compared_by_calendar(kind, column, found, literal.value)
        comparison, is_opposite = _COMPARISONS[kind]
        value = self._value(column, found, literal.value)
        if comparison is _begins and column.kind != "string":
            raise ValueError(f"LIKE needs text, but column {column.name} is {column.kind}")
        truth = _value_test(column, found, comparison, [value])
        return _not(truth) if is_opposite else truth

    def _value(self, column: Column, found: TransformedColumn | None, literal: Any) -> Any:
        """A literal as a raw value of the column, its bucket or its truncation."""
        if found is not None and found.transform.startswith("bucket"):
            if not has_buckets(column.kind):
                raise ValueError(f"{found.text} is not possible: column {column.name} is {column.kind}")
            if not isinstance(literal, int):
                raise ValueError(f"{found.text} must be compared with a whole number")
            return literal
        if found is not None and not (column.kind in ("int", "long", "string") or column.kind.startswith("decimal")):
            raise ValueError(f"{found.text} is not possible: column {column.name} is {column.kind}")
        if column.kind in UNITS_PER_DAY:
            micros = self._micros(column, f"column {column.name}", literal)
            return _whole(micros * UNITS_PER_DAY[column.kind] / MICROS_PER_DAY)
        time, typed = self.relative.times.get(str(literal)), self.relative.typed.get(str(literal))
        if time is not None or typed is not None:
            subject = typed[0] if typed is not None else self.relative.as_written(str(literal))
            raise ValueError(f"{subject} needs a date or timestamp, but column {column.name} is {column.kind}")
        return _raw(column, literal)

    def _compared_by_calendar(
        self, kind: type[LiteralPredicate], column: Column, found: TransformedColumn, literal: Any
    ) -> Truth:
        if column.kind not in UNITS_PER_DAY:
            raise ValueError(f"{found.text} needs a date or timestamp, but column {column.name} is {column.kind}")
        if found.transform == "hour" and column.kind == "date":
            raise ValueError(f"column {column.name} is a date, which has no hour; write day({column.name})")
        if found.counts and isinstance(literal, int):
            if found.transform == "year" and literal >= 1970:
                raise ValueError(f"{found.text} counts from 1970, as in Spark: {literal} is {literal - 1970}")
            first, after = span_of(found.transform, literal)
        else:
            first, after = found.span(self._micros(column, found.text, literal).__floor__())
        units = UNITS_PER_DAY[column.kind]
        before, through = (
            _value_test(column, None, _less, [Fraction(end * units, MICROS_PER_DAY)]) for end in (first, after)
        )
        truths = {
            LessThan: before,
            LessThanOrEqual: through,
            GreaterThan: _not(through),
            GreaterThanOrEqual: _not(before),
            EqualTo: _and(_not(before), through),
            NotEqualTo: _or(before, _not(through)),
        }
        if kind not in truths:
            raise ValueError(f"{found.text} can only be compared by <, <=, =, !=, >=, >, BETWEEN and IN")
        return truths[kind]

    def _micros(self, column: Column, subject: str, literal: Any) -> Fraction:
        """The moment of a literal, in microseconds since 1970."""
        time = self.relative.times.get(str(literal))
        if time is not None:
            return Fraction(time.at(self.now_ms))
        if not isinstance(literal, str):
            raise ValueError(
                f"{subject} must be compared with a date or time, for example '2026-01-31' or current_date"
            )
        typed = self.relative.typed.get(literal)
        nanos, has_zone = parse_moment(literal) if typed is None else typed[1]
        if has_zone and not column.kind.startswith("timestamptz"):
            raise ValueError(f"{subject} is {column.kind}, which has no time zone: leave the zone of '{literal}' out")
        if column.kind == "date" and typed is None and nanos % _NANOS_PER_DAY:
            raise ValueError(f"{subject} is date; write timestamp '{literal}' to compare its midnight")
        return Fraction(nanos, 1000)


def _raw(column: Column, literal: Any) -> Any:
    """A literal that is not a time, as a raw value; a fraction if an integer or decimal cannot hold it."""
    kind = column.kind
    try:
        if kind == "string" and isinstance(literal, str):
            return literal
        if kind == "boolean" and str(literal).lower() in ("true", "false"):
            return str(literal).lower() == "true"
        if isinstance(literal, bool):
            raise ValueError
        if kind in FLOATS and not math.isnan(float(literal)):
            return float(literal)
        if kind in ("int", "long") or kind.startswith("decimal"):
            scale = 0 if kind in ("int", "long") else int(kind.partition(",")[2].strip(" )"))
            return _whole(Fraction(Decimal(literal)) * 10**scale)
        if kind == "uuid":
            return StringLiteral(literal).to(UUIDType()).value
        if kind == "time":
            return StringLiteral(literal).to(TimeType()).value
    except (ValueError, ArithmeticError, TypeError):
        pass
    raise ValueError(f"Could not convert {literal} into a {kind}, which column {column.name} is")


def _whole(value: Fraction) -> int | Fraction:
    return value.numerator if value.denominator == 1 else value


def _readings(kind: str, literals: Sequence[Any]) -> list[tuple[_Key, Sequence[Any]]]:
    """The ways in which engines order values and read literals, each as a sort key and literals
    (platform: java-orders-uuids-signed, java-signed-zero-and-nan)."""
    if kind == "uuid":
        return [(_same, literals), (_signed_halves, literals)]
    if kind not in FLOATS:
        return [(_same, literals)]
    rounded = [_as_float(literal) if kind == "float" else literal for literal in literals]
    return [(key, wanted) for wanted in (literals, rounded) for key in (_same, _with_sign)]


def _same(value: Any) -> Any:
    return value


_with_sign: _Key = partial(comparable, "double")
_signed_halves: _Key = struct.Struct(">qq").unpack


def _as_float(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return value


def _null_test(column: Column) -> Truth:
    def test(values_of: ValuesOf) -> int:
        values = values_of(column)
        return (TRUE if values.has_nulls else 0) | (FALSE if values.has_values or values.has_nans else 0)

    return test


def _nan_test(column: Column) -> Truth:
    def test(values_of: ValuesOf) -> int:
        values = values_of(column)
        of_null = FALSE | NULL if values.has_nulls else 0  # engines differ
        return of_null | (TRUE if values.has_nans else 0) | (FALSE if values.has_values else 0)

    return test


def _value_test(
    column: Column, found: TransformedColumn | None, comparison: _Comparison, literals: Sequence[Any]
) -> Truth:
    """Compare a column, its bucket or its truncation in every way in which engines do."""
    if comparison is _is_one_of:
        literals = [literal for literal in literals if not isinstance(literal, Fraction)]  # no value is a fraction
    readings = [(_same, literals)] if found is not None else _readings(column.kind, literals)
    is_in_buckets = found is None and comparison is _is_one_of and has_buckets(column.kind)

    def test(values_of: ValuesOf) -> int:
        values = values_of(column)
        compared = values if found is None else transformed(values, column.kind, found.transform)
        truths = (NULL if values.has_nulls else 0) | (TRUE | FALSE if values.has_nans else 0)
        if not compared.has_values:
            return truths
        for key, wanted in readings:
            if is_in_buckets and values.parts:
                wanted = [value for value in wanted if may_hold(values, column.kind, value)]
            truths |= comparison(compared, key, wanted)
        return truths

    return test


def _less(values: Values, key: _Key, literals: Sequence[Any]) -> int:
    limit = key(literals[0])
    may_be = values.low is None or key(values.low) < limit
    may_not = values.high is None or (key(values.high) > limit if values.is_open else key(values.high) >= limit)
    return (TRUE if may_be else 0) | (FALSE if may_not else 0)


def _less_or_equal(values: Values, key: _Key, literals: Sequence[Any]) -> int:
    limit = key(literals[0])
    may_be = values.low is None or key(values.low) <= limit
    may_not = values.high is None or key(values.high) > limit
    return (TRUE if may_be else 0) | (FALSE if may_not else 0)


def _is_one_of(values: Values, key: _Key, literals: Sequence[Any]) -> int:
    wanted = [key(literal) for literal in literals]
    if values.is_one:
        return TRUE if key(values.low) in wanted else FALSE
    low = None if values.low is None else key(values.low)
    high = None if values.high is None else key(values.high)
    for value in wanted:
        reaches = high is None or (value < high if values.is_open else value <= high)
        if reaches and (low is None or low <= value):
            return TRUE | FALSE
    return FALSE


def _begins(values: Values, key: _Key, literals: Sequence[Any]) -> int:
    (prefix,) = literals
    after = truncated_upper("string", f"{prefix}\0".encode(), len(prefix))
    within = values.narrowed(prefix, None if after is None else after.decode(), is_open=after is not None)
    if not within.has_values:
        return FALSE
    return TRUE if within == values else TRUE | FALSE


_COMPARISONS: Mapping[Any, tuple[_Comparison, bool]] = {
    LessThan: (_less, False),
    LessThanOrEqual: (_less_or_equal, False),
    GreaterThan: (_less_or_equal, True),
    GreaterThanOrEqual: (_less, True),
    EqualTo: (_is_one_of, False),
    NotEqualTo: (_is_one_of, True),
    StartsWith: (_begins, False),
    NotStartsWith: (_begins, True),
}
