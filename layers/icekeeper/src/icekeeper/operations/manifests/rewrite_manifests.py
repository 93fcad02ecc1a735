"""The ``rewrite_manifests`` operation: fewer manifests with the same live entries, clustered by partition (rule 38)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.snapshot import FileReplacement, manifest_header_bytes, manifest_target_bytes
from icekeeper.commit.transaction import Committed
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.document import TableMetadata, branch_head, require_writable
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.manifests.partition_ranges import PartitionOrder, average_opened, range_of
from icekeeper.operations.manifests.plan import NO_ENTRIES, ManifestPlan, NothingToRewrite, plan_manifests
from icekeeper.operations.manifests.write_manifests import PlannedRewrite, RewrittenManifests, write_planned
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded

__all__ = ["rewrite_manifests"]

_OPERATION = Operation.REWRITE_MANIFESTS


@dataclass(frozen=True, slots=True)
class _Planned:
    head: LoadedTable
    manifests: Sequence[ManifestFile]
    plan: ManifestPlan | Nothing


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The manifests written for a plan; they fit every head that still lists those that they replace."""

    planned: _Planned
    plan: ManifestPlan
    rewritten: RewrittenManifests

    def still_holds(self, head: TableMetadata, manifests: Sequence[ManifestFile]) -> bool:
        """Java's RewriteManifests keeps what it wrote likewise.  The first commit after an upgrade to v3 numbers the
        rows of manifests that stay the same files: then the entries that were written lack these numbers."""
        listed = {m.manifest_path: m for m in manifests}
        old = self.plan.manifests
        return head.format_version == self.planned.head.metadata.format_version and all(
            m.manifest_path in listed and listed[m.manifest_path].first_row_id == m.first_row_id for m in old
        )


def rewrite_manifests(context: OperationContext) -> OperationOutcome:
    """Merge data manifests, and delete manifests; sentences and metric keys for data manifests are those of SeaweedFS's
    worker (rule 121).

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        planned = _plan(context, context.load())
        if isinstance(planned.plan, Nothing):
            metrics = {"rewrite_manifests.duration_ms": elapsed_ms()}
            slack = planned.plan.slack if isinstance(planned.plan, NothingToRewrite) else None
            return replace(skipped(_OPERATION, planned.plan.reason, metrics=metrics), slack=slack)
        paths = [m.manifest_path for m in planned.plan.manifests]
        if context.dry_run:
            context.would_commit(_OPERATION, partial(_commit_expected, context, planned, frozenset(paths)))
            return succeeded(_OPERATION, f"would {_preview(planned.plan)}", files_planned=paths)
        snapshot = branch_head(planned.head.metadata, context.policy.branch)
        with context.job(_OPERATION, planned.head, 0 if snapshot is None else snapshot.snapshot_id) as rewriting:
            attempts = _Attempts(rewriting)
            committed = rewriting.commit_outputs(planned.head, attempts.prepare, attempts.outputs)
        if isinstance(committed, Nothing) or attempts.last is None:
            context.discard(planned.head, attempts.outputs)
            reason = committed.reason if isinstance(committed, Nothing) else NO_ENTRIES
            return skipped(_OPERATION, reason, metrics={"rewrite_manifests.duration_ms": elapsed_ms()})
        return _outcome(attempts.last, committed, elapsed_ms())


@dataclass(slots=True)
class _Attempts:
    """The attempts to commit: the manifests of one attempt are used by the next for as long as they still hold."""

    context: OperationContext
    last: _Attempt | None = None
    outputs: list[str] = field(default_factory=list)
    """Paths of the manifests that the last attempt wrote."""

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        """The commit for this head."""
        context = self.context
        require_writable(head.metadata)
        snapshot = branch_head(head.metadata, context.policy.branch)
        manifests = [] if snapshot is None else context.reader(head).manifests(snapshot)
        if self.last is None or not self.last.still_holds(head.metadata, manifests):
            context.discard(head, self.outputs)
            self.outputs.clear()
            planned = _plan(context, head)
            if isinstance(planned.plan, Nothing):
                return planned.plan
            self.last = _write(context, planned, planned.plan, self.outputs)
        if not self.last.rewritten.written:
            return Nothing(NO_ENTRIES)
        writer = context.snapshot_writer(head)
        return writer.replace_manifests(self.last.rewritten.written, self.last.plan.manifests, manifests)


def _plan(context: OperationContext, head: LoadedTable) -> _Planned:
    require_writable(head.metadata)
    snapshot = branch_head(head.metadata, context.policy.branch)
    manifests = [] if snapshot is None else context.reader(head).manifests(snapshot)
    kinds = {(m.partition_spec_id, m.content) for m in manifests}
    plan = plan_manifests(
        head.metadata,
        snapshot,
        manifests,
        context.policy,
        target_bytes=manifest_target_bytes(head.metadata, sum(m.manifest_length for m in manifests)),
        header_bytes={kind: manifest_header_bytes(head.metadata, *kind) for kind in kinds},
    )
    return _Planned(head, manifests, plan)


def _commit_expected(context: OperationContext, planned: _Planned, gone: Collection[str]) -> None:
    """Commit manifests of the same entries, in no order, to the planned table of a dry run."""
    context.commit(
        planned.head,
        lambda head: context.snapshot_writer(head).replace_files(
            FileReplacement(frozenset(), (), None), planned.manifests, gone
        ),
    )


def _write(context: OperationContext, planned: _Planned, plan: ManifestPlan, outputs: list[str]) -> _Attempt:
    """Write the manifests of the plan; their paths are added to ``outputs`` before they are written."""
    rewritten = RewrittenManifests(staged=outputs)
    head = planned.head
    write_planned(
        PlannedRewrite(
            head.metadata,
            plan,
            properties_for_workers(head.io_properties),
            manifest_target_bytes(head.metadata, sum(m.manifest_length for m in planned.manifests)),
            context.storage(head),
            context.reader(head).read,
        ),
        context.engine,
        into=rewritten,
        will_write=context.will_write,
        on_done=lambda done, total: context.progress("rewrite_manifests: steps", done, total),
    )
    return _Attempt(planned, plan, rewritten)


def _outcome(attempt: _Attempt, committed: Committed, duration_ms: int) -> OperationOutcome:
    rewritten, plan = attempt.rewritten, attempt.plan
    gone = {m.manifest_path for m in plan.manifests}
    kept = [m for m in attempt.planned.manifests if m.manifest_path not in gone]
    metadata, partitions = attempt.planned.head.metadata, rewritten.partitions
    data, deletes = (_count(plan, rewritten, content) for content in ManifestContent)
    entries = rewritten.entries(ManifestContent.DATA)
    said = [f"rewrote {data[0]} manifests into {data[1]} ({entries} entries)"] if data[0] else []
    said += [f"merged {deletes[0]} delete manifests into {deletes[1]}"] if deletes[0] else []
    return succeeded(
        _OPERATION,
        "; ".join(said),
        snapshot_ids=(committed.prepared.snapshot_id or 0,),
        metrics={
            "rewrite_manifests.manifests_rewritten": data[0],
            "rewrite_manifests.manifests_written": data[1],
            "rewrite_manifests.entries_total": entries,
            "rewrite_manifests.delete_manifests_rewritten": deletes[0],
            "rewrite_manifests.delete_manifests_written": deletes[1],
            "rewrite_manifests.delete_entries_total": rewritten.entries(ManifestContent.DELETES),
            "rewrite_manifests.manifests_opened_before": _opened(metadata, attempt.planned.manifests, partitions),
            "rewrite_manifests.manifests_opened_after": _opened(metadata, [*kept, *rewritten.written], partitions),
            "rewrite_manifests.duration_ms": duration_ms,
        },
        files_planned=[m.manifest_path for m in plan.manifests],
    )


def _count(plan: ManifestPlan, rewritten: RewrittenManifests, content: ManifestContent) -> tuple[int, int]:
    return plan.count(content)[0], sum(m.content is content for m in rewritten.written)


def _opened(
    metadata: TableMetadata, manifests: Sequence[ManifestFile], partitions: Mapping[int, Sequence[PartitionOrder]]
) -> float:
    """Data manifests that a planner opens for one partition, on average over those that were rewritten."""
    opened = total = 0.0
    for spec_id, found in partitions.items():
        types = partition_types(metadata, spec_id)
        of_spec = [m for m in manifests if m.partition_spec_id == spec_id and m.content is ManifestContent.DATA]
        opened += len(found) * average_opened([range_of(types, m) for m in of_spec], found)
        total += len(found)
    return round(opened / total, 2) if total else 0.0


def _preview(plan: ManifestPlan) -> str:
    (data, data_into), (deletes, deletes_into) = (plan.count(content) for content in ManifestContent)
    said = [f"rewrite {data} manifests into {data_into}"] if data else []
    said += [f"merge {deletes} delete manifests into {deletes_into}"] if deletes else []
    return "; ".join(said)
