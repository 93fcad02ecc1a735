"""Detection proposes what planners would find, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.detection.assess import TableFindings, assess
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.manifest_write import EncodedManifest
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestContent, ManifestEntry, Nothing
from icekeeper.operations.compaction.plan_groups import Clustering, CompactionPlan, NothingToCompact
from icekeeper.operations.compaction.recipe import choose_recipe
from icekeeper.operations.manifests.plan_manifests import NothingToRewrite
from icekeeper.operations.position_deletes.plan_merges import NothingToMerge, plan_position_deletes
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.state.slack import Slack
from icekeeper.state.store import LastSeen
from support.examples import examples
from support.growing_table import DAYS, GrowingTable, day_manifest, planned
from support.manifests import plan, stored_manifests, targets
from support.plans import HEAD, HEAD_MS, MB, data_file, manifest, table
from support.plans import policy as planner_policy
from support.settings import policy

# Detection proposes whatever compaction would find, and not what a pass has just found to be nothing.

NOW_MS = HEAD_MS + HOUR_MS

partitions = st.sampled_from(["a", "a", "a", "b", None])
# Each many times the one before, so that files of one partition often do not balance one another.
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
    min_data_age_hours=st.sampled_from([0, 0, 2]),
)


@st.composite
def uneven(draw: st.DrawFn) -> list[list[tuple[int, Any]]]:
    """One partition whose files each outweigh those before, more or less, so that merging waits."""
    total, history = draw(st.integers(1, MB)), []
    for growth in draw(st.lists(st.sampled_from([0.35, 0.45, 0.65, 1.1, 3.1]), min_size=1, max_size=7)):
        size = int(total * growth)
        total += size
        history.append([(size, "a")])
    return history


histories = st.lists(commits, min_size=1, max_size=8) | uneven()
rewrites = st.sets(st.integers(0, 7), max_size=6)


def grown(history: list[list[tuple[int, Any]]], rewrites: set[int], *, hours: int = 1) -> GrowingTable:
    """A table with these commits, some of them rewrites, one in so many hours, the last one just now."""
    found = GrowingTable()
    for number, added in enumerate(history):
        time_ms = HEAD_MS - (len(history) - 1 - number) * hours * HOUR_MS
        found.commit(added, time_ms=time_ms, is_rewrite=number in rewrites)
    return found


def seen(found: GrowingTable, resolved: ResolvedPolicy, slack: Slack | None, *, idle: bool = True) -> LastSeen:
    known = {} if slack is None else {Operation.COMPACT.value: slack}
    head = found.head.snapshot_id
    return LastSeen(snapshot_id=head, fingerprint=resolved.fingerprint(), finished_ms=NOW_MS, idle=idle, slack=known)


def seen_idle(found: GrowingTable, resolved: ResolvedPolicy, clustering: Clustering | None = None) -> LastSeen:
    """What a pass remembers that finds nothing to do now; an example where one finds something is given up."""
    planned = found.plan(resolved.policy, now_ms=NOW_MS, clustering=clustering)
    assume(isinstance(planned, NothingToCompact))
    assert isinstance(planned, NothingToCompact)
    return seen(found, resolved, planned.slack)


def detected(found: GrowingTable, resolved: ResolvedPolicy, last: LastSeen, now_ms: int = NOW_MS) -> Proposal | Skip:
    findings = TableFindings(now_ms=now_ms, expirable=0, last_seen=last)
    return assess("ns.t", found.metadata, resolved, findings)


def check(found: GrowingTable, resolved: ResolvedPolicy, last: LastSeen, now_ms: int) -> bool:
    """Whether compaction has work; then detection must propose it."""
    has_work = isinstance(found.plan(resolved.policy, now_ms=now_ms), CompactionPlan)
    told = detected(found, resolved, last, now_ms)
    assert isinstance(told, Proposal) or not has_work, told
    return has_work


@settings(max_examples=examples(80))
@given(histories, rewrites, policies, st.lists(few, max_size=6), st.integers(0, 30))
def test_what_an_idle_pass_left_and_what_came_since_miss_no_work(
    history: list[list[tuple[int, Any]]],
    written_anew: set[int],
    resolved: ResolvedPolicy,
    later: list[list[tuple[int, Any]]],
    hours: int,
) -> None:
    found = grown(history, written_anew, hours=3)
    last = seen_idle(found, resolved)
    assert isinstance(detected(found, resolved, last), Skip), "nothing came"
    lacking = fewest_lacking(found, resolved)
    for number, added in enumerate(later):
        found.commit(added, time_ms=NOW_MS + number)
        if check(found, resolved, last, NOW_MS + number):
            return
        lacking -= len(added)
        if lacking > 0:
            assert isinstance(detected(found, resolved, last, NOW_MS + number), Skip), "too few came for any partition"
    now_ms = NOW_MS + hours * HOUR_MS
    check(found, resolved, last, now_ms)
    again = found.plan(resolved.policy, now_ms=now_ms)
    if isinstance(again, NothingToCompact):
        last = replace(seen(found, resolved, again.slack), finished_ms=now_ms)
        assert isinstance(detected(found, resolved, last, now_ms), Skip), "a pass has just looked"


@settings(max_examples=examples(50))
@given(
    histories,
    rewrites,
    policies,
    st.lists(st.tuples(few, st.sets(st.integers(0, 30), max_size=3)), max_size=4),
)
def test_files_that_leave_the_table_hide_no_work(
    history: list[list[tuple[int, Any]]],
    written_anew: set[int],
    resolved: ResolvedPolicy,
    later: list[tuple[list[tuple[int, Any]], set[int]]],
) -> None:
    found = grown(history, written_anew)
    last = seen_idle(found, resolved)
    for number, (added, gone) in enumerate(later):
        removed = [file for position, file in enumerate(found.files) if position in gone]
        found.commit(added, removed, time_ms=NOW_MS + number)
        if check(found, resolved, last, NOW_MS + number):
            return


@settings(max_examples=examples(50))
@given(histories, rewrites, policies, st.lists(few, max_size=4), st.integers(0, 30))
def test_a_pass_that_did_its_work_leaves_slack_too(
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
    slack = planned.slack
    assert slack is not None
    gone = set(planned.input_files)
    outputs = [
        (group.total_bytes // group.output_count, group.partition[0])
        for group in planned.groups
        for _ in range(group.output_count)
    ]
    inputs = [file for file in found.files if file.entry.file.file_path in gone]
    last = seen(found, resolved, replace(slack, run_id="r"), idle=False)
    found.commit(outputs, inputs, time_ms=NOW_MS, more={RUN_ID_KEY: "r"}, is_rewrite=True)
    assume(isinstance(found.plan(resolved.policy, now_ms=NOW_MS), Nothing))
    assert isinstance(detected(found, resolved, last), Skip)
    for number, added in enumerate(later):
        found.commit(added, time_ms=NOW_MS + number)
        if check(found, resolved, last, NOW_MS + number):
            return
    check(found, resolved, last, NOW_MS + hours * HOUR_MS)


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(commits, st.booleans()), min_size=1, max_size=8),
    st.builds(
        policy,
        operations=st.just("compact"),
        sort_order=st.just("id"),
        target_file_size_mb=st.sampled_from([1, 4, 64]),
        min_input_files=st.integers(2, 5),
        max_clustering_depth=st.integers(1, 3),
        clustering_tier_factor=st.integers(2, 4),
    ),
    st.lists(st.tuples(few, st.sets(st.integers(0, 30), max_size=1)), max_size=5),
)
def test_files_to_cluster_are_not_missed(
    history: list[tuple[list[tuple[int, Any]], bool]],
    resolved: ResolvedPolicy,
    later: list[tuple[list[tuple[int, Any]], set[int]]],
) -> None:
    """Some commits came clustered; all files lie over one another, because they have no bounds."""
    found = grown([added for added, _ in history], set())
    recipe = choose_recipe(found.metadata, resolved.policy)
    assert recipe is not None
    clustered = {one["snapshot-id"] for one, (_, is_sorted) in zip(found.snapshots, history, strict=True) if is_sorted}
    clustering = Clustering(recipe, frozenset(clustered))
    last = seen_idle(found, resolved, clustering)
    for number, (added, gone) in enumerate(later):
        removed = [file for position, file in enumerate(found.files) if position in gone]
        found.commit(added, removed, time_ms=NOW_MS + number)
        if isinstance(found.plan(resolved.policy, now_ms=NOW_MS, clustering=clustering), CompactionPlan):
            findings = TableFindings(now_ms=NOW_MS + number, expirable=0, last_seen=last, clustering=recipe.text)
            assert isinstance(assess("ns.t", found.metadata, resolved, findings), Proposal)
            return


def fewest_lacking(found: GrowingTable, resolved: ResolvedPolicy) -> int:
    """How many files every partition lacks before it has ``min_input_files`` small ones; 0 where age decides too."""
    if resolved.policy.min_data_age_ms:
        return 0
    small = (one for one in found.files if one.entry.file.file_size_in_bytes < resolved.policy.min_file_size_bytes)
    counts = Counter(one.entry.file.partition for one in small)
    return resolved.policy.min_input_files - max(counts.values(), default=0)


# Planners of manifests and position deletes find nothing as long as less came than they said that they lacked.

DELETES = manifest("m-deletes", content=ManifestContent.DELETES)


@settings(max_examples=examples(40))
@given(stored_manifests(), targets, st.integers(2, 8), st.integers(0, 25), st.sampled_from([None, 0, 1]))
def test_fewer_manifests_than_lack_make_no_group(
    stored: list[EncodedManifest], target: int, least: int, known: int, spec_id: int | None
) -> None:
    stored = [one for one in stored if spec_id in (None, one.manifest.partition_spec_id)]
    wanted = planner_policy(min_manifests_to_rewrite=least)
    before = plan(stored[:known], wanted, target)
    if not isinstance(before, NothingToRewrite):
        return
    lacking = before.slack.manifests
    assert lacking is not None
    for number in range(known, min(len(stored), known + lacking - 1) + 1):
        assert isinstance(plan(stored[:number], wanted, target), Nothing)


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.sampled_from([0.1, 4, 7, 8, 8])), max_size=24),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.sampled_from([0.1, 8])), max_size=8),
    st.integers(2, 8),
    st.booleans(),
)
def test_late_manifests_unsettle_no_more_than_is_allowed_for(
    before: list[tuple[int, int, float]], later: list[tuple[int, int, float]], least: int, sort: bool
) -> None:
    before = sorted(before) if sort else before
    listed = [day_manifest(n, low, low + width, size) for n, (low, width, size) in enumerate([*before, *later])]
    found = planned(DAYS, listed[: len(before)], least)
    if not isinstance(found, NothingToRewrite):
        return
    lacking = found.slack.manifests
    assert lacking is not None
    for number in range(len(before), min(len(listed), len(before) + lacking - 1) + 1):
        assert isinstance(planned(DAYS, listed[:number], least), Nothing)


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["a", "b"])), max_size=12),
    st.integers(0, 12),
    st.integers(2, 4),
    st.sampled_from([2, 3]),
)
def test_fewer_delete_files_than_lack_make_no_group(
    drawn: list[tuple[int, str]], known: int, least: int, version: int
) -> None:
    deletes = [_delete(f"d{number:02}", size * MB, region, number) for number, (size, region) in enumerate(drawn)]
    metadata = table(version)

    def merged(found: list[LiveEntry]) -> object:
        return plan_position_deletes(
            metadata, metadata.snapshots[HEAD], [DELETES], found, list, planner_policy(min_input_files=least)
        )

    before = merged(deletes[:known])
    if not isinstance(before, NothingToMerge):
        return
    lacking = before.slack.delete_files
    assert lacking is not None
    for number in range(known, min(len(deletes), known + lacking - 1) + 1):
        assert isinstance(merged(deletes[:number]), Nothing)


def _delete(path: str, size: int, region: str, number: int) -> LiveEntry:
    file = replace(data_file(path, size, [region]), content=FileContent.POSITION_DELETES)
    return LiveEntry(DELETES, ManifestEntry(EntryStatus.EXISTING, HEAD, number, number, file))
