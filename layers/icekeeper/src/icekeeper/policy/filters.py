"""Parse a filter of rows (policy key ``where``): Spark's SQL, by sqlglot, into conditions.

A node of sqlglot's syntax tree is read only if every part of it is understood; anything else is refused by name.
Source: Spark SQL reference, "Expressions", "Literals".
"""

from __future__ import annotations

import math
import operator
import re
import struct
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icekeeper.metadata.transforms import CALENDAR, MICROS, MICROS_PER_DAY, MONTHS
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
    moments,
    parse_moment,
)

if TYPE_CHECKING:
    from sqlglot import exp

_STEP_MICROS = {**MICROS, "second": 1_000_000, "minute": 60_000_000, "week": 7 * MICROS_PER_DAY}
# More than any table needs, and within the range of Python's dates.
_MOST_YEARS = 1000
_EXAMPLE = "write for example now() - interval '1 hour', or current_date - interval '7' day"
_UNITS = "second, minute, hour, day, week, month or year"
_TRUNCATED_TO = {"yy": "year", "yyyy": "year", "mm": "month", "mon": "month", "dd": "day"}


@lru_cache(maxsize=256)
def parse_filter(text: str) -> Condition:
    """Parse a filter.

    Raises:
        ValueError: the filter is malformed, or cannot be decided from partitions and column bounds; the message says
            what to write instead, where there is something.
    """
    import sqlglot  # 0.1 s, and few tables have a filter
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    try:
        where = sqlglot.parse_one(f"WHERE {text}", read="spark", into=exp.Where)
        return _Reader(exp).condition(where.this)
    except ParseError as error:
        raise ValueError(_what_is_wrong(error.errors)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except SqlglotError as error:  # from the tokenizer
        raise ValueError(str(error).splitlines()[0]) from None


def depends_on_now(text: str) -> bool:
    """Whether a filter names ``now()`` or ``current_date``."""
    return any(moment.nanos is None for moment in moments(parse_filter(text)))


def _what_is_wrong(errors: list[dict[str, Any]]) -> str:
    """A sentence with the place of the first error."""
    where, rest = str(errors[0]["highlight"]), str(errors[0]["end_context"])
    if str(errors[0]["description"]).startswith("Required"):
        return "it is empty" if where == "WHERE" else f"something is missing after '{where}'"
    return f"'{(where + rest).strip()}' is not expected there"


class _Reader:
    """Reads sqlglot's syntax tree; ``exp`` is its module of nodes, which is imported late."""

    def __init__(self, exp: Any) -> None:
        self.comparisons = {
            exp.EQ: ("=", False),
            exp.NEQ: ("=", True),
            exp.LT: ("<", False),
            exp.LTE: ("<=", False),
            exp.GT: ("<=", True),
            exp.GTE: ("<", True),
            exp.NullSafeEQ: ("<=>", False),
            exp.NullSafeNEQ: ("<=>", True),
        }
        self.mirrored = {exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE}
        self.units = {exp.Year: "year", exp.Month: "month", exp.Day: "day", exp.Hour: "hour"}
        self.exp = exp

    def condition(self, node: exp.Expression) -> Condition:
        exp = self.exp
        match node:
            case exp.Paren():
                return self.condition(*_parts(node, "this"))
            case exp.And() | exp.Or():
                left, right = (self.condition(part) for part in _parts(node, "this", "expression"))
                return And(left, right) if isinstance(node, exp.And) else Or(left, right)
            case exp.Not():
                return Not(self.condition(*_parts(node, "this")))
            case exp.Boolean() | exp.Null():
                return Constant(self.literal(node))  # type: ignore[arg-type]  # a boolean or null
            case exp.Column():
                return Comparison(self.term(node), "=", (True,))
            case exp.Is():
                tested, value = _parts(node, "this", "expression")
                if not isinstance(value, exp.Null | exp.Boolean):
                    raise _undecidable(node)
                return self._same(self.term(tested), self.literal(value))
            case exp.Between():
                tested, low, high = _parts(node, "this", "low", "high")
                term = self.term(tested)
                return And(Not(self._test(term, "<", low)), self._test(term, "<=", high))
            case exp.In():
                return self._one_of(node)
            case exp.Like():
                return self._like(node)
            case exp.StartsWith():
                tested, prefix = _parts(node, "this", "expression")
                return Comparison(self.term(tested), "begins", (self._text(prefix),))
            case exp.IsNan():
                return Comparison(self.term(*_parts(node, "this")), "nan")
            case exp.Anonymous() if node.name.lower() in ("isnull", "isnotnull") and len(node.expressions) == 1:
                is_null = Comparison(self.term(node.expressions[0]), "null")
                return is_null if node.name.lower() == "isnull" else Not(is_null)
            case _ if type(node) in self.comparisons:
                return self._comparison(node)
        raise _undecidable(node)

    def _comparison(self, node: exp.Expression) -> Condition:
        left, right = _parts(node, "this", "expression")
        kind = type(node)
        if right.find(self.exp.Column) is not None:
            if left.find(self.exp.Column) is not None:
                raise ValueError(f"{_text(node)} compares two columns")
            left, right, kind = right, left, self.mirrored.get(kind, kind)
        elif left.find(self.exp.Column) is None:
            raise ValueError(f'{_text(node)} names no column; as in Spark, "a" is text and `a` a column')
        operator, is_opposite = self.comparisons[kind]
        term = self.term(left)
        found = self._same(term, self.literal(right)) if operator == "<=>" else self._test(term, operator, right)
        return Not(found) if is_opposite else found

    def _test(self, term: Term, kind: str, literal: exp.Expression) -> Condition:
        value = self.literal(literal)
        return Constant(None) if value is None else Comparison(term, kind, (value,))

    @staticmethod
    def _same(term: Term, value: Literal) -> Condition:
        """Equal, or both null."""
        return Comparison(term, "null") if value is None else IsTrue(Comparison(term, "=", (value,)))

    def _one_of(self, node: exp.Expression) -> Condition:
        tested, values = _parts(node, "this", "expressions")
        literals = [self.literal(value) for value in values]
        found = Comparison(self.term(tested), "in", tuple(literal for literal in literals if literal is not None))
        return Or(found, Constant(None)) if None in literals else found

    def _like(self, node: exp.Expression) -> Condition:
        is_opposite = bool(node.args.get("negate"))
        tested, pattern = _parts(node, "this", "expression", flags=("negate",))
        text = self._text(pattern)
        prefix = text.rstrip("%")
        if not {"%", "_", "\\"}.isdisjoint(prefix):
            raise ValueError(f"{_text(node)} cannot be decided from column bounds; LIKE 'prefix%' can")
        found = Comparison(self.term(tested), "=" if prefix == text else "begins", (prefix,))
        return Not(found) if is_opposite else found

    def _text(self, node: exp.Expression) -> str:
        value = self.literal(node)
        if not isinstance(value, str):
            raise ValueError(f"{_text(node)} is not text, which LIKE and startswith need")
        return value

    # Terms.

    def term(self, node: exp.Expression) -> Term:
        exp = self.exp
        match node:
            case exp.Paren():
                return self.term(*_parts(node, "this"))
            case exp.Column():
                return Term(_text(node), ".".join(part.name for part in node.parts))
            case exp.Dot():
                return self._dotted(node)
            case exp.Anonymous():
                return self._named_transform(node)
            case exp.Trunc():
                width, tested = _parts(node, "this", "decimals")
                return self._sized("truncate", node, width, tested)
            case exp.Cast() if node.to.this == exp.DType.DATE:
                tested, _ = _parts(node, "this", "to", flags=("safe",))
                return self._of(tested, node, "day", is_start=True)
            case exp.TsOrDsToDate():
                (tested,) = _parts(node, "this", flags=("safe",))
                return self._of(tested, node, "day", is_start=True)
            case exp.TimestampTrunc() | exp.DateTrunc():
                tested, unit = _parts(node, "this", "unit")
                return self._of(tested, node, _unit(node, unit), is_start=True)
            case _ if type(node) in self.units:
                (tested,) = _parts(node, "this")
                if isinstance(tested, exp.TsOrDsToDate):  # sqlglot adds it
                    (tested,) = _parts(tested, "this")
                return self._of(tested, node, self.units[type(node)])
        raise _undecidable(node)

    def _of(self, tested: exp.Expression, node: exp.Expression, transform: str, **more: bool) -> Term:
        inner = self.term(tested)
        if inner.transform is not None:
            raise _undecidable(node)
        return Term(_text(node), inner.column, transform, **more)

    def _dotted(self, node: exp.Expression) -> Term:
        """A field of a deep struct, or a transform as Spark names those of a catalog: ``my_catalog.system.bucket``."""
        left, right = _parts(node, "this", "expression")
        if isinstance(right, self.exp.Identifier):
            return replace(self.term(left), text=_text(node), column=f"{self.term(left).column}.{right.name}")
        parts = [part.name for part in left.flatten()] if isinstance(left, self.exp.Dot) else [left.name]
        if parts[-1].lower() != "system" or len(parts) > 2:
            raise _undecidable(node)
        return replace(self.term(right), text=_text(node))

    def _named_transform(self, node: exp.Expression) -> Term:
        name, arguments = node.name.lower(), node.expressions
        if name.removesuffix("s") in CALENDAR and name.endswith("s") and len(arguments) == 1:
            return self._of(arguments[0], node, name.removesuffix("s"), counts=True)
        if name == "bucket" and len(arguments) == 2:
            return self._sized(name, node, *arguments)
        raise _undecidable(node)

    def _sized(self, name: str, node: exp.Expression, size: exp.Expression, tested: exp.Expression) -> Term:
        number = self.literal(size)
        if not isinstance(number, int) or not 0 < number < 2**31:
            raise ValueError(f"{_text(node)} needs a number greater than 0")
        return self._of(tested, node, f"{name}[{number}]")

    # Literals.

    def literal(self, node: exp.Expression) -> Literal:
        exp = self.exp
        match node:
            case exp.Paren():
                return self.literal(*_parts(node, "this"))
            case exp.Literal():
                return node.name if node.is_string else _number(node.name)
            case exp.RawString():
                return str(node.this)
            case exp.Boolean():
                return bool(node.this)
            case exp.Null():
                return None
            case exp.HexString():
                digits = str(node.this)
                return bytes.fromhex(digits.rjust(len(digits) + len(digits) % 2, "0"))
            case exp.Concat():
                raise ValueError(f"{_text(node)} has a quote inside text; write \\'")
            case exp.Neg():
                value = self.literal(*_parts(node, "this"))
                if isinstance(value, int | Decimal | float):
                    return value.copy_negate() if isinstance(value, Decimal) else -value  # -0.0 keeps its sign
            case exp.Cast():
                value, to = node.this, node.to
                _parts(node, "this", "to", flags=("safe",))
                return self._cast(node, self.literal(value), to)
            case exp.Add() | exp.Sub() | exp.Mul():
                return self._computed(node)
        return self._moment(node)

    def _cast(self, node: exp.Expression, value: Literal, to: exp.DataType) -> Literal:
        kind = to.this.name
        if isinstance(value, str) and (kind == "DATE" or kind.startswith("TIMESTAMP")):
            nanos, has_zone = parse_moment(value)
            if has_zone and kind == "TIMESTAMPNTZ":
                raise ValueError(f"{_text(node)} has a time zone; leave it out")
            moment = Moment(_text(node), nanos, kind == "DATE", has_zone)
            return replace(moment, steps=("day",)) if kind == "DATE" else moment
        if isinstance(value, Moment) and kind == "DATE":
            return replace(value.start_of("day"), text=_text(node), is_date=True)
        bits = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}.get(kind)
        if bits is not None and isinstance(value, int) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            return value
        if isinstance(value, int | Decimal | float) or (isinstance(value, str) and kind == "DECIMAL"):
            if kind in ("DOUBLE", "FLOAT"):
                return float(value) if kind == "DOUBLE" else float(struct.unpack("<f", struct.pack("<f", value))[0])
            if kind == "DECIMAL" and not isinstance(value, float):
                return _fitting(Decimal(value), [int(str(size.this)) for size in to.expressions], node)
        if isinstance(value, str) and kind in ("TEXT", "VARCHAR"):
            return value
        raise ValueError(f"{_text(node)} is not a value that can be compared")

    def _computed(self, node: exp.Expression) -> Literal:
        """The sum, difference or product of literals; a date or time and an interval, or days."""
        exp = self.exp
        left, right = _parts(node, "this", "expression")
        if isinstance(right.unnest(), exp.Interval | exp.Add) and right.find(exp.Interval) is not None:
            sign = -1 if isinstance(node, exp.Sub) else 1
            base = self.literal(left)
            if not isinstance(base, Moment) or isinstance(node, exp.Mul):
                raise ValueError(f"{_text(right)} must follow a date or time: {_EXAMPLE}")
            steps = [(sign * months, sign * micros) for months, micros in self._interval(right)]
            return _stepped(base, steps, node)
        a, b = self.literal(left), self.literal(right)
        if isinstance(a, Moment) and isinstance(b, int) and not isinstance(node, exp.Mul):
            if not a.is_date:
                raise ValueError(f"an interval is missing after {a.text}: {_EXAMPLE}")
            return _stepped(a, [(0, (-b if isinstance(node, exp.Sub) else b) * MICROS_PER_DAY)], node)
        numbers = [
            value for value in (a, b) if isinstance(value, int | Decimal | float) and not isinstance(value, bool)
        ]
        if len(numbers) != 2:
            raise ValueError(f"{_text(node)} cannot be computed")
        if any(isinstance(value, float) for value in numbers):
            numbers = [float(value) for value in numbers]
        compute = {exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul}[type(node)]
        result: int | Decimal | float = compute(*numbers)
        if isinstance(result, int) and abs(result) >= 2**31:
            raise ValueError(f"{_text(node)} exceeds the range of an integer; write its result")
        return result

    def _moment(self, node: exp.Expression) -> Moment:
        exp = self.exp
        match node:
            case exp.CurrentTimestamp() | exp.Localtimestamp():
                _parts(node)
                return Moment(_text(node))
            case exp.CurrentDate():
                _parts(node)
                return Moment(_text(node), is_date=True, steps=("day",))
            case exp.Anonymous() if node.name.lower() == "now" and not node.expressions:
                return Moment(_text(node))
            case exp.TsOrDsToDate():
                (value,) = _parts(node, "this", flags=("safe",))
                return self._day(value)
            case exp.TsOrDsAdd() | exp.AddMonths():
                is_days = isinstance(node, exp.TsOrDsAdd)
                base, amount = _parts(node, "this", "expression", flags=("unit",) if is_days else ())
                number = self.literal(amount)
                if isinstance(number, int) and (not is_days or node.args["unit"].name == "DAY"):
                    step = (0, number * MICROS_PER_DAY) if is_days else (number, 0)
                    return replace(_stepped(self._day(base), [step], node), is_date=True)
            case exp.TimestampTrunc() | exp.DateTrunc():
                value, unit = _parts(node, "this", "unit")
                found = self.literal(value)
                if isinstance(found, Moment):
                    return replace(found.start_of(_unit(node, unit)), text=_text(node))
            case exp.Interval():
                raise ValueError(f"{_text(node)} must follow a date or time: {_EXAMPLE}")
        raise _undecidable(node)

    def _day(self, node: exp.Expression) -> Moment:
        """The date of a date, a time or its text."""
        value = self.literal(node)
        if isinstance(value, str):
            value = Moment(_text(node), parse_moment(value)[0])
        if not isinstance(value, Moment):
            raise ValueError(f"{_text(node)} is not a date or time")
        return replace(value.start_of("day"), is_date=True)

    def _interval(self, node: exp.Expression) -> list[tuple[int, int]]:
        """The months and microseconds of each part."""
        inner = node.unnest()
        if isinstance(inner, self.exp.Add):
            return [step for part in _parts(inner, "this", "expression") for step in self._interval(part)]
        if not isinstance(inner, self.exp.Interval):
            raise _undecidable(node)
        amount = " ".join(part.name for part in (inner.this, inner.args.get("unit")) if part is not None).lower()
        found = re.findall(r"(-?\d{1,9})\s*([a-z]+)", amount)
        parts = [(int(number), name.removesuffix("s")) for number, name in found]
        is_whole = re.fullmatch(r"(-?\d{1,9}\s*[a-z]+\s*)+", amount) is not None
        if not is_whole or any(name not in _STEP_MICROS and name not in MONTHS for _, name in parts):
            raise ValueError(f"'{_text(node)}' is not an interval of {_UNITS}: {_EXAMPLE}")
        return [(number * MONTHS.get(name, 0), number * _STEP_MICROS.get(name, 0)) for number, name in parts]


def _parts(node: exp.Expression, *names: str, flags: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """The named parts of a node.

    Raises:
        ValueError: it lacks one of them, or has other parts than these and ``flags``, which do not matter.
    """
    given = {name for name, value in node.args.items() if value not in (None, False, [])}
    if not set(names) <= given or given - set(names) - set(flags):
        raise _undecidable(node)
    return tuple(node.args[name] for name in names)


def _text(node: exp.Expression) -> str:
    if node.key == "trunc":  # numbers only, in sqlglot's Spark
        return f"truncate({_text(node.this)}, {node.args.get('decimals')})"
    return node.sql(dialect="spark", comments=False, normalize_functions="lower")


def _undecidable(node: exp.Expression) -> ValueError:
    return ValueError(f"{_text(node)} cannot be decided from partitions and column bounds")


def _number(text: str) -> int | Decimal | float:
    if "e" in text.lower() and math.isfinite(double := float(text)):
        return double
    return Decimal(text) if "." in text else int(text)


def _fitting(value: Decimal, sizes: list[int], node: exp.Expression) -> Decimal:
    """The value as a decimal of that precision and scale, if it has no more digits."""
    precision, scale = (*sizes, *(10, 0)[len(sizes) :])
    if value.is_finite() and value == round(value, scale) and abs(value) < Decimal(10) ** (precision - scale):
        return value
    raise ValueError(f"{_text(node)} does not fit its type")


def _unit(node: exp.Expression, unit: exp.Expression) -> str:
    name = unit.name.lower()
    name = _TRUNCATED_TO.get(name, name)
    if name not in CALENDAR:
        raise ValueError(f"{_text(node)} has none of the units {', '.join(CALENDAR)}")
    return name


def _stepped(base: Moment, steps: list[tuple[int, int]], node: exp.Expression) -> Moment:
    taken = (*base.steps, *steps)
    pairs = [step for step in taken if isinstance(step, tuple)]
    years = sum(abs(months) / 12 + abs(micros) / (365 * MICROS_PER_DAY) for months, micros in pairs)
    if years > _MOST_YEARS:
        raise ValueError(f"{_text(node)} is more than {_MOST_YEARS} years from its start")
    is_date = base.is_date and all(micros % MICROS_PER_DAY == 0 for _, micros in steps)
    return replace(base, text=_text(node), is_date=is_date, steps=taken)
