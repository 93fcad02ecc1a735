"""Times in a filter that are relative to now, and transforms of columns: ``now() - interval '1 hour'``, ``day(ts)``.

The filter's own grammar (PyIceberg's) knows neither.  Both are found here and replaced by placeholders; who evaluates
the filter asks for the moments.  Everything is in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

__all__ = ["CALENDAR", "MICROS_PER_DAY", "RelativeFilter", "RelativeTime", "TransformedColumn", "parse_relative"]

MICROS_PER_DAY = 86_400_000_000
CALENDAR = ("year", "month", "day", "hour")
"""The transforms that a filter may name."""
# Characters of Unicode's private use: no column and no value of a filter has them, and quotes keep them as they are.
_TIME, _COLUMN = "\ue000time", "icekeeper\ue000column"
_MICROS = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": MICROS_PER_DAY}
_MICROS["week"] = 7 * MICROS_PER_DAY
_MONTHS = {"month": 1, "year": 12}
# Far beyond any table, and within the years that dates have.
_MOST_YEARS = 1000

_PART = r"\d+\s+[a-zA-Z]+"
_INTERVAL = rf"interval\s+(?:'(?P<text>[^']*)'(?:\s+(?P<unit>(?!and\b|or\b)[a-zA-Z]+))?|(?P<bare>{_PART}))"
_STEP = re.compile(rf"\s*(?P<sign>[+-])\s*{_INTERVAL}", re.IGNORECASE)
_BASE = re.compile(r"(?<![\w$.])(?:now\s*\(\s*\)|current_(?:timestamp|date)\b(?:\s*\(\s*\))?)(?![\w$.])", re.IGNORECASE)
_NAME = r'(?:[a-zA-Z_][\w$]*|"[^"]*")'
_TRANSFORM = re.compile(
    rf"(?<![\w$.])(?P<transform>{'|'.join(CALENDAR)})s?\s*\(\s*(?P<column>{_NAME}(?:\.{_NAME})*)\s*\)", re.IGNORECASE
)
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
class TransformedColumn:
    """A column taken by the year, month, day or hour."""

    transform: str
    column: str

    def span(self, micros: int) -> tuple[int, int]:
        """The year, month, day or hour with a moment: its first microsecond, and that of the next one."""
        if self.transform in _MICROS:
            first = micros - micros % _MICROS[self.transform]
            return first, first + _MICROS[self.transform]
        found = _moment(micros)
        first_day = datetime(found.year, found.month if self.transform == "month" else 1, 1, tzinfo=UTC)
        first = _micros(first_day)
        return first, _with_months(first, _MONTHS[self.transform])


@dataclass(frozen=True, slots=True)
class RelativeFilter:
    """A filter that PyIceberg can parse, and what its placeholders stand for."""

    text: str
    times: Mapping[str, RelativeTime] = field(default_factory=dict)
    """Placeholder, which is a string in the filter → the time."""
    columns: Mapping[str, TransformedColumn] = field(default_factory=dict)
    """Placeholder, which is a column in the filter → the transformed column."""

    def as_written(self, text: str) -> str:
        """A message about the filter with what a person wrote in place of the placeholders."""
        for placeholder, time in self.times.items():
            text = text.replace(f"'{placeholder}'", time.text).replace(placeholder, time.text)
        for placeholder, found in self.columns.items():
            written = f"{found.transform}({found.column})"
            text = text.replace(f'"{placeholder}"', written).replace(placeholder, written)
        return text


def parse_relative(text: str) -> RelativeFilter:
    """Find what is relative to now, and the transformed columns, of a filter (policy key ``where``).

    Raises:
        ValueError: an interval is malformed; the message says how to write it.
    """
    times: dict[str, RelativeTime] = {}
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
        elif found := _TRANSFORM.match(text, position):
            placeholder = f"{_COLUMN}{len(columns)}"
            column = found["column"].replace('"', "")
            columns[placeholder] = TransformedColumn(found["transform"].lower(), column)
            result, position = f'{result}"{placeholder}"', found.end()
        elif stray := _STRAY.match(text, position):
            raise ValueError(f"{stray.group().strip()} must follow now() or current_date: {_EXAMPLE}")
        else:
            result, position = result + text[position], position + 1
    return RelativeFilter(result, times, columns)


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
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
