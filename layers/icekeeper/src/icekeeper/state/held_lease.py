"""A lease while its holder works: prolonged by a thread, and asked for again before whatever must not be done without.

It is short, so that a process that was killed bars nobody for more than minutes; the thread renews it several times
before it runs out.  A holder that stood still for longer (a laptop that slept) may find that another one has taken it,
and from then on does nothing more (rule 70).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

from icekeeper.clock import Clock
from icekeeper.errors import LeaseLost, StorageError
from icekeeper.state.leases import Lease, LeaseStore

__all__ = ["HeldLease", "kept_alive"]

log = logging.getLogger(__name__)

# So many renewals may fail in a row before the lease runs out.
_BEATS_PER_LEASE = 6


class HeldLease:
    """One lease that this process holds; threads may share it."""

    def __init__(self, leases: LeaseStore, lease: Lease, ttl_ms: int, clock: Clock) -> None:
        self._leases, self._lease, self._ttl_ms, self._clock = leases, lease, ttl_ms, clock
        self._lock = Lock()
        self._lost: LeaseLost | None = None

    @property
    def is_lost(self) -> bool:
        """Whether another holder was seen to have it."""
        return self._lost is not None

    @property
    def beat_s(self) -> float:
        """Seconds between two renewals by :func:`kept_alive`."""
        return self._ttl_ms / 1000 / _BEATS_PER_LEASE

    def require(self) -> None:
        """Prolong the lease, before something that only its holder may do.

        Raises:
            LeaseLost: another one has taken it; what is lost stays lost.
            StorageError: it cannot be prolonged, so nobody knows whose it is.
        """
        with self._lock:
            if self._lost is not None:
                raise self._lost
            try:
                self._lease = self._leases.renew(self._lease, now_ms=self._clock(), ttl_ms=self._ttl_ms)
            except LeaseLost as lost:
                self._lost = lost
                raise

    def give_back(self) -> None:
        """Release the lease; what cannot be released runs out by itself."""
        try:
            self._leases.release(self._lease)
        except StorageError as error:
            log.warning("the lease on %s could not be given back: %s", self._lease.name or self._lease.key, error)


@contextmanager
def kept_alive(held: HeldLease) -> Iterator[HeldLease]:
    """Prolong a lease from a thread of its own while the block runs, and give it back at the end."""
    is_done = Event()

    def beat() -> None:
        while not is_done.wait(held.beat_s) and not held.is_lost:
            try:
                held.require()
            except (LeaseLost, StorageError) as error:  # found out again by whoever needs the lease
                log.warning("a lease could not be prolonged: %s", error)

    heart = Thread(target=beat, name="icekeeper-lease", daemon=True)
    heart.start()
    try:
        yield held
    finally:
        is_done.set()
        heart.join()
        held.give_back()
