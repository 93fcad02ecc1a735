"""The disk that sorts by all workers need: how many exchanges a group takes, and which exchanges run at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from icekeeper.operations.compaction.work.exchange import DiskNeeds, SharedDisk

GB = 1024**3
# 100 GB of input: 50 lanes.
NEEDS = DiskNeeds(sent_bytes=300 * GB, split_bytes=GB, lanes=50)


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
