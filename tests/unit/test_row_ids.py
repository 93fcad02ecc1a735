"""Who gets which row ids (rule 19), and what verify says when they do not hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icekeeper.commit.attempt import assign_row_ids
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.verification.checks import (
    duplicate_vector_problems,
    manifest_row_id_problems,
    row_id_problems,
    vector_problems,
)
from support.plans import data_file, manifest
from support.tables import new_document, snapshot


def with_rows(
    added: int, existing: int = 0, *, first_row_id: int | None = None, content: ManifestContent = ManifestContent.DATA
) -> ManifestFile:
    return replace(
        manifest(content=content),
        added_rows_count=added,
        existing_rows_count=existing,
        deleted_rows_count=7,
        first_row_id=first_row_id,
    )


def test_data_manifests_without_ids_get_the_next_ones() -> None:
    """Enough for added and existing rows, not for deleted ones; the others keep what they have, deletes have none."""
    listed = [
        with_rows(10, 5),
        with_rows(3, first_row_id=20),
        with_rows(2, content=ManifestContent.DELETES),
        with_rows(0, 0),
        with_rows(1),
    ]
    assigned, next_row_id = assign_row_ids(listed, 100)
    assert [m.first_row_id for m in assigned] == [100, 20, None, 115, 115]
    assert next_row_id == 116
    assert [replace(m, first_row_id=None) for m in assigned] == [replace(m, first_row_id=None) for m in listed]
    assert assign_row_ids(assigned, next_row_id) == (assigned, next_row_id)


def document(next_row_id: int, *ids: tuple[int, int] | None) -> TableMetadata:
    """Snapshots in order of sequence number, each with its row ids, or from before v3."""
    snapshots = []
    for number, given in enumerate(ids, start=1):
        raw = snapshot(number, format_version=2, sequence_number=number)
        snapshots.append(raw if given is None else raw | {"first-row-id": given[0], "added-rows": given[1]})
    return TableMetadata(new_document("s3://b/t", 3, snapshots=snapshots, **{"next-row-id": next_row_id}))


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        (document(0), []),
        (document(15, None, None, (0, 10), (10, 5)), []),
        (document(20, (0, 10), (12, 5)), []),
        (document(20, (0, 10), (5, 5)), ["snapshot 2 starts at row id 5, an earlier one ended at 10"]),
        (document(20, (0, 10), None), ["snapshot 2 does not say which row ids it gave out"]),
        (document(14, (0, 10), (10, 5)), ["next-row-id is 14, ids below 15 were given out"]),
    ],
    ids=["empty", "upgraded", "with_a_gap", "twice", "unsaid", "beyond_the_next"],
)
def test_row_ids_of_snapshots(metadata: TableMetadata, told: list[str]) -> None:
    problems = list(row_id_problems(metadata, "here"))
    assert [problem.detail for problem in problems] == told
    assert {(problem.kind, problem.path) for problem in problems} <= {("row_lineage", "here")}


def test_manifests_of_a_v3_snapshot_have_row_ids_or_hold_deletes() -> None:
    listed = [
        with_rows(1, first_row_id=0),
        with_rows(1),
        with_rows(1, content=ManifestContent.DELETES),
        with_rows(1, first_row_id=0, content=ManifestContent.DELETES),
    ]
    raw = snapshot(1, format_version=3)
    assert [p.detail for p in manifest_row_id_problems(Snapshot(raw), listed)] == [
        "a DATA manifest of snapshot 1 has no first_row_id",
        "a DELETES manifest of snapshot 1 has first_row_id 0",
    ]
    del raw["first-row-id"]
    assert not list(manifest_row_id_problems(Snapshot(raw), listed))


def vector(**more: Any) -> DataFile:
    about = {"referenced_data_file": "d", "content_offset": 4, "content_size_in_bytes": 6}
    return replace(data_file("p", 10, file_format="puffin", **{**about, **more}), content=FileContent.POSITION_DELETES)


def test_a_vector_says_where_it_is_and_of_what() -> None:
    def told(file: DataFile, status: EntryStatus = EntryStatus.ADDED) -> list[str]:
        return [problem.detail for problem in vector_problems([ManifestEntry(status, 1, 1, 1, file)])]

    lacking = ["a deletion vector lacks its data file, its offset or its size"]
    assert told(vector()) == []
    for key in ("referenced_data_file", "content_offset", "content_size_in_bytes"):
        assert told(vector(**{key: None})) == lacking
    assert told(vector(content_offset=5)) == ["a deletion vector ends at byte 11 of 10"]
    assert told(vector(content_offset=None), EntryStatus.DELETED) == []


def test_a_data_file_has_one_vector() -> None:
    assert not list(duplicate_vector_problems(["a", "b"]))
    (problem,) = duplicate_vector_problems(["a", "b", "a"])
    assert (problem.kind, problem.path) == ("deletion_vector", "a")
