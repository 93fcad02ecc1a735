"""The work of a process that races for leases; it imports little, because each process imports it."""

from __future__ import annotations

from icekeeper.errors import LeaseHeld
from icekeeper.state.leases import Lease
from icekeeper.state.open import open_state

KEYS = tuple(f"table-{number}" for number in range(10))


def take_leases(address: str, holders: tuple[str, ...]) -> dict[str, Lease]:
    """Try to acquire each lease for each holder; return the acquired leases."""
    leases, won = open_state({"ICEKEEPER_STATE": address}).leases, {}
    for key in KEYS:
        for holder in holders:
            try:
                won[key] = leases.acquire(key, holder, now_ms=1_000, ttl_ms=1_000)
            except LeaseHeld:
                continue
    return won
