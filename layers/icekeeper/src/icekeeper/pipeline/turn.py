"""Whose turn it is: a table's lease, taken before its pass is planned and given back after its report."""

from __future__ import annotations

from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.fleet_turn import prolong_fleet
from icekeeper.policy import Policy
from icekeeper.state.leases import Lease

__all__ = ["give_back_turn", "lease_ttl_ms", "resume_turn", "take_turn"]

# A task may have to wait for its Glue job to get capacity before the job's own time begins.
_SLACK_MS = 30 * 60 * 1000
# No execution lasts longer, whatever somebody asked for with --set: who is stopped then bars nobody for years.
_LONGEST_MS = 12 * 60 * 60 * 1000


def lease_ttl_ms(policy: Policy | None = None) -> int:
    """How long a lease lasts unless renewed: one job's time, all its attempts, and some slack."""
    chosen = policy or Policy()
    return min(_LONGEST_MS, (1 + chosen.job_retry_limit) * chosen.job_timeout_s * 1000 + _SLACK_MS)


def take_turn(deployment: Deployment, run_id: str, item: Item) -> Lease:
    """Take the lease; a repeat by the same run has it already.

    Raises:
        LeaseHeld: another run maintains the table.
        StorageError: the state store does not answer.
    """
    return deployment.state.leases.acquire(
        item.identity.key, run_id, now_ms=deployment.clock(), ttl_ms=lease_ttl_ms(), name=item.table
    )


def resume_turn(deployment: Deployment, run_id: str, item: Item, ttl_ms: int) -> Lease:
    """Prolong the lease that this run took, before its next operation begins.

    Raises:
        LeaseLost: another run has taken it; nothing may be done.
        StorageError: the state store does not answer.
    """
    prolong_fleet(deployment, run_id, ttl_ms)
    ours = Lease(key=item.identity.key, holder=run_id, expires_ms=0, name=item.table)
    return deployment.state.leases.renew(ours, now_ms=deployment.clock(), ttl_ms=ttl_ms)


def give_back_turn(deployment: Deployment, run_id: str, item: Item) -> bool:
    """Release the lease; false when it was not this run's any more.

    Raises:
        StorageError: the state store does not answer; the lease runs out by itself.
    """
    return deployment.state.leases.release(Lease(key=item.identity.key, holder=run_id, expires_ms=0))
