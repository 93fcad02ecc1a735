"""A signal that a table is to be swept for orphans, of which its metadata show no sign."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from icekeeper.detection.signals import Signal
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Operation, Policy, ResolvedPolicy, gc_enabled
from icekeeper.policy.values import text_of
from icekeeper.state.identity import TableIdentity
from icekeeper.state.schedules import ScheduleRun
from icekeeper.sweep_rhythm import (
    FIRST_SWEEP,
    SweepMemory,
    first_sweep_ms,
    known_age_ms,
    next_proposal_ms,
    sweep_interval_ms,
)
from icekeeper.text import age_text

__all__ = ["due_sweep", "sweep_signals"]

# What a sweep will find nobody knows: tables that surely need work go first.
_WEIGHT = 0.1


def due_sweep(
    record: Callable[[TableIdentity, ScheduleRun], None],
    identity: TableIdentity,
    metadata: TableMetadata,
    resolved: ResolvedPolicy,
    turns: Mapping[str, ScheduleRun],
    *,
    fleet: int,
    now_ms: int,
) -> tuple[Signal, ...]:
    """A signal where passes under this policy sweep the table, and the next sweep is due.

    Of a table of which no sweep is known yet it is decided when the first one is due, and told to ``record`` unless
    that is now.
    ``turns`` is what the state remembers of the table's schedules and sweeps, ``fleet`` the number of tables.
    """
    policy = resolved.policy
    if not (sweep_interval_ms(policy) and resolved.runs(Operation.REMOVE_ORPHANS) and gc_enabled(metadata)):
        return ()
    memory = SweepMemory.of(turns)
    if memory.is_empty:
        age_ms = known_age_ms(metadata, now_ms)
        first_ms = first_sweep_ms(identity.key, now_ms, policy, tables=fleet, age_ms=age_ms)
        memory = replace(memory, first_ms=first_ms)
        if first_ms > now_ms:
            record(identity, _first_sweep(first_ms))
    return tuple(sweep_signals(memory, policy, identity.key, now_ms))


def sweep_signals(memory: SweepMemory, policy: Policy, key: str, now_ms: int) -> Iterable[Signal]:
    """A signal when a sweep of the table with this identity key is due (pure)."""
    if now_ms < next_proposal_ms(memory, sweep_interval_ms(policy), key, now_ms):
        return
    if memory.swept_ms is None or memory.swept_ms > now_ms:
        yield Signal("orphans were never looked for", _WEIGHT)
        return
    hours = text_of(policy.orphan_sweep_interval_hours)
    ago = age_text(now_ms - memory.swept_ms)
    yield Signal(f"orphans were last looked for {ago} ago; orphan_sweep_interval_hours is {hours}", _WEIGHT)


def _first_sweep(due_ms: int) -> ScheduleRun:
    return ScheduleRun(
        schedule=FIRST_SWEEP, counted_ms=due_ms, finished_ms=0, snapshot_id=None, fingerprint="", idle=False
    )
