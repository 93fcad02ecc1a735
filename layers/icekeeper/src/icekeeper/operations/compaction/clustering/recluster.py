"""Chooses which sorted runs to sort together again, in tiers as log-structured merge trees do (pure).

Every round of new data adds a run, and a lookup opens one file of each run that lies over its value.  Where more than
``limit`` runs lie over one another, ``factor`` or more of one tier are merged.  The tier of a run is the logarithm of
its rows to the base ``factor``, so a merge of whole runs lifts its rows by a tier at least: a row is rewritten at most
once per tier, ``1 + log_factor(runs)`` times where runs come in one size.  What is left is at most the limit deep, or
``factor - 1`` runs a tier.  Source: O'Neil et al., "The Log-Structured Merge-Tree", 1996; size-tiered compaction as in
Cassandra and RocksDB.

Runs that do not pile up stay as they are: a table that is filled in the order of its key is never sorted again.  What
merges bring about is merged at once, so that a plan leaves nothing to plan (rule 49).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.operations.compaction.clustering.runs import KeyRange, Piece, single_value

__all__ = ["run_depth", "runs_to_merge", "tier_of"]

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
