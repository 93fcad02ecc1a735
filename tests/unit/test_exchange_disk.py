"""Sorts by all workers: how a group is divided among them, how many exchanges it takes, and which run at once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.work.exchange import DiskNeeds, SharedDisk, _plan
from icekeeper.operations.compaction.work.sort_files import Sample
from icekeeper.policy import Strategy
from icekeeper.rows.read_task import InputFile
from support.rewrites import struct, task

GB = 1024**3
# 100 GB of input: 50 lanes.
NEEDS = DiskNeeds(sent_bytes=300 * GB, split_bytes=GB, lanes=50)


@pytest.mark.parametrize(
    ("strategy", "slots", "splits", "lanes"),
    [
        (Strategy.SORT, 1, [67, 67, 66], 3),
        (Strategy.SORT, 2, [50, 50, 50, 50], 4),
        (Strategy.SORT, 3, [67, 67, 66], 3),
        (Strategy.SORT, 9, [23, 22, 22, 22, 23, 22, 22, 22, 22], 4),
        (Strategy.ZORDER, 3, [67, 67, 66], 4),
    ],
)
def test_all_slots_are_busy_until_a_sort_ends(
    strategy: Strategy, slots: int, splits: list[int], lanes: int, tmp_path: Path
) -> None:
    """A group of 12 files, 800 MB in memory; a lane has three files at least, and a curve has a power of two of
    lanes."""
    inputs = [InputFile(f"{number}", 50_000, 2 * 1000**2) for number in range(200)]
    recipe = ClusterRecipe(strategy, (KeyColumn(1),), 32 * 1000**2, 24 * 1000**2)
    work = task(struct((1, "id", "long")), inputs, tmp_path, recipe=recipe)
    sample = Sample((pa.array(range(1000)),), tuple(range(1000)), 80.0, 60.0, GB)
    plan = _plan(work, [sample], slots)
    assert [len(split.task.inputs) for split in plan.splits] == splits
    assert [split.first_row for split in plan.splits] == [50_000 * sum(splits[:n]) for n in range(len(splits))]
    assert len(plan.lanes) == lanes
    assert max(Counter(plan.splits[0].lanes).values()) == min(Counter(plan.splits[0].lanes).values())


def test_an_exchange_keeps_all_its_rows_and_those_of_the_lanes_in_work_once_more() -> None:
    """Before lanes are sorted, the files of the running split tasks are written twice."""
    assert NEEDS.bytes_of(range(50), slots=4) == (300 + 4 * 6) * GB
    assert NEEDS.bytes_of(range(13), slots=36) == (78 + 13 * 6) * GB
    assert DiskNeeds(sent_bytes=10 * GB, split_bytes=GB, lanes=100).bytes_of(range(50), slots=4) == (5 + 2) * GB


@pytest.mark.parametrize(
    ("room", "sizes"), [(324, [50]), (323, [25, 25]), (173, [17, 17, 16]), (125, [13, 13, 13, 11]), (101, [])]
)
def test_lanes_are_divided_into_as_few_exchanges_as_fit_and_at_most_four(room: int, sizes: list[int]) -> None:
    exchanges = NEEDS.exchanges(4, room * GB)
    assert [len(lanes) for lanes in exchanges] == sizes
    assert [lane for lanes in exchanges for lane in lanes] == list(range(50) if sizes else [])


def test_a_group_of_few_lanes_takes_as_many_exchanges_at_most() -> None:
    needs = DiskNeeds(sent_bytes=2 * GB, split_bytes=0, lanes=2)
    assert needs.exchanges(1, 2 * GB) == [range(1), range(1, 2)]
    assert needs.exchanges(1, GB) == []


def test_the_room_is_a_share_of_the_free_disk_without_exchanges() -> None:
    """While an exchange runs, less is free: the largest number counts."""
    disk = SharedDisk()
    assert disk.room_bytes(2, 50) == 70
    assert disk.room_bytes(3, 10) == 105


def test_exchanges_of_several_threads_share_the_room() -> None:
    disk, ends = SharedDisk(), [Event() for _ in range(3)]
    began: list[int] = []

    def exchange(number: int, size_bytes: float) -> None:
        with disk.taken(size_bytes, 100):
            began.append(number)
            assert ends[number].wait(10)

    with ThreadPoolExecutor(3) as threads:
        works = [threads.submit(exchange, 0, 60)]
        works.append(threads.submit(exchange, 1, 40))
        while len(began) < 2:
            assert not works[0].done()
        works.append(threads.submit(exchange, 2, 500))  # larger than the room: it runs alone
        ends[1].set()
        works[1].result()
        assert sorted(began) == [0, 1]
        ends[0].set()
        ends[2].set()
        works[2].result()
    assert sorted(began) == [0, 1, 2]
