"""The rounds of compaction: which file groups are rewritten together, and when they are committed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.operations.compaction.land import rounds
from icekeeper.operations.compaction.land.rounds import Pace, Work, in_commits, opened_bytes
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.candidate import Candidate, Condition, Home, Origin
from icekeeper.rows.read_task import OPEN_FILE_BYTES

MB, GB = 1024**2, 1024**3


def group(size: int, files: int = 1) -> FileGroup:
    """A group of ``size`` bytes, including the allowance for opening its files."""
    each = size // files - OPEN_FILE_BYTES
    home, origin = Home(0, (), (0, ())), Origin("m", 1, 1, 1, 1, None)
    return FileGroup(tuple(Candidate("f", each, 1, None, home, origin, Condition()) for _ in range(files)))


def works(*mb: int, by_all: bool = False) -> list[Work]:
    return [Work((group(size * MB),), by_all) for size in mb]


def measured(slots: int, left_s: float | None, *mb: int, took_s: float) -> Pace:
    """A pace after a first round."""
    pace = Pace(left_s)
    pace.note_round(works(*mb), took_s, slots)
    return pace


def test_the_first_round_has_a_work_per_worker_or_four_gigabytes() -> None:
    assert opened_bytes(group(10 * MB, files=4)) == 10 * MB, "opening a file counts as reading"
    assert Work((group(MB), group(2 * MB))).size_bytes == 3 * MB
    # Without a deadline: four gigabytes, or two for each worker.
    for slots, groups in ((1, 2), (2, 3), (3, 4), (100, 4)):
        assert Pace(None).next_round(works(2048, 2048, 2048, 2048), None, slots) == groups
    # With a deadline: one work for each worker; a work that all workers sort is a round alone.
    for slots, groups in ((1, 1), (3, 3), (9, 5)):
        assert Pace(1.0).next_round(works(9999, 9999, 9999, 9999, 9999), 1.0, slots) == groups
    sorted_by_all = works(5000, by_all=True)
    assert Pace(900).next_round(sorted_by_all + sorted_by_all, 900, 4) == 1
    assert Pace(900).next_round(works(10, 10) + sorted_by_all, 900, 4) == 2
    # Nothing begins after the deadline.
    assert Pace(0.0).next_round(works(1), 0.0, 4) == 0
    assert measured(4, 900, 1, took_s=0.0).next_round(works(1), -1.0, 4) == 0


def test_a_group_begins_if_twice_its_time_and_a_commit_remain() -> None:
    measured_once = measured(1, 900, 100, took_s=100)
    assert [measured_once.next_round(works(100, 100), left_s, 1) for left_s in (261, 260, 259)] == [1, 1, 0]
    # A short run keeps a quarter of its time for the commit.
    for limit_s, least_s in ((900, 60), (240, 60), (40, 10)):
        pace = measured(1, limit_s, 100, took_s=1)
        assert [pace.next_round(works(100), least_s + more, 1) for more in (1.9, 2)] == [0, 1]
    # After a slow commit, twice its time is kept.
    pace = measured(1, 900, 100, took_s=1)
    pace.note_commit(0, 100)
    assert [pace.next_round(works(100), left_s, 1) for left_s in (201, 202)] == [0, 1]
    # All earlier rounds determine the speed.
    pace = measured(1, 900, 100, took_s=50)
    pace.note_round(works(300), 350, 1)
    assert [pace.next_round(works(100), 60 + 2 * s, 1) for s in (99, 100)] == [0, 1]


def test_many_workers_get_the_work_that_ends_in_time() -> None:
    """In 100 s each worker handles two works of 100 MB."""
    pace = measured(2, 900, 100, 100, took_s=50)
    assert pace.next_round(works(100, 100, 100, 100, 100), 260, 2) == 4
    assert pace.next_round(works(200, 100, 100, 100), 260, 2) == 3
    assert pace.next_round(works(200, 1), 260, 2) == 2
    assert pace.next_round(works(201), 260, 2) == 0, "one worker has it alone, the other cannot help"
    assert pace.next_round(works(400, 1, by_all=True), 260, 2) == 1, "both sort it together"


def test_groups_that_all_workers_sort_have_their_own_speed() -> None:
    pace = Pace(900)
    pace.note_round(works(400, by_all=True), 10, 4)
    assert pace.next_round(works(400, 400, 400, by_all=True), 60 + 2 * 20, 4) == 2


def test_executors_that_come_late_get_work_from_the_next_round_on() -> None:
    """The speed is that of a worker, so it holds for any number of workers; a lost executor counts, too."""
    pace = measured(2, 900, 100, 100, took_s=50)
    assert [pace.next_round(works(*[100] * 40), 260, slots) for slots in (2, 20, 1)] == [4, 40, 1]
    # The first round of a FLEX run may find a single executor: the second fills all that came.
    pace = Pace(None)
    assert pace.next_round(works(*[1024] * 200), None, 1) == 4
    assert pace.next_round(works(*[1024] * 200), None, 36) == 108
    assert [pace.commit_is_due(size, 0, 1) for size in (108 * GB - 1, 108 * GB)] == [False, True]


def test_a_round_has_as_many_files_as_a_commit_keeps_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_MOST_FILES", 6)
    waiting = [Work((group(MB, files=2), group(MB, files=1))) for _ in range(4)]
    assert Pace(None).next_round(waiting, None, 100) == 2


def test_without_a_deadline_a_round_takes_at_most_five_minutes() -> None:
    pace = measured(1, None, 100, took_s=100)
    assert pace.next_round(works(100, 100, 100, 100), None, 1) == 3
    assert pace.next_round(works(1000, 1), None, 1) == 1, "what takes longer has a round of its own"


def test_a_commit_is_due_by_bytes_by_files_or_by_time() -> None:
    """Commits take at most a tenth of the time, unless so many files wait that the commit would need much memory."""
    due = [Pace(None).commit_is_due(*found) for found in ((4 * GB, 0, 0), (4 * GB - 1, 249_999, 299.9), (1, 1, 300))]
    assert due == [True, False, True]
    pace = Pace(None)
    pace.note_commit(0, 60)
    assert [pace.commit_is_due(8 * GB, 1, since_s) for since_s in (539, 540)] == [False, True]
    assert [pace.commit_is_due(1, files, 1) for files in (249_999, 250_000)] == [False, True]
    pace.note_commit(0, 1)
    assert pace.commit_is_due(8 * GB, 1, 9)


def test_partial_progress_divides_groups_into_commits() -> None:
    groups = [group(MB) for _ in range(5)]
    assert in_commits(groups, 0) == [groups]
    assert in_commits(groups, 2) == [groups[:2], groups[2:4], groups[4:]]
    assert in_commits([], 2) == [[]]


SIZES = st.lists(st.integers(1, 2000), min_size=1, max_size=60)


@given(slots=st.integers(1, 8), mb=SIZES, limit_s=st.integers(1, 4000), slowness=st.lists(st.floats(1, 2), min_size=60))
def test_every_round_but_the_first_ends_in_time(
    slots: int, mb: Sequence[int], limit_s: float, slowness: Sequence[float]
) -> None:
    """If no round is more than twice as slow as another round, and 1 MB takes at least a second."""
    waiting, now_s, pace, ended = works(*mb), 0.0, Pace(limit_s), 0
    while count := pace.next_round(waiting, limit_s - now_s, slots):
        begun, waiting = waiting[:count], waiting[count:]
        took_s = slowness[ended] * longest(slots, [work.size_bytes // MB for work in begun])
        now_s, ended = now_s + took_s, ended + 1
        pace.note_round(begun, took_s, slots)
        assert ended == 1 or now_s <= limit_s - min(60, limit_s / 4) + 1e-6
    assert ended > 0
    assert not waiting or pace.next_round(waiting, None, slots) > 0


def longest(slots: int, tasks: Sequence[int]) -> int:
    """The time until all tasks are done, if each free worker takes the next task."""
    free = [0] * slots
    for task in tasks:
        free.sort()
        free[0] += task
    return max(free)
