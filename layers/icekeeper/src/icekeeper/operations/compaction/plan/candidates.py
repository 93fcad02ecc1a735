"""Select candidates: live data files that may be worth rewriting.

All decisions are made from table metadata and manifest entries (pure).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from hashlib import blake2b
from types import MappingProxyType
from typing import TypeAlias

from icekeeper.metadata.delete_scope import DeleteIndex, DeleteIndexBuilder, named_file
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, FileContent, FileKey, LiveEntry, ManifestEntry, ManifestFile, PartitionValue
from icekeeper.operations.compaction.plan.candidate import Candidate, Extents, GroupKey, Origin, SharedParts
from icekeeper.operations.compaction.plan.large_files import large_from, pieces
from icekeeper.operations.compaction.plan.output_sizes import UNCHANGED_SIZES, OutputSizes
from icekeeper.operations.compaction.terms.output_partition import OutputPartitions
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, has_order
from icekeeper.operations.compaction.terms.rewrite_task import FULL_ROW_GROUP_BYTES
from icekeeper.policy import Policy
from icekeeper.policy.values import OutputSpec, RewriteReason
from icekeeper.rows.apply_deletes import misspelled, other_spellings
from icekeeper.rows.arrow_schema import leaf_columns, likely_row_bytes
from icekeeper.rows.file_rows import why_unreadable

_NO_DELETES: tuple[ManifestEntry, ...] = ()
_LACKS_NOTHING: frozenset[RewriteReason] = frozenset()

FileScope: TypeAlias = Callable[[DataFile, int], bool]
"""Returns whether a data file with this spec id may be rewritten at all."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The input of a plan: a table at the head of a branch, read from its metadata."""

    metadata: TableMetadata
    snapshot: Snapshot | None
    """The head of the branch; ``None``: the branch has no snapshot yet."""
    manifests: Sequence[ManifestFile] = ()
    """All manifests of the snapshot."""
    live_files: Iterable[LiveEntry] = ()
    """The live entries of its data manifests.  They are iterated once, and only candidates are kept."""
    deletes: DeleteIndex = field(default_factory=lambda: DeleteIndexBuilder().build())
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Data and delete files that earlier passes could not read: path → a sentence that names it."""
    ordered_by_table: Set[int] = frozenset()
    """Ids of the snapshots whose files have the table's own order, so that a pass that only merges leaves them
    unchanged."""


@dataclass(slots=True)
class Tally:
    """A number of files and their bytes."""

    files: int = 0
    bytes: int = 0
    first: str = ""
    """A sentence about the first file, if any."""

    def add(self, file: DataFile, about: str = "") -> None:
        self.count(1, file.file_size_in_bytes)
        self.first = self.first or about

    def count(self, files: int, size: int) -> None:
        """Add files; negative numbers remove them."""
        self.files += files
        self.bytes += size


class PassedOver(StrEnum):
    """Why files are not candidates although their size, deletes or order would be a reason to rewrite them."""

    UNCUT = "they are far above the target size, but cannot be cut between their row groups"
    ORDERED_BY_TABLE = "they have the table's own order, and the settings of this pass only merge"
    UNDER_DELETES = "deletes apply to them, and delete_compaction_enabled is false"
    UNSUPPORTED = "they cannot be read or moved"
    """This version cannot read or move them, or a recent pass could not."""
    KEPT = "they keep their partition spec"
    """These files are candidates nevertheless: they are merged in their own partition."""


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What a plan counts over all live data files."""

    delete_needs: Mapping[FileKey, int]
    """Live delete file → how many live data files need it; 0: dangling."""
    considered: int
    """The number of live data files."""
    passed_over: Mapping[PassedOver, Tally]
    """For unsupported files and files that keep their spec, the tally names the first file and the reason."""
    specs_to_leave: frozenset[int]
    """Ids of older specs whose rows may be divided among partitions of the current spec; empty for a recipe."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a table, and counts of its other files."""

    partitions: Mapping[GroupKey, list[Candidate]]
    """Candidates that may share a file."""
    spread: Mapping[FileKey, int]
    """Live delete file that covers many data files → the most live data files over which its rows may be spread."""
    listed: array[int]
    """The hashes of the paths of all live data files."""
    counts: FileCounts


def select_candidates(
    state: TableState,
    policy: Policy,
    *,
    in_scope: FileScope = lambda file, spec_id: True,
    recipe: ClusterRecipe | None = None,
    clustered_by: Container[int] = frozenset(),
    extents_of: Callable[[DataFile], Extents] | None = None,
    lacking: Mapping[str, frozenset[RewriteReason]] = MappingProxyType({}),
    misread_in: Callable[[DataFile], frozenset[int]] | None = None,
    cuts: bool = False,
    sizes: OutputSizes = UNCHANGED_SIZES,
) -> Candidates:
    """Select files that are small, have many deletes or (``cuts``) can be cut; or all (``rewrite_all``, or a recipe).

    Files out of scope stay unchanged, but still need their deletes.  ``clustered_by``: ids of the snapshots that added
    files clustered by ``recipe``; if that is the table's sort order, files of expired snapshots that claim it are
    clustered too.  ``extents_of``: the value ranges that a recipe needs, from a file's bounds.  ``lacking``: path →
    reasons from the footer.  ``misread_in``: the float columns with bounds that readers would misread, for plans that
    record them.  Raises as :func:`well_spelled` does.
    """
    metadata, index = state.metadata, state.deletes
    types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(metadata.current_schema)}
    destinations = OutputPartitions(metadata, keep=policy.output_spec is OutputSpec.KEEP or index.has_equality_deletes)
    needs, listed, sizes_of = {entry.file.key: 0 for entry in index.entries}, array("q"), _PartitionSizes()
    passed = {reason: Tally() for reason in PassedOver}
    partitions, undecided = (defaultdict[GroupKey, list[Candidate]](list) for _ in range(2))
    make = _CandidateMaker(metadata, policy, destinations, types, passed, extents_of, misread_in, cuts=cuts)
    is_by_size = _size_rule(policy, sizes, in_scope, passed, clusters=recipe is not None, cuts=cuts)
    asks_spec = RewriteReason.SPEC in policy.rewrite_reason
    asks_each = asks_spec or lacking or not index.is_empty
    for live in state.live_files:
        file, spec_id = live.entry.file, live.manifest.partition_spec_id
        if file.content is not FileContent.DATA:
            continue
        listed.append(path_hash(file.file_path))
        needed, lacks = _NO_DELETES, _LACKS_NOTHING
        if asks_each:
            sizes_of.add(file)
            needed = _needed(index, live, types, needs)
            lacks = lacking.get(file.file_path, lacks)
            if asks_spec and destinations.destination(file, spec_id)[0] != spec_id:
                lacks |= {RewriteReason.SPEC}
        has_debt = _is_indebted(file, needed, policy) if needed and policy.delete_compaction_enabled else False
        is_chosen = has_debt or lacks or is_by_size(live, needed)
        if not ((is_chosen or has_debt is None) and in_scope(file, spec_id)):
            continue
        reason, why = _why_passed_over(live.entry, needed, state, policy, types)
        if reason is not None:
            passed[reason].add(file, why)
            continue
        in_order = recipe is not None and has_order(live, metadata, clustered_by, recipe.order_id)
        has_debt = bool(has_debt) or not is_chosen
        key, candidate = make.candidate(live, needed, lacks, has_debt=has_debt, is_clustered=in_order)
        (partitions if is_chosen else undecided)[key].append(candidate)
    to_leave = frozenset[int]() if recipe else frozenset(filter(destinations.may_deal_out, metadata.specs))
    counts = FileCounts(well_spelled(needs, index, listed), len(listed), passed, to_leave)
    _take_likely_indebted(partitions, undecided, sizes_of.rows, policy)
    return Candidates(_listed_once(partitions, listed), rows_spread(index, needs, sizes_of.files), listed, counts)


@dataclass(slots=True)
class _PartitionSizes:
    """The number of data files and rows per partition."""

    files: Counter[tuple[PartitionValue, ...]] = field(default_factory=Counter)
    rows: Counter[tuple[PartitionValue, ...]] = field(default_factory=Counter)

    def add(self, file: DataFile) -> None:
        self.files[file.partition] += 1
        self.rows[file.partition] += file.record_count


def _needed(
    index: DeleteIndex, live: LiveEntry, types: Mapping[int, str], needs: dict[FileKey, int]
) -> tuple[ManifestEntry, ...]:
    """Return the deletes that may remove rows of a data file, and count them in ``needs``."""
    needed = tuple(index.needed_by(live.entry, live.manifest.partition_spec_id, types))
    for entry in needed:
        needs[entry.file.key] += 1
    return needed


class _CandidateMaker:
    """Makes candidates from manifest entries, with shared parts."""

    def __init__(
        self,
        metadata: TableMetadata,
        policy: Policy,
        destinations: OutputPartitions,
        types: Mapping[int, str],
        passed: Mapping[PassedOver, Tally],
        extents_of: Callable[[DataFile], Extents] | None,
        misread_in: Callable[[DataFile], frozenset[int]] | None,
        *,
        cuts: bool,
    ) -> None:
        self._metadata, self._policy, self._destinations = metadata, policy, destinations
        self._kept = passed[PassedOver.KEPT]
        self._row_bytes, self._extents_of, self._cuts = likely_row_bytes(types.values()), extents_of, cuts
        self._misread_in, self._shared = misread_in, SharedParts()

    def candidate(
        self,
        live: LiveEntry,
        deletes: tuple[ManifestEntry, ...],
        lacks: frozenset[RewriteReason],
        *,
        has_debt: bool,
        is_clustered: bool,
    ) -> tuple[GroupKey, Candidate]:
        file, spec_id = live.entry.file, live.manifest.partition_spec_id
        destination = self._destinations.destination(file, spec_id)
        home, to = self._shared.home(spec_id, file.partition, destination)
        if destination[0] == spec_id and (why := self._destinations.why_kept(file, spec_id)):
            self._kept.add(file, f"{file.file_path}, {why}")
        is_fit = self._has_fit_row_groups(file, lacks)
        may_be_copied, is_likely_copied = is_fit and not _touch_all(deletes, file), is_fit and not deletes
        cut = pieces(file, self._policy) if self._cuts else ()
        misread = None if self._misread_in is None else self._misread_in(file)
        condition = self._shared.condition(
            file.file_format, deletes, has_debt, is_clustered, lacks, may_be_copied, is_likely_copied, cut, misread
        )
        candidate = Candidate(
            file_path=file.file_path,
            file_size_in_bytes=file.file_size_in_bytes,
            record_count=file.record_count,
            first_row_id=file.first_row_id,
            home=home,
            origin=self._shared.origin(live, self._origin),
            condition=condition,
            extents=() if self._extents_of is None else self._extents_of(file),
        )
        return (to, candidate.has_lineage, ()), candidate

    def _has_fit_row_groups(self, file: DataFile, lacks: frozenset[RewriteReason]) -> bool:
        """Whether a file that ``lacks`` something has row groups large enough to be copied, as far as is known."""
        least = self._policy.min_row_group_copy_bytes
        if least is None or self._policy.rewrite_all:  # ``rewrite_all`` asks for new files
            return False

        def is_enough_for(row_groups: int) -> bool:
            fills_memory = file.record_count * self._row_bytes >= FULL_ROW_GROUP_BYTES * row_groups
            return fills_memory or file.file_size_in_bytes >= least * row_groups

        return (
            is_enough_for(1)  # false for most small files; finding the split offsets takes as long as everything else
            and file.file_format.upper() == "PARQUET"
            and file.key_metadata is None
            and not lacks & _DECODED_FOR
            and is_enough_for(max(1, len(file.split_offsets or ())))
        )

    def _origin(self, live: LiveEntry) -> Origin:
        entry, added_ms = live.entry, _added_ms(self._metadata, live.entry)
        # The data sequence number if another writer lost the file sequence number; v1 has neither.
        number = entry.sequence_number if entry.file_sequence_number is None else entry.file_sequence_number
        return Origin(
            manifest_path=live.manifest.manifest_path,
            snapshot_id=entry.snapshot_id,
            sequence_number=entry.sequence_number or 0,
            file_sequence_number=entry.file_sequence_number,
            age=(number if self._metadata.format_version > 1 else added_ms) or 0,
            added_ms=added_ms,
        )


def _why_passed_over(
    entry: ManifestEntry, deletes: Sequence[ManifestEntry], state: TableState, policy: Policy, types: Mapping[int, str]
) -> tuple[PassedOver | None, str]:
    """The first reason not to rewrite a file, and for an unsupported file a sentence with its path; ``None``: no
    reason."""
    file = entry.file
    if entry.snapshot_id in state.ordered_by_table:
        return PassedOver.ORDERED_BY_TABLE, ""
    if deletes and not (policy.delete_compaction_enabled or policy.rewrite_all):
        return PassedOver.UNDER_DELETES, ""
    if state.unreadable:
        for path in (file.file_path, *(delete.file.file_path for delete in deletes)):
            if path in state.unreadable:
                return PassedOver.UNSUPPORTED, state.unreadable[path]
    why = why_unreadable(file, deletes, types)
    if why is not None:
        return PassedOver.UNSUPPORTED, f"{file.file_path} {why}"
    return None, ""


def _added_ms(metadata: TableMetadata, entry: ManifestEntry) -> int | None:
    """Epoch milliseconds of the snapshot that added the file; ``None``: that snapshot has expired."""
    snapshot = metadata.snapshots.get(entry.snapshot_id) if entry.snapshot_id is not None else None
    return None if snapshot is None else snapshot.timestamp_ms


def _listed_once(partitions: Mapping[GroupKey, list[Candidate]], listed: array[int]) -> dict[GroupKey, list[Candidate]]:
    """The candidates with a single live entry.

    The specification forbids two entries of one file, and readers read such a file twice.  Replacing one of the entries
    would add its rows again or remove the rows of the other entry.  ``listed`` has the hashes of the paths of all live
    data files, because there may be millions of files.
    """
    twice = repeated(listed)
    if not twice:
        return dict(partitions)
    return {key: [c for c in files if path_hash(c.file_path) not in twice] for key, files in partitions.items()}


def path_hash(path: str) -> int:
    """A 64-bit hash that is the same in every process."""
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little", signed=True)


def repeated(hashes: Iterable[int]) -> frozenset[int]:
    """The hashes that occur more than once."""
    # Build a single set at a time, because a set takes seven times as much memory as the hashes.
    buckets = [array("q") for _ in range(64)]
    for number in hashes:
        buckets[number & 63].append(number)
    found = (Counter(bucket) for bucket in buckets if len(set(bucket)) < len(bucket))
    return frozenset(number for counts in found for number, count in counts.items() if count > 1)


def _size_rule(
    policy: Policy,
    sizes: OutputSizes,
    in_scope: FileScope,
    passed: Mapping[PassedOver, Tally],
    *,
    clusters: bool,
    cuts: bool,
) -> Callable[[LiveEntry, Sequence[ManifestEntry]], bool]:
    """Return a predicate: is a file, given its deletes, a candidate because of its size or order alone?

    The predicate counts large files that cannot be cut in ``passed``.
    """
    large = large_from(policy) if cuts else math.inf
    small: float = policy.min_file_size_bytes if policy.rewrite_enabled else -math.inf
    if policy.rewrite_all or (policy.rewrite_enabled and clusters):
        small = math.inf

    def is_by_size(live: LiveEntry, needed: Sequence[ManifestEntry]) -> bool:
        file = live.entry.file
        if file.file_size_in_bytes < small:
            return sizes.is_small(live.entry, small)
        if file.file_size_in_bytes < large or needed:
            return False
        if not pieces(file, policy):
            if in_scope(file, live.manifest.partition_spec_id):
                passed[PassedOver.UNCUT].add(file)
            return False
        return True

    return is_by_size


def _is_indebted(file: DataFile, deletes: Sequence[ManifestEntry], policy: Policy) -> bool | None:
    """Whether a data file has many deletes; ``None``: some delete files cover several data files, so all must be known
    first."""
    if len(deletes) >= policy.delete_compaction_min_deletes and not policy.convert_equality_deletes:
        return True
    deleted = known_deleted_rows(file, deletes)
    if deleted > 0 and deleted >= policy.delete_compaction_min_ratio * file.record_count:
        return True
    return None if any(is_of_several_files(entry.file) for entry in deletes) else False


def is_of_several_files(delete: DataFile) -> bool:
    """Whether it is a position delete file that may name several data files, such as a conversion writes in v2."""
    is_by_position = delete.content is FileContent.POSITION_DELETES and delete.content_offset is None
    return is_by_position and named_file(delete) is None


def rows_spread(
    index: DeleteIndex, needs: Mapping[FileKey, int], by_partition: Counter[tuple[PartitionValue, ...]]
) -> dict[FileKey, int]:
    """For each delete file that does not name a single data file, the number of data files over which its rows are
    spread: those of its partition, or of the table.

    Data files that no longer need the delete file count too; otherwise the last data file that needs it would seem full
    of deleted rows.
    """
    total = by_partition.total()
    return {
        entry.file.key: max(
            needs[entry.file.key], by_partition[entry.file.partition] if entry.file.partition else total
        )
        for entry in index.entries
        if entry.file.content is FileContent.EQUALITY_DELETES or is_of_several_files(entry.file)
    }


def _take_likely_indebted(
    partitions: dict[GroupKey, list[Candidate]],
    undecided: Mapping[GroupKey, Iterable[Candidate]],
    rows_of: Mapping[tuple[PartitionValue, ...], int],
    policy: Policy,
) -> None:
    """For a delete file that covers several data files, assume that its rows are spread evenly over the rows of its
    partition; add the undecided files whose estimated deleted share reaches the ratio."""
    for key, files in undecided.items():
        for candidate in files:
            share = Fraction(known_deleted_rows(candidate, candidate.deletes), max(1, candidate.record_count))
            for delete in (entry.file for entry in candidate.deletes if is_of_several_files(entry.file)):
                share += Fraction(delete.record_count, max(1, rows_of[delete.partition]))
            if share >= policy.delete_compaction_min_ratio:
                partitions[key].append(candidate)


def likely_deleted_rows(candidate: Candidate, spread: Mapping[FileKey, int]) -> float:
    """The number of deleted rows of a data file; an estimate if a delete file also covers other data files."""
    if not candidate.deletes:
        return 0.0
    return known_deleted_rows(candidate, candidate.deletes) + sum(
        entry.file.record_count / max(1, spread[entry.file.key])
        for entry in candidate.deletes
        if entry.file.key in spread
    )


def known_deleted_rows(file: DataFile | Candidate, deletes: Iterable[ManifestEntry]) -> int:
    """The number of rows deleted by deletion vectors and by position deletes that name only this data file."""
    vectors = [e.file for e in deletes if e.file.content_offset is not None]
    only_this = vectors or [e.file for e in deletes if named_file(e.file) == file.file_path]
    return min(file.record_count, sum(delete.record_count for delete in only_this))


# Manifests show which files a rewrite is likely to copy instead of decoding them.  The worker reads only the footers of
# these files, and the footer decides (``icekeeper.row_group_copy.copyable``).

# The other reasons allow copies: a file of another spec has only rows of the output's partition.
_DECODED_FOR = frozenset({RewriteReason.CODEC, RewriteReason.BLOOM})


def _touch_all(deletes: Sequence[ManifestEntry], file: DataFile) -> bool:
    """Whether deletes probably touch every row group of a file.

    Deletion vectors and most position deletes name their file, so they always touch one row group.  Equality deletes
    may touch none, because all their keys may belong to other files.
    """
    touched = any(entry.file.content is FileContent.POSITION_DELETES for entry in deletes)
    return touched and len(file.split_offsets or ()) <= 1


def rest_rule(metadata: TableMetadata, policy: Policy, now_ms: int) -> Callable[[Sequence[Candidate]], bool]:
    """Return a predicate: is a partition with exactly these candidates at rest, so writers have probably finished?

    No file has arrived for ``partition_rest_hours``, and for at least as long as files had been arriving.  By
    ``partition_rest_hours`` alone, a table that gets a file a day would be at rest once a day, and would be merged as a
    whole each time.  A partition without any file of known time is at rest, too.
    """
    # The time of the oldest retained snapshot; older files have no known time.
    known_since_ms = min((snapshot.timestamp_ms for snapshot in metadata.snapshots.values()), default=now_ms)
    least_ms = policy.partition_rest_ms

    def is_at_rest(candidates: Sequence[Candidate]) -> bool:
        added_ms = [c.added_ms for c in candidates if c.added_ms is not None]
        if not added_ms:
            return True
        newest_ms = max(added_ms)
        oldest_ms = min(added_ms) if len(added_ms) == len(candidates) else known_since_ms
        return newest_ms + max(least_ms, newest_ms - oldest_ms) <= now_ms

    return is_at_rest


def well_spelled(needs: Mapping[FileKey, int], index: DeleteIndex, listed: Iterable[int]) -> Mapping[FileKey, int]:
    """Return ``needs`` (delete file → how many live data files need it) after checking the delete files with 0.

    Such a delete is dangling and may be dropped, unless it names a live data file in another spelling
    (rule: unreadable-delete-blocks-its-files).  ``listed`` has the hashes of the paths of all live data files.

    Raises:
        MetadataUnreadable: an unneeded delete names a live data file in another spelling.
    """
    named = [(path, entry) for path, entry in index.vectors.items()]
    named += [(path, entry) for path, entries in index.positions_by_path.items() for entry in entries]
    dangling = [(path, entry) for path, entry in named if needs[entry.file.key] == 0]
    spelled = {path_hash(other): (entry, path, other) for path, entry in dangling for other in other_spellings(path)}
    for number in listed if spelled else ():
        if number in spelled:
            entry, path, other = spelled[number]
            raise misspelled(entry.file.file_path, path, other)
    return needs
