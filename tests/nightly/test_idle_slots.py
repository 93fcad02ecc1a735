"""How long workers stand idle while a lone table is rewritten: each round waits for its last task.

Groups are those of the real planner, the seconds of a megabyte those of real rewrites, and rounds those of ``Pace``;
only the cluster is simulated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import pytest

from icekeeper.model import Nothing
from icekeeper.operations.compaction.land.rounds import Pace, Work, small_together
from icekeeper.operations.compaction.land.rounds import opened_bytes as bytes_of
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from support.paper_table import MB, Arrival, PaperTable
from support.plans import policy
from support.rewrites import input_file, rows, struct, task

SCHEMA = struct((1, "n", "long"), (2, "d", "double"), (3, "s", "string"))
ROWS, FILES = 100_000, 4
HOUR_S = 3600.0
MOST_IDLE = 0.15


def contents(kind: str, chance: random.Random) -> dict[str, Sequence[object]]:
    numbers = [chance.getrandbits(62) for _ in range(ROWS)]
    if kind == "constant":
        return {"n": [7] * ROWS, "d": [0.5] * ROWS, "s": ["always the same text"] * ROWS}
    if kind == "texts":
        return {"n": range(ROWS), "d": [None] * ROWS, "s": [f"{n:060x}" for n in numbers]}
    return {"n": numbers, "d": [chance.random() for _ in range(ROWS)], "s": [f"k{n % 100}" for n in numbers]}


@pytest.fixture(scope="module")
def seconds_of_a_byte(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The CPU seconds of a byte in real rewrites, for groups of several kinds."""
    chance, found = random.Random(53), []
    for kind in ("numbers", "texts", "constant"):
        folder = tmp_path_factory.mktemp(kind)
        files = [input_file(folder / f"{n}.parquet", rows(SCHEMA, contents(kind, chance))) for n in range(FILES)]
        for number in range(3):
            (folder / str(number)).mkdir()
            made = task(SCHEMA, files, folder / str(number))
            began_s = time.process_time()
            assert rewrite_group(made).error is None
            found.append((time.process_time() - began_s) / made.input_bytes)
    return found


def planned(sizes_mb: Callable[[random.Random], float], files: int, partitions: int) -> list[FileGroup]:
    chance = random.Random(7)
    table = PaperTable(policy())
    table.write(0, [Arrival(n % partitions, max(1, int(sizes_mb(chance) * MB))) for n in range(files)])
    plan = table.plan(10 * 24 * 3_600_000)
    assert not isinstance(plan, Nothing)
    return list(plan.groups)


def idle_share(
    groups: Sequence[FileGroup], seconds_of_a_byte: Sequence[float], slots: int, left_s: float | None
) -> tuple[float, int]:
    """The share of the slots' time in which they have no task, and the number of rounds."""
    chance = random.Random(11)
    waiting = [Work(tuple(some)) for some in small_together(groups, bytes_of)]
    seconds = {id(work): work.size_bytes * chance.choice(seconds_of_a_byte) for work in waiting}
    pace, now_s, busy_s, rounds = Pace(left_s), 0.0, 0.0, 0
    while waiting:
        count = pace.next_round(waiting, None if left_s is None else left_s - now_s, slots)
        assert count, "the table does not end in time"
        begun, waiting = waiting[:count], waiting[count:]
        free = [0.0] * slots
        for work in sorted(begun, key=lambda work: -work.size_bytes):  # as run_groups.largest_first
            free.sort()
            free[0] += seconds[id(work)]
        pace.note_round(begun, max(free), slots)
        now_s, busy_s, rounds = now_s + max(free), busy_s + sum(free), rounds + 1
    return 1 - busy_s / (slots * now_s), rounds


TABLES: dict[str, tuple[Callable[[random.Random], float], int, int]] = {
    "streaming": (lambda chance: chance.uniform(1, 8), 100_000, 20),
    "uneven": (lambda chance: min(300, chance.lognormvariate(1.5, 1.5)), 60_000, 200),
    "daily": (lambda chance: chance.uniform(5, 60), 12_000, 365),
}


@pytest.mark.parametrize("slots", [4, 36])
@pytest.mark.parametrize("left_s", [None, 20 * HOUR_S])
@pytest.mark.parametrize("table", TABLES)
def test_workers_of_a_lone_table_are_seldom_idle(
    seconds_of_a_byte: list[float], table: str, left_s: float | None, slots: int
) -> None:
    idle, rounds = idle_share(planned(*TABLES[table]), seconds_of_a_byte, slots, left_s)
    print(f"{table}, {slots} slots, {'no ' if left_s is None else ''}deadline: idle {idle:.1%} in {rounds} rounds")
    assert idle <= MOST_IDLE
