"""Which manifests to merge, and how their entries are laid out again (pure).

Seed 000, "Rewrite Manifests", with entries in partition order, so that a planner opens few manifests for a partition
predicate.  Convergence: a rewrite is planned only when it saves more than a fifth of a spec's manifests, and its output
is measured as it would be written, because merged entries compress far better than lone ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from icekeeper.metadata.avro_schemas import partition_type
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest
from icekeeper.metadata.single_value import comparable
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile, Nothing
from icekeeper.policy import Policy

__all__ = ["ManifestPlan", "lay_out", "plan_manifests"]

NO_SNAPSHOT = "no current snapshot"
NO_ENTRIES = "no data entries to rewrite"
_LEAST_SAVING = 1.25


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """Data manifests to replace, and how many will hold their entries, per partition spec."""

    manifests: tuple[ManifestFile, ...]
    outputs: Mapping[int, int]
    """An estimate: merged entries often compress into fewer."""
    header_bytes: int
    room: int
    """Bytes of entries that one manifest of the target size holds."""


def plan_manifests(
    snapshot: Snapshot | None,
    manifests: Sequence[ManifestFile],
    policy: Policy,
    *,
    target_bytes: int,
    header_bytes: int,
) -> ManifestPlan | Nothing:
    """Choose the specs whose data manifests are worth merging.

    ``target_bytes`` is the size of a manifest to aim at, ``header_bytes`` what one takes without any entry.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    if len(data) < policy.min_manifests_to_rewrite:
        return Nothing(f"only {len(data)} data manifests, below threshold of {policy.min_manifests_to_rewrite}")
    by_spec: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in data:
        by_spec[manifest.partition_spec_id].append(manifest)
    if not any(m.may_have_live_files for m in data):
        return Nothing(NO_ENTRIES)
    room = max(1, target_bytes - header_bytes)
    outputs = {spec_id: _wanted(found, room, header_bytes) for spec_id, found in by_spec.items()}
    chosen = {spec_id for spec_id, found in by_spec.items() if outputs[spec_id] * _LEAST_SAVING < len(found)}
    if not chosen:
        return Nothing(f"{len(data)} data manifests are already as few as their specs and sizes allow")
    return ManifestPlan(
        manifests=tuple(m for m in data if m.partition_spec_id in chosen),
        outputs={i: outputs[i] for i in sorted(chosen)},
        header_bytes=header_bytes,
        room=room,
    )


def _wanted(manifests: Sequence[ManifestFile], room: int, header_bytes: int) -> int:
    """Manifests that the live entries of one spec need, by their share of the bytes; entries of unknown number are
    all taken for live."""
    live_bytes = 0.0
    for manifest in manifests:
        live = _known(manifest.added_files_count) + _known(manifest.existing_files_count)
        dead = _known(manifest.deleted_files_count)
        share = live / (live + dead) if live + dead else float(manifest.may_have_live_files)
        live_bytes += max(0, manifest.manifest_length - header_bytes) * share
    return max(math.ceil(live_bytes / room), int(any(m.may_have_live_files for m in manifests)))


def _known(count: int | None) -> int:
    return count or 0


def lay_out(
    metadata: TableMetadata, plan: ManifestPlan, entries: Iterable[tuple[int, ManifestEntry]]
) -> dict[int, list[list[ManifestEntry]]]:
    """The live entries, with their spec id, as EXISTING ones in partition order, cut into even manifests per spec.

    Everything an entry inherited is explicit already (ICEBERG-RULES 6).
    """
    by_spec: dict[int, list[ManifestEntry]] = defaultdict(list)
    for spec_id, entry in entries:
        if entry.is_live:
            by_spec[spec_id].append(replace(entry, status=EntryStatus.EXISTING))
    chunks: dict[int, list[list[ManifestEntry]]] = {}
    for spec_id, found in by_spec.items():
        types = [partition_type(metadata.schemas_current_first, f) for f in metadata.specs[spec_id]["fields"]]
        found.sort(key=lambda entry: _partition_order(types, entry))
        chunks[spec_id] = _evenly(found, plan.outputs[spec_id])
        while (fitting := _measured(metadata, spec_id, chunks[spec_id], plan)) * _LEAST_SAVING < len(chunks[spec_id]):
            chunks[spec_id] = _evenly(found, fitting)
    return chunks


def _evenly(entries: Sequence[ManifestEntry], parts: int) -> list[list[ManifestEntry]]:
    size = math.ceil(len(entries) / max(1, parts))
    return [list(entries[i : i + size]) for i in range(0, len(entries), size)]


def _measured(
    metadata: TableMetadata, spec_id: int, chunks: Sequence[Sequence[ManifestEntry]], plan: ManifestPlan
) -> int:
    """How many manifests the entries need, by the size that these chunks really take."""
    if len(chunks) == 1:
        return 1
    encoded = [
        encode_manifest(
            metadata,
            spec_id=spec_id,
            content=ManifestContent.DATA,
            entries=chunk,
            path="",
            snapshot_id=0,
            sequence_number=0,
        )
        for chunk in chunks
    ]
    return _wanted([e.manifest for e in encoded], plan.room, plan.header_bytes)


def _partition_order(types: Sequence[str], entry: ManifestEntry) -> tuple[object, ...]:
    """Nulls first, NaN last, then by value; within a partition by sequence number, so that ages stay together."""
    parts: list[object] = []
    for kind, value in zip(types, entry.file.partition, strict=True):
        if value is None:
            parts.append((0, 0))
        elif value != value:
            parts.append((2, 0))
        else:
            parts.append((1, comparable(kind, value)))
    return (*parts, entry.sequence_number or 0, entry.file.file_path)
