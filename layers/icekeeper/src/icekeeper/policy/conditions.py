"""What a filter of rows says: conditions on columns, and the values with which columns are compared.

Everything is in UTC, even a time without a zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias

from icekeeper.metadata.transforms import MICROS_PER_DAY, floored

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)"
    r"(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?\s*(Z|UTC|[+-]\d\d:?\d\d)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A date or time: a literal, or ``now()`` or ``current_date``; and the steps that are taken from it."""

    text: str
    """As in the filter."""
    nanos: int | None = None
    """Nanoseconds since 1970 in UTC; ``None``: now."""
    is_date: bool = False
    has_zone: bool = False
    steps: tuple[tuple[int, int] | str, ...] = ()
    """Months and microseconds to add; or the unit (year, month, day, hour) to whose start to go back."""

    def at(self, now_ms: int) -> int:
        """Nanoseconds since 1970 in UTC, where ``now()`` is ``now_ms`` (epoch milliseconds)."""
        micros, rest = divmod(now_ms * 10**6 if self.nanos is None else self.nanos, 1000)
        for step in self.steps:
            if isinstance(step, str):
                micros, rest = floored(step, micros), 0
            else:
                micros = _with_months(micros, step[0]) + step[1]
        return micros * 1000 + rest

    def start_of(self, unit: str) -> Moment:
        """The start of the unit that contains this moment."""
        return replace(self, steps=(*self.steps, unit))


Literal: TypeAlias = bool | int | Decimal | float | str | bytes | Moment | None
"""``float``: one of Spark's doubles, such as ``1e3`` or ``1.5D``."""


@dataclass(frozen=True, slots=True)
class Term:
    """A column, or a transform or function of a column."""

    text: str
    """As in the filter."""
    column: str
    """The name; a field of a struct is ``struct.field``."""
    transform: str | None = None
    """``day``, ``bucket[4]``, …"""
    counts: bool = False
    """Written as Spark's function that counts whole units since 1970, like ``hours(ts)``."""
    is_start: bool = False
    """The start of the unit, like ``date(ts)``; otherwise both sides of a comparison are taken by the unit."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a term with literals: ``=``, ``<``, ``<=``, ``in``, ``begins``, ``null`` or ``nan``."""

    term: Term
    kind: str
    literals: tuple[Literal, ...] = ()


@dataclass(frozen=True, slots=True)
class And:
    """SQL's ``AND`` of two conditions."""

    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Or:
    """SQL's ``OR`` of two conditions."""

    left: Condition
    right: Condition


@dataclass(frozen=True, slots=True)
class Not:
    """SQL's ``NOT``: null where the child is null."""

    child: Condition


@dataclass(frozen=True, slots=True)
class IsTrue:
    """Whether the child is true: false where it is null."""

    child: Condition


@dataclass(frozen=True, slots=True)
class Constant:
    """``true``, ``false`` or null."""

    truth: bool | None


Condition: TypeAlias = Comparison | And | Or | Not | IsTrue | Constant


def moments(condition: Condition) -> Iterator[Moment]:
    """The dates and times with which a condition compares columns."""
    match condition:
        case Comparison():
            yield from (literal for literal in condition.literals if isinstance(literal, Moment))
        case And() | Or():
            yield from moments(condition.left)
            yield from moments(condition.right)
        case Not() | IsTrue():
            yield from moments(condition.child)


def parse_moment(text: str) -> tuple[int, bool]:
    """Parse ``2026-11-23``, ``2026-11-23 06:30``, ``2026-11-23T06:30:00.5+01:00``: nanoseconds since 1970, in UTC if it
    has no zone; and whether it has a zone.

    Raises:
        ValueError: the text is not a date or time.
    """
    found = _MOMENT.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        seconds = (datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        example = "write for example '2026-01-31' or '2026-01-31 06:30:00'"
        raise ValueError(f"'{text}' is not a date or time; {example}") from None
    zone = (found[8] or "").upper()
    if zone[:1] in ("+", "-"):
        digits = zone[1:].replace(":", "")
        ahead = (int(digits[:2]) * 60 + int(digits[2:])) * 60
        seconds += ahead if zone[0] == "-" else -ahead
    return seconds * 10**9 + int((found[7] or "").ljust(9, "0")), bool(zone)


def _with_months(micros: int, months: int) -> int:
    """The moment that many months later; as in SQL, a day that the month lacks becomes its last day."""
    if not months:
        return micros
    day = (_EPOCH + timedelta(microseconds=micros)).date()
    number = day.year * 12 + day.month - 1 + months
    year, month = number // 12, number % 12 + 1
    last = date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
    moved = date(year, month, min(day.day, last.day))
    return micros + (moved - day).days * MICROS_PER_DAY
