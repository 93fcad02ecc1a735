"""What was used, in the state table: an item an hour, to which everyone adds; a partition holds a month."""

from __future__ import annotations

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.store import HourOfUse

__all__ = ["DynamoUsage"]

_KEPT_MS = 400 * 24 * HOUR_MS
_PARTITION = "usage#"
_AMOUNT = "used_"
_METRICS = "metric_names"


class DynamoUsage:
    """A :class:`icekeeper.state.store.UsageStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def add(self, used: HourOfUse) -> None:
        more: dict[str, int | frozenset[str]] = {f"{_AMOUNT}{name}": value for name, value in used.amounts.items()}
        if used.metrics:
            more[_METRICS] = used.metrics
        if more:
            self._table.add(_partition(used.hour), used.hour, more, keep_ms=_KEPT_MS)

    def between(self, first: str, last: str) -> tuple[HourOfUse, ...]:
        found = [
            HourOfUse(
                item["sk"],
                {name.removeprefix(_AMOUNT): value for name, value in item.items() if name.startswith(_AMOUNT)},
                frozenset(item.get(_METRICS, ())),
            )
            for month in _months(first, last)
            for item in self._table.query(month)
        ]
        return tuple(one for one in found if first <= one.hour <= last)


def _partition(hour: str) -> str:
    return f"{_PARTITION}{hour[:7]}"


def _months(first: str, last: str) -> list[str]:
    """The partitions of all months from that of one hour to that of another."""
    begin, end = (int(hour[:4]) * 12 + int(hour[5:7]) - 1 for hour in (first, last))
    return [f"{_PARTITION}{month // 12:04}-{month % 12 + 1:02}" for month in range(begin, end + 1)]
