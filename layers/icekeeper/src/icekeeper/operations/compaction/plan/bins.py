"""Divide a partition's candidates into bins: files that are merged with each other
(rule: plans-converge, bounded-merge-rewrites) (pure).

A *run* is a future file: an unchanged candidate, or several candidates that this plan merges.  There are six kinds of
bin:

* Full: runs, taken in order of age, that divide into files of the right size.  Their bytes are never merged again.
  Only the files in the bin decide, never the next file.
* Balanced: at least ``min_input_files`` of the smallest files that writers left, none of which outweighs the others.
  If the largest file were included every time, its bytes would be rewritten as often as files arrive.
* Light: small runs, some of them rewritten before, that together reach a sixteenth of a full file.  All other rewritten
  files wait until they fill a file.  So a byte is rewritten at most three times: in a balanced, a light and a full bin.
  The more light runs there are, the more files of writers the next balanced bin needs.  This keeps both few, even if
  files arrive slowly.
* At rest: all runs, of any size, of a partition that gets no more files; once.
* Due: runs that are rewritten on their own account (for deletes or ``rewrite_reason``), and runs that are no larger.
* Large: one file, which is cut.

All but the last two need a partition with ``min_input_files`` candidates.  A merged run joins the others as the newest,
as its file will, and the search is repeated until nothing changes.  So ``plan(apply(plan))`` is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import accumulate

from icekeeper.metadata.delete_scope import partition_key
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.plan.candidate import Candidate, GroupKey
from icekeeper.operations.compaction.plan.large_files import LARGEST_OUTPUT, large_from
from icekeeper.operations.compaction.plan.output_sizes import UNCHANGED_SIZES, OutputSizes, output_bytes
from icekeeper.operations.compaction.plan.packed_files import PackedFiles
from icekeeper.policy import Policy
from icekeeper.rows.arrow_schema import Variants

# The largest file's share of a balanced bin, at most; so this file grows more than threefold.  A smaller share rewrites
# less and leaves more files.  This share still merges SeaweedFS's example of six files of 3 to 15 MB.
_LARGEST_SHARE = Fraction(3, 10)
# A rewritten file is light below this share of a full file.  With this share, a slow writer whose 20,000 files make one
# full file never has more than 120 files.  A smaller share leaves fewer files of slow writers and more files of fast
# writers.
_LIGHT_SHARE = Fraction(1, 16)
# Files below this size weigh the same, because opening them takes longer than reading them.
_LIGHTEST_BYTES = 256 * 1024


class Reason(StrEnum):
    """Why a bin is rewritten."""

    SMALL = "small"
    DELETES = "deletes"
    """Deletes apply to the files, and there is no other reason."""
    SETTINGS = "settings"
    """The files do not meet current settings of the table that ``rewrite_reason`` names."""
    CLUSTERING = "clustering"
    """The files are not clustered by the recipe, or too many small files are."""
    LARGE = "large"
    """The file is much larger than the target, and is cut."""
    ALL = "all"
    """``rewrite_all`` asks for every file."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What rewriting a group saves each scan that reads all of it, and what the rewrite costs once; money in US
    dollars."""

    bytes_saved: float = 0.0
    """Bytes of deleted rows that a scan no longer reads."""
    bytes_rewritten: int = 0
    requests: int = 0
    """Requests of the rewrite itself."""
    saving: float = 0.0
    """The saving of all ``expected_scans`` together."""
    cost: float = 0.0
    pays: bool = True

    @property
    def saving_per_byte(self) -> float:
        return self.saving / max(1, self.bytes_rewritten)


_NOT_WEIGHED = Worth()


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Data files that are rewritten together.  Either all of them have row lineage or none of them has; all
    store variants in the same columns."""

    files: tuple[Candidate, ...] | PackedFiles
    reason: Reason = Reason.SMALL
    output_count: int = 1
    """The number of output files; an estimate if rows are sorted."""
    output_bytes: int | None = None
    """Estimated size of all outputs before deletes are applied; ``None``: the size of the inputs."""
    worth: Worth = _NOT_WEIGHED
    group_id: int = 0
    """The group's number in its plan."""
    route_to: int | None = None
    """The spec among whose partitions the rows may be divided, if that makes fewer files; ``None``: rows stay in their
    partition."""

    @property
    def key(self) -> GroupKey:
        """A key that all candidates of the partition share."""
        return partition_key(*self.files[0].destination), self.has_lineage, self.variants

    @property
    def spec_id(self) -> int:
        """The spec of the outputs; the inputs may have older specs."""
        return self.files[0].destination[0]

    @property
    def partition(self) -> tuple[PartitionValue, ...]:
        """The partition of the outputs, as raw values."""
        return self.files[0].destination[1]

    @property
    def packed(self) -> FileGroup:
        return replace(self, files=PackedFiles.of(self.files))

    @property
    def unpacked(self) -> FileGroup:
        return replace(self, files=tuple(self.files)) if isinstance(self.files, PackedFiles) else self

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(candidate.file_path for candidate in self.files)

    @property
    def scopes(self) -> frozenset[tuple[int, tuple[PartitionValue, ...]]]:
        """Spec id and partition of every input."""
        return frozenset((candidate.spec_id, candidate.partition) for candidate in self.files)

    @property
    def has_lineage(self) -> bool:
        return self.files[0].has_lineage

    @property
    def variants(self) -> Variants:
        """How all its files store the table's variants."""
        return self.files[0].variants

    @property
    def total_bytes(self) -> int:
        if isinstance(self.files, PackedFiles):
            return self.files.total_bytes
        return sum(candidate.file_size_in_bytes for candidate in self.files)

    @property
    def expected_bytes(self) -> int:
        """Estimated size of all outputs."""
        size = self.total_bytes if self.output_bytes is None else self.output_bytes
        return max(0, size - int(self.worth.bytes_saved))

    @property
    def record_count(self) -> int:
        if isinstance(self.files, PackedFiles):
            return self.files.record_count
        return sum(candidate.record_count for candidate in self.files)


@dataclass(frozen=True, slots=True)
class _Run:
    files: tuple[Candidate, ...]
    size: int
    """Estimated size of its rows in an output."""
    reason: Reason | None = None
    """Why the run is rewritten even if no other joins it; ``None``: it is a single file and need not be rewritten."""

    @property
    def is_due(self) -> bool:
        return self.reason is None and self.files[0].is_due

    @property
    def is_rewritten(self) -> bool:
        """Whether an earlier rewrite wrote it, and this plan has not merged it because of its size."""
        return self.reason is not Reason.SMALL and any(c.is_rewritten for c in self.files)

    @property
    def bytes(self) -> int:
        """The size of its files as they are now."""
        return sum(c.file_size_in_bytes for c in self.files)

    @property
    def weight(self) -> int:
        return max(self.size, _LIGHTEST_BYTES)


class _Limits:
    """The policy's sizes as whole bytes, computed once, because a million files may be compared with them."""

    def __init__(self, policy: Policy, *, cuts: bool) -> None:
        self.target = policy.target_file_size_bytes
        self.smallest = policy.min_file_size_bytes
        self.full = max(1, (self.smallest + self.target) // 2)
        """The least size of a full bin with one output."""
        self.light = int(_LIGHT_SHARE * self.full)
        """A run below this size is light."""
        self.largest_group = policy.max_file_group_size_bytes
        self.min_inputs = policy.min_input_files
        self.share = max(_LARGEST_SHARE, Fraction(3, 2 * policy.min_input_files))
        """The largest file's share of a balanced bin, at most."""
        self.large = large_from(policy) if cuts else None
        """A file of at least this size may be cut; ``None``: no file may be cut."""

    def most_outputs(self, files: Sequence[Candidate]) -> int:
        """One output fewer than inputs; a large input may become as many outputs as it fills."""
        if self.large is None:
            return len(files) - 1
        sizes = (c.file_size_in_bytes for c in files)
        return len(files) - 1 + sum(size // self.target for size in sizes if size >= self.large)


def binpacked(
    files: list[Candidate],
    policy: Policy,
    *,
    at_rest: bool = False,
    cuts: bool = False,
    sizes: OutputSizes = UNCHANGED_SIZES,
) -> list[FileGroup]:
    """Divide a partition's candidates into the bins to rewrite, in order of age; a balanced bin comes last.

    ``at_rest``: the partition gets no more files.  ``cuts``: large files may be cut.  ``sizes``: expected output sizes.
    """
    limits = _Limits(policy, cuts=cuts)
    files.sort(key=lambda c: (c.age, c.file_path))
    chosen = _alone(files, policy, limits)
    alone = {id(c) for chosen_bin in chosen for c in chosen_bin.files}
    runs = [_Run((c,), output_bytes(c, sizes)) for c in files if id(c) not in alone]
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


def _alone(files: Sequence[Candidate], policy: Policy, limits: _Limits) -> list[FileGroup]:
    """The bins of single files: due files that are large enough, and large files that are cut."""
    bins = []
    for file in files:
        size = file.file_size_in_bytes
        cut = file.condition.pieces
        if file.is_due and size >= limits.smallest:
            bins.append(FileGroup((file,), _reason_alone((file,)), max(1, len(cut))))
        elif cut and not policy.rewrite_all:
            bins.append(FileGroup((file,), Reason.LARGE, len(cut)))
    return bins


def _full_bins(runs: Sequence[_Run], limits: _Limits) -> tuple[list[FileGroup], list[_Run]]:
    """Return the full bins of runs in order of age, and the remaining runs."""
    bins: list[FileGroup] = []
    current: list[_Run] = []
    size = held = most_outputs = 0
    for run in runs:
        current.append(run)
        size += run.size
        held += run.bytes
        most_outputs += limits.most_outputs(run.files) + 1
        outputs = _output_count(size, most_outputs - 1, limits)
        # Integers: fractions are equally exact, but take ten times as long.
        is_too_large = size * LARGEST_OUTPUT.denominator > outputs * LARGEST_OUTPUT.numerator * limits.target
        if (outputs * limits.full <= size and not is_too_large) or held >= limits.largest_group:
            bins.append(FileGroup(_merged(current).files, output_count=outputs, output_bytes=size))
            current, size, held, most_outputs = [], 0, 0, 0
    return bins, current


def _together(runs: Sequence[_Run], limits: _Limits, *, at_rest: bool) -> list[_Run]:
    """The runs to merge although they do not fill a file; may be empty."""
    if len(runs) < limits.min_inputs:
        return []
    if at_rest:
        return list(runs)
    light = [run for run in runs if run.size < limits.light]
    is_merged_before = any(run.is_rewritten or run.reason is not None for run in light)
    if is_merged_before and len(light) >= limits.min_inputs and sum(run.size for run in light) >= limits.light:
        return light
    patience = sum(run.is_rewritten for run in light)
    return _balanced([run for run in runs if not run.is_rewritten], max(limits.min_inputs, patience), limits)


def _balanced(runs: Sequence[_Run], least: int, limits: _Limits) -> list[_Run]:
    """As many of the smallest runs as possible, at least ``least``, so that the largest run does not outweigh the
    others."""
    order = sorted(runs, key=lambda run: (run.weight, run.files[0].file_path))
    totals = list(accumulate(run.weight for run in order))
    for count in range(len(order), least - 1, -1):
        if order[count - 1].weight <= limits.share * totals[count - 1]:
            chosen = {id(run) for run in order[:count]}
            return [run for run in runs if id(run) in chosen]
    return []


def _merged_due(runs: Sequence[_Run]) -> _Run | None:
    """The due runs, and each next larger run that is no larger than all chosen runs together; ``None``: no run is
    due."""
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
    """Why files that are large enough are rewritten."""
    return Reason.SETTINGS if any(c.lacks for c in files) else Reason.DELETES


def _bin(run: _Run, limits: _Limits) -> FileGroup:
    outputs = _output_count(run.size, limits.most_outputs(run.files), limits)
    return FileGroup(run.files, run.reason or Reason.SMALL, outputs, run.size)


def _output_count(size: int, most: int, limits: _Limits) -> int:
    """The fewest outputs, at most ``most``, so that none is too large and none is small."""
    wanted = -(-size * LARGEST_OUTPUT.denominator // (LARGEST_OUTPUT.numerator * limits.target))
    return max(1, min(wanted, size // limits.smallest, most))
