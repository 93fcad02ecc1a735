"""Which parts of a policy a pass carries out: the schedules that are due, and what no schedule names (pure).

A table without schedules has one part, with its whole policy.  Where it has some, an operation that a schedule names
runs in its schedules only; the others make a part of their own, which is always due.  A person who names the operations
of a call asks for them outside of all schedules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import iso_utc
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.policy.layers import OVERRIDE_SOURCE
from icekeeper.policy.values import did_you_mean
from icekeeper.state.schedules import ScheduleRun

__all__ = [
    "PolicyPart",
    "due_ms",
    "due_parts",
    "forced_part",
    "in_one_pass",
    "named_parts",
    "next_count_ms",
    "why_not_now",
]


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
