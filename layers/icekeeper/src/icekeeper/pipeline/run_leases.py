"""The leases that a run of the state machine holds: one on the fleet, and one on each table while it maintains it.

A scheduled run holds the fleet's lease, so that only one is under way and its limit of concurrent tables holds for the
whole fleet; a run for one table needs none.  A table's lease is taken before its pass is planned and given back after
its report.  Each of these functions raises StorageError when the state store does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from icekeeper.errors import LeaseLost, StorageError
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item
from icekeeper.policy import Policy
from icekeeper.state.leases import Lease

__all__ = [
    "FLEET_LEASE",
    "acquire_fleet_lease",
    "acquire_table_lease",
    "fleet_lease_released_on_failure",
    "release_fleet_lease",
    "release_table_lease",
    "renew_table_lease",
    "table_lease_ttl_ms",
]

FLEET_LEASE = "fleet"
# A run that was aborted bars the next ones for this long, or for as long as its last step could have taken.
_FLEET_TTL_MS = 3 * 60 * 60 * 1000
# A task may have to wait for its Glue job to get capacity before the job's own time begins.
_SLACK_MS = 30 * 60 * 1000
# No lease lasts longer, whatever job_timeout_s was set to: an aborted run must not bar others for years.
_LONGEST_MS = 12 * 60 * 60 * 1000


def acquire_fleet_lease(deployment: Deployment, run_id: str) -> Lease:
    """Take the fleet's lease; a repeat by the same run has it already.

    Raises:
        LeaseHeld: another scheduled run is under way.
    """
    return deployment.state.leases.acquire(FLEET_LEASE, run_id, now_ms=deployment.clock(), ttl_ms=_FLEET_TTL_MS)


@contextmanager
def fleet_lease_released_on_failure(deployment: Deployment, run_id: str) -> Iterator[None]:
    """Give the fleet's lease back when the block raises."""
    try:
        yield
    except BaseException:
        with suppress(StorageError):  # what is not given back runs out
            release_fleet_lease(deployment, run_id)
        raise


def release_fleet_lease(deployment: Deployment, run_id: str) -> None:
    """Give the fleet's lease back, if this run has it."""
    deployment.state.leases.release(_of_run(FLEET_LEASE, run_id))


def table_lease_ttl_ms(policy: Policy | None = None) -> int:
    """How many milliseconds a table's lease lasts unless renewed: a job's time limit times its attempts, and slack."""
    chosen = policy or Policy()
    return min(_LONGEST_MS, (1 + chosen.job_retry_limit) * chosen.job_timeout_s * 1000 + _SLACK_MS)


def acquire_table_lease(deployment: Deployment, run_id: str, item: Item) -> Lease:
    """Take a table's lease; a repeat by the same run has it already.

    Raises:
        LeaseHeld: another run maintains the table.
    """
    return deployment.state.leases.acquire(
        item.identity.key, run_id, now_ms=deployment.clock(), ttl_ms=table_lease_ttl_ms(), name=item.table
    )


def renew_table_lease(deployment: Deployment, run_id: str, item: Item, ttl_ms: int) -> Lease:
    """Prolong the table's lease, and the fleet's where this run has it, before the run's next operation begins.

    Raises:
        LeaseLost: another run has taken the table; nothing may be done.
    """
    now_ms, leases = deployment.clock(), deployment.state.leases
    with suppress(LeaseLost):  # a forced run has none on the fleet
        leases.renew(_of_run(FLEET_LEASE, run_id), now_ms=now_ms, ttl_ms=max(_FLEET_TTL_MS, ttl_ms))
    return leases.renew(_of_run(item.identity.key, run_id, item.table), now_ms=now_ms, ttl_ms=ttl_ms)


def release_table_lease(deployment: Deployment, run_id: str, item: Item) -> bool:
    """Give a table's lease back; false when this run no longer had it."""
    return deployment.state.leases.release(_of_run(item.identity.key, run_id))


def _of_run(key: str, run_id: str, name: str = "") -> Lease:
    """A lease that the run took in another process, of which its end is not known here."""
    return Lease(key=key, holder=run_id, expires_ms=0, name=name)
