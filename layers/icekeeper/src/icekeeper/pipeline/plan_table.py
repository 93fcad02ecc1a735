"""Plan a table's pass from its metadata document and manifest list: which steps run, where, and how much they read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.detection.looked_at import OF_FILES, looked_at
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MetadataUnreadable, PolicyError, TableUnsupported
from icekeeper.health.examine import summary_counter
from icekeeper.maintenance.pass_steps import head_id, remembered_sweeps, why_no_statistics, why_waiting
from icekeeper.maintenance.run_pass import why_needless
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import ManifestContent
from icekeeper.operation_facts import CLEAN_STAGED, STEP_FACTS, STEPS, Limit, Measure, Operation, StepFacts
from icekeeper.operations.clean_staging import may_clean
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.operations.expiry.retention import expiry_at
from icekeeper.operations.policy_fit import fitting
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.stores import sharing_reads
from icekeeper.pipeline.control_bucket import PLAN, PassDocuments, PlanDocument, outgrown_steps
from icekeeper.pipeline.deployment import Deployment, pending_request
from icekeeper.pipeline.events import Item, Route, TableEvent
from icekeeper.pipeline.run_leases import require_free
from icekeeper.report.outcome import OperationOutcome, operation_document, skipped
from icekeeper.runtime import Runtime
from icekeeper.state.store import LastSeen

# Where each step of a pass runs: in a function, or as a Glue job.  Pure.


def table_size(
    metadata: TableMetadata, head: Snapshot | None, listed_manifests: int | None = None
) -> Mapping[Measure, int | None]:
    """The size of a table by each measure, from the summaries of its snapshots; ``None`` if a counter is missing."""
    summary = {} if head is None else head.summary
    data_files, delete_files = (summary_counter(summary, f"total-{kind}-files") for kind in ("data", "delete"))
    total_bytes = summary_counter(summary, "total-files-size")
    return {
        Measure.BYTES_TO_COMPACT: _bytes_since_rewrite(metadata, head, total_bytes),
        Measure.TOTAL_BYTES: total_bytes,
        Measure.BYTES_WITH_DELETES: 0 if delete_files == 0 else total_bytes,
        Measure.FILES: None if data_files is None or delete_files is None else data_files + delete_files,
        Measure.LISTED_MANIFESTS: listed_manifests,
    }


def _bytes_since_rewrite(metadata: TableMetadata, head: Snapshot | None, total_bytes: int | None) -> int | None:
    """About how many bytes compaction will read: those added since the last rewrite, at least 1.

    Without a rewrite among the retained snapshots, or if a snapshot has no counter: all bytes.
    """
    came = 0
    for snapshot in () if head is None else metadata.ancestors(head.snapshot_id):
        added = summary_counter(snapshot.summary, "added-files-size")
        if snapshot.operation == "replace":
            if not summary_counter(snapshot.summary, "added-data-files"):
                continue  # manifests only
            return max(1, came if total_bytes is None else min(came, total_bytes))
        if added is None:
            break
        came += added
    return None if total_bytes is None else max(1, total_bytes)


def choose_routes(
    due: Collection[str],
    size: Mapping[Measure, int | None],
    limits: Mapping[Limit, int],
    outgrown: Collection[str] = (),
) -> dict[str, Route]:
    """Where each step that is ``due`` runs; ``outgrown`` are the steps that a function could not finish.

    An unknown size counts as too large for a function. A step follows the earlier steps of its job into the job: its
    function runs before, and the job has the same rights.
    """
    routes: dict[str, Route] = {}
    started = set[str]()
    for step in (step for step in STEP_FACTS if step.name in due):
        route = _route(step, size, limits, outgrown)
        if step.job is not None and (route == "glue" or step.job.script in started):
            route = "glue"
            started.add(step.job.script)
        routes[step.name] = route
    return routes


def _route(
    step: StepFacts, size: Mapping[Measure, int | None], limits: Mapping[Limit, int], outgrown: Collection[str]
) -> Route:
    if step.job is None:
        return "function"
    amount = size[step.job.measure]
    fits = amount is not None and amount <= step.job.times * limits[step.job.limit]
    return "function" if fits and step.name not in outgrown else "glue"


# Planning.


@sharing_reads()
def plan_table(deployment: Deployment, event: TableEvent) -> PlanDocument:
    """Write a table's plan to the control bucket and return it; a repetition plans again.

    The pass serves the table's pending request if that has the same settings.  The request stays pending until the pass
    is reported, so that a crash leaves it to the next run.

    Raises:
        LeaseHeld, TableBusy: another run maintains the table.
        MaintenanceError: the table, its policy or the state cannot be read; the failure is written to the control
            bucket.
    """
    item, requested_ms = event.item, None
    documents = PassDocuments(deployment.control, event.run_id, item)
    try:
        require_free(deployment, event.run_id, item)
        request = pending_request(deployment, item)
        requested_ms = None if request is None else request.requested_ms
        document = _plan(deployment, event, documents, requested_ms)
        documents.write_plan(document)
    except Exception as error:
        documents.write_failure(PLAN, error, requested_ms)
        raise
    return document


def _plan(
    deployment: Deployment, event: TableEvent, documents: PassDocuments, requested_ms: int | None
) -> PlanDocument:
    item = event.item
    runtime = deployment.runtime(item)
    loaded = _load(runtime, item)
    if loaded is None:
        why = f"{item.table} was dropped or replaced since it was detected"
        return PlanDocument(requested_ms=requested_ms, needless=why)
    context = _context(runtime, event, loaded)
    resolved, digest = context.resolved, context.resolved.digest_over(loaded.metadata)
    served = _served_elsewhere(deployment, item, digest, is_requested=requested_ms is not None)
    if served is not None:
        return PlanDocument(requested_ms=requested_ms, needless=served)
    # The other checks at the beginning of a pass read manifests; each step makes them under its lease.
    fitting(loaded.metadata, resolved)
    settled = _settled(context, loaded)
    known = _known_outcomes(context, loaded, is_settled=settled is not None)
    due = _wanted(context) - set(known)
    listed = _listed_manifests(context, loaded) if Operation.EXPIRE_SNAPSHOTS.value in due else None
    size = table_size(loaded.metadata, loaded.metadata.head(context.policy.branch), listed)
    outgrown = STEPS if item.in_job else outgrown_steps(deployment.control, item)
    routes = choose_routes(due, size, deployment.settings.limits, outgrown)
    listing = documents.listings()
    size_bytes = (size[Measure.BYTES_TO_COMPACT] or 0) if Operation.COMPACT.value in routes else 0
    sorts = routes.get(Operation.COMPACT.value) == "glue" and _sorts(context, loaded)
    return PlanDocument(
        requested_ms=requested_ms,
        started_ms=event.started_ms,
        head_id=head_id(context, loaded) if settled is None else settled.snapshot_id,
        looked_ms=None if settled is None else settled.looked_ms,
        fingerprint=resolved.fingerprint(),
        digest=digest,
        routes=routes,
        outcomes={step: operation_document(outcome, event.run_id, listing) for step, outcome in known.items()},
        size_bytes=size_bytes,
        sorted_bytes=min(size_bytes, context.policy.max_file_group_size_bytes) if sorts else 0,
        manifest_bytes=_manifest_bytes(context, loaded) if "glue" in routes.values() else 0,
    )


def _sorts(context: OperationContext, loaded: LoadedTable) -> bool:
    """Whether compaction sorts the table's rows."""
    try:
        return choose_recipe(loaded.metadata, context.policy) is not None
    except TableUnsupported:
        return False  # the step reports it


def _manifest_bytes(context: OperationContext, loaded: LoadedTable) -> int:
    """The bytes of the manifests that the branch's head lists."""
    head = loaded.metadata.head(context.policy.branch)
    return sum(m.manifest_length for m in context.reader(loaded).manifests(head)) if head is not None else 0


def _context(runtime: Runtime, event: TableEvent, loaded: LoadedTable) -> OperationContext:
    context = runtime.context(
        loaded,
        runtime.policy(loaded, event.item.settings),
        LocalEngine(processes=1),
        run_id=event.run_id,
        started_ms=event.started_ms,
        dry_run=True,
    )
    return replace(context, is_proposed=event.item.is_proposed)


def _wanted(context: OperationContext) -> set[str]:
    """The steps of the pass."""
    # Cleaning up after failed loads is not an operation, so no policy can leave it out.
    cleaning = {CLEAN_STAGED} if may_clean(context) else set()
    return {*cleaning, *(operation.value for operation in context.policy.operations)}


def _known_outcomes(
    context: OperationContext, loaded: LoadedTable, *, is_settled: bool
) -> Mapping[str, OperationOutcome]:
    """The outcomes of operations that need no step: metadata and manifest list show that they would do nothing."""
    outcomes: dict[str, OperationOutcome] = {}
    sweeps = remembered_sweeps(context)
    for operation in context.policy.operations:
        reason = context.resolved.why_not(operation) or why_waiting(context, operation, sweeps)
        reason = reason or why_no_statistics(context, loaded.metadata, operation)
        if reason is None and operation in OF_FILES:
            reason = "too few changes since the last pass" if is_settled else None
            reason = reason or _why_nothing_to_rewrite(context, loaded, operation)
        if reason is not None:
            outcomes[operation.value] = skipped(operation, reason)
    return outcomes


def _why_nothing_to_rewrite(context: OperationContext, loaded: LoadedTable, operation: Operation) -> str | None:
    """Why a table needs no rewrite: it has no snapshots, or no delete files to merge; ``None`` if it may need a
    rewrite.

    The manifest list names every manifest with delete files; only the manifests show whether these can be merged.
    """
    head = loaded.metadata.head(context.policy.branch)
    if head is None:
        return "no current snapshot"
    if operation is not Operation.REWRITE_POSITION_DELETES:
        return None
    lists = any(manifest.content is ManifestContent.DELETES for manifest in context.reader(loaded).manifests(head))
    return None if lists else "no position delete files eligible for merging"


def _listed_manifests(context: OperationContext, loaded: LoadedTable) -> int:
    """About how many manifests the manifest lists of all snapshots name, each of which expiry reads; 0 if no snapshot
    expires.

    Each list counts as long as that of the branch's head.  If that cannot be read, the step itself reports why.
    """
    metadata, policy = loaded.metadata, context.policy
    head = metadata.head(policy.branch)
    if head is None or not expiry_at(metadata, policy, now_ms=context.started_ms):
        return 0
    try:
        return len(metadata.snapshots) * len(context.reader(loaded).manifests(head))
    except MetadataUnreadable:
        return 0


def _settled(context: OperationContext, loaded: LoadedTable) -> LastSeen | None:
    """The last pass that looked at the table's files, if another look would find nothing; ``None``: this pass looks at
    them.

    A requested pass always looks.
    """
    head = loaded.metadata.head(context.policy.branch)
    if not context.is_proposed or head is None:
        return None
    seen = context.state.seen(context.memory.identity)
    found = looked_at(loaded.metadata, head, context.resolved, seen, context.started_ms)
    return found.seen if found.is_settled else None


def _load(runtime: Runtime, item: Item) -> LoadedTable | None:
    """Load the table; ``None`` if it was dropped or replaced since it was detected."""
    try:
        loaded = runtime.catalog.load(item.name)
    except PolicyError:
        return None
    return loaded if identity_of(runtime.catalog, loaded).is_same_copy(item.identity) else None


def _served_elsewhere(deployment: Deployment, item: Item, digest: str, *, is_requested: bool) -> str | None:
    if item.detected_ms is None:
        return None
    is_pending = is_requested if item.forced else None
    return why_needless(
        deployment.state, item.identity, digest, item.detected_ms, now_ms=deployment.clock(), is_pending=is_pending
    )
