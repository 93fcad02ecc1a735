"""What is said to a run whose turn it is not."""

from __future__ import annotations

from icekeeper.clock import iso_utc
from icekeeper.errors import LeaseHeld, LeaseLost
from icekeeper.state.leases import Lease

__all__ = ["lease_held", "lease_lost"]


def lease_held(lease: Lease) -> LeaseHeld:
    """Another holder has it, who and until when."""
    return LeaseHeld(f"{_what(lease)} is leased by {lease.holder} until {iso_utc(lease.expires_ms)}")


def lease_lost(lease: Lease, holder: str | None) -> LeaseLost:
    """It is ``holder``'s by now, or nobody's."""
    now = "it was released" if holder is None else f"{holder} took it"
    return LeaseLost(f"the lease of {lease.holder} on {_what(lease)} is lost: {now}")


def _what(lease: Lease) -> str:
    """A table by its name, everything else by its key."""
    return lease.name or lease.key
