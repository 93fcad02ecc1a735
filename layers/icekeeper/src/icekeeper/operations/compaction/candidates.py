"""Picks the live data files that are worth rewriting, and counts how many files need each delete file (pure)."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from icekeeper.metadata.delete_scope import DeleteIndex, DeleteIndexBuilder, partition_key
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import (
    DataFile,
    FileContent,
    FileIdentity,
    FileKey,
    LiveEntry,
    ManifestEntry,
    ManifestFile,
    PartitionValue,
)
from icekeeper.operations.compaction.deleted_rows import equality_spread, known_deleted_rows
from icekeeper.operations.compaction.file_age import added_ms, age_of, is_old_enough
from icekeeper.operations.compaction.large_files import large_from, pieces
from icekeeper.operations.compaction.misspelled_deletes import well_spelled
from icekeeper.operations.compaction.output_partition import Destination, OutputPartitions
from icekeeper.operations.compaction.output_sizes import AS_THEY_ARE, OutputSizes
from icekeeper.operations.compaction.recipe import has_order
from icekeeper.policy import Policy
from icekeeper.policy.choices import OutputSpec, RewriteReason
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.readable import why_unreadable
from icekeeper.rows.row_memory import likely_row_bytes

__all__ = ["Candidate", "Candidates", "FileScope", "PassedOver", "TableState", "Tally", "select_candidates"]

_NO_DELETES: tuple[ManifestEntry, ...] = ()
_LACKS_NOTHING: frozenset[RewriteReason] = frozenset()

FileScope: TypeAlias = Callable[[DataFile, int], bool]
"""Whether a data file of a spec id may be rewritten at all."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What a plan is made from: a table at the head of a branch, as its metadata tells."""

    metadata: TableMetadata
    snapshot: Snapshot | None
    """The head of the branch; ``None``: it has no snapshot yet."""
    manifests: Sequence[ManifestFile] = ()
    """All manifests of the snapshot."""
    live_files: Iterable[LiveEntry] = ()
    """The live entries of its data manifests.  They are read once, and only candidates are kept."""
    deletes: DeleteIndex = field(default_factory=lambda: DeleteIndexBuilder().build())
    """Its live delete files."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Data and delete files that are left alone because passes could not read them: path → a sentence that names it."""
    ordered_elsewhere: Container[int] = frozenset()
    """Ids of the snapshots whose files another rhythm of the table has ordered, so that this one leaves them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A data file that may be rewritten."""

    file: DataFile
    spec_id: int
    age: int
    """Orders files by when they were added, the oldest first."""
    manifest_path: str
    identity: FileIdentity
    deletes: tuple[ManifestEntry, ...] = ()
    """The entries of the delete files that may remove some of its rows."""
    has_debt: bool = False
    """Whether its deletes alone are reason enough to rewrite it."""
    destination: Destination | None = None
    """The spec and partition that its rows go to; ``None``: they stay in the file's own."""
    is_clustered: bool = False
    """Whether its rows already have the order that this plan's recipe asks for."""
    lacks: frozenset[RewriteReason] = frozenset()
    """What it lacks that ``rewrite_reason`` names."""
    row_bytes: int = 0
    """About what a row of the table takes in memory."""
    added_ms: int | None = None
    """When it was added, by a writer or a rewrite, in epoch milliseconds; ``None``: the snapshot has expired."""

    @property
    def sequence_number(self) -> int:
        """Its data sequence number."""
        return self.identity.sequence_number

    @property
    def is_due(self) -> bool:
        """Whether it is to be rewritten even by itself."""
        return self.has_debt or bool(self.lacks)

    @property
    def has_lineage(self) -> bool:
        """Whether its rows have ids already; never below v3, nor before the first commit after an upgrade to v3.

        Rows without ids get them from the commit, so they must not share a file with rows that keep their ids
        (rule 18).
        """
        return self.file.first_row_id is not None


@dataclass(slots=True)
class Tally:
    """Files, and their bytes."""

    files: int = 0
    bytes: int = 0

    def add(self, file: DataFile) -> None:
        self.files += 1
        self.bytes += file.file_size_in_bytes


@dataclass(slots=True)
class PassedOver:
    """Files that would be candidates, but for one reason, by that reason."""

    unsupported: Tally = field(default_factory=Tally)
    """They cannot be read by this version, or could not be read lately."""
    first_unsupported: str = ""
    """The path of the first of these and why it cannot be read; empty when there is none."""
    too_young: Tally = field(default_factory=Tally)
    """They were added less than ``min_data_age_hours`` ago."""
    under_deletes: Tally = field(default_factory=Tally)
    """They carry deletes, and ``delete_compaction_enabled`` is off."""
    ordered_elsewhere: Tally = field(default_factory=Tally)
    """Another rhythm of the table has ordered them."""
    uncut: Tally = field(default_factory=Tally)
    """They are far above a target that was set, and their row groups leave no place to cut them."""

    def takes(
        self, file: DataFile, *, ordered_elsewhere: bool, under_deletes: bool, unreadable: str | None, too_young: bool
    ) -> bool:
        """Whether there is a reason; the first one counts.  ``unreadable`` is a sentence."""
        if ordered_elsewhere:
            self.ordered_elsewhere.add(file)
        elif under_deletes:
            self.under_deletes.add(file)
        elif unreadable is not None:
            self.unsupported.add(file)
            self.first_unsupported = self.first_unsupported or unreadable
        elif too_young:
            self.too_young.add(file)
        return ordered_elsewhere or under_deletes or unreadable is not None or too_young


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a table, and what else was seen on the way."""

    partitions: tuple[list[Candidate], ...]
    """Candidates whose outputs have the same spec and partition; those without row ids are in a list of their own."""
    delete_needs: Mapping[FileKey, int]
    """Live delete file → how many live data files need it; 0: dangling."""
    spread: Mapping[FileKey, int]
    """Live equality delete file → over how many live data files its rows were spread, at most."""
    considered: int
    """How many live data files there are."""
    passed_over: PassedOver
    specs_to_leave: frozenset[int]
    """Ids of older specs whose rows may be dealt out to partitions of the current spec."""


def select_candidates(
    state: TableState,
    policy: Policy,
    *,
    now_ms: int,
    in_scope: FileScope = lambda file, spec_id: True,
    clustered_by: Container[int] | None = None,
    lacking: Mapping[str, frozenset[RewriteReason]] = MappingProxyType({}),
    order_id: int | None = None,
    cuts: bool = False,
    sizes: OutputSizes = AS_THEY_ARE,
) -> Candidates:
    """Pick files that are small, carry delete debt or (``cuts``) can be cut; or all (``rewrite_all``, or a recipe).

    Files that are not ``in_scope`` are left alone, but still need their deletes.  ``clustered_by`` are the ids of the
    snapshots that added files clustered by this plan's recipe, which are picked too, because runs of them may pile up;
    ``None``: no recipe.  ``order_id`` is the table's sort order, if it is the recipe: files of expired snapshots that
    claim it are clustered, too.  ``lacking``: path → what the file lacks by its footer.  Raises as well_spelled does.
    """
    metadata, index = state.metadata, state.deletes
    types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(metadata.current_schema)}
    destinations = OutputPartitions(metadata, keep=policy.output_spec is OutputSpec.KEEP or index.has_equality_deletes)
    needs = {entry.file.key: 0 for entry in index.entries}
    passed, listed, partitions = PassedOver(), array("q"), dict[object, list[Candidate]]()
    by_partition: Counter[tuple[PartitionValue, ...]] = Counter()
    row_bytes, latest_ms = likely_row_bytes(types.values()), now_ms - policy.min_data_age_ms
    is_by_size = _size_rule(policy, sizes, in_scope, passed, clusters=clustered_by is not None, cuts=cuts)
    asks_each = not index.is_empty or bool(lacking) or RewriteReason.SPEC in policy.rewrite_reason
    for live in state.live_files:
        file, spec_id = live.entry.file, live.manifest.partition_spec_id
        if file.content is not FileContent.DATA:
            continue
        listed.append(hash(file.file_path))
        needed, lacks = _NO_DELETES, _LACKS_NOTHING
        if asks_each:
            by_partition[file.partition] += 1
            needed = _needed(index, live, types, needs)
            lacks = lacking.get(file.file_path, lacks) | _lacks_the_spec(file, spec_id, policy, destinations)
        has_debt = bool(needed) and policy.delete_compaction_enabled and _is_indebted(file, needed, policy)
        if not ((has_debt or lacks or is_by_size(live, needed)) and in_scope(file, spec_id)):
            continue
        if passed.takes(
            file,
            ordered_elsewhere=live.entry.snapshot_id in state.ordered_elsewhere,
            under_deletes=bool(needed) and not (policy.delete_compaction_enabled or policy.rewrite_all),
            unreadable=_why_left(file, needed, types, state.unreadable),
            too_young=not is_old_enough(metadata, live.entry, latest_ms),
        ):
            continue
        to, order = destinations.destination(file, spec_id), has_order(live, metadata, clustered_by, order_id)
        candidate = _candidate(metadata, live, needed, to, has_debt, lacks, is_clustered=order, row_bytes=row_bytes)
        partitions.setdefault((partition_key(to.spec_id, to.partition), candidate.has_lineage), []).append(candidate)
    return Candidates(
        partitions=_listed_once(partitions.values(), listed),
        delete_needs=well_spelled(needs, index, listed),
        spread=equality_spread(index, needs, by_partition),
        considered=len(listed),
        passed_over=passed,
        specs_to_leave=frozenset(filter(destinations.may_deal_out, metadata.specs)),
    )


def _needed(
    index: DeleteIndex, live: LiveEntry, types: Mapping[int, str], needs: dict[FileKey, int]
) -> tuple[ManifestEntry, ...]:
    """The deletes that may remove rows of a data file; each is counted in ``needs``."""
    needed = tuple(index.needed_by(live.entry, live.manifest.partition_spec_id, types))
    for entry in needed:
        needs[entry.file.key] += 1
    return needed


def _why_left(
    file: DataFile, deletes: Sequence[ManifestEntry], types: Mapping[int, str], unreadable: Mapping[str, str]
) -> str | None:
    """A sentence with the path of a file that must be left alone; ``None`` where it can be read, as far as is known."""
    if unreadable:
        paths = (file.file_path, *(entry.file.file_path for entry in deletes))
        known = next((unreadable[path] for path in paths if path in unreadable), None)
        if known is not None:
            return known
    why = why_unreadable(file, deletes, types)
    return None if why is None else f"{file.file_path} {why}"


def _lacks_the_spec(file: DataFile, spec_id: int, policy: Policy, to: OutputPartitions) -> frozenset[RewriteReason]:
    """Whether a rewrite is wanted because the file lies in an older spec, and would move it to the current one."""
    if RewriteReason.SPEC not in policy.rewrite_reason:
        return frozenset()
    return frozenset({RewriteReason.SPEC} if to.destination(file, spec_id).spec_id != spec_id else ())


def _candidate(
    metadata: TableMetadata,
    live: LiveEntry,
    deletes: tuple[ManifestEntry, ...],
    destination: Destination,
    has_debt: bool,
    lacks: frozenset[RewriteReason],
    *,
    is_clustered: bool,
    row_bytes: int,
) -> Candidate:
    return Candidate(
        file=live.entry.file,
        spec_id=live.manifest.partition_spec_id,
        age=age_of(metadata, live.entry),
        manifest_path=live.manifest.manifest_path,
        identity=live.entry.identity,
        deletes=deletes,
        destination=destination,
        has_debt=has_debt,
        lacks=lacks,
        is_clustered=is_clustered,
        row_bytes=row_bytes,
        added_ms=added_ms(metadata, live.entry),
    )


def _listed_once(partitions: Iterable[list[Candidate]], listed: Sequence[int]) -> tuple[list[Candidate], ...]:
    """The candidates that only one live entry names; ``listed`` are the hashes of the paths of all live data files.

    Hashes, because there may be millions of files.  Readers read a file twice that is listed twice (the specification
    forbids it): replacing one of its entries would add its rows once more, or take away those of the other (rule 24).
    """
    partitions = tuple(partitions)
    own = {hash(candidate.file.file_path) for files in partitions for candidate in files}
    counts = Counter(number for number in listed if number in own)
    return tuple([c for c in files if counts[hash(c.file.file_path)] == 1] for files in partitions)


def _size_rule(
    policy: Policy, sizes: OutputSizes, in_scope: FileScope, passed: PassedOver, *, clusters: bool, cuts: bool
) -> Callable[[LiveEntry, Sequence[ManifestEntry]], bool]:
    """Whether a file is a candidate for its size or order alone, which is all that is asked of most files.

    Also given are the deletes that it needs.  ``passed`` counts large files that cannot be cut.
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
                passed.uncut.add(file)
            return False
        return True

    return is_by_size


def _is_indebted(file: DataFile, deletes: Sequence[ManifestEntry], policy: Policy) -> bool:
    if len(deletes) >= policy.delete_compaction_min_deletes:
        return True
    deleted = known_deleted_rows(file, deletes)
    return deleted > 0 and deleted >= policy.delete_compaction_min_ratio * file.record_count
