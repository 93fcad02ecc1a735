"""How often and for how long a commit is retried, and how long each wait is (rule: commit-on-newest-head).

After a lost swap the next attempt waits 50 ms, 100 ms, 200 ms, … up to 5 s, as SeaweedFS's worker does.  A commit is
tried ``max_commit_retries`` times; the commit of a rewrite is tried for as long as the rewrite took.
``commit/attempt.py`` decides what an answer proves.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.report.activity import swap_lost

_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0
SLOW = 4
"""After "too many requests", and between reads of a table that may lag, the first wait is as long as after this many
lost swaps (0.8 s)."""
RESOLVE_LOOKS = 7
"""How often an unknown outcome is looked up before giving up; the waits add up to about six seconds."""
REFUSAL_LOOKS = 3
"""How often an unchanged head is read again after a refusal; the waits add up to about six seconds."""
# A rewrite's commit is tried for as long as the rewrite took, within these bounds.
_LEAST_PATIENCE_S = 30.0
_MOST_PATIENCE_S = 15 * 60.0
# A process with a deadline keeps this time for one more attempt, for removing its files, and for its report.
_TIME_TO_END_S = 30.0
# How long, at most, the next attempt waits for another writer's commit.
_MOST_WATCHED_S = 5.0


def backoff_seconds(attempt: int) -> float:
    """The wait before retry ``attempt`` (0 first): a random time between half of the step and the whole step."""
    step = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0**attempt)
    return step * random.uniform(0.5, 1.0)


def patience_of(work_s: float, left_s: float | None) -> float:
    """For how many seconds to retry the commit of work that took ``work_s`` seconds.

    ``left_s`` is the time until this process ends; ``None``: it has no deadline.
    """
    worth_s = min(max(work_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
    return worth_s if left_s is None else max(0.0, min(worth_s, left_s - _TIME_TO_END_S))


class Retries:
    """The retries of one commit, which begins now."""

    def __init__(
        self, max_retries: int, patience_s: float, sleep: Callable[[float], None], monotonic_s: Callable[[], float]
    ) -> None:
        """Retries end after ``max_retries`` retries or after ``patience_s`` seconds, whichever comes later."""
        self._max_retries, self._sleep, self._monotonic_s = max_retries, sleep, monotonic_s
        self._began_s = monotonic_s()
        self._until_s = self._began_s + patience_s

    def begin(self) -> None:
        """Note that an attempt begins."""
        self._began_s = self._monotonic_s()

    def is_last(self, attempt: int) -> bool:
        """Whether no attempt follows this one (0 first)."""
        return attempt >= self._max_retries and self._monotonic_s() >= self._until_s

    def wait(self, head: LoadedTable, attempt: int, why: Exception, *, is_busy: bool) -> None:
        """Wait after an attempt that did not land; longer if the catalog ``is_busy``."""
        seconds = backoff_seconds(attempt + (SLOW if is_busy else 0))
        swap_lost(str(head.name), attempt + 1, str(why), seconds)
        self._sleep(seconds)

    def newest_head(
        self, catalog: Catalog, head: LoadedTable, attempt: int, why: Exception, *, is_busy: bool
    ) -> LoadedTable:
        """Wait after a lost attempt, and load the head for the next attempt.

        From the second lost swap on, wait for the next commit of another writer and return that head.  Right after
        another writer's commit an attempt has the most time: it wins if it is shorter than the time to the next
        commit.  The wait is at most twice the time of an attempt: a writer that commits less often than this rarely
        disturbs it.
        """
        watched_s = min(2 * (self._monotonic_s() - self._began_s), _MOST_WATCHED_S)
        self.wait(head, attempt, why, is_busy=is_busy)
        head = newest = catalog.load(head.name)
        if not attempt or is_busy:
            return head
        began_s = self._monotonic_s()
        while newest.metadata_location == head.metadata_location:
            so_far_s = self._monotonic_s() - began_s
            if so_far_s >= watched_s:
                break
            self._sleep(0.01 + so_far_s / 8)
            newest = catalog.load(head.name)
        return newest
