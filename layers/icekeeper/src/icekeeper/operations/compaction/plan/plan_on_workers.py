"""Plan the compaction of a table with very many files on workers, so that this process keeps little memory per group.

Each task reads some manifests and sends the candidates that it finds to the *part* of their partition.  Each part plans
its partitions and returns their groups, whose files stay packed until they are rewritten.
"""

from __future__ import annotations

import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.engines.engine import Engine
from icekeeper.errors import MaintenanceError, MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import portions
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent, ManifestFile, Nothing
from icekeeper.operations.compaction.plan.bins import FileGroup, binpacked
from icekeeper.operations.compaction.plan.candidate import Candidate, GroupKey
from icekeeper.operations.compaction.plan.candidates import (
    FileCounts,
    PassedOver,
    TableState,
    Tally,
    path_hash,
    repeated,
    rest_rule,
    select_candidates,
)
from icekeeper.operations.compaction.plan.lacking_settings import BY_FOOTER
from icekeeper.operations.compaction.plan.output_sizes import OutputSizes
from icekeeper.operations.compaction.plan.packed_files import PackedFiles
from icekeeper.operations.compaction.plan.payback import weighed
from icekeeper.operations.compaction.plan.plan_groups import (
    NO_SNAPSHOT,
    CompactionPlan,
    Divided,
    chosen_plan,
    partition_groups,
    ungrouped,
)
from icekeeper.operations.compaction.plan.where import file_scope
from icekeeper.operations.compaction.terms.write_properties import misread_columns
from icekeeper.policy import Policy
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.storage.storage import Storage

LARGE_ENTRIES = 500_000
"""From this many live entries on, workers plan; a single process needs about half a minute and 200 MB for them."""
# Bytes of manifests in a task: a few seconds of decoding.
_PORTION_BYTES = 32 * 1024 * 1024
# Entries of a part, if partitions have equal sizes: 60 MB in a worker.
_PART_ENTRIES = 100_000
# Candidates of a partition that a worker collects before it plans those that fill files.
_HELD_CANDIDATES = 200_000


def may_be_planned_on_workers(manifests: Sequence[ManifestFile], policy: Policy) -> bool:
    """Whether a table has that many entries, and its plan needs neither delete files nor footers."""
    has_deletes = any(m.content is ManifestContent.DELETES and m.may_have_live_files for m in manifests)
    asks_footers = BY_FOOTER.intersection(policy.rewrite_reason)
    return not has_deletes and not asks_footers and live_entries(manifests) >= LARGE_ENTRIES


def live_entries(manifests: Iterable[ManifestFile]) -> int:
    """The number of live data files by the manifest list; manifests without counts are ignored."""
    data = (m for m in manifests if m.content is ManifestContent.DATA)
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in data)


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What every task and part of a plan needs; picklable."""

    document: Mapping[str, Any]
    """The table's metadata."""
    snapshot_id: int
    policy: Policy
    now_ms: int
    cuts: bool
    unreadable: Mapping[str, str]
    ordered_by_table: Set[int]
    io_properties: Mapping[str, str]
    parts: int


Item: TypeAlias = tuple[str, Any]
"""``files``: the key and the packed candidates of a partition; ``hashes``: hashes of paths; ``counts``: the counts of a
task's files; ``error``: why a manifest cannot be read."""


@dataclass(slots=True)
class PartPlan:
    """The result of a part."""

    groups: list[FileGroup] = field(default_factory=list)
    few: Tally = field(default_factory=Tally)
    uneven: Tally = field(default_factory=Tally)
    counts: list[FileCounts] = field(default_factory=list)
    twice: frozenset[int] = frozenset()
    """Hashes of paths that have two live entries."""
    errors: list[str] = field(default_factory=list)


def plan_on_workers(
    engine: Engine, state: TableState, policy: Policy, *, now_ms: int, cuts: bool, io_properties: Mapping[str, str]
) -> CompactionPlan | Nothing:
    """As :func:`.plan_compaction`, for a table without delete files, without a recipe and without reasons from footers.

    Files with two live entries are not rewritten, nor is the rest of their group.  ``state.live_files`` is not read.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged.
        StorageError: the engine failed.
    """
    if state.snapshot is None:
        return Nothing(NO_SNAPSHOT)
    data = [m for m in state.manifests if m.content is ManifestContent.DATA and m.may_have_live_files]
    rules = PlanRules(
        document=state.metadata.document,
        snapshot_id=state.snapshot.snapshot_id,
        policy=policy,
        now_ms=now_ms,
        cuts=cuts and policy.rewrite_enabled and policy.min_row_group_copy_bytes is not None,
        unreadable=state.unreadable,
        ordered_by_table=state.ordered_by_table,
        io_properties=properties_for_workers(io_properties),
        parts=max(1, live_entries(data) // _PART_ENTRIES),
    )
    found = engine.exchange(
        partial(sent_candidates, rules),
        list(portions(data, _PORTION_BYTES)),
        partial(plan_part, rules),
        range(rules.parts),
        lambda done: None,
    )
    errors = [error for part in found for error in part.errors]
    if errors:
        raise MetadataUnreadable(errors[0])
    sizes = OutputSizes.of(state.metadata, state.snapshot)
    return chosen_plan(state, policy, _together(found), None, sizes, None)


def _together(parts: Sequence[PartPlan]) -> Divided:
    twice = frozenset[int]().union(*(part.twice for part in parts))
    groups = [group for part in parts for group in part.groups]
    if twice:
        groups = [group for group in groups if not any(path_hash(path) in twice for path in group.paths)]
    counts = [of_task for part in parts for of_task in part.counts]
    passed = {reason: Tally() for reason in PassedOver}
    for of_task in counts:
        for reason, tally in of_task.passed_over.items():
            _add(passed[reason], tally)
    few, uneven = Tally(), Tally()
    for part in parts:
        _add(few, part.few)
        _add(uneven, part.uneven)
    considered = sum(of_task.considered for of_task in counts)
    return Divided(FileCounts({}, considered, passed, counts[0].specs_to_leave), groups, few, uneven)


def _add(total: Tally, more: Tally) -> None:
    total.count(more.files, more.bytes)
    total.first = total.first or more.first


def sent_candidates(rules: PlanRules, manifests: tuple[ManifestFile, ...]) -> Iterator[tuple[int, Item]]:
    """The candidates in some manifests, by the part of their partition."""
    metadata = TableMetadata(rules.document)
    snapshot = metadata.snapshots[rules.snapshot_id]
    floats = [leaf for leaf in leaf_columns(metadata.current_schema) if leaf.is_float]
    entries = TableReader(metadata, Storage(rules.io_properties).read).live_entries(manifests)
    state = TableState(
        metadata, snapshot, live_files=entries, unreadable=rules.unreadable, ordered_by_table=rules.ordered_by_table
    )
    try:
        found = select_candidates(
            state,
            rules.policy,
            in_scope=file_scope(rules.policy, metadata, rules.now_ms),
            misread_in=lambda file: misread_columns([file], floats),
            cuts=rules.cuts,
            sizes=OutputSizes.of(metadata, snapshot),
        )
    except MaintenanceError as error:
        yield 0, ("error", str(error))
        return
    yield 0, ("counts", found.counts)
    by_part: dict[int, array[int]] = defaultdict(lambda: array("q"))
    for number in found.listed:
        by_part[number % rules.parts].append(number)
    for part, hashes in by_part.items():
        yield part, ("hashes", hashes.tobytes())
    for key, files in found.partitions.items():
        if files:
            yield zlib.crc32(repr(key).encode()) % rules.parts, ("files", (key, PackedFiles.of(files)))


def plan_part(rules: PlanRules, part: int, items: Iterator[Item]) -> PartPlan:
    """Plan the partitions of a part."""
    plan, hashes = PartPlan(), array("q")
    waiting: dict[GroupKey, list[PackedFiles]] = defaultdict(list)
    planner = _PartitionPlanner(rules)
    for kind, item in items:
        if kind == "files":
            key, packed = item
            waiting[key].append(packed)
            if sum(map(len, waiting[key])) >= _HELD_CANDIDATES:
                filled, rest = planner.filled(list(chain.from_iterable(waiting[key])))
                plan.groups += filled
                waiting[key] = [PackedFiles.of(rest)] if rest else []
        elif kind == "hashes":
            hashes.frombytes(item)
        elif kind == "counts":
            plan.counts.append(item)
        else:
            plan.errors.append(item)
    plan.twice = repeated(hashes)
    for key in sorted(waiting, key=repr):
        files = list(chain.from_iterable(waiting.pop(key)))
        groups = planner.groups(files)
        few, uneven = ungrouped({key: files}, groups, rules.policy)
        _add(plan.few, few)
        _add(plan.uneven, uneven)
        plan.groups += [group.packed for group in groups]
    return plan


class _PartitionPlanner:
    """Divides the candidates of partitions into weighed groups."""

    def __init__(self, rules: PlanRules) -> None:
        metadata = TableMetadata(rules.document)
        self._sizes = OutputSizes.of(metadata, metadata.snapshots[rules.snapshot_id])
        self._is_at_rest = rest_rule(metadata, rules.policy, rules.now_ms)
        self._rules = rules

    def groups(self, files: list[Candidate]) -> list[FileGroup]:
        """The groups of all candidates of a partition."""
        policy = self._rules.policy
        found = partition_groups(files, policy, self._is_at_rest, self._sizes, cuts=self._rules.cuts)
        return [weighed(group, policy, {}) for group in found]

    def filled(self, files: list[Candidate]) -> tuple[list[FileGroup], list[Candidate]]:
        """The packed groups, from some of a partition's candidates, that fill files; and the other candidates."""
        policy = self._rules.policy
        found = binpacked(files, policy, cuts=self._rules.cuts, sizes=self._sizes)
        groups = [group for group in found if group.expected_bytes >= policy.min_file_size_bytes]
        taken = {c.file_path for group in groups for c in group.files}
        return [weighed(group, policy, {}).packed for group in groups], [c for c in files if c.file_path not in taken]
