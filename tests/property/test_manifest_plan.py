"""Manifests are merged once, hold the same entries, and are cut along partitions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.metadata.manifest_write import EncodedManifest
from icekeeper.metadata.single_value import uuid_section
from icekeeper.model import (
    EntryStatus,
    Nothing,
)
from icekeeper.operations.manifests.plan_manifests import ManifestPlan
from support.examples import examples
from support.manifests import (
    TABLE,
    encoded_manifests,
    entries_of,
    lane_sizes,
    live,
    plan,
    rewritten,
    stored_manifests,
    targets,
)
from support.plans import policy
from support.values import ORDERS

HERE = LocalEngine(1)


@settings(max_examples=examples(40))  # real encoding takes its time
@given(stored_manifests(), st.integers(2, 8), targets)
def test_a_plan_applied_leaves_nothing_to_plan(stored: list[EncodedManifest], least: int, target: int) -> None:
    wanted = policy(min_manifests_to_rewrite=least)
    planned = plan(stored, wanted, target)
    if isinstance(planned, ManifestPlan):
        after, _ = rewritten(TABLE, stored, planned, target, HERE)
        assert len(after) <= len(stored)
        assert isinstance(plan(after, wanted, target), Nothing)


@settings(max_examples=examples(40))
@given(stored_manifests(), targets, lane_sizes)
def test_entries_are_the_same_multiset_with_everything_they_inherited(
    stored: list[EncodedManifest], target: int, lane_bytes: int | None
) -> None:
    planned = plan(stored, policy(min_manifests_to_rewrite=2), target)
    if isinstance(planned, ManifestPlan):
        after, into = rewritten(TABLE, stored, planned, target, HERE, lane_bytes)
        assert live(after) == live(stored)
        written = [m for m in after if m.manifest in into.written]
        assert {e.status for _, e in entries_of(TABLE, written)} <= {EntryStatus.EXISTING}
        for m in written:
            entries = [e for _, e in entries_of(TABLE, [m])]
            again = encoded_manifests(m.manifest.partition_spec_id, entries, "", content=m.manifest.content).manifest
            # All that a manifest list says is true; who commits, and how large the file is, is known later.
            assert again == replace(
                m.manifest,
                manifest_path="",
                manifest_length=again.manifest_length,
                sequence_number=again.sequence_number,
                added_snapshot_id=again.added_snapshot_id,
            )


@settings(max_examples=examples(40))
@given(stored_manifests(), targets, lane_sizes)
def test_summaries_hold_for_readers_of_either_order(
    stored: list[EncodedManifest], target: int, lane_bytes: int | None
) -> None:
    """Of uuids; and there are always some, for Spark's ``manifests`` table.

    But where a plan could not foresee uuids that hardly exist: at an end of an order, and not told by bounds that hold
    in the other one.
    """
    planned = plan(stored, policy(min_manifests_to_rewrite=2), target)
    if not isinstance(planned, ManifestPlan):
        return
    after, into = rewritten(TABLE, stored, planned, target, HERE, lane_bytes)
    for m in (m for m in after if m.manifest in into.written):
        if m.manifest.partition_spec_id != 2:
            assert m.manifest.partitions is not None
            continue
        found = [entry.file.partition[1] for _, entry in entries_of(TABLE, [m])]
        if m.manifest.partitions is None:
            assert any(isinstance(key, bytes) and uuid_section(key) % 2 for key in found)
            continue
        summary = m.manifest.partitions[1]
        assert summary.contains_null == (None in found)
        for key in found:
            if isinstance(key, bytes):
                assert summary.lower_bound is not None
                assert summary.upper_bound is not None
                for order in ORDERS:
                    assert order(summary.lower_bound) <= order(key) <= order(summary.upper_bound)


@settings(max_examples=examples(40))
@given(stored_manifests(), targets, lane_sizes)
def test_manifests_are_cut_from_entries_in_partition_order(
    stored: list[EncodedManifest], target: int, lane_bytes: int | None
) -> None:
    """One partition lies in neighbouring manifests only, oldest entries first; 0.0 and -0.0 are two."""
    planned = plan(stored, policy(min_manifests_to_rewrite=2), target)
    if not isinstance(planned, ManifestPlan):
        return
    after, into = rewritten(TABLE, stored, planned, target, HERE, lane_bytes)
    for group in planned.groups:
        of_group = [
            m
            for m in after
            if m.manifest in into.written and (m.manifest.partition_spec_id, m.manifest.content) == group.kind
        ]
        entries = [e for _, e in entries_of(TABLE, of_group)]
        order = [repr(e.file.partition) for e in entries]
        runs = [p for i, p in enumerate(order) if i == 0 or order[i - 1] != p]
        assert len(runs) == len(set(runs))
        for partition in set(order):
            ages = [e.sequence_number for e, p in zip(entries, order, strict=True) if p == partition]
            assert ages == sorted(ages, key=lambda s: s or 0)
