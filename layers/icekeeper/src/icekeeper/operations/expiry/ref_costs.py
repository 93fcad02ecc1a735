"""Computes what each branch, tag and snapshot costs: the bytes that only it holds, and that dropping it would free.

A branch holds every file of every snapshot in its history; a tag holds the files of its one snapshot.  A file that two
refs reach is held by neither alone.  Each manifest is read once for all snapshots that list it.  To save memory, the
snapshots that reach a file are one integer with a bit per snapshot, and paths are kept as hashes.  Sizes come from the
metadata.  A Puffin file counts once with its whole size, however many deletion vectors it has
(rule: puffin-lives-with-its-vectors).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TypeAlias

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.operations.expiry.unreferenced import listed_manifests
from icekeeper.storage.paths import normalise

Weights: TypeAlias = Mapping[int, tuple[int, int]]
"""Bit mask of snapshots, in the document's order → number and bytes of the files that exactly these reach."""


@dataclass(frozen=True, slots=True)
class RefCost:
    """A branch or tag: the snapshots in its history, and the files and bytes that no other ref reaches."""

    name: str
    type: str
    snapshot_id: int
    snapshots: int
    files_only_here: int
    bytes_only_here: int


@dataclass(frozen=True, slots=True)
class SnapshotCost:
    """A snapshot, and the files and bytes that no other snapshot reaches; ``refs`` have it in their history."""

    snapshot_id: int
    timestamp_ms: int
    refs: tuple[str, ...]
    files_only_here: int
    bytes_only_here: int


@dataclass(frozen=True, slots=True)
class TableCosts:
    """Refs, the most expensive first; snapshots, oldest first.  Bytes include metadata files."""

    refs: tuple[RefCost, ...]
    snapshots: tuple[SnapshotCost, ...]
    bytes_without_ref: int
    """Bytes reached only by snapshots that are in no ref's history."""
    files: int
    bytes: int
    """Number and bytes of everything that the table's snapshots reach."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def cost_of_refs(reader: TableReader) -> TableCosts:
    """Compute the costs; reads each manifest list and each manifest of the table once.

    Raises:
        MetadataUnreadable: a manifest list or manifest cannot be read.
    """
    metadata = reader.metadata
    bit_of = {snapshot_id: 1 << place for place, snapshot_id in enumerate(metadata.snapshots)}
    reached = _Reached()
    listed_by: dict[str, int] = {}
    for snapshot, size, manifests in listed_manifests(reader, metadata.snapshots.values()):
        bit = bit_of[snapshot.snapshot_id]
        if snapshot.manifest_list is not None:
            reached.add(snapshot.manifest_list, size, bit)
        for manifest in manifests:
            if manifest.manifest_path not in listed_by:
                reached.add(manifest.manifest_path, manifest.manifest_length, 0)
                listed_by[manifest.manifest_path] = 0
            listed_by[manifest.manifest_path] |= bit
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        size = int(statistics.get("file-size-in-bytes") or 0)
        reached.add(str(statistics["statistics-path"]), size, bit_of.get(int(statistics["snapshot-id"]), 0))
    for path, files in reader.live_files(listed_by):
        mask = listed_by[path]
        reached.add(path, 0, mask)
        for file in files:
            reached.add(file.path, file.size, mask)
    return weigh(metadata, reached.weights())


def weigh(metadata: TableMetadata, weights: Weights) -> TableCosts:
    """Compute the costs from the files' weights; reads nothing."""
    bit_of = {snapshot_id: 1 << place for place, snapshot_id in enumerate(metadata.snapshots)}
    held_by = {
        name: sum(bit_of[snapshot.snapshot_id] for snapshot in metadata.ancestors(ref.snapshot_id))
        if ref.type == "branch"
        else bit_of.get(ref.snapshot_id, 0)
        for name, ref in metadata.refs.items()
    }
    alone: dict[str, list[int]] = {name: [0, 0] for name in held_by}
    without_ref = 0
    for mask, (count, size) in weights.items():
        holders = [name for name, held in held_by.items() if held & mask]
        if len(holders) == 1:
            alone[holders[0]][0] += count
            alone[holders[0]][1] += size
        elif not holders:
            without_ref += size
    refs = [
        RefCost(name, ref.type, ref.snapshot_id, held_by[name].bit_count(), *alone[name])
        for name, ref in metadata.refs.items()
    ]
    snapshots = [
        SnapshotCost(
            snapshot_id,
            metadata.snapshots[snapshot_id].timestamp_ms,
            tuple(sorted(name for name, held in held_by.items() if held & bit)),
            *weights.get(bit, (0, 0)),
        )
        for snapshot_id, bit in bit_of.items()
    ]
    return TableCosts(
        tuple(sorted(refs, key=lambda ref: (-ref.bytes_only_here, ref.name))),
        tuple(sorted(snapshots, key=lambda snapshot: (snapshot.timestamp_ms, snapshot.snapshot_id))),
        without_ref,
        sum(count for count, _ in weights.values()),
        sum(size for _, size in weights.values()),
    )


class _Reached:
    """Files by the hash of their normalised path, with size and mask.  A collision only affects a report."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._sizes = array("q")
        self._mask_ids = array("q")
        self._masks: list[int] = []
        self._ids: dict[int, int] = {}

    def add(self, path: str, size: int, mask: int) -> None:
        """Add the snapshots in ``mask`` to those that reach the file; its size is that of the first call."""
        key = hash(normalise(path))
        place = self._places.setdefault(key, len(self._sizes))
        if place == len(self._sizes):
            self._sizes.append(size)
            self._mask_ids.append(self._id(mask))
            return
        known = self._masks[self._mask_ids[place]]
        if known | mask != known:
            self._mask_ids[place] = self._id(known | mask)

    def weights(self) -> Weights:
        found: dict[int, tuple[int, int]] = {}
        for size, mask_id in zip(self._sizes, self._mask_ids, strict=True):
            count, total = found.get(mask_id, (0, 0))
            found[mask_id] = (count + 1, total + size)
        return {self._masks[mask_id]: weight for mask_id, weight in found.items()}

    def _id(self, mask: int) -> int:
        known = self._ids.setdefault(mask, len(self._masks))
        if known == len(self._masks):
            self._masks.append(mask)
        return known
