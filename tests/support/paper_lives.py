"""What writers do to the tables of a fleet on paper, by kind, and how many of a thousand are of each."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Policy
from support.paper_table import MB, ROW_BYTES, Arrival, PaperTable
from support.tables import new_document

KB = 1024
_BY_P = [{"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}]}]
_BY_ID = [
    {
        "order-id": 1,
        "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
    }
]


@dataclass
class Orphans:
    """Files that crashes left, in groups of one time."""

    groups: list[tuple[int, int]] = field(default_factory=list)
    """(epoch milliseconds, number of files)."""

    @property
    def count(self) -> int:
        return sum(files for _, files in self.groups)


Hour = Callable[[PaperTable, Orphans, int, int, random.Random], None]
"""What happens to a table in an hour: the table, its orphans, the hour since the beginning, its time, chance."""


@dataclass(frozen=True)
class Life:
    """One kind of table."""

    of_a_thousand: int
    hour: Hour
    begins_with: tuple[int, int] = (0, 0)
    """Files that are there at first, and their bytes."""
    document: dict[str, Any] = field(default_factory=dict)


def born(life: Life, name: str, policy: Policy, start_ms: int) -> PaperTable:
    """A new table of a kind."""
    document = new_document(f"s3://lake/{name}", 2, **life.document)
    table = PaperTable(policy, document)
    files, size = life.begins_with
    table.write(start_ms - HOUR_MS, [Arrival(0, size)] * files)
    table.written = 0
    return table


def _streaming(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    table.write(at_ms, [Arrival(0, chance.randint(1, 8) * MB) for _ in range(12)])


def _trickle(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    table.write(at_ms, [Arrival(0, chance.randint(100, 3000) * KB)])


def _tiny(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 4 == 0:
        table.write(at_ms, [Arrival(0, 10 * KB)])


def _hourly(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    late = [Arrival(max(0, hour - chance.randint(1, 48)), MB)] if chance.random() < 0.5 else []
    table.write(at_ms, [*(Arrival(hour, 20 * MB) for _ in range(6)), *late])


def _daily(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 24 == int(table.document["location"][-3:]) % 24:
        table.write(at_ms, [Arrival(hour // 24, chance.randint(5, 60) * MB) for _ in range(12)])


def _over_partitioned(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 24 == 3:
        table.write(at_ms, [Arrival(hour // 24 * 40 + n, 500 * KB) for n in range(40)])


def _cdc(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    table.write(at_ms, [Arrival(0, 8 * MB)], deleted_rows=8 * MB // ROW_BYTES)


def _merge_on_read(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 6 == 0:
        table.write(at_ms, [Arrival(0, 20 * MB)])
        large = [path for path, live in table.files.items() if live.entry.file.file_size_in_bytes >= 100 * MB]
        table.mark_deleted(chance.sample(large, len(large) // 3), 40_000)


def _clustered(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    def bounds() -> tuple[bytes, bytes]:
        low, high = sorted(chance.randrange(10**9) for _ in range(2))
        return struct.pack("<q", low), struct.pack("<q", high)

    table.write(at_ms, [Arrival(0, 30 * MB, bounds()) for _ in range(2)])


def _crashing(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if hour % 24 == 5:
        table.write(at_ms, [Arrival(0, 60 * MB) for _ in range(4)])
    if chance.random() < 1 / 12:
        orphans.groups.append((at_ms, 20))


def _only_orphans(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    if chance.random() < 1 / 12:
        orphans.groups.append((at_ms, 20))


def _idle(table: PaperTable, orphans: Orphans, hour: int, at_ms: int, chance: random.Random) -> None:
    """Nobody writes any more."""


LIVES: dict[str, Life] = {
    "streaming": Life(110, _streaming),
    "trickle": Life(80, _trickle),
    "tiny": Life(60, _tiny),
    "hourly": Life(90, _hourly, document={"partition-specs": _BY_P}),
    "daily": Life(240, _daily, document={"partition-specs": _BY_P}),
    "over-partitioned": Life(40, _over_partitioned, document={"partition-specs": _BY_P}),
    "cdc": Life(40, _cdc, begins_with=(12, 240 * MB)),
    "merge-on-read": Life(40, _merge_on_read, begins_with=(12, 240 * MB)),
    "clustered": Life(20, _clustered, document={"sort-orders": _BY_ID, "default-sort-order-id": 1}),
    "crashing": Life(60, _crashing),
    "only orphans": Life(20, _only_orphans, begins_with=(4, 240 * MB)),
    "idle": Life(200, _idle, begins_with=(40, 60 * MB)),
}
