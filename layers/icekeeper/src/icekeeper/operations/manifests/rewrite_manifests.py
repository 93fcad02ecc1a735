"""The ``rewrite_manifests`` operation: fewer manifests with the same live entries, clustered by partition."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.manifest_lanes import manifest_header_bytes, manifest_target_bytes
from icekeeper.commit.snapshot import FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.engines.engine import Engine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import stopwatch
from icekeeper.machine.resources import on_cores, this_machine
from icekeeper.metadata.document import TableMetadata, branch_head, require_writable
from icekeeper.metadata.manifest_read import portions
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.manifests.lanes import (
    MAX_PARTITIONS,
    EntryPart,
    Lane,
    LaneResult,
    ManifestsOfTable,
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


def rewrite_manifests(context: OperationContext) -> OperationOutcome:
    """Merge data manifests, and delete manifests.

    Sentences and metric keys for data manifests are those of SeaweedFS's worker.

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        head = context.load()
        plan = planned(context, head)
        if isinstance(plan, Nothing):
            return skipped(_OPERATION, plan.reason, metrics={"rewrite_manifests.duration_ms": elapsed_ms()})
        if context.dry_run:
            context.would_commit(_OPERATION, partial(_commit_expected, context, head, plan))
            (data, data_into), (deletes, deletes_into) = (plan.count(content) for content in ManifestContent)
            phrases = [f"rewrite {data} manifests into {data_into}"] if data else []
            phrases += [f"merge {deletes} delete manifests into {deletes_into}"] if deletes else []
            return succeeded(_OPERATION, f"would {'; '.join(phrases)}", files_planned=plan.paths)
        context.require_reviewed(head, plan.paths)
        with context.job(_OPERATION, head, plan.snapshot_id) as rewriting:
            attempts = _Attempts(rewriting, head, plan)
            committed = rewriting.commit_outputs(head, attempts.prepare, attempts.outputs)
        if isinstance(committed, Nothing):
            context.discard(head, attempts.outputs)
            return skipped(_OPERATION, committed.reason, metrics={"rewrite_manifests.duration_ms": elapsed_ms()})
        return _outcome(attempts, committed, elapsed_ms())


@dataclass(slots=True)
class _Attempts:
    """The attempts to commit; an attempt reuses the manifests of the previous attempt if they still fit."""

    context: OperationContext
    head: LoadedTable
    """The table on which the current plan was made."""
    plan: ManifestPlan
    rewritten: RewrittenManifests | None = None
    outputs: list[str] = field(default_factory=list)
    """Paths of the manifests that the last attempt wrote."""

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        context = self.context
        require_writable(head.metadata)
        snapshot = branch_head(head.metadata, context.policy.branch)
        manifests = [] if snapshot is None else context.reader(head).manifests(snapshot)
        if self.rewritten is None or not self._still_hold(head.metadata, manifests):
            context.discard(head, self.outputs)
            self.outputs.clear()
            plan = planned(context, head)
            if isinstance(plan, Nothing):
                return plan
            self.head, self.plan, self.rewritten = head, plan, self._write(head, plan)
        if not self.rewritten.written:
            return Nothing(NO_ENTRIES)
        writer = context.snapshot_writer(head)
        return writer.replace_manifests(self.rewritten.written, self.plan.manifests, manifests)

    def _still_hold(self, head: TableMetadata, manifests: Sequence[ManifestFile]) -> bool:
        """Whether the written manifests fit this head; Java's RewriteManifests also reuses them.

        The first commit after an upgrade to v3 assigns row ids to existing manifests, which the written entries lack.
        """
        listed = {m.manifest_path: m for m in manifests}
        return head.format_version == self.head.metadata.format_version and all(
            m.manifest_path in listed and listed[m.manifest_path].first_row_id == m.first_row_id
            for m in self.plan.manifests
        )

    def _write(self, head: LoadedTable, plan: ManifestPlan) -> RewrittenManifests:
        context, rewritten = self.context, RewrittenManifests(staged=self.outputs)
        write_planned(
            context.reader(head),
            context.stores.storage(head),
            plan,
            properties_for_workers(head.io_properties),
            context.engine,
            into=rewritten,
            will_write=context.will_write,
            on_done=lambda done, total: context.progress("rewrite_manifests: steps", done, total),
        )
        return rewritten


def planned(context: OperationContext, head: LoadedTable) -> ManifestPlan | Nothing:
    """What to rewrite of the manifests of a head, of which only the manifest list is read.

    Raises:
        MaintenanceError: the list cannot be read, or the table is not supported.
    """
    require_writable(head.metadata)
    snapshot = branch_head(head.metadata, context.policy.branch)
    manifests = [] if snapshot is None else context.reader(head).manifests(snapshot)
    kinds = {(m.partition_spec_id, m.content) for m in manifests}
    return plan_manifests(
        head.metadata,
        snapshot,
        manifests,
        context.policy,
        target_bytes=manifest_target_bytes(head.metadata, sum(m.manifest_length for m in manifests)),
        header_bytes={kind: manifest_header_bytes(head.metadata, *kind) for kind in kinds},
    )


def _commit_expected(context: OperationContext, planned: LoadedTable, plan: ManifestPlan) -> None:
    """Commit manifests with the same entries to the planned table of a dry run."""
    same_files, gone = FileReplacement(frozenset(), (), None), frozenset(plan.paths)
    context.commit(planned, lambda head: context.snapshot_writer(head).replace_files(same_files, plan.listed, gone))


def _outcome(attempts: _Attempts, committed: Committed, duration_ms: int) -> OperationOutcome:
    plan, rewritten, metadata = attempts.plan, attempts.rewritten or RewrittenManifests(), attempts.head.metadata
    gone = set(plan.paths)
    kept = [m for m in plan.listed if m.manifest_path not in gone]
    counts: dict[ManifestContent, tuple[int, int, int]] = {}
    for content in ManifestContent:
        written = [m for m in rewritten.written if m.content is content]
        entries = sum(m.existing_files_count or 0 for m in written)
        counts[content] = plan.count(content)[0], len(written), entries
    data, deletes = counts[ManifestContent.DATA], counts[ManifestContent.DELETES]
    phrases = [f"rewrote {data[0]} manifests into {data[1]} ({data[2]} entries)"] if data[0] else []
    phrases += [f"merged {deletes[0]} delete manifests into {deletes[1]}"] if deletes[0] else []
    return succeeded(
        _OPERATION,
        "; ".join(phrases),
        snapshot_ids=(committed.prepared.snapshot_id or 0,),
        metrics={
            "rewrite_manifests.manifests_rewritten": data[0],
            "rewrite_manifests.manifests_written": data[1],
            "rewrite_manifests.entries_total": data[2],
            "rewrite_manifests.delete_manifests_rewritten": deletes[0],
            "rewrite_manifests.delete_manifests_written": deletes[1],
            "rewrite_manifests.delete_entries_total": deletes[2],
            "rewrite_manifests.manifests_opened_before": _opened(metadata, plan.listed, rewritten.partitions),
            "rewrite_manifests.manifests_opened_after": _opened(
                metadata, [*kept, *rewritten.written], rewritten.partitions
            ),
            "rewrite_manifests.duration_ms": duration_ms,
        },
        files_planned=plan.paths,
    )


def _opened(
    metadata: TableMetadata, manifests: Sequence[ManifestFile], partitions: Mapping[int, Sequence[PartitionOrder]]
) -> float:
    """The average number of data manifests that a planner opens for a rewritten partition."""
    opened = total = 0.0
    for spec_id, found in partitions.items():
        types = partition_types(metadata, spec_id)
        of_spec = [m for m in manifests if m.partition_spec_id == spec_id and m.content is ManifestContent.DATA]
        opened += len(found) * average_opened([range_of(types, m) for m in of_spec], found)
        total += len(found)
    return round(opened / total, 2) if total else 0.0


# Writing the manifests of a plan, in this process or on all workers.
#
# Both read entries, send each to a lane by its partition, sort each lane and cut it into manifests.  The manifests do
# not depend on the head: after a lost swap they can still be committed if the head lists the replaced manifests.

MB = 1024 * 1024
# Bytes of manifests in a lane; decompressed these are about 200 MB of entries, which a worker keeps in memory and
# sorts.
_LANE_BYTES = 32 * MB
# At least this many target sizes per lane: a lane's last manifest may be small and would soon be merged again.
_TARGETS_PER_LANE = 4
_SPLIT_BYTES = 8 * MB
# Planned file names per expected manifest: a lane may be larger than its sample showed.
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
    """The manifests that were written for a plan; ``staged`` has the paths of all files that may have been written."""

    staged: list[str] = field(default_factory=list)
    written: list[ManifestFile] = field(default_factory=list)
    partitions: dict[int, list[PartitionOrder]] = field(default_factory=dict)
    """Some partitions of the rewritten data manifests, by spec."""


def write_planned(
    reader: TableReader,
    storage: Storage,
    plan: ManifestPlan,
    io_properties: dict[str, str],
    engine: Engine,
    *,
    into: RewrittenManifests,
    will_write: Callable[[Sequence[str]], None],
    on_done: Callable[[int, int], None],
) -> None:
    """Write the manifests of a plan; ``into`` receives what was written, even after an error.

    ``reader`` and ``storage`` are this process's; workers open the store by ``io_properties``.  ``will_write`` is
    called with the records of all files before the first file is written; ``on_done`` with the number of finished steps
    and of all steps.

    Raises:
        StorageError: a manifest cannot be read or written, the names cannot be recorded, or the engine failed.
    """
    splits, lanes = _tasks(reader.metadata, plan, io_properties, engine)
    planned = [file for lane in lanes for file in lane.outputs]
    will_write([file.record for file in planned])
    into.staged[:] = [path for file in planned for path in file.paths]
    if len(lanes) == len(plan.groups):
        results = _here(splits, lanes, reader, storage)
    else:
        steps = len(splits) + len(lanes)
        results = engine.exchange(split_entries, splits, write_lane, lanes, lambda done: on_done(done, steps))
    for lane, result in zip(lanes, results, strict=True):
        into.written += result.written
        if lane.kind.content is ManifestContent.DATA:
            into.partitions.setdefault(lane.kind.spec_id, []).extend(result.partitions)
    into.staged[:] = [manifest.manifest_path for manifest in into.written]
    into.partitions = {spec_id: evenly(found, MAX_PARTITIONS) for spec_id, found in into.partitions.items()}
    error = next((result.error for result in results if result.error is not None), None)
    if error is not None:
        raise StorageError(error)


def _tasks(
    metadata: TableMetadata, plan: ManifestPlan, io_properties: dict[str, str], engine: Engine
) -> tuple[list[SplitTask], list[Lane]]:
    """Manifests to read, and a lane for every range of a group's partition order, with file names."""
    document = {key: metadata.document[key] for key in _DOCUMENT if key in metadata.document}
    prefix = f"{metadata.metadata_directory}/{uuid.uuid4()}"
    kinds = {g.kind: ManifestsOfTable(document, *g.kind, io_properties) for g in plan.groups}
    counts = {g.kind: max(1, g.live_bytes // max(_LANE_BYTES, _TARGETS_PER_LANE * g.room)) for g in plan.groups}
    keys = _sampled_keys(engine, [(kinds[g.kind], g) for g in plan.groups if counts[g.kind] > 1])
    splits: list[SplitTask] = []
    lanes: list[Lane] = []
    for group in plan.groups:
        kind, sample = kinds[group.kind], keys[group.kind]
        bounds = lane_bounds(sample, counts[group.kind]) if sample else []
        names = max(1, _NAMES_PER_OUTPUT * group.outputs // (len(bounds) + 1))
        names = min(names, max(len(group.manifests), group.outputs))
        for portion in portions(group.manifests, _SPLIT_BYTES):
            splits.append(SplitTask(kind, portion, tuple(bounds), len(lanes)))
        for _ in range(len(bounds) + 1):
            stem = f"{prefix}-m{len(lanes)}"
            outputs = tuple(PlannedFile(f"{stem}-{number}", "avro", MAX_ATTEMPTS) for number in range(names))
            lanes.append(Lane(kind, outputs, plan.target_bytes))
    return splits, lanes


def _here(
    splits: Sequence[SplitTask], lanes: Sequence[Lane], reader: TableReader, storage: Storage
) -> list[LaneResult]:
    """Do the work in this process if each group has a single lane: starting workers would take longer."""
    parts: dict[int, list[EntryPart]] = defaultdict(list)
    for task in splits:
        for lane, part in split_entries(task, reader.read):
            parts[lane].append(part)
    with on_cores(this_machine().cores):
        return [write_lane(lane, iter(parts.pop(number, [])), storage) for number, lane in enumerate(lanes)]


def _sampled_keys(
    engine: Engine, groups: Sequence[tuple[ManifestsOfTable, ManifestGroup]]
) -> defaultdict[ManifestKind, list[Any]]:
    """The order keys of sampled entries of each group, from which the bounds of its lanes are chosen."""
    tasks = [
        (kind, manifest)
        for kind, group in groups
        for manifest in evenly(sorted(group.manifests, key=lambda m: m.min_sequence_number), _SAMPLED_MANIFESTS)
    ]
    found: defaultdict[ManifestKind, list[Any]] = defaultdict(list)
    for (kind, _), keys in zip(tasks, engine.map(sample_entries, tasks, lambda done: None), strict=True):
        found[kind.spec_id, kind.content] += keys
    return found
