"""Evaluate a filter on the possible values of its columns: three-valued logic over ranges of values (pure).

:meth:`Binding.truth` makes a function from :class:`.Values` to all truth values that the filter has for some possible
row.  So the results "no row matches" and "every row matches" are both certain
(rule: drop-only-fully-matched-partitions).
"""

from __future__ import annotations

import math
import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial, reduce
from typing import Any, TypeAlias

from icekeeper.metadata.transforms import CALENDAR, MICROS_PER_DAY, span_of, unit_of
from icekeeper.metadata.types import FLOATS, UNITS_PER_DAY, comparable, decimal_of, truncated_upper
from icekeeper.operations.compaction.plan.value_ranges import Column, Values, has_buckets, may_hold, transformed
from icekeeper.policy.conditions import (
    And,
    Comparison,
    Condition,
    Constant,
    IsTrue,
    Literal,
    Moment,
    Not,
    Or,
    Term,
    parse_moment,
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
# A decimal of so many digits and its double determine each other.
_EXACT_DIGITS = 15


def not_(truth: Truth) -> Truth:
    """The opposite of a condition."""

    def negated(values_of: ValuesOf) -> int:
        truths = truth(values_of)
        return (truths & NULL) | (FALSE if truths & TRUE else 0) | (TRUE if truths & FALSE else 0)

    return negated


def and_(left: Truth, right: Truth) -> Truth:
    """Whether both conditions are true."""

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


def is_true(truth: Truth) -> Truth:
    """Whether a condition is true: false where it is null."""

    def known(values_of: ValuesOf) -> int:
        truths = truth(values_of)
        return (truths & (TRUE | FALSE)) | (FALSE if truths & NULL else 0)

    return known


def _or(left: Truth, right: Truth) -> Truth:
    return not_(and_(not_(left), not_(right)))


@dataclass(frozen=True, slots=True)
class Binding:
    """The columns that a filter may name, and the time of ``now()``."""

    columns: Mapping[str, Column]
    now_ms: int
    """Epoch milliseconds."""

    def truth(self, condition: Condition) -> Truth:
        """The truth values of a condition.

        Raises:
            ValueError: a column is missing, or a literal or transform does not fit its column.
        """
        match condition:
            case Constant():
                truths = NULL if condition.truth is None else TRUE if condition.truth else FALSE
                return lambda values_of: truths
            case And():
                return and_(self.truth(condition.left), self.truth(condition.right))
            case Or():
                return _or(self.truth(condition.left), self.truth(condition.right))
            case Not():
                return not_(self.truth(condition.child))
            case IsTrue():
                return is_true(self.truth(condition.child))
            case Comparison():
                return self._tested(condition)

    def _tested(self, test: Comparison) -> Truth:
        term = test.term
        if term.column not in self.columns:
            raise ValueError(f"the table has no column '{term.column}'{did_you_mean(term.column, self.columns)}")
        column = self.columns[term.column]
        if test.kind == "null":
            return _null_test(column)
        if test.kind == "nan":
            return _nan_test(column)
        if test.kind == "in":
            return self._one_of(column, test)
        (literal,) = test.literals
        if term.transform in CALENDAR:
            return self._compared_by_calendar(column, test, literal)
        if _is_nan(column, literal) and test.kind == "=":
            return _nan_test(column)
        if test.kind == "begins" and column.kind != "string":
            raise ValueError(f"LIKE and startswith need text, but column {column.name} is {column.kind}")
        return _value_test(column, term, _COMPARISONS[test.kind], [self._value(column, term, literal)])

    def _one_of(self, column: Column, test: Comparison) -> Truth:
        if test.term.transform in CALENDAR:
            each = [self._tested(replace(test, kind="=", literals=(literal,))) for literal in test.literals]
            return reduce(_or, each)
        for literal in test.literals:
            is_whole = column.kind in ("int", "long") and re.fullmatch(r"0|-?[1-9]\d*", str(literal)) is not None
            if isinstance(literal, str) and _is_number(column.kind) and not is_whole:
                raise ValueError(f"in a list, Spark compares the text '{literal}' as text; write a number")
        values = [self._value(column, test.term, literal) for literal in test.literals]
        return _value_test(column, test.term, _is_one_of, values)

    def _value(self, column: Column, term: Term, literal: Literal) -> Any:
        """A literal as a raw value of the column, its bucket or its truncation."""
        if term.transform is not None and term.transform.startswith("bucket"):
            if not has_buckets(column.kind):
                raise ValueError(f"{term.text} is not possible: column {column.name} is {column.kind}")
            if not isinstance(literal, int) or isinstance(literal, bool):
                raise ValueError(f"{term.text} must be compared with a whole number")
            return literal
        if (
            term.transform is not None
            and column.kind not in ("int", "long", "string")
            and decimal_of(column.kind) is None
        ):
            raise ValueError(f"{term.text} is not possible: column {column.name} is {column.kind}")
        if column.kind in UNITS_PER_DAY:
            return _whole(self._micros(column, term, literal) * UNITS_PER_DAY[column.kind] / MICROS_PER_DAY)
        if isinstance(literal, Moment):
            raise ValueError(f"{literal.text} needs a date or timestamp, but column {column.name} is {column.kind}")
        return _raw(column, literal)

    def _compared_by_calendar(self, column: Column, test: Comparison, literal: Literal) -> Truth:
        term, unit = test.term, str(test.term.transform)
        if column.kind not in UNITS_PER_DAY:
            raise ValueError(f"{term.text} needs a date or timestamp, but column {column.name} is {column.kind}")
        if unit == "hour" and column.kind == "date":
            raise ValueError(f"column {column.name} is a date, which has no hour; write day({column.name})")
        if test.kind not in ("=", "<", "<="):
            raise ValueError(f"{term.text} can only be compared by <, <=, =, !=, >=, >, BETWEEN and IN")
        if isinstance(literal, int) and (term.counts or (unit == "year" and not term.is_start)):
            if term.counts and unit == "year" and literal >= 1970:
                raise ValueError(f"{term.text} counts from 1970, as in Spark: {literal} is {literal - 1970}")
            first, after = span_of(unit, literal if term.counts else literal - 1970)
        else:
            micros = self._micros(column, term, literal)
            first, after = span_of(unit, unit_of(unit, micros.__floor__()))
            if term.is_start and micros != first:
                raise ValueError(f"{term.text} is the start of a {unit}; compare it with the start of a {unit}")
        units = UNITS_PER_DAY[column.kind]
        before, through = (
            _value_test(column, None, _less, [Fraction(end * units, MICROS_PER_DAY)]) for end in (first, after)
        )
        return {"<": before, "<=": through, "=": and_(not_(before), through)}[test.kind]

    def _micros(self, column: Column, term: Term, literal: Literal) -> Fraction:
        """The moment of a literal, in microseconds since 1970."""
        subject = f"column {column.name}" if term.transform is None else term.text
        if isinstance(literal, Moment):
            nanos, has_zone, text = literal.at(self.now_ms), literal.has_zone, literal.text
        elif isinstance(literal, str):
            (nanos, has_zone), text = parse_moment(literal), f"'{literal}'"
        else:
            raise ValueError(
                f"{subject} must be compared with a date or time, for example '2026-01-31' or current_date"
            )
        if has_zone and not column.kind.startswith("timestamptz"):
            raise ValueError(f"{subject} is {column.kind}, which has no time zone: leave the zone of {text} out")
        if column.kind == "date" and isinstance(literal, str) and nanos % _NANOS_PER_DAY:
            raise ValueError(f"{subject} is date; write timestamp {text} to compare its midnight")
        return Fraction(nanos, 1000)


def _is_number(kind: str) -> bool:
    return kind in ("int", "long", *FLOATS) or decimal_of(kind) is not None


def _is_nan(column: Column, literal: Literal) -> bool:
    return column.kind in FLOATS and isinstance(literal, str) and literal.strip().lower() == "nan"


def _raw(column: Column, literal: Literal) -> Any:
    """A literal that is not a time, as a raw value; a fraction if an integer or decimal cannot hold it."""
    kind = column.kind
    try:
        if kind == "string" and isinstance(literal, str):
            return literal
        if kind == "boolean" and str(literal).lower() in ("true", "false"):
            return str(literal).lower() == "true"
        if isinstance(literal, bytes) and (kind == "binary" or kind.startswith("fixed")):
            return literal
        if isinstance(literal, bool | bytes):
            raise ValueError
        if kind in FLOATS and not math.isnan(float(literal)):  # type: ignore[arg-type]  # text or a number
            return float(literal)  # type: ignore[arg-type]
        if _is_number(kind):
            return _exact(kind, literal)
        if kind in ("uuid", "time") and isinstance(literal, str):
            from pyiceberg.expressions.literals import StringLiteral
            from pyiceberg.types import TimeType, UUIDType

            return StringLiteral(literal).to(UUIDType() if kind == "uuid" else TimeType()).value
    except (ValueError, ArithmeticError, TypeError):
        pass
    raise ValueError(f"Could not convert {literal!r} into a {kind}, which column {column.name} is")


def _exact(kind: str, literal: Any) -> int | Fraction:
    """A literal as an unscaled integer, or as a fraction of one.

    Spark compares a column with a double as doubles.  Where several values of the column may be the same double, the
    result would differ from an exact comparison.

    Raises:
        ValueError: the literal is such a double, or not a number.
    """
    precision, scale = decimal_of(kind) or (0, 0)
    if isinstance(literal, float):
        digits = Decimal(repr(literal)).normalize().as_tuple().digits
        if abs(literal) >= 2**53 or max(precision, len(digits) if scale else 0) > _EXACT_DIGITS:
            raise ValueError
        literal = Decimal(repr(literal)) if scale else Decimal(literal)
    return _whole(Fraction(Decimal(literal)) * 10**scale)


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


def _value_test(column: Column, term: Term | None, comparison: _Comparison, literals: Sequence[Any]) -> Truth:
    """Compare a column, its bucket or its truncation in every way in which engines do."""
    transform = None if term is None else term.transform
    if comparison is _is_one_of:
        literals = [literal for literal in literals if not isinstance(literal, Fraction)]  # no value is a fraction
    readings: Sequence[tuple[_Key, Sequence[Any]]] = [(_same, literals)]
    if transform is None:
        readings = _readings(column.kind, literals)
    if comparison is _is_one_of:
        readings = [(key, sorted(wanted, key=key)) for key, wanted in readings]
    is_in_buckets = transform is None and comparison is _is_one_of and has_buckets(column.kind)

    def test(values_of: ValuesOf) -> int:
        values = values_of(column)
        compared = values if transform is None else transformed(values, column.kind, transform)
        # NaN equals no number, but engines differ on whether it is less.
        of_nans = FALSE if comparison is _is_one_of else TRUE | FALSE
        truths = (NULL if values.has_nulls else 0) | (of_nans if values.has_nans else 0)
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
    """``literals`` ascend by ``key``: a filter may name thousands."""
    low = None if values.low is None else key(values.low)
    start = 0 if low is None else bisect_left(literals, low, key=key)
    if start == len(literals):
        return FALSE
    value = key(literals[start])
    if values.is_one:
        return TRUE if value == low else FALSE
    high = None if values.high is None else key(values.high)
    reaches = high is None or (value < high if values.is_open else value <= high)
    return TRUE | FALSE if reaches else FALSE


def _begins(values: Values, key: _Key, literals: Sequence[Any]) -> int:
    (prefix,) = literals
    after = truncated_upper("string", f"{prefix}\0".encode(), len(prefix))
    within = values.narrowed(prefix, None if after is None else after.decode(), is_open=after is not None)
    if not within.has_values:
        return FALSE
    return TRUE if within == values else TRUE | FALSE


_COMPARISONS: Mapping[str, _Comparison] = {"=": _is_one_of, "<": _less, "<=": _less_or_equal, "begins": _begins}
