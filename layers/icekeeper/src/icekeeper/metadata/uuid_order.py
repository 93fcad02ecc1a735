"""Bounds of uuids that hold for readers of either order (rule 37, platform 20) (pure).

The specification orders uuids as unsigned bytes; Iceberg-Java up to 1.10 compares them as ``java.util.UUID`` does, as
two signed 64-bit numbers.  A reader that finds bounds in the other order finds nothing between them.

A lower bound of both orders is no larger than any value in either.  Two facts decide whether there is one:

* The first numbers of the values and of a bound must have the same sign bit: across it the orders contradict each
  other.
* Where the second numbers of the values with the least first number have both signs, no second number lies below them
  all in both orders; the bound must have a lesser first number.  Only 0 and the most negative number have none below.

The same holds for upper bounds, mirrored.  :func:`uuid_section` parts uuids so that each section has both bounds.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["uuid_bounds", "uuid_section"]

_HALF = 8
_SIGN = 0x80
_ZERO = bytes(_HALF)
_ENDS = frozenset({_ZERO, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\xff" * _HALF})
"""First numbers with no other of their sign below them, or above."""


def uuid_section(value: bytes) -> int:
    """Which uuids this one may share bounds with: those of the same section, 0 to 3.

    Nearly all uuids are in sections 0 and 2, by their first bit.  The others begin with 64 bits that are an end of what
    a signed or unsigned number can be, and have the 65th bit set.
    """
    at_an_end = value[:_HALF] in _ENDS and value[_HALF] & _SIGN
    return (2 if value[0] & _SIGN else 0) + (1 if at_an_end else 0)


def uuid_bounds(values: Collection[bytes]) -> tuple[bytes, bytes] | None:
    """Bounds that contain all of these uuids (at least one) in signed and in unsigned order, as tight as that allows;
    ``None`` where there are none, which cannot be within one section."""
    low, high = min(values), max(values)
    if (low[0] ^ high[0]) & _SIGN:
        return None
    if _has_both_signs(values, low[:_HALF]):
        if low[:_HALF] in _ENDS:
            return None
        low = _next(low, -1)
    if _has_both_signs(values, high[:_HALF]):
        if high[:_HALF] in _ENDS:
            return None
        high = _next(high, 1)
    return low, high


def _has_both_signs(values: Collection[bytes], first: bytes) -> bool:
    """Whether the second numbers beside this first one have."""
    return len({value[_HALF] & _SIGN for value in values if value[:_HALF] == first}) > 1


def _next(value: bytes, step: int) -> bytes:
    return (int.from_bytes(value[:_HALF], "big") + step).to_bytes(_HALF, "big") + _ZERO
