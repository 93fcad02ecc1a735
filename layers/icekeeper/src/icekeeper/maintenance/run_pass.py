"""A pass over a table by this process: take the lease, run the operations, serve the pending request.

:func:`maintain_table` is the entry.  :func:`run_pass` runs the operations of a policy in canonical order; an operation
that fails does not stop the next operation.  A pass that a person interrupts reports which commits landed and what a
later pass will clean.

A table has one pass at a time, so the pipeline, ``icekeeper maintain``, ``icekeeper run`` and ``icekeeper orphans``
take the same lease (rule: one-lease-holder).  A pass that loses its lease changes nothing more
(rule: lost-lease-changes-nothing).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from time import monotonic, sleep

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.commit.attempt import newest_run, snapshots_of_run
from icekeeper.engines.engine import AutoEngine
from icekeeper.errors import LeaseHeld, MaintenanceError, PlanStale, PolicyError, StorageError, TableUnsupported
from icekeeper.machine.metering import counting, joined_count
from icekeeper.machine.resources import search_cycles_seldom
from icekeeper.maintenance.pass_steps import (
    PassStart,
    begin,
    conclude,
    head_id,
    remembered_sweeps,
    run_operation,
    why_waiting,
    with_warnings,
)
from icekeeper.maintenance.saved_plan import SavedTable
from icekeeper.model import TableName
from icekeeper.operation_facts import FACTS
from icekeeper.operations.clean_staging import clean_staged_files
from icekeeper.pass_context.context import OperationContext, PassLimits, Reviewed
from icekeeper.pass_context.planned_table import PlannedTable
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.resolve import short_retentions, unused_settings
from icekeeper.report.activity import PASS
from icekeeper.report.outcome import (
    OperationOutcome,
    PassOutcome,
    PassStatus,
    Status,
    failed,
    looks_at_the_table,
    request_metrics,
    skipped,
)
from icekeeper.state.claims import CutWork, forget_cut
from icekeeper.state.identity import STATE_VARIABLE, Entry, TableIdentity
from icekeeper.state.leases import HeldLease, holder_name, kept_alive
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.staging import LoadState
from icekeeper.state.store import StateStore

log = logging.getLogger(__name__)

NOT_BEGUN = "not begun: the pass was interrupted"


PASS_LEASE_MS = 3 * 60 * 1000
"""How long a killed pass blocks others, if its death cannot be proven (rule: one-lease-holder).

A thread of the process extends the lease, so it can be short."""
_PAUSE_S = 2.0
_MAINTAIN = "icekeeper maintain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Which command wants a table for a pass, how long it waits for the lease, and when it stops."""

    command: str = _MAINTAIN
    wait_ms: int = 0
    """The longest time to wait for another holder of the lease."""
    notify: Callable[[str], object] = lambda sentence: None
    """Called with a sentence about the holder when the waiting begins, and before each further attempt."""
    why_not: Callable[[str], str | None] = lambda digest: None
    """Called with the digest of the pass once the lease is held: returns why the pass is no longer needed, ``None`` to
    begin."""
    why_stop: Callable[[], str | None] = lambda: None
    """Called before each operation: returns why it must not begin, ``None`` to continue."""
    is_proposed: bool = False
    """Whether only detection proposed the pass."""
    timeout_s: float | None = None
    """The time since ``begun_s``, for all attempts together, after which no further operation or round of file groups
    begins (``job_timeout_s``); ``None``: no limit."""
    retries: int = 0
    """Further attempts after a failed pass (``job_retry_limit``)."""
    wait: Callable[[float], object] = sleep
    """Called with the seconds until a further attempt."""
    begun_s: float = field(default_factory=lambda: monotonic())
    """By :func:`time.monotonic`."""

    def why_over(self) -> str | None:
        """Why no further operation may begin; ``None`` if one may."""
        is_late = self.timeout_s is not None and monotonic() > self.begun_s + self.timeout_s
        return self.why_stop() or (f"job_timeout_s {self.timeout_s:g} is over" if is_late else None)


@contextmanager
def leased(context: OperationContext, turn: Turn) -> Iterator[HeldLease]:
    """Hold the lease of the context's table during the block; a thread extends it.

    Raises:
        LeaseHeld: another holder still has it after the time that ``turn`` allows.
        StorageError: the state store does not answer.
    """
    leases, holder = context.state.leases, holder_name(turn.command, context.run_id)
    key, name = context.memory.identity.lease_key, str(context.table)
    left_s, is_reported = turn.wait_ms / 1000, False
    while True:
        try:
            lease = leases.acquire(key, holder, now_ms=context.clock(), ttl_ms=PASS_LEASE_MS, name=name)
            break
        except LeaseHeld as held:
            if left_s <= 0:
                waited = f", also after waiting for {turn.wait_ms // 1000} s" if turn.wait_ms else ""
                hint = "; --wait 10m waits for it" if turn.command == _MAINTAIN and not turn.wait_ms else ""
                raise LeaseHeld(f"{held}{waited}; nothing was begun{hint}") from held
            if not is_reported:
                turn.notify(f"waiting: {held}")
                is_reported = True
        context.sleep(min(_PAUSE_S, left_s))
        left_s -= _PAUSE_S
    with kept_alive(HeldLease(leases, lease, PASS_LEASE_MS, context.clock)) as ours:
        yield ours


_OPERATIONS = "operations"
_RETRY_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class AskedPass:
    """A pass to run; ``make_context`` takes the loaded table and the run's id, and may raise PolicyError."""

    catalog: Catalog
    state: StateStore
    table: TableName
    settings: Mapping[str, str]
    """The settings for this pass alone; they decide which request it serves."""
    make_context: Callable[[LoadedTable, str], OperationContext]
    turn: Turn | None
    """``None``: a dry run, which takes no lease and serves no request."""
    saved: SavedTable | None = None
    """The saved plan to apply; such a pass serves no request."""

    def pending(self, loaded: LoadedTable, policy: Policy | None) -> MaintenanceRequest | None:
        """The table's pending request, if the pass does all that it asks for.

        The pass must run every requested operation, and its other settings must be the same.  If its settings are wrong
        (``policy`` is ``None``), it serves a request with equal settings.
        """
        if self.saved is not None:
            return None
        identity = identity_of(self.catalog, loaded)
        request = self.state.requests.of_table(identity)
        if request is None:
            return None
        asked = request.settings
        others = [
            {key: value for key, value in settings.items() if key != _OPERATIONS} for settings in (asked, self.settings)
        ]
        if others[0] != others[1]:
            return None
        if asked.get(_OPERATIONS) == self.settings.get(_OPERATIONS):
            return request
        if policy is None or _OPERATIONS not in asked:
            return None
        wanted = Policy.model_validate({_OPERATIONS: asked[_OPERATIONS]}).operations
        return request if {*wanted} <= {*policy.operations} else None

    def claim(self, request: MaintenanceRequest | None) -> None:
        """Claim the served request, if any."""
        if request is not None:
            self.state.requests.claim(request)


def maintain_table(asked: AskedPass) -> PassOutcome:
    """Take the table's lease, run the pass, and claim the request that it served; a dry run only runs the pass.

    A pass that fails is tried again as often as its turn says, until the turn is over; the last outcome is returned.

    Raises:
        PolicyError: the table does not exist, or its settings are wrong.
        LeaseHeld: another run maintains the table now.
        PlanStale: the pass is no longer needed, or the table was replaced; nothing was begun.
        StorageError: the table cannot be loaded, or the state cannot be written.
    """
    search_cycles_seldom()
    turn = asked.turn
    left = 0 if turn is None else turn.retries
    while True:
        try:
            outcome = _attempt(asked)
        except StorageError as error:
            if turn is None or not left or turn.why_over():
                raise
            failure = str(error)
        else:
            if turn is None or not left or outcome.status is not PassStatus.FAILED or turn.why_over():
                return outcome
            failure = outcome.summary
        turn.notify(f"the pass failed; next attempt in {_RETRY_PAUSE_S:g} s: {failure}")
        asked = replace(asked, turn=replace(turn, why_not=lambda digest: None))  # it would see the previous attempt
        left -= 1
        turn.wait(_RETRY_PAUSE_S)


def _attempt(asked: AskedPass) -> PassOutcome:
    """One attempt.  A request is claimed after its pass, so that the next pass serves it if this process is killed.

    An error of the settings or the table also answers the request, because a repetition would fail, too.
    """
    run_id, turn = str(uuid.uuid4()) if asked.saved is None else asked.saved.run_id, asked.turn
    if turn is not None:
        asked.state.require_writable()  # fail before the table is changed, not when the change is recorded
    with asked.state.kept_open(), counting(), keeping_documents():
        loaded = asked.catalog.load(asked.table)
        if turn is None:
            return run_pass(asked.make_context(loaded, run_id))
        try:
            context = asked.make_context(loaded, run_id)
        except PolicyError:
            asked.claim(asked.pending(loaded, None))
            raise
        with leased(context, turn) as lease:
            if turn.wait_ms:  # the pass that we waited for may have changed the table
                loaded = asked.catalog.load(asked.table)
                if identity_of(asked.catalog, loaded).lease_key != context.memory.identity.lease_key:
                    raise PlanStale(f"{loaded.name} was replaced by another table just now; run the pass again")
                context = asked.make_context(loaded, run_id)
            if reason := turn.why_not(context.resolved.digest_over(loaded.metadata)):
                raise PlanStale(reason)
            request = asked.pending(loaded, context.policy)
            try:
                limits = PassLimits(lease=lease, why_stop=turn.why_over)
                ours = replace(context, limits=limits, is_proposed=turn.is_proposed)
                outcome = run_pass(ours, asked.saved)
            except (PolicyError, TableUnsupported):
                asked.claim(request)
                raise
            if not lease.is_lost and turn.why_over() is None:
                asked.claim(request)
            _forget_cuts(asked, loaded)
            return outcome


def _forget_cuts(asked: AskedPass, loaded: LoadedTable) -> None:
    """Forget that the table was cut off, because its pass has ended now."""
    entry = Entry(asked.catalog.id, loaded.name.key)
    try:
        forget_cut(asked.state.cut_offs, entry, *CutWork)
    except StorageError as error:
        log.warning("%s is still recorded as cut off: %s", loaded.name, error)


def why_needless(
    state: StateStore, identity: TableIdentity, digest: str, detected_ms: int, *, now_ms: int, is_pending: bool | None
) -> str | None:
    """Why a table no longer needs a pass of this digest: another run has done so since the table was detected.

    ``is_pending``: whether its request is still pending; ``None``: no request.  A pass that ended in the future was
    recorded with a wrong clock and is ignored.

    Raises:
        StorageError: the state does not answer.
    """
    if is_pending is not None:
        return None if is_pending else "the request was served or withdrawn since it was detected"
    found = state.seen(identity)
    seen = None if found is None else found.under(digest)
    is_served = seen is not None and detected_ms <= seen.finished_ms <= now_ms
    return f"another run has maintained {identity.table} since it was detected" if is_served else None


class PassInterrupted(KeyboardInterrupt):
    """A person interrupted a pass (Ctrl-C); the message is a single sentence, ``outcome`` the pass so far."""

    def __init__(self, sentence: str, outcome: PassOutcome) -> None:
        super().__init__(sentence)
        self.outcome = outcome


def interrupted_outcome(
    context: OperationContext, before: LoadedTable, operations: Sequence[Operation], done: Sequence[OperationOutcome]
) -> tuple[PassOutcome, str]:
    """The outcome of a pass over ``operations`` that was interrupted after those ``done``, and a sentence about it.

    ``before``: the table at the beginning of the pass; it is read again to find the commits that landed.
    """
    running = operations[len(done)] if len(done) < len(operations) else None
    landed, what_landed = _landed(context, before, done, running)
    left = _left_to_clean(context)
    parts = [*done]
    if running is not None:
        stopped = failed(running, f"interrupted; {what_landed}; {left}")
        parts.append(replace(stopped, snapshot_ids=landed))
    parts += [skipped(operation, NOT_BEGUN) for operation in operations[len(parts) :]]
    where = "after the last operation" if running is None else f"during {running.value}"
    finished = [outcome.operation.value for outcome in done if outcome.status is Status.SUCCEEDED]
    sentence = f"interrupted {where}; {what_landed}; {left}"
    if finished and not context.dry_run:
        sentence += f"; finished before: {', '.join(finished)}"
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalogs.own.id.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=tuple(parts),
    )
    return outcome, sentence


def _landed(
    context: OperationContext, before: LoadedTable, done: Sequence[OperationOutcome], running: Operation | None
) -> tuple[tuple[int, ...], str]:
    """The snapshots that the interrupted operation committed, and a sentence about the pass's commits."""
    if context.dry_run:
        return (), "the table is unchanged (dry run)"
    if running is not None and not FACTS[running].commits:
        return (), "it makes no commit and deletes only unneeded files"
    try:
        now = context.load()
    except MaintenanceError as error:
        return (), f"it is unknown whether a commit landed, because the table cannot be read ({error})"
    if now.metadata_location == before.metadata_location:
        return (), "no commit landed, the table is unchanged"
    known = {snapshot_id for outcome in done for snapshot_id in outcome.snapshot_ids}
    ours = tuple(i for i in snapshots_of_run(context.run_id, now.metadata) if i not in known)
    if ours:
        return ours, f"{len(ours)} complete commit(s) of it landed"
    expired = before.metadata.snapshots.keys() - now.metadata.snapshots.keys()
    if running is Operation.EXPIRE_SNAPSHOTS and expired:
        return (), "the commit that expired snapshots landed"
    return (), "no commit of it landed"


def _left_to_clean(context: OperationContext) -> str:
    if context.dry_run:
        return "nothing is left to clean"
    try:
        loads = [load for load in context.memory.staged_loads() if load.name.startswith(f"{context.run_id}:")]
        lists = context.memory.unfinished_deletions()
    except StorageError as error:
        return f"cannot read what is left to clean ({error})"
    left = []
    if count := sum(load.file_count for load in loads if load.state is LoadState.FAILED):
        left.append(f"this or a later pass deletes those of its {count} output file(s) that no snapshot references")
    if count := sum(load.file_count for load in loads if load.state is LoadState.PENDING):
        left.append(f"{count} output file(s) are recorded as planned; a later pass deletes those that were written")
    if lists:
        left.append("the next expire_snapshots deletes the files that are no longer referenced")
    return " and ".join(left) or "nothing is left to clean"


def other_state_warning(context: OperationContext, loaded: LoadedTable) -> tuple[str, ...]:
    """A warning if this pass may use the wrong state: a run maintained the table, but the state has no record of it.

    Raises:
        StorageError: the state cannot be read.
    """
    found = newest_run(loaded.metadata)
    if found is None or found[1] == context.run_id:
        return ()
    identity = context.memory.identity
    known = context.state.glance(identity, now_ms=context.clock())
    if known.seen or known.sweeps or known.loads or known.pins or context.state.history(identity, limit=1):
        return ()
    return (
        f"run {found[1]} committed snapshot {found[0]}, but the state of this pass has no record of the table: pins "
        f"and staged files in another state are not protected; name that state with {STATE_VARIABLE}, unless it is "
        "lost",
    )


def run_pass(context: OperationContext, saved: SavedTable | None = None) -> PassOutcome:
    """Run every operation that the policy asks for now; a pass that changed something is recorded in the journal.

    With ``saved``, operations do only what this plan says, and files of failed loads wait for another pass.

    Raises:
        PolicyError: there is no such table, or the policy does not fit the table.
        PlanStale: the table or its policy is not that of the saved plan.
        StorageError: the table cannot be loaded, or the state cannot be read.
        PassInterrupted: by Ctrl-C after the pass began; the journal has an entry for it.
    """
    with joined_count() as sent, keeping_documents():
        sweeps = remembered_sweeps(context)
        loaded = begin(context)
        if saved is not None:
            saved.require(loaded.metadata.uuid, context.resolved.fingerprint())
        warnings = other_state_warning(context, loaded)
        began_ms = context.started_ms if saved is None else context.clock()
        # Work outside a saved plan may be due, so its pass is not evidence that the table needs nothing.
        digest = context.resolved.digest_over(loaded.metadata) if saved is None else None
        started = PassStart(context.memory.identity, head_id(context, loaded), began_ms, digest)
        log.info("pass over %s started, run %s", context.table, context.run_id)
        done: list[OperationOutcome] = []
        planned, operations = PlannedTable(), context.policy.operations
        _announce(context, operations)
        try:
            for operation in operations:
                if waiting := why_waiting(context, operation, sweeps):
                    outcome = skipped(operation, waiting)
                elif saved is not None:
                    outcome = _reviewed(operation, context, saved.of(operation))
                elif context.dry_run:
                    outcome = _planned(operation, context, planned)
                else:
                    outcome = run_operation(operation, context)
                done.append(outcome)
            # This is not an operation, and cannot be switched off.
            staged = clean_staged_files(context) if saved is None else None
        except KeyboardInterrupt:
            interrupted, sentence = interrupted_outcome(context, loaded, operations, done)
            raise PassInterrupted(sentence, _recorded(context, replace(started, digest=None), interrupted)) from None
    whole = PassOutcome(
        table=str(context.table),
        catalog=context.catalogs.own.id.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=tuple(done),
        staged=staged,
        around=request_metrics("pass", sent.counts),
        # Unused settings are only reported in a dry run: a real pass may leave an operation to another pass.
        warnings=(*warnings, *(_about_settings(context.resolved) if context.dry_run else ())),
    )
    return _recorded(context, started, whole)


def _announce(context: OperationContext, operations: Sequence[Operation]) -> None:
    """Report the operations to which the percentages of progress refer."""
    for note in (context.progress, context.share.note):
        note(PASS + ",".join(operation.value for operation in operations), 0, 0)


def _about_settings(resolved: ResolvedPolicy) -> Iterator[str]:
    yield from unused_settings(resolved)
    yield from short_retentions(resolved)


def _recorded(context: OperationContext, started: PassStart, outcome: PassOutcome) -> PassOutcome:
    reason = context.engine.reason if isinstance(context.engine, AutoEngine) else None
    outcome = replace(with_warnings(outcome), engine=(context.engine.name, reason))
    log.info("pass over %s %s: %s", context.table, outcome.status.value, outcome.summary)
    if context.dry_run:
        return outcome
    with suppress(StorageError):  # the next pass tries again
        context.memory.forget_expired_pins()
    # If it lost its lease, or had to stop, the next pass must look again.
    is_whole = context.limits.why_stop() is None and not context.stopped and not context.limits.has_lost_lease
    return conclude(context.state, started, outcome, context.engine.name, context.clock(), is_whole=is_whole)


def _planned(operation: Operation, context: OperationContext, planned: PlannedTable) -> OperationOutcome:
    """The dry run of an operation, on the table as it is and on the table as earlier operations would leave it."""
    if not looks_at_the_table(operation):
        return run_operation(operation, context)
    on_head = None if planned.is_as_it_is else run_operation(operation, context)
    in_turn = run_operation(operation, replace(context, planned=planned))
    return in_turn if on_head is None else replace(on_head, in_turn=in_turn)


def _reviewed(
    operation: Operation, context: OperationContext, planned: Reviewed | OperationOutcome
) -> OperationOutcome:
    """Run an operation of a saved plan, which may change only the plan's files; report how many of them it left."""
    if not isinstance(planned, Reviewed):
        return planned
    done = run_operation(operation, replace(context, reviewed=planned))
    left = len(planned.files.difference(done.files_planned))
    if not left or done.status not in (Status.SUCCEEDED, Status.SKIPPED):
        return done
    note = f"left {left} file(s) of the plan unchanged: they no longer exist, are already done, or are needed now"
    return replace(done, summary=f"{done.summary}; {note}")
