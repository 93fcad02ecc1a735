"""What a partition lacks in which no bin was found, by the rules that find bins (:mod:`.bins`) (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from icekeeper.operations.compaction.bins import LIGHTEST_BYTES, Unpacked, full_bytes, largest_share, light_bytes
from icekeeper.operations.compaction.large_files import LARGEST_OUTPUT
from icekeeper.policy import Policy

__all__ = ["least_pairs", "may_fill", "may_make_a_bin", "missing_after_rewrites", "missing_files_and_bytes"]


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
