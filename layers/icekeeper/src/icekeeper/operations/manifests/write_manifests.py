"""Writes the manifests of a plan: in this process where they are few, by all workers where they are many.

Both ways do the same: read entries, send each to a lane by its partition, sort each lane and cut it into manifests.
What is written does not depend on the head: it can be committed after a lost swap, as long as the manifests that it
replaces are still listed.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.engines.engine import Engine
from icekeeper.errors import StorageError
from icekeeper.machine.resources import on_cores, this_machine
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import portions
from icekeeper.metadata.table_reader import ReadBytes
from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.operations.manifests.cuts import lane_bounds
from icekeeper.operations.manifests.lanes import MAX_PARTITIONS, evenly, sample_entries, split_entries, write_lane
from icekeeper.operations.manifests.partition_ranges import PartitionOrder
from icekeeper.operations.manifests.plan import ManifestGroup, ManifestKind, ManifestPlan
from icekeeper.operations.manifests.task import EntryPart, Lane, LaneResult, ManifestsOfTable, SampleTask, SplitTask
from icekeeper.storage.attempt_names import MAX_ATTEMPTS, PlannedFile
from icekeeper.storage.storage import Storage

__all__ = ["PlannedRewrite", "RewrittenManifests", "write_planned"]

MB = 1024 * 1024
# Bytes of manifests in one lane: decompressed about 200 MB of entries, which one worker holds and sorts.
_LANE_BYTES = 32 * MB
# A lane holds at least so many manifests of the target size: its last one may be small, and would be merged again.
_TARGETS_PER_LANE = 4
_SPLIT_BYTES = 8 * MB
# A lane may turn out larger than the sample promised, so it gets so many times the names that it should need.
_NAMES_PER_OUTPUT = 4
_SAMPLED_MANIFESTS = 32
# The fields of table metadata that are needed to write manifests; not the snapshots, which can be many.
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
        """How many entries the manifests of that content type hold."""
        return sum(m.existing_files_count or 0 for m in self.written if m.content is content)


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """A plan, and what its manifests are written by."""

    metadata: TableMetadata
    plan: ManifestPlan
    io_properties: dict[str, str]
    target_bytes: int
    """The size of a manifest to aim at."""
    storage: Storage
    """Writes in this process; workers open their own by ``io_properties``."""
    read: ReadBytes
    """Reads manifests in this process."""


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
    """Write the manifests of a plan; ``into`` is filled with what was written, also when this fails.

    ``will_write`` is called with the record of every file before the first one is written, ``on_done`` with the number
    of steps that are done, and of all.

    Raises:
        StorageError: a manifest cannot be read or written, the names could not be recorded, or the engine broke.
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
    """What to read and what to write: a lane for every part of a group's partition order, with names for its files."""
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
    """Do the work in this process, where each group has one lane: starting workers would take longer."""
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
    """The order keys of some entries of each group, from which the bounds of its lanes are chosen."""
    tasks: list[SampleTask] = []
    for kind, group in groups:
        chosen = evenly(sorted(group.manifests, key=lambda m: m.min_sequence_number), _SAMPLED_MANIFESTS)
        tasks += [SampleTask(kind, (manifest,)) for manifest in chosen]
    found: defaultdict[ManifestKind, list[Any]] = defaultdict(list)
    for task, keys in zip(tasks, engine.map(sample_entries, tasks, lambda done: None), strict=True):
        found[task.kind.spec_id, task.kind.content] += keys
    return found
