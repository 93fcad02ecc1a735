"""Clustering plans: which files are merged together, and that they are merged once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, LiveEntry, Nothing
from icekeeper.operations.compaction.plan import plan_clustering
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn, choose_recipe
from icekeeper.policy import Policy, Strategy
from support.examples import examples
from support.plans import (
    HEAD,
    HEAD_MS,
    MB,
    data_file,
    groups_of,
    live_file,
    policy,
    position_delete,
    table,
    table_state,
)

# Which files are clustered together: no file twice without need, and each file that is worth it in the end.

TABLE = table()
OURS = 7000
"""The snapshot whose files are clustered."""


@dataclass(frozen=True)
class File:
    size: int
    clustered: bool = False
    partition: str = "p"
    has_debt: bool = False
    age: int = 1


files = st.lists(
    st.builds(
        File,
        size=st.one_of(st.integers(1, MB // 2), st.integers(1, 4 * MB), st.integers(1, 30 * MB)),
        clustered=st.booleans(),
        partition=st.sampled_from("pq"),
        has_debt=st.sampled_from([False] * 9 + [True]),
        age=st.integers(1, 20),
    ),
    max_size=30,
)
policies = st.builds(
    policy,
    target_file_size_mb=st.sampled_from([1, 2, 10]),
    min_file_size_ratio=st.sampled_from(["0.1", "0.5", "0.75", "0.99", 1]),
    min_input_files=st.integers(2, 6),
    max_file_group_size_mb=st.sampled_from([10, 25, 100]),
    rewrite_enabled=st.sampled_from([True, True, True, False]),
)


def recipe_of(settings: Policy) -> ClusterRecipe:
    return ClusterRecipe(Strategy.SORT, (KeyColumn(1),), settings.target_file_size_bytes, settings.min_file_size_bytes)


def live(all_files: list[File]) -> dict[str, LiveEntry]:
    return {
        f"f{i:03}": live_file(
            data_file(f"f{i:03}", f.size, [f.partition]), age=f.age, snapshot_id=OURS if f.clustered else HEAD
        )
        for i, f in enumerate(all_files)
    }


def plan(current: dict[str, LiveEntry], settings: Policy, debts: list[str] | None = None) -> CompactionPlan | Nothing:
    deletes = [position_delete(f"d-{path}", path, ["p"]) for path in debts or []]
    return plan_compaction(
        table_state(current.values(), deletes, is_unpartitioned=False),
        settings,
        now_ms=HEAD_MS + HOUR_MS,
        recipe=recipe_of(settings),
        clustered_by={OURS},
    )


def apply(
    current: dict[str, LiveEntry],
    planned: CompactionPlan,
    settings: Policy,
    ratio: Callable[[int], float] = lambda group_id: 1.0,
    age: int = 100,
) -> dict[str, LiveEntry]:
    """The table after the plan: each group becomes clustered files of the target size."""
    after = {path: file for path, file in current.items() if path not in set(planned.input_files)}
    for group in planned.groups:
        total = int(group.total_bytes * ratio(group.group_id))
        count = recipe_of(settings).output_count(total)
        for n in range(count):
            path = f"out{age}-{group.group_id}-{n}"
            after[path] = live_file(data_file(path, total // count, group.partition), age=age, snapshot_id=OURS)
    return after


@given(files, policies)
def test_groups_keep_the_rules_and_a_plan_applied_leaves_nothing_to_plan(
    all_files: list[File], settings: Policy
) -> None:
    """Each group has a single partition, groups share no file, and large clustered files without deletes are kept."""
    current = live(all_files)
    debts = [path for path, f in zip(current, all_files, strict=True) if f.has_debt]
    planned = plan(current, settings, debts)
    taken = [candidate for group in groups_of(planned) for candidate in group.files]
    assert len({candidate.file_path for candidate in taken}) == len(taken)
    for candidate in taken:
        is_small = candidate.file_size_in_bytes < settings.min_file_size_bytes
        assert not candidate.is_clustered or is_small or candidate.file_path in debts
    for group in groups_of(planned):
        assert {candidate.partition for candidate in group.files} == {group.partition}
        # Only the last file may exceed the cap.
        assert group.total_bytes - group.files[-1].file_size_in_bytes < settings.max_file_group_size_bytes
    if isinstance(planned, CompactionPlan):
        assert groups_of(plan(apply(current, planned, settings), settings)) == ()


@given(files, policies, st.lists(st.floats(0.4, 1.3), min_size=8, max_size=8))
def test_plans_converge_if_outputs_have_an_unexpected_size(
    all_files: list[File], settings: Policy, ratios: list[float]
) -> None:
    """Sorted rows compress better or worse, so a few more rounds may follow, each with fewer files."""
    current, rounds = live(all_files), 0
    while isinstance(planned := plan(current, settings), CompactionPlan):
        rounds += 1
        assert rounds <= 4
        after = apply(current, planned, settings, lambda group_id: ratios[group_id % 8], age=100 + rounds)
        assert rounds == 1 or len(after) < len(current)
        current = after


def sized(*sizes: int, clustered: bool = False) -> list[File]:
    return [File(size * MB, clustered, age=i) for i, size in enumerate(sizes)]


def chosen(all_files: list[File], **settings: object) -> list[list[str]]:
    groups = groups_of(plan(live(all_files), policy(**settings)))
    return [[c.file_path for c in group.files] for group in groups]


def old(*sizes: int) -> list[File]:
    return sized(*sizes, clustered=True)


@pytest.mark.parametrize(
    ("files", "settings", "expected"),
    [
        # Four small new files wait for a fifth; new bytes for an output are enough, in any number of files.
        (sized(1, 1, 1, 1), {}, []),
        (sized(1, 1, 1, 1, 1), {}, [range(5)]),
        (sized(200, 55), {}, []),
        (sized(200, 56), {}, [range(2)]),
        (sized(300), {}, [range(1)]),
        # New files are clustered without clustered files, unless too many small clustered files would result.
        (old(200, 200, 10, 10) + sized(1, 1, 1, 1, 1), {}, [range(4, 9)]),
        (old(200, 10, 10, 10, 10), {}, []),
        (old(200, 10, 10, 10, 10, 10), {}, [range(1, 6)]),
        (old(10, 10, 10, 10) + sized(1, 1, 1, 1, 1), {}, [range(9)]),
        (old(10, 10, 10, 10) + sized(100, 100, 100), {}, [range(4, 7)]),
        (old(200, 300, 1), {"rewrite_all": True}, [range(3)]),
        (sized(*[100] * 20), {"max_file_group_size_mb": 1000}, [range(10), range(10, 20)]),
        (sized(*[100] * 20), {"max_bytes_to_rewrite": 550 * MB}, [range(5)]),
        (sized(*[100] * 20), {"max_files_to_rewrite": 7}, [range(7)]),
        # Two merged groups of three must not be divided into two groups of three again and again.
        *(
            (sized(*[1] * 6), {"min_input_files": 2, "max_files_to_rewrite": n}, [range(min(n, 6))])
            for n in (2, 3, 6, 7)
        ),
        *((old(*[1] * 6), {"min_input_files": 2, "max_files_to_rewrite": n}, [range(min(n, 6))]) for n in (2, 7)),
    ],
)
def test_which_files_are_clustered_together(files: list[File], settings: Any, expected: list[range]) -> None:
    found = [sorted(group) for group in chosen(files, **settings)]
    assert found == [[f"f{number:03}" for number in group] for group in expected]


@pytest.mark.parametrize("enabled", [True, False])
def test_without_rewriting_only_deletes_are_a_reason(enabled: bool) -> None:
    current = live(sized(300, 300, 1))
    groups = groups_of(plan(current, policy(rewrite_enabled=enabled), ["f001"]))
    assert [[c.file_path for c in g.files] for g in groups] == ([["f000", "f001", "f002"]] if enabled else [["f001"]])


# Plans over overlapping sorted runs: which runs are merged, and that they are merged once.

LONG = struct.Struct("<q")
BY_ID = {"strategy": "sort", "sort_order": "id", "target_file_size_mb": 10, "min_input_files": 5}


@dataclass(frozen=True)
class Sorted:
    """A file of a run: the snapshot that added it, its lowest and highest key (``None``: unknown), its size in MB."""

    run: int
    low: int | None
    high: int | None
    size: float = 10.0

    def entry(self, path: str) -> LiveEntry:
        bounds: dict[str, Any] = {}
        if self.low is not None and self.high is not None:
            bounds = {"lower_bounds": {1: LONG.pack(self.low)}, "upper_bounds": {1: LONG.pack(self.high)}}
        file = replace(data_file(path, int(self.size * MB), records=int(self.size * 1000)), **bounds)
        return live_file(file, age=self.run, snapshot_id=self.run)


def runs(count: int, files: int = 3, *, first: int = 1, size: float = 10.0) -> list[Sorted]:
    """Runs that all cover the keys from 0 to 100 times ``files``."""
    return [Sorted(first + r, 100 * n, 100 * n + 100, size) for r in range(count) for n in range(files)]


def plan_by_depth(files: Sequence[Sorted], settings: Policy, fresh: Sequence[int] = ()) -> CompactionPlan | Nothing:
    recipe = choose_recipe(TABLE, settings)
    assert recipe is not None
    clustered = {f.run for f in files} - set(fresh)
    live = [f.entry(f"f{n:03}") for n, f in enumerate(files)]
    return plan_compaction(table_state(live), settings, now_ms=HEAD_MS + HOUR_MS, recipe=recipe, clustered_by=clustered)


def chosen_by_depth(files: Sequence[Sorted], fresh: Sequence[int] = (), **more: object) -> list[list[int]]:
    """The positions of the files of each group."""
    planned = plan_by_depth(files, policy(**(BY_ID | more)), fresh)
    if isinstance(planned, Nothing):
        return []
    return [[int(c.file_path[1:]) for c in group.files] for group in planned.groups]


def applied(files: Sequence[Sorted], settings: Policy, next_run: int, fresh: Sequence[int] = ()) -> list[Sorted] | None:
    """The partition after its plan; ``None``: the plan is empty."""
    planned = plan_by_depth(files, settings, fresh)
    if isinstance(planned, Nothing):
        return None
    gone = set(planned.input_files)
    after = [f for n, f in enumerate(files) if f"f{n:03}" not in gone]
    for group in planned.groups:
        inputs = [files[int(c.file_path[1:])] for c in group.files]
        size = sum(f.size for f in inputs)
        count = max(1, min(round(size / 10), int(size * MB / settings.min_file_size_bytes)))
        known = sorted(end for f in inputs for end in (f.low, f.high) if end is not None)
        for n in range(count):
            low, high = (known[round(i * (len(known) - 1) / count)] if known else None for i in (n, n + 1))
            after.append(Sorted(next_run, low, high, size / count))
    return after


def test_overlapping_runs_are_sorted_together_again() -> None:
    """Otherwise a lookup would open another file after each round."""
    assert chosen_by_depth(runs(4)) == []
    assert chosen_by_depth(runs(5)) == [list(range(15))]
    with patch.object(plan_clustering, "MAX_CLUSTERING_DEPTH", 5):
        assert chosen_by_depth(runs(5)) == []
    with patch.object(plan_clustering, "TIER_FACTOR", 6):
        assert chosen_by_depth(runs(5)) == []
    with patch.multiple(plan_clustering, MAX_CLUSTERING_DEPTH=2, TIER_FACTOR=3):
        assert chosen_by_depth(runs(3)) == [list(range(9))]


def test_new_files_are_sorted_with_the_runs_whose_limit_they_exceed() -> None:
    """They are sorted once, together with the older runs."""
    new = [Sorted(9, 0, 300, 6.0)] * 5
    assert chosen_by_depth([*runs(4), *new], fresh=[9]) == [list(range(17))]
    assert chosen_by_depth([*runs(3), *new], fresh=[9]) == [list(range(9, 14))]


def test_the_snapshot_and_the_bounds_of_files_identify_a_run() -> None:
    """Overlapping files of a single snapshot are several runs, as after a pass that divided a group by age."""
    one_snapshot = [replace(f, run=1) for f in runs(5)]
    assert chosen_by_depth(one_snapshot) == [list(range(15))]
    assert chosen_by_depth([replace(f, run=1) for f in runs(1, 15)]) == []


def test_files_with_unknown_bounds_are_merged_once() -> None:
    files = [Sorted(run, None, None) for run in range(1, 6)]
    assert chosen_by_depth(files) == [[0, 1, 2, 3, 4]]
    after = applied(files, policy(**BY_ID), 50)
    assert after is not None
    assert {f.run for f in after} == {50}
    assert applied(after, policy(**BY_ID), 51) is None


def test_capped_passes_merge_runs_along_the_key() -> None:
    """Portions by age would hold whole runs, and each key would remain in as many runs as before."""
    groups = chosen_by_depth(runs(5), max_file_group_size_mb=50)
    assert [len(group) for group in groups] == [5, 5, 5]
    files = runs(5)
    assert [{files[n].low for n in group} for group in groups] == [{0}, {100}, {200}]
    (first,) = chosen_by_depth(runs(5), max_files_to_rewrite=5)
    assert {files[n].low for n in first} == {0}


def test_capped_passes_cover_the_whole_partition() -> None:
    settings = policy(**BY_ID, max_files_to_rewrite=5)
    files: list[Sorted] | None = runs(5)
    passes = 0
    while files is not None and passes < 6:
        last, files = files, applied(files, settings, 50 + passes)
        passes += 1
    assert passes == 4
    assert len(last) == 15


def test_z_order_compares_all_of_its_columns() -> None:
    zorder: dict[str, Any] = {"strategy": "zorder", "sort_order": "id"}
    assert chosen_by_depth([replace(f, low=0, high=300) for f in runs(5)], **zorder) == [list(range(15))]
    assert chosen_by_depth([replace(f, low=0, high=300) for f in runs(4)], **zorder) == []
    assert chosen_by_depth(runs(9), rewrite_enabled=False) == []


def test_a_bucket_transform_has_no_ranges() -> None:
    """Bounds of ids do not bound their buckets: every run may contain any bucket."""
    in_order = [Sorted(n + 1, 100 * n, 100 * n + 90) for n in range(5)]
    assert chosen_by_depth(in_order) == []
    assert chosen_by_depth(in_order, sort_order="bucket(4, id)") == [[0, 1, 2, 3, 4]]
    assert chosen_by_depth(in_order, sort_order="truncate(10, id)") == []


def test_a_column_of_few_values_yields_to_the_next_column() -> None:
    """Sorted by day, then id: files of the same day overlap only if their ids overlap."""

    columns = [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "day", "type": "string"}]
    schema = {"type": "struct", "schema-id": 0, "fields": [{**c, "required": False} for c in columns]}
    two_columns = TableMetadata({**TABLE.document, "schemas": [schema], "current-schema-id": 0})

    def file(run: int, ids: tuple[int, int]) -> DataFile:
        day = {2: b"monday"}
        lower, upper = ({1: LONG.pack(i)} | day for i in ids)
        return data_file(f"f{run:03}", 10 * MB, lower_bounds=lower, upper_bounds=upper, records=1000)

    def groups(ranges: Sequence[tuple[int, int]]) -> int:
        settings = policy(**(BY_ID | {"sort_order": "day, id"}))
        recipe = choose_recipe(two_columns, settings)
        assert recipe is not None
        live = [live_file(file(n, r), age=n, snapshot_id=n) for n, r in enumerate(ranges)]
        state = table_state(live, metadata=two_columns)
        planned = plan_compaction(state, settings, now_ms=HEAD_MS + HOUR_MS, recipe=recipe, clustered_by=range(9))
        return 0 if isinstance(planned, Nothing) else len(planned.groups)

    assert groups([(0, 9)] * 5) == 1
    assert groups([(10 * n, 10 * n + 9) for n in range(5)]) == 0


sizes = st.sampled_from([0.5, 2.0, 8.0, 10.0, 11.0])
tables = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 30), st.integers(0, 30), sizes).map(
        lambda t: Sorted(t[0], min(t[1:3]), max(t[1:3]), t[3])
    ),
    max_size=25,
)
settings_of = st.builds(
    policy,
    **{key: st.just(value) for key, value in BY_ID.items() if key != "min_input_files"},
    min_input_files=st.integers(2, 5),
    max_file_group_size_mb=st.sampled_from([25, 1000]),
)


# The slowest example so far: five passes.
SLOW = [
    (1, 0, 1, 8),
    (1, 0, 1, 8),
    (1, 0, 7, 10),
    (1, 2, 7, 2),
    (1, 3, 4, 8),
    (1, 4, 7, 8),
    (1, 5, 6, 10),
    (1, 6, 7, 8),
]
SLOW += [(1, 7, 8, 8), (3, 1, 2, 8), (3, 3, 4, 10)]


@hypothesis.settings(max_examples=examples(60))
@given(tables, settings_of, st.integers(1, 5), st.integers(2, 5))
@hypothesis.example(
    [Sorted(*item) for item in SLOW], policy(**(BY_ID | {"min_input_files": 2}), max_file_group_size_mb=25), 1, 2
)
def test_passes_converge(files: list[Sorted], settings: Policy, depth: int, factor: int) -> None:
    """At most one pass follows if no group is capped, otherwise a few.

    If outputs of several groups overlap, their bounds do not show which group each came from.
    """
    most = 2 if settings.max_file_group_size_mb == 1000 else 6
    new = [12]
    with patch.multiple(plan_clustering, MAX_CLUSTERING_DEPTH=depth, TIER_FACTOR=factor):
        for number in range(most):
            after = applied(files, settings, 50 + number, new)
            if after is None:
                return
            files = after
        assert applied(files, settings, 90, new) is None


def test_small_sorted_files_are_merged_with_files_of_similar_size() -> None:
    """A large file is not rewritten for a few new files; files below 4 MB count as alike."""
    apart = [Sorted(n + 1, 100 * n, 100 * n + 90, size) for n, size in enumerate([180, 12, 11, 10, 9, 8])]
    large: dict[str, Any] = {"target_file_size_mb": 256}
    assert chosen_by_depth(apart, **large) == [[1, 2, 3, 4, 5]]
    assert chosen_by_depth(apart[:5], **large) == []
    tiny = [Sorted(n + 1, 100 * n, 100 * n + 90, size) for n, size in enumerate([3, 0.01, 0.01, 1, 15])]
    assert chosen_by_depth(tiny, **large) == [[0, 1, 2, 3, 4]]
