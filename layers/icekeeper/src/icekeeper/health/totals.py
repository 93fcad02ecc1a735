"""The totals of a lake, from the lake stats of its tables (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from icekeeper.health.counters import AGE_COUNTER, DEPTH_COUNTER
from icekeeper.state.lake_stats import LakeStats

__all__ = ["lake_totals"]

_AVERAGE = "lake_average_file_bytes"
_GREATEST = frozenset({AGE_COUNTER, DEPTH_COUNTER})
_OF_AVERAGE = ("lake_bytes", "lake_data_files", "lake_delete_files")


def lake_totals(lake: Iterable[LakeStats]) -> dict[str, int | float]:
    """Sums of the tables' counters, their number (``lake_tables``), and how many have a warning
    (``lake_tables_warned``).

    The age of the oldest snapshot and the clustering depth are the maximum over all tables; the average file size is
    that over all files of those tables whose own average is known.  A counter that no table has is left out.
    """
    totals: defaultdict[str, int | float] = defaultdict(int)
    of_average: Counter[str] = Counter()
    greatest: dict[str, float] = {}
    tables = warned = 0
    for stats in lake:
        tables += 1
        warned += bool(stats.warnings)
        for name, value in stats.counters.items():
            totals[name] += value
        for name in _GREATEST & stats.counters.keys():
            greatest[name] = max(greatest.get(name, 0.0), float(stats.counters[name]))
        if _AVERAGE in stats.counters:
            of_average.update({name: int(stats.counters[name]) for name in _OF_AVERAGE})
    found: dict[str, int | float] = {"lake_tables": tables, "lake_tables_warned": warned, **totals}
    found |= greatest
    if _AVERAGE in found:
        size, *files = (of_average[name] for name in _OF_AVERAGE)
        found[_AVERAGE] = round(size / sum(files))
    return found
