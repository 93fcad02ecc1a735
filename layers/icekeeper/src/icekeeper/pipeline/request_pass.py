"""A pass that a person requests outside the schedule: file the request, start a run, wait
for the pass.

The request is always filed in the state, where the next scheduled run finds it. So it survives a run that did not start
or that ended before its pass was reported.  The report of the pass that serves the request claims it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LeaseHeld, MaintenanceError, PolicyError, StorageError
from icekeeper.machine.clock import Clock, system_clock
from icekeeper.maintenance.pass_steps import begin
from icekeeper.model import TableName
from icekeeper.pipeline.events import MachineInput, parse_event
from icekeeper.pipeline.executions import Execution, StateMachine
from icekeeper.runtime import Runtime
from icekeeper.state.leases import SEEN_FOR_HOURS, Lease
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.store import PassRecord, StateStore

FIRST_PAUSE_S = 1.0
"""The first pause between two checks of the run, in seconds; later pauses are longer, up to :data:`LONGEST_PAUSE_S`."""
LONGEST_PAUSE_S = 30.0
# A laptop may lose its network for a while, which does not affect the run.
_ATTEMPTS = 6
_OPERATIONS = "operations"

Notify = Callable[[str], None]


def _silent(_: str) -> None:
    """Discard a message."""


NEXT_RUN = "the next scheduled run takes it first"
NO_RUN = (
    f"nothing is scheduled: no run has looked for requests in the last {SEEN_FOR_HOURS} hours; enable the stack's "
    "schedule, start icekeeper run, or pass --state-machine to start a run now"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The state of a request: ``requested``, ``running``, or how its pass ended."""

    status: str
    summary: str
    record: PassRecord | None = None
    """The pass in the journal; ``None`` if it is not recorded, because the journal has only passes that changed
    something."""

    @property
    def is_well(self) -> bool:
        """Whether the pass has ended, and every operation succeeded or was skipped."""
        return self.status in ("succeeded", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How to wait for a pass."""

    limit_ms: int | None = None
    """The longest time to wait; ``None``: until the pass has ended."""
    notify: Notify = _silent
    """Called with a sentence about the progress after each check."""
    clock: Clock = system_clock
    sleep: Callable[[float], None] = time.sleep

    @property
    def limit(self) -> str:
        """The longest time to wait, for people."""
        return f"{(self.limit_ms or 0) // 1000} s"

    def rounds(self) -> Iterator[None]:
        """Yield whenever a check is due, with pauses in between; the last time at the limit."""
        end_ms = None if self.limit_ms is None else self.clock() + self.limit_ms
        pause_s = FIRST_PAUSE_S
        while True:
            yield
            left_s = pause_s if end_ms is None else (end_ms - self.clock()) / 1000
            if left_s <= 0:
                return
            self.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


def require_shared_state(environment: Mapping[str, str], *, is_scheduled: bool = False) -> None:
    """Raise PolicyError if ``ICEKEEPER_STATE`` is not set: no deployment would see a request in a local file.

    ``is_scheduled``: whether an ``icekeeper run`` on this machine reads that file.
    """
    if not environment.get("ICEKEEPER_STATE", "").strip() and not is_scheduled:
        raise PolicyError(
            "ICEKEEPER_STATE is not set, so no deployment would see the request: set it to the stack's output State, "
            "dynamodb://TABLE"
        )


def file_request(runtime: Runtime, table: TableName, overrides: Mapping[str, str]) -> MaintenanceRequest:
    """Check a request and file it, replacing the table's pending request.

    Raises:
        PolicyError: unknown table, or settings that are wrong or do not fit it; nothing was filed.
        StorageError: the table or the state cannot be used; nothing was filed.
    """
    # Reject settings that the state machine would reject: a scheduled run could not serve such a request either.
    parse_event(MachineInput, {"table": str(table), "settings": dict(overrides)})
    loaded = runtime.catalog.load(table)
    resolved = runtime.policy(loaded, overrides)
    begin(runtime.context(loaded, resolved, LocalEngine(processes=1), dry_run=True))
    identity = identity_of(runtime.catalog, loaded)
    request = MaintenanceRequest(identity=identity, requested_ms=runtime.clock(), settings=dict(overrides))
    runtime.state.requests.file(request)
    return request


def machine_input(request: MaintenanceRequest) -> dict[str, Any]:
    """The state machine's input for a request, with the request's own settings, so that the pass claims it.

    The run waits while another run maintains the table: a refused request would stay unserved without a schedule.
    """
    identity, settings = request.identity, dict(request.settings)
    operations = settings.pop(_OPERATIONS, None)
    return {
        "table": str(identity.table),
        "catalog": identity.catalog.name,
        **({} if operations is None else {_OPERATIONS: operations}),
        "settings": settings,
        "wait": True,
    }


def start_pass(machine: StateMachine, request: MaintenanceRequest) -> str:
    """Start a run that serves a filed request; returns the execution's ARN.

    Raises:
        PolicyError: the state machine does not exist.
        StorageError: the run cannot be started; in both cases the request stays filed.
    """
    try:
        return machine.start(f"request-{uuid.uuid4()}", machine_input(request))
    except MaintenanceError as error:
        raise type(error)(f"{error}; the request stays filed, and the next scheduled run takes it first") from error


def follow_pass(
    machine: StateMachine, execution: str, state: StateStore, request: MaintenanceRequest, waiting: Waiting
) -> Answer:
    """Wait until a run has ended and return how its pass ended.

    Raises:
        StorageError: the run cannot be followed any more; the run itself continues.
    """
    failures = 0
    for _ in waiting.rounds():
        try:
            found = machine.describe(execution)
            failures = 0
        except MaintenanceError as error:
            failures += 1
            if failures < _ATTEMPTS and not machine.is_denied(error):
                continue
            raise StorageError(f"{error}; the run itself continues: {execution}") from error
        if not found.is_running:
            return _ended(execution, found, state, request)
        waiting.notify(_who_maintains(state, request, waiting.clock(), _run_id(execution)))
    return Answer(status="running", summary=f"the run is still running after {waiting.limit}: {execution}")


def await_pass(state: StateStore, request: MaintenanceRequest, waiting: Waiting) -> Answer:
    """Wait until any run has served a request and return how that pass ended.

    Raises:
        StorageError: the state cannot be read; the request stays.
    """
    for _ in waiting.rounds():
        if not _is_pending(state, request):  # the pass is recorded before its request is claimed
            return _served(state, request, waiting.clock())
        lease = _lease(state, request, waiting.clock())
        waiting.notify(f"{lease.who} maintains the table" if lease else "waiting for the next scheduled run")
    return Answer(status="requested", summary=f"no run has served the request within {waiting.limit}; it stays filed")


def _ended(execution: str, found: Execution, state: StateStore, request: MaintenanceRequest) -> Answer:
    for record in state.history(request.identity, limit=20):
        if record.run_id == _run_id(execution):
            return _recorded(record)
    if found.result is not None:
        return Answer(status=found.result.status, summary=found.result.summary)
    if found.status == "SUCCEEDED":
        return Answer(status="skipped", summary="the run found nothing to do")
    failure = found.failure
    why = f"the run ended as {found.status}: {execution}" if failure is None else failure.sentence
    stays = f"; the request stays filed, and {NEXT_RUN}" if _is_pending(state, request) else ""
    is_refused = failure is not None and failure.Error == LeaseHeld.__name__
    return Answer(status="refused" if is_refused else "failed", summary=f"{why}{stays}")


def _recorded(record: PassRecord) -> Answer:
    return Answer(status=record.status, summary=record.summary, record=record)


def _served(state: StateStore, request: MaintenanceRequest, now_ms: int) -> Answer:
    """How the pass that claimed a request ended: the table's newest pass, which may have changed nothing and so be
    missing in the journal."""
    newest = next(iter(state.history(request.identity, limit=1)), None)
    seen = state.seen(request.identity)
    # No pass ends later than now.
    seen_ms = 0 if seen is None or seen.finished_ms > now_ms else seen.finished_ms
    if newest is not None and newest.finished_ms >= max(request.requested_ms, seen_ms):
        return _recorded(newest)
    if seen_ms >= request.requested_ms:
        return Answer(status="skipped", summary="the pass found nothing to change")
    return Answer(status="failed", summary="the run that took the request ended without an entry in the journal")


def _is_pending(state: StateStore, request: MaintenanceRequest) -> bool:
    """Whether a request for the table is pending: this one, or its replacement."""
    return state.requests.of_table(request.identity) is not None


def _who_maintains(state: StateStore, request: MaintenanceRequest, now_ms: int, run_id: str) -> str:
    lease = _lease(state, request, now_ms)
    if lease is None:  # a run holds the lease only while a function or job works on the table
        return "the run continues"
    return "the table is being maintained" if lease.holder == run_id else f"waiting for {lease.who} to finish"


def _lease(state: StateStore, request: MaintenanceRequest, now_ms: int) -> Lease | None:
    """The lease of the run that works on the table now; also ``None`` if the state does not answer, because it only
    serves the progress display."""
    try:
        return state.leases.current(request.identity.lease_key, now_ms=now_ms)
    except StorageError:
        return None


def _run_id(execution: str) -> str:
    """The name of an execution, which is the run's id."""
    return execution.rpartition(":")[2]
