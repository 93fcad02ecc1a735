"""Which live data files are worth rewriting, and which delete files they still need (pure)."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.metadata.deletes import DeleteIndex, named_file, partition_key
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileContent, FileIdentity, FileKey, LiveEntry, ManifestEntry
from icekeeper.operations.compaction.output_partition import Destination, OutputPartitions
from icekeeper.operations.compaction.readable import why_unreadable
from icekeeper.policy import Policy
from icekeeper.policy.choices import OutputSpec
from icekeeper.rows.arrow_schema import leaf_columns

__all__ = ["Candidate", "Candidates", "known_deleted_rows", "select_candidates"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file that may be rewritten; ``age`` orders files by when they came, oldest first.

    ``deletes`` are the delete entries that reach it; ``has_debt`` says that they alone are reason enough to rewrite it.
    """

    file: DataFile
    spec_id: int
    age: int
    manifest_path: str
    identity: FileIdentity
    deletes: tuple[ManifestEntry, ...] = ()
    has_debt: bool = False
    destination: Destination | None = None
    """Where its rows go; ``None``: where the file is."""

    is_clustered: bool = False
    """Its rows lie already as the recipe of this plan wants them."""

    @property
    def sequence_number(self) -> int:
        """Its data sequence number."""
        return self.identity.sequence_number

    @property
    def has_lineage(self) -> bool:
        """Whether its rows have ids already; never below v3, nor before the first commit after an upgrade to v3.

        Rows that have none get theirs from the commit, so they must not share a file with rows that keep theirs
        (rule 18).
        """
        return self.file.first_row_id is not None


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates per spec and partition of their outputs, those without row ids apart, and what was seen."""

    partitions: tuple[list[Candidate], ...]
    delete_needs: Mapping[FileKey, int]
    """Live delete file → how many live data files need it; 0: dangling."""
    considered: int
    unsupported: int
    """Files that this version cannot read."""
    first_unsupported: str
    """One of them by name, and why."""
    specs_to_leave: frozenset[int]
    """Specs whose rows may be dealt out to partitions of the current one."""


def select_candidates(
    metadata: TableMetadata,
    live_files: Iterable[LiveEntry],
    index: DeleteIndex,
    policy: Policy,
    *,
    now_ms: int,
    in_scope: Callable[[DataFile, int], bool] = lambda file, spec_id: True,
    clustered_by: Container[int] | None = None,
) -> Candidates:
    """Pick by size, by delete debt, or all; ``live_files`` is consumed once and only candidates are kept.

    ``in_scope`` is asked of a file and its spec id: those out of scope are left alone, but still need their deletes.
    ``clustered_by`` are the snapshots that added files clustered by this plan's recipe; files of others are candidates
    too.  ``None``: the plan has no recipe.
    """
    types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(metadata.current_schema)}
    keep = policy.output_spec is OutputSpec.KEEP or index.has_equality_deletes
    destinations = OutputPartitions(metadata, keep=keep)
    needs = {entry.file.key: 0 for entry in index.entries}
    considered = unsupported = 0
    first_unsupported = ""
    listed = array("q")
    partitions: dict[object, list[Candidate]] = {}
    for live in live_files:
        file, spec_id = live.entry.file, live.manifest.partition_spec_id
        if file.content is not FileContent.DATA:
            continue
        considered += 1
        listed.append(hash(file.file_path))
        needed = tuple(index.needed_by(live.entry, spec_id, types))
        for entry in needed:
            needs[entry.file.key] += 1
        has_debt = policy.delete_compaction_enabled and _is_indebted(file, needed, policy)
        is_small = policy.rewrite_enabled and file.file_size_in_bytes < policy.min_file_size_bytes
        is_clustered = clustered_by is not None and live.entry.snapshot_id in clustered_by
        is_unclustered = policy.rewrite_enabled and clustered_by is not None and not is_clustered
        wanted = policy.rewrite_all or has_debt or is_small or is_unclustered
        if not wanted or not in_scope(file, spec_id):
            continue
        unreadable = why_unreadable(file, types)
        if unreadable is not None:
            unsupported += 1
            first_unsupported = first_unsupported or f"{file.file_path} {unreadable}"
            continue
        if not _old_enough(metadata, live.entry, now_ms - policy.min_data_age_ms):
            continue
        destination = destinations.destination(file, spec_id)
        candidate = Candidate(
            file=file,
            spec_id=spec_id,
            age=_age(metadata, live.entry),
            manifest_path=live.manifest.manifest_path,
            identity=live.entry.identity,
            # Of the deletes that bounds rule out none is needed, and none is read.
            deletes=needed,
            has_debt=has_debt,
            destination=destination,
            is_clustered=is_clustered,
        )
        key = partition_key(destination.spec_id, destination.partition), candidate.has_lineage
        partitions.setdefault(key, []).append(candidate)
    return Candidates(
        _listed_once(partitions.values(), listed),
        needs,
        considered,
        unsupported,
        first_unsupported,
        frozenset(filter(destinations.may_deal_out, metadata.specs)),
    )


def _listed_once(partitions: Iterable[list[Candidate]], listed: Sequence[int]) -> tuple[list[Candidate], ...]:
    """The candidates whose path one live entry holds; ``listed`` are the hashes of the paths of all of them, because
    there may be millions.

    A file that is listed twice is read twice (the specification forbids it): whatever the other entry is like,
    replacing one of them adds rows, or takes the other's away (rule 24).
    """
    partitions = tuple(partitions)
    own = {hash(candidate.file.file_path) for files in partitions for candidate in files}
    counts = Counter(number for number in listed if number in own)
    return tuple([c for c in files if counts[hash(c.file.file_path)] == 1] for files in partitions)


def known_deleted_rows(file: DataFile, deletes: Iterable[ManifestEntry]) -> int:
    """Rows of a data file that deletes naming only this file remove; other deletes do not tell."""
    vectors = [e.file for e in deletes if e.file.content_offset is not None]
    only_this = vectors or [e.file for e in deletes if named_file(e.file) == file.file_path]
    return min(file.record_count, sum(delete.record_count for delete in only_this))


def _is_indebted(file: DataFile, deletes: Sequence[ManifestEntry], policy: Policy) -> bool:
    if len(deletes) >= policy.delete_compaction_min_deletes:
        return True
    deleted = known_deleted_rows(file, deletes)
    return deleted > 0 and deleted >= policy.delete_compaction_min_ratio * file.record_count


def _age(metadata: TableMetadata, entry: ManifestEntry) -> int:
    """File sequence number, or data sequence number where it was lost; in v1, which has neither, the time of the
    snapshot that added the file."""
    if metadata.format_version > 1:
        number = entry.file_sequence_number
        return (entry.sequence_number if number is None else number) or 0
    snapshot = metadata.snapshots.get(entry.snapshot_id) if entry.snapshot_id is not None else None
    return 0 if snapshot is None else snapshot.timestamp_ms


def _old_enough(metadata: TableMetadata, entry: ManifestEntry, limit_ms: int) -> bool:
    """A file whose snapshot is expired is old; unknown never means young here, since nothing is deleted."""
    snapshot = metadata.snapshots.get(entry.snapshot_id) if entry.snapshot_id is not None else None
    return snapshot is None or snapshot.timestamp_ms <= limit_ms
