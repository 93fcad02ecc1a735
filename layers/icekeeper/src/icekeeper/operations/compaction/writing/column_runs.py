"""Cuts the columns of a row group into runs of neighbours, which are encoded at the same time (pure)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["column_runs"]


def column_runs(sizes: Sequence[int], most: int) -> list[range]:
    """At most ``most`` runs, none empty, that cover all columns in order and have about the same bytes.

    ``sizes`` are the bytes of the columns.
    """
    least = sum(sizes) / most
    runs: list[range] = []
    start = total = 0
    for number, size in enumerate(sizes, start=1):
        total += size
        if total >= least and len(runs) < most - 1:
            runs.append(range(start, number))
            start, total = number, 0
    if start < len(sizes):
        runs.append(range(start, len(sizes)))
    return runs
