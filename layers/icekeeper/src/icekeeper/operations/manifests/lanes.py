"""What a worker does when manifests are rewritten: reads entries and sends each to its lane, or writes a lane."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

from icekeeper.errors import MaintenanceError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_blocks import BLOCK_BYTES, ManifestAssembler, entry_blocks
from icekeeper.metadata.manifest_copy import EntryCopier, StoredEntry
from icekeeper.metadata.manifest_write import partition_types
from icekeeper.metadata.partition_summaries import section_of
from icekeeper.metadata.table_reader import ReadBytes, TableReader
from icekeeper.model import ManifestFile
from icekeeper.operations.manifests.cuts import OrderKey, Place, even_cuts
from icekeeper.operations.manifests.partition_ranges import partition_order
from icekeeper.operations.manifests.task import EntryPart, Lane, LaneResult, ManifestsOfTable, SampleTask, SplitTask
from icekeeper.storage.storage import Storage

__all__ = ["MAX_PARTITIONS", "evenly", "sample_entries", "split_entries", "write_lane"]

Value = TypeVar("Value")

MAX_PARTITIONS = 1000
"""How many partitions a lane reports at most; by these is measured how many manifests a planner opens."""
# How many entries are sent at once.
_PART_ENTRIES = 2000
_SAMPLED_ENTRIES = 2000
# A manifest has at least so many blocks, so that cuts can fall on the ends of partitions.
_BLOCKS_PER_MANIFEST = 32


def sample_entries(task: SampleTask) -> list[OrderKey]:
    """The order keys of some entries of the manifests, taken at even distances.

    Raises:
        MetadataUnreadable: a manifest cannot be read.
    """
    keys = [key for key, _ in _entries(task.kind, task.manifests, Storage(task.kind.io_properties).read)]
    return evenly(keys, _SAMPLED_ENTRIES)


def split_entries(task: SplitTask, read: ReadBytes | None = None) -> Iterator[tuple[int, EntryPart]]:
    """Every live entry with the number of its lane; a manifest that cannot be read is an error for the first lane.

    ``read`` reads the manifests in the process that planned; a worker reads them from the store.
    """
    waiting: dict[int, list[tuple[OrderKey, StoredEntry]]] = defaultdict(list)
    try:
        for key, entry in _entries(task.kind, task.manifests, read or Storage(task.kind.io_properties).read):
            lane = task.first_lane + bisect_right(task.bounds, key)
            waiting[lane].append((key, entry))
            if len(waiting[lane]) >= _PART_ENTRIES:
                yield lane, EntryPart(tuple(waiting.pop(lane)))
    except MaintenanceError as error:
        yield task.first_lane, EntryPart(error=str(error))
        return
    for lane, entries in waiting.items():
        yield lane, EntryPart(tuple(entries))


def write_lane(lane: Lane, parts: Iterator[EntryPart], storage: Storage | None = None) -> LaneResult:
    """Write the entries of a lane into manifests; an attempt that fails removes what it wrote.

    ``storage`` is the table's in the process that planned; a worker opens its own.
    """
    found: list[tuple[OrderKey, StoredEntry]] = []
    error: str | None = None
    for part in parts:
        error = error or part.error
        found += part.entries
    if error is not None:
        return LaneResult(error=error)
    found.sort(key=lambda entry: entry[0])
    partitions = evenly(list(dict.fromkeys(key[0][1] for key, _ in found)), MAX_PARTITIONS)
    sections = [[e for _, e in run] for _, run in itertools.groupby(found, key=lambda entry: entry[0][0][0])]
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
    while len(sections) > len(lane.outputs):  # uuids that hardly exist: the last manifest goes without summaries
        sections = [*sections[:-2], [*sections[-2], *sections[-1]]]
    outputs = list(lane.outputs)
    for number, entries in enumerate(sections, start=1):
        most = len(outputs) - (len(sections) - number)  # each later section needs one
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
) -> Iterator[tuple[OrderKey, StoredEntry]]:
    metadata = TableMetadata(kind.document)
    types = partition_types(metadata, kind.spec_id)
    copier = EntryCopier(metadata, kind.spec_id)
    places: dict[str, Place] = {}  # by repr: 0.0 and -0.0 are equal, and two partitions
    for manifest, data in TableReader(metadata, read).contents(manifests):
        for entry in copier.copy(data, manifest):
            name = repr(entry.partition)
            place = places.get(name)
            if place is None:
                place = places[name] = section_of(types, entry.partition), partition_order(types, entry.partition)
            yield (place, entry.sequence_number, entry.file_path), entry


def evenly(values: Sequence[Value], most: int) -> list[Value]:
    """At most ``most`` of the values, in order, taken at even distances."""
    step = max(1, -(-len(values) // most))
    return list(values[::step])
