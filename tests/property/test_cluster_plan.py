"""What is clustered with what: no file twice for nothing, and nothing that is worth it left out for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.delete_scope import DeleteIndex, DeleteIndexBuilder
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestContent, ManifestEntry, Nothing
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import Clustering, CompactionPlan, FileGroup, plan_compaction
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.policy import Policy, Strategy
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table

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


def deletes_of(paths: list[str]) -> DeleteIndex:
    builder = DeleteIndexBuilder()
    for path in paths:
        file = replace(
            data_file(f"d-{path}", 1, ["p"]), content=FileContent.POSITION_DELETES, referenced_data_file=path
        )
        builder.add(0, ManifestEntry(EntryStatus.ADDED, HEAD, 60, 60, file), is_unpartitioned=False)
    return builder.build()


def plan(current: dict[str, LiveEntry], settings: Policy, debts: list[str] | None = None) -> CompactionPlan | Nothing:
    manifests = [manifest(), *([manifest("d", content=ManifestContent.DELETES)] if debts else [])]
    return plan_compaction(
        TableState(TABLE, TABLE.snapshots[HEAD], manifests, current.values(), deletes_of(debts or [])),
        settings,
        now_ms=HEAD_MS + HOUR_MS,
        clustering=Clustering(recipe_of(settings), frozenset({OURS})),
    )


def groups_of(planned: CompactionPlan | Nothing) -> tuple[FileGroup, ...]:
    return () if isinstance(planned, Nothing) else planned.groups


def apply(
    current: dict[str, LiveEntry],
    planned: CompactionPlan,
    settings: Policy,
    ratio: Callable[[int], float] = lambda group_id: 1.0,
    age: int = 100,
) -> dict[str, LiveEntry]:
    """The table afterwards: the outputs of every group are clustered, as many as their bytes make files."""
    after = {path: file for path, file in current.items() if path not in set(planned.input_files)}
    for group in planned.groups:
        total = int(group.total_bytes * ratio(group.group_id))
        count = recipe_of(settings).output_count(total)
        for n in range(count):
            path = f"out{age}-{group.group_id}-{n}"
            after[path] = live_file(data_file(path, total // count, group.partition), age=age, snapshot_id=OURS)
    return after


@given(files, policies)
def test_a_plan_applied_leaves_nothing_to_plan(all_files: list[File], settings: Policy) -> None:
    current = live(all_files)
    debts = [path for path, f in zip(current, all_files, strict=True) if f.has_debt]
    planned = plan(current, settings, debts)
    if isinstance(planned, CompactionPlan):
        assert groups_of(plan(apply(current, planned, settings), settings)) == ()


@given(files, policies, st.lists(st.floats(0.4, 1.3), min_size=8, max_size=8))
def test_outputs_of_another_size_than_expected_settle_soon(
    all_files: list[File], settings: Policy, ratios: list[float]
) -> None:
    """Sorted rows compress better or worse: a few more rounds at most, each with fewer files."""
    current, rounds = live(all_files), 0
    while isinstance(planned := plan(current, settings), CompactionPlan):
        rounds += 1
        assert rounds <= 4
        after = apply(current, planned, settings, lambda group_id: ratios[group_id % 8], age=100 + rounds)
        assert rounds == 1 or len(after) < len(current)
        current = after


@given(files, policies)
def test_every_group_is_of_one_partition_and_no_file_is_in_two(all_files: list[File], settings: Policy) -> None:
    groups = groups_of(plan(live(all_files), settings))
    paths = [c.file.file_path for g in groups for c in g.files]
    assert len(paths) == len(set(paths))
    for group in groups:
        assert {c.file.partition for c in group.files} == {group.partition}
        # The last file may overshoot, no other.
        assert group.total_bytes - group.files[-1].file.file_size_in_bytes < settings.max_file_group_size_bytes


@given(files, policies)
def test_large_clustered_files_are_left_alone(all_files: list[File], settings: Policy) -> None:
    planned = groups_of(plan(live(all_files), settings))
    for candidate in (c for group in planned for c in group.files):
        assert not candidate.is_clustered or candidate.file.file_size_in_bytes < settings.min_file_size_bytes


def sized(*sizes: int, clustered: bool = False) -> list[File]:
    return [File(size * MB, clustered, age=i) for i, size in enumerate(sizes)]


def chosen(all_files: list[File], **settings: object) -> list[list[str]]:
    groups = groups_of(plan(live(all_files), policy(**settings)))
    return [[c.file.file_path for c in group.files] for group in groups]


def test_four_small_new_files_wait_for_a_fifth() -> None:
    assert chosen(sized(1, 1, 1, 1)) == []
    assert chosen(sized(1, 1, 1, 1, 1)) == [["f000", "f001", "f002", "f003", "f004"]]


def test_new_bytes_for_one_output_are_enough_whatever_their_files() -> None:
    """Large unsorted files are sorted although there are few of them."""
    assert chosen(sized(200, 55)) == []
    assert chosen(sized(200, 56)) == [["f000", "f001"]]
    assert chosen(sized(300)) == [["f000"]]


def test_new_files_leave_clustered_ones_alone() -> None:
    before = sized(200, 200, 10, 10, clustered=True)
    assert chosen(before + sized(1, 1, 1, 1, 1)) == [["f004", "f005", "f006", "f007", "f008"]]


def test_small_clustered_files_are_merged_when_there_are_enough() -> None:
    assert chosen(sized(200, 10, 10, 10, 10, clustered=True)) == []
    assert chosen(sized(200, 10, 10, 10, 10, 10, clustered=True)) == [["f001", "f002", "f003", "f004", "f005"]]


def test_small_clustered_files_join_the_new_ones_whose_output_would_make_them_too_many() -> None:
    before = sized(10, 10, 10, 10, clustered=True)
    assert [len(group) for group in chosen(before + sized(1, 1, 1, 1, 1))] == [9]
    assert [len(group) for group in chosen(before + sized(100, 100, 100))] == [3]


def test_rewrite_all_clusters_everything_again() -> None:
    assert [len(group) for group in chosen(sized(200, 300, 1, clustered=True), rewrite_all=True)] == [3]


def test_a_large_group_is_split_and_a_cap_splits_it_further() -> None:
    many = sized(*[100] * 20)
    assert [len(group) for group in chosen(many, max_file_group_size_mb=1000)] == [10, 10]
    assert [len(group) for group in chosen(many, max_bytes_to_rewrite=550 * MB)] == [5]
    assert [len(group) for group in chosen(many, max_files_to_rewrite=7)] == [7]


@pytest.mark.parametrize("enabled", [True, False])
def test_without_rewriting_only_deletes_are_a_reason(enabled: bool) -> None:
    current = live(sized(300, 300, 1))
    groups = groups_of(plan(current, policy(rewrite_enabled=enabled), ["f001"]))
    assert [[c.file.file_path for c in g.files] for g in groups] == (
        [["f000", "f001", "f002"]] if enabled else [["f001"]]
    )
