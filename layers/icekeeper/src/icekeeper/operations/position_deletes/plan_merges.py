"""Which position delete files to merge, and which files this is expected to write.  Reads no files.

The model is Java's ``RewritePositionDeleteFiles``.  Small files of the same spec and partition are merged, rows whose
data file no longer exists are dropped, and an output gets the highest data sequence number of its inputs
(rule: drop-deletes-only-when-dangling).  That is safe, because rows that do not apply to their data file, because it
is newer, are dropped, too.  A delete file that names a single data file belongs to that file's partition.

v3 allows no new position delete files.  All deletes that apply to a partition become
deletion vectors, one per data file.  Rows for a data file that already has a vector are dropped.

A delete file or vector under another spec or partition than the data file that it names is moved, even if it is the
only such file: readers of Iceberg after 1.11 refuse such a table (rule: named-deletes-reach-anywhere).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from icekeeper.metadata.delete_scope import PartitionKey, may_stand_elsewhere, named_file, partition_key
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import (
    DataFile,
    FileContent,
    FileIdentity,
    LiveEntry,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionValue,
)
from icekeeper.operations.position_deletes.merge import MergeResult
from icekeeper.policy import Policy
from icekeeper.rows.file_rows import READABLE_FORMATS

NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no position delete files eligible for merging"
# Java's TableProperties: DELETE_TARGET_FILE_SIZE_BYTES(_DEFAULT), DELETE_GRANULARITY
_TARGET_BYTES_KEY, _TARGET_BYTES = "write.delete.target-file-size-bytes", 64 * 1024 * 1024
_MOST_TARGET_BYTES = 512 * 1024 * 1024  # the positions of a bin are merged in memory
_GRANULARITY_KEY = "write.delete.granularity"
_PUFFIN = "PUFFIN"

DataFiles: TypeAlias = Callable[[], Iterable[tuple[ManifestFile, ManifestEntry]]]


@dataclass(frozen=True, slots=True)
class Target:
    """A live data file that position deletes may name."""

    path: str
    manifest_path: str
    identity: FileIdentity

    @property
    def sequence_number(self) -> int:
        """The data sequence number; deletes with a lower number do not apply to the file."""
        return self.identity.sequence_number


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Position deletes that apply to data files of the same spec and partition, to be merged into a single file there.

    They are delete files, or deletion vectors under another spec or partition.
    """

    group_id: int
    spec_id: int
    partition: tuple[PartitionValue, ...]
    deletes: tuple[ManifestEntry, ...]
    targets: tuple[Target, ...]
    moved: int = 0
    """The number of deletes under another spec or partition than the data file that they name."""

    @property
    def sequence_number(self) -> int:
        return max(entry.sequence_number or 0 for entry in self.deletes)


@dataclass(frozen=True, slots=True)
class PositionDeletePlan:
    """What to merge, decided at a snapshot."""

    snapshot_id: int
    groups: tuple[DeleteGroup, ...]
    planning_manifests: frozenset[str]
    files_considered: int

    @property
    def input_files(self) -> tuple[str, ...]:
        return tuple(entry.file.file_path for group in self.groups for entry in group.deletes)


def plan_position_deletes(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    manifests: Sequence[ManifestFile],
    deletes: Iterable[LiveEntry],
    data_files: DataFiles,
    policy: Policy,
    unreadable: Container[str] = (),
) -> PositionDeletePlan | Nothing:
    """Group the position delete files of ``snapshot``; ``data_files`` is called only if there is work.

    ``manifests``: all manifests of the snapshot; ``deletes``: its live delete entries; ``unreadable``: paths of delete
    files that passes could not read.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    found = [d for d in deletes if d.entry.file.content is FileContent.POSITION_DELETES]
    vectors = {d.entry.file.referenced_data_file for d in found if _is_vector(d)}
    merged = [d for d in found if not _is_vector(d)]
    least = 1 if policy.rewrite_all else policy.min_input_files  # delete files in a bin
    own = _bins(merged, _own_partition, metadata, policy, unreadable)
    likely = {key for key, files in own if len(files) >= least}
    may_move = may_stand_elsewhere(metadata) and any(named_file(d.entry.file) is not None for d in found)
    if not likely and not may_move:
        return Nothing(NOTHING_ELIGIBLE)
    by_partition = {_own_partition(d) for d in merged if named_file(d.entry.file) is None} if may_move else set()
    reached = _Reached.by(found if may_move else merged, likely | by_partition, data_files())
    bins = [
        (key, files)
        for key, files in _bins(merged, reached.home, metadata, policy, unreadable, reached.stands_elsewhere)
        if (len(files) >= least or any(map(reached.stands_elsewhere, files))) and reached.knows(key, files)
    ]
    hidden = vectors if metadata.format_version >= 3 else set()
    groups = [
        reached.group(key, files, [target for target in reached.targets[key] if target.path not in hidden])
        for key, files in bins
    ]
    groups += [
        reached.group(key, files, [target for target in reached.targets[key] if target.path in named])
        for key, files in reached.vectors_to_move(d for d in found if d.entry.file.file_path not in unreadable)
        for named in ({d.entry.file.referenced_data_file for d in files},)
    ]
    groups = [replace(group, group_id=number) for number, group in enumerate(groups)]
    if not groups:
        return Nothing(NOTHING_ELIGIBLE)
    return PositionDeletePlan(
        snapshot_id=snapshot.snapshot_id,
        groups=tuple(groups),
        planning_manifests=frozenset(m.manifest_path for m in manifests),
        files_considered=len(merged),
    )


@dataclass(slots=True)
class _Reached:
    """The live data files of ``whole`` partitions, and the data files of any partition that a delete names."""

    whole: frozenset[PartitionKey]
    places: dict[PartitionKey, tuple[int, tuple[PartitionValue, ...]]]
    """Spec id and values of a partition."""
    targets: dict[PartitionKey, list[Target]] = field(default_factory=lambda: defaultdict(list))
    partition_of: dict[str, PartitionKey] = field(default_factory=dict)
    """Path of a target → its partition."""
    listed_twice: set[str] = field(default_factory=set)

    @classmethod
    def by(
        cls,
        deletes: Sequence[LiveEntry],
        partitions: Iterable[PartitionKey],
        data_files: Iterable[tuple[ManifestFile, ManifestEntry]],
    ) -> _Reached:
        places = {_own_partition(d): (d.manifest.partition_spec_id, d.entry.file.partition) for d in deletes}
        reached = cls(frozenset(partitions), places)
        names = {named_file(d.entry.file) for d in deletes}
        for manifest, entry in data_files:
            file = entry.file
            key = partition_key(manifest.partition_spec_id, file.partition)
            if key not in reached.whole and file.file_path not in names:
                continue
            reached.places.setdefault(key, (manifest.partition_spec_id, file.partition))
            reached.targets[key].append(Target(file.file_path, manifest.manifest_path, entry.identity))
            if file.file_path in reached.partition_of:
                reached.listed_twice.add(file.file_path)
            reached.partition_of[file.file_path] = key
        return reached

    def home(self, delete: LiveEntry) -> PartitionKey:
        """The partition to which a delete applies: its own, unless it names a live file of another partition."""
        return self.partition_of.get(named_file(delete.entry.file) or "", _own_partition(delete))

    def stands_elsewhere(self, delete: LiveEntry) -> bool:
        """Whether a delete names a live data file of another spec or partition."""
        return self.home(delete) != _own_partition(delete)

    def vectors_to_move(self, deletes: Iterable[LiveEntry]) -> list[tuple[PartitionKey, list[LiveEntry]]]:
        """The deletion vectors under another partition than their data file, by the partition of that file."""
        by_home: dict[PartitionKey, list[LiveEntry]] = defaultdict(list)
        for delete in deletes:
            if _is_vector(delete) and self.stands_elsewhere(delete) and delete.entry.file.key_metadata is None:
                by_home[self.home(delete)].append(delete)
        return [(key, files) for key, files in by_home.items() if self.knows(key, files)]

    def group(self, key: PartitionKey, deletes: Sequence[LiveEntry], targets: Iterable[Target]) -> DeleteGroup:
        """The group of deletes that apply to a partition; the caller sets its id."""
        moved = sum(map(self.stands_elsewhere, deletes))
        return DeleteGroup(0, *self.places[key], tuple(d.entry for d in deletes), tuple(targets), moved)

    def knows(self, key: PartitionKey, deletes: Iterable[LiveEntry]) -> bool:
        """Whether all data files to which these deletes may apply are known, and each is listed once.

        If a data file is listed twice, a delete may apply to only one of the entries.
        """
        is_whole = key in self.whole or all(named_file(d.entry.file) is not None for d in deletes)
        return is_whole and self.listed_twice.isdisjoint(target.path for target in self.targets[key])


def _own_partition(delete: LiveEntry) -> PartitionKey:
    return partition_key(delete.manifest.partition_spec_id, delete.entry.file.partition)


def _is_vector(delete: LiveEntry) -> bool:
    return delete.entry.file.file_format.upper() == _PUFFIN


def _bins(
    deletes: Iterable[LiveEntry],
    home: Callable[[LiveEntry], PartitionKey],
    metadata: TableMetadata,
    policy: Policy,
    unreadable: Container[str],
    is_due: Callable[[LiveEntry], bool] = lambda delete: False,
) -> list[tuple[PartitionKey, list[LiveEntry]]]:
    """Bins of delete files that are small or due, each with the partition to which they apply."""
    by_partition: dict[PartitionKey, list[LiveEntry]] = defaultdict(list)
    for delete in deletes:
        by_partition[home(delete)].append(delete)
    bins: list[tuple[PartitionKey, list[LiveEntry]]] = []
    for key, files in by_partition.items():
        readable = [
            d
            for d in files
            if d.entry.file.file_format.upper() in READABLE_FORMATS
            and d.entry.file.key_metadata is None
            and d.entry.file.file_path not in unreadable
        ]
        if metadata.format_version < 3:
            bins += [(key, chosen) for chosen in _by_size(readable, metadata, policy, is_due)]
        elif len(readable) == len(files):
            # All or none, because a vector replaces all position deletes of its data file.
            bins.append((key, files))
    return bins


def _by_size(
    files: list[LiveEntry], metadata: TableMetadata, policy: Policy, is_due: Callable[[LiveEntry], bool]
) -> list[list[LiveEntry]]:
    """Bins of small or due files by age, up to the target size; per data file if the table sets that granularity."""
    target = min(max(1, metadata.property_int(_TARGET_BYTES_KEY, _TARGET_BYTES)), _MOST_TARGET_BYTES)
    small = policy.min_file_size_ratio * target
    per_file = metadata.properties.get(_GRANULARITY_KEY, "").lower() == "file"
    apart: dict[str | None, list[LiveEntry]] = defaultdict(list)
    for delete in files:
        is_small = delete.entry.file.file_size_in_bytes < small
        if policy.rewrite_all or is_small or is_due(delete):
            apart[named_file(delete.entry.file) if per_file else None].append(delete)
    chosen: list[list[LiveEntry]] = []
    for together in apart.values():
        together.sort(key=lambda d: (d.entry.sequence_number or 0, d.entry.file.file_path))
        current: list[LiveEntry] = []
        size = 0
        for delete in together:
            current.append(delete)
            size += delete.entry.file.file_size_in_bytes
            if size >= target:
                chosen.append(current)
                current, size = [], 0
        if current:
            chosen.append(current)
    return chosen


def expected_result(metadata: TableMetadata, snapshot_id: int, group: DeleteGroup) -> MergeResult:
    """The expected result of a group for later plans of a dry run, as if no row were dangling.

    In v3 each data file that may need a deletion vector gets a vector, because the rows are not read.
    """
    rows = sum(entry.file.record_count for entry in group.deletes)
    size = sum(entry.file.file_size_in_bytes for entry in group.deletes)
    stem = f"{metadata.data_location}/expected-deletes-{snapshot_id}-{group.group_id:05d}"
    if metadata.format_version < 3:
        written = (_file(group, f"{stem}.parquet", "PARQUET", rows, size),) if group.targets else ()
        return MergeResult(group_id=group.group_id, written=written, rows_read=rows, rows_written=rows)
    named = {named_file(entry.file) for entry in group.deletes}
    targets = [target.path for target in group.targets if None in named or target.path in named]
    vectors = tuple(
        _file(group, f"{stem}.puffin", "PUFFIN", max(1, rows // len(targets)), size, (path, number))
        for number, path in enumerate(targets)
    )
    return MergeResult(group_id=group.group_id, written=vectors, rows_read=rows, rows_written=rows)


def _file(
    group: DeleteGroup, path: str, file_format: str, rows: int, size: int, vector_of: tuple[str, int] | None = None
) -> DataFile:
    """``vector_of``: the data file of a deletion vector, and its number in the Puffin file."""
    named, number = (None, None) if vector_of is None else vector_of
    return DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=path,
        file_format=file_format,
        partition=group.partition,
        record_count=rows,
        file_size_in_bytes=size,
        referenced_data_file=named,
        content_offset=number,
        content_size_in_bytes=None if number is None else 1,
    )
