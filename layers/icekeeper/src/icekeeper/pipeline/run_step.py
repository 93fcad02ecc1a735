"""Run one step of a planned pass: an operation, or the cleaning of files that failed loads left.

Every step writes its outcome to the control bucket.  A step that is repeated after it ended gives the same answer; one
that is repeated after a crash finds what the crashed attempt committed (rule: failures-cost-no-row).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.commit.attempt import operations_of_run, snapshots_of_run
from icekeeper.engines.engine import Engine
from icekeeper.errors import CommitConflict, CommitStateUnknown, PlanStale, StorageError
from icekeeper.maintenance.pass_steps import begin, run_operation
from icekeeper.operations.clean_staging import clean_staged_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.stores import sharing_reads
from icekeeper.pipeline.control_bucket import ListedOrphans, PassDocuments, table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import MAX_SENTENCE, OperationEvent
from icekeeper.pipeline.run_leases import held_table_lease, table_lease_ttl_ms
from icekeeper.policy import Operation
from icekeeper.report.activity import Progress, operation_finished, operation_started, silent
from icekeeper.report.outcome import OperationOutcome, Status, operation_document, refused_besides
from icekeeper.storage.storage import KnownFiles

log = logging.getLogger(__name__)

# The state machine knows these by name, and tries again.
RETRIED = (PlanStale, CommitConflict, CommitStateUnknown, StorageError)
LISTED_ORPHANS = "list_orphans"
# Metrics that only the step which lists the orphans can count.
_LISTING_METRICS = tuple(
    f"remove_orphans.{what}"
    for what in ("files_listed", "files_too_young", "bytes_left", "files_missing", "files_like_missing")
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step with what it needs, checked against its plan."""

    deployment: Deployment
    event: OperationEvent
    folder: str
    """The key prefix of the table's documents in the control bucket."""
    context: OperationContext
    loaded: LoadedTable
    schedule: str | None = None
    """The schedule of the policy under whose settings it runs."""

    @property
    def documents(self) -> PassDocuments:
        """Those of the table's pass."""
        return self.deployment.documents(self.event.run_id, self.event.item)


@sharing_reads()
def run_step(
    deployment: Deployment,
    event: OperationEvent,
    engine: Engine,
    *,
    max_bytes: int | None = None,
    time_left_s: Callable[[], float] | None = None,
    progress: Progress = silent,
) -> Mapping[str, Any]:
    """Carry the step out and return its status and summary.

    ``max_bytes`` is how many bytes of input this function or job can rewrite, ``time_left_s`` how many seconds are left
    for it; the rest is left to the next run.

    Raises:
        PlanStale: the table was replaced or its policy changed: plan again.
        LeaseLost: another run maintains the table.
        OperationRefused: the plan is not the one that was made.
        CommitConflict, CommitStateUnknown, StorageError: to be tried again.
    """
    folder = table_folder(event.run_id, event.item.identity.spelling)
    done = deployment.documents(event.run_id, event.item).outcome(event.step)
    if done is not None:
        return _answer(done)
    step = open_step(deployment, event, engine, progress=progress)
    step = replace(step, context=replace(step.context, time_left_s=time_left_s))
    if not isinstance(event.operation, Operation):
        told, started_s = (event.item.table, event.step, event.run_id), time.monotonic()
        operation_started(*told)
        staged = clean_staged_files(step.context)
        listing = deployment.control.listings(folder)
        document = {"staged": None if staged is None else staged.to_json(event.run_id, listing)}
        summary = "no files of failed loads to clean" if staged is None else staged.summary
        seconds = time.monotonic() - started_s
        operation_finished(*told, status=Status.SUCCEEDED.value, summary=summary, seconds=seconds)
        return _finish(step, {**document, "status": Status.SUCCEEDED.value, "summary": summary})
    before = _commits_before(step)
    listed = _listed(step) if event.operation is Operation.REMOVE_ORPHANS else None
    context = step.context if listed is None else _with_listed_orphans(step.context, listed)
    if max_bytes is not None:
        context = _limited(context, max_bytes)
    outcome = run_operation(event.operation, context, reraised=RETRIED)
    outcome = replace(_with_earlier_commits(step, outcome, before), schedule=step.schedule)
    if listed is not None:
        counted = {key: listed["metrics"].get(key, 0) for key in _LISTING_METRICS}
        outcome = replace(outcome, metrics={**outcome.metrics, **counted})
        if listed.get("refused") is not None and outcome.status is Status.SUCCEEDED:
            outcome = refused_besides(outcome, listed["refused"])
    return _finish(step, operation_document(outcome, event.run_id, deployment.control.listings(folder)))


@sharing_reads()
def list_orphans(deployment: Deployment, event: OperationEvent, engine: Engine) -> Mapping[str, Any]:
    """Find the orphans of a table and write them to the control bucket; ``count`` in the answer says how many.

    The removal is left out when ``count`` is 0.  With a quarantine (``orphan_min_sightings`` above 1) every pass must
    record what it saw, so that the removal lists the orphans itself, and ``count`` is at least 1.

    Raises:
        MaintenanceError: as :func:`run_step`.
    """
    step = open_step(deployment, event, engine, dry_run=True)
    context = replace(step.context, only_lists=True)  # this function has no right to delete
    outcome = run_operation(Operation.REMOVE_ORPHANS, context, reraised=RETRIED)
    outcome = replace(outcome, schedule=step.schedule)
    document = outcome.to_json(event.run_id, deployment.control.listings(f"{step.folder}/listed"))
    must_record = step.context.policy.orphan_min_sightings > 1
    # A refusal that kept the copies of missing files only has found what may go.
    is_found = outcome.status is Status.SUCCEEDED or "remove_orphans.files_like_missing" in outcome.metrics
    if not is_found or (not outcome.files_planned and not must_record):
        # Nothing will follow: this is the outcome of the operation.
        done = (
            outcome if outcome.status is not Status.SUCCEEDED else replace(outcome, summary="removed 0 orphan file(s)")
        )
        done_document = done.to_json(event.run_id, deployment.control.listings(step.folder))
        deployment.control.write(f"{step.folder}/{Operation.REMOVE_ORPHANS.value}.json", done_document)
        return {**_answer(done_document), "count": 0}
    if not must_record:
        paths = list(outcome.files_planned)
        listed = {
            "plan": event.plan.digest,
            "paths": paths,
            "metrics": document["metrics"],
            "refused": outcome.reason,
        }
        deployment.control.write(f"{step.folder}/{LISTED_ORPHANS}.json", listed)
    return {**_answer(document), "count": max(1, len(outcome.files_planned))}


def open_step(
    deployment: Deployment,
    event: OperationEvent,
    engine: Engine,
    *,
    dry_run: bool = False,
    progress: Progress = silent,
) -> Step:
    """Read the plan, load the table, check that the plan still fits it, and prolong the table's lease.

    Raises:
        PlanStale: the table was replaced, its policy changed, or another version of Icekeeper wrote the plan.
        LeaseLost: another run maintains the table.
        OperationRefused: the plan is not the one that was made.
        PolicyError: the table is gone.
        StorageError: something cannot be read.
    """
    plan = deployment.documents(event.run_id, event.item).plan(event.plan)
    runtime = deployment.runtime(event.item)
    loaded = runtime.catalog.load(event.item.name)
    if not identity_of(runtime.catalog, loaded).is_same_copy(event.item.identity):
        raise PlanStale(f"{event.item.table} was replaced by another table since it was planned")
    resolved = runtime.policy(loaded, event.item.settings)
    if resolved.fingerprint() != plan.fingerprint:
        raise PlanStale(f"the policy of {event.item.table} changed since it was planned")
    schedule = plan.schedule_of(event.step)
    is_proposed = event.item.is_proposed and not resolved.names_operations(schedule)
    resolved = resolved.unscheduled() if schedule is None else resolved.of_schedule(schedule)
    lease = held_table_lease(deployment, event.run_id, event.item, table_lease_ttl_ms(resolved.policy))
    context = replace(
        runtime.context(
            loaded,
            resolved,
            engine,
            run_id=event.run_id,
            started_ms=plan.started_ms,
            dry_run=dry_run,
            progress=progress,
        ),
        lease=lease,
        is_proposed=is_proposed,
    )
    begin(context, loaded=loaded)
    folder = table_folder(event.run_id, event.item.identity.spelling)
    return Step(deployment, event, folder, context, loaded, schedule)


def _finish(step: Step, document: Mapping[str, Any]) -> Mapping[str, Any]:
    step.documents.write_outcome(step.event.step, document)
    return _answer(document)


def _answer(document: Mapping[str, Any]) -> Mapping[str, Any]:
    # A payload of the state machine stays small whatever the sentence says.
    return {"status": document["status"], "summary": str(document["summary"])[:MAX_SENTENCE]}


def _limited(context: OperationContext, max_bytes: int) -> OperationContext:
    """The context with at most ``max_bytes`` to rewrite: the table may have grown since it was planned.

    What exceeds the limit waits for the next plan, which sends it to a job.
    """
    policy = context.resolved.policy
    allowed = max_bytes if policy.max_bytes_to_rewrite is None else min(max_bytes, policy.max_bytes_to_rewrite)
    limited = policy.model_copy(update={"max_bytes_to_rewrite": allowed})
    return replace(context, resolved=replace(context.resolved, policy=limited))


def _commits_before(step: Step) -> frozenset[int]:
    """The ids of the snapshots that this run had committed before the step's first attempt, which records them.

    What says that it is of this very operation is of an attempt in a call that kept no record
    (rule: record-outcomes-as-they-happen).
    """
    begun = step.documents.begun(step.event.step)
    if begun is None:
        committed = operations_of_run(step.event.run_id, step.loaded.metadata).items()
        begun = {"snapshot_ids": [number for number, operation in committed if operation != step.event.step]}
        step.documents.write_begun(step.event.step, begun)
    return frozenset(begun["snapshot_ids"])


def _with_earlier_commits(step: Step, outcome: OperationOutcome, before: frozenset[int]) -> OperationOutcome:
    """The outcome, extended by what another attempt at this step committed before it crashed, or beside this one.

    What failed, or found nothing to do, may have been overtaken by an attempt of the same run, whose outcome this one
    replaces (rule: concurrent-calls-lose-nothing).
    """
    may_be_overtaken = outcome.status is not Status.SUCCEEDED
    metadata = (step.context.load() if may_be_overtaken else step.loaded).metadata
    own = snapshots_of_run(step.event.run_id, metadata)
    earlier = [number for number in own if number not in (*before, *outcome.snapshot_ids)]
    if not earlier:
        return outcome
    log.info("%s: an earlier attempt of this step committed %s", step.event.item.table, earlier)
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


def _with_listed_orphans(context: OperationContext, listed: Mapping[str, Any]) -> OperationContext:
    """The context whose orphan removal looks only at the listed paths; every guard checks each of them again."""
    # The listing step has checked their share of all files; of the candidates alone that share is always 1.
    policy = context.resolved.policy.model_copy(update={"orphan_max_delete_ratio": 1})
    candidates = KnownFiles(tuple(listed["paths"]))
    return replace(context, resolved=replace(context.resolved, policy=policy), orphan_candidates=candidates)


def _listed(step: Step) -> Mapping[str, Any] | None:
    """What was listed under this very plan: the policy of another plan may allow more to be deleted."""
    found = step.deployment.control.find_object(f"{step.folder}/{LISTED_ORPHANS}.json", ListedOrphans)
    return found if found is not None and found["plan"] == step.event.plan.digest else None
