"""Manifests that are merged, and the cuts between new manifests."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.metadata.manifest_write import EncodedManifest
from icekeeper.metadata.types import uuid_section
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile, Nothing, PartitionFieldSummary
from icekeeper.operations.manifests.layout import Place, even_cuts, lane_bounds
from icekeeper.operations.manifests.plan_manifests import ManifestPlan, plan_manifests
from icekeeper.policy import Policy
from support.examples import examples
from support.manifests import (
    HEADERS,
    LARGE,
    TABLE,
    encoded_manifests,
    entries_of,
    lane_sizes,
    live,
    plan,
    plan_listed,
    rewritten,
    stored_manifests,
    targets,
)
from support.plans import HEAD, manifest, policy
from support.values import ORDERS

# Manifests are merged once, keep their entries, and are cut along partitions.

HERE = LocalEngine(1)


@settings(max_examples=examples(25))  # real encoding is slow
@given(stored_manifests(), st.integers(2, 8), targets)
def test_an_applied_plan_leaves_nothing_to_plan(stored: list[EncodedManifest], least: int, target: int) -> None:
    wanted = policy(min_manifests_to_rewrite=least)
    planned = plan(stored, wanted, target)
    if isinstance(planned, ManifestPlan):
        after, _ = rewritten(TABLE, stored, planned, HERE)
        assert len(after) <= len(stored)
        assert isinstance(plan(after, wanted, target), Nothing)


@settings(max_examples=examples(30))
@given(stored_manifests(), targets, lane_sizes)
def test_rewritten_manifests_hold_the_same_entries_in_partition_order_with_true_summaries(
    stored: list[EncodedManifest], target: int, lane_bytes: int | None
) -> None:
    planned = plan(stored, policy(min_manifests_to_rewrite=2), target)
    if not isinstance(planned, ManifestPlan):
        return
    after, into = rewritten(TABLE, stored, planned, HERE, lane_bytes)
    written = [m for m in after if m.manifest in into.written]
    assert live(after) == live(stored)
    assert {e.status for _, e in entries_of(TABLE, written)} <= {EntryStatus.EXISTING}
    for m in written:
        entries = [e for _, e in entries_of(TABLE, [m])]
        list_entry_is_true(m, entries)
        summaries_hold(m, entries)
    for group in planned.groups:
        of_group = [m for m in written if (m.manifest.partition_spec_id, m.manifest.content) == group.kind]
        in_partition_order([e for _, e in entries_of(TABLE, of_group)])


def list_entry_is_true(m: EncodedManifest, entries: Sequence[ManifestEntry]) -> None:
    """The manifest list entry has the true values, except for those of the commit and the file size."""
    again = encoded_manifests(m.manifest.partition_spec_id, entries, "", content=m.manifest.content).manifest
    assert again == replace(
        m.manifest,
        manifest_path="",
        manifest_length=again.manifest_length,
        sequence_number=again.sequence_number,
        added_snapshot_id=again.added_snapshot_id,
    )


def summaries_hold(m: EncodedManifest, entries: Sequence[ManifestEntry]) -> None:
    """They hold for readers of either order of uuids, and exist, for Spark's ``manifests`` table.

    A plan cannot foresee rare uuids at an end of an order, outside bounds that hold in the other order.
    """
    if m.manifest.partition_spec_id != 2:
        assert m.manifest.partitions is not None
        return
    keys = [entry.file.partition[1] for entry in entries]
    if m.manifest.partitions is None:
        assert any(isinstance(key, bytes) and uuid_section(key) % 2 for key in keys)
        return
    summary = m.manifest.partitions[1]
    assert summary.contains_null == (None in keys)
    for key in keys:
        if isinstance(key, bytes):
            assert summary.lower_bound is not None
            assert summary.upper_bound is not None
            for order in ORDERS:
                assert order(summary.lower_bound) <= order(key) <= order(summary.upper_bound)


def in_partition_order(entries: Sequence[ManifestEntry]) -> None:
    """A partition is only in neighbouring manifests, oldest entries first; 0.0 and -0.0 are separate partitions."""
    order = [repr(e.file.partition) for e in entries]
    runs = [p for i, p in enumerate(order) if i == 0 or order[i - 1] != p]
    assert len(runs) == len(set(runs))
    for partition in set(order):
        ages = [e.sequence_number or 0 for e, p in zip(entries, order, strict=True) if p == partition]
        assert ages == sorted(ages)


# Manifests that a plan rewrites, and every reason for an empty plan.


def reason(manifests: Sequence[ManifestFile] | None, chosen: Policy) -> str:
    planned = plan_manifests(
        TABLE,
        None if manifests is None else TABLE.snapshots[HEAD],
        manifests or [],
        chosen,
        target_bytes=8 * 1024 * 1024,
        header_bytes=HEADERS,
    )
    assert isinstance(planned, Nothing)
    return planned.reason


def test_every_reason_for_an_empty_plan_has_the_words_of_seaweedfs() -> None:
    """These are the skip conditions of SeaweedFS's worker; only the last sentence is Icekeeper's."""
    few = [manifest(f"m{i}") for i in range(4)]
    deletes = [manifest(f"d{i}", content=ManifestContent.DELETES) for i in range(4)]
    assert reason(None, policy()) == "no current snapshot"
    assert reason([], policy()) == "only 0 data manifests, below threshold of 5"
    assert reason([*few, *deletes], policy()) == "only 4 data manifests, below threshold of 5"
    assert reason([manifest(f"m{i}", live=0, dead=4) for i in range(5)], policy()) == "no data entries to rewrite"
    full = [manifest(f"m{i}", spec_id=1, length=8 * 1024 * 1024) for i in range(6)]
    assert reason(full, policy()) == "6 data manifests are already as few as their specs and sizes allow"


def test_twelve_small_manifests_become_one_and_three_delete_manifests_are_kept() -> None:
    """SeaweedFS's worker gives the same result; delete manifests have a separate threshold."""
    small = [manifest(f"m{i}", live=25) for i in range(12)]
    deletes = [manifest(f"d{i}", content=ManifestContent.DELETES) for i in range(5)]
    planned = plan_listed([*small, *deletes[:3]], policy(), 8 * 1024 * 1024)
    assert isinstance(planned, ManifestPlan)
    assert planned.manifests == tuple(small)
    assert planned.count(ManifestContent.DATA) == (12, 1)
    planned = plan_listed([*small[:4], *deletes], policy(), 8 * 1024 * 1024)
    assert isinstance(planned, ManifestPlan)
    assert planned.manifests == tuple(deletes)
    planned = plan_listed([*small, *deletes], policy(), 8 * 1024 * 1024)
    assert isinstance(planned, ManifestPlan)
    assert [planned.count(content) for content in ManifestContent] == [(12, 1), (5, 1)]


def test_manifests_without_counts_count_as_live() -> None:
    """Version 1 writers may omit counts; an unknown count never loses an entry."""
    planned = plan_listed([manifest(f"m{i}", live=None, dead=None) for i in range(6)], policy(), 8 * 1024 * 1024)
    assert isinstance(planned, ManifestPlan)
    assert len(planned.manifests) == 6


def test_a_manifest_without_live_entries_needs_no_manifest_of_its_section() -> None:
    """Otherwise a plan leaves a group that the next plan rewrites, when the dead manifest is gone."""

    def with_uuid(path: str, first_byte: int, *, live: int = 1, dead: int = 0) -> ManifestFile:
        bound = bytes([first_byte, *bytes(15)])
        summaries = PartitionFieldSummary(True, False, None, None), PartitionFieldSummary(False, False, bound, bound)
        return replace(
            manifest(path, spec_id=2, length=HEADERS[2, ManifestContent.DATA] + 100, live=live, dead=dead),
            partitions=summaries,
        )

    small = [with_uuid(f"m{i}", 0) for i in range(4)]
    target = HEADERS[2, ManifestContent.DATA] + 140  # three manifests hold the four
    for stored in (small, [*small, with_uuid("dead", 0x80, live=0, dead=1)]):
        planned = plan_listed(stored, policy(min_manifests_to_rewrite=2), target)
        assert isinstance(planned, ManifestPlan)
        assert planned.count(ManifestContent.DATA) == (len(stored), 3)


ONE = struct.pack("<d", 1.0)


def spanning(path: str, low: str, high: str, *, length: int = LARGE) -> ManifestFile:
    """A manifest of the regions from ``low`` to ``high``."""
    regions_of = PartitionFieldSummary(False, False, low.encode(), high.encode())
    return replace(
        manifest(path, length=length), partitions=(regions_of, PartitionFieldSummary(False, False, ONE, ONE))
    )


def chosen(manifests: Sequence[ManifestFile], **settings: object) -> set[str]:
    """The paths of the manifests that the plan rewrites."""
    planned = plan_listed(manifests, policy(**settings), LARGE)
    return set() if isinstance(planned, Nothing) else {m.manifest_path for m in planned.manifests}


def test_large_manifests_of_past_days_are_not_rewritten() -> None:
    """They are kept while their partitions precede those of all later manifests; the first small manifest ends this."""
    days = [spanning("1", "a", "a"), spanning("2", "b", "c"), spanning("3", "d", "d")]
    new = [spanning(f"n{i}", "e", "e", length=5000) for i in range(6)]
    paths = {m.manifest_path for m in new}
    assert chosen([*new, *days]) == paths
    assert chosen([*new[:4], *days]) == set()
    assert chosen([*new, *days[:1], spanning("2", "b", "e"), *days[2:]]) == paths | {"2", "3"}
    assert chosen([*new, *days[:1], spanning("2", "b", "c", length=5000), *days[2:]]) == paths | {"2", "3"}
    unpartitioned = [replace(manifest(f"u{i}", spec_id=1, length=LARGE), min_sequence_number=i) for i in range(4)]
    small = [replace(manifest(f"s{i}", spec_id=1, length=5000), min_sequence_number=9 + i) for i in range(6)]
    assert chosen([*small, *unpartitioned]) == {m.manifest_path for m in small}


def test_manifests_that_all_span_the_table_are_clustered() -> None:
    """Any number is; manifests of a single partition each are not, nor a few wide manifests among many."""
    wide = [spanning(f"w{i}", "a", "z") for i in range(10)]
    assert chosen(wide) == {m.manifest_path for m in wide}
    assert chosen([spanning(f"p{i}", "a", "a") for i in range(10)]) == set()
    narrow = [spanning(f"n{i}", f"a{i:02}", f"b{i:02}") for i in range(10)]
    assert chosen(narrow) == {m.manifest_path for m in narrow}
    apart = [spanning(f"n{i}", f"{i:02}a", f"{i:02}b") for i in range(40)]
    assert chosen(apart) == set()
    assert chosen([*apart, *(spanning(f"w{i}", "00a", "40b") for i in range(3))]) == set()
    assert len(chosen([*apart, *(spanning(f"w{i}", "00a", "40b") for i in range(12))])) == 52


def test_a_manifest_without_live_entries_does_not_make_others_look_clustered() -> None:
    """Planners do not open it, and the next commit drops it."""
    live = [*(spanning(f"w{i}", "a", "x") for i in range(5)), spanning("apart", "y", "yy")]
    dead = replace(spanning("dead", "z", "zz"), added_files_count=0, deleted_files_count=1)
    assert chosen(live) == {m.manifest_path for m in live}
    assert chosen([*live, dead]) == {m.manifest_path for m in [*live, dead]}


# Cuts of merged manifests and bounds of lanes are even, and move to the end of a partition where possible.


@settings(max_examples=examples(120))
@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 400),
    st.integers(1, 60),
)
def test_cuts_are_even_and_prefer_the_ends_of_partitions(blocks: list[tuple[int, bool]], room: int, most: int) -> None:
    """There are as few as fit; each is at most an eighth of a manifest, or a block, away from an even cut."""
    sizes, ends = [size for size, _ in blocks], [end for _, end in blocks]
    cuts = even_cuts(sizes, ends, room, most)
    assert cuts == sorted(set(cuts))
    assert cuts[-1] == len(sizes)
    assert len(cuts) == min(len(sizes), most, max(1, math.ceil(sum(sizes) / room)))
    even = sum(sizes) / len(cuts)
    totals = [sum(sizes[:cut]) for cut in cuts]
    if max(sizes) <= even / 8:  # rare; exact cases are below
        for number, total in enumerate(totals, start=1):
            assert abs(total - number * even) <= even / 8 + 1e-6
        for number, cut in enumerate(cuts[:-1], start=1):
            near = [i for i in range(1, len(sizes)) if ends[i - 1] and abs(sum(sizes[:i]) - number * even) <= even / 8]
            assert ends[cut - 1] or not near


def test_lanes_begin_with_partitions_unless_a_partition_fills_several() -> None:
    def key(partition: int, number: int) -> tuple[Place, int, str]:
        return ((), ((1, partition),)), number, f"{partition}-{number}"

    assert lane_bounds([key(p, n) for p in range(8) for n in range(5)], 4) == [(((), ((1, p),)),) for p in (2, 4, 6)]
    assert lane_bounds([key(0, n) for n in range(8)], 4) == [key(0, n) for n in (2, 4, 6)]
    assert lane_bounds([key(0, 0)], 4) == [key(0, 0)]


def test_a_cut_moves_to_the_nearest_end_of_a_partition() -> None:
    """It moves by at most an eighth of a manifest; otherwise the manifests are even."""

    def cut_of(*ends: int) -> list[int]:
        return even_cuts([10] * 20, [i + 1 in ends for i in range(20)], 100, 99)

    assert cut_of() == [10, 20]
    assert cut_of(9) == [9, 20]
    assert cut_of(11) == [11, 20]
    assert cut_of(8, 12) == [10, 20]
    assert cut_of(9, 10) == [10, 20]
