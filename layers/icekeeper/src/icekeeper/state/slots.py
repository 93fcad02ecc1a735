"""Slots: how many tables are maintained at once over all runs that share a state (``max_concurrent_jobs``).

A slot is a lease without a table.  A pass of a scheduled run takes one of as many as the deployment allows, so the
limit holds also over runs and processes that overlap (rule 127); the slot of one that was killed runs out.  A pass that
a person starts takes none.
"""

from __future__ import annotations

from icekeeper.errors import LeaseHeld
from icekeeper.state.leases import Lease, LeaseStore

__all__ = ["held_slot", "slot_keys", "take_slot", "taken_slots"]


def slot_keys(limit: int) -> list[str]:
    """The keys of the leases that stand for ``limit`` slots."""
    return [f"slot-{number}" for number in range(1, limit + 1)]


def held_slot(leases: LeaseStore, holder: str, limit: int, *, now_ms: int) -> Lease | None:
    """The slot that a holder has, ``None`` when it has none.

    Raises:
        StorageError: the state does not answer.
    """
    found = (leases.current(key, now_ms=now_ms) for key in slot_keys(limit))
    return next((lease for lease in found if lease is not None and lease.holder == holder), None)


def taken_slots(leases: LeaseStore, limit: int, *, now_ms: int) -> int:
    """How many of the slots are taken.

    Raises:
        StorageError: the state does not answer.
    """
    return sum(leases.current(key, now_ms=now_ms) is not None for key in slot_keys(limit))


def take_slot(leases: LeaseStore, holder: str, limit: int, *, now_ms: int, ttl_ms: int) -> Lease:
    """Take a free slot; for its holder, prolong the one that it has.

    Raises:
        LeaseHeld: all are taken.
        StorageError: the state does not answer.
    """
    own = held_slot(leases, holder, limit, now_ms=now_ms)
    for key in slot_keys(limit) if own is None else [own.key]:
        try:
            return leases.acquire(key, holder, now_ms=now_ms, ttl_ms=ttl_ms)
        except LeaseHeld:
            continue
    raise LeaseHeld(f"{limit} table(s) are maintained now, as many as max_concurrent_jobs allows at once")
