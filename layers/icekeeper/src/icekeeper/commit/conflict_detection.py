"""Which file groups can still be committed on the newest head, despite commits since planning
(rule: drop-groups-new-deletes-would-miss)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.errors import PlanStale
from icekeeper.metadata.delete_scope import DeleteIndexBuilder, is_unpartitioned, may_name, named_file, partition_key
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import (
    DataFile,
    FileContent,
    FileIdentity,
    FileKey,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionValue,
)

Scope = tuple[int, tuple[PartitionValue, ...]]


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """What must still hold for a rewritten group to be committed: its inputs, and what its outputs contain."""

    group_id: int
    output_scopes: frozenset[Scope]
    """Spec and partition of its outputs; empty when all its rows are deleted."""
    input_scopes: frozenset[Scope]
    inputs: Mapping[FileKey, tuple[str, FileIdentity]]
    """Input → the path of its manifest and its identity, both as they were at planning."""
    output_field_ids: frozenset[int]
    deletes: Mapping[FileKey, int] = field(default_factory=dict)
    """Delete file that was applied → how many of the inputs needed it."""
    position_deletes: frozenset[FileKey] = frozenset()
    """The position deletes and deletion vectors that were applied, including those committed after planning."""
    homes: Mapping[str, Scope] = field(default_factory=dict)
    """Input → its spec and partition, if newer position deletes of it can be forwarded to the outputs.

    Empty: such a delete drops the group.
    """
    without_row_ids: bool = False
    """The rows had no ids when they were read, so the outputs contain none.

    Such groups can only be in the first v3 commit of a branch, which gives every row an id, even in files that it does
    not replace.  So a rewrite of several commits reads the ids after its first commit, before it begins more groups.
    """


@dataclass(frozen=True, slots=True)
class RebaseResult:
    """Which groups may commit on this head."""

    kept: frozenset[int]
    dropped: Mapping[int, str]
    """Group → why it must not be committed."""
    unneeded_deletes: frozenset[FileKey]
    """Delete files that no live data file needs any more."""
    delete_manifests: Mapping[FileKey, str]
    """Live delete file → path of its manifest; empty if neither plan nor groups have deletes."""
    manifests: Sequence[ManifestFile]
    """The manifests of the head."""
    affected: frozenset[str]
    """Paths of the manifests to rewrite."""
    moved_on: Mapping[int, Mapping[str, tuple[ManifestEntry, ...]]] = field(default_factory=dict)
    """Kept group whose inputs have other position deletes than it applied → input → all deletes that apply to it."""
    newer: tuple[LiveEntry, ...] = ()
    """The position deletes since planning that may name inputs of kept groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningState:
    """The table at the time of planning."""

    metadata: TableMetadata
    snapshot_id: int
    """The head of the plan's branch at that time."""
    manifests: Collection[str]
    """Paths of that snapshot's manifests."""
    delete_needs: Mapping[FileKey, int] = field(default_factory=dict)
    """Live delete file → how many live data files needed it; empty where the plan does not remove any."""
    own_snapshots: Collection[int] = ()
    """Snapshots of earlier commits of the same plan: the deletes that they applied do not concern their outputs."""

    @property
    def sequence_number(self) -> int:
        """The sequence number of the planning snapshot."""
        return self.metadata.snapshots[self.snapshot_id].sequence_number


# Entries of delete manifests that are kept between the attempts at one commit: about 100 MB.
_MOST_KEPT = 100_000


class DeleteManifests:
    """The live entries of delete manifests, decoded once for all attempts at a commit.

    A table with a delete every second lists hundreds of new delete manifests by the end of a rewrite.  An attempt that
    decoded all of them would take longer than the time until the next delete, and lose every swap.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[LiveEntry, ...]] = {}
        self._count = 0

    def live_entries(self, reader: TableReader, manifests: Iterable[ManifestFile]) -> Iterator[LiveEntry]:
        """Every live entry of the delete manifests among ``manifests``.

        Raises:
            MetadataUnreadable: a manifest cannot be read.
        """
        for manifest in manifests:
            if manifest.content is not ManifestContent.DELETES or not manifest.may_have_live_files:
                continue
            found = self._kept.get(manifest.manifest_path)
            if found is None:
                found = tuple(reader.live_entries([manifest], ManifestContent.DELETES))
                if self._count + len(found) <= _MOST_KEPT:
                    self._kept[manifest.manifest_path] = found
                    self._count += len(found)
            yield from found


def rebase(
    planned: PlanningState,
    head: TableMetadata,
    reader: TableReader,
    branch: str,
    groups: Sequence[GroupClaim],
    deletes: DeleteManifests | None = None,
) -> RebaseResult:
    """Decide per group whether it may be committed on ``head``.

    ``reader`` reads the head.  Of the data manifests only those that did not exist at planning are opened.  ``deletes``
    is shared by the attempts at one commit.

    Raises:
        PlanStale: the table was replaced, or the planning snapshot is not certainly an ancestor of the head (a
            rollback, an expiry), so rows that no group contains may have come back (rule: same-table-same-history).
        MetadataUnreadable: the head's manifests cannot be read.
    """
    manifests = reader.manifests(_later_snapshot(planned, head, branch))
    new = [m for m in manifests if m.manifest_path not in planned.manifests and m.may_have_live_files]
    inputs = _locate(groups, manifests, new, reader)
    revived = _revived_columns(planned.metadata, head)
    dropped = {group.group_id: why for group in groups if (why := _why_overtaken(group, head, inputs, revived))}
    deletes = deletes or DeleteManifests()
    hits = deletes.live_entries(reader, new)
    newer, refused = _hits_of_new_deletes(groups, head, hits, planned.sequence_number)
    dropped = refused | dropped
    asked = planned.delete_needs or any(group.deletes or group.position_deletes for group in groups)
    listed = deletes.live_entries(reader, manifests) if asked else ()
    live_deletes, live = _live_deletes(listed, planned)
    dropped |= _taken_back(groups, live_deletes, dropped)
    moved_on = [
        group
        for group in groups
        if group.group_id not in dropped
        and not {hit.entry.file.key for hit in newer[group.group_id]} <= group.position_deletes <= live
    ]
    reaching = _position_deletes(moved_on, newer, head, deletes.live_entries(reader, manifests)) if moved_on else {}
    dropped |= {group_id: found for group_id, found in reaching.items() if isinstance(found, str)}
    kept = [group for group in groups if group.group_id not in dropped]
    unneeded = _unneeded(planned.delete_needs, kept, live_deletes)
    foreign = (m for m in new if m.content is ManifestContent.DATA and m.added_snapshot_id not in planned.own_snapshots)
    if any(m.min_sequence_number <= planned.sequence_number for m in foreign):
        # Old deletes may apply to files that other commits added with old sequence numbers: a later pass decides.
        unneeded = frozenset()
    affected = {inputs.location[key] for group in kept for key in group.inputs}
    affected.update(live_deletes[key] for key in unneeded)
    return RebaseResult(
        kept=frozenset(group.group_id for group in kept),
        dropped=dropped,
        unneeded_deletes=unneeded,
        delete_manifests=live_deletes,
        manifests=manifests,
        affected=frozenset(affected),
        moved_on={group_id: found for group_id, found in reaching.items() if not isinstance(found, str)},
        newer=tuple({hit.entry.file.key: hit for group in kept for hit in newer[group.group_id]}.values()),
    )


def _later_snapshot(planned: PlanningState, head: TableMetadata, branch: str) -> Snapshot:
    """The snapshot that ``branch`` points at on ``head``.

    Another engine may have expired the planning snapshot itself.  The head's history is still complete if its oldest
    snapshot names the planning snapshot as its parent.

    Raises:
        PlanStale: it is not certain that the snapshot descends from the planning snapshot.
    """
    if head.uuid != planned.metadata.uuid:
        raise PlanStale("the table was replaced by another table of the same name; nothing was changed")
    snapshot, wanted = head.head(branch), planned.snapshot_id
    line = () if snapshot is None else tuple(head.ancestors(snapshot.snapshot_id))
    if snapshot is not None and (line[-1].parent_id == wanted or any(wanted == each.snapshot_id for each in line)):
        return snapshot
    if snapshot is None or wanted in head.snapshots:
        raise PlanStale(f"the table was rolled back past snapshot {wanted}; plan again")
    raise PlanStale(
        f"the commits since snapshot {wanted} are not known, because snapshots after it have expired; plan again"
    )


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of all groups on the new head."""

    location: Mapping[FileKey, str]
    """Input that is still in the table → path of its manifest."""
    changed: Collection[FileKey]
    """Inputs that were added again: their path has two entries, or its entry describes another file."""
    numbered: Collection[str]
    """Manifests with a first row id."""


def _why_overtaken(group: GroupClaim, head: TableMetadata, inputs: _Inputs, revived: frozenset[int]) -> str | None:
    """Why a group must not be committed, judged by its inputs, the specs and the schema; ``None``: it may."""
    if any(key not in inputs.location for key in group.inputs):
        return "another commit removed or rewrote an input file"
    if any(key in inputs.changed for key in group.inputs):
        return "another commit added an input file again"
    if removed := {spec_id for spec_id, _ in group.output_scopes} - head.specs.keys():
        return f"partition spec {min(removed)} was removed"
    if lacking := revived - group.output_field_ids:
        return f"the schema has column {min(lacking)} again, which the output lacks"
    if group.without_row_ids and any(inputs.location[key] in inputs.numbered for key in group.inputs):
        # The first v3 commit gives every row an id; outputs without these ids would get new ids
        # (rule: rows-keep-their-lineage).
        return "another commit gave the rows of an input file ids"
    return None


def _hits_of_new_deletes(
    groups: Sequence[GroupClaim], head: TableMetadata, new: Iterable[LiveEntry], sequence_number: int
) -> tuple[Mapping[int, Sequence[LiveEntry]], dict[int, str]]:
    """Group → the deletes that landed after planning and must be forwarded (perhaps none); and group → why such a
    delete forbids its commit."""
    newer: dict[int, list[LiveEntry]] = defaultdict(list)
    refused: dict[int, str] = {}
    # A busy table has many groups and many deletes: each delete is compared only with groups to which it may apply.
    by_path = {path: group for group in groups for path, _ in group.inputs}
    by_scope: dict[tuple[object, ...], list[GroupClaim]] = defaultdict(list)
    for group in groups:
        for scope in {_comparable(scope) for scope in group.input_scopes | group.output_scopes}:
            by_scope[scope].append(group)
    for live in new:
        delete, spec_id = live.entry.file, live.manifest.partition_spec_id
        if (live.entry.sequence_number or 0) <= sequence_number:
            continue
        is_global = is_unpartitioned(head.specs[spec_id])
        if (named := named_file(delete)) is not None:
            concerned: Sequence[GroupClaim] = [by_path[named]] if named in by_path else ()
        elif delete.content is FileContent.EQUALITY_DELETES and is_global:
            concerned = groups
        else:
            concerned = by_scope[_comparable((spec_id, delete.partition))]
        for group in concerned:
            why = _hit(delete, spec_id, is_global, group)
            if why is not None:
                if group.homes and delete.content is FileContent.POSITION_DELETES:
                    newer[group.group_id].append(live)
                else:
                    refused.setdefault(group.group_id, why)
    return newer, refused


def _position_deletes(
    groups: Sequence[GroupClaim],
    newer: Mapping[int, Sequence[LiveEntry]],
    head: TableMetadata,
    deletes: Iterable[LiveEntry],
) -> dict[int, str | Mapping[str, tuple[ManifestEntry, ...]]]:
    """Group → input → the position deletes that apply to it on the head; or why the group must not be committed."""
    builder = DeleteIndexBuilder()
    for manifest, entry in deletes:
        is_global = is_unpartitioned(head.specs[manifest.partition_spec_id])
        builder.add(manifest.partition_spec_id, entry, is_unpartitioned=is_global)
    index = builder.build()
    found: dict[int, str | Mapping[str, tuple[ManifestEntry, ...]]] = {}
    for group in groups:
        reaching = {
            path: tuple(index.positions_of(path, partition_key(*group.homes[path]), identity.sequence_number))
            for (path, _), (_, identity) in group.inputs.items()
        }
        reached = {entry.file.key for entries in reaching.values() for entry in entries}
        # A newer delete may name an input and yet not apply to it.  If a deletion vector replaces it, this is correct.
        # Otherwise the writer may have meant it to apply, for example if it spelled the partition differently.
        unclear = any(
            hit.entry.file.key not in reached and not index.vectors.keys() >= _named(hit.entry.file, group)
            for hit in newer[group.group_id]
        )
        found[group.group_id] = "another commit deleted rows of an input file" if unclear else reaching
    return found


def _named(delete: DataFile, group: GroupClaim) -> set[str]:
    return {path for path, _ in group.inputs if may_name(delete, path)}


def _taken_back(
    groups: Sequence[GroupClaim], live_deletes: Container[FileKey], dropped: Container[int]
) -> dict[int, str]:
    """The groups, apart from ``dropped``, that applied a delete which another commit undid, so its rows are live."""
    found: dict[int, str] = {}
    for group in groups:
        lost = {key for key in group.deletes if key not in live_deletes}
        if group.homes:
            lost -= group.position_deletes
        if lost and group.group_id not in dropped:
            found[group.group_id] = "a delete that was applied is no longer in the table"
    return found


def _live_deletes(
    deletes: Iterable[LiveEntry], planned: PlanningState
) -> tuple[dict[FileKey, str], frozenset[FileKey]]:
    """The live delete files that existed at planning, with their manifests; and all live delete files.

    A delete file that was removed and added again counts as new: it also applies to newer data files.
    """
    old: dict[FileKey, str] = {}
    live: set[FileKey] = set()
    for manifest, entry in deletes:
        key = entry.file.key
        live.add(key)
        if manifest.manifest_path in planned.manifests or (entry.sequence_number or 0) <= planned.sequence_number:
            old[key] = manifest.manifest_path
    return old, frozenset(live)


def _unneeded(
    needs: Mapping[FileKey, int], kept: Sequence[GroupClaim], live: Collection[FileKey]
) -> frozenset[FileKey]:
    """Deletes of which the kept groups replace every data file, and deletes that had no data file
    (rule: drop-deletes-only-when-dangling)."""
    replaced: Counter[FileKey] = Counter()
    for group in kept:
        replaced.update(group.deletes)
    return frozenset(key for key, count in needs.items() if count == replaced[key] and key in live)


def _locate(
    groups: Iterable[GroupClaim], manifests: Sequence[ManifestFile], new: Sequence[ManifestFile], reader: TableReader
) -> _Inputs:
    """Find each input on the new head.

    Manifests are immutable, so an input whose manifest is still listed is still there.  New manifests are read only
    if the manifest of an input is gone.
    """
    here = {m.manifest_path for m in manifests}
    numbered = {m.manifest_path for m in manifests if m.first_row_id is not None}
    claimed = {key: file for group in groups for key, file in group.inputs.items()}
    location = {key: manifest_path for key, (manifest_path, _) in claimed.items() if manifest_path in here}
    changed: set[FileKey] = set()
    if len(location) == len(claimed):
        return _Inputs(location, changed, numbered)
    for manifest, found in reader.identities(m for m in new if m.content is ManifestContent.DATA):
        for key, identity in found:
            if key not in claimed:
                continue
            _, planned = claimed[key]
            if key in location or not planned.is_same(identity):
                changed.add(key)
            location[key] = manifest.manifest_path
    return _Inputs(location, changed, numbered)


def _hit(delete: DataFile, spec_id: int, is_global: bool, group: GroupClaim) -> str | None:
    """Why a delete that landed after planning forbids the commit of a group; ``None``: it does not
    (rule: drop-groups-new-deletes-would-miss)."""
    here = _comparable((spec_id, delete.partition))
    same_partition = here in {_comparable(scope) for scope in group.input_scopes}
    if delete.content is FileContent.EQUALITY_DELETES:
        reaches_output = here in {_comparable(scope) for scope in group.output_scopes}
        if not (is_global or same_partition or reaches_output):
            return None
        if not is_global and group.output_scopes and group.output_scopes != group.input_scopes:
            return "a newer equality delete is bound to a partition that rows were moved out of or into"
        missing = set(delete.equality_ids or ()) - group.output_field_ids
        # Outputs keep the planning snapshot's sequence number, spec and partition, so the delete still applies.
        return f"a newer equality delete uses column {min(missing)}, which the output lacks" if missing else None
    # A delete that names its data file applies to it, whatever the delete's partition is.
    may_reach = same_partition or named_file(delete) is not None
    hit = may_reach and any(may_name(delete, path) for path, _ in group.inputs)
    return "another commit deleted rows of an input file" if hit else None


def _comparable(scope: Scope) -> tuple[object, ...]:
    """Spec and partition in a form in which equal values compare equal, even NaN and decimals of any stored width.

    A few different values then compare equal as well, which can only drop a group that could have been kept.
    """
    spec_id, partition = scope
    return spec_id, *(
        "NaN" if value != value else value.lstrip(b"\0\xff") if isinstance(value, bytes) else value
        for value in partition
    )


def _revived_columns(planned: TableMetadata, head: TableMetadata) -> frozenset[int]:
    """Columns that the planned schema lacked and older files may contain: a schema change was undone."""
    known = planned.document.get("last-column-id")
    before = set(_leaves({"type": "struct", **planned.current_schema}))
    now = set(_leaves({"type": "struct", **head.current_schema}))
    return frozenset(column for column in now - before if known is None or column <= int(known))


def _leaves(kind: Any, field_id: int = 0) -> Iterator[int]:
    """Ids of the primitive columns of a type."""
    if isinstance(kind, str):
        yield field_id
    elif kind["type"] == "struct":
        for child in kind["fields"]:
            yield from _leaves(child["type"], int(child["id"]))
    else:
        for part in ("element", "key", "value"):
            if part in kind:
                yield from _leaves(kind[part], int(kind[f"{part}-id"]))
