"""The layout of a table for its page: snapshots and refs on a time line, sizes of files, partitions (pure).

Everything here is bounded, because it is stored for each table of a fleet and shown on one page: the newest snapshots,
the partitions with the most files, a bucket of sizes for each power of two.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import FileContent, LiveEntry, PartitionValue

MOST_SNAPSHOTS = 40
MOST_REFS = 20
MOST_PARTITIONS = 96
_LONGEST_NAME = 100

PartitionText = Callable[[int, tuple[PartitionValue, ...]], str]
"""Spec id and raw partition values → text such as ``day=2026-11-01``."""


def timeline(metadata: TableMetadata) -> dict[str, Any]:
    """The newest snapshots, oldest first, and the refs, newest first.

    ``from_ms`` is the time of the first of these snapshots; ``seconds`` are the times of all of them since then, and
    ``operations`` their operations, a letter each (append, overwrite, replace, delete).  ``refs`` are lists of name,
    type and the time of the snapshot in milliseconds.
    """
    if not metadata.snapshots:
        return {}
    found = metadata.snapshots.values()
    newest = nlargest(MOST_SNAPSHOTS, found, key=lambda one: (one.timestamp_ms, one.sequence_number))[::-1]
    from_ms = newest[0].timestamp_ms
    refs: list[list[Any]] = [
        [name[:_LONGEST_NAME], ref.type, metadata.snapshots[ref.snapshot_id].timestamp_ms]
        for name, ref in metadata.refs.items()
        if ref.snapshot_id in metadata.snapshots
    ]
    return {
        "from_ms": from_ms,
        "seconds": [(one.timestamp_ms - from_ms) // 1000 for one in newest],
        "operations": "".join(_operation(one.raw.get("summary")) for one in newest),
        "refs": sorted(refs, key=lambda ref: (ref[1] != "branch", -ref[2], ref[0]))[:MOST_REFS],
    }


def _operation(summary: object) -> str:
    operation = summary.get("operation") if isinstance(summary, dict) else None
    return operation[0] if operation in ("append", "overwrite", "replace", "delete") else "?"


def layout_facts(entries: Iterable[LiveEntry], partition_text: PartitionText) -> dict[str, Any]:
    """Sizes and partitions of the live data files, and the delete files by partition.

    ``sizes`` are lists of a power of two, and number and bytes of the data files from there to the next power.
    ``partitions`` are lists of text, data files, bytes of these, and delete files: those with the most files, by text;
    ``partition_count`` counts all.  ``delete_sizes``: as ``sizes``, of delete files.
    """
    sizes: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    weight: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    partitions: defaultdict[tuple[int, tuple[PartitionValue, ...]], list[int]] = defaultdict(lambda: [0, 0, 0])
    for manifest, entry in entries:
        file = entry.file
        is_data, size = file.content is FileContent.DATA, file.content_bytes
        power = max(0, size.bit_length() - 1)
        sizes[is_data][power] += 1
        weight[is_data][power] += size
        found = partitions[manifest.partition_spec_id, file.partition]
        if is_data:
            found[0] += 1
            found[1] += size
        else:
            found[2] += 1
    most = sorted(partitions.items(), key=lambda one: -one[1][0] - one[1][2])[:MOST_PARTITIONS]
    return {
        "sizes": _buckets(sizes[True], weight[True]),
        "delete_sizes": _buckets(sizes[False], weight[False]),
        "partitions": sorted([partition_text(*key)[:_LONGEST_NAME], *counts] for key, counts in most),
        "partition_count": len(partitions),
    }


def _buckets(counts: Counter[int], weight: Counter[int]) -> list[Sequence[int]]:
    return [[power, counts[power], weight[power]] for power in sorted(counts)]
