"""The totals of a lake, from the lake stats of its tables (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from icekeeper.health.counters import AGE_COUNTER
from icekeeper.state.lake_stats import LakeStats

__all__ = ["lake_totals"]

_AVERAGE = "lake_average_file_bytes"
_OF_AVERAGE = ("lake_bytes", "lake_data_files", "lake_delete_files")


def lake_totals(lake: Iterable[LakeStats]) -> dict[str, int | float]:
    """Sums of the tables' counters, their number (``lake_tables``), and how many have a warning
    (``lake_tables_warned``).

    The age of the oldest snapshot is the maximum over all tables; the average file size is that over all files of those
    tables whose own average is known.  A counter that no table has is left out.
    """
    totals: defaultdict[str, int | float] = defaultdict(int)
    of_average: Counter[str] = Counter()
    oldest: float | None = None
    tables = warned = 0
    for stats in lake:
        tables += 1
        warned += bool(stats.warnings)
        for name, value in stats.counters.items():
            totals[name] += value
        if AGE_COUNTER in stats.counters:
            oldest = max(oldest or 0.0, float(stats.counters[AGE_COUNTER]))
        if _AVERAGE in stats.counters:
            of_average.update({name: int(stats.counters[name]) for name in _OF_AVERAGE})
    found: dict[str, int | float] = {"lake_tables": tables, "lake_tables_warned": warned, **totals}
    if oldest is not None:
        found[AGE_COUNTER] = oldest
    if _AVERAGE in found:
        size, *files = (of_average[name] for name in _OF_AVERAGE)
        found[_AVERAGE] = round(size / sum(files))
    return found
