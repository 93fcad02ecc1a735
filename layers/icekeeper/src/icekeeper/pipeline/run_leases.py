"""What a run of the state machine holds while it maintains a table: the table's lease, and for a scheduled run a slot.

Runs may overlap.  A table's lease is taken before its pass is planned and given back after its report, so that each
table is maintained by one of them; slots keep the limit of concurrent tables over all of them.  A run for one table,
which somebody asked for, takes no slot.  Each of these functions raises StorageError when the state does not answer.
"""

from __future__ import annotations

from contextlib import suppress

from icekeeper.errors import FleetBusy, LeaseHeld, LeaseLost
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item
from icekeeper.policy import Policy
from icekeeper.state.leases import HeldLease, Lease, held_slot, take_slot

# Before a Glue job's own time begins, its start may be throttled and find no capacity, as often as the state machine
# tries again (34 minutes), and then wait for Spark and in Glue's queue: 15 minutes
# (platform: vague-lambda-glue-failures).
_SLACK_MS = 60 * 60 * 1000
# No lease lasts longer, whatever job_timeout_s was set to: an aborted run must not bar others for years.
_LONGEST_MS = 12 * 60 * 60 * 1000


def table_lease_ttl_ms(policy: Policy | None = None) -> int:
    """How many milliseconds a table's lease lasts unless renewed: a job's time limit times its attempts, and slack."""
    chosen = policy or Policy()
    return min(_LONGEST_MS, (1 + chosen.job_retry_limit) * chosen.job_timeout_s * 1000 + _SLACK_MS)


def acquire_table_lease(deployment: Deployment, run_id: str, item: Item, *, in_wave: bool = False) -> Lease:
    """Take a table's lease, and a slot where the table counts; a repeat by the same run has both already.

    The tables of a wave take none: the wave is one job, and bounds by itself how many of them are at work.

    Raises:
        LeaseHeld: another run maintains the table.
        FleetBusy: every slot is taken; the table's lease was not touched.
    """
    leases, now_ms, ttl_ms = deployment.state.leases, deployment.clock(), table_lease_ttl_ms()
    slot = None
    if item.is_scheduled and not in_wave:
        holder = _slot_holder(run_id, item)
        try:
            slot = take_slot(leases, holder, deployment.slots, now_ms=now_ms, ttl_ms=ttl_ms)
        except LeaseHeld as taken:
            raise FleetBusy(f"{item.table} has to wait: {taken}") from taken
    try:
        lease = leases.acquire(item.identity.lease_key, run_id, now_ms=now_ms, ttl_ms=ttl_ms, name=item.table)
    except LeaseHeld:
        if slot is not None:
            leases.release(slot)
        raise
    if deployment.kept is not None:
        deployment.kept.lease, deployment.kept.slot = HeldLease(leases, lease, ttl_ms, deployment.clock), slot
    return lease


def held_table_lease(deployment: Deployment, run_id: str, item: Item, ttl_ms: int) -> HeldLease:
    """The table's lease for the run's next operation.

    It is prolonged now, with the slot, unless this very call has taken both, which hold for longer than any call.

    Raises:
        LeaseLost: another run has taken the table; nothing may be done.
    """
    if deployment.kept is not None and deployment.kept.lease is not None:
        return deployment.kept.lease
    lease = renew_table_lease(deployment, run_id, item, ttl_ms)
    return HeldLease(deployment.state.leases, lease, ttl_ms, deployment.clock)


def renew_table_lease(deployment: Deployment, run_id: str, item: Item, ttl_ms: int) -> Lease:
    """Prolong the table's lease, and its slot where it has one, before the run's next operation begins.

    Raises:
        LeaseLost: another run has taken the table; nothing may be done.
    """
    now_ms, leases = deployment.clock(), deployment.state.leases
    slot = _slot(deployment, run_id, item)
    if slot is not None:
        with suppress(LeaseLost):  # too many at once for a while do no harm
            leases.renew(slot, now_ms=now_ms, ttl_ms=ttl_ms)
    wanted = Lease(key=item.identity.lease_key, holder=run_id, expires_ms=0, name=item.table)
    return leases.renew(wanted, now_ms=now_ms, ttl_ms=ttl_ms)


def release_table_lease(deployment: Deployment, run_id: str, item: Item) -> bool:
    """Give a table's lease and slot back; false when this run no longer had the lease."""
    leases = deployment.state.leases
    slot = _slot(deployment, run_id, item)
    if slot is not None:
        leases.release(slot)
    return leases.release(Lease(key=item.identity.lease_key, holder=run_id, expires_ms=0))


def _slot(deployment: Deployment, run_id: str, item: Item) -> Lease | None:
    """The slot that the run took for a table, here or in another process."""
    if not item.is_scheduled:
        return None
    if deployment.kept is not None and deployment.kept.slot is not None:
        return deployment.kept.slot
    holder = _slot_holder(run_id, item)
    return held_slot(deployment.state.leases, holder, deployment.slots, now_ms=deployment.clock())


def _slot_holder(run_id: str, item: Item) -> str:
    """One run has a slot for each of its tables."""
    return f"{run_id} for {item.identity.lease_key}"
