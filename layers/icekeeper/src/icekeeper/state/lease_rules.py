"""Who may take or prolong a lease, by the one that a store has found; pure, and the same in every store."""

from __future__ import annotations

from dataclasses import replace

from icekeeper.state.lease_errors import lease_held, lease_lost
from icekeeper.state.leases import Lease

__all__ = ["renewed_lease", "taken_lease"]


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
        raise lease_lost(lease, None if found is None else found.holder)
    return _longer(replace(found, expires_ms=expires_ms), found)


def _longer(one: Lease, other: Lease) -> Lease:
    return max(one, other, key=lambda lease: lease.expires_ms)
