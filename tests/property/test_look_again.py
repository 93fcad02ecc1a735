"""Detection finds work that new files do not show after a day, and no pass looks without a reason."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.detection.assess import assess
from icekeeper.detection.proposal import Proposal
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import Nothing
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.store import SeenTable
from support.examples import examples
from support.growing_table import GrowingTable, idle
from support.plans import HEAD_MS, MB
from support.settings import policy

NOW_MS = HEAD_MS + HOUR_MS
DAY_MS = 24 * HOUR_MS

partitions = st.sampled_from(["a", "a", "a", "b", None])
# Each size is a multiple of the previous, so that files of a partition often differ too much to be merged.
sizes = st.one_of(
    st.builds(lambda power, tenths: MB * 3**power * tenths // 40, st.integers(0, 4), st.integers(8, 12)),
    st.integers(0, 3 * MB),
    st.sampled_from([0, 1]),
)
commits = st.lists(st.tuples(sizes, partitions), max_size=4)
few = st.lists(st.tuples(sizes, partitions), min_size=1, max_size=2)
policies = st.builds(
    policy,
    operations=st.just("compact"),
    target_file_size_mb=st.sampled_from([1, 4, 16, 64, 256]),
    min_file_size_ratio=st.sampled_from(["0.5", "0.75", 1]),
    min_input_files=st.sampled_from([2, 2, 3, 3, 4, 5]),
    max_file_group_size_mb=st.sampled_from([256, 1000]),
    partition_rest_hours=st.sampled_from([2, 24]),
    expected_scans=st.sampled_from(["none", 1, 20, 200]),
)


@st.composite
def uneven(draw: st.DrawFn) -> list[list[tuple[int, Any]]]:
    """A partition whose files each roughly outweigh the files before, so that the merge waits."""
    total, history = draw(st.integers(1, MB)), []
    for growth in draw(st.lists(st.sampled_from([0.35, 0.45, 0.65, 1.1, 3.1]), min_size=1, max_size=7)):
        size = int(total * growth)
        total += size
        history.append([(size, "a")])
    return history


histories = st.lists(commits, min_size=1, max_size=8) | uneven()
rewrites = st.sets(st.integers(0, 7), max_size=6)


def grown(history: list[list[tuple[int, Any]]], rewrites: set[int], *, hours: int = 1) -> GrowingTable:
    """A table with these commits ``hours`` apart, some of them rewrites; the last commit is new."""
    found = GrowingTable()
    for number, added in enumerate(history):
        time_ms = HEAD_MS - (len(history) - 1 - number) * hours * HOUR_MS
        found.commit(added, time_ms=time_ms, is_rewrite=number in rewrites)
    return found


def is_proposed(
    found: GrowingTable, resolved: ResolvedPolicy, last: SeenTable, now_ms: int, clustering: str | None = None
) -> bool:
    answer = assess("ns.t", found.metadata, resolved, now_ms=now_ms, expirable=0, seen=last, clustering=clustering)
    return isinstance(answer, Proposal)


@settings(max_examples=examples(40))
@given(
    histories,
    rewrites,
    policies,
    st.lists(st.tuples(few, st.sets(st.integers(0, 30), max_size=2), st.integers(0, 12)), max_size=6),
    st.integers(1, 100),
    st.integers(0, 100),
)
def test_work_waits_at_most_a_day_and_not_if_enough_files_came(
    history: list[list[tuple[int, Any]]],
    written_anew: set[int],
    resolved: ResolvedPolicy,
    later: list[tuple[list[tuple[int, Any]], set[int], int]],
    looked_hours: int,
    hours: int,
) -> None:
    """Files are added and removed over hours; without commits the bound is the age of the head at the look."""
    found = grown(history, written_anew, hours=3)
    looked_ms = now_ms = HEAD_MS + looked_hours * HOUR_MS
    assume(isinstance(found.plan(resolved.policy, now_ms=looked_ms), Nothing))
    last = idle(found, resolved, looked_ms=looked_ms)
    assert not is_proposed(found, resolved, last, looked_ms), "a pass has just looked"
    arrived, files, bound_ms = Counter[Any](), len(found.files), max(DAY_MS, looked_ms - HEAD_MS)
    for added, gone, pause in later:
        now_ms += pause * HOUR_MS
        found.commit(added, [file for place, file in enumerate(found.files) if place in gone], time_ms=now_ms)
        arrived.update(partition for _, partition in added)
        bound_ms = DAY_MS
        proposed = is_proposed(found, resolved, last, now_ms)
        if now_ms - looked_ms >= bound_ms or max(arrived.values()) >= resolved.policy.min_input_files:
            assert proposed
            return
        if arrived.total() < resolved.policy.min_input_files <= files:
            assert not proposed, "neither enough files nor a day"
    now_ms += hours * HOUR_MS
    assert is_proposed(found, resolved, last, now_ms) or now_ms - looked_ms < bound_ms


@settings(max_examples=examples(25))
@given(histories, rewrites, policies, st.lists(few, max_size=4), st.integers(0, 30))
def test_after_a_complete_pass_no_pass_runs_until_enough_files_came(
    history: list[list[tuple[int, Any]]],
    written_anew: set[int],
    resolved: ResolvedPolicy,
    later: list[list[tuple[int, Any]]],
    hours: int,
) -> None:
    found = grown(history, written_anew, hours=3)
    planned = found.plan(resolved.policy, now_ms=NOW_MS)
    assume(isinstance(planned, CompactionPlan))
    assert isinstance(planned, CompactionPlan)
    gone = set(planned.input_files)
    outputs = [
        (group.total_bytes // group.output_count, group.partition[0])
        for group in planned.groups
        for _ in range(group.output_count)
    ]
    inputs = [file for file in found.files if file.entry.file.file_path in gone]
    last = idle(found, resolved)
    found.commit(outputs, inputs, time_ms=NOW_MS, more={RUN_ID_KEY: "r"}, is_rewrite=True)
    assert not is_proposed(found, resolved, last, NOW_MS)
    arrived = Counter[Any]()
    for number, added in enumerate(later):
        found.commit(added, time_ms=NOW_MS + number)
        arrived.update(partition for _, partition in added)
        if max(arrived.values()) >= resolved.policy.min_input_files:
            assert is_proposed(found, resolved, last, NOW_MS + number)
            return
    assert is_proposed(found, resolved, last, NOW_MS + hours * HOUR_MS) or hours < 24


@settings(max_examples=examples(25))
@given(
    st.lists(st.tuples(commits, st.booleans()), min_size=1, max_size=8),
    st.builds(
        policy,
        operations=st.just("compact"),
        sort_order=st.just("id"),
        target_file_size_mb=st.sampled_from([1, 4, 64]),
        min_input_files=st.integers(2, 5),
    ),
    st.lists(st.tuples(few, st.sets(st.integers(0, 30), max_size=1)), max_size=5),
    st.integers(0, 50),
)
def test_files_to_cluster_wait_no_longer_than_others(
    history: list[tuple[list[tuple[int, Any]], bool]],
    resolved: ResolvedPolicy,
    later: list[tuple[list[tuple[int, Any]], set[int]]],
    hours: int,
) -> None:
    """Some commits are clustered; all files overlap, because they have no bounds."""
    found = grown([added for added, _ in history], set())
    recipe = choose_recipe(found.metadata, resolved.policy)
    assert recipe is not None
    clustered = {
        item["snapshot-id"] for item, (_, is_sorted) in zip(found.snapshots, history, strict=True) if is_sorted
    }
    planned = found.plan(resolved.policy, now_ms=NOW_MS, recipe=recipe, clustered_by=clustered)
    assume(isinstance(planned, Nothing))
    last, arrived = idle(found, resolved), Counter[Any]()
    for number, (added, gone) in enumerate(later):
        removed = [file for position, file in enumerate(found.files) if position in gone]
        found.commit(added, removed, time_ms=NOW_MS + number)
        arrived.update(partition for _, partition in added)
        if max(arrived.values()) >= resolved.policy.min_input_files:
            assert is_proposed(found, resolved, last, NOW_MS + number, recipe.text)
            return
    assert is_proposed(found, resolved, last, NOW_MS + hours * HOUR_MS, recipe.text) or hours < 24
