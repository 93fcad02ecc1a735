"""Whose turn it is to maintain the fleet: one scheduled run at a time, so that its concurrency holds for all tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from icekeeper.errors import LeaseLost, StorageError
from icekeeper.pipeline.deployment import Deployment
from icekeeper.state.leases import Lease

__all__ = ["FLEET_LEASE", "fleet_given_back_on_failure", "give_back_fleet", "prolong_fleet", "take_fleet"]

FLEET_LEASE = "fleet"
# A run that was stopped bars the next ones for this long, or as long as its last step could have taken.
_TTL_MS = 3 * 60 * 60 * 1000


def take_fleet(deployment: Deployment, run_id: str) -> Lease:
    """Take the fleet's lease; a repeat by the same run has it already.

    Raises:
        LeaseHeld: another scheduled run is under way.
        StorageError: the state store does not answer.
    """
    return deployment.state.leases.acquire(FLEET_LEASE, run_id, now_ms=deployment.clock(), ttl_ms=_TTL_MS)


def prolong_fleet(deployment: Deployment, run_id: str, ttl_ms: int) -> None:
    """Keep the lease while a step of the run may take ``ttl_ms``; nothing happens for a run that has none (forced).

    Raises:
        StorageError: the state store does not answer.
    """
    lease = Lease(key=FLEET_LEASE, holder=run_id, expires_ms=0)
    try:
        deployment.state.leases.renew(lease, now_ms=deployment.clock(), ttl_ms=max(_TTL_MS, ttl_ms))
    except LeaseLost:
        return


@contextmanager
def fleet_given_back_on_failure(deployment: Deployment, run_id: str) -> Iterator[None]:
    """Whatever ends this block but its own end, a run that failed in it does not keep the fleet."""
    try:
        yield
    except BaseException:
        with suppress(StorageError):  # what is not given back runs out
            give_back_fleet(deployment, run_id)
        raise


def give_back_fleet(deployment: Deployment, run_id: str) -> None:
    """Give the lease back, if this run has it.

    Raises:
        StorageError: the state store does not answer; the lease runs out by itself.
    """
    deployment.state.leases.release(Lease(key=FLEET_LEASE, holder=run_id, expires_ms=0))
