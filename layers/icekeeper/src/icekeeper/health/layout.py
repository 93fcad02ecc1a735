"""The layout of a table for its page: snapshots and refs on a time line, sizes of files, partitions (pure).

Everything here is bounded, because it is stored for each table of a fleet and shown on one page: the newest snapshots,
the partitions with the most files, a bucket of sizes for each power of two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileContent, LiveEntry, PartitionValue

MOST_SNAPSHOTS = 40
MOST_REFS = 20
MOST_PARTITIONS = 96
_LONGEST_NAME = 100

_Partition: TypeAlias = tuple[int, tuple[PartitionValue, ...]]
PartitionText: TypeAlias = Callable[[int, tuple[PartitionValue, ...]], str]
"""Spec id and raw partition values → text such as ``day=2026-11-01``."""


def timeline(metadata: TableMetadata) -> dict[str, Any]:
    """The newest snapshots, oldest first, and the refs, newest first.

    ``from_ms`` is the time of the first of these snapshots; ``seconds`` are the times of all of them since then, and
    ``operations`` their operations, a letter each (append, overwrite, replace, delete).  ``refs`` are lists of name,
    type and the time of the snapshot in milliseconds.
    """
    if not metadata.snapshots:
        return {}
    newest = metadata.by_recency[-MOST_SNAPSHOTS:]
    from_ms = newest[0].timestamp_ms
    refs: list[list[Any]] = [
        [name[:_LONGEST_NAME], ref.type, metadata.snapshots[ref.snapshot_id].timestamp_ms]
        for name, ref in metadata.refs.items()
        if ref.snapshot_id in metadata.snapshots
    ]
    return {
        "from_ms": from_ms,
        "seconds": [(snapshot.timestamp_ms - from_ms) // 1000 for snapshot in newest],
        "operations": "".join(_operation(snapshot.raw.get("summary")) for snapshot in newest),
        "refs": sorted(refs, key=lambda ref: (ref[1] != "branch", -ref[2], ref[0]))[:MOST_REFS],
    }


def _operation(summary: object) -> str:
    operation = summary.get("operation") if isinstance(summary, dict) else None
    return operation[0] if operation in ("append", "overwrite", "replace", "delete") else "?"


class LayoutTally:
    """Counts live files by size and partition; small enough to be kept while a pass plans and commits."""

    def __init__(self) -> None:
        self.is_whole = False
        """Whether :meth:`watch` has seen all entries, and few enough."""
        self._files, self._bytes = Counter[int](), Counter[int]()
        self._partitions: defaultdict[_Partition, list[int]] = defaultdict(lambda: [0, 0, 0])

    def add(self, spec_id: int, file: DataFile) -> None:
        """Count a data or delete file."""
        if file.content is FileContent.DATA:
            self._count(spec_id, file.partition, file.file_size_in_bytes, 1)
        else:
            self._partitions[spec_id, file.partition][2] += 1

    def remove(self, spec_id: int, partition: tuple[PartitionValue, ...], size: int) -> None:
        """Remove a data file from the counts."""
        self._count(spec_id, partition, size, -1)

    def _count(self, spec_id: int, partition: tuple[PartitionValue, ...], size: int, number: int) -> None:
        power = max(0, size.bit_length() - 1)
        self._files[power] += number
        self._bytes[power] += number * size
        found = self._partitions[spec_id, partition]
        found[0] += number
        found[1] += number * size

    def watch(self, entries: Iterable[LiveEntry], most: int) -> Iterator[LiveEntry]:
        """Yield the entries, and count each of them while there are at most ``most``."""
        seen = 0
        for live in entries:
            seen += 1
            if seen <= most:
                self.add(live.manifest.partition_spec_id, live.entry.file)
            yield live
        self.is_whole = seen <= most

    def facts(self, partition_text: PartitionText) -> dict[str, Any]:
        """Sizes and partitions of the counted files.

        ``sizes`` are lists of a power of two, and number and bytes of the data files from there to the next power.
        ``partitions`` are lists of text, data files, bytes of these, and delete files: those with the most files, by
        text; ``partition_count`` counts all.
        """
        partitions = [(key, counts) for key, counts in self._partitions.items() if counts[0] or counts[2]]
        most = sorted(partitions, key=lambda partition: -partition[1][0] - partition[1][2])[:MOST_PARTITIONS]
        return {
            "sizes": [[power, count, self._bytes[power]] for power, count in sorted(self._files.items()) if count],
            "partitions": sorted([partition_text(*key)[:_LONGEST_NAME], *counts] for key, counts in most),
            "partition_count": len(partitions),
        }


def layout_facts(entries: Iterable[LiveEntry], partition_text: PartitionText) -> dict[str, Any]:
    """The facts of :meth:`LayoutTally.facts` about these live files."""
    tally = LayoutTally()
    for manifest, entry in entries:
        tally.add(manifest.partition_spec_id, entry.file)
    return tally.facts(partition_text)
