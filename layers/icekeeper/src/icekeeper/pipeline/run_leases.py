"""What a run of the state machine holds while a function or job works on a table: the table's lease and a slot.

Runs may overlap.  Each function and job takes the lease when it begins with a table and releases it when it is done, so
that no table is held while its run waits for something else.  Slots keep the limit of concurrent tables over all
scheduled runs. A run over one requested table takes no slot; a job takes none either, because it limits its tables
itself.  Each of these functions raises StorageError if the state does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from icekeeper.errors import FleetBusy, LeaseHeld, StorageError, TableBusy
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item
from icekeeper.state.leases import HeldLease, Lease, kept_alive, take_slot

_LEASE_MS = 20 * 60 * 1000
"""A function lives for 15 minutes at most; a thread of a job extends the lease several times before it expires."""


@contextmanager
def held_table(deployment: Deployment, run_id: str, item: Item, *, in_job: bool = False) -> Iterator[HeldLease]:
    """Hold the table's lease, and a slot if the table needs one, while the block runs.

    A retry by the same run finds its own lease and slot: the first attempt at the step was killed.

    Raises:
        LeaseHeld: another run maintains the table; :class:`TableBusy` if this run is to wait for it.
        FleetBusy: every slot is taken.
    """
    leases, now_ms = deployment.state.leases, deployment.clock()
    slot = None
    if item.is_scheduled and not in_job:
        try:
            holder = f"{run_id} for {item.identity.lease_key}"  # a run has a slot for each of its tables
            slot = take_slot(leases, holder, deployment.slots, now_ms=now_ms, ttl_ms=_LEASE_MS)
        except LeaseHeld as taken:
            raise FleetBusy(f"{item.table} has to wait: {taken}") from taken
    try:
        try:
            lease = leases.acquire(
                item.identity.lease_key,
                run_id,
                now_ms=now_ms,
                ttl_ms=_LEASE_MS,
                name=item.table,
                is_likely_free=slot is not None,
            )
        except LeaseHeld as other:
            raise _or_busy(other, item) from other
        with kept_alive(HeldLease(leases, lease, _LEASE_MS, deployment.clock)) as held:
            yield held
    finally:
        if slot is not None:
            with suppress(StorageError):  # the slot expires by itself
                leases.release(slot)


def require_free(deployment: Deployment, run_id: str, item: Item) -> None:
    """Raise LeaseHeld, or TableBusy if this run is to wait, if another run maintains the table now."""
    lease = deployment.state.leases.current(item.identity.lease_key, now_ms=deployment.clock())
    if lease is not None and lease.holder != run_id:
        raise _or_busy(LeaseHeld(f"{item.table} is maintained by {lease.who}"), item)


def give_back(deployment: Deployment, run_id: str, item: Item) -> None:
    """Release the table's lease if this run has it: a thread that hangs then commits and deletes nothing more
    (rule: lost-lease-changes-nothing)."""
    deployment.state.leases.release(Lease(key=item.identity.lease_key, holder=run_id, expires_ms=0))


def _or_busy(held: LeaseHeld, item: Item) -> LeaseHeld:
    return TableBusy(str(held)) if item.wait else held
