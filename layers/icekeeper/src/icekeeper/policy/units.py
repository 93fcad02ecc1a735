"""Recognises an amount that was written with a unit (``30d``, ``256MB``), and says it in the unit of its key (pure).

A setting is a plain number, because table properties are read by other programs too, and because MB means 10^6 to some
and 2^20 to others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

__all__ = ["amount_with_unit"]

_WITH_UNIT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-zA-Z]+)")
_SECONDS: Mapping[str, int] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
}
_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("b", "byte", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1024),
    **dict.fromkeys(("m", "mb", "mib"), 1024**2),
    **dict.fromkeys(("g", "gb", "gib"), 1024**3),
    **dict.fromkeys(("t", "tb", "tib"), 1024**4),
}
# What the end of a key says about its unit, the units that may be meant, and the size of the key's own.
_OF_KEY: tuple[tuple[str, str, Mapping[str, int], int], ...] = (
    ("_hours", "hours", _SECONDS, 3600),
    ("_timeout_s", "seconds", _SECONDS, 1),
    ("_interval_s", "seconds", _SECONDS, 1),
    ("_mb", "MB (2^20 bytes)", _BYTES, 1024**2),
    ("max_bytes_to_rewrite", "bytes", _BYTES, 1),
    ("min_row_group_copy_bytes", "bytes", _BYTES, 1),
)


def amount_with_unit(key: str, value: object) -> str | None:
    """What to write in place of an amount with a unit; ``None`` for keys and values without one."""
    found = _WITH_UNIT.fullmatch(str(value).strip())
    if found is None:
        return None
    for ending, unit, sizes, own in _OF_KEY:
        if key.endswith(ending) and found[2].lower() in sizes:
            amount = Fraction(found[1]) * sizes[found[2].lower()] / own
            digits = f"{float(amount):.6f}".rstrip("0").rstrip(".")
            return f"it is a plain number of {unit}; write {digits}" if Fraction(digits) == amount else None
    return None
