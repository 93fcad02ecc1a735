"""Which parts of a policy a pass carries out, and when a table is swept for orphans (rule: only-whole-sweeps-count)
(pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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

# Which parts of a policy a pass carries out: the schedules that are due, and what no schedule names (pure).
#
# A table without schedules has one part, with its whole policy.  Where it has some, an operation that a schedule names
# runs in its schedules only; the others make a part of their own, which is always due.  A person who names the
# operations of a call asks for them outside of all schedules.


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """Operations that run under the same settings."""

    schedule: str | None
    """``None``: what no schedule names."""
    resolved: ResolvedPolicy
    due_ms: int = 0
    """Since when a schedule is due, in epoch milliseconds; 0: it never ran."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.resolved.policy.operations


def due_ms(resolved: ResolvedPolicy, schedule: str, runs: Mapping[str, ScheduleRun], now_ms: int) -> int:
    """When a schedule is due, in epoch milliseconds: an interval after its last turn; 0: it never ran.

    A turn that is recorded for later than now is none: a clock that was ahead must not stop a schedule.
    """
    last = runs.get(schedule)
    is_known = last is not None and last.counted_ms <= now_ms
    return last.counted_ms + resolved.schedules[schedule].interval_ms if last is not None and is_known else 0


def due_parts(resolved: ResolvedPolicy, runs: Mapping[str, ScheduleRun], now_ms: int) -> tuple[PolicyPart, ...]:
    """The parts that are due at ``now_ms`` (epoch milliseconds), in the order in which they are to run.

    By their first operations, in canonical order; then those first that are due for longest.  ``runs`` are the last
    turns of the table's schedules.
    """
    if not resolved.schedules:
        return (PolicyPart(None, resolved),)
    if resolved.sources["operations"] == OVERRIDE_SOURCE:
        return (PolicyPart(None, resolved.apart_from_schedules()),)
    due = [(name, due_ms(resolved, name, runs, now_ms)) for name in sorted(resolved.schedules)]
    parts = [PolicyPart(name, resolved.of_schedule(name), since_ms) for name, since_ms in due if since_ms <= now_ms]
    parts.append(PolicyPart(None, resolved.unscheduled()))
    # One has no operations where those that its table names do not count, or are none of a bound.
    return tuple(sorted((part for part in parts if part.operations), key=_first_then_longest_due))


def named_parts(resolved: ResolvedPolicy, schedules: Collection[str], *, with_rest: bool) -> tuple[PolicyPart, ...]:
    """The parts of these schedules, as far as the policy has them, with or without what no schedule names."""
    if not resolved.schedules:
        return (PolicyPart(None, resolved),)
    if resolved.sources["operations"] == OVERRIDE_SOURCE:
        return (PolicyPart(None, resolved.apart_from_schedules()),)
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
    told = f"its schedules are {known}" if known else "it has none; set for example schedules.nightly.interval=24h"
    raise PolicyError(f"{table} has no schedule '{schedule}'{did_you_mean(schedule, resolved.schedules)}: {told}")


def in_one_pass(parts: Sequence[PolicyPart]) -> tuple[PolicyPart, ...]:
    """The parts of which no two have an operation in common: of those that do, the one that is due for longest.

    The pipeline carries out each operation once in a pass; the next run takes what is left.
    """
    taken: dict[Operation, str | None] = {}
    for part in sorted(parts, key=lambda part: (part.due_ms, part.schedule or "")):
        if taken.keys().isdisjoint(part.operations):
            taken |= dict.fromkeys(part.operations, part.schedule)
    return tuple(part for part in parts if part.schedule in taken.values())


def next_count_ms(interval_ms: int, last: ScheduleRun | None, started_ms: int) -> int:
    """From when the turn after one that began at ``started_ms`` is counted (epoch milliseconds).

    From when this one was due: so a schedule of an hour that an hourly run reaches some seconds late, or too early by
    some, still runs every hour.  A turn that was very late is counted from half an interval before it at most.
    """
    late_ms = 0 if last is None else started_ms - (last.counted_ms + interval_ms)
    return started_ms - max(0, min(late_ms, interval_ms // 2))


def why_not_now(
    resolved: ResolvedPolicy, parts: Sequence[PolicyPart], runs: Mapping[str, ScheduleRun], now_ms: int
) -> dict[Operation, str]:
    """The reason for each operation of the policy and its schedules that none of these parts runs."""
    running = {operation for part in parts for operation in part.operations}
    waiting: dict[Operation, list[str]] = {}
    for name in sorted(resolved.schedules):
        at_ms = due_ms(resolved, name, runs, now_ms)
        when = f"schedule {name} is due {iso_utc(at_ms)}" if at_ms > now_ms else f"schedule {name} was not asked for"
        for operation in resolved.schedules[name].resolved.policy.operations:
            waiting.setdefault(operation, []).append(when)
    return {operation: "; ".join(waiting[operation]) for operation in Operation if operation in {*waiting} - running}


def _first_then_longest_due(part: PolicyPart) -> tuple[int, int, str]:
    first = min(list(Operation).index(operation) for operation in part.operations)
    return first, part.due_ms, part.schedule or ""


# When orphans of a table are looked for again, and how the sweeps of a fleet are kept apart (pure)
# (rule: only-whole-sweeps-count).
#
# A sweep lists all files of a table, so a pass that nobody asked for leaves it out until
# ``orphan_sweep_interval_hours`` have passed since the last one.  What is remembered of sweeps stands among the turns
# of the table's schedules, under names that no schedule can have.

SWEPT = "#swept"
"""The last whole sweep; counted from when its pass began."""
TRIED = "#tried-sweep"
"""The last sweep that failed, was refused, left files that it could not delete or, idle, was not possible."""
FORMER_TABLES = "remove_orphans.former_tables"
"""The metric of a sweep that was left out for a dropped table at the same location, and its mark in :data:`TRIED`."""
FIRST_SWEEP = "#first-sweep"
"""No sweep: from when the first one is due."""

# So many first sweeps an hour begin in a large fleet; one of so few tables is swept at once.
_FIRST_PER_HOUR = 24
# A run that comes once a day, some minutes earlier than yesterday, must not wait until tomorrow (29 minutes of 24
# hours); beyond that, tables that were swept together once drift apart.
_EARLIEST = Fraction(1, 50)
_APART = Fraction(2, 25)
_RETRY = Fraction(1, 4)
_RETRY_IMPOSSIBLE = 7


@dataclass(frozen=True, slots=True)
class SweepMemory:
    """What is remembered of a table's sweeps; times in epoch milliseconds, ``None``: there was none."""

    swept_ms: int | None = None
    """When the last whole sweep began."""
    first_ms: int | None = None
    """When the first one is due."""
    tried_ms: int | None = None
    """When the last one ended that was not whole."""
    is_impossible: bool = False
    """Whether that was because this store lets nobody list or delete."""

    @classmethod
    def of(cls, turns: Mapping[str, ScheduleRun]) -> SweepMemory:
        """What stands among the turns of a table's schedules."""
        swept, first, tried = turns.get(SWEPT), turns.get(FIRST_SWEEP), turns.get(TRIED)
        return cls(
            None if swept is None else swept.counted_ms,
            None if first is None else first.counted_ms,
            None if tried is None else tried.finished_ms,
            tried is not None and tried.idle,
        )

    @property
    def is_empty(self) -> bool:
        """Whether a sweep was neither begun nor put off."""
        return self == SweepMemory()


def sweep_interval_ms(policy: Policy) -> int:
    """``orphan_sweep_interval_hours`` in milliseconds; 0: every pass sweeps."""
    return rounded_down(policy.orphan_sweep_interval_hours, HOUR_MS)


def sweep_due_ms(memory: SweepMemory, interval_ms: int, key: str, now_ms: int) -> int:
    """When the next sweep of the table with this identity key is due (epoch milliseconds); 0: nothing is known of any.

    An interval after the last one, or up to a tenth of it earlier, by the key.  Times that only a clock which was ahead
    can have left are none.
    """
    if memory.swept_ms is not None and memory.swept_ms <= now_ms:
        early_ms = int(interval_ms * (_EARLIEST + _APART * _share(key)))
        return memory.swept_ms + interval_ms - early_ms
    if memory.first_ms is not None and memory.first_ms <= now_ms + interval_ms:
        return memory.first_ms
    return 0


def next_proposal_ms(memory: SweepMemory, interval_ms: int, key: str, now_ms: int) -> int:
    """From when a sweep alone is reason enough for a pass (epoch milliseconds).

    When it is due.  Was it tried since, in vain, then a quarter of an interval after that; where it was not possible,
    seven intervals.  A pass that there is another reason for tries each time.
    """
    due_ms = sweep_due_ms(memory, interval_ms, key, now_ms)
    if memory.tried_ms is None or not due_ms <= memory.tried_ms <= now_ms:
        return due_ms
    return memory.tried_ms + int(interval_ms * (_RETRY_IMPOSSIBLE if memory.is_impossible else _RETRY))


def first_sweep_ms(key: str, now_ms: int, policy: Policy, *, tables: int, age_ms: int) -> int:
    """When a table that was never swept, and is met now for the first time, is swept first (epoch milliseconds).

    At once in a fleet of few ``tables``; in a larger one at a time that its identity key decides, within an hour for
    each 24 tables, and within one interval.  A table that is younger (``age_ms``) than an interval, or than the grace
    period, within which no orphan of it could go, waits at least half an interval.
    """
    interval_ms = sweep_interval_ms(policy)
    if age_ms < max(interval_ms, policy.orphan_older_than_ms):
        return now_ms + int(interval_ms * (1 + _share(key)) / 2)
    spread_ms = min(interval_ms, (tables - 1) // _FIRST_PER_HOUR * HOUR_MS)
    return now_ms + int(spread_ms * _share(key))


def why_no_sweep(
    resolved: ResolvedPolicy, schedule: str | None, turns: Mapping[str, ScheduleRun], key: str, now_ms: int
) -> str | None:
    """Why a pass that nobody asked for leaves the sweep out; ``None``: it is due.

    ``schedule`` is the one in whose turn it would run.  One that names its operations has an interval of its own: it
    sweeps in each turn, unless it sets ``orphan_sweep_interval_hours`` too.
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
    """Whether the last sweep was left out because of a dropped table at the same location."""
    swept, tried = turns.get(SWEPT), turns.get(TRIED)
    if tried is None or tried.fingerprint != FORMER_TABLES:
        return False
    return swept is None or swept.counted_ms < tried.counted_ms


def known_age_ms(metadata: TableMetadata, now_ms: int) -> int:
    """How long a table has existed at least, as far as its metadata remember."""
    logged = (*metadata.metadata_log, *(metadata.document.get("snapshot-log") or ()))
    times = [
        metadata.last_updated_ms,
        *metadata.snapshot_times_ms,
        *(int(entry.get("timestamp-ms") or 0) for entry in logged),
    ]
    return max(0, now_ms - min((time for time in times if time > 0), default=now_ms))


def _share(key: str) -> Fraction:
    """The table's place in the fleet, from 0 to below 1: the same at every time, evenly spread over the keys."""
    return Fraction(int.from_bytes(sha256(key.encode()).digest()[:8]), 2**64)
