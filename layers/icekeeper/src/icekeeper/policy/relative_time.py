"""Times in partition values (``year=%Y``) and in filters (``now() - interval '1 hour'``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.transforms import CALENDAR

# Patterns of text or number partitions: ``dt=%Y-%m-%d``, ``year=%Y,month=%m,day=%d``.  They do what Paimon's
# ``partition.timestamp-pattern`` and ``partition.timestamp-formatter`` do, with the numeric directives of ``strptime``.
# A pattern must match the whole value.

DAY_MS = 24 * HOUR_MS
_MINUTE_MS = HOUR_MS // 60
_WIDTHS = {"Y": 4, "m": 2, "d": 2, "j": 3, "H": 2, "M": 2, "S": 2}
_LEAST_AND_MOST = {"Y": (1, 9999), "m": (1, 12), "d": (1, 31), "j": (1, 366), "H": (0, 23), "M": (0, 59), "S": (0, 59)}
# Directive → the coarser directive that it needs, so that both together denote one moment.
_NEEDS = {"m": "Y", "d": "m", "j": "Y", "M": "H", "S": "M"}
_PATTERN_EXAMPLE = "as in dt=%Y-%m-%d, or over several partition fields year=%Y,month=%m,day=%d"
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)


TimePattern: TypeAlias = tuple[re.Pattern[str], ...]
"""Expressions for one or more partition values, which together give the end of a partition."""


def parse_partition_time(text: str) -> tuple[list[str], TimePattern]:
    """Parse the text of policy key ``partition_time``: the partition fields or columns, and the expression of each.

    A name alone is a field that has a time by itself, without an expression.

    Raises:
        ValueError: a pattern has no field, or a directive lacks the coarser directive that it needs.
    """
    if not {"=", "%", ","} & set(text):
        return [text.strip()], ()
    parts = [_named(part) for part in text.split(",")]
    seen: list[str] = []
    expressions = tuple(_expression(pattern, seen) for _, pattern in parts)
    missing = {directive: _NEEDS[directive] for directive in seen if directive in _NEEDS} | {"Y": "Y"}
    if "H" in seen and not {"d", "j"} & set(seen):
        missing["H"] = "d"
    for directive, needed in missing.items():
        if needed not in seen:
            raise ValueError(
                f"%{needed} is missing{'' if needed == directive else f' beside %{directive}'}; {_PATTERN_EXAMPLE}"
            )
    return [name for name, _ in parts], expressions


def end_by_pattern(pattern: TimePattern, values: Sequence[str]) -> int | None:
    """The first moment after the partition, as epoch milliseconds in UTC; ``None`` if a value does not match."""
    found: dict[str, int] = {}
    for expression, value in zip(pattern, values, strict=True):
        match = expression.fullmatch(value)
        if match is None:
            return None
        found |= {name: int(text) for name, text in match.groupdict().items()}
    if any(not _LEAST_AND_MOST[name][0] <= number <= _LEAST_AND_MOST[name][1] for name, number in found.items()):
        return None
    return _end_ms(found)


def _named(part: str) -> tuple[str, str]:
    name, equals, pattern = part.strip().partition("=")
    if not (name and equals and pattern):
        raise ValueError(f"write FIELD=PATTERN for every partition field, {_PATTERN_EXAMPLE}")
    return name.strip(), pattern.strip()


def _expression(pattern: str, seen: list[str]) -> re.Pattern[str]:
    """The pattern as a regular expression; appends its directives to ``seen``.

    A number may lack leading zeros if no digit can be adjacent to it.
    """
    result, position = "", 0
    directives = list(_DIRECTIVE.finditer(pattern))
    for number, directive in enumerate(directives):
        kind = directive[1]
        result += re.escape(pattern[position : directive.start()])
        before, after = pattern[: directive.start()][-1:], pattern[directive.end() :][:1]
        crowded = before.isdigit() or after.isdigit() or after == "%" or (number > 0 and directive.start() == position)
        position = directive.end()
        if kind == "%":
            result += "%"
            continue
        if kind not in _WIDTHS or kind in seen:
            what = "appears twice" if kind in seen else f"is not one of %{', %'.join(_WIDTHS)}"
            raise ValueError(f"%{kind} {what}; {_PATTERN_EXAMPLE}")
        seen.append(kind)
        width = _WIDTHS[kind]
        least = width if crowded or kind == "Y" else 1
        result += f"(?P<{kind}>[0-9]{{{least},{width}}})"
    return re.compile(result + re.escape(pattern[position:]))


def _end_ms(found: dict[str, int]) -> int | None:
    year, month, day = found["Y"], found.get("m", 1), found.get("d", 1)
    if "j" in found:
        first, days = days_of(year, 1), days_of(year + 1, 1) - days_of(year, 1)
        day = found["j"]
        start, month_days = first + day - 1, days
    elif "d" in found:
        start, month_days = days_of(year, month) + day - 1, days_of(year, month + 1) - days_of(year, month)
    elif "m" in found:
        return days_of(year, month + 1) * DAY_MS
    else:
        return days_of(year + 1, 1) * DAY_MS
    if day > month_days:
        return None
    at = start * DAY_MS + found.get("H", 0) * HOUR_MS + found.get("M", 0) * _MINUTE_MS + found.get("S", 0) * 1000
    length = {"S": 1000, "M": _MINUTE_MS, "H": HOUR_MS}
    return at + next((ms for directive, ms in length.items() if directive in found), DAY_MS)


def days_of(year: int, month: int) -> int:
    """Days from 1970-01-01 to the first of a month of any year; month 13 is the next January."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    # Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that leap days come last.
    year -= month <= 2
    shifted = month - 3 if month > 2 else month + 9
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * shifted + 2) // 5 - 719468


# Times and transforms in a filter: ``now() - interval '1 hour'``, ``date '2026-11-23'``, ``bucket(4, id)``.
#
# PyIceberg's grammar of filters does not have them.  ``parse_relative`` replaces them by placeholders, which the
# evaluation of the filter looks up.  Everything is in UTC, even a time without a zone.

MICROS_PER_DAY = 86_400_000_000
# Private-use characters of Unicode, which no column or value of a filter contains; quoting does not change them.
_TIME, _TYPED, _COLUMN = "\ue000time", "\ue000typed", "icekeeper\ue000column"
_MICROS = {"second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000, "day": MICROS_PER_DAY}
_MICROS["week"] = 7 * MICROS_PER_DAY
_MONTHS = {"month": 1, "year": 12}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# More than any table needs, and within the range of Python's dates.
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
    """``now()`` or ``current_date`` with steps that are added to it; ``text`` is as in the filter."""

    text: str
    is_date: bool
    steps: tuple[tuple[int, int], ...] = ()
    """Months and microseconds; either may be negative."""

    def at(self, now_ms: int) -> int:
        """The moment in microseconds since 1970 in UTC; ``now_ms`` is in epoch milliseconds."""
        micros = now_ms * 1000
        if self.is_date:
            micros -= micros % MICROS_PER_DAY
        for months, more in self.steps:
            micros = _with_months(micros, months) + more
        return micros


Moment: TypeAlias = tuple[int, bool]
"""A literal date or time of a filter: nanoseconds from 1970, in UTC if it has no zone; and whether it has a zone."""


@dataclass(frozen=True, slots=True)
class TransformedColumn:
    """A column with a transform (``day``, ``bucket[4]``, …); ``text`` is as in the filter."""

    text: str
    transform: str
    column: str
    counts: bool = False
    """Written as Spark's function that counts whole units since 1970, like ``hours(ts)``."""

    def span(self, micros: int) -> tuple[int, int]:
        """The first microsecond of the unit (year, month, day or hour) that contains a moment, and of the next."""
        if self.transform in _MICROS:
            return span_of(self.transform, micros // _MICROS[self.transform])
        found = _moment(micros)
        years = found.year - 1970
        return span_of(self.transform, years if self.transform == "year" else years * 12 + found.month - 1)


@dataclass(frozen=True, slots=True)
class RelativeFilter:
    """A filter that PyIceberg can parse, with the meaning of its placeholders."""

    text: str
    times: Mapping[str, RelativeTime] = field(default_factory=dict)
    """By placeholder, which is a string literal of the filter."""
    typed: Mapping[str, tuple[str, Moment]] = field(default_factory=dict)
    """By placeholder, which is a string literal: the typed literal as written, and its moment."""
    columns: Mapping[str, TransformedColumn] = field(default_factory=dict)
    """By placeholder, which is a column of the filter."""

    def as_written(self, text: str) -> str:
        """Replace the placeholders in a message by the text that the person wrote."""
        written = {placeholder: time.text for placeholder, time in self.times.items()}
        written |= {placeholder: literal for placeholder, (literal, _) in self.typed.items()}
        written |= {placeholder: found.text for placeholder, found in self.columns.items()}
        for placeholder, as_typed in written.items():
            for quote in ("'", '"', ""):
                text = text.replace(f"{quote}{placeholder}{quote}", as_typed)
        return text


def parse_relative(text: str) -> RelativeFilter:
    """Find relative times, typed literals and transformed columns in a filter (policy key ``where``).

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
    """Parse ``2026-11-23``, ``2026-11-23 06:30``, ``2026-11-23T06:30:00.5+01:00``.

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


def span_of(transform: str, value: int) -> tuple[int, int]:
    """The first microsecond of unit ``value`` (year, month, day or hour) since 1970, and of the next unit."""
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
    """The time that starts with ``base``, and the position after it."""
    position = base.end()
    steps: list[tuple[int, int]] = []
    while step := _STEP.match(text, position):
        steps += _step(step)
        position = step.end()
    if re.match(r"\s*[+-]", text[position:]):
        raise ValueError(f"an interval is missing after {text[base.start() : position]}: {_EXAMPLE}")
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
        raise ValueError(f"'{step.group().strip('+- ')}' is not an interval of {_UNITS}: {_EXAMPLE}")
    return [(sign * number * _MONTHS.get(unit, 0), sign * number * _MICROS.get(unit, 0)) for number, unit in known]


def _with_months(micros: int, months: int) -> int:
    """The moment that many months later; as in SQL, a day that the month lacks becomes its last day."""
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
