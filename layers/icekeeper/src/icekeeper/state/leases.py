"""Leases: whose turn it is to maintain a table (rule 112).

A lease is a conditional time stamp: whoever finds it free or run out writes its own, and only one of several can.  The
store's own expiry of items (DynamoDB's TTL comes up to days late) only tidies up and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Lease", "LeaseStore"]


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
