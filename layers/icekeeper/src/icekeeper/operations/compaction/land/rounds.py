"""Which file groups are rewritten together in the next round, and when results are committed (pure).

A *round* is what the engine rewrites at once.  Only between rounds may a pass commit or stop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.rows.read_task import OPEN_FILE_BYTES

Item = TypeVar("Item")

# A round takes a few minutes at most, so that a killed process loses little.  It has several groups for each worker, so
# that workers are idle for about a tenth of it; with a third of the bytes it would be a fifth
# (tests/nightly/test_idle_slots.py).
_ROUND_BYTES = 4 * 1024**3
_ROUND_BYTES_PER_SLOT = 3 * 1024**3
_ROUND_S = 300.0
# Commits take at most a tenth of the time.  A commit of a large table rewrites many manifests.
_WORK_PER_COMMIT = 9.0
# Seconds to write manifests and commit, including retries; at most a quarter of the time that the process has left.
_COMMIT_S = 60.0
_COMMIT_SHARE = 0.25
# The most input files of a round, and of a commit before its last round: a commit keeps about a kilobyte in memory for
# each of them (tests/nightly/test_driver_memory.py).
_MOST_FILES = 250_000
# Each commit forces every writer that is just committing to retry.
_COMMITS_PER_MINUTE = 10
# The groups of a table differ in deletes, compression and copied row groups, and so in speed.
_SAFETY = 2.0


@dataclass(frozen=True, slots=True)
class Work:
    """The groups that a worker rewrites as one task, or a group that all workers sort together."""

    groups: tuple[FileGroup, ...]
    by_all_workers: bool = False

    @property
    def size_bytes(self) -> int:
        """See :func:`opened_bytes`."""
        return sum(map(opened_bytes, self.groups))

    @property
    def files(self) -> int:
        """The number of input files."""
        return sum(len(group.files) for group in self.groups)


def opened_bytes(group: FileGroup) -> int:
    """The bytes of a group's files, with an allowance for each opened file."""
    return group.total_bytes + len(group.files) * OPEN_FILE_BYTES


class Pace:
    """Chooses rounds and moments to commit, by the speed of the rounds and commits so far.

    The expected time of a round is that of the worker with the most work, if each worker takes the next work once it is
    free.  The number of workers may differ from round to round: executors come late and are lost.
    """

    def __init__(self, left_s: float | None) -> None:
        """``left_s``: as in :meth:`next_round`."""
        self._round_bytes = _ROUND_BYTES
        self._least_commit_s = _COMMIT_S if left_s is None else min(_COMMIT_S, max(0.0, left_s) * _COMMIT_SHARE)
        self._commit_s = 0.0
        self._commits_s: deque[float] = deque(maxlen=_COMMITS_PER_MINUTE)
        self._rounds_s = self._rounds_bytes = 0.0

    def next_round(self, waiting: Iterable[Work], left_s: float | None, slots: int) -> int:
        """How many of the ``waiting`` works begin together; 0: the first would probably not end in time for a commit.

        ``slots`` are the tasks that the engine runs at once now.  ``left_s`` are the seconds until this process ends;
        ``None``: it has no deadline.  With a deadline the first round is small, one work for each worker, to measure
        the speed.  It begins even if little time is left; otherwise a process that never has much time would never do
        anything.
        """
        self._round_bytes = max(_ROUND_BYTES, slots * _ROUND_BYTES_PER_SLOT)
        is_measured = self._rounds_bytes > 0
        if left_s is None:
            return self._fitting(waiting, math.inf, slots)
        if is_measured:
            # A single worker gains nothing from a larger round, whose end is harder to predict.
            first = islice(waiting, 1) if slots == 1 else waiting
            return self._fitting(first, (left_s - max(self._least_commit_s, 2 * self._commit_s)) / _SAFETY, slots)
        return _one_each(waiting, slots) if left_s > 0 else 0

    def _fitting(self, waiting: Iterable[Work], limit_s: float, slots: int) -> int:
        per_byte_s = self._rounds_s / self._rounds_bytes if self._rounds_bytes else 0.0
        loads, count, size, files = [0.0] * slots, 0, 0, 0
        for work in waiting:
            if size >= self._round_bytes or files >= _MOST_FILES:
                break
            _add(loads, work)
            expected_s = per_byte_s * max(loads)
            if expected_s > limit_s or (count and expected_s > _ROUND_S):
                break
            size += work.size_bytes
            files += work.files
            count += 1
        return count

    def note_round(self, works: Iterable[Work], took_s: float, slots: int) -> None:
        """Record the time of a round; ``slots``: the most tasks that the engine may have run at once meanwhile."""
        loads = [0.0] * slots
        for work in works:
            _add(loads, work)
        self._rounds_s += took_s
        self._rounds_bytes += max(loads)

    def commit_is_due(self, ready_bytes: int, ready_files: int, since_s: float) -> bool:
        """Whether to commit the rewritten input files now, ``since_s`` seconds after the last commit."""
        if ready_files >= _MOST_FILES:
            return True
        is_much = ready_bytes >= self._round_bytes or since_s >= _ROUND_S
        return is_much and since_s >= _WORK_PER_COMMIT * self._commit_s

    def may_commit_early(self, now_s: float) -> bool:
        """Whether a small commit may be made now, so that writers keep most of their time to commit."""
        commits_s = self._commits_s
        return len(commits_s) < _COMMITS_PER_MINUTE or now_s - commits_s[0] >= 60

    def note_commit(self, now_s: float, took_s: float) -> None:
        """Record a commit that ended now, and its time."""
        self._commit_s = took_s
        self._commits_s.append(now_s)


def _one_each(waiting: Iterable[Work], slots: int) -> int:
    first = list(islice(waiting, slots))
    alone = next((number for number, work in enumerate(first) if work.by_all_workers), len(first))
    return alone or min(1, len(first))


def _add(loads: list[float], work: Work) -> None:
    """Assign the work to the worker with the least work; ``loads`` are the bytes of each worker."""
    if work.by_all_workers:
        loads[:] = [max(loads) + work.size_bytes / len(loads)] * len(loads)
    else:
        loads[loads.index(min(loads))] += work.size_bytes


# Sizes of small_together are those of RewriteTask.input_bytes.  A group of fifteen tiny files is still small.
_SMALL_BYTES = 4 * 1024 * 1024
# A third of a second's work, so that workers end together and progress is reported often.
_BATCH_BYTES = 32 * 1024 * 1024


def small_together(groups: Iterable[Item], size_of: Callable[[Item], int]) -> list[list[Item]]:
    """Put consecutive small groups together, up to the size of a batch; large groups stay alone.

    ``size_of`` returns a group's bytes as :attr:`.RewriteTask.input_bytes` counts them.
    """
    batches: list[list[Item]] = []
    room = 0
    for group in groups:
        size = size_of(group)
        if size > min(room, _SMALL_BYTES):
            batches.append([])
            room = _BATCH_BYTES if size <= _SMALL_BYTES else 0
        batches[-1].append(group)
        room -= size
    return batches


def in_commits(groups: Sequence[FileGroup], size: int) -> list[Sequence[FileGroup]]:
    """Divide groups into portions of ``size`` groups (``partial_progress``); 0: one portion."""
    if not size or not groups:
        return [groups]
    return [groups[start : start + size] for start in range(0, len(groups), size)]
