"""Days since 1970 as a date of any year: Python's calendar ends with 9999, and writers' mistakes do not (pure)."""

from __future__ import annotations

import datetime

__all__ = ["civil_date"]

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
# The Gregorian calendar repeats itself.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097


def civil_date(days: int) -> tuple[int, int, int]:
    """Year, month and day; there is a year 0, as in Java."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    date = datetime.date.fromordinal(rest + 1)
    return date.year + cycles * _CYCLE_YEARS, date.month, date.day
