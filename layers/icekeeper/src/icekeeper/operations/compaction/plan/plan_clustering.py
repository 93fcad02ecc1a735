"""Plan clustering: which files of a partition are sorted together, and how deep its files overlap (pure).

A *run* has the files that a rewrite sorted together.  They do not overlap, so a lookup opens a single file of a run.
The *depth* is the number of runs, or of files, that overlap at a key.  The tiers are those of log-structured merge
trees.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from icekeeper.metadata.overlap_depth import (
    ABOVE_ALL,
    BELOW_ALL,
    Extent,
    Place,
    column_extent,
    measure_depth,
    total_depth,
)
from icekeeper.metadata.transforms import KEEPS_ORDER, parse_transform
from icekeeper.model import DataFile
from icekeeper.operations.compaction.plan.candidate import Candidate, Extents
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.policy import Policy, Strategy
from icekeeper.rows.arrow_schema import leaf_columns

# Measured, a thousand rounds of random keys: depth 4 and factor 4 rewrite a row 4 times and leave 7 runs
# over a value on average.  Factor 8 rewrites a row 3 times and leaves 11 runs; depth 8 is not better.
MAX_CLUSTERING_DEPTH = 4
"""If more sorted runs than this overlap at a value, they are sorted together."""
TIER_FACTOR = 4
"""Runs whose sizes differ by less than this factor are similar; this many similar runs are sorted together."""
# The run of new files.
_NEW = "new"
# Java's read.split.open-file-cost: smaller files cost readers the same, and their size is mostly overhead.
_OPEN_FILE_BYTES = 4 * 1024 * 1024


def clustering_groups(files: list[Candidate], policy: Policy, layout: Layout) -> list[list[Candidate]]:
    """Divide the candidates of a partition into groups that are clustered together.

    New files (not clustered by the current recipe) are clustered if there are ``min_input_files`` of them, or enough
    bytes for one output, or files that are due.  Clustered files stay unchanged until more than
    ``MAX_CLUSTERING_DEPTH`` of their runs overlap, or until there are ``min_input_files`` small files of similar size.
    New files join runs that are merged, so that they are sorted once.

    Convergence (rule: plans-converge): a group's outputs are one run, and at most one output is too small.  If that
    output makes too many small files, it is merged with them in the same plan.  So ``plan(apply(plan))`` is empty.
    """
    files.sort(key=lambda c: (c.age, c.file_path))
    if policy.rewrite_all:
        return _portions(files, policy)
    fresh = [c for c in files if not c.is_clustered]
    is_enough = len(fresh) >= policy.min_input_files or _total(fresh) >= policy.target_file_size_bytes
    if not is_enough and not any(c.is_due for c in fresh):
        fresh = []
    sorted_before = [c for c in files if c.is_clustered]
    piled = _piled_runs(sorted_before, fresh, policy, layout)
    taken = {id(c) for group in piled for c in group}
    groups = piled + _portions((c for c in fresh if id(c) not in taken), policy)
    small = [c for c in sorted_before if id(c) not in taken and c.file_size_in_bytes < policy.min_file_size_bytes]
    groups = _with_small_files(groups, small, policy)
    taken = {id(c) for group in groups for c in group}
    return groups + [[c] for c in sorted_before if c.is_due and id(c) not in taken]


def _piled_runs(
    sorted_before: Sequence[Candidate], fresh: Sequence[Candidate], policy: Policy, layout: Layout
) -> list[list[Candidate]]:
    """Groups of overlapping runs that are merged; a group that is too large for a pass is divided along the key."""
    if not policy.rewrite_enabled:
        return []
    files = [*sorted_before, *fresh]
    pieces = pieces_of_runs(sorted_before, layout)
    pieces += [replace(piece, run=_NEW) for piece in pieces_of_runs(fresh, layout)]
    merges = runs_to_merge(pieces, limit=MAX_CLUSTERING_DEPTH, factor=TIER_FACTOR)
    groups: list[list[Candidate]] = []
    for members in merges:
        along_key = [files[n] for n in sorted(members, key=lambda n: pieces[n].ranges[0])]
        run_of = {id(files[n]): pieces[n].run for n in members}
        for portion in _portions(along_key, policy):
            # Files of a single run are already in order.
            if len({run_of[id(c)] for c in portion}) > 1:
                groups.append(sorted(portion, key=lambda c: (c.age, c.file_path)))
    return groups


def _with_small_files(
    groups: list[list[Candidate]], small: Sequence[Candidate], policy: Policy
) -> list[list[Candidate]]:
    """The groups, and groups of ``min_input_files`` small clustered files of similar size.

    Similar: at most ``TIER_FACTOR`` apart.  A larger file would be rewritten again with every few tiny files.  A group
    whose output would be small counts as a small file.  If the caps of a pass would divide the merged files into as
    many groups as before, the groups stay unchanged.
    """
    done = [group for group in groups if _total(group) >= policy.min_file_size_bytes]
    waiting = [group for group in groups if _total(group) < policy.min_file_size_bytes] + [[c] for c in small]
    capped: list[list[Candidate]] = []
    while window := _window_of_one_size(waiting, policy):
        inside = {id(item) for item in window}
        waiting = [item for item in waiting if id(item) not in inside]
        members = sorted((c for item in window for c in item), key=lambda c: (c.age, c.file_path))
        portions = _portions(members, policy)
        if len(portions) >= len(window):
            capped += window
            continue
        for portion in portions:
            (done if _total(portion) >= policy.min_file_size_bytes else waiting).append(portion)
    return done + [item for item in [*capped, *waiting] if len(item) > 1 or not item[0].is_clustered]


def _window_of_one_size(items: list[list[Candidate]], policy: Policy) -> list[list[Candidate]]:
    """The smallest ``min_input_files`` or more items within the tier factor of each other."""
    items.sort(key=_total)
    sizes = [max(_OPEN_FILE_BYTES, _total(item)) for item in items]
    end = 0
    for start, least in enumerate(sizes):
        while end < len(sizes) and sizes[end] < least * TIER_FACTOR:
            end += 1
        if end - start >= policy.min_input_files:
            return items[start:end]
    return []


def _portions(files: Iterable[Candidate], policy: Policy) -> list[list[Candidate]]:
    """Divide files into groups of at least ``max_file_group_size`` bytes; the last group may be smaller.

    Groups stay within the policy's caps of a pass, so that every group fits into some pass.
    """
    most_files, most_bytes = policy.max_files_to_rewrite, policy.max_bytes_to_rewrite
    groups: list[list[Candidate]] = []
    current: list[Candidate] = []
    size = 0
    for candidate in files:
        added = size + candidate.file_size_in_bytes
        is_over_cap = (most_files is not None and len(current) >= most_files) or (
            most_bytes is not None and added > most_bytes
        )
        if current and (is_over_cap or size >= policy.max_file_group_size_bytes):
            groups.append(current)
            current, added = [], candidate.file_size_in_bytes
        current.append(candidate)
        size = added
    return [*groups, current] if current else groups


def _total(files: Iterable[Candidate]) -> int:
    return sum(c.file_size_in_bytes for c in files)


# Manifest entries show the runs: they have the id of the snapshot that added their file.  If files of a snapshot
# overlap, they are divided into the fewest runs without overlap.  Files that share only an end, or have a single value,
# do not overlap by the sort key, because sorting them together would change nothing.  On a z-order curve, files of a
# run overlap in every single column.  So a run of a curve is all files of a snapshot, and runs overlap only if they
# overlap in every column.

KeyRange: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The least and the greatest key of a file."""
# A sort places null at an end; it does not matter for overlap at which end.
_NULL: Place = (-1,)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file as part of a run."""

    run: Hashable
    ranges: tuple[KeyRange, ...]
    """One range of the sort key, or one per column of a z-order curve."""
    rows: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns by which a table is clustered, and their types."""

    columns: tuple[KeyColumn, ...]
    types: Mapping[int, str]
    """Iceberg type by field id."""
    is_curve: bool = False
    """Whether rows are sorted along a z-order curve."""
    _decoded: dict[str, Extents] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By path, so that the bounds of an output are decoded once."""

    @classmethod
    def of(cls, recipe: ClusterRecipe, schema: Mapping[str, Any]) -> Layout:
        types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(schema)}
        return cls(recipe.columns, types, recipe.strategy is Strategy.ZORDER)

    @property
    def measured(self) -> tuple[KeyColumn, ...]:
        """The columns by which lookups skip files: all columns of a curve, the first column of a sort order."""
        return self.columns if self.is_curve else self.columns[:1]

    def leading_extents(self, file: DataFile) -> Extents:
        """The extents that :meth:`ranges` needs: for a curve in all columns, for a sort order up to the first column in
        which the file has several values."""
        found: list[Extent | None] = []
        for column in self.columns:
            found.append(self._extent(file, column))
            if not self.is_curve and not (_has_one_value(found[-1]) and _keeps_order(column)):
                break
        return tuple(found)

    def measured_of(self, leading: Extents) -> Extents:
        """The extents in the columns by which lookups skip files."""
        return leading[: len(self.measured)]

    def of_output(self, file: DataFile) -> Extents:
        """As :meth:`measured_of`, for an output file."""
        if file.file_path not in self._decoded:
            self._decoded[file.file_path] = tuple(self._extent(file, column) for column in self.measured)
        return self._decoded[file.file_path]

    def ranges(self, leading: Extents) -> tuple[KeyRange, ...]:
        """The ranges of a file with these :meth:`leading_extents`."""
        if not self.is_curve:
            return (self._key_range(leading),)
        return tuple(_range(extent) for extent in leading)

    def _extent(self, file: DataFile, column: KeyColumn) -> Extent | None:
        needed = frozenset(key.field_id for key in self.columns)
        return column_extent(file, column.field_id, self.types.get(column.field_id, ""), needed)

    def _key_range(self, leading: Extents) -> KeyRange:
        """The range of the sort key: a column counts only if the file has a single value in all columns before it."""
        same: tuple[Place, ...] = ()
        for column, extent in zip(self.columns, leading, strict=False):
            # Bounds of the values are bounds of the key only if the transform keeps their order.
            if not _keeps_order(column):
                return (*same, BELOW_ALL), (*same, ABOVE_ALL)
            ((low,), (high,)) = _range(extent)
            if low != high:
                # The range starts after files whose single value of the column is the lowest value here.
                return (*same, low, ABOVE_ALL), (*same, high)
            same = (*same, low)
        return same, same


def _keeps_order(column: KeyColumn) -> bool:
    return parse_transform(column.transform)[0] in KEEPS_ORDER


def _has_one_value(extent: Extent | None) -> bool:
    return extent is None or extent.low == extent.high


def _range(extent: Extent | None) -> KeyRange:
    return ((_NULL,), (_NULL,)) if extent is None else ((extent.low,), (extent.high,))


def pieces_of_runs(files: Sequence[Candidate], layout: Layout) -> list[Piece]:
    """The clustered files of a partition as pieces of their runs, in the given order."""
    ranges = [layout.ranges(c.extents) for c in files]
    runs: list[Hashable] = [c.identity.snapshot_id for c in files]
    if not layout.is_curve:
        by_snapshot: dict[Hashable, list[int]] = {}
        for number, snapshot_id in enumerate(runs):
            by_snapshot.setdefault(snapshot_id, []).append(number)
        for snapshot_id, numbers in by_snapshot.items():
            own = _fewest_runs([ranges[n][0] for n in numbers])
            for number, run in zip(numbers, own, strict=True):
                # A file of a single key is a run of its own, because no merge makes it easier to skip.
                runs[number] = snapshot_id, run if run is not None else ("single", number)
    return [Piece(run, r, c.record_count) for run, r, c in zip(runs, ranges, files, strict=True)]


def _fewest_runs(ranges: Iterable[KeyRange]) -> list[int | None]:
    """For each file the number of its run, with the fewest runs without overlap; ``None``: the file has a single key.

    A file with unknown ends is put into the first run, because it may be part of it.
    """
    ranges = list(ranges)
    own: list[int | None] = [None if low == high else 0 for low, high in ranges]
    free: list[int] = []
    busy: list[tuple[tuple[Any, ...], int]] = []
    opened = 0
    for number in sorted(range(len(ranges)), key=lambda n: ranges[n]):
        low, high = ranges[number]
        if own[number] is None or BELOW_ALL in low or high[-1] == ABOVE_ALL:
            continue  # a single key, or an unknown end
        while busy and busy[0][0] <= low:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, opened)
            opened += 1
        run = heapq.heappop(free)
        own[number] = run
        heapq.heappush(busy, (high, run))
    return own


# Every round of new data adds a run, and a lookup opens one file of each run at its value.  If more than ``limit`` runs
# overlap, ``factor`` or more runs of a tier are merged.  The tier of a run is the logarithm of its rows to the base
# ``factor``.  A merge of whole runs lifts its rows by at least one tier.  So a row is rewritten at most once per tier,
# ``1 + log_factor(runs)`` times if all runs have the same size.  Afterwards the depth is at most the limit, or ``factor
# - 1`` runs per tier.  Source: O'Neil et al., "The Log-Structured Merge-Tree", 1996; size-tiered compaction in
# Cassandra and RocksDB.
#
# Runs that do not overlap stay unchanged, so a table that is filled in the order of its key is never sorted again.
# Merged runs that overlap too deeply are merged further in the same plan (rule: plans-converge).

_Region = tuple[int, int]
"""A stretch of the key: the numbers of the events that open and close it."""


def tier_of(rows: int, factor: int) -> int:
    """The tier of a run: the whole part of ``log_factor(rows)``."""
    tier = 0
    while rows >= factor:
        rows //= factor
        tier += 1
    return tier


def runs_to_merge(pieces: Sequence[Piece], *, limit: int, factor: int) -> list[list[int]]:
    """Groups of pieces, each to merge into a run, as positions in ``pieces``; empty if no depth exceeds ``limit``."""
    sweeps = _sweeps(pieces)
    runs: list[Hashable] = [piece.run for piece in pieces]
    rows: Counter[Hashable] = Counter()
    for piece in pieces:
        rows[piece.run] += piece.rows
    made: set[Hashable] = set()
    while sweeps:
        sweep = min(sweeps, key=lambda s: s.depth(runs))
        chosen = _lowest_tier_to_merge(sweep, runs, rows, limit, factor)
        if not chosen:
            break
        into: dict[Hashable, Hashable] = {}
        for number, members in enumerate(chosen):
            name = ("merged", len(made) + number)
            rows[name] = sum(rows[run] for run in members)
            into |= dict.fromkeys(members, name)
        made |= set(into.values())
        runs = [into.get(run, run) for run in runs]
    groups: dict[Hashable, list[int]] = {}
    for number, run in enumerate(runs):
        if run in made:
            groups.setdefault(run, []).append(number)
    return list(groups.values())


def _lowest_tier_to_merge(
    sweep: _Sweep, runs: Sequence[Hashable], rows: Mapping[Hashable, int], limit: int, factor: int
) -> list[frozenset[Hashable]]:
    """The runs of the lowest tier that has ``factor`` runs at a key where the depth exceeds the limit."""
    too_deep = [region for region, _ in sweep.piles(runs, limit + 1)]
    if not too_deep:
        return []
    tiers: defaultdict[int, set[Hashable]] = defaultdict(set)
    for n in sweep.within(too_deep):
        tiers[tier_of(rows[runs[n]], factor)].add(runs[n])
    for _, tier in sorted(tiers.items()):
        if len(tier) < factor:
            continue
        piled = [members for region, members in sweep.piles(runs, factor, tier) if _meets(region, too_deep)]
        if piled:
            return _joined(piled)
    return []


def _joined(groups: Iterable[set[Hashable]]) -> list[frozenset[Hashable]]:
    """Join groups that share a run."""
    leader: dict[Hashable, Hashable] = {}

    def lead(run: Hashable) -> Hashable:
        while leader[run] != run:
            leader[run] = run = leader[leader[run]]
        return run

    for group in groups:
        first, *others = group
        leader.setdefault(first, first)
        for other in others:
            leader[lead(leader.setdefault(other, other))] = lead(first)
    joined: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
    for run in leader:
        joined[lead(run)].add(run)
    return [frozenset(group) for group in joined.values()]


def _meets(region: _Region, others: Sequence[_Region]) -> bool:
    """Whether a stretch overlaps one of ``others``, which are sorted and do not overlap."""
    before = bisect_right(others, region[1], key=lambda other: other[0]) - 1
    return before >= 0 and others[before][1] > region[0]


def _sweeps(pieces: Sequence[Piece]) -> list[_Sweep]:
    columns = len(pieces[0].ranges) if pieces else 0
    # A single key is not a reason to sort again, but on a curve the other columns may be a reason.
    return [_Sweep([p.ranges[i] for p in pieces], with_single_values=columns > 1) for i in range(columns)]


class _Sweep:
    """The events along a key: a file begins or ends."""

    def __init__(self, ranges: Sequence[KeyRange], *, with_single_values: bool) -> None:
        kept = [(n, low, high) for n, (low, high) in enumerate(ranges) if with_single_values or low != high]
        # Files that share only an end do not overlap, unless single values count.
        first, second = (0, 1) if with_single_values else (1, 0)
        begins, ends = [(low, first, n, True) for n, low, _ in kept], [(high, second, n, False) for n, _, high in kept]
        ordered = sorted(begins + ends, key=lambda event: event[:2])
        self.events: Sequence[tuple[int, bool]] = [(n, is_begin) for _, _, n, is_begin in ordered]
        """The number of a file, and whether it begins."""
        self.spans: list[_Region | None] = [None] * len(ranges)
        """Per file the numbers of its two events; ``None``: the file is left out."""
        begun: dict[int, int] = {}
        for number, (n, is_begin) in enumerate(self.events):
            if is_begin:
                begun[n] = number
            else:
                self.spans[n] = begun[n], number

    def depth(self, runs: Sequence[Hashable]) -> int:
        deepest = 0
        open_runs: Counter[Hashable] = Counter()
        for n, is_begin in self.events:
            _step(open_runs, runs[n], is_begin)
            deepest = max(deepest, len(open_runs))
        return deepest

    def piles(
        self, runs: Sequence[Hashable], least: int, wanted: Collection[Hashable] | None = None
    ) -> list[tuple[_Region, set[Hashable]]]:
        """The regions where at least ``least`` (``wanted``) runs overlap, in order, each with its runs."""
        found: list[tuple[_Region, set[Hashable]]] = []
        start: int | None = None
        inside: set[Hashable] = set()
        open_runs: Counter[Hashable] = Counter()
        for number, (n, is_begin) in enumerate(self.events):
            run = runs[n]
            if wanted is not None and run not in wanted:
                continue
            _step(open_runs, run, is_begin)
            if start is None and len(open_runs) >= least:
                start, inside = number, set(open_runs)
            elif start is not None and len(open_runs) < least:
                found.append(((start, number), inside))
                start = None
            elif start is not None:
                inside.add(run)
        return found

    def within(self, regions: Sequence[_Region]) -> list[int]:
        """The files that overlap one of the regions, which are sorted and do not overlap."""
        return [n for n, span in enumerate(self.spans) if span is not None and _meets(span, regions)]


def _step(open_runs: Counter[Hashable], run: Hashable, is_begin: bool) -> None:
    open_runs[run] += 1 if is_begin else -1
    if not open_runs[run]:
        del open_runs[run]


@dataclass(frozen=True, slots=True)
class ClusteringDepth:
    """Measure how deep a plan's files overlap in the clustering columns, per partition.

    Lookups skip files by the first column of a sort order, or by any column of a z-order curve.  The depth of a curve
    is the average over its columns.
    """

    layout: Layout
    partitions: tuple[Mapping[str, Extents], ...]
    """Path → extents, per partition."""

    @classmethod
    def of(cls, partitions: Iterable[Sequence[Candidate]], layout: Layout) -> ClusteringDepth:
        return cls(layout, tuple({c.file_path: layout.measured_of(c.extents) for c in files} for files in partitions))

    def now(self) -> float:
        """The number of files that a lookup of a value opens, on average over bytes."""
        return self._mean([list(partition.values()) for partition in self.partitions])

    def with_outputs(self, groups: Collection[tuple[Sequence[str], Sequence[DataFile]]]) -> float:
        """The depth once groups are replaced, given as paths of inputs and output files."""
        gone = {path for inputs, _ in groups for path in inputs}
        place = {path: number for number, partition in enumerate(self.partitions) for path in partition}
        after = [[e for path, e in partition.items() if path not in gone] for partition in self.partitions]
        for inputs, outputs in groups:
            after[place[inputs[0]]].extend(map(self.layout.of_output, outputs))
        return self._mean(after)

    def _mean(self, partitions: Sequence[Sequence[Extents]]) -> float:
        columns = range(len(self.layout.measured))
        depths = [
            total_depth(measure_depth(e for extents in files if (e := extents[n]) is not None) for files in partitions)
            for n in columns
        ]
        return round(sum(depth.point for depth in depths) / len(columns), 2)
