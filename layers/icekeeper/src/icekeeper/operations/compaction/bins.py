"""Divides one partition's candidates into bins: files that are merged with each other (rule 49, rule 50) (pure).

A *run* is what will be one file: a candidate as it is, or several that this plan merges.  Three things make a bin:

* Runs that, taken in order of age, divide into files of the right size: the bin is full, and its bytes are never merged
  again.  Only the files in the bin decide, never the one that comes next.
* At least ``min_input_files`` of the smallest runs, none of which outweighs the others: the bin is *balanced*.  Each
  time a byte is merged so, its file grows by a factor, so it is rewritten as often as the logarithm of its final size
  says; with the largest file taken along every time it would be as often as files arrive.  In a partition at rest, to
  which nothing comes any more, all runs are merged whatever their sizes, once.
* Runs that are due by themselves, for their deletes or for what they lack, and those that are no larger.

Both first need a partition with ``min_input_files`` candidates.  A run that was merged here takes its place among the
others as the newest, just as the file will that it becomes, until nothing changes.  So ``plan(apply(plan))`` is empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate

from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.policy import Policy

__all__ = [
    "Bin",
    "Packing",
    "Reason",
    "binpacked",
    "least_pairs",
    "may_fill",
    "may_make_a_bin",
    "missing_files_and_bytes",
]

# The largest output, as a multiple of the target file size.
_LARGEST_OUTPUT = Fraction(5, 4)
# The share of a balanced bin that its largest file may have, so that this file grows more than threefold.  A smaller
# share rewrites less and leaves more files; by this one the six files of 3 to 15 MB of SeaweedFS's example are merged.
_LARGEST_SHARE = Fraction(3, 10)
# Files below this size weigh alike: reading them takes less than opening them.
_LIGHTEST_BYTES = 256 * 1024


class Reason(StrEnum):
    """Why a bin is to be rewritten."""

    SMALL = "small"
    """Its files are small, and become fewer."""
    DELETES = "deletes"
    """Deletes apply to them; without these they would be left alone."""
    SETTINGS = "settings"
    """They were written otherwise than the table asks for now, which ``rewrite_reason`` names."""
    CLUSTERING = "clustering"
    """They are not clustered by the recipe, or there are too many small ones that are."""
    ALL = "all"
    """``rewrite_all`` asks for every file."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Candidates that are to be rewritten together."""

    files: tuple[Candidate, ...]
    reason: Reason = Reason.SMALL
    outputs: int = 1
    """How many files they become."""

    @property
    def for_deletes(self) -> bool:
        """Whether their deletes are the only reason to rewrite them."""
        return self.reason is Reason.DELETES

    @property
    def total_bytes(self) -> int:
        return sum(candidate.file.file_size_in_bytes for candidate in self.files)


@dataclass(frozen=True, slots=True)
class Packing:
    """What becomes of one partition's candidates."""

    bins: tuple[Bin, ...]
    left: tuple[int, ...]
    """The sizes of those that stay as they are, but for large ones."""


@dataclass(frozen=True, slots=True)
class _Run:
    files: tuple[Candidate, ...]
    size: int
    reason: Reason | None = None
    """Why the run is rewritten even if it stays alone; ``None``: it is one file, and needs not be."""

    @property
    def is_due(self) -> bool:
        """Whether it is to be rewritten even by itself."""
        return self.reason is None and self.files[0].is_due

    @property
    def weight(self) -> int:
        return max(self.size, _LIGHTEST_BYTES)


def binpacked(files: list[Candidate], policy: Policy, *, at_rest: bool = False) -> Packing:
    """The bins of one partition's candidates that are to be rewritten, in order of age; the balanced one comes last."""
    files.sort(key=lambda c: (c.age, c.file.file_path))
    # Large enough: only their deletes are applied, or what they lack is given to them.
    large = [c for c in files if c.is_due and c.file.file_size_in_bytes >= policy.min_file_size_bytes]
    alone = {id(c) for c in large}
    runs = [_Run((c,), c.file.file_size_in_bytes) for c in files if id(c) not in alone]
    chosen = [Bin((c,), _reason_alone((c,))) for c in large]
    if policy.rewrite_all:
        bins, rest = _full_bins(runs, policy)
        chosen += [*bins, *([_bin(_merged(rest), policy)] if rest else [])]
        return Packing(tuple(replace(b, reason=Reason.ALL) for b in chosen), ())
    while True:
        if len(runs) >= policy.min_input_files:
            bins, runs = _full_bins(runs, policy)
            chosen += bins
        together = _balanced(runs, policy, at_rest=at_rest) or _due(runs)
        if not together:
            break
        merged = _merged(together)
        taken = {id(run) for run in together}
        runs = [run for run in runs if id(run) not in taken]
        if _output_count(merged.size, len(together), policy) > 1 or merged.size >= policy.min_file_size_bytes:
            chosen.append(_bin(merged, policy))
        else:
            runs.append(merged)
    chosen += [_bin(run, policy) for run in runs if run.reason is not None]
    return Packing(tuple(chosen), tuple(run.size for run in runs if run.reason is None))


def missing_files_and_bytes(sizes: Sequence[int], policy: Policy, *, in_order: bool) -> tuple[tuple[int, int], ...]:
    """Pairs ``(files, bytes)`` of new runs that may make a bin with runs of which alone none can be made.

    Without as many files and bytes as some pair says neither a balanced nor a full bin can come about.  A new file
    weighs its bytes, at least the lightest weight; see :func:`may_make_a_bin`.  ``in_order``: the new runs are surely
    the youngest.
    """
    least, count = policy.min_input_files, len(sizes)
    # Balanced: the largest run is one of these, or a new one, which is no smaller than those that it is taken with.
    weights = sorted(max(size, _LIGHTEST_BYTES) for size in sizes)
    share, total, pairs = _largest_share(policy), 0, [(least, 0)]
    for taken, weight in enumerate(weights, start=1):
        total += weight
        pairs.append((max(1, least - taken), max(0, math.ceil(weight / share) - total)))
    was_tried = in_order and count >= least
    pairs.append((max(1, least - count), _bytes_to_fill(sum(sizes), policy, was_tried=was_tried)))
    return least_pairs(pairs)


def may_fill(sizes: Sequence[int], policy: Policy) -> bool:
    """Whether some of these runs would be a full bin if others of them were gone."""
    return sum(sizes) >= min(_full_bytes(policy), policy.max_file_group_size_bytes)


def may_make_a_bin(pairs: Sequence[tuple[int, int]], files: int, size: int) -> bool:
    """Whether so many files, of so many bytes together, into one partition may be enough for one of the pairs."""
    weight = size + files * _LIGHTEST_BYTES
    return any(files >= enough and weight >= least for enough, least in pairs)


def _bytes_to_fill(size: int, policy: Policy, *, was_tried: bool) -> int:
    """The fewest bytes after which runs of this size may be a full bin; ``was_tried``: no part of them is one."""
    full, largest = _full_bytes(policy), _LARGEST_OUTPUT * policy.target_file_size_bytes
    outputs = size // full
    if outputs and not (was_tried and size > outputs * largest):
        return 0
    return max(0, min((outputs + 1) * full, policy.max_file_group_size_bytes) - size)


def least_pairs(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The pairs that no other one makes needless: with more files each needs fewer bytes."""
    kept: list[tuple[int, int]] = []
    for files, size in sorted(pairs):
        if not kept or size < kept[-1][1]:
            kept.append((files, size))
    return tuple(kept)


def _full_bins(runs: Sequence[_Run], policy: Policy) -> tuple[list[Bin], list[_Run]]:
    """The full bins of runs in order of age, and the runs that are left."""
    bins: list[Bin] = []
    current: list[_Run] = []
    size = 0
    for run in runs:
        current.append(run)
        size += run.size
        outputs = _outputs_if_full(size, len(current), policy)
        if outputs is not None:
            bins.append(Bin(_merged(current).files, outputs=outputs))
            current, size = [], 0
    return bins, current


def _balanced(runs: Sequence[_Run], policy: Policy, *, at_rest: bool) -> list[_Run]:
    """As many of the smallest runs as can be, of which the largest does not outweigh the others; or none."""
    if len(runs) < policy.min_input_files:
        return []
    if at_rest:
        return list(runs)
    share = _largest_share(policy)
    order = sorted(runs, key=lambda run: (run.weight, run.files[0].file.file_path))
    totals = list(accumulate(run.weight for run in order))
    for count in range(len(order), policy.min_input_files - 1, -1):
        if order[count - 1].weight <= share * totals[count - 1]:
            chosen = {id(run) for run in order[:count]}
            return [run for run in runs if id(run) in chosen]
    return []


def _largest_share(policy: Policy) -> Fraction:
    return max(_LARGEST_SHARE, Fraction(3, 2 * policy.min_input_files))


def _due(runs: Sequence[_Run]) -> list[_Run]:
    """The runs that are due by themselves, and all that are no larger than what is chosen so far; or none."""
    chosen = {id(run) for run in runs if run.is_due}
    if not chosen:
        return []
    size = sum(run.size for run in runs if run.is_due)
    for run in sorted(runs, key=lambda run: run.size):
        if id(run) not in chosen and run.size <= size:
            chosen.add(id(run))
            size += run.size
    return [run for run in runs if id(run) in chosen]


def _merged(runs: Sequence[_Run]) -> _Run:
    files = tuple(c for run in runs for c in run.files)
    is_due = len(runs) == 1 or any(run.is_due for run in runs)
    return _Run(files, sum(run.size for run in runs), _reason_alone(files) if is_due else Reason.SMALL)


def _reason_alone(files: Sequence[Candidate]) -> Reason:
    """Why files are rewritten that would be left alone by their sizes."""
    return Reason.SETTINGS if any(c.lacks for c in files) else Reason.DELETES


def _bin(run: _Run, policy: Policy) -> Bin:
    reason = Reason.SMALL
    if run.reason is not None and len(run.files) < policy.min_input_files:
        reason = run.reason
    return Bin(run.files, reason, _output_count(run.size, len(run.files), policy))


def _outputs_if_full(size: int, inputs: int, policy: Policy) -> int | None:
    """How many files of the right size a bin of these bytes becomes; ``None``: it must take more files first."""
    outputs = _output_count(size, inputs, policy)
    is_whole = (
        outputs * _full_bytes(policy) <= size and size <= outputs * _LARGEST_OUTPUT * policy.target_file_size_bytes
    )
    return outputs if is_whole or size >= policy.max_file_group_size_bytes else None


def _full_bytes(policy: Policy) -> int:
    """The least size of a full bin with one output."""
    return max(1, (policy.min_file_size_bytes + policy.target_file_size_bytes) // 2)


def _output_count(size: int, inputs: int, policy: Policy) -> int:
    """The fewest outputs of which none is too large, yet none is small, and that are fewer than the inputs."""
    wanted = math.ceil(size / (_LARGEST_OUTPUT * policy.target_file_size_bytes))
    return max(1, min(wanted, size // policy.min_file_size_bytes, inputs - 1))
