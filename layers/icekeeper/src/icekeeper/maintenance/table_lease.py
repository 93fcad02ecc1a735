"""The lease of a pass, its time limit and attempts, and the request that it serves.

A table has one pass at a time, so the pipeline, ``icekeeper maintain``, ``icekeeper run`` and ``icekeeper orphans``
take the same lease (rule: one-lease-holder).  A pass that loses its lease changes nothing more
(rule: lost-lease-changes-nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic

from icekeeper.errors import LeaseHeld, StorageError
from icekeeper.machine.clock import Clock
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import DEFAULT_SOURCE, Operation, Policy, ResolvedPolicy
from icekeeper.report.outcome import PassOutcome, PassStatus
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import HeldLease, Lease, LeaseStore, holder_name, kept_alive
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
    """Called with one sentence about the holder when the waiting begins."""
    why_not: Callable[[], str | None] = lambda: None
    """Called once we have the lease: why the pass is no longer needed, ``None`` to begin."""
    why_stop: Callable[[], str | None] = lambda: None
    """Called before each operation: why it must not begin, ``None`` to continue."""
    is_proposed: bool = False
    """Whether only detection proposed the pass."""


@contextmanager
def leased(context: OperationContext, turn: Turn) -> Iterator[HeldLease]:
    """Hold the lease of the context's table during the block; a thread prolongs it.

    Raises:
        LeaseHeld: another holder still has it after the time that ``turn`` allows.
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


_RETRY_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """The limits of all attempts at one pass together (``job_timeout_s``, ``job_retry_limit``)."""

    timeout_s: float | None = None
    """After this time no further operation or round of file groups begins; ``None``: no limit."""
    retries: int = 0
    """Further attempts after a failed pass."""

    @classmethod
    def said(cls, resolved: ResolvedPolicy) -> AttemptLimits:
        """The limits that a person has set; the defaults are only for unattended processes."""

        def is_said(key: str) -> bool:
            return resolved.sources[key] != DEFAULT_SOURCE

        return cls(
            timeout_s=resolved.policy.job_timeout_s if is_said("job_timeout_s") else None,
            retries=resolved.policy.job_retry_limit if is_said("job_retry_limit") else 0,
        )


def attempted(
    one_pass: Callable[[Turn], PassOutcome],
    turn: Turn,
    limits: AttemptLimits,
    *,
    tell: Callable[[str], object],
    wait: Callable[[float], object],
) -> tuple[PassOutcome, str | None]:
    """Run a pass, again if it fails; return the last outcome, and why operations were not begun (or ``None``).

    ``tell`` is called with a sentence before a further attempt, ``wait`` with the seconds until it begins.

    Raises:
        MaintenanceError: from the last attempt.
    """
    deadline_s = None if limits.timeout_s is None else monotonic() + limits.timeout_s

    def why_stop() -> str | None:
        is_late = deadline_s is not None and monotonic() > deadline_s
        return turn.why_stop() or (f"job_timeout_s {limits.timeout_s:g} is over" if is_late else None)

    limited, left = replace(turn, why_stop=why_stop), limits.retries
    while True:
        try:
            outcome = one_pass(limited)
        except StorageError as error:
            if not left or why_stop():
                raise
            tell(f"the pass failed and is tried again in {_RETRY_PAUSE_S:g} s: {error}")
        else:
            if not left or outcome.status is not PassStatus.FAILED or why_stop():
                return outcome, why_stop()
            tell(f"the pass failed and is tried again in {_RETRY_PAUSE_S:g} s: {outcome.summary}")
        limited = replace(limited, why_not=lambda: None)  # it would see the previous attempt
        left -= 1
        wait(_RETRY_PAUSE_S)


_OPERATIONS = "operations"


def served_request(
    requests: RequestStore, identity: TableIdentity, settings: Mapping[str, str], policy: Policy | None
) -> MaintenanceRequest | None:
    """The table's pending request, if the pass does all that it asks for; else ``None`` (rule: one-request-one-claim).

    Raises:
        StorageError: the state does not answer.
    """
    for request in requests.pending():
        if request.identity.is_same_copy(identity):
            return request if is_served(request.settings, settings, policy) else None
    return None


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


def is_served(asked: Mapping[str, str], settings: Mapping[str, str], policy: Policy | None) -> bool:
    """Whether a pass with ``settings`` (resolved: ``policy``) does all that a request with settings ``asked`` asks for.

    It must run every requested operation, and have the same other settings.  If the settings are wrong (``policy`` is
    ``None``), it serves a request with equal settings.
    """
    others = [{key: value for key, value in one.items() if key != _OPERATIONS} for one in (asked, settings)]
    if others[0] != others[1]:
        return False
    if asked.get(_OPERATIONS) == settings.get(_OPERATIONS):
        return True
    if policy is None or _OPERATIONS not in asked:
        return False
    return {*_operations(asked)} <= {*policy.operations}


def _operations(asked: Mapping[str, str]) -> tuple[Operation, ...]:
    return Policy.model_validate({_OPERATIONS: asked[_OPERATIONS]}).operations
