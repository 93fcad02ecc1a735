"""Times in partition values that are text or numbers: ``year=%Y``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.transforms import days_of

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
