"""How a time is read from partition values that are text or numbers: ``%Y-%m-%d``, ``year=%Y,month=%m,day=%d``.

One setting does what Paimon's ``partition.timestamp-pattern`` and ``partition.timestamp-formatter`` do, with those
directives of ``strptime`` that stand for numbers.  A value must match as a whole, or it names no time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from icekeeper.machine.clock import HOUR_MS

__all__ = ["DAY_MS", "TimePattern", "days_of", "parse_time_pattern"]

DAY_MS = 24 * HOUR_MS
_MINUTE_MS = HOUR_MS // 60
_WIDTHS = {"Y": 4, "m": 2, "d": 2, "j": 3, "H": 2, "M": 2, "S": 2}
_LEAST_AND_MOST = {"Y": (1, 9999), "m": (1, 12), "d": (1, 31), "j": (1, 366), "H": (0, 23), "M": (0, 59), "S": (0, 59)}
# Directive → the coarser one that must stand beside it, so that both name one moment.
_NEEDS = {"m": "Y", "d": "m", "j": "Y", "M": "H", "S": "M"}
# Directive → how long it lasts at most, the finest first.
_LONGEST_MS = {
    "S": 1000,
    "M": _MINUTE_MS,
    "H": HOUR_MS,
    **dict.fromkeys("dj", DAY_MS),
    "m": 31 * DAY_MS,
    "Y": 366 * DAY_MS,
}
_EXAMPLE = "as in %Y-%m-%d, or over several partition fields year=%Y,month=%m,day=%d"
_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TimePattern:
    """Patterns of one or more partition values, which together tell when a partition ends."""

    fields: tuple[str | None, ...]
    """Partition field or column of each part; ``None``: the one that ``partition_time_column`` names."""
    expressions: tuple[re.Pattern[str], ...]

    @property
    def longest_ms(self) -> int:
        """The longest time that a partition lasts, as its finest directive says."""
        seen = {name for expression in self.expressions for name in expression.groupindex}
        return next(ms for directive, ms in _LONGEST_MS.items() if directive in seen)

    def end_ms(self, values: Sequence[str]) -> int | None:
        """The first moment after the partition, as epoch milliseconds in UTC; ``None`` if a value does not match."""
        found: dict[str, int] = {}
        for expression, value in zip(self.expressions, values, strict=True):
            match = expression.fullmatch(value)
            if match is None:
                return None
            found |= {name: int(text) for name, text in match.groupdict().items()}
        if any(not _LEAST_AND_MOST[name][0] <= number <= _LEAST_AND_MOST[name][1] for name, number in found.items()):
            return None
        return _end_ms(found)


def parse_time_pattern(text: str) -> TimePattern:
    """Parse the text of policy key ``partition_time_pattern``.

    Raises:
        ValueError: the text is no pattern, or a directive lacks the coarser one that it needs.
    """
    parts = [_named(part) for part in text.split(",")] if "=" in text else [(None, text)]
    seen: list[str] = []
    expressions = tuple(_expression(pattern, seen) for _, pattern in parts)
    missing = {directive: _NEEDS[directive] for directive in seen if directive in _NEEDS} | {"Y": "Y"}
    if "H" in seen and not {"d", "j"} & set(seen):
        missing["H"] = "d"
    for directive, needed in missing.items():
        if needed not in seen:
            raise ValueError(
                f"%{needed} is missing{'' if needed == directive else f' beside %{directive}'}; {_EXAMPLE}"
            )
    return TimePattern(tuple(name for name, _ in parts), expressions)


def _named(part: str) -> tuple[str, str]:
    name, equals, pattern = part.strip().partition("=")
    if not (name and equals and pattern):
        raise ValueError(f"write FIELD=PATTERN for every partition field, {_EXAMPLE}")
    return name.strip(), pattern.strip()


def _expression(pattern: str, seen: list[str]) -> re.Pattern[str]:
    """The pattern as a regular expression; ``seen`` gets its directives.

    A number may lack leading zeros where no digit can stand beside it.
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
            raise ValueError(f"%{kind} {what}; {_EXAMPLE}")
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
    """Days from 1970-01-01 to the first of a month, of any year; month 13 is the next January."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    # Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March, so that leap days come last.
    year -= month <= 2
    shifted = month - 3 if month > 2 else month + 9
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * shifted + 2) // 5 - 719468
