"""Pauses: no operation runs on a table until a time, whoever starts it.

A pause is the table property ``icekeeper.paused_until``, so it holds for every deployment that maintains the table, and
ends by itself.  It is set and removed under the table's lease: when the command returns, no pass runs any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from icekeeper.administration.settings import ResolvePolicy, set_settings, unset_settings
from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.errors import LeaseHeld, PolicyError
from icekeeper.machine.clock import iso_utc
from icekeeper.pass_context.stores import TableHandle, user_name
from icekeeper.policy.layers import PAUSED_UNTIL, TABLE_PREFIX
from icekeeper.state.leases import holder_name

# A commit of properties takes seconds; after a kill the lease ends soon.
_LEASE_MS = 2 * 60 * 1000


def pause(handle: TableHandle, until_ms: int, resolve_policy: ResolvePolicy, reason: str = "") -> str:
    """Pause a table until ``until_ms`` (epoch milliseconds), and return the time as text; a later call replaces it.

    Raises:
        PolicyError: no such table, or the time is over; nothing was changed.
        LeaseHeld: a pass runs; nothing was changed.
        TableUnsupported: this version must not write the table.
        StorageError: catalog or state store failed.
    """
    until = iso_utc(until_ms)
    if until_ms <= handle.clock():
        raise PolicyError(f"the table cannot be paused until {until}: that is over; name a later time")
    with _leased(handle) as loaded:
        set_settings(handle, {PAUSED_UNTIL: until}, resolve_policy)
        why = f": {reason}" if reason else ""
        handle.journal(loaded, f"pause: {user_name()} paused the table until {until}{why}")
    return until


def resume(handle: TableHandle, resolve_policy: ResolvePolicy) -> str | None:
    """End a pause, and return the time until which it would have held; ``None``: the table has no pause of its own.

    Raises:
        PolicyError: no such table.
        LeaseHeld: a pass runs; nothing was changed.
        TableUnsupported: this version must not write the table.
        StorageError: catalog or state store failed.
    """
    with _leased(handle) as loaded:
        until = loaded.metadata.properties.get(f"{TABLE_PREFIX}{PAUSED_UNTIL}")
        if until is not None:
            unset_settings(handle, [PAUSED_UNTIL], resolve_policy)
            handle.journal(loaded, f"resume: {user_name()} ended the pause until {until}")
    return until


@contextmanager
def _leased(handle: TableHandle) -> Iterator[LoadedTable]:
    """Hold the table's lease during the block."""
    loaded, leases = handle.load(), handle.state.leases
    holder, key = holder_name("icekeeper pause", str(uuid.uuid4())), identity_of(handle.catalog, loaded).lease_key
    try:
        lease = leases.acquire(key, holder, now_ms=handle.clock(), ttl_ms=_LEASE_MS, name=str(handle.table))
    except LeaseHeld as held:
        raise LeaseHeld(f"{held}; nothing was changed; repeat this when the pass has ended") from held
    try:
        yield handle.load()
    finally:
        leases.release(lease)
