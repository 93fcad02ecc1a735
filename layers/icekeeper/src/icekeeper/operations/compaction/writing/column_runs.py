"""Cuts the columns of a row group into runs of neighbours, which are encoded at the same time (pure)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["column_runs"]


def column_runs(sizes: Sequence[int], parts: int) -> list[range]:
    """Runs, none empty, that cover all columns in order, less than twice as many as ``parts``; none has more than its
    part of the bytes, unless it is a single column.

    ``sizes`` are the bytes of the columns.
    """
    most = sum(sizes) / parts
    runs: list[range] = []
    start = total = 0
    for number, size in enumerate(sizes):
        if start < number and total + size > most:
            runs.append(range(start, number))
            start, total = number, 0
        total += size
    if start < len(sizes):
        runs.append(range(start, len(sizes)))
    return runs
