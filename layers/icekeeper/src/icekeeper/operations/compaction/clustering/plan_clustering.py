"""Plans clustering: sorted runs, their overlap, and which are sorted together again (pure)."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
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
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.policy import Policy, Strategy
from icekeeper.rows.arrow_schema import leaf_columns

# Finds the sorted runs of a partition, and where they lie over one another, from manifest entries alone (pure).
#
# A *run* is what one rewrite sorted together: its files follow one another without overlap, so that a lookup opens one
# of them.  Which files form a run is read off the table and needs no memory of ours: entries keep the id of the
# snapshot that added their file, and where files of one snapshot overlap nevertheless, the fewest runs are made of them
# that do not.
#
# Files that a value merely ends and begins, or that hold one single value, do not overlap by the sort key: sorting them
# together again would change nothing.  On a z-order curve files of one run overlap in every single column, so there a
# run is all that one snapshot added, and runs lie over one another only where they do so in every column.

KeyRange: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Where the keys of a file begin and end."""
# Nulls are a value of their own to a sort, at whichever end; which one does not matter to overlap.
_NULL: Place = (-1,)
_WHOLE: KeyRange = ((BELOW_ALL,), (ABOVE_ALL,))


@dataclass(frozen=True, slots=True)
class Piece:
    """A file as part of a run."""

    run: Hashable
    ranges: tuple[KeyRange, ...]
    """One by the sort key, or one per column of a z-order curve."""
    rows: int


@dataclass(frozen=True, slots=True)
class Layout:
    """By which columns a table is clustered, and of which types they are."""

    columns: tuple[KeyColumn, ...]
    types: Mapping[int, str]
    """Iceberg type by field id."""
    is_curve: bool = False
    """Whether rows lie along a z-order curve, not in the order of the columns."""
    _decoded: dict[tuple[str, int], Extent | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By path and field id, so that a plan decodes the bounds of each file once."""

    @classmethod
    def of(cls, recipe: ClusterRecipe, schema: Mapping[str, Any]) -> Layout:
        types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(schema)}
        return cls(recipe.columns, types, recipe.strategy is Strategy.ZORDER)

    @property
    def measured(self) -> tuple[KeyColumn, ...]:
        """The columns by which lookups skip files: all of a curve, the first one of a sort order."""
        return self.columns if self.is_curve else self.columns[:1]

    def extent(self, file: DataFile, column: KeyColumn) -> Extent | None:
        """Which values of a column the file may hold; ``None``: it holds none."""
        key = file.file_path, column.field_id
        if key not in self._decoded:
            self._decoded[key] = column_extent(file, column.field_id, self.types.get(column.field_id, ""))
        return self._decoded[key]

    def ranges(self, file: DataFile) -> tuple[KeyRange, ...]:
        if not self.is_curve:
            return (self._key_range(file),)
        return tuple(self._column_range(file, column) for column in self.columns)

    def _column_range(self, file: DataFile, column: KeyColumn) -> KeyRange:
        extent = self.extent(file, column)
        return ((_NULL,), (_NULL,)) if extent is None else ((extent.low,), (extent.high,))

    def _key_range(self, file: DataFile) -> KeyRange:
        """By the columns in turn, as long as the file has one single value of each; then by the next one."""
        same: tuple[Place, ...] = ()
        for column in self.columns:
            # Bounds of the values are bounds of the key only where the transform keeps their order.
            if parse_transform(column.transform)[0] not in KEEPS_ORDER:
                return (*same, BELOW_ALL), (*same, ABOVE_ALL)
            ((low,), (high,)) = self._column_range(file, column)
            if low != high:
                # After every file that holds one value of the column, which is this one's lowest.
                return (*same, low, ABOVE_ALL), (*same, high)
            same = (*same, low)
        return same, same


def single_value(key_range: KeyRange) -> bool:
    """Whether all rows have one key, so that no sorting divides them."""
    return key_range[0] == key_range[1]


def pieces_of_runs(files: Sequence[Candidate], layout: Layout) -> list[Piece]:
    """The clustered files of a partition as pieces of the runs that they belong to, in the order given."""
    ranges = [layout.ranges(c.file) for c in files]
    runs: list[Hashable] = [c.identity.snapshot_id for c in files]
    if not layout.is_curve:
        by_snapshot: dict[Hashable, list[int]] = {}
        for number, snapshot_id in enumerate(runs):
            by_snapshot.setdefault(snapshot_id, []).append(number)
        for snapshot_id, numbers in by_snapshot.items():
            own = _fewest_runs([ranges[n][0] for n in numbers])
            for number, run in zip(numbers, own, strict=True):
                # A file of one single key is a run of its own: no merge makes it easier to skip.
                runs[number] = snapshot_id, run if run is not None else ("single", number)
    return [Piece(run, r, c.file.record_count) for run, r, c in zip(runs, ranges, files, strict=True)]


def _fewest_runs(ranges: Iterable[KeyRange]) -> list[int | None]:
    """Per file the number of its run: the fewest runs in which files follow one another; ``None``: it has one key.

    A file of unknown ends is put into the first: nothing tells that it is not part of it.
    """
    ranges = list(ranges)
    own: list[int | None] = [None if single_value(r) else 0 for r in ranges]
    free: list[int] = []
    busy: list[tuple[tuple[Any, ...], int]] = []
    opened = 0
    for number in sorted(range(len(ranges)), key=lambda n: ranges[n]):
        low, high = ranges[number]
        if own[number] is None or _is_open(ranges[number]):
            continue
        while busy and busy[0][0] <= low:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, opened)
            opened += 1
        run = heapq.heappop(free)
        own[number] = run
        heapq.heappush(busy, (high, run))
    return own


def _is_open(key_range: KeyRange) -> bool:
    """Whether a bound is unknown."""
    return BELOW_ALL in key_range[0] or key_range[1][-1] == ABOVE_ALL


# Measures how deep a plan's partitions overlap in the clustering columns, before and after it (pure).
#
# Lookups by a sort order skip files by its first column, those by a z-order curve by any of its columns; for a curve
# the depth is the average over them.  Each partition is looked into by itself.

_Extents = tuple[Extent | None, ...]
"""Per clustering column; ``None``: the file holds no value of it."""


@dataclass(frozen=True, slots=True)
class ClusteringDepth:
    """Where the files that a plan chose from lie in the clustering columns."""

    layout: Layout
    partitions: tuple[Mapping[str, _Extents], ...]
    """Path → extents, per partition."""

    @classmethod
    def of(cls, partitions: Iterable[Sequence[Candidate]], layout: Layout) -> ClusteringDepth:
        return cls(layout, tuple({c.file.file_path: _extents(c.file, layout) for c in files} for files in partitions))

    def now(self) -> float:
        """How many files a lookup of one value opens, on average over bytes."""
        return self._mean([list(partition.values()) for partition in self.partitions])

    def with_outputs(self, groups: Iterable[tuple[Sequence[str], Sequence[DataFile]]]) -> float:
        """The depth after groups are replaced: paths of inputs, and the files that came of them."""
        return self._after([(inputs, [_extents(file, self.layout) for file in files]) for inputs, files in groups])

    def as_planned(self, groups: Iterable[tuple[Sequence[str], int]]) -> float:
        """The depth to expect: paths of inputs, and how many files they become, in order by the key or the curve."""
        known = {path: extents for partition in self.partitions for path, extents in partition.items()}
        return self._after(
            [(inputs, self._expected([known[path] for path in inputs], outputs)) for inputs, outputs in groups]
        )

    def _expected(self, inputs: Sequence[_Extents], outputs: int) -> list[_Extents]:
        """Outputs that divide the values of each column evenly; a curve divides each column into fewer stretches."""
        columns = len(self.layout.measured)
        stretches = max(1, round(outputs ** (1 / columns)))
        size = sum(next((e.size for e in extents if e is not None), 0) for extents in inputs) // max(1, outputs)
        cuts = [_cuts([extents[n] for extents in inputs], stretches) for n in range(columns)]
        return [
            tuple(
                None if cut is None else _extent(cut[number // stretches**n % stretches], size)
                for n, cut in enumerate(cuts)
            )
            for number in range(outputs)
        ]

    def _after(self, groups: Sequence[tuple[Sequence[str], Sequence[_Extents]]]) -> float:
        gone = {path for inputs, _ in groups for path in inputs}
        place = {path: number for number, partition in enumerate(self.partitions) for path in partition}
        after = [[e for path, e in partition.items() if path not in gone] for partition in self.partitions]
        for inputs, outputs in groups:
            after[place[inputs[0]]].extend(outputs)
        return self._mean(after)

    def _mean(self, partitions: Sequence[Sequence[_Extents]]) -> float:
        columns = range(len(self.layout.measured))
        depths = [
            total_depth(measure_depth(e for extents in files if (e := extents[n]) is not None) for files in partitions)
            for n in columns
        ]
        return round(sum(depth.point for depth in depths) / len(columns), 2)


def _extents(file: DataFile, layout: Layout) -> _Extents:
    return tuple(layout.extent(file, column) for column in layout.measured)


def _extent(ends: tuple[Place, Place], size: int) -> Extent:
    return Extent(ends[0], ends[1], size)


def _cuts(
    extents: Sequence[Extent | None], stretches: int
) -> list[tuple[tuple[object, ...], tuple[object, ...]]] | None:
    """The ends of each stretch; unknown ends stay unknown, ``None``: there are no values."""
    present = [e for e in extents if e is not None]
    if not present:
        return None
    if any(e.low == BELOW_ALL or e.high == ABOVE_ALL for e in present):
        return [(BELOW_ALL, ABOVE_ALL)] * stretches
    ends = sorted(end for e in present for end in (e.low, e.high))
    below = [end for end in ends if end < ends[-1]]
    if not below:
        return [(ends[0], ends[0])] * stretches
    # Between equal ends a cut lies just above them: which value it is does not matter to how many files meet there.
    cuts = [(*below[i * len(below) // stretches], i) for i in range(1, stretches)]
    return list(pairwise([ends[0], *cuts, ends[-1]]))


# Chooses which sorted runs to sort together again, in tiers as log-structured merge trees do (pure).
#
# Every round of new data adds a run, and a lookup opens one file of each run that lies over its value.  Where more than
# ``limit`` runs lie over one another, ``factor`` or more of one tier are merged.  The tier of a run is the logarithm of
# its rows to the base ``factor``, so a merge of whole runs lifts its rows by a tier at least: a row is rewritten at
# most once per tier, ``1 + log_factor(runs)`` times where runs come in one size.  What is left is at most the limit
# deep, or ``factor - 1`` runs a tier.  Source: O'Neil et al., "The Log-Structured Merge-Tree", 1996; size-tiered
# compaction as in Cassandra and RocksDB.
#
# Runs that do not pile up stay as they are: a table that is filled in the order of its key is never sorted again.  What
# merges bring about is merged at once, so that a plan leaves nothing to plan (rule: plans-converge).

_Region = tuple[int, int]
"""A stretch of the key: the number of the event that opens it, and of the one that closes it."""


def tier_of(rows: int, factor: int) -> int:
    """The tier of a run: the whole part of ``log_factor(rows)``."""
    tier = 0
    while rows >= factor:
        rows //= factor
        tier += 1
    return tier


def run_depth(pieces: Sequence[Piece]) -> int:
    """How many runs lie over one another at the worst key; on a curve, in the column that divides them best."""
    runs = [piece.run for piece in pieces]
    return min((sweep.depth(runs) for sweep in _sweeps(pieces)), default=0)


def runs_to_merge(pieces: Sequence[Piece], *, limit: int, factor: int) -> list[list[int]]:
    """Which pieces to merge into one run each, as positions in ``pieces``; none where the depth is within the limit."""
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
    """The runs of the lowest tier that has ``factor`` of them over one key where the limit is passed."""
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
    """Groups that share a run become one."""
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
    """Whether a stretch meets one of others, which are in order and apart."""
    before = bisect_right(others, region[1], key=lambda other: other[0]) - 1
    return before >= 0 and others[before][1] > region[0]


def _sweeps(pieces: Sequence[Piece]) -> list[_Sweep]:
    columns = len(pieces[0].ranges) if pieces else 0
    # One single key is no reason to sort again; on a curve the other columns may be.
    return [_Sweep.over([p.ranges[i] for p in pieces], with_single_values=columns > 1) for i in range(columns)]


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The places along a key where files begin and end, in order."""

    events: Sequence[tuple[int, bool]]
    """Which file, and whether it begins."""
    spans: Sequence[_Region | None]
    """Per file the numbers of its two events; ``None``: it is left out."""

    @classmethod
    def over(cls, ranges: Sequence[KeyRange], *, with_single_values: bool) -> _Sweep:
        kept = [n for n, r in enumerate(ranges) if with_single_values or not single_value(r)]
        # Files that merely touch do not overlap, unless single values count: then ends belong to them.
        first, second = (0, 1) if with_single_values else (1, 0)
        ordered = sorted(
            [(ranges[n][0], first, n, True) for n in kept] + [(ranges[n][1], second, n, False) for n in kept],
            key=lambda event: event[:2],
        )
        begins: dict[int, int] = {}
        spans: list[_Region | None] = [None] * len(ranges)
        for number, (_, _, n, is_begin) in enumerate(ordered):
            if is_begin:
                begins[n] = number
            else:
                spans[n] = begins[n], number
        return cls([(n, is_begin) for _, _, n, is_begin in ordered], spans)

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
        """Where at least so many runs lie over one another, in order, and which; only wanted ones, if given."""
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
        """The files that lie in one of the regions, which are in order and apart."""
        return [n for n, span in enumerate(self.spans) if span is not None and _meets(span, regions)]


def _step(open_runs: Counter[Hashable], run: Hashable, is_begin: bool) -> None:
    open_runs[run] += 1 if is_begin else -1
    if not open_runs[run]:
        del open_runs[run]


# Divides the candidates of a partition into the groups that are clustered together (pure).
#
# Files that were not clustered by the current recipe are clustered as soon as it is worth it: ``min_input_files``
# files, or enough bytes for one output, or files that carry deletes.  Clustered files are left alone until their runs
# pile up beyond ``max_clustering_depth`` (see ``recluster``), or there are ``min_input_files`` small ones of about one
# size. What is new joins the runs that are merged, so that it is sorted once and not twice.
#
# Convergence (rule: plans-converge): a group's outputs are one run, and all but perhaps one of them are large enough.
# If that one would make too many small files, it joins them beforehand.  So ``plan(apply(plan))`` is empty.

# The run that new files would become.
_NEW = "new"
# Java's read.split.open-file-cost: below these bytes files cost readers the same, and their size is mostly overhead.
_OPEN_FILE_BYTES = 4 * 1024 * 1024


def clustering_groups(files: list[Candidate], policy: Policy, layout: Layout) -> list[list[Candidate]]:
    """The groups of one partition's candidates."""
    files.sort(key=lambda c: (c.age, c.file.file_path))
    if policy.rewrite_all:
        return _portions(files, policy)
    fresh = [c for c in files if not c.is_clustered]
    if not _is_worth_it(fresh, policy):
        fresh = []
    sorted_before = [c for c in files if c.is_clustered]
    piled = _piled_runs(sorted_before, fresh, policy, layout)
    taken = {id(c) for group in piled for c in group}
    groups = piled + _portions((c for c in fresh if id(c) not in taken), policy)
    small = [c for c in sorted_before if id(c) not in taken and c.file.file_size_in_bytes < policy.min_file_size_bytes]
    groups = _with_small_files(groups, small, policy)
    taken = {id(c) for group in groups for c in group}
    return groups + [[c] for c in sorted_before if c.is_due and id(c) not in taken]


def _is_worth_it(fresh: list[Candidate], policy: Policy) -> bool:
    return (
        len(fresh) >= policy.min_input_files
        or _total(fresh) >= policy.target_file_size_bytes
        or any(c.is_due for c in fresh)
    )


def _piled_runs(
    sorted_before: Sequence[Candidate], fresh: Sequence[Candidate], policy: Policy, layout: Layout
) -> list[list[Candidate]]:
    """Runs that are merged because they pile up; a group that is too large for a pass is divided along the key."""
    if not policy.rewrite_enabled:
        return []
    files = [*sorted_before, *fresh]
    pieces = pieces_of_runs(sorted_before, layout)
    pieces += [replace(piece, run=_NEW) for piece in pieces_of_runs(fresh, layout)]
    merges = runs_to_merge(pieces, limit=policy.max_clustering_depth, factor=policy.clustering_tier_factor)
    groups: list[list[Candidate]] = []
    for members in merges:
        along_key = [files[n] for n in sorted(members, key=lambda n: pieces[n].ranges[0])]
        run_of = {id(files[n]): pieces[n].run for n in members}
        for portion in _portions(along_key, policy):
            # Files of one run alone are in order already.
            if len({run_of[id(c)] for c in portion}) > 1:
                groups.append(sorted(portion, key=lambda c: (c.age, c.file.file_path)))
    return groups


def _with_small_files(
    groups: list[list[Candidate]], small: Sequence[Candidate], policy: Policy
) -> list[list[Candidate]]:
    """The groups, joined by clustered files that are small where there are ``min_input_files`` of about one size.

    About one size: at most ``clustering_tier_factor`` apart.  Merging a large one with every few tiny ones would
    rewrite it again and again.  A group whose output would be small counts as one small file.
    """
    done = [group for group in groups if _total(group) >= policy.min_file_size_bytes]
    waiting = [group for group in groups if _total(group) < policy.min_file_size_bytes] + [[c] for c in small]
    while window := _window_of_one_size(waiting, policy):
        inside = {id(item) for item in window}
        waiting = [item for item in waiting if id(item) not in inside]
        members = sorted((c for item in window for c in item), key=lambda c: (c.age, c.file.file_path))
        for portion in _portions(members, policy):
            (done if _total(portion) >= policy.min_file_size_bytes else waiting).append(portion)
    return done + [item for item in waiting if len(item) > 1 or not item[0].is_clustered]


def _window_of_one_size(items: list[list[Candidate]], policy: Policy) -> list[list[Candidate]]:
    """The smallest items, at least ``min_input_files`` of them, of which the largest is within the tier factor."""
    items.sort(key=_total)
    sizes = [max(_OPEN_FILE_BYTES, _total(item)) for item in items]
    end = 0
    for start, least in enumerate(sizes):
        while end < len(sizes) and sizes[end] < least * policy.clustering_tier_factor:
            end += 1
        if end - start >= policy.min_input_files:
            return items[start:end]
    return []


def _portions(files: Iterable[Candidate], policy: Policy) -> list[list[Candidate]]:
    """Divide files into groups of at least ``max_file_group_size`` bytes; the last one may be smaller.

    If the policy caps what one pass rewrites, groups stay within the cap, so that passes get through the table.
    """
    most_files, most_bytes = policy.max_files_to_rewrite, policy.max_bytes_to_rewrite
    groups: list[list[Candidate]] = []
    current: list[Candidate] = []
    size = 0
    for candidate in files:
        added = size + candidate.file.file_size_in_bytes
        is_over_cap = (most_files is not None and len(current) >= most_files) or (
            most_bytes is not None and added > most_bytes
        )
        if current and (is_over_cap or size >= policy.max_file_group_size_bytes):
            groups.append(current)
            current, added = [], candidate.file.file_size_in_bytes
        current.append(candidate)
        size = added
    return [*groups, current] if current else groups


def _total(files: Iterable[Candidate]) -> int:
    return sum(c.file.file_size_in_bytes for c in files)
