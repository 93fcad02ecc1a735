"""Assigns inputs to outputs when whole files are copied: outputs are cut between files, not between rows (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["assign"]


def assign(sizes: Sequence[int], outputs: int, smallest: int, largest: int) -> list[range] | None:
    """The numbers of the inputs of each output, in order; ``sizes`` are those of the inputs in bytes.

    Each output gets the inputs of which more than half lies in its even share.  ``None`` where one of several outputs
    would then be smaller or larger than these bounds: rows can be divided evenly, files cannot.
    """
    if outputs == 1:
        return [range(len(sizes))]
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    # Twice the middle of each input, in shares of an output.
    shares = [(2 * end - size) * outputs for end, size in zip(ends, sizes, strict=True)]
    owners = [min(outputs - 1, share // (2 * total)) if total else 0 for share in shares]
    parts = [range(*_bounds(owners, number)) for number in range(outputs)]
    if any(not smallest <= sum(sizes[i] for i in part) <= largest for part in parts):
        return None
    return parts


def _bounds(owners: Sequence[int], number: int) -> tuple[int, int]:
    """Where the inputs of an output begin and end; ``owners`` ascend."""
    return sum(owner < number for owner in owners), sum(owner <= number for owner in owners)
