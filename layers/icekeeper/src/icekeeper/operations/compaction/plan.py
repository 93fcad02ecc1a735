"""Which data files to merge with which: the rules of compaction, and nothing else (pure).

Seed 000, "Compact Data Files": group small files by spec and partition, split a group that is larger than the target
into bins, leave bins of fewer than ``min_input_files`` alone.

Convergence (DESIGN 5): a bin is closed as soon as it holds the middle between the small-file limit and the target,
by its own files alone, never by what would come next.  So its output is no candidate any more, and taking whole bins
out of the sequence leaves every other bin as it was: ``plan(apply(plan))`` is empty.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Nothing, PartitionValue
from icekeeper.policy import Policy

__all__ = ["Candidate", "CompactionPlan", "FileGroup", "LiveFile", "plan_compaction"]

NO_SNAPSHOT = "no current snapshot"
NOTHING_ELIGIBLE = "no files eligible for compaction"
DELETES_DISABLED = "compaction skipped: delete manifests present and apply_deletes is disabled"
SUPPORTED_FORMATS = frozenset({"PARQUET"})


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live data file of the planning snapshot and the manifest that holds it."""

    manifest: ManifestFile
    entry: ManifestEntry


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file that may be rewritten; ``age`` orders files by when they came, oldest first."""

    file: DataFile
    spec_id: int
    age: int
    manifest_path: str


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files of one spec and partition that become one file."""

    group_id: int
    spec_id: int
    partition: tuple[PartitionValue, ...]
    files: tuple[Candidate, ...]

    @property
    def total_bytes(self) -> int:
        return sum(candidate.file.file_size_in_bytes for candidate in self.files)

    @property
    def record_count(self) -> int:
        return sum(candidate.file.record_count for candidate in self.files)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to merge, decided at one snapshot; immutable, carries its counts."""

    snapshot_id: int
    sequence_number: int
    groups: tuple[FileGroup, ...]
    planning_manifests: frozenset[str]
    files_considered: int
    files_unsupported: int

    @property
    def input_files(self) -> tuple[str, ...]:
        return tuple(c.file.file_path for group in self.groups for c in group.files)


def plan_compaction(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    manifests: Sequence[ManifestFile],
    live_files: Iterable[LiveFile],
    policy: Policy,
    *,
    now_ms: int,
) -> CompactionPlan | Nothing:
    """Group the live data files of ``snapshot`` for merging.

    ``manifests`` are all of the snapshot's; ``live_files`` is consumed once and only candidates are kept.  Tables
    with delete files are the caller's to refuse when deletes should be applied.
    """
    if snapshot is None:
        return Nothing(NO_SNAPSHOT)
    has_deletes = any(m.content is ManifestContent.DELETES and m.may_have_live_files for m in manifests)
    if has_deletes and not policy.apply_deletes:
        return Nothing(DELETES_DISABLED)
    if not (policy.rewrite_enabled or policy.rewrite_all):
        return Nothing("rewriting small files is disabled (rewrite_enabled)")
    considered = unsupported = 0
    seen: set[str] = set()
    twice: set[str] = set()
    partitions: dict[tuple[int, tuple[object, ...]], list[Candidate]] = {}
    for live in live_files:
        file = live.entry.file
        if file.content is not FileContent.DATA:
            continue
        considered += 1
        if not policy.rewrite_all and file.file_size_in_bytes >= policy.min_file_size_bytes:
            continue
        if file.file_format.upper() not in SUPPORTED_FORMATS or file.key_metadata is not None:
            unsupported += 1
            continue
        if not _old_enough(metadata, live.entry, now_ms - policy.min_data_age_ms):
            continue
        candidate = Candidate(
            file, live.manifest.partition_spec_id, _age(metadata, live.entry), live.manifest.manifest_path
        )
        (twice if file.file_path in seen else seen).add(file.file_path)
        partitions.setdefault((candidate.spec_id, _group_key(file.partition)), []).append(candidate)
    # A file that is listed twice is read twice (ICEBERG-RULES 15 forbids it): replacing one entry adds rows.
    once = ([c for c in files if c.file.file_path not in twice] for files in partitions.values())
    bins = [chosen for files in once for chosen in _bins(files, policy)]
    groups = tuple(
        FileGroup(number, files[0].spec_id, files[0].file.partition, tuple(files))
        for number, files in enumerate(_within_budget(bins, policy))
    )
    if not groups:
        return Nothing(_nothing_reason(unsupported, bool(bins)))
    return CompactionPlan(
        snapshot_id=snapshot.snapshot_id,
        sequence_number=snapshot.sequence_number,
        groups=groups,
        planning_manifests=frozenset(m.manifest_path for m in manifests),
        files_considered=considered,
        files_unsupported=unsupported,
    )


def _nothing_reason(unsupported: int, over_budget: bool) -> str:
    if over_budget:
        return "no file group fits max_files_to_rewrite and max_bytes_to_rewrite"
    if unsupported:
        return f"{NOTHING_ELIGIBLE} ({unsupported} small file(s) are not Parquet or are encrypted and were left alone)"
    return NOTHING_ELIGIBLE


def _bins(files: list[Candidate], policy: Policy) -> list[list[Candidate]]:
    """Split one partition's candidates, in order of age, into bins worth merging."""
    files.sort(key=lambda c: (c.age, c.file.file_path))
    full = min((policy.min_file_size_bytes + policy.target_file_size_bytes) // 2, policy.max_file_group_size_bytes)
    least = 1 if policy.rewrite_all else policy.min_input_files
    chosen: list[list[Candidate]] = []
    current: list[Candidate] = []
    size = 0
    for candidate in files:
        current.append(candidate)
        size += candidate.file.file_size_in_bytes
        if size >= full:
            chosen.append(current)
            current, size = [], 0
    if current:
        chosen.append(current)
    return [files for files in chosen if len(files) >= least]


def _within_budget(bins: list[list[Candidate]], policy: Policy) -> list[list[Candidate]]:
    """Bins that save most files first, as many as the policy's caps allow."""
    if policy.max_files_to_rewrite is None and policy.max_bytes_to_rewrite is None:
        return bins
    files_left = policy.max_files_to_rewrite
    bytes_left = policy.max_bytes_to_rewrite
    chosen = []
    for files in sorted(bins, key=len, reverse=True):
        size = sum(candidate.file.file_size_in_bytes for candidate in files)
        if (files_left is not None and len(files) > files_left) or (bytes_left is not None and size > bytes_left):
            continue
        files_left = None if files_left is None else files_left - len(files)
        bytes_left = None if bytes_left is None else bytes_left - size
        chosen.append(files)
    return chosen


def _age(metadata: TableMetadata, entry: ManifestEntry) -> int:
    """File sequence number; in v1, which has none, the time of the snapshot that added the file."""
    if metadata.format_version > 1:
        return entry.file_sequence_number or 0
    snapshot = metadata.snapshots.get(entry.snapshot_id) if entry.snapshot_id is not None else None
    return 0 if snapshot is None else snapshot.timestamp_ms


def _old_enough(metadata: TableMetadata, entry: ManifestEntry, limit_ms: int) -> bool:
    """A file whose snapshot is expired is old; unknown never means young here, since nothing is deleted."""
    snapshot = metadata.snapshots.get(entry.snapshot_id) if entry.snapshot_id is not None else None
    return snapshot is None or snapshot.timestamp_ms <= limit_ms


def _group_key(partition: tuple[PartitionValue, ...]) -> tuple[object, ...]:
    """Partition values compared bit for bit: 0.0 and -0.0 are two partitions, NaN is one."""
    return tuple(struct.pack("<d", value) if isinstance(value, float) else value for value in partition)


def claims(groups: Sequence[FileGroup]) -> Mapping[int, Mapping[tuple[str, int | None], str]]:
    """Per group, each input file's key and the manifest that held it at planning."""
    return {g.group_id: {c.file.key: c.manifest_path for c in g.files} for g in groups}
