"""A candidate: what a plan keeps in memory about a data file that may be rewritten.

A table may have millions of small files, so a candidate has no column metrics and shares what files have in common: it
takes 200 bytes and its path.  Decisions that need metrics are made while its manifest entry is read
(``candidates.select_candidates``).  A rewrite that needs more reads the entry again (``group_entries``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from icekeeper.metadata.delete_scope import PartitionKey, partition_key
from icekeeper.metadata.overlap_depth import Extent
from icekeeper.model import FileContent, FileIdentity, FileKey, LiveEntry, ManifestEntry, PartitionValue
from icekeeper.operations.compaction.terms.output_partition import Destination
from icekeeper.policy.values import RewriteReason
from icekeeper.rows.arrow_schema import Variants

Extents: TypeAlias = tuple[Extent | None, ...]
"""The ranges of a file's values in clustering columns; ``None``: the file has no value in that column."""


@dataclass(frozen=True, slots=True)
class Home:
    """The partition of files, and the partition of their rows after the rewrite."""

    spec_id: int
    partition: tuple[PartitionValue, ...]
    destination: Destination


@dataclass(frozen=True, slots=True)
class Origin:
    """The manifest that lists files, and the snapshot that added them."""

    manifest_path: str
    snapshot_id: int | None
    sequence_number: int
    """The data sequence number."""
    file_sequence_number: int | None
    age: int
    """Sorts files by the time when they were added, oldest first."""
    added_ms: int | None
    """Epoch milliseconds of the snapshot; ``None``: the snapshot has expired."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a plan found out about files from their manifest entries."""

    file_format: str = "PARQUET"
    deletes: tuple[ManifestEntry, ...] = ()
    """The entries of the delete files that may remove some of their rows."""
    has_debt: bool = False
    """Whether they have so many deletes that the deletes alone are reason enough for a rewrite."""
    is_clustered: bool = False
    """Whether their rows already have the order of the plan's recipe."""
    lacks: frozenset[RewriteReason] = frozenset()
    """The reasons of ``rewrite_reason`` that apply to them."""
    may_be_copied: bool = False
    """Whether all row groups can probably be copied, or at least those without deleted rows."""
    is_likely_copied: bool = False
    """Whether all row groups can probably be copied into a file of unsorted rows."""
    pieces: tuple[int, ...] = ()
    """The number of row groups of each piece, if the file may be cut."""
    misread_columns: frozenset[int] | None = None
    """Float columns with bounds that readers would misread; ``None``: the bounds were not checked, because that takes
    long."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file that may be rewritten."""

    file_path: str
    file_size_in_bytes: int
    record_count: int
    first_row_id: int | None
    home: Home
    origin: Origin
    condition: Condition
    extents: Extents = ()
    """The ranges in the leading columns of the plan's recipe; empty without a recipe."""
    variants: Variants = ()
    """How it stores the table's variants."""

    @property
    def key(self) -> FileKey:
        return self.file_path, None

    @property
    def identity(self) -> FileIdentity:
        origin = self.origin
        return FileIdentity(
            origin.sequence_number, self.file_size_in_bytes, origin.snapshot_id, origin.file_sequence_number
        )

    @property
    def is_rewritten(self) -> bool:
        """As :attr:`.FileIdentity.is_rewritten`."""
        return self.identity.is_rewritten

    @property
    def spec_id(self) -> int:
        return self.home.spec_id

    @property
    def partition(self) -> tuple[PartitionValue, ...]:
        return self.home.partition

    @property
    def destination(self) -> Destination:
        """The spec and partition of its rows after the rewrite."""
        return self.home.destination

    @property
    def manifest_path(self) -> str:
        return self.origin.manifest_path

    @property
    def sequence_number(self) -> int:
        return self.origin.sequence_number

    @property
    def age(self) -> int:
        return self.origin.age

    @property
    def added_ms(self) -> int | None:
        return self.origin.added_ms

    @property
    def file_format(self) -> str:
        return self.condition.file_format

    @property
    def deletes(self) -> tuple[ManifestEntry, ...]:
        return self.condition.deletes

    @property
    def position_deletes(self) -> tuple[ManifestEntry, ...]:
        """The position deletes and deletion vectors among its deletes."""
        return tuple(entry for entry in self.deletes if entry.file.content is FileContent.POSITION_DELETES)

    @property
    def has_debt(self) -> bool:
        return self.condition.has_debt

    @property
    def is_clustered(self) -> bool:
        return self.condition.is_clustered

    @property
    def lacks(self) -> frozenset[RewriteReason]:
        return self.condition.lacks

    @property
    def is_due(self) -> bool:
        """Whether it is rewritten even if no other file joins it."""
        return self.condition.has_debt or bool(self.condition.lacks)

    @property
    def has_lineage(self) -> bool:
        """Whether its rows have row ids: only in v3, since the first commit after an upgrade.

        Rows without ids get them from the commit, so they must not share a file with rows that keep their ids
        (rule: rows-keep-their-lineage).
        """
        return self.first_row_id is not None


GroupKey: TypeAlias = tuple[PartitionKey, bool, Variants]
"""The key of candidates that may share a file: the partition of their outputs, whether their rows have ids, and how
they store variants."""


class SharedParts:
    """Finds equal parts of candidates, so that each is kept in memory once."""

    def __init__(self) -> None:
        self._homes: dict[tuple[PartitionKey, PartitionKey], tuple[Home, PartitionKey]] = {}
        # Only for the current manifest: a table may have as many snapshots as files.
        self._origins: dict[tuple[int | None, ...], Origin] = {}
        self._manifest_path = ""
        self._conditions: dict[tuple[object, ...], Condition] = {}

    def home(
        self, spec_id: int, partition: tuple[PartitionValue, ...], destination: Destination
    ) -> tuple[Home, PartitionKey]:
        """The home, and the key of its destination."""
        own = partition_key(spec_id, partition)
        is_staying = destination[0] == spec_id and destination[1] is partition
        to = own if is_staying else partition_key(*destination)
        found = self._homes.get((own, to))
        if found is None:
            found = self._homes[own, to] = Home(spec_id, partition, destination), to
        return found

    def origin(self, live: LiveEntry, make: Callable[[LiveEntry], Origin]) -> Origin:
        """The result of ``make`` for the first entry of the manifest that the same commit added."""
        if live.manifest.manifest_path != self._manifest_path:
            self._origins.clear()
            self._manifest_path = live.manifest.manifest_path
        entry = live.entry
        key = entry.snapshot_id, entry.sequence_number, entry.file_sequence_number
        found = self._origins.get(key)
        if found is None:
            found = self._origins[key] = make(live)
        return found

    def condition(self, file_format: str, deletes: tuple[ManifestEntry, ...], *others: Any) -> Condition:
        """A condition of these values; deletes are compared by identity, which is faster."""
        key = file_format, tuple(map(id, deletes)), others
        found = self._conditions.get(key)
        if found is None:
            found = self._conditions[key] = Condition(file_format, deletes, *others)
        return found
