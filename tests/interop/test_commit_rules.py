"""Sequence numbers, entries, counts and unknown fields of Icekeeper's snapshots, read from the files
(rule: keep-planning-sequence-number, carry-entries-explicitly)
(rule: keep-unknown-metadata)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.metadata.document import Snapshot
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import EntryStatus, ManifestEntry, ManifestFile
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import MaintainedTable, local_path, outcome_of, registered_table

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
UNKNOWN = {"x-table": {"kept": True}}


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def table(request: pytest.FixtureRequest, local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A table with four appends on main, an append on a branch, a tag, statistics, and unknown fields."""
    local_catalog.create_namespace("ns")
    made = local_catalog.create_table("ns.t", ROWS.schema, properties={"format-version": str(request.param)})
    for _ in range(4):
        made.append(ROWS)
    snapshots = [snapshot.snapshot_id for snapshot in made.snapshots()]
    made.manage_snapshots().create_tag(snapshots[1], "kept").create_branch(snapshots[3], "side").commit()
    made.append(ROWS, branch="side")
    path = local_path(made.metadata_location)
    document = json.loads(path.read_text())
    statistics = {
        "statistics-path": "file:///none.puffin",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    document["statistics"] = [{"snapshot-id": i, **statistics} for i in snapshots[:2]]
    document["snapshots"][0]["x-snapshot"] = 7
    path.write_text(json.dumps(document | UNKNOWN))
    (tmp_path / "ours").mkdir()
    return registered_table(made.metadata_location, tmp_path / "ours")


def entries_of(reader: TableReader, snapshot: Snapshot) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
    for manifest, entries in reader.entries(reader.manifests(snapshot)):
        yield from ((manifest, entry) for entry in entries)


def head_of(reader: TableReader) -> Snapshot:
    snapshot = reader.metadata.current_snapshot
    assert snapshot is not None
    return snapshot


def assert_summary_adds_up(reader: TableReader) -> None:
    """Check the summary of a rewrite, a snapshot of operation ``replace``."""
    summary = head_of(reader).summary
    live = [entry.file for _, entry in entries_of(reader, head_of(reader)) if entry.is_live]
    assert all(isinstance(value, str) for value in summary.values())
    assert len({file.file_path for file in live}) == len(live)
    totals = {
        "total-data-files": len(live),
        "total-records": sum(file.record_count for file in live),
        "total-files-size": sum(file.file_size_in_bytes for file in live),
        "total-delete-files": 0,
    }
    assert {key: int(summary[key]) for key in totals} == totals
    assert summary["operation"] == "replace"
    assert 0 < head_of(reader).snapshot_id < 2**63


def test_a_compaction_keeps_the_planning_sequence_number(table: MaintainedTable) -> None:
    before = table.reader
    planned = head_of(before)
    table.maintain(operations="compact")
    reader = table.reader
    ours = head_of(reader)
    v1 = reader.metadata.format_version == 1
    assert (planned.sequence_number, before.metadata.last_sequence_number) == ((0, 0) if v1 else (4, 5))
    assert ours.sequence_number == (0 if v1 else 6)  # the number after the branch's, not after the parent's
    assert reader.metadata.last_sequence_number == ours.sequence_number
    adders = {e.file.file_path: (e.sequence_number, e.snapshot_id) for _, e in entries_of(before, planned)}
    by_status: dict[EntryStatus, list[ManifestEntry]] = {status: [] for status in EntryStatus}
    for _, entry in entries_of(reader, ours):
        by_status[entry.status].append(entry)
    (added,) = by_status[EntryStatus.ADDED]
    assert (added.sequence_number, added.file_sequence_number) == (planned.sequence_number, ours.sequence_number)
    assert added.snapshot_id == ours.snapshot_id
    assert not by_status[EntryStatus.EXISTING]
    assert {e.file.file_path for e in by_status[EntryStatus.DELETED]} == adders.keys()
    for entry in by_status[EntryStatus.DELETED]:
        assert (entry.sequence_number, entry.snapshot_id) == (adders[entry.file.file_path][0], ours.snapshot_id)
    assert_summary_adds_up(reader)


def test_rewritten_manifests_keep_every_entry_unchanged(table: MaintainedTable) -> None:
    before = table.reader
    table.maintain(operations="rewrite_manifests")
    reader = table.reader

    def live(reader: TableReader) -> list[Any]:
        found = [entry for _, entry in entries_of(reader, head_of(reader)) if entry.is_live]
        ids = [(e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in found]
        return sorted(zip([e.file.file_path for e in found], ids, strict=True))

    assert live(reader) == live(before)
    assert {entry.status for _, entry in entries_of(reader, head_of(reader))} == {EntryStatus.EXISTING}
    (manifest,) = reader.manifests(head_of(reader))
    v1 = reader.metadata.format_version == 1
    assert (manifest.min_sequence_number, manifest.sequence_number) == ((0, 0) if v1 else (1, 6))
    assert_summary_adds_up(reader)


def test_a_pass_keeps_unknown_fields_other_refs_and_older_snapshots(table: MaintainedTable) -> None:
    before = table.reader.metadata
    location = table.metadata_location
    outcome = table.maintain(operations="compact,rewrite_manifests")
    ours = [i for part in outcome.operations for i in part.snapshot_ids]
    assert len(ours) == 2
    after = table.reader.metadata
    old, new = dict(before.document), dict(after.document)
    assert new["snapshots"][: len(old["snapshots"])] == old["snapshots"]
    assert new["snapshots"][0]["x-snapshot"] == 7
    assert [s["snapshot-id"] for s in new["snapshots"][len(old["snapshots"]) :]] == ours
    assert new["current-snapshot-id"] == ours[-1] == after.refs["main"].snapshot_id
    assert {name: ref for name, ref in after.refs.items() if name != "main"} == {
        name: ref for name, ref in before.refs.items() if name != "main"
    }
    assert [e["snapshot-id"] for e in new["snapshot-log"]] == [e["snapshot-id"] for e in old["snapshot-log"]] + ours
    log = [entry["metadata-file"] for entry in new["metadata-log"]]
    assert log[:-1] == [*(entry["metadata-file"] for entry in old["metadata-log"]), location]
    changed = {"snapshots", "current-snapshot-id", "refs", "snapshot-log", "metadata-log", "last-updated-ms"}
    changed.add("last-sequence-number")
    assert {k: v for k, v in new.items() if k not in changed} == {k: v for k, v in old.items() if k not in changed}
    assert_summary_adds_up(table.reader)


def test_expiry_removes_the_statistics_of_expired_snapshots(table: MaintainedTable) -> None:
    kept = table.reader.metadata.refs["kept"].snapshot_id
    outcome = table.maintain(operations="expire_snapshots")
    assert outcome_of(outcome, Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    after = table.reader.metadata
    assert after.refs.keys() == {"main", "kept", "side"}
    assert after.snapshots.keys() == {ref.snapshot_id for ref in after.refs.values()}
    assert [entry["snapshot-id"] for entry in after.statistics] == [kept]
    assert after.document["x-table"] == UNKNOWN["x-table"]
    assert [e["snapshot-id"] for e in after.document["snapshot-log"]] == [after.refs["main"].snapshot_id]
