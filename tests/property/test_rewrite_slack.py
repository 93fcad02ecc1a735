"""Planners of manifests and position deletes find nothing as long as less came than they said that they lacked."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.metadata.manifest_write import EncodedManifest
from icekeeper.model import (
    EntryStatus,
    FileContent,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    Nothing,
)
from icekeeper.operations.manifests.plan_manifests import NothingToRewrite
from icekeeper.operations.position_deletes.plan_merges import NothingToMerge, plan_position_deletes
from support.examples import examples
from support.growing_table import DAYS, day_manifest, planned
from support.manifests import plan, stored_manifests, targets
from support.plans import HEAD, MB, data_file, manifest, policy, table

DELETES = manifest("m-deletes", content=ManifestContent.DELETES)


@settings(max_examples=examples(40))
@given(stored_manifests(), targets, st.integers(2, 8), st.integers(0, 25), st.sampled_from([None, 0, 1]))
def test_fewer_manifests_than_lack_make_no_group(
    stored: list[EncodedManifest], target: int, least: int, known: int, spec_id: int | None
) -> None:
    stored = [one for one in stored if spec_id in (None, one.manifest.partition_spec_id)]
    wanted = policy(min_manifests_to_rewrite=least)
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
            metadata, metadata.snapshots[HEAD], [DELETES], found, list, policy(min_input_files=least)
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
