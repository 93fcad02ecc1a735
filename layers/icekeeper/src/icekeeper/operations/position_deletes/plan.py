"""Which position delete files to merge with which (pure).

Java's ``RewritePositionDeleteFiles``: small files of one spec and partition are taken together, rows whose data file is
gone are dropped, and an output has the highest data sequence number of its inputs.  That is safe because a row that did
not reach its data file, being older than it, is dropped too; every other one names a file that is older than it.

v3 allows no new position delete files (ICEBERG-RULES 10): all of a partition become deletion vectors, one per data
file, and rows of a data file that has a vector already are dropped, as the vector stands for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from icekeeper.metadata.deletes import DELETE_FILE_PATH_ID, PartitionKey, partition_key
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, FileContent, ManifestEntry, ManifestFile, Nothing, PartitionValue
from icekeeper.operations.compaction.reading.file_rows import READABLE_FORMATS
from icekeeper.policy import Policy

__all__ = ["DeleteGroup", "LiveDelete", "PositionDeletePlan", "Target", "named_file", "plan_position_deletes"]

NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no position delete files eligible for merging"
# Java's TableProperties: DELETE_TARGET_FILE_SIZE_BYTES(_DEFAULT), DELETE_GRANULARITY
_TARGET_BYTES_KEY, _TARGET_BYTES = "write.delete.target-file-size-bytes", 64 * 1024 * 1024
_GRANULARITY_KEY = "write.delete.granularity"
_PUFFIN = "PUFFIN"

DataFiles: TypeAlias = Callable[[], Iterable[tuple[ManifestFile, ManifestEntry]]]


@dataclass(frozen=True, slots=True)
class LiveDelete:
    """A live entry of a delete manifest."""

    manifest: ManifestFile
    entry: ManifestEntry

    @property
    def key(self) -> PartitionKey:
        return partition_key(self.manifest.partition_spec_id, self.entry.file.partition)


@dataclass(frozen=True, slots=True)
class Target:
    """A live data file that position deletes may name."""

    path: str
    sequence_number: int
    manifest_path: str


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Position delete files of one spec and partition that become one file."""

    group_id: int
    spec_id: int
    partition: tuple[PartitionValue, ...]
    deletes: tuple[ManifestEntry, ...]
    targets: tuple[Target, ...]

    @property
    def sequence_number(self) -> int:
        """Data sequence number of the output."""
        return max(entry.sequence_number or 0 for entry in self.deletes)


@dataclass(frozen=True, slots=True)
class PositionDeletePlan:
    """What to merge, decided at one snapshot."""

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
    deletes: Iterable[LiveDelete],
    data_files: DataFiles,
    policy: Policy,
) -> PositionDeletePlan | Nothing:
    """Group the position delete files of ``snapshot``; ``data_files`` are asked for only where there is work.

    ``manifests`` are all of the snapshot's, ``deletes`` its live delete entries.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    found = [d for d in deletes if d.entry.file.content is FileContent.POSITION_DELETES]
    vectors = {d.entry.file.referenced_data_file for d in found if _is_vector(d)}
    by_partition: dict[PartitionKey, list[LiveDelete]] = defaultdict(list)
    for delete in found:
        if not _is_vector(delete):
            by_partition[delete.key].append(delete)
    into_vectors = metadata.format_version >= 3
    bins = [
        chosen
        for files in by_partition.values()
        for chosen in (_whole(files, policy) if into_vectors else _bins(files, metadata, policy))
    ]
    targets: Mapping[PartitionKey, Sequence[Target]] = {}
    if bins:
        targets, astray = _targets(data_files(), bins, found)
        bins = [
            files
            for files in bins
            if not any(d.entry.file.referenced_data_file in astray for d in files)
            and not (into_vectors and any(target.path in astray for target in targets[files[0].key]))
        ]
    if not bins:
        return Nothing(NOTHING_ELIGIBLE)
    return PositionDeletePlan(
        snapshot_id=snapshot.snapshot_id,
        groups=tuple(
            DeleteGroup(
                number,
                files[0].manifest.partition_spec_id,
                files[0].entry.file.partition,
                tuple(d.entry for d in files),
                tuple(t for t in targets[files[0].key] if not (into_vectors and t.path in vectors)),
            )
            for number, files in enumerate(bins)
        ),
        planning_manifests=frozenset(m.manifest_path for m in manifests),
        files_considered=sum(len(files) for files in by_partition.values()),
    )


def _is_vector(delete: LiveDelete) -> bool:
    return delete.entry.file.file_format.upper() == _PUFFIN


def _is_readable(delete: LiveDelete) -> bool:
    return delete.entry.file.file_format.upper() in READABLE_FORMATS and delete.entry.file.key_metadata is None


def _least(policy: Policy) -> int:
    return 1 if policy.rewrite_all else policy.min_input_files


def _whole(files: list[LiveDelete], policy: Policy) -> list[list[LiveDelete]]:
    """v3: all of a partition or none, because a data file's vector stands for all of its position deletes."""
    return [files] if len(files) >= _least(policy) and all(_is_readable(d) for d in files) else []


def _bins(files: list[LiveDelete], metadata: TableMetadata, policy: Policy) -> list[list[LiveDelete]]:
    """Small files in order of age, closed at the target size; of one data file each where the table wants it so."""
    target = max(1, metadata.property_int(_TARGET_BYTES_KEY, _TARGET_BYTES))
    small = policy.min_file_size_ratio * target
    per_file = metadata.properties.get(_GRANULARITY_KEY, "").lower() == "file"
    apart: dict[str | None, list[LiveDelete]] = defaultdict(list)
    for delete in files:
        if _is_readable(delete) and (policy.rewrite_all or delete.entry.file.file_size_in_bytes < small):
            apart[named_file(delete.entry.file) if per_file else None].append(delete)
    chosen: list[list[LiveDelete]] = []
    for together in apart.values():
        together.sort(key=lambda d: (d.entry.sequence_number or 0, d.entry.file.file_path))
        current: list[LiveDelete] = []
        size = 0
        for delete in together:
            current.append(delete)
            size += delete.entry.file.file_size_in_bytes
            if size >= target:
                chosen.append(current)
                current, size = [], 0
        if current:
            chosen.append(current)
    return [files for files in chosen if len(files) >= _least(policy)]


def named_file(file: DataFile) -> str | None:
    """The only data file that a position delete file may name, by its field or by equal bounds of paths."""
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    low = (file.lower_bounds or {}).get(DELETE_FILE_PATH_ID)
    high = (file.upper_bounds or {}).get(DELETE_FILE_PATH_ID)
    return low.decode() if low is not None and low == high else None


def _targets(
    data_files: Iterable[tuple[ManifestFile, ManifestEntry]],
    bins: Sequence[Sequence[LiveDelete]],
    deletes: Iterable[LiveDelete],
) -> tuple[Mapping[PartitionKey, Sequence[Target]], set[str]]:
    """The live data files of the partitions concerned, and those that a delete file of another partition names.

    Readers believe such a name whatever the partition says, so these stay out of the plan.
    """
    targets: dict[PartitionKey, list[Target]] = {files[0].key: [] for files in bins}
    named: dict[str, set[PartitionKey]] = defaultdict(set)
    for delete in deletes:
        if not _is_vector(delete) and delete.entry.file.referenced_data_file is not None:
            named[delete.entry.file.referenced_data_file].add(delete.key)
    astray: set[str] = set()
    for manifest, entry in data_files:
        file = entry.file
        key = partition_key(manifest.partition_spec_id, file.partition)
        if named.get(file.file_path, {key}) != {key}:
            astray.add(file.file_path)
        if key in targets:
            targets[key].append(Target(file.file_path, entry.sequence_number or 0, manifest.manifest_path))
    return targets, astray
