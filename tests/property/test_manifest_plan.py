"""Manifests are merged once, hold the same entries, and are cut along partitions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.commit.manifest_size import manifest_header_bytes
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest
from icekeeper.metadata.manifest_write import EncodedManifest, encode_manifest
from icekeeper.model import (
    DataFile,
    EntryStatus,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionValue,
)
from icekeeper.operations.manifests import ManifestPlan, lay_out, plan_manifests
from icekeeper.policy import Policy
from support.plans import HEAD, HEAD_SEQUENCE, data_file, manifest, policy, table

FIELDS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "x", "required": False, "type": "double"},
    {"id": 3, "name": "region", "required": False, "type": "string"},
]


def part(field_id: int, source: int, name: str) -> dict[str, object]:
    return {"field-id": field_id, "source-id": source, "name": name, "transform": "identity"}


MORE: dict[str, Any] = {
    "schemas": [{"type": "struct", "schema-id": 0, "fields": FIELDS}],
    "partition-specs": [
        {"spec-id": 0, "fields": [part(1000, 3, "region"), part(1001, 2, "x")]},
        {"spec-id": 1, "fields": []},
    ],
}
TABLE = table(**MORE)
HEADER = manifest_header_bytes(TABLE)
regions = st.sampled_from([None, "", "eu", "us", "é"])
numbers = st.sampled_from([None, math.nan, -0.0, 0.0, 1.5, -math.inf])
statuses = st.sampled_from([EntryStatus.ADDED, EntryStatus.EXISTING, EntryStatus.EXISTING, EntryStatus.DELETED])


def encoded(
    spec_id: int, entries: Sequence[ManifestEntry], path: str, metadata: TableMetadata = TABLE
) -> EncodedManifest:
    return encode_manifest(
        metadata,
        spec_id=spec_id,
        content=ManifestContent.DATA,
        entries=entries,
        path=path,
        snapshot_id=HEAD,
        sequence_number=HEAD_SEQUENCE,
    )


def described(path: str, partition: tuple[PartitionValue, ...], wide: bool) -> DataFile:
    """A file with bounds, some short and some long, so that manifests compress differently."""
    bound = (path * 8).encode()[:64] if wide else b"b"
    return data_file(
        path, 1000, partition, lower_bounds={3: bound}, upper_bounds={3: bound}, value_counts={1: 10, 3: 10}
    )


@st.composite
def stored_manifests(draw: st.DrawFn) -> list[EncodedManifest]:
    found = []
    for number in range(draw(st.integers(0, 25))):
        spec_id = draw(st.sampled_from([0, 0, 1]))
        entries = []
        for i in range(draw(st.sampled_from([1, 1, 2, 5, 20]))):
            partition = () if spec_id == 1 else (draw(regions), draw(numbers))
            file = described(f"s3://b/t/data/{number:03}-{i:03}.parquet", partition, draw(st.booleans()))
            entries.append(ManifestEntry(draw(statuses), number + 1, number + 1, number + 1, file))
        found.append(encoded(spec_id, entries, f"m{number}"))
    return found


def read(stored: Sequence[EncodedManifest]) -> list[tuple[int, ManifestEntry]]:
    return [
        (m.manifest.partition_spec_id, entry)
        for m in stored
        for entry in decode_manifest(m.data, m.manifest, TABLE.specs[m.manifest.partition_spec_id])
    ]


def plan(manifests: Sequence[ManifestFile], chosen: Policy, target: int) -> ManifestPlan | Nothing:
    return plan_manifests(TABLE.snapshots[HEAD], manifests, chosen, target_bytes=target, header_bytes=HEADER)


def apply(stored: Sequence[EncodedManifest], planned: ManifestPlan) -> list[EncodedManifest]:
    chosen = {m.manifest_path for m in planned.manifests}
    old = [m for m in stored if m.manifest.manifest_path in chosen]
    kept = [m for m in stored if m.manifest.manifest_path not in chosen and m.manifest.may_have_live_files]
    chunks = lay_out(TABLE, planned, read(old))
    written = [
        encoded(spec_id, chunk, f"new-{spec_id}-{i}")
        for spec_id, found in chunks.items()
        for i, chunk in enumerate(found)
    ]
    return [*written, *kept]


def live(stored: Sequence[EncodedManifest]) -> Counter[str]:
    """Live entries as a multiset, everything but ADDED or EXISTING; by their text, in which NaN equals NaN."""
    return Counter(
        repr((spec_id, e.snapshot_id, e.sequence_number, e.file_sequence_number, e.file))
        for spec_id, e in read(stored)
        if e.is_live
    )


targets = st.one_of(st.integers(HEADER + 1, HEADER + 3000), st.sampled_from([1, HEADER, 8 * 1024 * 1024]))


@settings(max_examples=40)  # real encoding takes its time
@given(stored_manifests(), st.integers(2, 8), targets)
def test_a_plan_applied_leaves_nothing_to_plan(stored: list[EncodedManifest], least: int, target: int) -> None:
    chosen = policy(min_manifests_to_rewrite=least)
    planned = plan([m.manifest for m in stored], chosen, target)
    if isinstance(planned, ManifestPlan):
        after = apply(stored, planned)
        assert len(after) < len(stored)
        assert isinstance(plan([m.manifest for m in after], chosen, target), Nothing)


@settings(max_examples=40)
@given(stored_manifests(), targets)
def test_entries_are_the_same_multiset_with_everything_they_inherited(
    stored: list[EncodedManifest], target: int
) -> None:
    planned = plan([m.manifest for m in stored], policy(min_manifests_to_rewrite=2), target)
    if isinstance(planned, ManifestPlan):
        after = apply(stored, planned)
        assert live(after) == live(stored)
        written = [m for m in after if m.manifest.manifest_path.startswith("new-")]
        assert {e.status for _, e in read(written)} <= {EntryStatus.EXISTING}
        for m in written:
            assert m.manifest.existing_files_count == len(read([m]))
            assert m.manifest.min_sequence_number == min(e.sequence_number or 0 for _, e in read([m]))


@settings(max_examples=40)
@given(stored_manifests(), targets)
def test_manifests_are_cut_along_partitions(stored: list[EncodedManifest], target: int) -> None:
    """One partition lies in neighbouring manifests only, oldest entries first; 0.0 and -0.0 are two."""
    planned = plan([m.manifest for m in stored], policy(min_manifests_to_rewrite=2), target)
    if not isinstance(planned, ManifestPlan):
        return
    old = [m for m in stored if m.manifest in planned.manifests]
    for chunks in lay_out(TABLE, planned, read(old)).values():
        order = [repr(e.file.partition) for chunk in chunks for e in chunk]
        runs = [p for i, p in enumerate(order) if i == 0 or order[i - 1] != p]
        assert len(runs) == len(set(runs))
        sequence = [e.sequence_number for chunk in chunks for e in chunk]
        for partition in set(order):
            ages = [s for s, p in zip(sequence, order, strict=True) if p == partition]
            assert ages == sorted(ages, key=lambda s: s or 0)


def reason(manifests: Sequence[ManifestFile] | None, chosen: Policy) -> str:
    planned = plan_manifests(
        None if manifests is None else TABLE.snapshots[HEAD],
        manifests or [],
        chosen,
        target_bytes=8 * 1024 * 1024,
        header_bytes=HEADER,
    )
    assert isinstance(planned, Nothing)
    return planned.reason


def test_every_reason_for_nothing_is_the_seeds_word_for_word() -> None:
    """Seed 000, "Rewrite Manifests", skip conditions; the last sentence is our own."""
    few = [manifest(f"m{i}") for i in range(4)]
    deletes = [manifest(f"d{i}", content=ManifestContent.DELETES) for i in range(9)]
    assert reason(None, policy()) == "no current snapshot"
    assert reason([], policy()) == "only 0 data manifests, below threshold of 5"
    assert reason([*few, *deletes], policy()) == "only 4 data manifests, below threshold of 5"
    assert reason([manifest(f"m{i}", live=0, dead=4) for i in range(5)], policy()) == "no data entries to rewrite"
    full = [manifest(f"m{i}", length=8 * 1024 * 1024) for i in range(6)]
    assert reason(full, policy()) == "6 data manifests are already as few as their specs and sizes allow"


def test_twelve_small_manifests_become_one_and_delete_manifests_stay_out_of_it() -> None:
    """Seed 000, "Rewrite Manifests", before and after."""
    small = [manifest(f"m{i}", live=25) for i in range(12)]
    deletes = [manifest(f"d{i}", content=ManifestContent.DELETES) for i in range(3)]
    planned = plan([*small, *deletes], policy(), 8 * 1024 * 1024)
    assert isinstance(planned, ManifestPlan)
    assert planned.manifests == tuple(small)
    assert planned.outputs == {0: 1}


def test_manifests_without_counts_are_taken_for_live() -> None:
    """Version 1 writers may leave counts out: not knowing never loses an entry."""
    planned = plan([manifest(f"m{i}", live=None, dead=None) for i in range(6)], policy(), 8 * 1024 * 1024)
    assert isinstance(planned, ManifestPlan)
    assert len(planned.manifests) == 6
