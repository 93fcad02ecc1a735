"""What must come before compaction can find more to do than a plan holds (pure).

Each partition tells what it lacks by the rules that just found no bin in it (:mod:`.bins`, :mod:`.clustering.plan`,
:mod:`.payback`); the least of all partitions is the table's slack.  Of a partition that the plan rewrites the
number of files is known that will be left in it; how large they become is only bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from icekeeper.metadata.document import table_digest
from icekeeper.operations.compaction.bins import Bin, Reason, Unpacked
from icekeeper.operations.compaction.candidates import Candidate, TableState
from icekeeper.operations.compaction.clustering.plan import missing_to_cluster
from icekeeper.operations.compaction.large_files import large_from
from icekeeper.operations.compaction.missing_bins import (
    least_pairs,
    may_fill,
    missing_after_rewrites,
    missing_files_and_bytes,
)
from icekeeper.operations.compaction.payback import files_until_paid
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.policy import Policy
from icekeeper.state.slack import Slack

__all__ = ["PlannedPartition", "compaction_slack"]

# So many times the bytes of its inputs has an output at most.  One that has more, in another codec, is met by the next
# pass that comes for another reason, or sweeps.
_MOST_GROWTH = 4
# One file, however small.
_ANY_FILE = ((1, 0),)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """The candidates of one partition and what a plan makes of them."""

    files: Sequence[Candidate]
    bins: Sequence[Bin]
    left: Sequence[Unpacked] = ()
    """Small files that no bin holds."""
    rests_ms: int | None = None
    """When it will be at rest, in epoch milliseconds; ``None``: it is."""


@dataclass(frozen=True, slots=True)
class _Lack:
    """What one partition lacks, how many small files it keeps, and when they may be merged because it is at rest."""

    pairs: tuple[tuple[int, int], ...]
    files: int = 0
    rests_ms: int | None = None
    gains_by_removals: bool = False


def compaction_slack(
    state: TableState,
    policy: Policy,
    partitions: Iterable[PlannedPartition],
    unpaid: Collection[int],
    recipe: ClusterRecipe | None,
    now_ms: int,
    *,
    cuts: bool = False,
) -> Slack | None:
    """The slack of a plan that takes every bin but ``unpaid`` ones, which are named by :func:`id`.

    ``cuts``: a large file is reason enough for a plan.
    """
    metadata, snapshot = state.metadata, state.snapshot
    if snapshot is None:
        return None
    slack = Slack(
        snapshot_id=snapshot.snapshot_id,
        table_digest=table_digest(metadata),
        planned_ms=now_ms,
        # One is enough: its rows are to be applied, or nothing needs it and it is dropped.
        delete_files=1 if policy.apply_deletes else None,
    )
    if policy.rewrite_all or policy.rewrite_reason:
        return replace(slack, data_files=_ANY_FILE)
    if not policy.rewrite_enabled:
        return slack
    if recipe is not None:
        pairs = least_pairs(pair for p in [*partitions, _EMPTY] for pair in _to_cluster(p, policy, recipe))
        # Runs that lose rows may come into one tier with others.
        return replace(slack, data_files=pairs, gains_by_removals=True)
    in_order = metadata.format_version > 1  # v1 orders files by time, which expires with their snapshots
    lacks = [_to_pack(p, unpaid, policy, now_ms, in_order=in_order) for p in [*partitions, _EMPTY]]
    least = policy.min_input_files
    large = [(1, large_from(policy))] if cuts else []
    return replace(
        slack,
        data_files=least_pairs([*large, *(pair for lack in lacks for pair in lack.pairs)]),
        gains_by_removals=any(lack.gains_by_removals for lack in lacks),
        rests_ms=min((lack.rests_ms for lack in lacks if lack.rests_ms is not None), default=None),
        files_to_rest=min(max(1, least - lack.files) for lack in lacks),
        rest_ms=policy.partition_rest_ms,
    )


_EMPTY = PlannedPartition((), ())


def _to_cluster(partition: PlannedPartition, policy: Policy, recipe: ClusterRecipe) -> tuple[tuple[int, int], ...]:
    claims_order = recipe.order_id is not None and any(
        c.file.sort_order_id == recipe.order_id and not c.is_clustered for c in partition.files
    )
    # A file that claims the order is believed once its snapshot has expired, and may then make a run too many.
    if partition.bins or claims_order:
        return _ANY_FILE
    return missing_to_cluster(partition.files, policy)


def _to_pack(
    partition: PlannedPartition, unpaid: Collection[int], policy: Policy, now_ms: int, *, in_order: bool
) -> _Lack:
    least = policy.min_input_files
    merges = [one for one in partition.bins if one.reason is not Reason.LARGE]  # whose pieces are not small
    taken = [chosen for chosen in merges if id(chosen) not in unpaid]
    passed_by = [Unpacked.of(c) for chosen in merges if id(chosen) in unpaid for c in chosen.files]
    staying = [*partition.left, *passed_by]
    outputs = sum(chosen.outputs for chosen in taken)
    count = len(staying) + outputs
    rests_ms = partition.rests_ms
    pairs: tuple[tuple[int, int], ...]
    if taken:
        size = sum(one.size for one in staying) + _MOST_GROWTH * sum(chosen.total_bytes for chosen in taken)
        as_written = sum(not one.is_rewritten for one in staying) if in_order else count
        pairs = missing_after_rewrites(as_written, count, size, policy)
        rests_ms = now_ms + policy.partition_rest_ms
    elif passed_by:
        files = files_until_paid(partition.files, policy)
        pairs = () if files is None else ((files, 0),)
    else:
        pairs = missing_files_and_bytes(partition.left, policy, in_order=in_order)
    # A partition that loses its youngest files is at rest sooner, and the fewer light ones were rewritten the fewer
    # others must come.
    rests_ms = rests_ms if count >= least else None
    rewritten = sum(c.identity.is_rewritten for c in partition.files) + outputs
    small = [c.file.file_size_in_bytes for c in partition.files]
    return _Lack(pairs, count, rests_ms, rests_ms is not None or rewritten > least or may_fill(small, policy))
