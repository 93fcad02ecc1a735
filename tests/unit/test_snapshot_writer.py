"""Snapshots that replace files: which manifests they get, and what the entries in these say."""

from __future__ import annotations

import pytest

from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.snapshot import FileReplacement, SnapshotWriter
from icekeeper.metadata.document import TableMetadata, apply_updates
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from support.listed_manifests import ListedManifests, path_of
from support.plans import data_file

SPECS = [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": []}]
HEAD, ON_A_BRANCH = 2, 9
"""Numbers of the newest commits: on main, and of all."""


@pytest.fixture
def table() -> ListedManifests:
    """Data files a, b under spec 0, c, d under spec 1; a delete file of each; a later commit on a branch."""
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
    """The files named go, one file of each spec comes."""
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


def test_a_manifest_holds_one_spec_and_one_content_type_and_a_file_is_in_one(table: ListedManifests) -> None:
    """Readers take both from the manifest list, and read a path twice that is listed twice (rule 34)."""
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


def test_entries_say_who_added_and_who_removed_a_file_and_when(table: ListedManifests) -> None:
    """Added files have the number of the planning snapshot (rule 1), the others keep theirs (rule 3); the commit's own
    is above that of every branch (rule 4)."""
    writer, prepared = replaced(table, ["data/a", "data/c"])
    after, manifests = entries_of(table, prepared)
    snapshot = after.current_snapshot
    assert snapshot is not None
    assert (snapshot.sequence_number, after.last_sequence_number) == (ON_A_BRANCH + 1, ON_A_BRANCH + 1)
    assert snapshot.summary["operation"] == "replace"
    said = {
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
    assert said == dict(zip("abcdxy", (gone, kept, gone, kept, kept, kept), strict=True)) | {
        "new0": added,
        "new1": added,
    }
