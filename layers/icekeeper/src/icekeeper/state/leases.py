"""Leases, slots and the mark of a scheduled detection.

A lease says which run may maintain a table (rule: one-lease-holder).  It is a time stamp that is written conditionally:
a run that finds it free or expired writes its own, and of several runs only one succeeds.  The store's expiry of items
(DynamoDB's TTL, which may be days late) only removes old items; it never decides who holds a lease.

A lease is short, so that a killed process delays others for minutes only.  A thread of its holder renews it several
times before it expires, and the holder renews it before every change that needs it.  A holder that was suspended for
longer (a laptop that slept) may have lost its lease to another holder, and then changes nothing more
(rule: lost-lease-changes-nothing).

A killed process does not release its lease.  If the process is provably dead, others treat its lease as free; if not,
the lease expires (rule: one-lease-holder).

A slot is a lease without a table; slots limit how many tables are maintained at once over all runs that share a state
(``max_concurrent_jobs``).  Each pass of a scheduled run takes a slot, so the limit also holds for overlapping runs and
processes.  The slot of a killed process expires.  A pass that a person starts takes no slot.

Every function and method that uses the state raises StorageError when the state does not answer.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread
from zlib import crc32

from icekeeper.errors import LeaseHeld, LeaseLost, StorageError
from icekeeper.machine.clock import HOUR_MS, Clock, iso_utc
from icekeeper.state.item_layout import json_text, named_key
from icekeeper.state.items import REMOVED, Item, Records

log = logging.getLogger(__name__)

# Two for each of the renewals by ``kept_alive``, so that each of them extends the lease.
_CHECKS_PER_LEASE = 12
LONGEST_LEASE_MS = 31 * 24 * HOUR_MS
"""A lease with more time left was taken with a clock that was ahead, and is ignored."""
PROCESS_MARK = re.compile(r"\(process (?P<pid>\d+), run [^)]*\)(?P<mark> \[(?P<place>[0-9a-f]{16})\.(?P<start>\d+)\])$")
"""The end of a process's name as a holder: where it runs, and when it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """``key`` is what is leased: a table's :attr:`TableIdentity.lease_key`, or a name such as that of a slot.

    ``expires_ms`` is the first epoch millisecond at which others may take it.
    """

    key: str
    holder: str
    expires_ms: int
    name: str = ""
    """The table's name as its holder knows it, for messages."""

    def holds_at(self, now_ms: int) -> bool:
        """Whether the lease is valid at ``now_ms``: it has not expired, and was not written with a clock ahead."""
        return now_ms < self.expires_ms <= now_ms + LONGEST_LEASE_MS

    @property
    def who(self) -> str:
        """The holder, for people."""
        found = PROCESS_MARK.search(self.holder)
        return self.holder if found is None else self.holder[: found.start("mark")]


# A lease that expired and was not taken can be renewed for at least this long.
_KEPT_MS = 24 * HOUR_MS
_SORT_KEY = "lease"
_SLOTS = "slots"
_SLOT = "slot-"


def _item_key(key: str) -> tuple[str, str]:
    """The partition and sort key of a lease; all slots share a partition, so that one request reads them."""
    return (named_key("lease", _SLOTS), key) if key.startswith(_SLOT) else (named_key("lease", key), _SORT_KEY)


class LeaseStore(Records):
    """An item per lease.  Every method is atomic, also across machines.

    ``now_ms`` is the caller's time.  A DynamoDB table corrects it to DynamoDB's clock (the date of the response with
    the item), so that all users share one clock: a machine whose clock is ahead would take leases of others too early.
    """

    def acquire(
        self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "", is_likely_free: bool = False
    ) -> Lease:
        """Take a lease that is free or expired; if ``holder`` has it already, extend it (never shorten it).

        ``is_likely_free`` saves a request if nobody has it; an earlier request must have shown the table's clock.

        Raises:
            LeaseHeld: another holder has it; the message says who and until when.
        """
        taken = wanted = Lease(key=key, holder=holder, expires_ms=0, name=name)

        def decide(item: Item | None) -> Item:
            nonlocal taken
            its_now_ms = self.table.to_table_clock(now_ms)
            taken = _taken(_found(key, item), replace(wanted, expires_ms=its_now_ms + ttl_ms), now_ms=its_now_ms)
            return {"holder": taken.holder, "name": taken.name or None, **self._times(taken.expires_ms)}

        self.table.change(*_item_key(key), decide, is_likely_new=is_likely_free)
        return taken

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        """Extend a lease, even an expired lease, unless another holder took it.

        A lease that was extended within the last twelfth of ``ttl_ms`` is only checked: a file system takes much longer
        to write than to read, and each batch of deletions renews.

        Raises:
            LeaseLost: another holder has it, or it was released.
        """
        # One request, without a read: the response to ``acquire`` has shown DynamoDB's time already.
        expires_ms = self.table.to_table_clock(now_ms) + ttl_ms
        there = self.table.set_if(
            *_item_key(lease.key),
            self._times(expires_ms),
            equal={"holder": lease.holder},
            # Never shortened, see _taken.
            outside={"until_ms": (expires_ms - ttl_ms // _CHECKS_PER_LEASE, expires_ms + LONGEST_LEASE_MS)},
        )
        found = _found(lease.key, there)
        if found is None or found.holder != lease.holder:
            now = "it was released" if found is None else f"{found.who} took it"
            raise LeaseLost(f"the lease of {lease.who} on {lease.name or lease.key} is lost: {now}")
        return found

    def release(self, lease: Lease) -> bool:
        """Release a lease; false if its holder no longer had it."""

        def decide(item: Item | None) -> Item | None:
            return REMOVED if item is not None and item["holder"] == lease.holder else None

        return self.table.change(*_item_key(lease.key), decide)

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        """The lease that holds at ``now_ms``; ``None`` if there is none."""
        found = _found(key, self.table.get(*_item_key(key)))
        return found if found is not None and found.holds_at(self.table.to_table_clock(now_ms)) else None

    def slots(self, *, now_ms: int) -> list[Lease]:
        """The slots that are taken at ``now_ms``; one request, however many there are."""
        found = [_found(item["sk"], item) for item in self.table.query(named_key("lease", _SLOTS))]
        its_now_ms = self.table.to_table_clock(now_ms)
        return [lease for lease in found if lease is not None and lease.holds_at(its_now_ms)]

    def _times(self, expires_ms: int) -> Item:
        return {"until_ms": expires_ms, "expires_s": self.table.expires_s(_KEPT_MS, at_least_ms=expires_ms)}


def _found(key: str, item: Item | None) -> Lease | None:
    """The stored lease; ``None`` if there is none, or its holder has died."""
    if item is None:
        return None
    lease = Lease(key=key, holder=item["holder"], expires_ms=item["until_ms"], name=item.get("name", ""))
    return None if has_died(lease.holder) else lease


def _taken(found: Lease | None, wanted: Lease, *, now_ms: int) -> Lease:
    """The lease to write for :meth:`LeaseStore.acquire`; ``found`` is the stored lease.

    Raises:
        LeaseHeld: another holder has it.
    """
    if found is None:
        return wanted
    if found.holder == wanted.holder:
        if found.expires_ms > wanted.expires_ms + LONGEST_LEASE_MS:  # written with a clock that was ahead
            return wanted
        return max(wanted, found, key=lambda lease: lease.expires_ms)
    if found.holds_at(now_ms):
        name = wanted.name or found.name or found.key
        raise LeaseHeld(f"{name} is leased by {found.who} until {iso_utc(found.expires_ms)}")
    return wanted


SEEN_FOR_HOURS = 25
"""How long after a detection the next detection is expected; enough for a schedule that runs once a day."""
_KEY = "schedule"


def note_detection(leases: LeaseStore, *, now_ms: int, interval_ms: int = 0) -> None:
    """Record that a scheduled detection ran, so requests are served.  The mark is a lease that all detections share.

    ``interval_ms`` is the time until the next detection, if known.
    """
    ttl_ms = min(LONGEST_LEASE_MS, max(SEEN_FOR_HOURS * HOUR_MS, 2 * interval_ms))
    leases.acquire(_KEY, _KEY, now_ms=now_ms, ttl_ms=ttl_ms)


def is_scheduled(leases: LeaseStore, *, now_ms: int) -> bool:
    """Whether a detection has left a mark that has not expired."""
    return leases.current(_KEY, now_ms=now_ms) is not None


_LIVE_RUNS = "live-runs"
_LONGEST_RUN_MS = 12 * HOUR_MS
"""The time limit of the state machine; a run that was stopped is forgotten after it."""


def note_live_run(leases: LeaseStore, run_id: str, *, now_ms: int) -> frozenset[str]:
    """Record that a run has tables, which scheduled runs leave to it until it ends; return the other live runs.

    Of two runs that are noted, the second always learns of the first.
    """
    others: frozenset[str] = frozenset()

    def decide(item: Item | None) -> Item:
        nonlocal others
        its_now_ms = leases.table.to_table_clock(now_ms)
        live = _live(item, its_now_ms)
        others = frozenset(live) - {run_id}
        return _live_item(leases, {**live, run_id: its_now_ms + _LONGEST_RUN_MS})

    leases.table.change(named_key("lease", _LIVE_RUNS), _SORT_KEY, decide)
    return others


def end_live_run(leases: LeaseStore, run_id: str, *, now_ms: int) -> None:
    """Record that a run has ended; a run that was never recorded is ignored."""

    def decide(item: Item | None) -> Item | None:
        live = _live(item, leases.table.to_table_clock(now_ms))
        if run_id not in live:
            return None
        left = {name: until_ms for name, until_ms in live.items() if name != run_id}
        return _live_item(leases, left) if left else REMOVED

    leases.table.change(named_key("lease", _LIVE_RUNS), _SORT_KEY, decide)


def _live(item: Item | None, now_ms: int) -> dict[str, int]:
    """Run → when it is forgotten.

    The record only saves work, because leases protect tables.  So malformed entries, and entries with a time far in the
    future, are ignored.  Clocks may differ by a little.
    """
    try:
        runs = {} if item is None else json.loads(item.get("settings", "{}"))
        return {run: until_ms for run, until_ms in runs.items() if now_ms < until_ms <= now_ms + 2 * _LONGEST_RUN_MS}
    except (ValueError, TypeError, AttributeError):
        return {}


def _live_item(leases: LeaseStore, runs: dict[str, int]) -> Item:
    last_ms = max(runs.values())
    return {"settings": json_text(runs), "expires_s": leases.table.expires_s(_KEPT_MS, at_least_ms=last_ms)}


def slot_keys(limit: int) -> list[str]:
    """The lease keys of ``limit`` slots."""
    return [f"{_SLOT}{number}" for number in range(1, limit + 1)]


def taken_slots(leases: LeaseStore, limit: int, *, now_ms: int) -> Mapping[str, Lease]:
    """Key → the slot, of those of the first ``limit`` slots that are taken."""
    keys = set(slot_keys(limit))
    return {slot.key: slot for slot in leases.slots(now_ms=now_ms) if slot.key in keys}


def take_slot(leases: LeaseStore, holder: str, limit: int, *, now_ms: int, ttl_ms: int) -> Lease:
    """Take a free slot; if the holder has a slot already, extend it.

    Raises:
        LeaseHeld: all slots are taken.
    """
    keys, taken = slot_keys(limit), taken_slots(leases, limit, now_ms=now_ms)
    own = [slot.key for slot in taken.values() if slot.holder == holder]
    first = crc32(holder.encode()) % limit  # holders that begin at the same time try different slots
    for key in own or [key for key in keys[first:] + keys[:first] if key not in taken]:
        try:
            return leases.acquire(key, holder, now_ms=now_ms, ttl_ms=ttl_ms, is_likely_free=not own)
        except LeaseHeld:
            continue
    raise LeaseHeld(f"{limit} table(s) are maintained now, as many as max_concurrent_jobs allows at once")


# As many renewals may fail in a row before the lease expires.
_BEATS_PER_LEASE = 6


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
            log.warning("the lease on %s could not be released: %s", self._lease.name or self._lease.key, error)


@contextmanager
def kept_alive(held: HeldLease) -> Iterator[HeldLease]:
    """Renew a lease from a thread while the block runs, and release it at the end."""
    is_done = Event()

    def beat() -> None:
        while not is_done.wait(held.beat_s) and not held.is_lost:
            try:
                held.require()
            except (LeaseLost, StorageError) as error:  # the next require() raises it again
                log.warning("a lease could not be renewed: %s", error)

    heart = Thread(target=beat, name="icekeeper-lease", daemon=True)
    heart.start()
    try:
        yield held
    finally:
        is_done.set()
        heart.join()
        held.give_back()


_PROC = Path("/proc")
# Field 22 of /proc/PID/stat is the start time (proc(5)); here fields are counted after the program's name.
_START_FIELD = 22 - 3


def holder_name(command: str, run_id: str) -> str:
    """A unique name of this process as a holder: ``icekeeper maintain on HOST (process 12, run 0f3a9c1d)``.

    On Linux it ends with a mark that lets :func:`has_died` recognise that the process is dead.
    """
    name = f"{command} on {platform.node() or 'this machine'} (process {os.getpid()}, run {run_id[:8]})"
    place, start = _place(), _start(os.getpid())
    return name if place is None or start is None else f"{name} [{place}.{start}]"


def has_died(holder: str) -> bool:
    """Whether a holder is a process of this boot and PID namespace that no longer runs.

    Another process that has since got its number started at a different time.  Processes in other namespaces or on
    other machines count as alive, because containers share host names and process numbers.
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
