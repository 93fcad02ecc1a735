"""What happened between the planning snapshot and the newest head, and which file groups still hold (DESIGN 6.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.errors import PlanStale
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, FileContent, ManifestContent, ManifestFile, PartitionValue

__all__ = ["GroupClaim", "RebaseResult", "rebase"]

FileKey = tuple[str, int | None]

# Reserved field id of file_path in position delete files (specification, "Reserved Field IDs").
_DELETE_FILE_PATH_ID = 2147483546


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """What a rewritten group relies on: its inputs, where they were, and what its outputs hold."""

    group_id: int
    spec_id: int
    partition: tuple[PartitionValue, ...]
    inputs: Mapping[FileKey, str]
    """Input file → path of the manifest that held it at planning."""
    output_field_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class RebaseResult:
    """The groups that may commit on this head, why the others may not, and the manifests to rewrite."""

    kept: frozenset[int]
    dropped: Mapping[int, str]
    manifests: Sequence[ManifestFile]
    affected: frozenset[str]


def rebase(
    planned: TableMetadata,
    planning_manifests: Collection[str],
    planning_snapshot_id: int,
    head: TableMetadata,
    reader: TableReader,
    branch: str,
    groups: Sequence[GroupClaim],
) -> RebaseResult:
    """Decide per group whether it may be committed on ``head``.

    ``reader`` reads the head.  Only manifests that did not exist at planning are opened.

    Raises:
        PlanStale: the table was replaced, or the planning snapshot is no ancestor of the head (a rollback), so
            that rows may have come back that no group holds.
        MetadataUnreadable: the head's manifests cannot be read.
    """
    if head.uuid != planned.uuid:
        raise PlanStale("the table was replaced by another one of the same name; nothing was changed")
    snapshot = head.head(branch)
    if snapshot is None or all(s.snapshot_id != planning_snapshot_id for s in head.ancestors(snapshot.snapshot_id)):
        raise PlanStale(f"the table was rolled back past snapshot {planning_snapshot_id}; plan again")
    manifests = reader.manifests(snapshot)
    here = {m.manifest_path for m in manifests}
    new = [m for m in manifests if m.manifest_path not in planning_manifests and m.may_have_live_files]
    dropped: dict[int, str] = {}
    location = _locate(groups, here, new, reader)
    revived = _revived_columns(planned, head)
    for group in groups:
        if any(key not in location for key in group.inputs):
            dropped[group.group_id] = "an input file was removed or rewritten by another commit"
        elif group.spec_id not in head.specs:
            dropped[group.group_id] = f"partition spec {group.spec_id} was removed"
        elif lacking := revived - group.output_field_ids:
            dropped[group.group_id] = f"the schema has column {min(lacking)} again, which the output lacks"
    deletes = [m for m in new if m.content is ManifestContent.DELETES]
    sequence_number = planned.snapshots[planning_snapshot_id].sequence_number
    for manifest, entries in reader.entries(deletes):
        for entry in entries:
            if entry.is_live and (entry.sequence_number or 0) > sequence_number:
                is_global = _is_unpartitioned(head.specs[manifest.partition_spec_id])
                for group in groups:
                    reason = _hit(entry.file, manifest.partition_spec_id, is_global, group)
                    if reason is not None:
                        dropped.setdefault(group.group_id, reason)
    kept = frozenset(group.group_id for group in groups if group.group_id not in dropped)
    affected = frozenset(location[key] for group in groups if group.group_id in kept for key in group.inputs)
    return RebaseResult(kept, dropped, manifests, affected)


def _locate(
    groups: Iterable[GroupClaim], here: Collection[str], new: Sequence[ManifestFile], reader: TableReader
) -> dict[FileKey, str]:
    """Where each input is now; manifests are immutable, so one that is still listed still holds its entries."""
    location: dict[FileKey, str] = {}
    moved: set[FileKey] = set()
    for group in groups:
        for key, manifest in group.inputs.items():
            if manifest in here:
                location[key] = manifest
            else:
                moved.add(key)
    if moved:
        data = [m for m in new if m.content is ManifestContent.DATA]
        found: dict[FileKey, str] = defaultdict(str)
        for manifest_file, key in reader.live_keys(data):
            if key in moved:
                found[key] = manifest_file.manifest_path
        location.update(found)
    return location


def _hit(delete: DataFile, spec_id: int, is_global: bool, group: GroupClaim) -> str | None:
    """Why a delete that landed after planning keeps a group from being committed, if it does."""
    same_partition = spec_id == group.spec_id and _comparable(delete.partition) == _comparable(group.partition)
    if delete.content is FileContent.EQUALITY_DELETES:
        if not (is_global or same_partition):
            return None
        missing = set(delete.equality_ids or ()) - group.output_field_ids
        # Outputs keep the planning snapshot's sequence number, spec and partition, so the delete still applies.
        return f"a newer equality delete uses column {min(missing)}, which the output lacks" if missing else None
    if delete.referenced_data_file is not None:
        hit = any(path == delete.referenced_data_file for path, _ in group.inputs)
    else:
        low = (delete.lower_bounds or {}).get(_DELETE_FILE_PATH_ID, b"")
        high = (delete.upper_bounds or {}).get(_DELETE_FILE_PATH_ID)
        hit = same_partition and any(
            low <= path.encode() and (high is None or path.encode() <= high) for path, _ in group.inputs
        )
    return "rows of an input file were deleted by another commit" if hit else None


def _comparable(partition: tuple[PartitionValue, ...]) -> tuple[object, ...]:
    """Partition values of which equal ones surely compare equal: NaN too, and decimals of any stored width.

    Some different ones may then also be equal, which only drops a group that need not be.
    """
    return tuple(
        "NaN" if value != value else value.lstrip(b"\0\xff") if isinstance(value, bytes) else value
        for value in partition
    )


def _is_unpartitioned(spec: Mapping[str, Any]) -> bool:
    """Equality deletes of such a spec are global; all-void specs count (Java's ``PartitionSpec.isUnpartitioned``)."""
    return all(field["transform"] == "void" for field in spec["fields"])


def _revived_columns(planned: TableMetadata, head: TableMetadata) -> frozenset[int]:
    """Columns that the head's schema has, the planning schema had not, and files may hold from before: a schema
    change that was taken back."""
    known = planned.document.get("last-column-id")
    before = set(_leaves({"type": "struct", **planned.current_schema}))
    now = set(_leaves({"type": "struct", **head.current_schema}))
    return frozenset(column for column in now - before if known is None or column <= int(known))


def _leaves(kind: Any, field_id: int = 0) -> Iterator[int]:
    """Ids of the primitive columns of a type."""
    if isinstance(kind, str):
        yield field_id
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _leaves(field["type"], int(field["id"]))
    else:
        for part in ("element", "key", "value"):
            if part in kind:
                yield from _leaves(kind[part], int(kind[f"{part}-id"]))
