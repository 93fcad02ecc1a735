"""A pass over a table on paper, by the operations' own planners; counts what it asks of the store."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.model import (
    FileContent,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionFieldSummary,
)
from icekeeper.operations.compaction.plan_groups import Clustering, NothingToCompact
from icekeeper.operations.compaction.recipe import choose_recipe
from icekeeper.operations.expiry.retention import plan_expiry
from icekeeper.operations.manifests.plan_manifests import NothingToRewrite, plan_manifests
from icekeeper.operations.position_deletes.plan_merges import NothingToMerge, plan_position_deletes
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded
from support.paper_lives import Orphans
from support.paper_table import PaperTable
from support.plans import manifest

# Iceberg's commit.manifest.target-size-bytes, and what a manifest takes without and for each entry, about.
_MANIFEST_BYTES, _HEADER_BYTES, _ENTRY_BYTES = 8 * 1024 * 1024, 4000, 150
_LISTED_AT_ONCE = 1000


@dataclass
class Requests:
    """Requests to the store, by kind, and bytes that passes read and wrote."""

    counts: Counter[str] = field(default_factory=Counter)
    bytes_rewritten: int = 0

    def add(self, *, gets: int = 0, puts: int = 0, lists: int = 0) -> None:
        self.counts.update(gets=gets, puts=puts, lists=lists)


@dataclass
class _Pass:
    table: PaperTable
    orphans: Orphans
    now_ms: int
    requests: Requests
    orphan_ages_ms: list[int]
    depth: float | None = None


def carried_out_pass(
    table: PaperTable, orphans: Orphans, now_ms: int, requests: Requests, operations: Iterable[Operation]
) -> tuple[list[OperationOutcome], list[int], float | None]:
    """Outcomes, the ages of the orphans that were removed, and the depth in the clustering columns before it."""
    run = _Pass(table, orphans, now_ms, requests, [])
    requests.add(gets=2)
    outcomes = [_STEPS[operation](run) for operation in operations]
    return outcomes, run.orphan_ages_ms, run.depth


def _compact(run: _Pass) -> OperationOutcome:
    table, metadata = run.table, run.table.metadata
    recipe = choose_recipe(metadata, table.policy)
    clustering = None
    if recipe is not None:
        by_it = {raw["snapshot-id"] for raw in table.snapshots if raw["summary"].get(RECIPE_KEY) == recipe.text}
        clustering = Clustering(recipe, by_it | table.clustered_by)
    run.requests.add(gets=len(table.manifests) + bool(table.deletes))
    plan = table.plan(run.now_ms, clustering)
    if isinstance(plan, Nothing):
        slack = plan.slack if isinstance(plan, NothingToCompact) else None
        return replace(skipped(Operation.COMPACT, plan.reason), slack=slack)
    run.depth = None if plan.depth is None else plan.depth.now()
    before = table.rewritten
    table.carry_out(plan, run.now_ms)
    if recipe is not None:
        table.clustered_by.add(table.sequence)
    deletes = len(plan.delete_files)
    written = sum(group.output_count for group in plan.groups)
    run.requests.add(gets=2 * len(plan.input_files) + deletes, puts=written + 4)
    run.requests.bytes_rewritten += table.rewritten - before
    slack = None if plan.slack is None else replace(plan.slack, run_id="r")
    return replace(succeeded(Operation.COMPACT, "compacted", snapshot_ids=[table.sequence]), slack=slack)


def _position_deletes(run: _Pass) -> OperationOutcome:
    table, metadata = run.table, run.table.metadata
    entries = [LiveEntry(_DELETES, e) for e in table.deletes if e.file.content is FileContent.POSITION_DELETES]
    live = table.files.values()
    plan = plan_position_deletes(metadata, metadata.head("main"), [_DELETES], entries, lambda: iter(live), table.policy)
    if isinstance(plan, Nothing):
        slack = plan.slack if isinstance(plan, NothingToMerge) else None
        return replace(skipped(Operation.REWRITE_POSITION_DELETES, plan.reason), slack=slack)
    gone = set(plan.input_files)
    kept = [entry for entry in table.deletes if entry.file.file_path not in gone]
    table.commit(run.now_ms, (), {"operation": "replace", "icekeeper.run-id": "r"})
    for group in plan.groups:
        entry = group.deletes[0]
        rows = sum(one.file.record_count for one in group.deletes)
        file = replace(entry.file, file_path=f"m{table.sequence}-{group.group_id}", record_count=rows)
        kept.append(ManifestEntry(entry.status, table.sequence, group.sequence_number, table.sequence, file))
    table.deletes = kept
    run.requests.add(gets=len(gone), puts=len(plan.groups) + 4)
    return succeeded(Operation.REWRITE_POSITION_DELETES, "merged", snapshot_ids=[table.sequence])


def _expire(run: _Pass) -> OperationOutcome:
    plan = plan_expiry(run.table.metadata, run.table.policy, now_ms=run.now_ms)
    if isinstance(plan, Nothing):
        return skipped(Operation.EXPIRE_SNAPSHOTS, plan.reason)
    gone = set(plan.snapshot_ids)
    run.table.snapshots = [raw for raw in run.table.snapshots if raw["snapshot-id"] not in gone]
    run.requests.add(gets=2 * len(gone) + 2, puts=1)
    return succeeded(Operation.EXPIRE_SNAPSHOTS, "expired", files_deleted=["manifest lists"])


def _sweep(run: _Pass) -> OperationOutcome:
    old_ms = run.now_ms - run.table.policy.orphan_older_than_ms
    old = [group for group in run.orphans.groups if group[0] < old_ms]
    listed = run.table.data_files + run.orphans.count + 3 * len(run.table.snapshots)
    run.requests.add(lists=2 + listed // _LISTED_AT_ONCE)
    run.orphans.groups = [group for group in run.orphans.groups if group[0] >= old_ms]
    run.orphan_ages_ms += [run.now_ms - at_ms for at_ms, files in old for _ in range(files)]
    gone = [f"orphan-{at_ms}" for at_ms, _ in old]
    return succeeded(Operation.REMOVE_ORPHANS, f"removed {len(gone)} orphan file(s)", files_deleted=gone)


def _rewrite_manifests(run: _Pass) -> OperationOutcome:
    table, metadata = run.table, run.table.metadata
    listed = {f"m{number}": number for number in table.manifests}
    files = [_manifest_file(table, number) for number in table.manifests]
    plan = plan_manifests(
        metadata,
        metadata.head("main"),
        files,
        table.policy,
        target_bytes=_MANIFEST_BYTES,
        header_bytes={(0, content): _HEADER_BYTES for content in ManifestContent},
    )
    if isinstance(plan, Nothing):
        slack = plan.slack if isinstance(plan, NothingToRewrite) else None
        return replace(skipped(Operation.REWRITE_MANIFESTS, plan.reason), slack=slack)
    table.rewrite_manifests([listed[one.manifest_path] for one in plan.manifests], run.now_ms)
    run.requests.add(gets=len(plan.manifests), puts=4)
    return succeeded(Operation.REWRITE_MANIFESTS, "rewritten", snapshot_ids=[table.sequence])


def _manifest_file(table: PaperTable, number: int) -> ManifestFile:
    paths = table.manifests[number]
    summaries: Sequence[PartitionFieldSummary] = ()
    if table.document["partition-specs"][0]["fields"]:
        values = sorted(value for path in paths if isinstance(value := table.files[path].entry.file.partition[0], int))
        low, high = (struct.pack("<q", value) for value in (values[0], values[-1]))
        summaries = [PartitionFieldSummary(False, None, low, high)]
    listed = manifest(f"m{number}", live=len(paths), length=_HEADER_BYTES + _ENTRY_BYTES * len(paths))
    return replace(listed, sequence_number=number, min_sequence_number=number, partitions=tuple(summaries))


_DELETES = manifest("deletes", content=ManifestContent.DELETES)
_STEPS: dict[Operation, Callable[[_Pass], OperationOutcome]] = {
    Operation.COMPACT: _compact,
    Operation.REWRITE_POSITION_DELETES: _position_deletes,
    Operation.EXPIRE_SNAPSHOTS: _expire,
    Operation.REMOVE_ORPHANS: _sweep,
    Operation.REWRITE_MANIFESTS: _rewrite_manifests,
}
