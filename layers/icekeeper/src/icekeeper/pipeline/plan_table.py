"""Plans one table's pass: its policy, its work, and where each step runs (rule: wave-tables-are-independent)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icekeeper.catalogs.addresses import is_table_bucket
from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.commit.attempt import operations_of_run
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.health.examine import summary_counter
from icekeeper.maintenance.pass_steps import (
    begin,
    head_id,
    remembered_turns,
    run_operation,
    why_no_statistics,
    why_waiting,
)
from icekeeper.maintenance.run_pass import why_needless
from icekeeper.model import ManifestContent
from icekeeper.operation_facts import CLEAN_STAGED, STEP_FACTS, STEPS, Limit, Measure, Operation, StepFacts
from icekeeper.operations.clean_staging import may_clean
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.stores import sharing_reads
from icekeeper.pipeline.control_bucket import ControlBucket, PassDocuments, PlanDocument, PlannedSchedule, table_folder
from icekeeper.pipeline.deployment import Deployment, travelling_environment
from icekeeper.pipeline.events import Item, PlanEvent, PlanReference, Route
from icekeeper.pipeline.one_call import note_killed_call, outgrown_steps
from icekeeper.pipeline.run_leases import held_table_lease, table_lease_ttl_ms
from icekeeper.pipeline.wave import left_key
from icekeeper.policy import ResolvedPolicy
from icekeeper.policy.due import PolicyPart, named_parts
from icekeeper.report.outcome import OperationOutcome, Status, failed, operation_document, skipped
from icekeeper.runtime import Runtime
from icekeeper.state.store import MaintenanceRequest

# Where each step of a pass runs: in a function, or as a Glue job.  Pure.


def table_size(summary: Mapping[str, str], bytes_to_compact: int) -> Mapping[Measure, int | None]:
    """The size of a table by each measure, from the summary of its head; ``None`` where the summary has no counter."""
    data_files, delete_files = (summary_counter(summary, f"total-{kind}-files") for kind in ("data", "delete"))
    total_bytes = summary_counter(summary, "total-files-size")
    return {
        Measure.BYTES_TO_COMPACT: bytes_to_compact,
        Measure.TOTAL_BYTES: total_bytes,
        Measure.BYTES_WITH_DELETES: 0 if delete_files == 0 else total_bytes,
        Measure.FILES: None if data_files is None or delete_files is None else data_files + delete_files,
    }


def route(
    step: StepFacts, size: Mapping[Measure, int | None], limits: Mapping[Limit, int], outgrown: Collection[str] = ()
) -> Route:
    """Where a step runs; ``outgrown`` are the steps that a function could not finish.

    An unknown size counts as too large for a function.
    """
    if step.job is None:
        return "function"
    amount = size[step.job.measure]
    fits = amount is not None and amount <= step.job.times * limits[step.job.limit]
    return "function" if fits and step.name not in outgrown else "glue"


# Where each step of one pass runs: in a function, as a Glue job, or in its run's wave
# (rule: wave-tables-are-independent).


def choose_routes(
    deployment: Deployment,
    event: PlanEvent,
    due: Collection[str],
    size: Mapping[Measure, int | None],
    outgrown: Collection[str],
) -> dict[str, Route]:
    """The route of every step: ``none`` of those that are not ``due``; ``outgrown`` were too much for a function."""
    limits = deployment.settings.limits
    outgrown = STEPS if event.item.in_job else outgrown
    routes = {step.name: route(step, size, limits, outgrown) if step.name in due else "none" for step in STEP_FACTS}
    # A pass that somebody asked for waits for no other table.
    if event.waves and event.item.is_proposed and not event.item.after_wave:
        _leave_to_wave(event.item, routes)
    return routes


def may_be_in_wave(step: StepFacts, item: Item) -> bool:
    """Whether a wave may do a step of this table; its job may not delete, which in table buckets nobody does."""
    return step.in_waves or (step.in_waves_of_buckets and is_table_bucket(item.warehouse))


def _leave_to_wave(item: Item, routes: dict[str, Route]) -> None:
    """Leave to the wave what needs a job; in table buckets also what follows, so that no table waits for another."""
    is_left = False
    for step in STEP_FACTS:
        if not may_be_in_wave(step, item):
            continue
        follows = is_left and is_table_bucket(item.warehouse) and routes[step.name] != "none"
        if routes[step.name] == "glue" or follows:
            routes[step.name], is_left = "wave", True


# What became of the steps that a pass had left to its run's wave, and that have no outcome after it.

_NOT_REACHED = "the wave ended before it began with the table, which is due again"
_BROKEN_OFF = "the wave ended in the midst of it; what it had not committed is not done, and the table is due again"


def missed_by_wave(
    control: ControlBucket, event: PlanEvent, folder: str, routes: Mapping[str, Route]
) -> dict[str, OperationOutcome]:
    """What became of the steps that still need a job after the wave; none before it.

    ``folder`` is the table's in the control bucket.

    Raises:
        StorageError: the control bucket does not answer.
    """
    if not event.item.after_wave:
        return {}
    return {
        step.name: _outcome(control, folder, step.name)
        for step in STEP_FACTS
        if may_be_in_wave(step, event.item) and routes[step.name] == "glue"
    }


def _outcome(control: ControlBucket, folder: str, step: str) -> OperationOutcome:
    """Skipped where the wave left the table out or never got to it, failed where it ended in the midst of the step."""
    operation = Operation(step)
    left = control.find_hint(left_key(folder, step))
    if isinstance(left, dict) and left.get("why"):
        return skipped(operation, str(left["why"]))
    if control.find_hint(f"{folder}/{step}.begun.json") is not None:
        return failed(operation, _BROKEN_OFF)
    return skipped(operation, _NOT_REACHED)


# Plan one table's pass: its policy, what there is to do, and where each operation runs.

MAX_ATTEMPTS = 3
"""How often one pass is planned; a table that makes every plan stale is left to the next run."""


@sharing_reads()
def plan_table(deployment: Deployment, event: PlanEvent) -> PlanReference:
    """Write a plan to the control bucket; steps that finished under an earlier plan of the pass are not routed again.

    A pass serves the request that was pending for its table, with the same settings, when it was first planned.  The
    request is claimed once the plan is written, so that a crash before that leaves the request to the next run.

    Raises:
        LeaseLost: another run maintains the table.
        MaintenanceError: the table, its policy or the state cannot be read.
    """
    documents = deployment.documents(event.run_id, event.item)
    held_table_lease(deployment, event.run_id, event.item, table_lease_ttl_ms())
    if event.call is not None and event.attempt == 1:
        note_killed_call(deployment, event.run_id, event.item, event.call.Error)
    first = documents.first_plan()
    request = _request(deployment, event.item, first)
    if not first and (why := _served_elsewhere(deployment, event.item, request)):
        return documents.write_plan(_needless(deployment, event, None, why))
    try:
        document = _document(deployment, event, documents, first, request)
    except (PolicyError, TableUnsupported):
        _claim(deployment, request)  # the error is the answer to the request: asking again would not change it
        raise
    reference = documents.write_plan(document)
    _claim(deployment, request)
    return reference


def _document(
    deployment: Deployment,
    event: PlanEvent,
    documents: PassDocuments,
    first: Mapping[str, Any],
    request: MaintenanceRequest | None,
) -> PlanDocument:
    """The plan of this attempt; ``first`` is the first plan of the pass as JSON, empty when there is none yet."""
    requested_ms = None if request is None else request.requested_ms
    started_ms = first.get("started_ms", deployment.clock())
    runtime = deployment.runtime(event.item)
    loaded = _load(runtime, event.item)
    if loaded is None:
        why = f"{event.item.table} was dropped or replaced since it was detected"
        return _needless(deployment, event, requested_ms, why)
    context = _context(runtime, event, loaded, started_ms)
    resolved = context.resolved
    parts = named_parts(resolved, event.item.schedules, with_rest=not event.item.only_schedules)
    begin(context, [part.resolved for part in parts], loaded=loaded)
    carried_out = documents.carried_out(first) if first else {}
    # Without a plan of the pass no step of it has left an outcome in the control bucket.
    done = {step for step in STEPS if first and (step in carried_out or documents.outcome(step) is not None)}
    begun = _begun(documents, event, first, loaded)
    known, compaction = _known_outcomes(context, loaded, parts, event, done, begun)
    size = table_size(_head_summary(context, loaded), _bytes_to_compact(compaction))
    outgrown = outgrown_steps(deployment.control, event.item)
    due = _wanted(context, parts, event.attempt) - done - set(known)
    routes = choose_routes(deployment, event, due, size, outgrown)
    folder = table_folder(event.run_id, event.item.identity.spelling)
    missed = missed_by_wave(deployment.control, event, folder, routes)
    routes |= dict.fromkeys(missed, "none")
    outcomes = {**known, **{step: replace(one, schedule=_schedule_of(parts, step)) for step, one in missed.items()}}
    listing = deployment.control.listings(folder)
    return PlanDocument(
        run_id=event.run_id,
        item=event.item,
        attempt=event.attempt,
        requested_ms=requested_ms,
        started_ms=started_ms,
        planned_ms=deployment.clock(),
        metadata_location=loaded.metadata_location,
        head_id=first.get("head_id", head_id(context, loaded)),
        fingerprint=resolved.fingerprint(),
        environment=travelling_environment(deployment.environment),
        routes=routes,
        outgrown=tuple(sorted(outgrown)),
        outcomes={step: operation_document(one, event.run_id, listing) for step, one in outcomes.items()},
        compaction=None if compaction is None else compaction.to_json(f"{event.run_id}-planned", listing),
        left_out=any(one.status is Status.SKIPPED for one in missed.values()),
        done=carried_out,
        schedules=_planned_schedules(resolved, parts),
    )


def _context(runtime: Runtime, event: PlanEvent, loaded: LoadedTable, started_ms: int) -> OperationContext:
    context = runtime.context(
        loaded,
        runtime.policy(loaded, event.item.settings),
        LocalEngine(processes=1),
        run_id=event.run_id,
        started_ms=started_ms,
        dry_run=True,
    )
    return replace(context, is_proposed=event.item.is_proposed, reads_footers=False)


def _wanted(context: OperationContext, parts: Iterable[PolicyPart], attempt: int) -> set[str]:
    """The steps that the pass is for."""
    # A step that found its plan stale again would be planned again for ever.
    if attempt > MAX_ATTEMPTS:
        return set()
    # Cleaning up after failed loads is no operation that a policy could leave out.
    cleaning = {CLEAN_STAGED} if may_clean(context) else set()
    return {*cleaning, *(operation.value for part in parts for operation in part.operations)}


def _begun(documents: PassDocuments, event: PlanEvent, first: Mapping[str, Any], loaded: LoadedTable) -> set[str]:
    """The steps that an attempt has begun: they run again, for it may have committed, and only the step can tell."""
    noted = {step for step in STEPS if first and documents.begun(step) is not None}
    return noted | {step for step in operations_of_run(event.run_id, loaded.metadata).values() if step is not None}


def _schedule_of(parts: Iterable[PolicyPart], step: str) -> str | None:
    return next((part.schedule for part in parts if step in part.operations), None)


def _planned_schedules(resolved: ResolvedPolicy, parts: Iterable[PolicyPart]) -> dict[str, PlannedSchedule]:
    return {
        part.schedule: PlannedSchedule(
            operations=tuple(operation.value for operation in part.operations),
            interval_ms=resolved.schedules[part.schedule].interval_ms,
            fingerprint=part.resolved.fingerprint(),
        )
        for part in parts
        if part.schedule is not None
    }


def _load(runtime: Runtime, item: Item) -> LoadedTable | None:
    """Load the table; ``None`` when it was dropped or replaced since it was detected."""
    try:
        loaded = runtime.catalog.load(item.name)
    except PolicyError:
        return None
    return loaded if identity_of(runtime.catalog, loaded).is_same_copy(item.identity) else None


def _served_elsewhere(deployment: Deployment, item: Item, request: MaintenanceRequest | None) -> str | None:
    if item.detected_ms is None:
        return None
    is_pending = request is not None if item.forced else None
    return why_needless(
        deployment.state, item.identity, item.detected_ms, now_ms=deployment.clock(), is_pending=is_pending
    )


def _needless(deployment: Deployment, event: PlanEvent, requested_ms: int | None, why: str) -> PlanDocument:
    now_ms = deployment.clock()
    return PlanDocument(
        run_id=event.run_id,
        item=event.item,
        attempt=event.attempt,
        requested_ms=requested_ms,
        started_ms=now_ms,
        planned_ms=now_ms,
        metadata_location="",
        needless=why,
        head_id=None,
        fingerprint="",
        environment={},
        routes=dict.fromkeys(STEPS, "none"),
    )


def _known_outcomes(
    context: OperationContext,
    loaded: LoadedTable,
    parts: Sequence[PolicyPart],
    event: PlanEvent,
    done: set[str],
    begun: set[str],
) -> tuple[Mapping[str, OperationOutcome], OperationOutcome | None]:
    """The outcomes of operations that planning alone can tell, by operation, and what compaction would do.

    The second is ``None`` where compaction is not to run.
    """
    outcomes: dict[str, OperationOutcome] = {}
    compaction = None
    turns = remembered_turns(context)
    for part, operation in ((one, operation) for one in parts for operation in one.operations):
        if operation.value in done:
            continue
        reason = part.resolved.why_not(operation) or why_waiting(context, part, operation, turns)
        reason = reason or why_no_statistics(context, loaded.metadata, part, operation)
        if reason is not None:
            outcomes[operation.value] = skipped(operation, reason)
        elif event.attempt > MAX_ATTEMPTS:
            outcomes[operation.value] = failed(
                operation,
                f"the table changed faster than it could be planned, {MAX_ATTEMPTS} times; the next run tries",
            )
        elif operation is Operation.COMPACT:
            compaction = run_operation(operation, replace(context, resolved=part.resolved))
            if compaction.status is not Status.SUCCEEDED and operation.value not in begun:
                outcomes[operation.value] = compaction
        elif operation is Operation.REWRITE_POSITION_DELETES and not (
            operation.value in begun or _lists_deletes(context, loaded)
        ):
            outcomes[operation.value] = run_operation(operation, replace(context, resolved=part.resolved))
        if operation.value in outcomes:
            outcomes[operation.value] = replace(outcomes[operation.value], schedule=part.schedule)
    return outcomes, compaction


def _lists_deletes(context: OperationContext, loaded: LoadedTable) -> bool:
    """Whether the head has delete files, by its manifest list: only their manifests tell whether they can be merged."""
    head = loaded.metadata.head(context.policy.branch)
    manifests = [] if head is None else context.reader(loaded).manifests(head)
    return any(one.content is ManifestContent.DELETES for one in manifests)


def _bytes_to_compact(compaction: OperationOutcome | None) -> int:
    return 0 if compaction is None else int(compaction.metrics.get("compact.bytes_planned", 0))


def _head_summary(context: OperationContext, loaded: LoadedTable) -> Mapping[str, str]:
    head = loaded.metadata.head(context.policy.branch)
    return {} if head is None else head.summary


def _request(deployment: Deployment, item: Item, first: Mapping[str, Any]) -> MaintenanceRequest | None:
    """The request that the pass serves: none that was filed since the pass began, or with other settings."""
    if first:
        filed_ms = first.get("requested_ms")
        if filed_ms is None:
            return None
        return MaintenanceRequest(identity=item.identity, requested_ms=filed_ms, settings=item.settings)
    for request in deployment.state.requests.pending():
        if request.identity.is_same_copy(item.identity) and dict(request.settings) == dict(item.settings):
            return request
    return None


def _claim(deployment: Deployment, request: MaintenanceRequest | None) -> None:
    if request is not None:
        deployment.state.requests.claim(request)
