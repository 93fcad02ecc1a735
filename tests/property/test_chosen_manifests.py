"""Which manifests are worth rewriting, and every reason for rewriting none."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from icekeeper.model import (
    ManifestContent,
    ManifestFile,
    Nothing,
    PartitionFieldSummary,
)
from icekeeper.operations.manifests.plan_manifests import ManifestPlan, plan_manifests
from icekeeper.policy import Policy
from support.manifests import HEADERS, LARGE, TABLE, plan_listed
from support.plans import HEAD, manifest, policy


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


def test_every_reason_for_nothing_is_that_of_seaweedfs_word_for_word() -> None:
    """SeaweedFS's worker, skip conditions (rule 121); the last sentence is our own."""
    few = [manifest(f"m{i}") for i in range(4)]
    deletes = [manifest(f"d{i}", content=ManifestContent.DELETES) for i in range(4)]
    assert reason(None, policy()) == "no current snapshot"
    assert reason([], policy()) == "only 0 data manifests, below threshold of 5"
    assert reason([*few, *deletes], policy()) == "only 4 data manifests, below threshold of 5"
    assert reason([manifest(f"m{i}", live=0, dead=4) for i in range(5)], policy()) == "no data entries to rewrite"
    full = [manifest(f"m{i}", spec_id=1, length=8 * 1024 * 1024) for i in range(6)]
    assert reason(full, policy()) == "6 data manifests are already as few as their specs and sizes allow"


def test_twelve_small_manifests_become_one_and_three_delete_manifests_wait() -> None:
    """SeaweedFS's worker, before and after (rule 56); delete manifests have a threshold of their own."""
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


def test_manifests_without_counts_are_taken_for_live() -> None:
    """Version 1 writers may leave counts out: not knowing never loses an entry."""
    planned = plan_listed([manifest(f"m{i}", live=None, dead=None) for i in range(6)], policy(), 8 * 1024 * 1024)
    assert isinstance(planned, ManifestPlan)
    assert len(planned.manifests) == 6


ONE = struct.pack("<d", 1.0)


def spanning(path: str, low: str, high: str, *, length: int = LARGE) -> ManifestFile:
    """A manifest of the regions from ``low`` to ``high``."""
    regions_of = PartitionFieldSummary(False, False, low.encode(), high.encode())
    return replace(
        manifest(path, length=length), partitions=(regions_of, PartitionFieldSummary(False, False, ONE, ONE))
    )


def chosen(manifests: Sequence[ManifestFile], **settings: object) -> set[str]:
    """Paths of what is rewritten."""
    planned = plan_listed(manifests, policy(**settings), LARGE)
    return set() if isinstance(planned, Nothing) else {m.manifest_path for m in planned.manifests}


def test_days_that_are_over_are_left_alone() -> None:
    """Large manifests whose partitions all come before those of every later one; a small one ends the row."""
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
    """Whatever their number; those that hold one partition each are not, nor a few wide ones among many."""
    wide = [spanning(f"w{i}", "a", "z") for i in range(10)]
    assert chosen(wide) == {m.manifest_path for m in wide}
    assert chosen([spanning(f"p{i}", "a", "a") for i in range(10)]) == set()
    narrow = [spanning(f"n{i}", f"a{i:02}", f"b{i:02}") for i in range(10)]
    assert chosen(narrow) == {m.manifest_path for m in narrow}
    apart = [spanning(f"n{i}", f"{i:02}a", f"{i:02}b") for i in range(40)]
    assert chosen(apart) == set()
    assert chosen([*apart, *(spanning(f"w{i}", "00a", "40b") for i in range(3))]) == set()
    assert len(chosen([*apart, *(spanning(f"w{i}", "00a", "40b") for i in range(12))])) == 52
