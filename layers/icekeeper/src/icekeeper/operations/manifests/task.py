"""The tasks and results of workers that rewrite manifests: plain picklable values.

The entries of a group are cut into *lanes* by partition order; each lane is put into manifests by one worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

from icekeeper.metadata.manifest_write import StoredEntry
from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.operations.manifests.cuts import OrderKey, Place
from icekeeper.operations.manifests.partition_ranges import PartitionOrder
from icekeeper.storage.attempt_names import PlannedFile

__all__ = ["EntryPart", "Lane", "LaneResult", "ManifestsOfTable", "SampleTask", "SplitTask"]


@dataclass(frozen=True, slots=True)
class ManifestsOfTable:
    """The manifests of one spec and content type of a table."""

    document: Mapping[str, Any]
    """The part of the table metadata that is needed to write manifests."""
    spec_id: int
    content: ManifestContent
    io_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Sample the entries of some manifests."""

    kind: ManifestsOfTable
    manifests: tuple[ManifestFile, ...]


@dataclass(frozen=True, slots=True)
class SplitTask:
    """Read some manifests and send every live entry to its lane."""

    kind: ManifestsOfTable
    manifests: tuple[ManifestFile, ...]
    bounds: tuple[OrderKey, ...]
    first_lane: int
    """The number of the group's first lane within the exchange."""


@dataclass(frozen=True, slots=True)
class EntryPart:
    """Entries for one lane, or why a manifest could not be read.

    They are kept by columns, which are handed over in two thirds of the time that objects take.
    """

    columns: tuple[tuple[Any, ...], ...] = ()
    """Places, then the fields of a stored entry."""
    error: str | None = None

    @classmethod
    def of(cls, entries: Sequence[tuple[Place, StoredEntry]]) -> EntryPart:
        """The part of these entries, of which there is one at least."""
        places, stored = zip(*entries, strict=True)
        return cls((places, *zip(*stored, strict=True)))

    def entries(self) -> Iterator[tuple[Place, StoredEntry]]:
        """The entries in the order in which they were given."""
        if not self.columns:
            return iter(())
        places, *fields = self.columns
        return zip(places, starmap(StoredEntry, zip(*fields, strict=True)), strict=True)


@dataclass(frozen=True, slots=True)
class Lane:
    """Write the entries of one lane into these manifests, into as few as their size allows."""

    kind: ManifestsOfTable
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
    """Some of the partitions that it holds, taken at even distances."""
    error: str | None = None
