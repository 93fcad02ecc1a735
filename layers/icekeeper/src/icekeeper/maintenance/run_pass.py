"""A pass over one table by this process: take the lease, run the operations, serve the pending request.

:func:`maintain_table` is the entry.  :func:`run_pass` runs the operations of a policy in canonical order; an operation
that fails does not stop the next one.  A pass that a person interrupts reports which commits landed, and what a later
pass will clean.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.commit.attempt import newest_run, snapshots_of_run
from icekeeper.errors import MaintenanceError, PlanStale, PolicyError, StorageError, TableUnsupported
from icekeeper.machine.metering import RequestCount, counting, joined_count
from icekeeper.machine.resources import search_cycles_seldom
from icekeeper.maintenance.begin_and_end_pass import (
    DonePart,
    PassStart,
    begin,
    conclude,
    head_id,
    of_part,
    remembered_turns,
    why_waiting,
    with_warnings,
)
from icekeeper.maintenance.run_operation import run_operation
from icekeeper.maintenance.table_lease import Turn, leased, served_request
from icekeeper.model import TableName
from icekeeper.operation_facts import FACTS
from icekeeper.operations.clean_staging import clean_staged_files
from icekeeper.pass_context.context import CountedEngine, OperationContext
from icekeeper.pass_context.planned_table import PlannedTable
from icekeeper.policy import Operation, Policy
from icekeeper.policy.due import PolicyPart, due_parts, forced_part, why_not_now
from icekeeper.policy.resolve import unused_settings
from icekeeper.report.outcome import (
    OperationOutcome,
    PassOutcome,
    Status,
    failed,
    looks_at_the_table,
    request_metrics,
    skipped,
)
from icekeeper.state.claims import CutWork, forget_cut
from icekeeper.state.identity import STATE_VARIABLE
from icekeeper.state.store import MaintenanceRequest, ScheduleRun, StateStore

log = logging.getLogger(__name__)

NOT_BEGUN = "not begun: the pass was interrupted"


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
    schedule: str | None = None
    """The schedule to run, due or not; ``None``: what is due."""

    def pending(self, loaded: LoadedTable, policy: Policy | None) -> MaintenanceRequest | None:
        """The pending request that the pass serves; ``policy`` is ``None`` if the settings are wrong."""
        return served_request(self.state.requests, identity_of(self.catalog, loaded), self.settings, policy)

    def claim(self, request: MaintenanceRequest | None) -> None:
        """Claim the served request, if any."""
        if request is not None:
            self.state.requests.claim(request)


def maintain_table(asked: AskedPass) -> PassOutcome:
    """Take the table's lease, run the pass, and claim the request that it served; a dry run only runs the pass.

    A request is claimed after its pass, so that the next pass serves it if this process is killed.  An error of the
    settings or the table also answers the request, because a repetition would fail, too.

    Raises:
        PolicyError: there is no such table, or its settings are wrong.
        LeaseHeld: another run maintains the table now.
        PlanStale: the pass is no longer needed, or the table was replaced; nothing was begun.
        StorageError: the table cannot be loaded, or the state does not answer.
    """
    search_cycles_seldom()
    with asked.state.kept_open(), counting(), keeping_documents():
        return _maintain(asked)


def _maintain(asked: AskedPass) -> PassOutcome:
    run_id, turn = str(uuid.uuid4()), asked.turn
    loaded = asked.catalog.load(asked.table)
    if turn is None:
        return run_pass(asked.make_context(loaded, run_id), asked.schedule)
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
        if reason := turn.why_not():
            raise PlanStale(reason)
        request = asked.pending(loaded, context.policy)
        try:
            ours = replace(context, lease=lease, why_stop=turn.why_stop, is_proposed=turn.is_proposed)
            outcome = run_pass(ours, asked.schedule)
        except (PolicyError, TableUnsupported):
            asked.claim(request)
            raise
        if not lease.is_lost and turn.why_stop() is None:
            asked.claim(request)
        _forget_cuts(asked, loaded)
        return outcome


def _forget_cuts(asked: AskedPass, loaded: LoadedTable) -> None:
    """Forget that the table was cut off, because its pass has ended now (rule: cut-off-endless-tables)."""
    entry = asked.catalog.name, asked.catalog.warehouse, loaded.name.key
    try:
        forget_cut(asked.state.cut_offs, entry, *CutWork)
    except StorageError as error:
        log.warning("%s is still recorded as cut off: %s", loaded.name, error)


class PassInterrupted(KeyboardInterrupt):
    """A person interrupted a pass (Ctrl-C); the message is one sentence, ``outcome`` the pass so far."""

    def __init__(self, sentence: str, outcome: PassOutcome) -> None:
        super().__init__(sentence)
        self.outcome = outcome


def interrupted_outcome(
    context: OperationContext,
    before: LoadedTable,
    operations: Sequence[Operation],
    done: Sequence[OperationOutcome],
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
        catalog=context.catalog.name,
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
        return (), "it makes no commit, and deletes only what nothing needs"
    try:
        now = context.load()
    except MaintenanceError as error:
        return (), f"whether a commit landed is not known, because the table cannot be read ({error})"
    if now.metadata_location == before.metadata_location:
        return (), "nothing landed, the table is unchanged"
    known = {snapshot_id for outcome in done for snapshot_id in outcome.snapshot_ids}
    ours = tuple(i for i in snapshots_of_run(context.run_id, now.metadata) if i not in known)
    if ours:
        return ours, f"{len(ours)} commit(s) of it landed, every one of them whole"
    expired = before.metadata.snapshots.keys() - now.metadata.snapshots.keys()
    if running is Operation.EXPIRE_SNAPSHOTS and expired:
        return (), "the commit that expired snapshots landed"
    return (), "nothing of it landed"


def _left_to_clean(context: OperationContext) -> str:
    if context.dry_run:
        return "nothing is left to clean"
    try:
        loads = [load for load in context.memory.staged_loads() if load.name.startswith(f"{context.run_id}:")]
        lists = context.memory.unfinished_deletions()
    except StorageError as error:
        return f"what is left to clean cannot be read ({error})"
    left = []
    if loads:
        count = sum(load.file_count for load in loads)
        left.append(f"what was written of {count} output file(s) is on record, and a later pass deletes it")
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
    if known.last_seen or known.schedules or known.loads or known.pins or context.state.history(identity, limit=1):
        return ()
    return (
        f"run {found[1]} committed snapshot {found[0]}, and the state of this pass has seen no pass over the table: "
        f"what is pinned or staged in another state is not protected here; name that state with {STATE_VARIABLE}, "
        "unless it is lost",
    )


def run_pass(context: OperationContext, schedule: str | None = None) -> PassOutcome:
    """Run every operation that the policy asks for now; a pass that changed something is recorded in the journal.

    If the policy has schedules, these are the due schedules and the operations that no schedule names.  With
    ``schedule``, only this one runs, due or not.

    Raises:
        PolicyError: there is no such table or schedule, or the policy does not fit the table.
        StorageError: the table cannot be loaded, or the state cannot be read.
        PassInterrupted: by Ctrl-C after the pass began; the journal has an entry for it.
    """
    with joined_count() as sent, keeping_documents():
        return _run_pass(context, schedule, sent)


def _run_pass(context: OperationContext, schedule: str | None, sent: RequestCount) -> PassOutcome:
    resolved = context.resolved
    runs = remembered_turns(context)
    if schedule is None:
        parts = due_parts(resolved, runs, context.started_ms)
    else:
        parts = (forced_part(resolved, schedule, str(context.table)),)
    loaded = begin(context, [part.resolved for part in parts])
    warnings = other_state_warning(context, loaded)
    started = PassStart(context.memory.identity, head_id(context, loaded), context.started_ms)
    log.info("pass over %s started, run %s", context.table, context.run_id)
    done: list[OperationOutcome] = []
    try:
        for outcome_of_one in _operations(context, parts, runs):
            done.append(outcome_of_one)  # one by one, because Ctrl-C may come between two of them
        # This is no operation, and cannot be switched off (rule: clean-failed-loads-from-record).
        staged = clean_staged_files(context)
    except KeyboardInterrupt:
        planned = [operation for part in parts for operation in part.operations]
        interrupted, sentence = interrupted_outcome(context, loaded, planned, done)
        raise PassInterrupted(sentence, _recorded(context, started, interrupted, ())) from None
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=(*done, *_left_out(context, parts, runs)),
        staged=staged,
        around=request_metrics("pass", sent.counts),
        # Unused settings are only reported in a dry run: a real pass may leave an operation to another pass.
        warnings=(*warnings, *(unused_settings(context.resolved) if context.dry_run else ())),
    )
    # A pass that lost its lease, or had to stop, has not finished: the next pass must look again.
    if context.why_stop() is not None or (context.lease is not None and context.lease.is_lost):
        return _recorded(context, started, outcome, () if schedule else (DonePart(None, ""),))
    ended = [
        DonePart(part.schedule, part.resolved.fingerprint(), resolved.schedules[part.schedule].interval_ms)
        for part in parts
        if part.schedule is not None and resolved.why_disabled() is None
    ]
    if schedule is None:
        ended.append(DonePart(None, resolved.fingerprint()))
    return _recorded(context, started, outcome, ended)


def _recorded(
    context: OperationContext, started: PassStart, outcome: PassOutcome, parts: Sequence[DonePart]
) -> PassOutcome:
    reason = context.engine.reason if isinstance(context.engine, CountedEngine) else None
    outcome = replace(with_warnings(outcome), engine=(context.engine.name, reason))
    log.info("pass over %s %s: %s", context.table, outcome.status.value, outcome.summary)
    if context.dry_run:
        return outcome
    return conclude(context.state, started, outcome, parts, context.engine.name, context.clock())


def _operations(
    context: OperationContext, parts: Sequence[PolicyPart], runs: Mapping[str, ScheduleRun]
) -> Iterator[OperationOutcome]:
    planned = PlannedTable()
    for part in parts:
        settings = of_part(context, part.resolved, part.schedule)
        for operation in part.operations:
            waiting = why_waiting(context, part, operation, runs)
            if waiting is not None:
                outcome = skipped(operation, waiting)
            elif context.dry_run:
                outcome = _planned(operation, settings, planned)
            else:
                outcome = run_operation(operation, settings)
            yield replace(outcome, schedule=part.schedule)


def _planned(operation: Operation, context: OperationContext, planned: PlannedTable) -> OperationOutcome:
    """The dry run of an operation, on the table as it is and on the table as earlier operations would leave it."""
    if not looks_at_the_table(operation):
        return run_operation(operation, context)
    on_head = None if planned.is_as_it_is else run_operation(operation, context)
    in_turn = run_operation(operation, replace(context, planned=planned))
    return in_turn if on_head is None else replace(on_head, in_turn=in_turn)


def _left_out(
    context: OperationContext, parts: Sequence[PolicyPart], runs: Mapping[str, ScheduleRun]
) -> Iterator[OperationOutcome]:
    reasons = why_not_now(context.resolved, parts, runs, context.started_ms)
    return (skipped(operation, reason) for operation, reason in reasons.items())
