"""What must come before compaction can find more to do than a plan holds (pure)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from icekeeper.metadata.document import table_digest
from icekeeper.operations.compaction.bins import (
    LIGHTEST_BYTES,
    Bin,
    Reason,
    Unpacked,
    full_bytes,
    largest_share,
    light_bytes,
)
from icekeeper.operations.compaction.candidates import LARGEST_OUTPUT, Candidate, TableState, large_from
from icekeeper.operations.compaction.clustering.plan_clustering import missing_to_cluster
from icekeeper.operations.compaction.payback import files_until_paid
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.policy import Policy
from icekeeper.state.slack import Slack

# What a partition lacks in which no bin was found, by the rules that find bins (:mod:`.bins`) (pure).


def missing_files_and_bytes(left: Sequence[Unpacked], policy: Policy, *, in_order: bool) -> tuple[tuple[int, int], ...]:
    """Pairs ``(files, bytes)`` of new files that may make a bin with files of which alone none can be made.

    Without as many files and bytes as some pair says no bin can come about.  A new file weighs its bytes, and the
    lightest weight beside; see :func:`may_make_a_bin`.  ``in_order``: the new files are surely the youngest.
    """
    least, count = policy.min_input_files, len(left)
    light = [one for one in left if one.size < light_bytes(policy)]
    rewritten = sum(one.is_rewritten for one in light)
    # Balanced: the largest file is one of these, or a new one, which is no smaller than those that it is taken with.
    patience = max(least, rewritten)
    weights = sorted(max(one.size, LIGHTEST_BYTES) for one in left if not one.is_rewritten)
    share, total, pairs = largest_share(policy), 0, [(patience, 0)]
    for taken, weight in enumerate(weights, start=1):
        total += weight
        pairs.append((max(1, patience - taken), max(0, math.ceil(weight / share) - total)))
    if rewritten:  # light ones that are light no more together
        size = sum(one.size for one in light)
        pairs.append((max(1, least - len(light)), max(0, light_bytes(policy) - size)))
    was_tried = in_order and count >= least
    pairs.append((max(1, least - count), _bytes_to_fill(left, policy, was_tried=was_tried)))
    return least_pairs(pairs)


def missing_after_rewrites(as_written: int, count: int, size: int, policy: Policy) -> tuple[tuple[int, int], ...]:
    """The pairs of a partition that has ``count`` small files once it is rewritten, with ``size`` bytes at most.

    ``as_written`` of them no rewrite wrote: only those balance one another.
    """
    least = policy.min_input_files
    to_merge_light = max(0, min(light_bytes(policy), policy.max_file_group_size_bytes) - size)
    return least_pairs([(max(1, least - as_written), 0), (max(1, least - count), to_merge_light)])


def may_fill(sizes: Sequence[int], policy: Policy) -> bool:
    """Whether some of these files would be a full bin if others of them were gone."""
    return sum(sizes) >= min(full_bytes(policy), policy.max_file_group_size_bytes)


def may_make_a_bin(pairs: Sequence[tuple[int, int]], files: int, size: int) -> bool:
    """Whether so many files, of so many bytes together, into one partition may be enough for one of the pairs."""
    weight = size + files * LIGHTEST_BYTES
    return any(files >= enough and weight >= least for enough, least in pairs)


def least_pairs(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The pairs that no other one makes needless: with more files each needs fewer bytes."""
    kept: list[tuple[int, int]] = []
    for files, size in sorted(pairs):
        if not kept or size < kept[-1][1]:
            kept.append((files, size))
    return tuple(kept)


def _bytes_to_fill(left: Sequence[Unpacked], policy: Policy, *, was_tried: bool) -> int:
    """The fewest bytes after which these files may be a full bin; ``was_tried``: no part of them is one.

    New files take as many bytes in an output as they have, at most.
    """
    size, held = sum(one.size for one in left), sum(one.bytes for one in left)
    full, largest = full_bytes(policy), LARGEST_OUTPUT * policy.target_file_size_bytes
    outputs = size // full
    if outputs and not (was_tried and size > outputs * largest):
        return 0
    return max(0, min((outputs + 1) * full - size, policy.max_file_group_size_bytes - held))


# What must come before compaction can find more to do than a plan holds (pure).
#
# Each partition tells what it lacks by the rules that just found no bin in it (:mod:`.bins`, :mod:`.clustering.plan`,
# :mod:`.payback`); the least of all partitions is the table's slack.  Of a partition that the plan rewrites the number
# of files is known that will be left in it; how large they become is only bounded.

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
