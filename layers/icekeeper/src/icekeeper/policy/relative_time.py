"""Times and transforms in a filter: ``now() - interval '1 hour'``, ``date '2026-11-23'``, ``bucket(4, id)``.

The filter's own grammar (PyIceberg's) knows none of them.  They are found here and replaced by placeholders; who
evaluates the filter asks for the moments.  Everything is in UTC, also a time that is written without a zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from icekeeper.policy.time_pattern import days_of

__all__ = [
    "CALENDAR",
    "MICROS_PER_DAY",
    "Moment",
    "RelativeFilter",
    "RelativeTime",
    "TransformedColumn",
    "parse_moment",
    "parse_relative",
    "span_of",
]

MICROS_PER_DAY = 86_400_000_000
CALENDAR = ("year", "month", "day", "hour")
"""The transforms that a filter may name beside ``bucket`` and ``truncate``."""
# Characters of Unicode's private use: no column and no value of a filter has them, and quotes keep them as they are.
_TIME, _TYPED, _COLUMN = "\ue000time", "\ue000typed", "icekeeper\ue000column"
_MICROS = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": MICROS_PER_DAY}
_MICROS["week"] = 7 * MICROS_PER_DAY
_MONTHS = {"month": 1, "year": 12}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Far beyond any table, and within the years that dates have.
_MOST_YEARS = 1000

_PART = r"\d+\s+[a-zA-Z]+"
_INTERVAL = rf"interval\s+(?:'(?P<text>[^']*)'(?:\s+(?P<unit>(?!and\b|or\b)[a-zA-Z]+))?|(?P<bare>{_PART}))"
_STEP = re.compile(rf"\s*(?P<sign>[+-])\s*{_INTERVAL}", re.IGNORECASE)
_BASE = re.compile(r"(?<![\w$.])(?:now\s*\(\s*\)|current_(?:timestamp|date)\b(?:\s*\(\s*\))?)(?![\w$.])", re.IGNORECASE)
_NAME = r'(?:[a-zA-Z_][\w$]*|"[^"]*"|`[^`]*`)'
# Spark names the functions of a catalog as `my_catalog.system.bucket`.
_TRANSFORM = re.compile(
    rf"(?<![\w$.])(?:(?:{_NAME}\.)?system\.)?"
    rf"(?:(?P<calendar>{'|'.join(CALENDAR)})(?P<plural>s?)\s*\("
    rf"|(?P<sized>bucket|truncate)\s*\(\s*(?P<size>\d{{1,9}})\s*,)"
    rf"\s*(?P<column>{_NAME}(?:\.{_NAME})*)\s*\)",
    re.IGNORECASE,
)
_TYPED_LITERAL = re.compile(r"(?<![\w$.])(?:date|timestamp(?:_ntz|_ltz)?)\s*'(?P<text>[^']*)'", re.IGNORECASE)
_MOMENT = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)"
    r"(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?\s*(Z|UTC|[+-]\d\d:?\d\d)?)?",
    re.IGNORECASE,
)
_SPARK_NAME = re.compile(r"`(?P<name>[^`\"]+)`")
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"")
_STRAY = re.compile(rf"(?<![\w$.]){_INTERVAL}", re.IGNORECASE)
_EXAMPLE = "write for example now() - interval '1 hour', or current_date - interval '7' day"
_UNITS = "second, minute, hour, day, week, month or year"


@dataclass(frozen=True, slots=True)
class RelativeTime:
    """``now()`` or ``current_date``, and what is added to it, step by step."""

    text: str
    """As it stands in the filter."""
    is_date: bool
    steps: tuple[tuple[int, int], ...] = ()
    """Months and microseconds, either may be negative."""

    def at(self, now_ms: int) -> int:
        """The moment in microseconds since 1970 in UTC, where it is now ``now_ms`` (epoch milliseconds)."""
        micros = now_ms * 1000
        if self.is_date:
            micros -= micros % MICROS_PER_DAY
        for months, more in self.steps:
            micros = _with_months(micros, months) + more
        return micros


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment that a filter tells by year, month and day."""

    nanos: int
    """Since 1970; in UTC where no zone is written."""
    has_time: bool
    has_zone: bool


@dataclass(frozen=True, slots=True)
class TransformedColumn:
    """A column taken by the year, month, day or hour, or as ``bucket[4]`` or ``truncate[10]``."""

    text: str
    """As it stands in the filter."""
    transform: str
    column: str
    counts: bool = False
    """Named as Spark's function that counts whole units since 1970, as in ``hours(ts)``."""

    def span(self, micros: int) -> tuple[int, int]:
        """The year, month, day or hour with a moment: its first microsecond, and that of the next one."""
        if self.transform in _MICROS:
            return span_of(self.transform, micros // _MICROS[self.transform])
        found = _moment(micros)
        years = found.year - 1970
        return span_of(self.transform, years if self.transform == "year" else years * 12 + found.month - 1)


@dataclass(frozen=True, slots=True)
class RelativeFilter:
    """A filter that PyIceberg can parse, and what its placeholders stand for."""

    text: str
    times: Mapping[str, RelativeTime] = field(default_factory=dict)
    """Placeholder, which is a string in the filter → the time."""
    typed: Mapping[str, tuple[str, Moment]] = field(default_factory=dict)
    """Placeholder, which is a string in the filter → a typed literal as it is written, and its moment."""
    columns: Mapping[str, TransformedColumn] = field(default_factory=dict)
    """Placeholder, which is a column in the filter → the transformed column."""

    def as_written(self, text: str) -> str:
        """A message about the filter with what a person wrote in place of the placeholders."""
        written = {placeholder: time.text for placeholder, time in self.times.items()}
        written |= {placeholder: literal for placeholder, (literal, _) in self.typed.items()}
        written |= {placeholder: found.text for placeholder, found in self.columns.items()}
        for placeholder, said in written.items():
            for quote in ("'", '"', ""):
                text = text.replace(f"{quote}{placeholder}{quote}", said)
        return text


def parse_relative(text: str) -> RelativeFilter:
    """Find what is relative to now, typed literals and transformed columns of a filter (policy key ``where``).

    Raises:
        ValueError: an interval or a typed literal is malformed; the message says how to write it.
    """
    times: dict[str, RelativeTime] = {}
    typed: dict[str, tuple[str, Moment]] = {}
    columns: dict[str, TransformedColumn] = {}
    result, position = "", 0
    while position < len(text):
        if quoted := _QUOTED.match(text, position):
            result, position = result + quoted.group(), quoted.end()
        elif base := _BASE.match(text, position):
            time, position = _relative_time(text, base)
            placeholder = f"{_TIME}{len(times)}"
            times[placeholder] = time
            result += f"'{placeholder}'"
        elif literal := _TYPED_LITERAL.match(text, position):
            placeholder = f"{_TYPED}{len(typed)}"
            typed[placeholder] = literal.group(), parse_moment(literal["text"])
            result, position = f"{result}'{placeholder}'", literal.end()
        elif found := _TRANSFORM.match(text, position):
            placeholder = f"{_COLUMN}{len(columns)}"
            columns[placeholder] = _transformed_column(found)
            result, position = f'{result}"{placeholder}"', found.end()
        elif named := _SPARK_NAME.match(text, position):
            result, position = f'{result}"{named["name"]}"', named.end()
        elif stray := _STRAY.match(text, position):
            raise ValueError(f"{stray.group().strip()} must follow now() or current_date: {_EXAMPLE}")
        else:
            result, position = result + text[position], position + 1
    return RelativeFilter(result, times, typed, columns)


def parse_moment(text: str) -> Moment:
    """A date or time as a filter tells it: ``2026-11-23``, ``2026-11-23 06:30``, ``2026-11-23T06:30:00.5+01:00``.

    Raises:
        ValueError: it is none.
    """
    found = _MOMENT.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        seconds = (datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        example = "write for example '2026-01-31' or '2026-01-31 06:30:00'"
        raise ValueError(f"'{text}' is no date or time; {example}") from None
    zone = (found[8] or "").upper()
    if zone[:1] in ("+", "-"):
        digits = zone[1:].replace(":", "")
        ahead = (int(digits[:2]) * 60 + int(digits[2:])) * 60
        seconds += ahead if zone[0] == "-" else -ahead
    return Moment(seconds * 10**9 + int((found[7] or "").ljust(9, "0")), found[4] is not None, bool(zone))


def span_of(transform: str, value: int) -> tuple[int, int]:
    """The year, month, day or hour of that number since 1970: its first microsecond, and that of the next one."""
    if transform in _MICROS:
        return value * _MICROS[transform], (value + 1) * _MICROS[transform]
    months = _MONTHS[transform]
    return days_of(1970, value * months + 1) * MICROS_PER_DAY, days_of(1970, (value + 1) * months + 1) * MICROS_PER_DAY


def _transformed_column(found: re.Match[str]) -> TransformedColumn:
    column = re.sub('["`]', "", found["column"])
    if found["calendar"]:
        return TransformedColumn(found.group(), found["calendar"].lower(), column, bool(found["plural"]))
    size = int(found["size"])
    if size == 0:
        raise ValueError(f"{found.group()} needs a number greater than 0")
    return TransformedColumn(found.group(), f"{found['sized'].lower()}[{size}]", column)


def _relative_time(text: str, base: re.Match[str]) -> tuple[RelativeTime, int]:
    """The time that begins with ``base``, and where it ends."""
    position = base.end()
    steps: list[tuple[int, int]] = []
    while step := _STEP.match(text, position):
        steps += _step(step)
        position = step.end()
    if re.match(r"\s*[+-]", text[position:]):
        raise ValueError(f"after {text[base.start() : position]} stands no interval: {_EXAMPLE}")
    years = sum(abs(months) / 12 + abs(micros) / (365 * MICROS_PER_DAY) for months, micros in steps)
    if years > _MOST_YEARS:
        raise ValueError(f"{text[base.start() : position]} is more than {_MOST_YEARS} years from now")
    return RelativeTime(text[base.start() : position], "date" in base.group().lower(), tuple(steps)), position


def _step(step: re.Match[str]) -> list[tuple[int, int]]:
    sign = -1 if step["sign"] == "-" else 1
    quoted = " ".join((step["text"] or "", step["unit"] or "")).strip()
    amount = (quoted or step["bare"] or "").lower()
    parts = re.findall(r"(\d{1,9})\s*([a-z]+)", amount)
    known = [(int(number), unit.removesuffix("s")) for number, unit in parts]
    is_whole = re.fullmatch(r"(\d{1,9}\s*[a-z]+\s*)+", amount) is not None
    if not is_whole or any(unit not in _MICROS and unit not in _MONTHS for _, unit in known):
        raise ValueError(f"'{step.group().strip('+- ')}' is no interval of {_UNITS}: {_EXAMPLE}")
    return [(sign * number * _MONTHS.get(unit, 0), sign * number * _MICROS.get(unit, 0)) for number, unit in known]


def _with_months(micros: int, months: int) -> int:
    """The moment so many months later; of a day that the month does not have, the month's last one, as in SQL."""
    if not months:
        return micros
    day = _moment(micros).date()
    number = day.year * 12 + day.month - 1 + months
    year, month = number // 12, number % 12 + 1
    last = date(year + month // 12, month % 12 + 1, 1) - timedelta(days=1)
    moved = date(year, month, min(day.day, last.day))
    return micros + (moved - day).days * MICROS_PER_DAY


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
