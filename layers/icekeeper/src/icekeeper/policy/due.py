"""When maintenance is due: which parts of a policy a pass runs, and when a table is swept for orphans.

A policy without schedules is one part.  With schedules, each schedule is a part.  An operation that a schedule names
runs only in the turns of such schedules; the other operations form a further part, which is always due.  If the call
names operations, schedules are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.layers import OVERRIDE_SOURCE
from icekeeper.policy.values import did_you_mean, rounded_down, text_of
from icekeeper.state.store import ScheduleRun
from icekeeper.text import age_text


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """Operations that run under the same settings."""

    schedule: str | None
    """``None``: the operations that no schedule names."""
    resolved: ResolvedPolicy
    due_ms: int = 0
    """Since when the schedule is due, in epoch milliseconds; 0: it never ran."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.resolved.policy.operations


def due_ms(resolved: ResolvedPolicy, schedule: str, runs: Mapping[str, ScheduleRun], now_ms: int) -> int:
    """When a schedule is due, in epoch milliseconds: one interval after its last turn; 0: it never ran.

    A turn recorded in the future is ignored: a clock that was ahead must not stop a schedule.
    """
    last = runs.get(schedule)
    if last is None or last.counted_ms > now_ms:
        return 0
    return last.counted_ms + resolved.schedules[schedule].interval_ms


def due_parts(resolved: ResolvedPolicy, runs: Mapping[str, ScheduleRun], now_ms: int) -> tuple[PolicyPart, ...]:
    """The parts that are due at ``now_ms`` (epoch milliseconds), in the order in which they run.

    They are ordered by their first operation in canonical order, then by how long they are due.  ``runs`` are the last
    turns of the table's schedules.
    """
    if (whole := _undivided(resolved)) is not None:
        return (PolicyPart(None, whole),)
    due = [(name, due_ms(resolved, name, runs, now_ms)) for name in sorted(resolved.schedules)]
    parts = [PolicyPart(name, resolved.of_schedule(name), since_ms) for name, since_ms in due if since_ms <= now_ms]
    parts.append(PolicyPart(None, resolved.unscheduled()))
    # A part has no operations if those that the table names are ignored, or a bound excludes them.
    order = list(Operation)
    return tuple(
        sorted(
            (part for part in parts if part.operations),
            key=lambda part: (min(map(order.index, part.operations)), part.due_ms, part.schedule or ""),
        )
    )


def _undivided(resolved: ResolvedPolicy) -> ResolvedPolicy | None:
    """The policy for a pass outside of all schedules; ``None``: schedules count."""
    if not resolved.schedules:
        return resolved
    if resolved.sources["operations"] == OVERRIDE_SOURCE:
        return replace(resolved, schedules={}, known_as=resolved.fingerprint())
    return None


def named_parts(resolved: ResolvedPolicy, schedules: Collection[str], *, with_rest: bool) -> tuple[PolicyPart, ...]:
    """The parts of those schedules that the policy has; ``with_rest`` adds the operations that no schedule names."""
    if (whole := _undivided(resolved)) is not None:
        return (PolicyPart(None, whole),)
    parts = [PolicyPart(name, resolved.of_schedule(name)) for name in schedules if name in resolved.schedules]
    rest = PolicyPart(None, resolved.unscheduled())
    return in_one_pass([*parts, *([rest] if with_rest and rest.operations else [])])


def forced_part(resolved: ResolvedPolicy, schedule: str, table: str) -> PolicyPart:
    """The part of one schedule, due or not.

    Raises:
        PolicyError: the table's policy has no such schedule, or one without operations.
    """
    if schedule in resolved.schedules:
        part = PolicyPart(schedule, resolved.of_schedule(schedule))
        if not part.operations:
            raise PolicyError(
                f"schedule '{schedule}' of {table} has no operation that counts; icekeeper policy show says why"
            )
        return part
    known = ", ".join(sorted(resolved.schedules))
    hint = f"its schedules are {known}" if known else "it has none; set for example schedules.nightly.interval=24h"
    raise PolicyError(f"{table} has no schedule '{schedule}'{did_you_mean(schedule, resolved.schedules)}: {hint}")


def in_one_pass(parts: Sequence[PolicyPart]) -> tuple[PolicyPart, ...]:
    """Drop parts so that no two share an operation; the part that is due for longest stays.

    The pipeline runs each operation once in a pass.  The dropped parts run in the next pass.
    """
    taken: dict[Operation, str | None] = {}
    for part in sorted(parts, key=lambda part: (part.due_ms, part.schedule or "")):
        if taken.keys().isdisjoint(part.operations):
            taken |= dict.fromkeys(part.operations, part.schedule)
    return tuple(part for part in parts if part.schedule in taken.values())


def next_count_ms(interval_ms: int, last: ScheduleRun | None, started_ms: int) -> int:
    """From when the interval after a turn that began at ``started_ms`` is counted (epoch milliseconds).

    It is counted from when the turn was due.  So a schedule of an hour still runs every hour if the hourly run reaches
    it some seconds late or early.  A very late turn is counted from at most half an interval before its start.
    """
    late_ms = 0 if last is None else started_ms - (last.counted_ms + interval_ms)
    return started_ms - max(0, min(late_ms, interval_ms // 2))


def why_not_now(
    resolved: ResolvedPolicy, parts: Sequence[PolicyPart], runs: Mapping[str, ScheduleRun], now_ms: int
) -> dict[Operation, str]:
    """The reason for each operation of a schedule that none of these parts runs."""
    running = {operation for part in parts for operation in part.operations}
    waiting: dict[Operation, list[str]] = {}
    for name in sorted(resolved.schedules):
        at_ms = due_ms(resolved, name, runs, now_ms)
        when = f"schedule {name} is due {iso_utc(at_ms)}" if at_ms > now_ms else f"schedule {name} was not asked for"
        for operation in resolved.schedules[name].resolved.policy.operations:
            waiting.setdefault(operation, []).append(when)
    return {operation: "; ".join(waiting[operation]) for operation in Operation if operation in {*waiting} - running}


# A sweep lists all files of a table.  So automatic passes skip it until ``orphan_sweep_interval_hours`` have passed
# since the last whole sweep (rule: only-whole-sweeps-count).  Sweeps are recorded like turns of the table's schedules,
# under these names, which no schedule can have.

SWEPT = "#swept"
"""The last whole sweep; counted from the start of its pass."""
TRIED = "#tried-sweep"
"""The last sweep that failed, was refused, could not delete some files or, recorded as idle, was not possible."""
FORMER_TABLES = "remove_orphans.former_tables"
"""The metric of a sweep that was skipped for a dropped table at the same location, and its mark in :data:`TRIED`."""
FIRST_SWEEP = "#first-sweep"
"""Not a sweep, but the time from which the first one is due."""

# First sweeps per hour in a large fleet; a fleet of no more tables is swept at once.
_FIRST_PER_HOUR = 24
# A sweep may be early by 2 % of the interval (29 minutes of 24 hours), so that a daily run that starts some minutes
# earlier than yesterday need not wait until tomorrow.  A further 8 %, by table, separates tables swept together.
_EARLIEST = Fraction(1, 50)
_APART = Fraction(2, 25)
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
    def of(cls, turns: Mapping[str, ScheduleRun]) -> SweepMemory:
        """Read the memory from the recorded turns of a table's schedules."""
        swept, first, tried = turns.get(SWEPT), turns.get(FIRST_SWEEP), turns.get(TRIED)
        return cls(
            None if swept is None else swept.counted_ms,
            None if first is None else first.counted_ms,
            None if tried is None else tried.finished_ms,
            tried is not None and tried.idle,
        )

    @property
    def is_empty(self) -> bool:
        """Whether no sweep has begun or been postponed."""
        return self == SweepMemory()


def sweep_interval_ms(policy: Policy) -> int:
    """``orphan_sweep_interval_hours`` in milliseconds; 0: every pass sweeps."""
    return rounded_down(policy.orphan_sweep_interval_hours, HOUR_MS)


def sweep_due_ms(memory: SweepMemory, interval_ms: int, key: str, now_ms: int) -> int:
    """When the next sweep of the table with this identity key is due (epoch milliseconds); 0: no sweep is recorded.

    It is due one interval after the last sweep, or up to a tenth of the interval earlier, depending on the key.  Times
    in the future, which a clock that was ahead recorded, are ignored.
    """
    if memory.swept_ms is not None and memory.swept_ms <= now_ms:
        early_ms = int(interval_ms * (_EARLIEST + _APART * _share(key)))
        return memory.swept_ms + interval_ms - early_ms
    if memory.first_ms is not None and memory.first_ms <= now_ms + interval_ms:
        return memory.first_ms
    return 0


def next_proposal_ms(memory: SweepMemory, interval_ms: int, key: str, now_ms: int) -> int:
    """From when a sweep alone justifies a pass (epoch milliseconds).

    That is when the sweep is due.  After an incomplete sweep since then, it is a quarter of an interval later; after an
    impossible one, seven intervals.  A pass that runs for another reason tries the sweep each time.
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
        return now_ms + int(interval_ms * (1 + _share(key)) / 2)
    spread_ms = min(interval_ms, (tables - 1) // _FIRST_PER_HOUR * HOUR_MS)
    return now_ms + int(spread_ms * _share(key))


def why_no_sweep(
    resolved: ResolvedPolicy, schedule: str | None, turns: Mapping[str, ScheduleRun], key: str, now_ms: int
) -> str | None:
    """Why an automatic pass skips the sweep; ``None``: it is due.

    ``schedule`` is the schedule whose turn it is.  A schedule that names its operations sweeps in each turn, unless it
    also sets ``orphan_sweep_interval_hours``.
    """
    policy = resolved.policy
    if schedule is not None:
        own = resolved.schedules[schedule]
        if own.says("operations") and not own.says("orphan_sweep_interval_hours"):
            return None
        policy = own.resolved.policy
    interval_ms, memory = sweep_interval_ms(policy), SweepMemory.of(turns)
    due_ms = sweep_due_ms(memory, interval_ms, key, now_ms)
    if interval_ms == 0 or due_ms <= now_ms:
        return None
    hours = text_of(policy.orphan_sweep_interval_hours)
    if memory.swept_ms is None:
        wait = age_text(due_ms - now_ms)
        return f"the first sweep is due in {wait}; first sweeps are spread over orphan_sweep_interval_hours {hours}"
    ago = age_text(now_ms - memory.swept_ms)
    return f"the last sweep was {ago} ago; orphan_sweep_interval_hours is {hours}"


def has_former_table(turns: Mapping[str, ScheduleRun]) -> bool:
    """Whether the last sweep was skipped because of a dropped table at the same location."""
    swept, tried = turns.get(SWEPT), turns.get(TRIED)
    if tried is None or tried.fingerprint != FORMER_TABLES:
        return False
    return swept is None or swept.counted_ms < tried.counted_ms


def known_age_ms(metadata: TableMetadata, now_ms: int) -> int:
    """The least age of a table, from the oldest time in its metadata."""
    logged = (*metadata.metadata_log, *(metadata.document.get("snapshot-log") or ()))
    times = [
        metadata.last_updated_ms,
        *metadata.snapshot_times_ms,
        *(int(entry.get("timestamp-ms") or 0) for entry in logged),
    ]
    return max(0, now_ms - min((time for time in times if time > 0), default=now_ms))


def _share(key: str) -> Fraction:
    """The table's place in the fleet, from 0 to below 1; constant per key, and evenly spread over the keys."""
    return Fraction(int.from_bytes(sha256(key.encode()).digest()[:8]), 2**64)
