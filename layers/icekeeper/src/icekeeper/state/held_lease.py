"""A lease while its holder works: prolonged by a thread, and asked for again before whatever must not be done without.

It is short, so that a process that was killed bars nobody for more than minutes; the thread renews it several times
before it runs out.  A holder that stood still for longer (a laptop that slept) may find that another one has taken it,
and from then on does nothing more (rule: lost-lease-changes-nothing).

A process that is killed gives nothing back.  Where it can be proven to be dead, its lease is gone for whoever looks;
elsewhere the lease runs out (rule: dead-holders-bar-nobody).
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

# So many renewals may fail in a row before the lease runs out.
_BEATS_PER_LEASE = 6
_PROC = Path("/proc")
# Fields of /proc/PID/stat behind the name of the program (proc(5)): the 22nd is when the process began.
_START_FIELD = 22 - 3


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


def holder_name(command: str, run_id: str) -> str:
    """Who holds a lease, unlike any other; where the system tells it, with what shows that this process is dead.

    For people it begins ``icekeeper maintain on HOST (process 12, run 0f3a9c1d)``.
    """
    name = f"{command} on {platform.node() or 'this machine'} (process {os.getpid()}, run {run_id[:8]})"
    place, start = _place(), _start(os.getpid())
    return name if place is None or start is None else f"{name} [{place}.{start}]"


def has_died(holder: str) -> bool:
    """Whether a holder is a process of this boot and PID namespace that is not there any more.

    Its number may be another process' by now, which began at another time.  Containers share host names and numbers, so
    that nothing is known of a process in another namespace, nor of one on another machine.
    """
    found = PROCESS_MARK.search(holder)
    if found is None or found["place"] != _place():
        return False
    pid = int(found["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it is there, and another user's
        pass
    start = _start(pid)
    return start is not None and start != found["start"]


def of_the_living(lease: Lease | None) -> Lease | None:
    """The lease that a store has found, ``None`` where its holder has died."""
    return None if lease is None or has_died(lease.holder) else lease


def _place() -> str | None:
    """The boot of this machine, and the namespaces that numbers and times of processes are of; ``None``: not known."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        pids = os.readlink(_PROC / "self/ns/pid")
        # Kernels before 5.6 have no other times than the machine's.
        times = os.readlink(_PROC / "self/ns/time") if os.path.lexists(_PROC / "self/ns/time") else ""
        is_ours = os.readlink(_PROC / "self") == str(os.getpid())  # and not what another namespace has mounted there
    except OSError:
        return None
    return sha256(f"{boot} {pids} {times}".encode()).hexdigest()[:16] if boot and is_ours else None


def _start(pid: int) -> str | None:
    """When a process began, in ticks since the boot; ``None``: not known."""
    try:
        told = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = told.rpartition(")")[2].split()
    return fields[_START_FIELD] if len(fields) > _START_FIELD else None
