"""Leases: which run may maintain a table (rule 112); what a store of them does, and the rules that every store keeps.

A lease is a conditional time stamp: whoever finds it free or run out writes its own, and only one of several can.  The
store's own expiry of items (DynamoDB's TTL comes up to days late) only tidies up and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from icekeeper.clock import iso_utc
from icekeeper.errors import LeaseHeld, LeaseLost

__all__ = ["Lease", "LeaseStore", "lease_held", "renewed_lease", "taken_lease"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """``key`` is what is leased (a table's :attr:`TableIdentity.key`, or the name of what is no table);
    ``expires_ms`` is the first epoch millisecond at which others may take it."""

    key: str
    holder: str
    expires_ms: int
    name: str = ""
    """What its holder calls the table that ``key`` stands for; told in messages."""


class LeaseStore(Protocol):
    """Every method is atomic, across processes and machines; each raises StorageError when the store fails.

    ``now_ms`` is by the caller's clock.  A store that has a clock of its own corrects it by the difference, so that all
    its users go by one.
    """

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "") -> Lease:
        """Take a lease that is free or has run out; for its holder, prolong it (never shorten it).

        Raises:
            LeaseHeld: another holder has it; the message says who and until when.
        """
        ...

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        """Prolong a lease that is still its holder's, also when it ran out and nobody took it.

        Raises:
            LeaseLost: another holder has it, or it was released.
        """
        ...

    def release(self, lease: Lease) -> bool:
        """Give it up; false when it was the holder's no more."""
        ...

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        """The lease that holds at ``now_ms``."""
        ...


def taken_lease(found: Lease | None, wanted: Lease, *, now_ms: int) -> Lease:
    """What is written for whoever wants a lease; for its holder it is never shorter than before.

    Raises:
        LeaseHeld: another holder has it.
    """
    if found is None:
        return wanted
    if found.holder == wanted.holder:
        return _longer(wanted, found)
    if found.expires_ms > now_ms:
        raise lease_held(replace(found, name=wanted.name or found.name))
    return wanted


def renewed_lease(found: Lease | None, lease: Lease, *, expires_ms: int) -> Lease:
    """What is written for the holder of a lease, also when it ran out and nobody took it.

    Raises:
        LeaseLost: another holder has it, or it was released.
    """
    if found is None or found.holder != lease.holder:
        raise _lease_lost(lease, None if found is None else found.holder)
    return _longer(replace(found, expires_ms=expires_ms), found)


def _longer(one: Lease, other: Lease) -> Lease:
    return max(one, other, key=lambda lease: lease.expires_ms)


def lease_held(lease: Lease) -> LeaseHeld:
    """What is said to a run that wants a lease which another one has: who, and until when."""
    return LeaseHeld(f"{_what(lease)} is leased by {lease.holder} until {iso_utc(lease.expires_ms)}")


def _lease_lost(lease: Lease, holder: str | None) -> LeaseLost:
    """What is said to the holder of a lease that is ``holder``'s by now, or nobody's."""
    now = "it was released" if holder is None else f"{holder} took it"
    return LeaseLost(f"the lease of {lease.holder} on {_what(lease)} is lost: {now}")


def _what(lease: Lease) -> str:
    """A table by its name, everything else by its key."""
    return lease.name or lease.key
