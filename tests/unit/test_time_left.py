"""Whether another group fits into the time that is left (rule 147)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icekeeper.operations.compaction.run_groups import TimeLeft


def times(*seconds: float) -> TimeLeft:
    answers: Iterator[float] = iter(seconds)
    return TimeLeft(lambda: next(answers))


def test_the_first_group_always_begins() -> None:
    """Else a process that is started with little time would never do anything."""
    assert times(1).is_enough_for(10**15)


@pytest.mark.parametrize(("left_s", "fits"), [(261, True), (260, True), (259, False)])
def test_a_group_begins_with_twice_its_time_and_that_of_a_commit(left_s: float, fits: bool) -> None:
    """100 bytes took as long as from the start until now: another 100 twice that, and a minute."""
    time_left = times(left_s + 100, left_s)
    time_left.note(100)
    assert time_left.is_enough_for(100) is fits


def test_what_was_measured_counts_for_groups_of_any_size() -> None:
    time_left = times(1000, 800, 600, 600)
    time_left.note(100)
    assert time_left.is_enough_for(100)
    time_left.note(100)
    assert not time_left.is_enough_for(200)
    assert time_left.is_enough_for(100)


def test_groups_without_bytes_take_time_too() -> None:
    time_left = times(900, 100)
    time_left.note(0)
    assert not time_left.is_enough_for(1)
