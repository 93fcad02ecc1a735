"""Groups that a rewrite claims, on manifests in memory that another commit has changed since it was planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from icekeeper.commit.conflict_detection import ClaimedFile, GroupClaim, PlanningState, RebaseResult, Scope, rebase
from icekeeper.errors import StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest, encode_manifest_list
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import (
    DataFile,
    EntryStatus,
    FileContent,
    FileIdentity,
    FileKey,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionValue,
)
from support.plans import data_file
from support.tables import new_document, snapshot

S, H = 1, 2
S_SEQUENCE, H_SEQUENCE = 10, 11
PATH_COLUMN = 2147483546
LIST = {"type": "list", "element-id": 5, "element": "int", "element-required": False}
FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "x", "required": False, "type": "double"},
    {"id": 3, "name": "d", "required": False, "type": "decimal(9, 2)"},
    {"id": 4, "name": "l", "required": False, "type": LIST},
]
SCHEMA = {"type": "struct", "schema-id": 0, "fields": FIELDS}
LEAVES = frozenset({1, 2, 3, 5})
KNOWN = FileIdentity(sequence_number=5, size=10, snapshot_id=S, file_sequence_number=5)
"""Of every file that :meth:`Lake.add` lists, unless told otherwise."""


def spec(spec_id: int, *transforms: str) -> dict[str, Any]:
    fields = [
        {"field-id": 1000 + source, "source-id": source, "name": f"p{source}", "transform": transform}
        for source, transform in zip((2, 3), transforms, strict=False)
    ]
    return {"spec-id": spec_id, "fields": fields}


SPECS = [spec(0), spec(1, "identity"), spec(2, "void", "identity"), spec(3, "void", "void")]


def document(*snapshots: dict[str, Any], head: int, **more: Any) -> TableMetadata:
    changes: dict[str, Any] = {
        "table-uuid": "u",
        "schemas": [SCHEMA],
        "last-column-id": 5,
        "partition-specs": SPECS,
        "snapshots": list(snapshots),
        "current-snapshot-id": head,
        "refs": {"main": {"type": "branch", "snapshot-id": head}},
    }
    return TableMetadata({**new_document("s3://b/t", 2), **changes, **more})


SNAPSHOT_S = snapshot(S, format_version=2, sequence_number=S_SEQUENCE)
SNAPSHOT_H = snapshot(H, format_version=2, sequence_number=H_SEQUENCE, parent_id=S)
PLANNED = document(SNAPSHOT_S, head=S)
HEAD = document(SNAPSHOT_S, SNAPSHOT_H, head=H)


@dataclass
class Lake:
    """Manifests in memory, listed by the head."""

    stored: dict[str, bytes] = field(default_factory=dict)
    listed: list[ManifestFile] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    format_version: int = 2

    def add(
        self,
        path: str,
        files: Sequence[DataFile],
        *,
        spec_id: int = 0,
        sequence: int = 5,
        status: EntryStatus = EntryStatus.EXISTING,
    ) -> str:
        content = ManifestContent.DATA if files[0].content is FileContent.DATA else ManifestContent.DELETES
        encoded = encode_manifest(
            HEAD,
            spec_id=spec_id,
            content=content,
            entries=[ManifestEntry(status, S, sequence, sequence, file) for file in files],
            path=path,
            snapshot=NewSnapshot(S, H_SEQUENCE),
        )
        self.stored[path] = encoded.data
        self.listed.append(encoded.manifest)
        return path

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        if path == SNAPSHOT_H["manifest-list"]:
            return encode_manifest_list(
                self.format_version,
                self.listed,
                snapshot_id=H,
                parent_snapshot_id=S,
                sequence_number=H_SEQUENCE,
                first_row_id=0,
            )
        try:
            return self.stored[path]
        except KeyError:
            raise StorageError(f"{path} does not exist") from None


def claim(
    *paths: str,
    group_id: int = 0,
    spec_id: int = 0,
    partition: tuple[PartitionValue, ...] = (),
    manifest: str = "m-planned",
    to: Scope | None = None,
    identity: FileIdentity | None = None,
) -> GroupClaim:
    """A group of one partition; ``to``: where its rows moved, if they did."""
    own = (spec_id, partition)
    inputs: dict[FileKey, ClaimedFile] = {(path, None): ClaimedFile(manifest, identity or KNOWN) for path in paths}
    return GroupClaim(group_id, frozenset({to or own}), frozenset({own}), inputs, LEAVES)


def decide(
    lake: Lake,
    *claims: GroupClaim,
    head: TableMetadata = HEAD,
    planning_manifests: Sequence[str] = ("m-planned",),
    needs: dict[FileKey, int] | None = None,
) -> RebaseResult:
    planned = PlanningState(metadata=PLANNED, snapshot_id=S, manifests=planning_manifests, delete_needs=needs or {})
    return rebase(planned, head, TableReader(head, lake.read), "main", claims)


def lake_with(*paths: str, manifest: str = "m-planned") -> Lake:
    lake = Lake()
    lake.add(manifest, [data_file(path, 10) for path in paths])
    return lake


def position_delete(spec_partition: tuple[PartitionValue, ...] = (), **more: Any) -> DataFile:
    return replace(data_file("delete.parquet", 10, spec_partition, **more), content=FileContent.POSITION_DELETES)


def equality_delete(ids: tuple[int, ...], spec_partition: tuple[PartitionValue, ...] = ()) -> DataFile:
    file = data_file("delete.parquet", 10, spec_partition, equality_ids=ids)
    return replace(file, content=FileContent.EQUALITY_DELETES)
