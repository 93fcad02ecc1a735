"""Finds bounds of uuids that hold for readers of either order (rule 37, platform 20) (pure).

The specification orders uuids as unsigned bytes; Iceberg-Java up to 1.10 compares them as ``java.util.UUID`` does, as
two signed 64-bit numbers, the first and the second half.  A reader that gets bounds in the other order finds nothing
between them.

A lower bound must not be above any value in either order.  Two facts decide whether there is one:

* The first halves of the values and of the bound must have the same sign bit, because the two orders disagree on halves
  of different sign bits.
* If the values with the least first half have second halves of both sign bits, no second half is below them in both
  orders, so the bound needs a lesser first half.  There is none below 0 and below the most negative number.

The same holds for upper bounds, mirrored.  :func:`uuid_section` parts uuids so that each section has both bounds.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["uuid_bounds", "uuid_section"]

_HALF = 8
_SIGN = 0x80
_ZERO = bytes(_HALF)
_ENDS = frozenset({_ZERO, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\xff" * _HALF})
"""First halves with no other of their sign bit below them, or none above."""


def uuid_section(value: bytes) -> int:
    """The section of a uuid, 0 to 3; uuids of one section always have bounds.

    Nearly all uuids are in sections 0 and 2, by their first bit.  The first half of the others is the least or greatest
    signed or unsigned number, and their 65th bit is set.
    """
    at_an_end = value[:_HALF] in _ENDS and value[_HALF] & _SIGN
    return (2 if value[0] & _SIGN else 0) + (1 if at_an_end else 0)


def uuid_bounds(values: Collection[bytes]) -> tuple[bytes, bytes] | None:
    """The tightest bounds that contain all of these uuids, at least one, in both orders.

    ``None``: there are none; this does not happen for uuids of one section.
    """
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
    """Whether the second halves of the values with this first half have both sign bits."""
    return len({value[_HALF] & _SIGN for value in values if value[:_HALF] == first}) > 1


def _next(value: bytes, step: int) -> bytes:
    return (int.from_bytes(value[:_HALF], "big") + step).to_bytes(_HALF, "big") + _ZERO
