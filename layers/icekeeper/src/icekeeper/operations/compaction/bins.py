"""Divides one partition's candidates into bins: files that are merged with each other
(rule: plans-converge, bounded-merge-rewrites) (pure).

A *run* is what will be one file: a candidate as it is, or several that this plan merges.  A bin is one of these:

* Runs that, taken in order of age, divide into files of the right size: the bin is full, and its bytes are never merged
  again.  Only the files in the bin decide, never the one that comes next.
* At least ``min_input_files`` of the smallest files as writers left them, none of which outweighs the others: the bin
  is *balanced*.  With the largest file taken along every time, bytes would be rewritten as often as files arrive.
* Light runs, among them rewritten ones, that reach a sixteenth of a full file together: they are light no more.  Other
  rewritten files wait until they fill one.  So a byte is rewritten three times at most: with others as they came, out
  of the light ones, into a full file.  The more light ones there are, the more files as they came must be merged into
  the next, so that even of the slowest writers there are not many of either.
* All runs of a partition at rest, to which nothing comes any more, whatever their sizes, once.
* Runs that are due by themselves, for their deletes or for what they lack, and those that are no larger.
* A large file alone, which is cut (:mod:`.large_files`).

All but the last two need a partition with ``min_input_files`` candidates.  A run that was merged here takes its place
among the others as the newest, just as the file will that it becomes, until nothing changes.  So ``plan(apply(plan))``
is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate

from icekeeper.operations.compaction.candidates import (
    AS_THEY_ARE,
    LARGEST_OUTPUT,
    Candidate,
    OutputSizes,
    large_from,
    output_bytes,
    pieces,
)
from icekeeper.policy import Policy

# The share of a balanced bin that its largest file may have, so that this file grows more than threefold.  A smaller
# share rewrites less and leaves more files; by this one the six files of 3 to 15 MB of SeaweedFS's example are merged.
_LARGEST_SHARE = Fraction(3, 10)
# A rewritten file is light below this share of a full one: of some 20,000 files of a slow writer that fill one, there
# are never more than 120.  A smaller share leaves fewer files of slow writers and more of fast ones.
_LIGHT_SHARE = Fraction(1, 16)
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
    LARGE = "large"
    """The file is much larger than the target, and is cut."""
    ALL = "all"
    """``rewrite_all`` asks for every file."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Candidates that are to be rewritten together."""

    files: tuple[Candidate, ...]
    reason: Reason = Reason.SMALL
    outputs: int = 1
    """How many files they become."""
    output_bytes: int | None = None
    """About how large these are together; ``None``: as large as the files."""

    @property
    def for_deletes(self) -> bool:
        """Whether their deletes are the only reason to rewrite them."""
        return self.reason is Reason.DELETES

    @property
    def total_bytes(self) -> int:
        return sum(candidate.file.file_size_in_bytes for candidate in self.files)


@dataclass(frozen=True, slots=True)
class _Run:
    files: tuple[Candidate, ...]
    size: int
    """About what its rows take in an output."""
    reason: Reason | None = None
    """Why the run is rewritten even if it stays alone; ``None``: it is one file, and needs not be."""

    @property
    def is_due(self) -> bool:
        """Whether it is to be rewritten even by itself."""
        return self.reason is None and self.files[0].is_due

    @property
    def is_rewritten(self) -> bool:
        """Whether a rewrite wrote it, and this plan does not merge it with others of about its size."""
        return self.reason is not Reason.SMALL and any(c.identity.is_rewritten for c in self.files)

    @property
    def bytes(self) -> int:
        """Of its files as they are."""
        return sum(c.file.file_size_in_bytes for c in self.files)

    @property
    def weight(self) -> int:
        return max(self.size, _LIGHTEST_BYTES)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a policy says in sizes, as whole bytes: there may be a million files to compare with them."""

    target: int
    smallest: int
    full: int
    light: int
    largest_group: int
    min_inputs: int
    share: Fraction
    large: int | None
    """From this size on a file may become several; ``None``: none may."""

    @classmethod
    def of(cls, policy: Policy, *, cuts: bool) -> _Limits:
        return cls(
            target=policy.target_file_size_bytes,
            smallest=policy.min_file_size_bytes,
            full=_full_bytes(policy),
            light=_light_bytes(policy),
            largest_group=policy.max_file_group_size_bytes,
            min_inputs=policy.min_input_files,
            share=_largest_share(policy),
            large=large_from(policy) if cuts else None,
        )

    def most_outputs(self, files: Sequence[Candidate]) -> int:
        """Fewer files than there are; of large ones as many as they fill."""
        sizes = [] if self.large is None else [c.file.file_size_in_bytes for c in files]
        return len(files) - 1 + sum(size // self.target for size in sizes if size >= (self.large or 0))


def binpacked(
    files: list[Candidate],
    policy: Policy,
    *,
    at_rest: bool = False,
    cuts: bool = False,
    sizes: OutputSizes = AS_THEY_ARE,
) -> list[Bin]:
    """The bins of one partition's candidates that are to be rewritten, in order of age; the balanced one comes last.

    ``cuts``: large files may be cut.  ``sizes``: how large outputs become.
    """
    limits = _Limits.of(policy, cuts=cuts)
    files.sort(key=lambda c: (c.age, c.file.file_path))
    chosen = _alone(files, policy, limits)
    alone = {id(c) for one in chosen for c in one.files}
    runs = [_Run((c,), output_bytes(c, policy, sizes)) for c in files if id(c) not in alone]
    if policy.rewrite_all:
        bins, rest = _full_bins(runs, limits)
        chosen += [*bins, *([_bin(_merged(rest), limits)] if rest else [])]
        return [replace(b, reason=Reason.ALL) for b in chosen]
    while True:
        if len(runs) >= limits.min_inputs:
            bins, runs = _full_bins(runs, limits)
            chosen += bins
        together = _together(runs, limits, at_rest=at_rest)
        merged = _merged(together) if together else _merged_due(runs)
        if merged is None:
            break
        taken = {id(c) for c in merged.files}
        runs = [run for run in runs if id(run.files[0]) not in taken]
        if _output_count(merged.size, limits.most_outputs(merged.files), limits) > 1 or merged.size >= limits.smallest:
            chosen.append(_bin(merged, limits))
        else:
            runs.append(merged)
    return chosen + [_bin(run, limits) for run in runs if run.reason is not None]


def _alone(files: Sequence[Candidate], policy: Policy, limits: _Limits) -> list[Bin]:
    """The bins of files that are large enough: their deletes are applied, what they lack is given to them, or they are
    cut."""
    bins = []
    for one in files:
        size = one.file.file_size_in_bytes
        cut = pieces(one.file, policy) if limits.large is not None and size >= limits.large else ()
        if one.is_due and size >= limits.smallest:
            bins.append(Bin((one,), _reason_alone((one,)), max(1, len(cut))))
        elif cut and not policy.rewrite_all:
            bins.append(Bin((one,), Reason.LARGE, len(cut)))
    return bins


def _full_bins(runs: Sequence[_Run], limits: _Limits) -> tuple[list[Bin], list[_Run]]:
    """The full bins of runs in order of age, and the runs that are left."""
    bins: list[Bin] = []
    current: list[_Run] = []
    size = held = most_outputs = 0
    for run in runs:
        current.append(run)
        size += run.size
        held += run.bytes
        most_outputs += limits.most_outputs(run.files) + 1
        outputs = _outputs_if_full(size, held, most_outputs - 1, limits)
        if outputs is not None:
            bins.append(Bin(_merged(current).files, outputs=outputs, output_bytes=size))
            current, size, held, most_outputs = [], 0, 0, 0
    return bins, current


def _together(runs: Sequence[_Run], limits: _Limits, *, at_rest: bool) -> list[_Run]:
    """The runs that are to be merged although they fill no file; or none."""
    if len(runs) < limits.min_inputs:
        return []
    if at_rest:
        return list(runs)
    most = limits.light
    light = [run for run in runs if run.size < most]
    is_merged_before = any(run.is_rewritten or run.reason is not None for run in light)
    if is_merged_before and len(light) >= limits.min_inputs and sum(run.size for run in light) >= most:
        return light
    patience = sum(run.is_rewritten for run in light)
    return _balanced([run for run in runs if not run.is_rewritten], max(limits.min_inputs, patience), limits)


def _balanced(runs: Sequence[_Run], least: int, limits: _Limits) -> list[_Run]:
    """As many of the smallest runs as can be, at least so many, of which the largest does not outweigh the others."""
    order = sorted(runs, key=lambda run: (run.weight, run.files[0].file.file_path))
    totals = list(accumulate(run.weight for run in order))
    for count in range(len(order), least - 1, -1):
        if order[count - 1].weight <= limits.share * totals[count - 1]:
            chosen = {id(run) for run in order[:count]}
            return [run for run in runs if id(run) in chosen]
    return []


def _merged_due(runs: Sequence[_Run]) -> _Run | None:
    """The runs that are due by themselves, and all that are no larger than what is chosen so far; or none."""
    chosen = {id(run) for run in runs if run.is_due}
    if not chosen:
        return None
    size = sum(run.size for run in runs if run.is_due)
    for run in sorted(runs, key=lambda run: run.size):
        if id(run) not in chosen and run.size <= size:
            chosen.add(id(run))
            size += run.size
    merged = _merged([run for run in runs if id(run) in chosen])
    return replace(merged, reason=_reason_alone(merged.files))


def _merged(runs: Sequence[_Run]) -> _Run:
    return _Run(tuple(c for run in runs for c in run.files), sum(run.size for run in runs), Reason.SMALL)


def _reason_alone(files: Sequence[Candidate]) -> Reason:
    """Why files are rewritten that would be left alone by their sizes."""
    return Reason.SETTINGS if any(c.lacks for c in files) else Reason.DELETES


def _bin(run: _Run, limits: _Limits) -> Bin:
    outputs = _output_count(run.size, limits.most_outputs(run.files), limits)
    return Bin(run.files, run.reason or Reason.SMALL, outputs, run.size)


def _outputs_if_full(size: int, held: int, most: int, limits: _Limits) -> int | None:
    """How many files of the right size a bin of these bytes becomes; ``None``: it must take more files first."""
    outputs = _output_count(size, most, limits)
    # Fractions are as exact, and take ten times as long.
    is_not_too_large = size * LARGEST_OUTPUT.denominator <= outputs * LARGEST_OUTPUT.numerator * limits.target
    is_whole = outputs * limits.full <= size and is_not_too_large
    return outputs if is_whole or held >= limits.largest_group else None


def _full_bytes(policy: Policy) -> int:
    """The least size of a full bin with one output."""
    return max(1, (policy.min_file_size_bytes + policy.target_file_size_bytes) // 2)


def _light_bytes(policy: Policy) -> int:
    """Below this size a run is light."""
    return int(_LIGHT_SHARE * _full_bytes(policy))


def _largest_share(policy: Policy) -> Fraction:
    """The share of a balanced bin that its largest file may have."""
    return max(_LARGEST_SHARE, Fraction(3, 2 * policy.min_input_files))


def _output_count(size: int, most: int, limits: _Limits) -> int:
    """The fewest outputs of which none is too large, yet none is small, and that are no more than ``most``."""
    wanted = -(-size * LARGEST_OUTPUT.denominator // (LARGEST_OUTPUT.numerator * limits.target))
    return max(1, min(wanted, size // limits.smallest, most))
