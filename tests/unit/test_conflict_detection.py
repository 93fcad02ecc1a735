"""Concurrent commits that prevent the commit of a rewritten group (rule: drop-groups-new-deletes-would-miss)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult, Scope, rebase
from icekeeper.errors import MetadataUnreadable, PlanStale, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
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

# Groups that a rewrite claims, on manifests in memory that another commit has changed since the plan.

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
"""The identity of every file that :meth:`Lake.add` lists by default."""


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
            snapshot_id=S,
            sequence_number=H_SEQUENCE,
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
    """A group of one partition; ``to`` is the partition to which its rows moved."""
    own = (spec_id, partition)
    inputs: dict[FileKey, tuple[str, FileIdentity]] = {(path, None): (manifest, identity or KNOWN) for path in paths}
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
    return data_file("delete.parquet", 10, spec_partition, content=FileContent.POSITION_DELETES, **more)


def equality_delete(ids: tuple[int, ...], spec_partition: tuple[PartitionValue, ...] = ()) -> DataFile:
    return data_file("delete.parquet", 10, spec_partition, content=FileContent.EQUALITY_DELETES, equality_ids=ids)


# Changes of another commit to the inputs of a rewritten group, decided from manifests alone
# (rule: drop-groups-new-deletes-would-miss).


def test_appends_change_nothing_and_only_new_manifests_are_opened() -> None:
    lake = lake_with("a", "b")
    lake.add("m-new", [data_file("c", 10)], sequence=H_SEQUENCE, status=EntryStatus.ADDED)
    result = decide(lake, claim("a", "b"))
    assert (result.kept, dict(result.dropped), result.affected) == (frozenset({0}), {}, frozenset({"m-planned"}))
    assert "m-planned" not in lake.reads


def test_inputs_that_moved_into_another_manifest_are_found_there() -> None:
    lake = lake_with("a", "b", manifest="m-merged")
    result = decide(lake, claim("a", "b"))
    assert result.affected == frozenset({"m-merged"})
    assert result.kept == {0}


SAME = [KNOWN, KNOWN._replace(file_sequence_number=None), KNOWN._replace(file_sequence_number=3)]
OTHERS = [
    KNOWN._replace(sequence_number=4),
    KNOWN._replace(size=11),
    KNOWN._replace(snapshot_id=77, file_sequence_number=3),
]


@pytest.mark.parametrize(("identity", "is_same"), [*((i, True) for i in SAME), *((i, False) for i in OTHERS)])
def test_a_path_that_was_added_again_is_another_file(identity: FileIdentity, is_same: bool) -> None:
    """Its data sequence number or size differs, or both its snapshot and its file sequence number.  A writer that
    rewrote the manifest may have lost or overwritten the file sequence number alone."""
    lake = lake_with("a", "b", manifest="m-merged")
    result = decide(lake, claim("a", identity=identity), claim("b", group_id=1))
    again = {0: "another commit added an input file again"}
    assert dict(result.dropped) == ({} if is_same else again)


def test_an_input_that_is_listed_twice_drops_its_group() -> None:
    """The second manifest may be rewritten for another input, which would remove the second entry, too."""
    lake = lake_with("a")
    lake.add("m-merged", [data_file("a", 10), data_file("b", 10)])
    result = decide(lake, claim("a"), claim("b", group_id=1, manifest="m-gone"))
    assert dict(result.dropped) == {0: "another commit added an input file again"}
    assert result.kept == {1}


def test_an_input_that_is_gone_or_only_marked_deleted_drops_its_group() -> None:
    lake = lake_with("a", "b", manifest="m-merged")
    lake.add("m-gone", [data_file("c", 10)], status=EntryStatus.DELETED)
    result = decide(lake, claim("a", "b"), claim("c", group_id=1), claim("d", group_id=2))
    assert result.kept == {0}
    assert set(result.dropped) == {1, 2}


def test_a_plan_is_stale_for_a_replaced_or_rolled_back_table() -> None:
    """A commit never applies to another table or another line of history (rule: same-table-same-history)."""
    lake = lake_with("a")
    with pytest.raises(PlanStale, match="replaced"):
        decide(lake, claim("a"), head=document(SNAPSHOT_S, SNAPSHOT_H, head=H, **{"table-uuid": "v"}))
    orphaned = {**SNAPSHOT_H, "parent-snapshot-id": 77}
    with pytest.raises(PlanStale, match="rolled back"):
        decide(lake, claim("a"), head=document(SNAPSHOT_S, orphaned, head=H))
    with pytest.raises(PlanStale, match="rolled back"):
        decide(lake, claim("a"), head=document(head=-1, refs={}))


def child(snapshot_id: int, parent_id: int | None, sequence: int = H_SEQUENCE) -> dict[str, Any]:
    return snapshot(snapshot_id, format_version=2, sequence_number=sequence, parent_id=parent_id)


def test_a_planning_snapshot_that_another_engine_expired_is_still_the_parent() -> None:
    """Only the parent id of the oldest retained snapshot proves this."""
    lake = lake_with("a")
    of_h = {**SNAPSHOT_H, "parent-snapshot-id": 50}
    assert decide(lake, claim("a"), head=document(SNAPSHOT_H, head=H)).kept == {0}
    assert decide(lake, claim("a"), head=document(child(50, S), of_h, head=H)).kept == {0}
    # This also holds if a snapshot of another line is retained.
    assert decide(lake, claim("a"), head=document(child(60, 59, 9), child(50, S), of_h, head=H)).kept == {0}


@pytest.mark.parametrize(
    "left",
    [
        [child(H, 50)],
        [child(H, None)],
        [child(50, 49), child(H, 50)],
        # Another line descends from it; this line may not.
        [child(60, S), child(H, 50)],
        # A circle has no oldest snapshot.
        [child(50, H), child(H, 50)],
    ],
)
def test_a_plan_is_stale_if_snapshots_after_its_own_have_expired(left: list[dict[str, Any]]) -> None:
    """The sequence numbers do not matter: a rollback may have happened before the retained snapshots."""
    with pytest.raises(PlanStale, match="because snapshots after it have expired; plan again"):
        decide(lake_with("a"), claim("a"), head=document(*left, head=H))


def test_an_unreadable_new_manifest_is_an_error() -> None:
    lake = lake_with("a")
    lake.add("m-deletes", [position_delete()], sequence=H_SEQUENCE)
    del lake.stored["m-deletes"]
    with pytest.raises(MetadataUnreadable, match="m-deletes"):
        decide(lake, claim("a"))


def test_outputs_without_row_ids_do_not_replace_rows_that_have_them() -> None:
    """A concurrent commit gave the manifest a first row id (rule: rows-keep-their-lineage)."""
    document_v3 = TableMetadata({**HEAD.document, "format-version": 3})
    lake = lake_with("a")
    claims = [replace(claim("a"), without_row_ids=True), claim("a", group_id=1)]
    assert decide(lake, *claims).kept == {0, 1}
    lake.listed = [replace(m, first_row_id=0) for m in lake.listed]
    result = decide(replace(lake, format_version=3), *claims, head=document_v3)
    assert dict(result.dropped) == {0: "another commit gave the rows of an input file ids"}


def with_fields(*fields: dict[str, Any], last_column_id: int = 5) -> TableMetadata:
    schema = {"type": "struct", "schema-id": 1, "fields": list(fields)}
    more = {"schemas": [SCHEMA, schema], "current-schema-id": 1, "last-column-id": last_column_id}
    return document(SNAPSHOT_S, SNAPSHOT_H, head=H, **more)


def test_a_group_survives_schema_changes_that_its_outputs_can_follow() -> None:
    """Columns are renamed, dropped, widened or moved, and new columns are in no file yet."""
    renamed = [{**FIELDS[0], "name": "other"}, FIELDS[2], {**FIELDS[3], "name": "m"}]
    new = {"id": 6, "name": "new", "required": False, "type": "string"}
    assert decide(lake_with("a"), claim("a"), head=with_fields(*renamed, new, last_column_id=6)).kept == {0}


@pytest.mark.parametrize(
    "revived",
    [
        {"id": 0, "name": "old", "required": False, "type": "string"},
        {"id": 4, "name": "l", "required": False, "type": {"type": "struct", "fields": [
            {"id": 0, "name": "old", "required": False, "type": "int"}]}},
        {"id": 9, "name": "m", "required": False, "type": {"type": "map", "key-id": 0, "key": "int", "value-id": 5,
                                                            "value": "int", "value-required": False}},
    ],
)  # fmt: skip
def test_a_restored_column_that_the_outputs_lack_drops_the_group(revived: dict[str, Any]) -> None:
    """An older schema is current again: the inputs hold values that the rewrite left out."""
    result = decide(lake_with("a"), claim("a"), head=with_fields(*FIELDS[:3], revived))
    assert result.dropped == {0: "the schema has column 0 again, which the output lacks"}


def test_a_spec_that_was_removed_drops_its_groups() -> None:
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, (1.5,))], spec_id=1)
    head = document(SNAPSHOT_S, SNAPSHOT_H, head=H, **{"partition-specs": SPECS[:1]})
    assert decide(lake, claim("a", spec_id=1, partition=(1.5,)), head=head).dropped == {
        0: "partition spec 1 was removed"
    }


# Deletes of another commit that prevent the commit of a rewritten group, decided from manifests alone
# (rule: drop-groups-new-deletes-would-miss).


def test_a_delete_that_was_added_again_is_another_delete() -> None:
    """Its new sequence number applies to younger data files, too."""
    lake = lake_with("a")
    key = ("delete.parquet", None)
    lake.add("m-deletes", [equality_delete((1,))], sequence=H_SEQUENCE)
    result = decide(lake, replace(claim("a"), deletes={key: 1}), needs={key: 1})
    assert dict(result.dropped) == {0: "a delete that was applied is no longer in the table"}
    assert not result.unneeded_deletes


@pytest.mark.parametrize("sequence", [S_SEQUENCE, H_SEQUENCE])
def test_deletes_are_kept_when_another_commit_adds_files_that_they_apply_to(sequence: int) -> None:
    """A path that was absent at planning may return, and position deletes name it."""
    lake = lake_with("a")
    lake.add("m-deletes", [position_delete()])
    lake.add("m-back", [data_file("back", 10)], sequence=sequence, status=EntryStatus.ADDED)
    found = decide(lake, claim("a"), needs={("delete.parquet", None): 0}, planning_manifests=("m-planned", "m-deletes"))
    assert len(found.unneeded_deletes) == (sequence == H_SEQUENCE)


def bounds(low: str, high: str) -> dict[str, Any]:
    return {"lower_bounds": {PATH_COLUMN: low.encode()}, "upper_bounds": {PATH_COLUMN: high.encode()}}


WIDE, WIDER = (None, b"\x00\x05"), (None, b"\x00\x00\x00\x05")
BY_PARTITION: list[tuple[int, tuple[PartitionValue, ...], int, DataFile, bool]] = [
    (1, (1.5,), 1, position_delete((1.5,)), True),
    (1, (1.5,), 1, position_delete((2.5,)), False),
    (1, (None,), 1, position_delete((None,)), True),
    (1, (None,), 1, position_delete((1.5,)), False),
    # NaN equals NaN here, though in Python the NaNs of two files differ.
    (1, (math.nan,), 1, position_delete((math.nan,)), True),
    # A decimal is stored as wide as its type was: 0x0005 and 0x00000005 are the same value; the same holds for -5.
    (2, WIDE, 2, position_delete(WIDER), True),
    (2, (None, b"\xff\xfb"), 2, position_delete((None, b"\xff\xff\xff\xfb")), True),
    (2, WIDE, 2, position_delete((None, b"\x00\x00\x00\x06")), False),
    # A position delete that names an input applies from any partition.
    *(
        (1, (1.5,), 2, position_delete((None, None), **name), path == "a")
        for path in ("a", "elsewhere")
        for name in (bounds(path, path), {"referenced_data_file": path})
    ),
    # Equality deletes without a partition are global, also under a spec with only void fields.
    (1, (1.5,), 0, equality_delete((9,)), True),
    (1, (1.5,), 3, equality_delete((9,), (None, None)), True),
    (1, (1.5,), 1, equality_delete((9,), (2.5,)), False),
]


@pytest.mark.parametrize(("spec_id", "group", "delete_spec_id", "delete", "is_hit"), BY_PARTITION)
def test_deletes_apply_within_their_partition(
    spec_id: int, group: tuple[PartitionValue, ...], delete_spec_id: int, delete: DataFile, is_hit: bool
) -> None:
    """(rule: deletes-reach-one-partition)"""
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, group)], spec_id=spec_id)
    lake.add("m-deletes", [delete], spec_id=delete_spec_id, sequence=H_SEQUENCE)
    result = decide(lake, claim("a", spec_id=spec_id, partition=group))
    assert (bool(result.dropped), result.kept) == (is_hit, frozenset() if is_hit else {0})


@pytest.mark.parametrize("applied", [None, ("puffin-1", 4)], ids=["first", "replaces_the_one_applied"])
def test_a_deletion_vector_hits_the_group_of_its_file(applied: tuple[str, int] | None) -> None:
    """Its partition does not matter; a vector that replaces the vector applied at planning counts, too."""
    lake = lake_with("a", "b")
    vector = replace(position_delete(), file_format="PUFFIN", referenced_data_file="b", content_offset=40)
    if applied is not None:
        old = replace(vector, file_path=applied[0], content_offset=applied[1])
        lake.add("m-replaced", [old], sequence=S_SEQUENCE, status=EntryStatus.DELETED)
    lake.add("m-deletes", [vector], sequence=H_SEQUENCE, status=EntryStatus.ADDED)
    deletes: dict[tuple[str, int | None], int] = {} if applied is None else {applied: 1}
    claims = [replace(claim("a", "b"), deletes=deletes), claim("a", group_id=1)]
    result = decide(lake, *claims)
    assert dict(result.dropped) == {0: "another commit deleted rows of an input file"}
    assert result.kept == {1}


@pytest.mark.parametrize(
    ("delete", "is_hit"),
    [
        (position_delete(), True),
        (position_delete(**bounds("a", "a")), True),
        (position_delete(**bounds("0", "z")), True),
        (position_delete(**bounds("c", "z")), False),
        (position_delete(lower_bounds={PATH_COLUMN: b"a"}), True),
        (position_delete(referenced_data_file="a"), True),
        (position_delete(referenced_data_file="elsewhere", **bounds("0", "z")), False),
        (equality_delete((1,)), False),
        (equality_delete((1, 5)), False),
        (equality_delete((4,)), True),
        (equality_delete((1, 9)), True),
    ],
)
def test_a_new_delete_that_may_apply_to_an_input_drops_the_group(delete: DataFile, is_hit: bool) -> None:
    """The plan already considered a delete of its own snapshot's sequence number."""
    for sequence, expected in ((H_SEQUENCE, is_hit), (S_SEQUENCE, False)):
        lake = lake_with("a", "b")
        lake.add("m-deletes", [delete], sequence=sequence)
        assert bool(decide(lake, claim("a", "b")).dropped) is expected


@pytest.mark.parametrize(
    ("spec_id", "partition"), [(1, (1.5,)), (2, (None, b"\x05"))], ids=["where the rows were", "where the rows went"]
)
def test_a_partitioned_equality_delete_drops_a_group_whose_rows_moved(
    spec_id: int, partition: tuple[PartitionValue, ...]
) -> None:
    """In the old partition it would miss the moved rows; in the new partition it would delete too many rows
    (rule: rows-stay-in-reach-of-deletes).  A global delete still applies to the same rows."""
    moved = claim("a", spec_id=1, partition=(1.5,), to=(2, (None, b"\x05")))
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, (1.5,))], spec_id=1)
    lake.add("m-global", [equality_delete((1,))], spec_id=0, sequence=H_SEQUENCE)
    assert decide(lake, moved).kept == {0}
    lake.add("m-deletes", [equality_delete((1,), partition)], spec_id=spec_id, sequence=H_SEQUENCE)
    assert "a partition that rows were moved out of or into" in decide(lake, moved).dropped[0]
