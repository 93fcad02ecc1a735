"""Leases, slots and the mark of a scheduled detection (pure).

A lease says which run may maintain a table (rule: one-lease-holder).  It is a time stamp that is written conditionally:
a run that finds it free or expired writes its own, and of several runs only one succeeds.  The store's expiry of items
(DynamoDB's TTL, which may be days late) only removes old items; it never decides who holds a lease.

A slot is a lease without a table; slots limit how many tables are maintained at once over all runs that share a state
(``max_concurrent_jobs``).  Each pass of a scheduled run takes one, so the limit also holds for overlapping runs and
processes (rule: overlapping-runs-share-slots).  The slot of a killed process expires.  A pass that a person starts
takes no slot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Protocol

from icekeeper.errors import LeaseHeld, LeaseLost
from icekeeper.machine.clock import HOUR_MS, iso_utc

LONGEST_LEASE_MS = 31 * 24 * HOUR_MS
"""A lease with more time left was taken by a clock that was ahead, and is ignored
(rule: future-records-bar-nothing)."""
PROCESS_MARK = re.compile(r"\(process (?P<pid>\d+), run [^)]*\)(?P<mark> \[(?P<place>[0-9a-f]{16})\.(?P<start>\d+)\])$")
"""The end of a process's name as a holder: where it runs, and when it started."""


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
        """Whether it keeps others out at ``now_ms``: it has not expired, and no clock that was ahead wrote it."""
        return now_ms < self.expires_ms <= now_ms + LONGEST_LEASE_MS

    @property
    def who(self) -> str:
        """The holder, for people."""
        found = PROCESS_MARK.search(self.holder)
        return self.holder if found is None else self.holder[: found.start("mark")]


class LeaseStore(Protocol):
    """Every method is atomic, also across machines; each raises StorageError when the store fails.

    ``now_ms`` is the caller's time.  A store with a clock of its own corrects it, so that all users share one clock.
    """

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "") -> Lease:
        """Take a lease that is free or expired; if ``holder`` has it already, prolong it (never shorten it).

        Raises:
            LeaseHeld: another holder has it; the message says who and until when.
        """
        ...

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        """Prolong a lease, also one that has expired, unless another holder took it.

        Raises:
            LeaseLost: another holder has it, or it was released.
        """
        ...

    def release(self, lease: Lease) -> bool:
        """Give a lease up; false if its holder no longer had it."""
        ...

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        """The lease that holds at ``now_ms``; ``None`` if there is none."""
        ...


def taken_lease(found: Lease | None, wanted: Lease, *, now_ms: int) -> Lease:
    """The lease to write for :meth:`LeaseStore.acquire`; ``found`` is the stored one.

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
    """The lease to write for :meth:`LeaseStore.renew`; ``found`` is the stored one.

    Raises:
        LeaseLost: another holder has it, or it was released.
    """
    if found is None or found.holder != lease.holder:
        now = "it was released" if found is None else f"{found.who} took it"
        raise LeaseLost(f"the lease of {lease.who} on {lease.name or lease.key} is lost: {now}")
    return _longer(replace(found, expires_ms=expires_ms), found)


def _longer(wanted: Lease, stored: Lease) -> Lease:
    if stored.expires_ms > wanted.expires_ms + LONGEST_LEASE_MS:  # a clock that was ahead wrote it
        return wanted
    return max(wanted, stored, key=lambda lease: lease.expires_ms)


def lease_held(lease: Lease) -> LeaseHeld:
    """The error for a run that wants a lease of another holder."""
    return LeaseHeld(f"{lease.name or lease.key} is leased by {lease.who} until {iso_utc(lease.expires_ms)}")


SEEN_FOR_HOURS = 25
"""How long after a detection the next one is expected; enough for a schedule that runs once a day."""
_KEY = "schedule"


def note_detection(leases: LeaseStore, *, now_ms: int, interval_ms: int = 0) -> None:
    """Record that a scheduled detection ran: requests are served.  The mark is a lease that all detections share.

    ``interval_ms`` is the time until the next detection, if known.

    Raises:
        StorageError: the state does not answer.
    """
    ttl_ms = min(LONGEST_LEASE_MS, max(SEEN_FOR_HOURS * HOUR_MS, 2 * interval_ms))
    leases.acquire(_KEY, _KEY, now_ms=now_ms, ttl_ms=ttl_ms)


def is_scheduled(leases: LeaseStore, *, now_ms: int) -> bool:
    """Whether a detection has left a mark that has not expired.

    Raises:
        StorageError: the state does not answer.
    """
    return leases.current(_KEY, now_ms=now_ms) is not None


def slot_keys(limit: int) -> list[str]:
    """The lease keys of ``limit`` slots."""
    return [f"slot-{number}" for number in range(1, limit + 1)]


def held_slot(leases: LeaseStore, holder: str, limit: int, *, now_ms: int) -> Lease | None:
    """The slot of a holder; ``None`` if it has none.

    Raises:
        StorageError: the state does not answer.
    """
    found = (leases.current(key, now_ms=now_ms) for key in slot_keys(limit))
    return next((lease for lease in found if lease is not None and lease.holder == holder), None)


def taken_slots(leases: LeaseStore, limit: int, *, now_ms: int) -> int:
    """How many slots are taken.

    Raises:
        StorageError: the state does not answer.
    """
    return sum(leases.current(key, now_ms=now_ms) is not None for key in slot_keys(limit))


def take_slot(leases: LeaseStore, holder: str, limit: int, *, now_ms: int, ttl_ms: int) -> Lease:
    """Take a free slot; if the holder has one already, prolong it.

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
