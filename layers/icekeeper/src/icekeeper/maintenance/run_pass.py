"""A pass by this process: the lease, the operations in canonical order, and what an interrupt leaves."""

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
    EngineTaken,
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

# A pass that a person interrupts: what of it landed, and what is left for a later pass to clean.

NOT_BEGUN = "not begun: the pass was interrupted"


class PassInterrupted(KeyboardInterrupt):
    """A person interrupted a pass (Ctrl-C); the message is one sentence, ``outcome`` what the pass had done."""

    def __init__(self, told: str, outcome: PassOutcome) -> None:
        super().__init__(told)
        self.outcome = outcome


def interrupted_outcome(
    context: OperationContext,
    before: LoadedTable,
    operations: Sequence[Operation],
    done: Sequence[OperationOutcome],
) -> tuple[PassOutcome, str]:
    """The outcome of a pass over ``operations`` that was interrupted behind those ``done``, and a sentence about it.

    ``before`` is the table as the pass found it; it is read again, to see what landed.
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
    told = f"interrupted {where}; {what_landed}; {left}"
    if finished and not context.dry_run:
        told += f"; finished before: {', '.join(finished)}"
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=tuple(parts),
    )
    return outcome, told


def _landed(
    context: OperationContext, before: LoadedTable, done: Sequence[OperationOutcome], running: Operation | None
) -> tuple[tuple[int, ...], str]:
    """The snapshots that the interrupted operation committed, and what of the pass landed, in words."""
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


# Warns when the state of a pass may be the wrong one: a run that it knows nothing of has maintained the table.


def other_state_warning(context: OperationContext, loaded: LoadedTable) -> tuple[str, ...]:
    """A sentence for people, or none.

    A state that knows anything of the table is asked once, and only where a snapshot tells of a run.

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


# The pass: the operations of a policy over one table, in canonical order, one failing not stopping the next.

log = logging.getLogger(__name__)


def run_pass(context: OperationContext, schedule: str | None = None) -> PassOutcome:
    """Run every operation that the policy asks for now; the journal gets every pass that did something.

    Of a policy with schedules these are the ones that are due, and what no schedule names; with ``schedule`` that one
    alone, due or not.

    Raises:
        PolicyError: there is no such table or schedule, or the policy does not fit it.
        StorageError: the table cannot be loaded at all, or the state not be read.
        PassInterrupted: by Ctrl-C, once the pass had begun; the journal has an entry for it.
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
            done.append(outcome_of_one)  # one by one: Ctrl-C may come between two of them
        # Not an operation that anybody asks for or switches off (rule: clean-failed-loads-from-record).
        staged = clean_staged_files(context)
    except KeyboardInterrupt:
        planned = [operation for part in parts for operation in part.operations]
        interrupted, told = interrupted_outcome(context, loaded, planned, done)
        raise PassInterrupted(told, _recorded(context, started, interrupted, ())) from None
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=(*done, *_left_out(context, parts, runs)),
        staged=staged,
        around=request_metrics("pass", sent.counts),
        # A real pass runs often, and may leave an operation to another one.
        warnings=(*warnings, *(unused_settings(context.resolved) if context.dry_run else ())),
    )
    # A pass that lost its lease, or was told to stop, has not seen what is left to do: the next one must look anew.
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
    outcome = replace(with_warnings(outcome), engine=EngineTaken(context.engine.name, reason))
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
    """What a dry run says of an operation: on the table as it is, and on what those before it would leave."""
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


# A pass over one table by this process: it holds the table's lease, and serves the request that is pending for it.


@dataclass(frozen=True, slots=True)
class AskedPass:
    """A pass that is asked for; ``make_context`` gets the loaded table and the run's id, and may raise PolicyError."""

    catalog: Catalog
    state: StateStore
    table: TableName
    settings: Mapping[str, str]
    """What was set for this pass alone; says which request it serves."""
    make_context: Callable[[LoadedTable, str], OperationContext]
    turn: Turn | None
    """``None``: a dry run, which takes no lease and serves no request."""
    schedule: str | None = None
    """The schedule that is forced; ``None``: of a policy with schedules what is due."""

    def pending(self, loaded: LoadedTable, policy: Policy | None) -> MaintenanceRequest | None:
        """The request that the pass serves; of a policy that is wrong, one with the same settings."""
        return served_request(self.state.requests, identity_of(self.catalog, loaded), self.settings, policy)

    def claim(self, request: MaintenanceRequest | None) -> None:
        """Claim the request that was served, if there was one."""
        if request is not None:
            self.state.requests.claim(request)


def maintain_table(asked: AskedPass) -> PassOutcome:
    """Take the table's lease, run the pass, and claim the request that it served; a dry run only runs it.

    A request is claimed once its pass has ended, so that one whose process was killed is left to the next.  An error of
    the settings or the table is the answer to a request too: asking again would not change it.

    Raises:
        PolicyError: there is no such table, or its settings are wrong.
        LeaseHeld: another run maintains the table now.
        PlanStale: the pass is not needed any more, or the table was replaced; nothing was begun.
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
        if turn.wait_ms:  # the pass that was waited for has changed the table
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
    """Forget that the table was cut off: now its pass has ended (rule: cut-off-endless-tables)."""
    entry = asked.catalog.name, asked.catalog.warehouse, loaded.name.key
    try:
        forget_cut(asked.state.cut_offs, entry, *CutWork)
    except StorageError as error:
        log.warning("%s is still recorded as cut off: %s", loaded.name, error)
