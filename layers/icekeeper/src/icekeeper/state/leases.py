"""Leases (rule: one-lease-holder), slots for passes at once, and the mark of a scheduled detection (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Protocol

from icekeeper.errors import LeaseHeld, LeaseLost
from icekeeper.machine.clock import HOUR_MS, iso_utc

# Leases: which run may maintain a table (rule: one-lease-holder); what a store of leases does, and the rules that every
# one keeps.
#
# A lease is a time stamp that is written on a condition: a run that finds it free or expired writes its own, and of
# several runs only one succeeds.  The store's own expiry of items (DynamoDB's TTL comes up to days late) only removes
# old items and decides nothing.

LONGEST_LEASE_MS = 31 * 24 * HOUR_MS
"""No lease lasts longer: one that seems to was taken by a clock that was ahead, and bars nobody
(rule: future-records-bar-nothing)."""
PROCESS_MARK = re.compile(r"\(process (?P<pid>\d+), run [^)]*\)(?P<mark> \[(?P<place>[0-9a-f]{16})\.(?P<start>\d+)\])$")
"""Ends the name of a holder that is a process: where it runs, and when it began there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """``key`` is what is leased: a table's :attr:`TableIdentity.lease_key`, or a name such as that of a slot.

    ``expires_ms`` is the first epoch millisecond at which others may take it.
    """

    key: str
    holder: str
    expires_ms: int
    name: str = ""
    """The table's name as its holder knows it, for messages."""

    def holds_at(self, now_ms: int) -> bool:
        """Whether it bars others at ``now_ms``: it has not run out, and was not taken by a clock that was ahead."""
        return now_ms < self.expires_ms <= now_ms + LONGEST_LEASE_MS

    @property
    def who(self) -> str:
        """Its holder, for people."""
        found = PROCESS_MARK.search(self.holder)
        return self.holder if found is None else self.holder[: found.start("mark")]


class LeaseStore(Protocol):
    """Every method is atomic, across processes and machines; each raises StorageError when the store fails.

    ``now_ms`` is the caller's time.  A store with a clock of its own corrects it by the difference, so that all its
    users go by one clock.
    """

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "") -> Lease:
        """Take a lease that is free or expired; for its holder, prolong it (never shorten it).

        Raises:
            LeaseHeld: another holder has it; the message says who and until when.
        """
        ...

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        """Prolong a lease that is still its holder's, also when it has expired and nobody took it.

        Raises:
            LeaseLost: another holder has it, or it was released.
        """
        ...

    def release(self, lease: Lease) -> bool:
        """Give a lease up; false when its holder no longer had it."""
        ...

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        """The lease that holds at ``now_ms``, ``None`` when there is none."""
        ...


def taken_lease(found: Lease | None, wanted: Lease, *, now_ms: int) -> Lease:
    """The lease to write when ``wanted`` is asked for and ``found`` is there; for its holder it is never shortened.

    Raises:
        LeaseHeld: another holder has it.
    """
    if found is None:
        return wanted
    if found.holder == wanted.holder:
        return _longer(wanted, found)
    if found.holds_at(now_ms):
        raise lease_held(replace(found, name=wanted.name or found.name))
    return wanted


def renewed_lease(found: Lease | None, lease: Lease, *, expires_ms: int) -> Lease:
    """The lease to write when its holder renews it, also when it has expired and nobody took it.

    Raises:
        LeaseLost: another holder has it, or it was released.
    """
    if found is None or found.holder != lease.holder:
        raise _lease_lost(lease, None if found is None else found.who)
    return _longer(replace(found, expires_ms=expires_ms), found)


def _longer(one: Lease, other: Lease) -> Lease:
    """``other`` is the one that is there, which a clock that was ahead may have written."""
    if other.expires_ms > one.expires_ms + LONGEST_LEASE_MS:
        return one
    return max(one, other, key=lambda lease: lease.expires_ms)


def lease_held(lease: Lease) -> LeaseHeld:
    """The error for a run that wants a lease which another one has; it says who has it and until when."""
    return LeaseHeld(f"{_what(lease)} is leased by {lease.who} until {iso_utc(lease.expires_ms)}")


def _lease_lost(lease: Lease, holder: str | None) -> LeaseLost:
    """The error for the former holder of a lease, which ``holder`` has now, or nobody."""
    now = "it was released" if holder is None else f"{holder} took it"
    return LeaseLost(f"the lease of {lease.who} on {_what(lease)} is lost: {now}")


def _what(lease: Lease) -> str:
    """A table by its name, everything else by its key."""
    return lease.name or lease.key


# Whether anything looks for requests on a schedule: each scheduled detection leaves a mark that runs out by itself.
#
# The mark is a lease that all of them share, so it needs no store of its own.

SEEN_FOR_HOURS = 25
"""So long after a detection another one is expected; long enough for a schedule that runs once a day."""
_KEY = "schedule"


def note_detection(leases: LeaseStore, *, now_ms: int, interval_ms: int = 0) -> None:
    """Leave the mark; ``interval_ms`` is the time until the next detection, where that is known.

    Raises:
        StorageError: the state does not answer.
    """
    ttl_ms = min(LONGEST_LEASE_MS, max(SEEN_FOR_HOURS * HOUR_MS, 2 * interval_ms))
    leases.acquire(_KEY, _KEY, now_ms=now_ms, ttl_ms=ttl_ms)


def is_scheduled(leases: LeaseStore, *, now_ms: int) -> bool:
    """Whether a detection has left a mark that has not run out.

    Raises:
        StorageError: the state does not answer.
    """
    return leases.current(_KEY, now_ms=now_ms) is not None


# Slots: how many tables are maintained at once over all runs that share a state (``max_concurrent_jobs``).
#
# A slot is a lease without a table.  A pass of a scheduled run takes one of as many as the deployment allows, so the
# limit holds also over runs and processes that overlap (rule: overlapping-runs-share-slots); the slot of one that was
# killed runs out.  A pass that a person starts takes none.


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
