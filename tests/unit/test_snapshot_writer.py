"""The snapshots that Icekeeper writes: manifests, totals, row ids, and marks of streaming writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.commit.attempt import PreparedCommit, assign_row_ids
from icekeeper.commit.snapshot import ChangedFiles, FileReplacement, SnapshotWriter, snapshot_summary
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.updates import apply_updates
from icekeeper.metadata.writer_marks import COMMITTED_KEY, carried_marks, marks_of
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.verification.checks import (
    duplicate_vector_problems,
    manifest_row_id_problems,
    row_id_problems,
    vector_problems,
)
from support.listed_manifests import ListedManifests, path_of
from support.plans import data_file, manifest
from support.tables import new_document, snapshot

# Snapshots that replace files: their manifests and the entries.

SPECS = [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": []}]
HEAD, ON_A_BRANCH = 2, 9
"""The sequence numbers of the newest commit on main and of the newest commit of all."""


@pytest.fixture
def table() -> ListedManifests:
    """Data files a and b under spec 0, c and d under spec 1; a delete file per spec; a later commit on a branch."""
    made = ListedManifests()
    made.document |= {"partition-specs": SPECS, "last-sequence-number": ON_A_BRANCH}
    made.snapshot(1, made.manifest("old", ["data/a"]))
    made.snapshot(
        HEAD,
        made.manifest("data0", ["data/a", "data/b"]),
        made.manifest("data1", ["data/c", "data/d"], spec_id=1),
        made.manifest("deletes0", ["data/x"], deletes=True),
        made.manifest("deletes1", ["data/y"], deletes=True, spec_id=1),
    )
    return made


def replaced(table: ListedManifests, gone: list[str]) -> tuple[SnapshotWriter, PreparedCommit]:
    """Remove the named files and add one file per spec."""
    writer = SnapshotWriter(
        table.metadata, table.reader, table.objects.__setitem__, lambda paths: None, "main", "run", now_ms=0
    )
    manifests = table.reader.manifests(table.metadata.snapshots[HEAD])
    replacement = FileReplacement(
        frozenset((path_of(name), None) for name in gone),
        ((0, data_file(path_of("data/new0"), 10)), (1, data_file(path_of("data/new1"), 10))),
        HEAD,
    )
    return writer, writer.replace_files(replacement, manifests, [m.manifest_path for m in manifests])


def entries_of(
    table: ListedManifests, prepared: PreparedCommit
) -> tuple[TableMetadata, list[tuple[ManifestFile, list[ManifestEntry]]]]:
    after = apply_updates(table.metadata, prepared.updates, metadata_location=None, now_ms=0)
    table.document = dict(after.document)
    snapshot = after.current_snapshot
    assert snapshot is not None
    return after, [(m, list(found)) for m, found in table.reader.entries(table.reader.manifests(snapshot))]


def test_a_manifest_has_one_spec_and_content_type_and_a_file_one_manifest(table: ListedManifests) -> None:
    """Readers take both from the manifest list; they read a file twice that two manifests list."""
    _, prepared = replaced(table, ["data/a", "data/c", "data/x"])
    _, manifests = entries_of(table, prepared)
    found = {
        (m.partition_spec_id, m.content, entry.file.file_path.rpartition("/")[2])
        for m, entries in manifests
        for entry in entries
        if entry.is_live
    }
    assert found == {
        *((0, ManifestContent.DATA, name) for name in ("b", "new0")),
        *((1, ManifestContent.DATA, name) for name in ("d", "new1")),
        (1, ManifestContent.DELETES, "y"),
    }
    assert sum(entry.is_live for _, entries in manifests for entry in entries) == len(found)


def test_entries_have_the_snapshot_and_sequence_number_that_added_or_removed_the_file(table: ListedManifests) -> None:
    """Added files have the planning snapshot's sequence number (rule: keep-planning-sequence-number), other files keep
    theirs (rule: carry-entries-explicitly); the commit's number exceeds that of every branch."""
    writer, prepared = replaced(table, ["data/a", "data/c"])
    after, manifests = entries_of(table, prepared)
    snapshot = after.current_snapshot
    assert snapshot is not None
    assert (snapshot.sequence_number, after.last_sequence_number) == (ON_A_BRANCH + 1, ON_A_BRANCH + 1)
    assert snapshot.summary["operation"] == "replace"
    entries_by_name = {
        entry.file.file_path.rpartition("/")[2]: (
            entry.status,
            entry.snapshot_id == writer.snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
        )
        for _, entries in manifests
        for entry in entries
    }
    added = (EntryStatus.ADDED, True, HEAD, ON_A_BRANCH + 1)
    gone, kept = (EntryStatus.DELETED, True, 1, 1), (EntryStatus.EXISTING, False, 1, 1)
    assert entries_by_name == dict(zip("abcdxy", (gone, kept, gone, kept, kept, kept), strict=True)) | {
        "new0": added,
        "new1": added,
    }


# Row ids of new snapshots (rule: rows-keep-their-lineage), and the problems that verify reports.


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


def test_data_manifests_without_row_ids_get_the_next_ids() -> None:
    """Added and existing rows get ids, deleted rows none; other manifests keep theirs; delete manifests have none."""
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
    """Snapshots in order of sequence number, each with its row ids; None is a snapshot from before v3."""
    snapshots = []
    for number, given in enumerate(ids, start=1):
        raw = snapshot(number, format_version=2, sequence_number=number)
        snapshots.append(raw if given is None else raw | {"first-row-id": given[0], "added-rows": given[1]})
    return TableMetadata(new_document("s3://b/t", 3, snapshots=snapshots, **{"next-row-id": next_row_id}))


@pytest.mark.parametrize(
    ("metadata", "details"),
    [
        (document(0), []),
        (document(15, None, None, (0, 10), (10, 5)), []),
        (document(20, (0, 10), (12, 5)), []),
        (document(20, (0, 10), (5, 5)), ["snapshot 2 starts at row id 5, an earlier snapshot ended at 10"]),
        (document(20, (0, 10), None), ["snapshot 2 does not say which row ids it assigned"]),
        (document(14, (0, 10), (10, 5)), ["next-row-id is 14, ids below 15 were assigned"]),
    ],
    ids=["empty", "upgraded", "with_a_gap", "twice", "unsaid", "beyond_the_next"],
)
def test_snapshots_have_row_ids_that_do_not_overlap(metadata: TableMetadata, details: list[str]) -> None:
    problems = list(row_id_problems(metadata, "here"))
    assert [problem.detail for problem in problems] == details
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
    # A data file has at most one vector.
    assert not list(duplicate_vector_problems(["a", "b"]))
    (problem,) = duplicate_vector_problems(["a", "b", "a"])
    assert (problem.kind, problem.path) == ("deletion_vector", "a")


def vector(**more: Any) -> DataFile:
    about = {"referenced_data_file": "d", "content_offset": 4, "content_size_in_bytes": 6}
    return data_file("p", 10, content=FileContent.POSITION_DELETES, file_format="puffin", **{**about, **more})


def test_a_vector_states_its_place_and_its_data_file() -> None:
    def details(file: DataFile, status: EntryStatus = EntryStatus.ADDED) -> list[str]:
        return [problem.detail for problem in vector_problems([ManifestEntry(status, 1, 1, 1, file)])]

    lacking = ["a deletion vector lacks its data file, its offset or its size"]
    assert details(vector()) == []
    for key in ("referenced_data_file", "content_offset", "content_size_in_bytes"):
        assert details(vector(**{key: None})) == lacking
    assert details(vector(content_offset=5)) == ["a deletion vector ends at byte 11 of 10"]
    assert details(vector(content_offset=None), EntryStatus.DELETED) == []


# Totals of snapshot summaries: they add up, and unknown totals are omitted.


def summary(before: Mapping[str, str], counted: Mapping[str, int] | None = None) -> dict[str, str]:
    """The summary of a commit that merges two data files of 10 rows and removes a delete file of 3 rows."""
    parent = Snapshot(snapshot(1, format_version=2, summary={"operation": "append", **before}))
    delete = data_file("d", 30, records=3, content=FileContent.EQUALITY_DELETES)
    changed = ChangedFiles()
    changed.count(0, data_file("c", 250, records=20), is_added=True)
    for file in (data_file("a", 100), data_file("b", 200), delete):
        changed.count(0, file, is_added=False)
    return snapshot_summary("replace", parent, changed, {}, counted or {})


def totals(found: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in found.items() if key.startswith("total-")}


def test_totals_continue_the_parents_unless_counted_or_impossible() -> None:
    keys = ("data-files", "delete-files", "records", "files-size", "equality-deletes", "position-deletes")
    before, after = ({f"total-{key}": n for key, n in zip(keys, stated.split(), strict=True)} for stated in TOTALS)
    found = summary(before)
    assert totals(found) == after
    changed = {"added-records": "20", "deleted-records": "20", "removed-equality-deletes": "3"}
    assert {key: found[key] for key in changed} == changed
    # Every later snapshot would inherit an invented total.
    for stated in ({}, {"total-data-files": "many"}, {"total-data-files": "0"}, {"total-data-files": ""}):
        assert totals(summary(stated)) == {}
    assert totals(summary({"total-data-files": "99"}, {"total-data-files": 1})) == {"total-data-files": "1"}


TOTALS = ("7 1 70 1000 3 0", "6 0 70 920 0 0")


# Marks by which streaming writers find their last commit: their writer, their time, and which marks are carried.

FLINK = {"flink.job-id": "j", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "7"}
KAFKA = {
    "kafka.connect.offsets.control.group": '{"0":12}',
    "kafka.connect.commit-id": "c",
    "kafka.connect.task-id": "sink-0",
    "kafka.connect.valid-through-ts": "2026-01-01T00:00Z",
}
TABULAR = {"kafka.connect.control.offsets.t.g": "{}", "kafka.connect.commitId": "c", "kafka.connect.vtts": "1"}
SPARK = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "3"}
REDPANDA = {"redpanda.commit-metadata": '{"offset":5,"cluster":"r"}'}


def made(summary: Mapping[str, str], *, at_ms: int = 1000) -> Snapshot:
    return Snapshot(snapshot(1, format_version=2, timestamp_ms=at_ms, summary={"operation": "append", **summary}))


@pytest.mark.parametrize(
    ("mark", "writer"),
    [
        (FLINK, "Flink job j, operator o"),
        ({key: value for key, value in FLINK.items() if key != "flink.operator-id"}, "Flink job j"),
        (KAFKA, "Kafka Connect sink control.group"),
        (TABULAR, "Kafka Connect sink t.g"),
        (SPARK, "Spark query q"),
        (REDPANDA, "Redpanda cluster r"),
        ({"redpanda.commit-metadata": '{"offset":5}'}, "Redpanda"),
        ({"redpanda.commit-metadata": "not json"}, "Redpanda"),
    ],
)
def test_marks_are_carried_unchanged_with_the_time_of_their_writers_commit(
    mark: Mapping[str, str], writer: str
) -> None:
    parent = made({**mark, "engine-name": "x", "total-records": "5", "app-id": "y"})
    assert marks_of(parent) == {writer: 1000}
    carried = carried_marks(parent)
    assert carried == {**mark, COMMITTED_KEY: "1000"}
    child = made(carried, at_ms=2000)
    assert marks_of(child) == {writer: 1000}, "a copy is as old as the original"
    assert carried_marks(child) == carried


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"wap.id": "w"},
        {"published-wap-id": "w", "source-snapshot-id": "4"},
        {"flink.job-id": "j"},
        {"flink.max-committed-checkpoint-id": "7"},
        {"spark.sql.streaming.queryId": "q"},
        {"spark.app.id": "a"},
        {"kafka.connect.commit-id": "c"},
    ],
)
def test_other_keys_are_not_carried(summary: Mapping[str, str]) -> None:
    assert marks_of(made(summary)) == {}
    assert carried_marks(made(summary)) == {}


def test_only_marks_are_carried_and_each_writer_has_its_mark() -> None:
    parent = made({**FLINK, "flink.rows-of-checkpoint": "9", "wap.id": "w", "published-wap-id": "v"})
    assert carried_marks(parent) == {**FLINK, COMMITTED_KEY: "1000"}
    # A tiering service also uses the snapshot id, and fails on a copy of its mark without its offsets.
    parent = made({"commit-user": "__fluss_lake_tiering", "fluss-offsets": "[]"})
    assert marks_of(parent) == {"commit user __fluss_lake_tiering": 1000}
    assert carried_marks(parent) == {}
    several = made({**SPARK, **KAFKA, "kafka.connect.offsets.other.group": "{}"})
    sinks = {f"Kafka Connect sink {group}.group" for group in ("control", "other")}
    assert marks_of(several).keys() == {"Spark query q", *sinks}
    assert marks_of(made({**FLINK, COMMITTED_KEY: "soon"})) == {"Flink job j, operator o": 1000}


@pytest.mark.parametrize("operation", ["replace", "delete"])
def test_a_snapshot_without_new_rows_carries_its_parents_marks(operation: str) -> None:
    """(rule: carry-streaming-marks)"""
    summary = snapshot_summary(operation, made(FLINK), ChangedFiles(), {"icekeeper.run-id": "r"}, {})
    assert summary == {"operation": operation, **FLINK, COMMITTED_KEY: "1000", "icekeeper.run-id": "r"}
