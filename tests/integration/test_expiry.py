"""Expiry frees exactly what nothing else needs: tags, branches, shared manifests and statistics of others stay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest, encode_manifest_list
from icekeeper.model import EntryStatus, ManifestContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.expiries import EXPIRE, ROWS, expired, six_appends
from support.maintained_table import MaintainedTable, maintained_table, outcome_of, registered_table
from support.readers import canonical, duckdb_rows
from support.v3 import live as live_entries

# Magic, and a footer of magic, JSON, its length, flags and magic (Puffin specification).
EMPTY_PUFFIN = b"PFA1" + b"PFA1" + b'{"blobs":[]}' + bytes([12, 0, 0, 0]) + bytes(4) + b"PFA1"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with six_appends(tmp_path) as made:
        yield made


def test_files_freed_by_compaction_go_in_the_same_pass(table: MaintainedTable) -> None:
    before = table.rows()
    outcome = table.maintain(operations="compact,expire_snapshots")
    assert outcome.status.value == "succeeded"
    assert len([path for path in table.files() if path.endswith(".parquet")]) == 1
    assert table.unreferenced() == set()
    assert table.rows() == before
    # Its DELETED entries name the six files, and hold none of them.
    assert sum(e.status == 2 for _, found in table.reader.entries(_head(table)) for e in found) == 6
    table.assert_sound()
    again = expired(table)
    assert (again.status, again.summary) == (Status.SKIPPED, "no snapshots to expire")


def _head(table: MaintainedTable) -> list[Any]:
    snapshot = table.loaded.metadata.current_snapshot
    assert snapshot is not None
    return table.reader.manifests(snapshot)


def test_tags_and_branches_keep_theirs_and_read_as_before(table: MaintainedTable) -> None:
    snapshots = [s.snapshot_id for s in table.table.snapshots()]
    with table.table.manage_snapshots() as refs:
        refs.create_tag(snapshots[1], "release").create_branch(snapshots[3], "audit")
    before = {i: table.rows(i) for i in (snapshots[1], snapshots[3], snapshots[-1])}
    outcome = table.maintain(operations="compact,expire_snapshots")
    assert outcome.status.value == "succeeded"
    metadata = table.loaded.metadata
    assert {snapshots[1], snapshots[3]} < set(metadata.snapshots)
    assert set(metadata.refs) == {"main", "release", "audit"}
    for snapshot_id, rows in list(before.items())[:2]:
        assert table.rows(snapshot_id) == rows
        assert canonical(duckdb_rows(table.loaded.metadata_location, snapshot_id)) == rows
    assert table.rows() == before[snapshots[-1]]
    assert table.unreferenced() == set()
    table.assert_sound()


def test_appends_share_manifests_so_only_lists_go(table: MaintainedTable) -> None:
    data = {path for path in table.files() if path.endswith(".parquet")}
    outcome = expired(table)
    assert outcome.summary == "expired 5 snapshot(s), deleted 5 unreferenced file(s)"
    assert all("/snap-" in path for path in outcome.files_deleted)
    assert data <= table.files()
    table.assert_sound()


def _with_statistics(table: MaintainedTable) -> dict[int, Path]:
    """One Puffin file for each snapshot, and one shared by the first two under partition statistics."""
    written: dict[int, Path] = {}
    loaded = table.loaded
    folder = Path(loaded.metadata.metadata_directory.removeprefix("file://"))
    updates: list[dict[str, Any]] = []
    for snapshot_id in loaded.metadata.snapshots:
        written[snapshot_id] = folder / f"{snapshot_id}.stats"
        written[snapshot_id].write_bytes(EMPTY_PUFFIN)
        statistics = {
            "snapshot-id": snapshot_id,
            "statistics-path": written[snapshot_id].as_uri(),
            "file-size-in-bytes": len(EMPTY_PUFFIN),
            "file-footer-size-in-bytes": len(EMPTY_PUFFIN) - 4,
            "blob-metadata": [],
        }
        updates.append({"action": "set-statistics", "statistics": statistics})
    table.catalog.inner.commit(loaded, [], updates)
    return written


def test_statistics_go_with_their_snapshot(table: MaintainedTable) -> None:
    statistics = _with_statistics(table)
    head = table.loaded.metadata.refs["main"].snapshot_id
    expired(table)
    assert [path.exists() for i, path in statistics.items()] == [i == head for i in statistics]
    assert [s["snapshot-id"] for s in table.loaded.metadata.statistics] == [head]
    table.assert_sound()


def test_files_outside_the_tables_locations_stay(table: MaintainedTable, tmp_path: Path) -> None:
    """Files taken in by add_files belong to whoever wrote them."""
    import pyarrow.parquet as pq

    theirs = tmp_path / "theirs.parquet"
    pq.write_table(ROWS, theirs)
    table.table.add_files([theirs.as_uri()])
    table.table.overwrite(ROWS)
    outcome = table.maintain()
    assert outcome.status.value == "succeeded"
    assert theirs.exists()
    assert table.unreferenced() == set()


def test_refs_that_the_catalog_drops_are_put_back(table: MaintainedTable) -> None:
    """SeaweedFS drops every ref but main together with removed snapshots."""
    snapshots = [s.snapshot_id for s in table.table.snapshots()]
    table.table.manage_snapshots().create_tag(snapshots[2], "release").commit()
    refs = table.loaded.metadata.document["refs"]
    calls: list[Sequence[Mapping[str, Any]]] = []

    def forgetful(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        calls.append(updates)
        if any(update["action"] == "remove-snapshots" for update in updates):
            updates = [*updates, {"action": "remove-snapshot-ref", "ref-name": "release"}]
        return table.catalog.inner.commit(base, requirements, updates)

    table.catalog.commit_instead = forgetful
    assert expired(table).status is Status.SUCCEEDED
    assert table.loaded.metadata.document["refs"] == refs
    assert len(table.rows(snapshots[2])) == 9
    assert len(calls) == 2
    assert table.unreferenced() == set()


def test_a_commit_that_takes_back_an_expired_snapshot_keeps_its_files(table: MaintainedTable) -> None:
    """Between our commit and our deletions another writer makes one of the snapshots current again."""
    table.table.overwrite(ROWS)
    snapshot = table.loaded.metadata.document["snapshots"][-3]  # PyIceberg overwrites in two: delete, append

    def revive() -> None:
        table.catalog.after_commit = lambda: None
        loaded = table.loaded
        document = {
            **loaded.metadata.document,
            "snapshots": [*loaded.metadata.document["snapshots"], snapshot],
            "last-sequence-number": 0,
        }
        revived = LoadedTable(
            loaded.name, TableMetadata(document), loaded.metadata_location, loaded.token, loaded.io_properties
        )
        table.catalog.inner.commit(revived, [], [{"action": "set-properties", "updates": {"a": "b"}}])

    table.catalog.after_commit = revive
    expired(table)
    assert len(table.rows(snapshot["snapshot-id"])) == 18


def test_inline_manifests_of_v1_are_followed(tmp_path: Path) -> None:
    """Legacy v1 snapshots list their manifests in the metadata file itself."""
    with maintained_table(tmp_path / "source") as source:
        written = source.create(ROWS.schema, properties={"format-version": "1"})
        for _ in range(3):
            written.append(ROWS)
        live = source.live_files()
        assert len(live) == 3
        document = json.loads(json.dumps(source.loaded.metadata.document))
        lists = []
        for raw in document["snapshots"]:
            found = source.reader.manifests(source.loaded.metadata.snapshots[raw["snapshot-id"]])
            lists.append(normalise(raw.pop("manifest-list")))
            raw["manifests"] = [manifest.manifest_path for manifest in found]
        document.pop("refs", None)
        path = Path(normalise(document["location"])) / "metadata" / "v9.metadata.json"
        path.write_text(json.dumps(document))
    (tmp_path / "home").mkdir()
    table = registered_table(path.as_uri(), tmp_path / "home")
    assert table.live_files() == live
    outcome = outcome_of(table.maintain(**EXPIRE), Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 2
    assert table.live_files() == live
    assert all(Path(normalise(file)).exists() for file in live)


def test_bytes_reclaimable_are_those_on_disk_and_no_object_is_asked_for(table: MaintainedTable) -> None:
    """Merged files, manifests, manifest lists: what a dry run tells is what a run frees."""
    _with_statistics(table)
    table.maintain(operations="compact")
    asked: list[str] = []
    original = Storage.size

    def size(self: Storage, path: str) -> int | None:
        asked.append(path)
        return original(self, path)

    with mock.patch.object(Storage, "size", size):
        preview = outcome_of(table.maintain(dry_run=True, **EXPIRE), Operation.EXPIRE_SNAPSHOTS)
        on_disk = sum(Path(normalise(path)).stat().st_size for path in preview.files_planned)
        outcome = expired(table)
    assert asked == []
    assert preview.metrics["expire_snapshots.bytes_reclaimable"] == on_disk
    assert outcome.metrics["expire_snapshots.bytes_reclaimable"] == on_disk
    assert outcome.files_planned == preview.files_planned
    assert set(outcome.files_deleted) == set(preview.files_planned)


@pytest.mark.parametrize("respell", [lambda p: p.replace("file:///", "file:/"), lambda p: p.replace("file://", "")])
def test_a_manifest_that_spells_paths_otherwise_keeps_its_files(
    table: MaintainedTable, respell: Callable[[str], str]
) -> None:
    """Engines that share a table mix spellings: the file is one all the same."""
    before, live = table.rows(), [entry.file.file_path for _, entry in live_entries(table)]
    respelled(table, {path: respell(path) for path in live})
    outcome = expired(table)
    assert outcome.status is Status.SUCCEEDED
    assert not [path for path in outcome.files_deleted if path.endswith(".parquet")]
    assert len([path for path in table.files() if path.endswith(".parquet")]) == 6
    assert table.rows() == before


def respelled(table: MaintainedTable, paths: Mapping[str, str]) -> None:
    """Another engine rewrites the manifests of the head into one that spells paths its own way."""
    loaded = table.loaded
    head = loaded.metadata.current_snapshot
    assert head is not None
    entries = [
        replace(e, status=EntryStatus.EXISTING, file=replace(e.file, file_path=paths[e.file.file_path]))
        for _, e in live_entries(table)
    ]
    folder = loaded.metadata.metadata_directory
    number = loaded.metadata.last_sequence_number + 1
    written = encode_manifest(
        loaded.metadata,
        spec_id=0,
        content=ManifestContent.DATA,
        entries=entries,
        path=f"{folder}/theirs.avro",
        snapshot=NewSnapshot(7, number),
    )
    listed = encode_manifest_list(
        2, [written.manifest], snapshot_id=7, parent_snapshot_id=head.snapshot_id, sequence_number=number
    )
    storage = Storage(loaded.io_properties)
    storage.write(f"{folder}/theirs.avro", written.data)
    storage.write(f"{folder}/snap-theirs.avro", listed)
    raw = {
        **head.raw,
        "snapshot-id": 7,
        "parent-snapshot-id": head.snapshot_id,
        "sequence-number": number,
        "manifest-list": f"{folder}/snap-theirs.avro",
    }
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7}
    table.catalog.inner.commit(loaded, [], [{"action": "add-snapshot", "snapshot": raw}, ref])
