"""Turns days since 1970 into a date of any year: Python's dates end with 9999, wrong values in tables do not (pure)."""

from __future__ import annotations

import datetime

__all__ = ["civil_date"]

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
# The Gregorian calendar repeats itself after so many years and days.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097


def civil_date(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day counted from 1970-01-01; there is a year 0, as in Java."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    date = datetime.date.fromordinal(rest + 1)
    return date.year + cycles * _CYCLE_YEARS, date.month, date.day
