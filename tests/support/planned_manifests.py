"""Manifests of a table with three specs, drawn or encoded, and the plan for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from icekeeper.commit.snapshot import manifest_header_bytes
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import EncodedManifest, NewSnapshot, encode_manifest
from icekeeper.metadata.single_value import summarise_partitions
from icekeeper.model import (
    DataFile,
    EntryStatus,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionFieldSummary,
    PartitionValue,
)
from icekeeper.operations.manifests.plan_manifests import ManifestPlan, plan_manifests
from icekeeper.policy import Policy
from support.manifests import entries_of
from support.plans import HEAD, HEAD_SEQUENCE, data_file, table
from support.uuids import ORDERS, uuid_values

FIELDS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "x", "required": False, "type": "double"},
    {"id": 3, "name": "region", "required": False, "type": "string"},
    {"id": 4, "name": "key", "required": False, "type": "uuid"},
]


def part(field_id: int, source: int, name: str) -> dict[str, object]:
    return {"field-id": field_id, "source-id": source, "name": name, "transform": "identity"}


MORE: dict[str, Any] = {
    "schemas": [{"type": "struct", "schema-id": 0, "fields": FIELDS}],
    "partition-specs": [
        {"spec-id": 0, "fields": [part(1000, 3, "region"), part(1001, 2, "x")]},
        {"spec-id": 1, "fields": []},
        {"spec-id": 2, "fields": [part(1000, 3, "region"), part(1002, 4, "key")]},
    ],
}
TABLE = table(**MORE)
KINDS = [(spec_id, content) for spec_id in TABLE.specs for content in ManifestContent]
HEADERS = {kind: manifest_header_bytes(TABLE, *kind) for kind in KINDS}
HEADER = HEADERS[0, ManifestContent.DATA]
regions = st.sampled_from([None, "", "eu", "us", "é"])
numbers = st.sampled_from([None, math.nan, -0.0, 0.0, 1.5, -math.inf])
keys = st.none() | uuid_values
partitions = {0: st.tuples(regions, numbers), 1: st.just(()), 2: st.tuples(regions, keys)}
statuses = st.sampled_from([EntryStatus.ADDED, EntryStatus.EXISTING, EntryStatus.EXISTING, EntryStatus.DELETED])


def encoded(
    spec_id: int,
    entries: Sequence[ManifestEntry],
    path: str,
    metadata: TableMetadata = TABLE,
    content: ManifestContent = ManifestContent.DATA,
) -> EncodedManifest:
    return encode_manifest(
        metadata,
        spec_id=spec_id,
        content=content,
        entries=entries,
        path=path,
        snapshot=NewSnapshot(HEAD, HEAD_SEQUENCE),
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
        spec_id, is_data = draw(st.sampled_from([0, 0, 1, 2, 2])), draw(st.sampled_from([True, True, False]))
        entries = []
        for i in range(draw(st.sampled_from([1, 1, 2, 5, 20]))):
            partition = draw(partitions[spec_id])
            file = described(f"s3://b/t/data/{number:03}-{i:03}.parquet", partition, draw(st.booleans()))
            file = replace(file, content=FileContent.DATA if is_data else FileContent.POSITION_DELETES)
            entries.append(ManifestEntry(draw(statuses), number + 1, number + 1, number + 1, file))
        content = ManifestContent.DATA if is_data else ManifestContent.DELETES
        made = encoded(spec_id, entries, f"m{number}", content=content)
        if spec_id == 2 and draw(st.booleans()):
            made = replace(made, manifest=as_another_writer(made.manifest, entries, draw(st.sampled_from(ORDERS))))
        found.append(made)
    return found


def as_another_writer(
    manifest: ManifestFile, entries: Sequence[ManifestEntry], order: Callable[[bytes], Any]
) -> ManifestFile:
    """With bounds of uuids that hold in one order only."""
    regions = summarise_partitions(["string"], [entry.file.partition[:1] for entry in entries])
    found = [key for entry in entries if isinstance(key := entry.file.partition[1], bytes)]
    ends = [choose(found, key=order, default=None) for choose in (min, max)]
    keys = PartitionFieldSummary(len(found) < len(entries), False, *ends)
    return replace(manifest, partitions=(*(regions or ()), keys))


def plan(stored: Sequence[EncodedManifest], chosen: Policy, target: int) -> ManifestPlan | Nothing:
    return plan_listed([m.manifest for m in stored], chosen, target)


def plan_listed(manifests: Sequence[ManifestFile], chosen: Policy, target: int) -> ManifestPlan | Nothing:
    return plan_manifests(TABLE, TABLE.snapshots[HEAD], manifests, chosen, target_bytes=target, header_bytes=HEADERS)


def live(stored: Sequence[EncodedManifest]) -> Counter[str]:
    """Live entries as a multiset, everything but ADDED or EXISTING; by their text, in which NaN equals NaN."""
    return Counter(
        repr((m.partition_spec_id, m.content, e.snapshot_id, e.sequence_number, e.file_sequence_number, e.file))
        for m, e in entries_of(TABLE, stored)
        if e.is_live
    )


targets = st.one_of(st.integers(HEADER + 1, HEADER + 3000), st.sampled_from([1, HEADER, 8 * 1024 * 1024]))
lanes = st.sampled_from([None, 1, 2000])


LARGE = 8 * 1024 * 1024
