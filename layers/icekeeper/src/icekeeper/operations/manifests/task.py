"""What workers are told and tell when manifests are rewritten.  Plain picklable values.

The entries of a group are cut into *lanes* by partition order; each lane is put into manifests by one worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.metadata.manifest_copy import StoredEntry
from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.operations.manifests.cuts import OrderKey
from icekeeper.operations.manifests.partition_ranges import PartitionOrder
from icekeeper.storage.attempt_names import PlannedFile

__all__ = ["EntryPart", "KindOfTable", "Lane", "LaneResult", "SampleTask", "SplitTask"]


@dataclass(frozen=True, slots=True)
class KindOfTable:
    """Which manifests of which table."""

    document: Mapping[str, Any]
    """Of the table's metadata what manifests are written by."""
    spec_id: int
    content: ManifestContent
    io_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Look at the entries of some manifests."""

    kind: KindOfTable
    manifests: tuple[ManifestFile, ...]


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Read some manifests and send every live entry to its lane."""

    kind: KindOfTable
    manifests: tuple[ManifestFile, ...]
    bounds: tuple[OrderKey, ...]
    first_lane: int
    """The number of the group's first lane within the exchange."""


@dataclass(frozen=True, slots=True)
class EntryPart:
    """Entries for one lane, or why a manifest could not be read."""

    entries: tuple[tuple[OrderKey, StoredEntry], ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """Put entries into these manifests; as few as the room in each allows."""

    kind: KindOfTable
    outputs: tuple[PlannedFile, ...]
    target_bytes: int
    attempt: int = 0

    def in_attempt(self, attempt: int) -> Lane:
        """The lane as this attempt writes it."""
        return replace(self, attempt=attempt)


@dataclass(frozen=True, slots=True)
class LaneResult:
    """What one lane wrote."""

    written: tuple[ManifestFile, ...] = ()
    partitions: tuple[PartitionOrder, ...] = ()
    """Some of those that it holds, evenly taken."""
    error: str | None = None
