"""The lease of a pass, its time limit and attempts, and the request that it serves.

A table has one pass at a time, so the pipeline, ``icekeeper maintain``, ``icekeeper run`` and ``icekeeper orphans``
take the same lease (rule: one-lease-holder).  A pass that loses its lease changes nothing more
(rule: lost-lease-changes-nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, sleep

from icekeeper.errors import LeaseHeld
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Policy
from icekeeper.state.held_lease import HeldLease, holder_name, kept_alive
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import MaintenanceRequest, RequestStore, StateStore

PASS_LEASE_MS = 3 * 60 * 1000
"""How long a killed pass blocks others, if its death cannot be proven (rule: dead-holders-bar-nobody).

A thread of the process prolongs the lease, so it can be short."""
_PAUSE_S = 2.0
_MAINTAIN = "icekeeper maintain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Which command wants a table for a pass, how long it waits for the lease, and when it stops."""

    command: str = _MAINTAIN
    wait_ms: int = 0
    """The longest time to wait for another holder of the lease."""
    tell: Callable[[str], object] = lambda sentence: None
    """Called with one sentence about the holder when the waiting begins, and before each further attempt."""
    why_not: Callable[[], str | None] = lambda: None
    """Called once we have the lease: why the pass is no longer needed, ``None`` to begin."""
    why_stop: Callable[[], str | None] = lambda: None
    """Called before each operation: why it must not begin, ``None`` to continue."""
    is_proposed: bool = False
    """Whether only detection proposed the pass."""
    timeout_s: float | None = None
    """Since ``begun_s``, for all attempts together (``job_timeout_s``): then no further operation or round of file
    groups begins; ``None``: no limit."""
    retries: int = 0
    """Further attempts after a failed pass (``job_retry_limit``)."""
    wait: Callable[[float], object] = sleep
    """Called with the seconds until a further attempt."""
    begun_s: float = field(default_factory=lambda: monotonic())

    def why_over(self) -> str | None:
        """Why no further operation may begin; ``None``: it may."""
        is_late = self.timeout_s is not None and monotonic() > self.begun_s + self.timeout_s
        return self.why_stop() or (f"job_timeout_s {self.timeout_s:g} is over" if is_late else None)


@contextmanager
def leased(context: OperationContext, turn: Turn) -> Iterator[HeldLease]:
    """Hold the lease of the context's table during the block; a thread prolongs it.

    Raises:
        LeaseHeld: another holder still has it after the time that ``turn`` allows.
        StorageError: the state store does not answer.
    """
    leases, holder = context.state.leases, holder_name(turn.command, context.run_id)
    key, name = context.memory.identity.lease_key, str(context.table)
    left_s, is_told = turn.wait_ms / 1000, False
    while True:
        try:
            lease = leases.acquire(key, holder, now_ms=context.clock(), ttl_ms=PASS_LEASE_MS, name=name)
            break
        except LeaseHeld as held:
            if left_s <= 0:
                waited = f", also after waiting for {turn.wait_ms // 1000} s" if turn.wait_ms else ""
                hint = "; --wait 10m waits for it" if turn.command == _MAINTAIN and not turn.wait_ms else ""
                raise LeaseHeld(f"{held}{waited}; nothing was begun{hint}") from held
            if not is_told:
                turn.tell(f"waiting: {held}")
                is_told = True
        context.sleep(min(_PAUSE_S, left_s))
        left_s -= _PAUSE_S
    with kept_alive(HeldLease(leases, lease, PASS_LEASE_MS, context.clock)) as ours:
        yield ours


_OPERATIONS = "operations"


def served_request(
    requests: RequestStore, identity: TableIdentity, settings: Mapping[str, str], policy: Policy | None
) -> MaintenanceRequest | None:
    """The table's pending request, if a pass with ``settings`` (resolved: ``policy``) does all that it asks for
    (rule: one-request-one-claim).

    It must run every requested operation, and have the same other settings.  If the settings are wrong (``policy`` is
    ``None``), it serves a request with equal settings.

    Raises:
        StorageError: the state does not answer.
    """
    request = next((one for one in requests.pending() if one.identity.is_same_copy(identity)), None)
    if request is None:
        return None
    asked = request.settings
    others = [{key: value for key, value in one.items() if key != _OPERATIONS} for one in (asked, settings)]
    if others[0] != others[1]:
        return None
    if asked.get(_OPERATIONS) == settings.get(_OPERATIONS):
        return request
    if policy is None or _OPERATIONS not in asked:
        return None
    wanted = Policy.model_validate({_OPERATIONS: asked[_OPERATIONS]}).operations
    return request if {*wanted} <= {*policy.operations} else None


def why_needless(
    state: StateStore, identity: TableIdentity, detected_ms: int, *, now_ms: int, is_pending: bool | None
) -> str | None:
    """Why a table needs no pass any more: another run has maintained it since it was detected
    (rule: overlapping-runs-share-slots).

    ``is_pending``: whether its request is still pending; ``None``: no request.  A pass that ended in the future was
    recorded by a wrong clock, and is ignored (rule: future-records-bar-nothing).

    Raises:
        StorageError: the state does not answer.
    """
    if is_pending is not None:
        return None if is_pending else "the request was served or withdrawn since it was detected"
    seen = state.last_seen(identity)
    is_served = seen is not None and detected_ms <= seen.finished_ms <= now_ms
    return f"another run has maintained {identity.table} since it was detected" if is_served else None
