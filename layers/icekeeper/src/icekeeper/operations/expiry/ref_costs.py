"""Compute the cost of each branch, tag and snapshot: the bytes that only it reaches, and that dropping it would free.

A branch holds every file of every snapshot in its history; a tag holds the files of its only snapshot.  A file that two
refs reach counts for neither of them.  Each manifest is read once for all snapshots that list it.  To save memory, the
snapshots that reach a file are stored as an integer with a bit per snapshot, and paths as hashes.  Sizes come from the
metadata.  A Puffin file counts once with its whole size, however many deletion vectors it has
(rule: what-a-table-needs).
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.operations.expiry.unreferenced import listed_manifests
from icekeeper.storage.paths import normalise

MOST_NAMES = 20
"""How many refs are named for a snapshot; naming all would take refs times snapshots."""

Weights: TypeAlias = Mapping[int, tuple[int, int]]
"""Bit mask of snapshots, in the document's order → number and bytes of the files that exactly these snapshots reach."""


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
    """A snapshot, and the files and bytes that no other snapshot reaches.

    ``refs``: the refs that have it in their history, by name and at most ``MOST_NAMES``.
    """

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
    held_by, depths = _holders(metadata)
    ids, held, shared = list(metadata.snapshots), 0, 0
    only: dict[str, int] = defaultdict(int)
    for place, snapshot_id in enumerate(ids):
        names = held_by.get(snapshot_id, ())
        held |= bool(names) << place
        shared |= (len(names) > 1) << place
        if len(names) == 1:
            only[names[0]] |= 1 << place
    alone: dict[str, list[int]] = {name: [0, 0] for name in metadata.refs}
    without_ref = 0
    for mask, (count, size) in weights.items():
        mask &= held
        if not mask:
            without_ref += size
        elif not mask & shared:
            (name,) = held_by[ids[(mask & -mask).bit_length() - 1]]
            if not mask & ~only[name]:
                alone[name][0] += count
                alone[name][1] += size
    refs = [
        RefCost(
            name,
            ref.type,
            ref.snapshot_id,
            depths.get(ref.snapshot_id, 0) if ref.type == "branch" else int(ref.snapshot_id in metadata.snapshots),
            *alone[name],
        )
        for name, ref in metadata.refs.items()
    ]
    snapshots = [
        SnapshotCost(snapshot_id, snapshot.timestamp_ms, held_by.get(snapshot_id, ()), *weights.get(1 << place, (0, 0)))
        for place, (snapshot_id, snapshot) in enumerate(metadata.snapshots.items())
    ]
    return TableCosts(
        tuple(sorted(refs, key=lambda ref: (-ref.bytes_only_here, ref.name))),
        tuple(sorted(snapshots, key=lambda snapshot: (snapshot.timestamp_ms, snapshot.snapshot_id))),
        without_ref,
        sum(count for count, _ in weights.values()),
        sum(size for _, size in weights.values()),
    )


def _holders(metadata: TableMetadata) -> tuple[Mapping[int, tuple[str, ...]], Mapping[int, int]]:
    """For each snapshot the refs in whose history it is, and the length of its own history; visits each snapshot
    once."""
    parents = {i: s.parent_id for i, s in metadata.snapshots.items() if s.parent_id in metadata.snapshots}
    children = Counter(parents.values())
    children_first = [snapshot_id for snapshot_id in metadata.snapshots if not children[snapshot_id]]
    for snapshot_id in children_first:  # the list grows; snapshots that are their own ancestors never enter it
        parent = parents.get(snapshot_id)
        children[parent] -= 1
        if parent is not None and not children[parent]:
            children_first.append(parent)
    of_type: dict[tuple[int, bool], list[str]] = defaultdict(list)
    for name, ref in sorted(metadata.refs.items()):
        of_type[ref.snapshot_id, ref.type == "branch"].append(name)
    lines: dict[int | None, tuple[str, ...]] = {}
    held_by: dict[int, tuple[str, ...]] = {}
    for snapshot_id in children_first:
        line = _named(lines.pop(snapshot_id, ()), of_type.get((snapshot_id, True), ()))
        held_by[snapshot_id] = _named(line, of_type.get((snapshot_id, False), ()))
        parent = parents.get(snapshot_id)
        lines[parent] = _named(lines.get(parent, ()), line)
    depths: dict[int | None, int] = {}
    for snapshot_id in reversed(children_first):
        depths[snapshot_id] = depths.get(parents.get(snapshot_id), 0) + 1
    return held_by, {i: depths[i] for i in children_first}


def _named(some: tuple[str, ...], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({*some, *more})[:MOST_NAMES]) if more else some


class _Reached:
    """Files by the hash of their normalised path, with size and mask.  A collision only affects a report."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._sizes = array("q")
        self._mask_ids = array("q")
        self._masks: list[int] = []
        self._ids: dict[int, int] = {}

    def add(self, path: str, size: int, mask: int) -> None:
        """Add the snapshots in ``mask`` to those that reach the file; the size of the first call counts."""
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
