"""What was used, in the SQLite state file."""

from __future__ import annotations

from itertools import groupby

from icekeeper.state.sqlite.file import SqliteFile
from icekeeper.state.store import HourOfUse

__all__ = ["SqliteUsage"]

_METRIC = "metric:"


class SqliteUsage:
    """A :class:`icekeeper.state.store.UsageStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def add(self, used: HourOfUse) -> None:
        named = {**used.amounts, **dict.fromkeys((f"{_METRIC}{name}" for name in used.metrics), 0)}
        with self._file.transaction() as connection:
            connection.executemany(
                "INSERT INTO used VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                [(used.hour, name, amount) for name, amount in sorted(named.items())],
            )

    def between(self, first: str, last: str) -> tuple[HourOfUse, ...]:
        rows = self._file.read(
            "SELECT hour, name, amount FROM used WHERE hour BETWEEN ? AND ? ORDER BY hour, name", first, last
        )
        return tuple(
            _hour(hour, dict(row[1:] for row in named)) for hour, named in groupby(rows, key=lambda row: row[0])
        )


def _hour(hour: str, named: dict[str, int]) -> HourOfUse:
    metrics = frozenset(name.removeprefix(_METRIC) for name in named if name.startswith(_METRIC))
    return HourOfUse(hour, {name: amount for name, amount in named.items() if not name.startswith(_METRIC)}, metrics)
