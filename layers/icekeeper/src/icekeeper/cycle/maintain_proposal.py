"""The pass over one proposed table: its slot, its lease, one more attempt after a failure, and how it ended."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event

from icekeeper.cycle.settings import CycleSettings
from icekeeper.cycle.told import TableResult, what_was_done
from icekeeper.detection.proposal import FleetProposal
from icekeeper.engines.engine import Engine
from icekeeper.errors import LeaseHeld, MaintenanceError, PlanStale
from icekeeper.machine.clock import Clock, at_work, system_clock
from icekeeper.maintenance.attempts import AttemptLimits, attempted
from icekeeper.maintenance.served_request import why_needless
from icekeeper.maintenance.table_lease import PASS_LEASE_MS, Turn
from icekeeper.report.outcome import PassOutcome
from icekeeper.runtime import Runtime
from icekeeper.state.claims import Entry
from icekeeper.state.cut_offs import CutWork
from icekeeper.state.held_lease import HeldLease, holder_name, kept_alive
from icekeeper.state.identity import TableIdentity
from icekeeper.state.slots import take_slot
from icekeeper.state.store import StateStore

__all__ = ["COMMAND", "Work", "maintain_proposal"]

log = logging.getLogger(__name__)

COMMAND = "icekeeper run"
_SLOT_PAUSE_S = 2.0
_HARD = 1.25
"""After ``job_timeout_s`` a pass ends with what it is at, and is killed if that takes a quarter of the time more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One table that detection proposed, and what its pass needs."""

    proposal: FleetProposal
    detected_ms: int
    """When the detection began that proposed it."""
    runtime: Runtime
    overrides: Mapping[str, str]
    """Settings of the call; those of a request hold above them."""
    settings: CycleSettings
    engine: Engine
    stop: Event
    """Set when the process is to end: no further operation begins."""
    is_current: Callable[[], bool]
    """False once a later detection has proposed anew; then this one is not begun any more."""
    clock: Clock = system_clock

    @property
    def entry(self) -> Entry:
        """The catalog's own names for the table."""
        return self.proposal.catalog, self.proposal.warehouse, self.identity.table.key

    @property
    def identity(self) -> TableIdentity:
        return self.proposal.identity

    @property
    def chosen(self) -> Mapping[str, str]:
        """The settings of the pass."""
        return self.proposal.settings if self.proposal.is_requested else self.overrides


def maintain_proposal(work: Work) -> TableResult | None:
    """Maintain the table; ``None`` when it was not begun, because the process ends or a later detection decides.

    Whatever goes wrong becomes the result.
    """
    started_s = time.monotonic()
    try:
        status, summary = _with_slot(work) or ("", "")
    except (LeaseHeld, PlanStale) as reason:
        status, summary = "skipped", str(reason)
    except MaintenanceError as error:
        status, summary = "failed", str(error)
    except Exception as error:  # one table must not end the process
        log.exception("the pass over %s broke", work.proposal.proposal.table)
        status, summary = "failed", f"{type(error).__name__}: {error}"
    if not status:
        return None
    return TableResult(
        catalog=work.proposal.catalog,
        table=work.proposal.proposal.table,
        status=status,
        summary=summary,
        seconds=time.monotonic() - started_s,
    )


def _with_slot(work: Work) -> tuple[str, str] | None:
    """Status and summary of the pass, once one of the slots is free; ``None`` when it was not begun."""
    holder = holder_name(COMMAND, uuid.uuid4().hex)
    leases = work.runtime.state.leases
    while not work.stop.is_set() and work.is_current():
        try:
            slot = take_slot(leases, holder, work.settings.slots, now_ms=work.clock(), ttl_ms=PASS_LEASE_MS)
        except LeaseHeld:
            work.stop.wait(_SLOT_PAUSE_S)
            continue
        with kept_alive(HeldLease(leases, slot, PASS_LEASE_MS, work.clock)):
            limit_s = _HARD * work.settings.timeout_s
            why = f"its pass did not end within {_HARD:g} times job_timeout_s {work.settings.timeout_s:g}"
            with at_work(CutWork.PASS, work.entry, limit_s=limit_s, why=why):
                return _attempts(work)
    return None


def _why_not(state: StateStore, work: Work) -> str | None:
    pending = state.requests.pending() if work.proposal.is_requested else None
    is_pending = None if pending is None else any(one.identity.is_same_copy(work.identity) for one in pending)
    return why_needless(state, work.identity, work.detected_ms, now_ms=work.clock(), is_pending=is_pending)


def _attempts(work: Work) -> tuple[str, str]:
    table = work.identity.table
    runtime = work.runtime.of_requests(work.overrides) if work.proposal.is_requested else work.runtime
    turn = Turn(
        command=COMMAND,
        why_not=partial(_why_not, work.runtime.state, work),
        why_stop=lambda: "the process is about to end" if work.stop.is_set() else None,
        is_proposed=not work.proposal.is_requested,
    )
    outcome, stopped = attempted(
        lambda limited: runtime.maintain(table, work.chosen, work.engine, turn=limited),
        turn,
        AttemptLimits(work.settings.timeout_s, work.settings.retries),
        tell=partial(log.warning, "%s: %s", table),
        wait=work.stop.wait,
    )
    return outcome.status.value, _told(outcome, stopped)


def _told(outcome: PassOutcome, stopped: str | None) -> str:
    left = [part for part in outcome.operations if stopped is not None and part.reason == stopped]
    after = f"; {len(left)} operation(s) left: {stopped}" if left else ""
    return what_was_done(outcome) + after
