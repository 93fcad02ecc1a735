"""The lease of a table while a pass of this process works on it: one pass at a time, whoever asked for it (rule 70).

The pipeline, ``icekeeper maintain``, ``icekeeper run`` and ``icekeeper orphans`` take the same lease.  A process
prolongs its own from a thread, so it may be short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from icekeeper.errors import LeaseHeld
from icekeeper.machine.clock import Clock
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.held_lease import HeldLease, holder_name, kept_alive
from icekeeper.state.leases import Lease, LeaseStore

__all__ = ["PASS_LEASE_MS", "Turn", "leased"]

PASS_LEASE_MS = 3 * 60 * 1000
"""So long a pass that was killed bars others, where its death cannot be proven (rule 166)."""
_PAUSE_S = 2.0
_MAINTAIN = "icekeeper maintain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Who wants a table for a pass, how long it waits for the table, and when it stops."""

    command: str = _MAINTAIN
    wait_ms: int = 0
    """The longest time to wait while another holder has the lease."""
    tell: Callable[[str], object] = lambda sentence: None
    """Called with one sentence when the waiting begins, which says who has the lease."""
    why_not: Callable[[], str | None] = lambda: None
    """Asked once the lease is ours: why the pass is not needed any more, ``None`` to begin."""
    why_stop: Callable[[], str | None] = lambda: None
    """Asked before each operation: why no further one begins, ``None`` to go on."""
    is_proposed: bool = False
    """Whether nobody asked for the pass but detection."""


@contextmanager
def leased(context: OperationContext, turn: Turn) -> Iterator[HeldLease]:
    """Hold the lease of the context's table while the block runs; prolonged by a thread.

    Raises:
        LeaseHeld: another holder has it, and still has it after the time that ``turn`` allows.
        StorageError: the state store does not answer.
    """
    leases, holder = context.state.leases, holder_name(turn.command, context.run_id)
    wanted = Lease(key=context.memory.identity.lease_key, holder=holder, expires_ms=0, name=str(context.table))
    lease = _taken(leases, wanted, turn, context.clock, context.sleep)
    with kept_alive(HeldLease(leases, lease, PASS_LEASE_MS, context.clock)) as held:
        yield held


def _taken(leases: LeaseStore, wanted: Lease, turn: Turn, clock: Clock, sleep: Callable[[float], object]) -> Lease:
    left_s, is_told = turn.wait_ms / 1000, False
    while True:
        try:
            return leases.acquire(wanted.key, wanted.holder, now_ms=clock(), ttl_ms=PASS_LEASE_MS, name=wanted.name)
        except LeaseHeld as held:
            if left_s <= 0:
                waited = f", also after waiting for {turn.wait_ms // 1000} s" if turn.wait_ms else ""
                hint = "; --wait 10m waits for it" if turn.command == _MAINTAIN and not turn.wait_ms else ""
                raise LeaseHeld(f"{held}{waited}; nothing was begun{hint}") from held
            if not is_told:
                turn.tell(f"waiting: {held}")
                is_told = True
        sleep(min(_PAUSE_S, left_s))
        left_s -= _PAUSE_S
