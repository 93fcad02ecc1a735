"""When a table is swept for orphans.

A sweep lists all files of a table.  So automatic passes skip it until ``orphan_sweep_interval_hours`` have passed since
the last whole sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Policy
from icekeeper.policy.values import rounded_down, text_of
from icekeeper.state.sweeps import SweepKind, SweepRecord
from icekeeper.text import age_text

FORMER_TABLES = "remove_orphans.former_tables"
"""The metric of a sweep that was skipped for a dropped table at the same location."""
NOT_POSSIBLE = "remove_orphans.not_possible"
"""The metric of a sweep that was skipped because the store permits no listing or deletion."""

# First sweeps per hour in a large fleet; a fleet of at most this many tables is swept at once.
_FIRST_PER_HOUR = 24
_WHOLE = 2**64
_RETRY = Fraction(1, 4)
_RETRY_IMPOSSIBLE = 7


@dataclass(frozen=True, slots=True)
class SweepMemory:
    """The recorded sweeps of a table; times in epoch milliseconds, ``None``: no record."""

    swept_ms: int | None = None
    """When the last whole sweep began."""
    first_ms: int | None = None
    """When the first sweep is due."""
    tried_ms: int | None = None
    """When the last incomplete sweep ended."""
    is_impossible: bool = False
    """Whether it was incomplete because the store does not permit listing or deleting."""

    @classmethod
    def of(cls, sweeps: Mapping[SweepKind, SweepRecord]) -> SweepMemory:
        """Read the memory from the records of a table's sweeps."""
        swept, first, tried = (sweeps.get(kind) for kind in (SweepKind.SWEPT, SweepKind.FIRST, SweepKind.TRIED))
        return cls(
            None if swept is None else swept.counted_ms,
            None if first is None else first.counted_ms,
            None if tried is None else tried.finished_ms,
            tried is not None and tried.is_impossible,
        )

    @property
    def is_empty(self) -> bool:
        """Whether no sweep has begun or been postponed."""
        return self.swept_ms is None and self.first_ms is None and self.tried_ms is None


def sweep_interval_ms(policy: Policy) -> int:
    """``orphan_sweep_interval_hours`` in milliseconds; 0: every pass sweeps."""
    return rounded_down(policy.orphan_sweep_interval_hours, HOUR_MS)


def sweep_due_ms(memory: SweepMemory, interval_ms: int, key: str, now_ms: int) -> int:
    """When the next sweep of the table with this identity key is due (epoch milliseconds); 0: no sweep is recorded.

    It is due one interval after the last sweep, or up to a tenth of the interval earlier, depending on the key.  Times
    in the future, which a clock that was ahead recorded, are ignored.
    """
    if memory.swept_ms is not None and memory.swept_ms <= now_ms:
        # 2 % of the interval (29 minutes of 24 hours), so that a daily run that starts some minutes earlier than
        # yesterday need not wait until tomorrow.  A further 8 %, by table, separates tables swept together.
        early_ms = interval_ms * (_WHOLE + 4 * _share(key)) // (50 * _WHOLE)
        return memory.swept_ms + interval_ms - early_ms
    if memory.first_ms is not None and memory.first_ms <= now_ms + interval_ms:
        return memory.first_ms
    return 0


def next_proposal_ms(memory: SweepMemory, interval_ms: int, key: str, now_ms: int) -> int:
    """From when a sweep alone justifies a pass (epoch milliseconds).

    That is when the sweep is due.  After an incomplete sweep since then, it is a quarter of an interval later; after an
    impossible sweep, seven intervals.  A pass that runs for another reason tries the sweep each time.
    """
    due_ms = sweep_due_ms(memory, interval_ms, key, now_ms)
    if memory.tried_ms is None or not due_ms <= memory.tried_ms <= now_ms:
        return due_ms
    return memory.tried_ms + int(interval_ms * (_RETRY_IMPOSSIBLE if memory.is_impossible else _RETRY))


def first_sweep_ms(key: str, now_ms: int, policy: Policy, *, tables: int, age_ms: int) -> int:
    """When a new table is first swept (epoch milliseconds).

    In a fleet of few ``tables``, it is swept at once.  In a larger fleet, its identity key selects a time within one
    hour per 24 tables, and within one interval.  If the table's age (``age_ms``) is below one interval or below the
    grace period of orphans, it waits at least half an interval.
    """
    interval_ms = sweep_interval_ms(policy)
    if age_ms < max(interval_ms, policy.orphan_older_than_ms):
        return now_ms + interval_ms * (_WHOLE + _share(key)) // (2 * _WHOLE)
    spread_ms = min(interval_ms, (tables - 1) // _FIRST_PER_HOUR * HOUR_MS)
    return now_ms + spread_ms * _share(key) // _WHOLE


def why_no_sweep(policy: Policy, sweeps: Mapping[SweepKind, SweepRecord], key: str, now_ms: int) -> str | None:
    """Why an automatic pass skips the sweep of the table with this identity key; ``None``: it is due."""
    interval_ms, memory = sweep_interval_ms(policy), SweepMemory.of(sweeps)
    due_ms = sweep_due_ms(memory, interval_ms, key, now_ms)
    if interval_ms == 0 or due_ms <= now_ms:
        return None
    hours = text_of(policy.orphan_sweep_interval_hours)
    if memory.swept_ms is None:
        wait = age_text(due_ms - now_ms)
        return f"the first sweep is due in {wait}; first sweeps are spread over orphan_sweep_interval_hours {hours}"
    ago = age_text(now_ms - memory.swept_ms)
    return f"the last sweep was {ago} ago; orphan_sweep_interval_hours is {hours}"


def has_former_table(sweeps: Mapping[SweepKind, SweepRecord]) -> bool:
    """Whether the last sweep was skipped because of a dropped table at the same location."""
    swept, tried = sweeps.get(SweepKind.SWEPT), sweeps.get(SweepKind.TRIED)
    if tried is None or not tried.has_former_table:
        return False
    return swept is None or swept.counted_ms < tried.counted_ms


def known_age_ms(metadata: TableMetadata, now_ms: int) -> int:
    """The least age of a table, from the oldest time in its metadata."""
    return 0 if metadata.oldest_ms is None else max(0, now_ms - metadata.oldest_ms)


def _share(key: str) -> int:
    """The table's place in the fleet, from 0 to below ``_WHOLE``; constant per key, and evenly spread over the keys."""
    return int.from_bytes(sha256(key.encode()).digest()[:8])
