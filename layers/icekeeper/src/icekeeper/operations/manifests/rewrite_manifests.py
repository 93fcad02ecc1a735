"""The ``rewrite_manifests`` operation: fewer manifests with the same live entries, clustered by partition
(rule: rewritten-manifests-prune-as-well)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.snapshot import FileReplacement, manifest_header_bytes, manifest_target_bytes
from icekeeper.commit.transaction import Committed
from icekeeper.engines.engine import Engine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import stopwatch
from icekeeper.machine.resources import on_cores, this_machine
from icekeeper.metadata.document import TableMetadata, branch_head, require_writable
from icekeeper.metadata.manifest_read import portions
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.table_reader import ReadBytes
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.manifests.lanes import (
    MAX_PARTITIONS,
    EntryPart,
    Lane,
    LaneResult,
    ManifestsOfTable,
    SampleTask,
    SplitTask,
    evenly,
    sample_entries,
    split_entries,
    write_lane,
)
from icekeeper.operations.manifests.layout import PartitionOrder, average_opened, lane_bounds, range_of
from icekeeper.operations.manifests.plan_manifests import (
    NO_ENTRIES,
    ManifestGroup,
    ManifestKind,
    ManifestPlan,
    plan_manifests,
)
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded
from icekeeper.storage.paths import MAX_ATTEMPTS, PlannedFile
from icekeeper.storage.storage import Storage

_OPERATION = Operation.REWRITE_MANIFESTS


@dataclass(frozen=True, slots=True)
class _Planned:
    head: LoadedTable
    manifests: Sequence[ManifestFile]
    plan: ManifestPlan | Nothing


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The manifests written for a plan; they fit every head that still lists the replaced manifests."""

    planned: _Planned
    plan: ManifestPlan
    rewritten: RewrittenManifests

    def still_holds(self, head: TableMetadata, manifests: Sequence[ManifestFile]) -> bool:
        """Whether the written manifests fit this head; Java's RewriteManifests reuses them likewise.

        The first commit after an upgrade to v3 assigns row ids to existing manifests, which the written entries lack.
        """
        listed = {m.manifest_path: m for m in manifests}
        old = self.plan.manifests
        return head.format_version == self.planned.head.metadata.format_version and all(
            m.manifest_path in listed and listed[m.manifest_path].first_row_id == m.first_row_id for m in old
        )


def rewrite_manifests(context: OperationContext) -> OperationOutcome:
    """Merge data manifests, and delete manifests.

    Sentences and metric keys for data manifests are those of SeaweedFS's worker (rule: seaweedfs-wording).

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        planned = _plan(context, context.load())
        if isinstance(planned.plan, Nothing):
            metrics = {"rewrite_manifests.duration_ms": elapsed_ms()}
            nothing = skipped(_OPERATION, planned.plan.reason, metrics=metrics)
            return replace(nothing, idle_since=context.idle_since(planned.head.metadata))
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
    """The attempts to commit; an attempt reuses the manifests of the one before if they still fit."""

    context: OperationContext
    last: _Attempt | None = None
    outputs: list[str] = field(default_factory=list)
    """Paths of the manifests that the last attempt wrote."""

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
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
    """Commit manifests with the same entries to the planned table of a dry run."""
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
    """The average number of data manifests that a planner opens for one of the rewritten partitions."""
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


# Writing the manifests of a plan, in this process or on all workers.
#
# Both read entries, send each to a lane by its partition, sort each lane and cut it into manifests.  The manifests do
# not depend on the head: after a lost swap they can still be committed if the head lists the replaced manifests.

MB = 1024 * 1024
# Bytes of manifests in one lane; decompressed these are about 200 MB of entries, which one worker holds and sorts.
_LANE_BYTES = 32 * MB
# At least this many target sizes per lane: a lane's last manifest may be small, and would soon be merged again.
_TARGETS_PER_LANE = 4
_SPLIT_BYTES = 8 * MB
# Planned file names per expected manifest: a lane may be larger than its sample promised.
_NAMES_PER_OUTPUT = 4
_SAMPLED_MANIFESTS = 32
# The fields of table metadata that are needed to write manifests, without the snapshots.
_DOCUMENT = (
    "format-version",
    "location",
    "schema",
    "schemas",
    "current-schema-id",
    "partition-spec",
    "partition-specs",
    "default-spec-id",
)


@dataclass(slots=True)
class RewrittenManifests:
    """The manifests that were written for a plan; ``staged`` are the paths of all files that may have been written."""

    staged: list[str] = field(default_factory=list)
    written: list[ManifestFile] = field(default_factory=list)
    partitions: dict[int, list[PartitionOrder]] = field(default_factory=dict)
    """Some partitions of the rewritten data manifests, by spec."""

    def entries(self, content: ManifestContent) -> int:
        """The number of entries in the manifests of a content type."""
        return sum(m.existing_files_count or 0 for m in self.written if m.content is content)


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """A plan, and what is needed to write its manifests; ``storage`` and ``read`` are for this process only."""

    metadata: TableMetadata
    plan: ManifestPlan
    io_properties: dict[str, str]
    target_bytes: int
    """The target size of a manifest."""
    storage: Storage
    read: ReadBytes


@dataclass(slots=True)
class _Work:
    splits: list[SplitTask] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.splits) + len(self.lanes)


def write_planned(
    rewrite: PlannedRewrite,
    engine: Engine,
    *,
    into: RewrittenManifests,
    will_write: Callable[[Sequence[str]], None],
    on_done: Callable[[int, int], None],
) -> None:
    """Write the manifests of a plan; ``into`` receives what was written, even after an error.

    ``will_write`` is called with the record of every file before the first one is written; ``on_done`` with the number
    of finished steps and of all steps.

    Raises:
        StorageError: a manifest cannot be read or written, the names cannot be recorded, or the engine failed.
    """
    work = _work(rewrite, engine)
    planned = [file for lane in work.lanes for file in lane.outputs]
    will_write([file.record for file in planned])
    into.staged[:] = [path for file in planned for path in file.paths]
    if len(work.lanes) == len(rewrite.plan.groups):
        results = _here(work, rewrite)
    else:
        results = engine.exchange(
            split_entries, work.splits, write_lane, work.lanes, lambda done: on_done(done, work.steps)
        )
    for lane, result in zip(work.lanes, results, strict=True):
        into.written += result.written
        if lane.kind.content is ManifestContent.DATA:
            into.partitions.setdefault(lane.kind.spec_id, []).extend(result.partitions)
    into.staged[:] = [manifest.manifest_path for manifest in into.written]
    into.partitions = {spec_id: evenly(found, MAX_PARTITIONS) for spec_id, found in into.partitions.items()}
    error = next((result.error for result in results if result.error is not None), None)
    if error is not None:
        raise StorageError(error)


def _work(rewrite: PlannedRewrite, engine: Engine) -> _Work:
    """The tasks: manifests to read, and a lane for every range of a group's partition order, with file names."""
    metadata, groups = rewrite.metadata, rewrite.plan.groups
    document = {key: metadata.document[key] for key in _DOCUMENT if key in metadata.document}
    prefix = f"{metadata.metadata_directory}/{uuid.uuid4()}"
    kinds = {g.kind: ManifestsOfTable(document, *g.kind, rewrite.io_properties) for g in groups}
    lanes = {g.kind: _lane_count(g) for g in groups}
    samples = _samples(engine, [(kinds[g.kind], g) for g in groups if lanes[g.kind] > 1])
    work = _Work()
    for group in groups:
        bounds = lane_bounds(samples[group.kind], lanes[group.kind]) if samples[group.kind] else []
        names = max(1, _NAMES_PER_OUTPUT * group.outputs // (len(bounds) + 1))
        most = max(len(group.manifests), group.outputs)
        for portion in portions(group.manifests, _SPLIT_BYTES):
            work.splits.append(SplitTask(kinds[group.kind], portion, tuple(bounds), len(work.lanes)))
        for _ in range(len(bounds) + 1):
            stem = f"{prefix}-m{len(work.lanes)}"
            count = min(names, most)
            outputs = tuple(PlannedFile(f"{stem}-{number}", "avro", MAX_ATTEMPTS) for number in range(count))
            work.lanes.append(Lane(kinds[group.kind], outputs, rewrite.target_bytes))
    return work


def _here(work: _Work, rewrite: PlannedRewrite) -> list[LaneResult]:
    """Do the work in this process, if each group has one lane: starting workers would take longer."""
    parts: dict[int, list[EntryPart]] = defaultdict(list)
    for task in work.splits:
        for lane, part in split_entries(task, rewrite.read):
            parts[lane].append(part)
    with on_cores(this_machine().cores):
        return [
            write_lane(lane, iter(parts.pop(number, [])), rewrite.storage) for number, lane in enumerate(work.lanes)
        ]


def _lane_count(group: ManifestGroup) -> int:
    return max(1, group.live_bytes // max(_LANE_BYTES, _TARGETS_PER_LANE * group.room))


def _samples(
    engine: Engine, groups: Sequence[tuple[ManifestsOfTable, ManifestGroup]]
) -> defaultdict[ManifestKind, list[Any]]:
    """The order keys of sampled entries of each group, from which the bounds of its lanes are chosen."""
    tasks: list[SampleTask] = []
    for kind, group in groups:
        chosen = evenly(sorted(group.manifests, key=lambda m: m.min_sequence_number), _SAMPLED_MANIFESTS)
        tasks += [SampleTask(kind, (manifest,)) for manifest in chosen]
    found: defaultdict[ManifestKind, list[Any]] = defaultdict(list)
    for task, keys in zip(tasks, engine.map(sample_entries, tasks, lambda done: None), strict=True):
        found[task.kind.spec_id, task.kind.content] += keys
    return found
