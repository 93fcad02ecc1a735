"""What a worker does when manifests are rewritten: sample entries, send entries to lanes, or write a lane.

A *lane* is a range of a group's entries in partition order, which a worker writes into manifests.  Tasks and results
are plain picklable values.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from icekeeper.errors import MaintenanceError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import (
    BLOCK_BYTES,
    EntryCopier,
    ManifestAssembler,
    StoredEntry,
    entry_blocks,
    partition_types,
    stored_entry,
)
from icekeeper.metadata.table_reader import ReadBytes, TableReader
from icekeeper.metadata.types import section_of
from icekeeper.model import ManifestContent, ManifestFile, PartitionValue
from icekeeper.operations.manifests.layout import OrderKey, PartitionOrder, Place, even_cuts, partition_order
from icekeeper.storage.paths import PlannedFile
from icekeeper.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class ManifestsOfTable:
    """A spec and content type of a table; ``document``: the table metadata that is needed to write manifests."""

    document: Mapping[str, Any]
    spec_id: int
    content: ManifestContent
    io_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Read manifests and send every live entry to its lane."""

    kind: ManifestsOfTable
    manifests: tuple[ManifestFile, ...]
    bounds: tuple[OrderKey, ...]
    first_lane: int
    """The number of the group's first lane within the exchange."""


EntryPart: TypeAlias = tuple[tuple[Any, ...], ...] | str
"""Entries for a lane, or the error if a manifest cannot be read.

The entries are stored as columns, first the places and then the fields of the entries, because columns are pickled
faster than objects."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Write the entries of a lane into as few of these manifests as the target size allows."""

    kind: ManifestsOfTable
    outputs: tuple[PlannedFile, ...]
    target_bytes: int
    attempt: int = 0

    def in_attempt(self, attempt: int) -> Lane:
        return replace(self, attempt=attempt)


@dataclass(frozen=True, slots=True)
class LaneResult:
    """The manifests that a lane wrote; ``partitions``: a sample of its partitions, at even distances."""

    written: tuple[ManifestFile, ...] = ()
    partitions: tuple[PartitionOrder, ...] = ()
    error: str | None = None


Value = TypeVar("Value")
Partition: TypeAlias = tuple[PartitionValue, ...]

MAX_PARTITIONS = 1000
"""The most partitions that a lane reports, to measure how many manifests a planner opens."""
_PART_ENTRIES = 2000
_SAMPLED_ENTRIES = 2000
# A manifest has at least this many blocks, so that it can be cut at the end of a partition.
_BLOCKS_PER_MANIFEST = 32
_WITHIN_PARTITION = attrgetter("sequence_number", "file_path")
_MOST_SEEN = 4096


def sample_entries(task: tuple[ManifestsOfTable, ManifestFile]) -> list[OrderKey]:
    """The order keys of sampled entries of a manifest, at even distances.

    Raises:
        MetadataUnreadable: the manifest cannot be read.
    """
    kind, manifest = task
    found = _entries(kind, [manifest], Storage(kind.io_properties).read)
    return evenly([_key(place, entry) for place, entry in found], _SAMPLED_ENTRIES)


def split_entries(task: SplitTask, read: ReadBytes | None = None) -> Iterator[tuple[int, EntryPart]]:
    """Yield every live entry with the number of its lane; an unreadable manifest becomes an error in the first lane.

    ``read``: how the planning process reads manifests; a worker reads them from the store.
    """
    waiting: dict[int, list[tuple[Place, StoredEntry]]] = defaultdict(list)
    lanes: dict[Place, int | None] = {}  # None: a bound divides the partition
    try:
        for place, entry in _entries(task.kind, task.manifests, read or Storage(task.kind.io_properties).read):
            if place not in lanes:
                first, last = (bisect_right(task.bounds, (place, end, "")) for end in (-math.inf, math.inf))
                lanes[place] = task.first_lane + first if first == last else None
            if (lane := lanes[place]) is None:
                lane = task.first_lane + bisect_right(task.bounds, _key(place, entry))
            waiting[lane].append((place, entry))
            if len(waiting[lane]) >= _PART_ENTRIES:
                yield lane, _columns(waiting.pop(lane))
    except MaintenanceError as error:
        yield task.first_lane, str(error)
        return
    for lane, entries in waiting.items():
        yield lane, _columns(entries)


def _columns(entries: Sequence[tuple[Place, StoredEntry]]) -> EntryPart:
    places, stored = zip(*entries, strict=True)
    return (places, *zip(*stored, strict=True))


def write_lane(lane: Lane, parts: Iterator[EntryPart], storage: Storage | None = None) -> LaneResult:
    """Write the entries of a lane into manifests; a failed attempt deletes the manifests that it wrote.

    ``storage``: the storage of the planning process; a worker opens its own.
    """
    found: dict[Place, list[StoredEntry]] = defaultdict(list)
    error: str | None = None
    for part in parts:
        if isinstance(part, str):
            error = error or part
            continue
        places, *fields = part
        for place, entry in zip(places, map(stored_entry, zip(*fields, strict=True)), strict=True):
            found[place].append(entry)
    if error is not None:
        return LaneResult(error=error)
    for entries in found.values():
        entries.sort(key=_WITHIN_PARTITION)
    ordered = sorted(found)
    partitions = evenly([partition for _, partition in ordered], MAX_PARTITIONS)
    sections = [
        [entry for place in run for entry in found[place]]
        for _, run in itertools.groupby(ordered, key=lambda place: place[0])
    ]
    storage = storage or Storage(lane.kind.io_properties)
    begun: list[str] = []
    try:
        return LaneResult(tuple(_write(lane, sections, storage, begun)), tuple(partitions))
    except MaintenanceError as failure:
        storage.delete(begun)
        return LaneResult(error=str(failure))


def _write(
    lane: Lane, sections: Sequence[Sequence[StoredEntry]], storage: Storage, begun: list[str]
) -> Iterator[ManifestFile]:
    metadata = TableMetadata(lane.kind.document)
    assembler = ManifestAssembler(metadata, lane.kind.spec_id, lane.kind.content)
    room = max(1, lane.target_bytes - assembler.header_bytes)
    while len(sections) > len(lane.outputs):  # only with very unusual uuids: the last manifest has no summaries
        sections = [*sections[:-2], [*sections[-2], *sections[-1]]]
    outputs = list(lane.outputs)
    for number, entries in enumerate(sections, start=1):
        most = len(outputs) - (len(sections) - number)  # each later section needs an output
        blocks = entry_blocks(entries, min(BLOCK_BYTES, room // _BLOCKS_PER_MANIFEST))
        cuts = even_cuts([b.size for b in blocks], [b.ends_partition for b in blocks], room, most)
        for start, end in itertools.pairwise([0, *cuts]):
            path = outputs.pop(0).path(lane.attempt)
            encoded = assembler.assemble(blocks[start:end], path)
            begun.append(path)
            storage.write(path, encoded.data)
            yield encoded.manifest


def _entries(
    kind: ManifestsOfTable, manifests: Sequence[ManifestFile], read: ReadBytes
) -> Iterator[tuple[Place, StoredEntry]]:
    metadata = TableMetadata(kind.document)
    copier = EntryCopier(metadata, kind.spec_id)
    places = _Places(partition_types(metadata, kind.spec_id))
    for manifest, data in TableReader(metadata, read).contents(manifests):
        for entry in copier.copy(data, manifest):
            yield places.of(entry.partition), entry


def _key(place: Place, entry: StoredEntry) -> tuple[Place, int, str]:
    return place, entry.sequence_number, entry.file_path


class _Places:
    """The place of each partition, as one object per partition; ``types``: the result types of the spec's fields."""

    def __init__(self, types: Sequence[str]) -> None:
        self._types = types
        self._named: dict[str, Place] = {}  # by repr, because 0.0 and -0.0 are equal but are two partitions
        self._seen: dict[int, tuple[Partition, Place]] = {}

    def of(self, partition: Partition) -> Place:
        # Most entries share the object of their partition, and the id of an object is the fastest key.
        seen = self._seen.get(id(partition))
        if seen is not None:
            return seen[1]
        name = repr(partition)
        place = self._named.get(name)
        if place is None:
            place = self._named[name] = section_of(self._types, partition), partition_order(self._types, partition)
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[id(partition)] = partition, place  # keeps the object alive, so that no other object gets its id
        return place


def evenly(values: Sequence[Value], most: int) -> list[Value]:
    """At most ``most`` of the values, in order, at even distances."""
    step = max(1, -(-len(values) // most))
    return list(values[::step])
