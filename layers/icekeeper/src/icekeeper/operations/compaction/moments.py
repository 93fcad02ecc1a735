"""Puts moments into a parsed filter, for ``now()`` and ``current_date`` and for transforms of columns (pure).

A date is compared with a moment as in SQL: as its midnight, in UTC.  A transformed column is compared by whole years,
months, days or hours on both sides: ``day(ts) < now()`` is every day before today.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotIn,
    Or,
    Reference,
    SetPredicate,
    UnaryPredicate,
)
from pyiceberg.expressions.literals import DateLiteral, Literal, StringLiteral, TimestampLiteral
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, IcebergType, TimestampType, TimestamptzType

from icekeeper.policy.relative_time import MICROS_PER_DAY, RelativeFilter, TransformedColumn

__all__ = ["with_moments"]

# PyIceberg's classes are made in ways that its annotations do not tell.
_Predicate: TypeAlias = Any
_ONE_OF: dict[_Predicate, _Predicate] = {In: EqualTo, NotIn: NotEqualTo}
_LESS: _Predicate = LessThan
_GREATER_OR_EQUAL: _Predicate = GreaterThanOrEqual


def with_moments(
    expression: BooleanExpression, schema: Schema, relative: RelativeFilter, now_ms: int
) -> BooleanExpression:
    """The filter that ``expression``, parsed from ``relative.text``, is at ``now_ms`` (epoch milliseconds).

    Raises:
        ValueError: a relative time or a transform where there is no date or timestamp, or a column is missing.
    """
    return _Moments(schema, relative, now_ms).put_into(expression)


@dataclass(frozen=True, slots=True)
class _Moments:
    schema: Schema
    relative: RelativeFilter
    now_ms: int

    def put_into(self, expression: BooleanExpression) -> BooleanExpression:
        match expression:
            case And() | Or():
                return type(expression)(self.put_into(expression.left), self.put_into(expression.right))
            case Not():
                return Not(self.put_into(expression.child))
            case UnaryPredicate() if (transformed := self._transformed(expression.term)) is not None:
                return type(expression)(Reference(transformed.column))
            case SetPredicate() if self._is_ours(expression.term, *expression.literals):
                one = _ONE_OF[type(expression)]
                each = (self._compared(one, expression.term, value) for value in expression.literals)
                return reduce(Or if isinstance(expression, In) else And, each)
            case LiteralPredicate() if self._is_ours(expression.term, expression.literal):
                return self._compared(type(expression), expression.term, expression.literal)
            case _:
                return expression

    def _is_ours(self, term: object, *literals: Literal[Any]) -> bool:
        is_relative = any(literal.value in self.relative.times for literal in literals)
        return is_relative or self._transformed(term) is not None

    def _transformed(self, term: object) -> TransformedColumn | None:
        return self.relative.columns.get(term.name) if isinstance(term, Reference) else None

    def _compared(self, comparison: _Predicate, term: _Predicate, literal: Literal[Any]) -> BooleanExpression:
        transformed = self._transformed(term)
        name = term.name if transformed is None else transformed.column
        kind = self.schema.find_field(name, case_sensitive=True).field_type
        time = self.relative.times.get(str(literal.value))
        said = (
            f"{transformed.transform}({name})" if time is None and transformed is not None else f"{time and time.text}"
        )
        if not isinstance(kind, DateType | TimestampType | TimestamptzType):
            raise ValueError(f"{said} needs a date or timestamp, but column {name} is {kind}")
        if comparison not in _COMPARED:
            raise ValueError(f"{said} can only be compared by <, <=, =, !=, >=, >, BETWEEN and IN")
        micros = _micros(literal, kind, said) if time is None else time.at(self.now_ms)
        if transformed is None:
            return _COMPARED[comparison](Reference(name), kind, micros, micros + 1)
        if transformed.transform == "hour" and isinstance(kind, DateType):
            raise ValueError(f"column {name} is a date, which has no hour; write day({name})")
        first, after = transformed.span(micros)
        return _COMPARED[comparison](Reference(name), kind, first, after)


def _micros(literal: Literal[Any], kind: IcebergType, said: str) -> int:
    """The moment that a filter tells as text, for a column of this type."""
    if not isinstance(literal, StringLiteral):
        raise ValueError(f"{said} is compared with a date or time, for example '2026-01-31' or current_date")
    if isinstance(kind, DateType) or len(literal.value) <= len("2026-01-31"):
        return int(literal.to(DateType()).value) * MICROS_PER_DAY
    return int(literal.to(kind).value)


def _at_least(column: Reference, kind: IcebergType, micros: int) -> BooleanExpression:
    """The column's value is this moment or later; a date is its first microsecond."""
    return _compared_with(_GREATER_OR_EQUAL, column, kind, micros)


def _before(column: Reference, kind: IcebergType, micros: int) -> BooleanExpression:
    return _compared_with(_LESS, column, kind, micros)


def _compared_with(comparison: _Predicate, column: Reference, kind: IcebergType, micros: int) -> BooleanExpression:
    is_date = isinstance(kind, DateType)
    limit = DateLiteral(-(-micros // MICROS_PER_DAY)) if is_date else TimestampLiteral(micros)
    predicate: BooleanExpression = comparison(column, limit)
    return predicate


def _within(column: Reference, kind: IcebergType, first: int, after: int) -> BooleanExpression:
    if isinstance(kind, DateType) and -(-first // MICROS_PER_DAY) == -(-after // MICROS_PER_DAY):
        return AlwaysFalse()  # no date is within a day's hours
    return And(_at_least(column, kind, first), _before(column, kind, after))


def _outside(column: Reference, kind: IcebergType, first: int, after: int) -> BooleanExpression:
    if isinstance(kind, DateType) and -(-first // MICROS_PER_DAY) == -(-after // MICROS_PER_DAY):
        return AlwaysTrue()
    return Or(_before(column, kind, first), _at_least(column, kind, after))


# Comparison → what it means with the span of the moment: its first microsecond, and the first one after it.
_COMPARED: dict[_Predicate, Callable[[Reference, IcebergType, int, int], BooleanExpression]] = {
    LessThan: lambda column, kind, first, after: _before(column, kind, first),
    LessThanOrEqual: lambda column, kind, first, after: _before(column, kind, after),
    GreaterThan: lambda column, kind, first, after: _at_least(column, kind, after),
    GreaterThanOrEqual: lambda column, kind, first, after: _at_least(column, kind, first),
    EqualTo: _within,
    NotEqualTo: _outside,
}
