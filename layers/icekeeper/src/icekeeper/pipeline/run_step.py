"""Run the steps of a table's pass: operations, and the cleanup of files that failed loads left.

Every step writes its outcome to the control bucket. A step that is repeated after it ended returns the same outcome; a
step that is repeated after a crash finds what the crashed attempt committed (rule: failures-cost-no-row).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.commit.attempt import operations_of_run, snapshots_of_run
from icekeeper.engines.engine import Engine
from icekeeper.errors import (
    CommitConflict,
    CommitStateUnknown,
    DeletionsWait,
    FleetBusy,
    LeaseHeld,
    LeaseLost,
    LocationRefused,
    MaintenanceError,
    OperationRefused,
    PlanStale,
    StorageError,
    SwitchedOff,
    TableBusy,
)
from icekeeper.maintenance.pass_steps import begin, run_operation
from icekeeper.model import Nothing
from icekeeper.operation_facts import CLEAN_STAGED, STEPS, Stage, steps_of_call
from icekeeper.operations.clean_staging import clean_staged_files
from icekeeper.pass_context.context import OperationContext, PassLimits
from icekeeper.pass_context.stores import sharing_reads
from icekeeper.pipeline.control_bucket import (
    BegunStep,
    ListedOrphans,
    PassDocuments,
    PlanDocument,
    StageItem,
    stage_key,
)
from icekeeper.pipeline.deployment import LEAST_CALL_S, Deployment
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.run_leases import held_table
from icekeeper.policy import Operation
from icekeeper.report.activity import Progress, operation_finished, operation_started, silent
from icekeeper.report.outcome import (
    OperationOutcome,
    Status,
    failed,
    operation_document,
    refused,
    refused_besides,
    skipped,
)
from icekeeper.state.leases import HeldLease
from icekeeper.storage.storage import KnownFiles

log = logging.getLogger(__name__)

# The state machine retries these errors, which it knows by name.
RETRIED = (CommitConflict, CommitStateUnknown, StorageError)
# Metrics that only the step that lists the orphans can count.
_LISTING_METRICS = tuple(
    f"remove_orphans.{what}"
    for what in ("files_listed", "files_too_young", "bytes_left", "files_missing", "files_like_missing")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """What a function or job does of a table's pass."""

    deployment: Deployment
    run_id: str
    started_ms: int
    """The start of the run, epoch milliseconds: the value of ``now()`` in the policy."""
    item: Item
    engine: Engine
    in_job: bool = False
    max_bytes: int | None = None
    """How many bytes of input this function or job can rewrite; the rest is left to a later run."""
    time_left_s: Callable[[], float] | None = None
    """How many seconds are left for the work."""
    listed: str | None = None
    """The digest of the orphan list that :func:`list_orphans` wrote; ``None``: the removal lists orphans itself."""
    progress: Progress = silent

    @property
    def documents(self) -> PassDocuments:
        return PassDocuments(self.deployment.control, self.run_id, self.item)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step with everything that it needs, checked against the table's plan."""

    work: TableWork
    name: str
    plan: PlanDocument
    context: OperationContext
    loaded: LoadedTable


@sharing_reads()
def run_steps(work: TableWork, steps: Sequence[str], plan: PlanDocument | None = None) -> Mapping[str, str]:
    """Carry out steps of a planned table, in order, under its lease; return step → status and summary.

    ``plan`` is the table's, if it was read already.  After an expiry the manifests are known: if they need no rewrite,
    the outcome of that later step is written and returned, too.

    A failed step does not stop the others; its outcome records the failure. A transient error is written beside the
    outcomes and raised after all steps; a repetition does only the steps without an outcome. A step whose plan is stale
    is left to a later run.

    Raises:
        LeaseHeld, TableBusy, FleetBusy: nothing was done.
        LeaseLost: another run has taken over the table.
        CommitConflict, CommitStateUnknown, StorageError: transient; try again.
    """
    documents, results = work.documents, dict[str, str]()
    todo = [step for step in steps if documents.outcome(step) is None]
    plan = plan or (documents.plan() if todo else None)
    if plan is None or not todo:
        return results
    try:
        with held_table(work.deployment, work.run_id, work.item, in_job=work.in_job) as lease:
            transient = _in_turn(work, plan, todo, lease, results)
    except LeaseHeld as held:
        _leave_to_other(documents, todo, held)
        raise
    if transient:
        raise transient[0]
    return results


def _leave_to_other(documents: PassDocuments, steps: Sequence[str], held: LeaseHeld) -> None:
    """Record that another run maintained the table, unless this run is to wait and tries again."""
    if not isinstance(held, TableBusy):
        for step in steps:
            documents.write_left(step, f"another run maintained the table: {held}")


def _in_turn(
    work: TableWork, plan: PlanDocument, steps: Sequence[str], lease: HeldLease, results: dict[str, str]
) -> list[MaintenanceError]:
    """Carry out each step and add its status and summary to ``results``; return the transient errors."""
    documents, transient = work.documents, list[MaintenanceError]()
    for step in steps:
        if step in results:  # an earlier step has shown that nothing is due
            continue
        try:
            results.update(_run_step(work, plan, step, lease))
        except (PlanStale, SwitchedOff) as stale:
            documents.write_left(step, str(stale))
            results[step] = f"left to a later run: {stale}"
        except (*RETRIED, LeaseLost) as error:
            documents.write_failure(step, error)
            if isinstance(error, LeaseLost):
                raise
            transient.append(error)
        except Exception as error:  # a bug, or a defect of this table: the other steps continue
            if not isinstance(error, MaintenanceError):
                log.exception("%s: %s failed unexpectedly", work.item.table, step)
            write_error(documents, work.run_id, step, error)
            results[step] = f"failed: {type(error).__name__}: {error}"
    return transient


def write_error(documents: PassDocuments, run_id: str, step: str, error: Exception) -> None:
    """Write the outcome of a step that raised an error."""
    sentence = f"{type(error).__name__}: {error}"
    if step == CLEAN_STAGED:
        documents.write_failure(step, error)
        return
    if isinstance(error, OperationRefused | LocationRefused):
        outcome = refused(Operation(step), sentence, waits=isinstance(error, DeletionsWait))
    else:
        outcome = failed(Operation(step), sentence)
    documents.write_outcome(step, operation_document(outcome, run_id, documents.listings()))


def _run_step(work: TableWork, plan: PlanDocument, name: str, lease: HeldLease) -> Mapping[str, str]:
    step = _open_step(work, plan, name, lease)
    if name == CLEAN_STAGED:
        return {name: _clean_staged(step)}
    operation = Operation(name)
    before = _commits_before(step)
    listed = None
    if operation is Operation.REMOVE_ORPHANS and work.listed is not None:
        listed = work.documents.listed(work.listed)
    context = step.context if listed is None else _of_listed_orphans(step.context)
    options = {} if listed is None else {"listed": KnownFiles(tuple(listed.paths))}
    if work.max_bytes is not None:
        context = _limited(context, work.max_bytes)
    outcome = run_operation(operation, context, options=options, reraised=(*RETRIED, SwitchedOff))
    outcome = _with_earlier_commits(step, outcome, before)
    if listed is not None:
        counted = {key: listed.metrics.get(key, 0) for key in _LISTING_METRICS}
        outcome = replace(outcome, metrics={**outcome.metrics, **counted})
        if listed.refused is not None and outcome.status is Status.SUCCEEDED:
            outcome = refused_besides(outcome, listed.refused)
    done = {name: _write_outcome(step, outcome)}
    if operation is Operation.EXPIRE_SNAPSHOTS and plan.routes.get(Operation.REWRITE_MANIFESTS) == "function":
        idle = _idle_manifests(step)
        return done if idle is None else {**done, idle.operation.value: _write_outcome(step, idle)}
    return done


def _write_outcome(step: _Step, outcome: OperationOutcome) -> str:
    """Write the outcome of an operation; its status and summary."""
    documents = step.work.documents
    document = operation_document(outcome, step.work.run_id, documents.listings())
    documents.write_outcome(outcome.operation.value, document)
    return f"{document['status']}: {document['summary']}"


def _idle_manifests(step: _Step) -> OperationOutcome | None:
    """The outcome of ``rewrite_manifests`` if the manifest list, which expiry has read, shows that nothing is due.

    A call that finds this out itself costs as much as an expiry.
    """
    from icekeeper.operations.manifests.rewrite_manifests import planned  # no other function needs both

    try:
        found = planned(step.context, step.loaded)
    except MaintenanceError as error:  # the step itself reports it
        log.info("%s: the manifests cannot be planned yet: %s", step.work.item.table, error)
        return None
    return skipped(Operation.REWRITE_MANIFESTS, found.reason) if isinstance(found, Nothing) else None


def _clean_staged(step: _Step) -> str:
    work = step.work
    about, started_s = (work.item.table, step.name, work.run_id), time.monotonic()
    operation_started(*about)
    staged = clean_staged_files(step.context)
    document = {"staged": None if staged is None else staged.to_json(work.run_id, work.documents.listings())}
    summary = "no files of failed loads to clean" if staged is None else staged.summary
    seconds = time.monotonic() - started_s
    operation_finished(*about, status=Status.SUCCEEDED.value, summary=summary, seconds=seconds)
    work.documents.write_outcome(step.name, {**document, "status": Status.SUCCEEDED.value, "summary": summary})
    return summary


def steps_for(plan: PlanDocument | None, call: str) -> list[str]:
    """The steps that a table's plan assigns to a function, of those that a call does, in canonical order."""
    mine, routes = steps_of_call(call), {} if plan is None else plan.routes
    return [step for step in STEPS if step in mine and routes.get(step) == "function"]


def clean_tables(
    deployment: Deployment, run_id: str, work_on: Callable[[Item], TableWork], time_left_s: Callable[[], float]
) -> tuple[int, int]:
    """Clean up after the failed loads of a run's tables; return how many tables were cleaned and how many are left.

    ``work_on`` creates the work of a table. A table that fails does not stop the others; its failure is written to its
    documents.
    """
    tables = deployment.control.find_objects(stage_key(run_id, Stage.STAGED), StageItem)
    done = 0
    for table in tables:
        work = work_on(table.item)
        if time_left_s() < LEAST_CALL_S:
            break
        try:
            run_steps(work, [CLEAN_STAGED])
            done += 1
        except MaintenanceError as error:
            log.warning("%s: %s: %s", table.item.table, type(error).__name__, error)
    return done, len(tables) - done


@sharing_reads()
def list_orphans(work: TableWork) -> tuple[int, str | None]:
    """Find the orphans of a table and write them to the control bucket; return their number and the list's digest.

    Without orphans the removal step is skipped.

    Raises:
        MaintenanceError: as :func:`run_steps`; it is written beside the outcomes.
    """
    documents, name = work.documents, Operation.REMOVE_ORPHANS.value
    plan = documents.plan()
    if plan is None or documents.outcome(name) is not None:
        return 0, None
    try:
        with held_table(work.deployment, work.run_id, work.item) as lease:
            step = _open_step(work, plan, name, lease, dry_run=True)
            return _list_orphans(step)
    except PlanStale as stale:
        documents.write_left(name, str(stale))
        return 0, None
    except LeaseHeld as held:
        _leave_to_other(documents, [name], held)
        raise
    except Exception as error:
        if not isinstance(error, FleetBusy):  # the state machine retries FleetBusy
            documents.write_failure(name, error)
        raise


def _list_orphans(step: _Step) -> tuple[int, str | None]:
    work, documents = step.work, step.work.documents
    context = step.context
    _commits_before(step)  # records that the step has begun: a killed listing exceeds what a function can do
    options = {"only_lists": True}  # this function has no right to delete
    outcome = run_operation(Operation.REMOVE_ORPHANS, context, options=options, reraised=RETRIED)
    # A refusal that only kept copies of missing files has still found deletable files.
    is_found = outcome.status is Status.SUCCEEDED or "remove_orphans.files_like_missing" in outcome.metrics
    if not is_found or not outcome.files_planned:
        # No removal follows, so this is the outcome of the operation.
        if outcome.status is Status.SUCCEEDED:
            outcome = replace(outcome, summary="removed 0 orphan file(s)")
        documents.write_outcome(step.name, outcome.to_json(work.run_id, documents.listings()))
        return 0, None
    document = outcome.to_json(work.run_id, documents.control.listings(f"{documents.folder}/listed"))
    listed = ListedOrphans(paths=list(outcome.files_planned), metrics=document["metrics"], refused=outcome.reason)
    return len(listed.paths), documents.write_listed(listed)


def _open_step(work: TableWork, plan: PlanDocument, name: str, lease: HeldLease, *, dry_run: bool = False) -> _Step:
    """Load the table and check that it is the planned table, under the same policy.

    Raises:
        PlanStale: the table was replaced, or its policy changed.
        PolicyError: the table no longer exists.
        StorageError: the table or the state cannot be read.
    """
    item = work.item
    runtime = work.deployment.runtime(item)
    loaded = runtime.catalog.load(item.name)
    if not identity_of(runtime.catalog, loaded).is_same_copy(item.identity):
        raise PlanStale(f"{item.table} was replaced by another table since it was planned")
    resolved = runtime.policy(loaded, item.settings)
    if resolved.fingerprint() != plan.fingerprint:
        raise PlanStale(f"the policy of {item.table} changed since it was planned")
    if name != CLEAN_STAGED and Operation(name) not in resolved.policy.operations:
        # Anybody with write access to the control bucket may have changed the plan (rule: documents-are-not-trusted).
        raise PlanStale(f"the policy of {item.table} does not include {name}")
    context = replace(
        runtime.context(
            loaded,
            resolved,
            work.engine,
            run_id=work.run_id,
            started_ms=work.started_ms,
            dry_run=dry_run,
            progress=work.progress,
        ),
        limits=PassLimits(lease=lease, left_s=work.time_left_s),
        is_proposed=item.is_proposed,
    )
    begin(context, loaded=loaded)
    return _Step(work, name, plan, context, loaded)


def _limited(context: OperationContext, max_bytes: int) -> OperationContext:
    """The context with at most ``max_bytes`` to rewrite: the table may have grown since it was planned.

    The rest waits for the next plan, which sends it to a job.
    """
    policy = context.resolved.policy
    allowed = max_bytes if policy.max_bytes_to_rewrite is None else min(max_bytes, policy.max_bytes_to_rewrite)
    limited = policy.model_copy(update={"max_bytes_to_rewrite": allowed})
    return replace(context, resolved=replace(context.resolved, policy=limited))


def _commits_before(step: _Step) -> frozenset[int]:
    """The ids of the snapshots that this run committed before the step's first attempt; that attempt records them."""
    documents = step.work.documents
    begun = documents.begun(step.name)
    if begun is None:
        committed = operations_of_run(step.work.run_id, step.loaded.metadata).items()
        begun = BegunStep(snapshot_ids=[number for number, operation in committed if operation != step.name])
        documents.write_begun(step.name, begun)
    return frozenset(begun.snapshot_ids)


def _with_earlier_commits(step: _Step, outcome: OperationOutcome, before: frozenset[int]) -> OperationOutcome:
    """Add the commits of another attempt at this step, which crashed or ran at the same time, to the outcome.

    An attempt that failed or found nothing to do may have been overtaken by another attempt of the same run, whose
    outcome this outcome replaces (rule: failures-cost-no-row).
    """
    may_be_overtaken = outcome.status is not Status.SUCCEEDED
    metadata = (step.context.load() if may_be_overtaken else step.loaded).metadata
    own = snapshots_of_run(step.work.run_id, metadata)
    earlier = [number for number in own if number not in (*before, *outcome.snapshot_ids)]
    if not earlier:
        return outcome
    log.info("%s: an earlier attempt of this step committed %s", step.work.item.table, earlier)
    metrics = dict(outcome.metrics)
    for number in earlier if outcome.operation is Operation.COMPACT else ():
        summary = metadata.snapshots[number].summary
        for metric, counter in (("files_merged", "deleted-data-files"), ("files_written", "added-data-files")):
            name = f"compact.{metric}"
            metrics[name] = metrics.get(name, 0) + int(summary.get(counter, "0"))
    sentence = f"committed by an earlier attempt: {', '.join(map(str, earlier))}"
    was_idle = outcome.status is Status.SKIPPED
    return replace(
        outcome,
        status=Status.SUCCEEDED if was_idle else outcome.status,
        reason=None if was_idle else outcome.reason,
        summary=sentence if was_idle else f"{outcome.summary}; {sentence}",
        snapshot_ids=(*earlier, *outcome.snapshot_ids),
        metrics=metrics,
    )


def _of_listed_orphans(context: OperationContext) -> OperationContext:
    """The context for removing listed orphans: all guards check every file again, except the guard of their share.

    The listing step has checked their share of all files; among the listed files alone that share is always 1.
    """
    policy = context.resolved.policy.model_copy(update={"orphan_max_delete_ratio": 1})
    return replace(context, resolved=replace(context.resolved, policy=policy))
