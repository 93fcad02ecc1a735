"""A lease while its holder works: a thread renews it, and the holder renews it before every change that needs it.

A lease is short, so that a killed process delays others for minutes only; the thread renews it several times before it
expires.  A holder that stood still for longer (a laptop that slept) may have lost its lease to another one, and then
changes nothing more (rule: lost-lease-changes-nothing).

A killed process does not release its lease.  If the process is provably dead, others treat its lease as free; if not,
the lease expires (rule: dead-holders-bar-nobody).
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread

from icekeeper.errors import LeaseLost, StorageError
from icekeeper.machine.clock import Clock
from icekeeper.state.leases import PROCESS_MARK, Lease, LeaseStore

log = logging.getLogger(__name__)

# As many renewals may fail in a row before the lease expires.
_BEATS_PER_LEASE = 6
_PROC = Path("/proc")
# Field 22 of /proc/PID/stat is the start time (proc(5)); here fields are counted behind the program's name.
_START_FIELD = 22 - 3


class HeldLease:
    """A lease that this process holds; threads may share it."""

    def __init__(self, leases: LeaseStore, lease: Lease, ttl_ms: int, clock: Clock) -> None:
        self._leases, self._lease, self._ttl_ms, self._clock = leases, lease, ttl_ms, clock
        self._lock = Lock()
        self._lost: LeaseLost | None = None

    @property
    def is_lost(self) -> bool:
        """Whether a renewal found that another run has taken it."""
        return self._lost is not None

    @property
    def beat_s(self) -> float:
        """Seconds between two renewals by :func:`kept_alive`."""
        return self._ttl_ms / 1000 / _BEATS_PER_LEASE

    def require(self) -> None:
        """Renew the lease, before something that only its holder may do.

        Raises:
            LeaseLost: another run has taken it; a lost lease stays lost.
            StorageError: it cannot be renewed, so its holder is unknown.
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
        """Release the lease; a failure is only logged, because the lease expires."""
        try:
            self._leases.release(self._lease)
        except StorageError as error:
            log.warning("the lease on %s could not be given back: %s", self._lease.name or self._lease.key, error)


@contextmanager
def kept_alive(held: HeldLease) -> Iterator[HeldLease]:
    """Renew a lease from a thread while the block runs, and release it at the end."""
    is_done = Event()

    def beat() -> None:
        while not is_done.wait(held.beat_s) and not held.is_lost:
            try:
                held.require()
            except (LeaseLost, StorageError) as error:  # the next require() raises it again
                log.warning("a lease could not be prolonged: %s", error)

    heart = Thread(target=beat, name="icekeeper-lease", daemon=True)
    heart.start()
    try:
        yield held
    finally:
        is_done.set()
        heart.join()
        held.give_back()


def holder_name(command: str, run_id: str) -> str:
    """A unique name of this process as a holder: ``icekeeper maintain on HOST (process 12, run 0f3a9c1d)``.

    On Linux it ends with a mark by which :func:`has_died` recognises that the process is dead.
    """
    name = f"{command} on {platform.node() or 'this machine'} (process {os.getpid()}, run {run_id[:8]})"
    place, start = _place(), _start(os.getpid())
    return name if place is None or start is None else f"{name} [{place}.{start}]"


def has_died(holder: str) -> bool:
    """Whether a holder is a process of this boot and PID namespace that no longer runs.

    Another process that has its number by now started at a different time.  Of processes in other namespaces or on
    other machines nothing is known, because containers share host names and process numbers.
    """
    found = PROCESS_MARK.search(holder)
    if found is None or found["place"] != _place():
        return False
    pid = int(found["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it runs as another user
        pass
    start = _start(pid)
    return start is not None and start != found["start"]


def of_the_living(lease: Lease | None) -> Lease | None:
    """The lease that a store has found; ``None`` if its holder has died."""
    return None if lease is None or has_died(lease.holder) else lease


def _place() -> str | None:
    """A digest of this boot and of the process's PID and time namespaces; ``None``: unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        pids = os.readlink(_PROC / "self/ns/pid")
        # Kernels before 5.6 have no time namespaces.
        times = os.readlink(_PROC / "self/ns/time") if os.path.lexists(_PROC / "self/ns/time") else ""
        is_ours = os.readlink(_PROC / "self") == str(os.getpid())  # else /proc is mounted from another namespace
    except OSError:
        return None
    return sha256(f"{boot} {pids} {times}".encode()).hexdigest()[:16] if boot and is_ours else None


def _start(pid: int) -> str | None:
    """When a process started, in ticks since the boot; ``None``: unknown."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return fields[_START_FIELD] if len(fields) > _START_FIELD else None
