"""Counts, sizes and times as text for people (pure)."""

from __future__ import annotations

__all__ = ["age_text", "counted", "size_text", "usd_text"]

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_UNITS = (("TB", 1024**4), ("GB", 1024**3), ("MB", 1024**2), ("KB", 1024), ("B", 1))
_LEAST_USD = 0.0001


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: ``1 snapshot``, ``2 snapshots``."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def size_text(size: float) -> str:
    """A number of bytes in B, KB (2^10), MB (2^20), GB or TB, with two digits below 100."""
    unit, divisor = next((u for u in _UNITS if size >= u[1]), _UNITS[-1])
    number = size / divisor
    return f"{number:.0f} {unit}" if number >= 100 or divisor == 1 else f"{number:.2g} {unit}"


def age_text(age_ms: int) -> str:
    """Milliseconds as whole minutes below an hour, as hours below three days, then as days."""
    if age_ms < _HOUR_MS:
        return counted(age_ms // _MINUTE_MS, "minute")
    return counted(age_ms // _HOUR_MS, "hour") if age_ms < 3 * _DAY_MS else counted(age_ms // _DAY_MS, "day")


def usd_text(amount: float) -> str:
    """An amount of US dollars to a hundredth of a cent."""
    if amount <= 0:
        return "$0"
    return f"${amount:.4f}" if amount >= _LEAST_USD else f"less than ${_LEAST_USD}"
