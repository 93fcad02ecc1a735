"""Orphan removal on a real local table, with every danger planted that we know of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import StorageError
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Pin
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import NAME, MaintainedTable, assert_refused, grow_old, metadata_of, new_table, sweep


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Two appends, every file ten days old."""
    made = new_table(local_catalog, tmp_path, allowed=tmp_path)
    made.fill(2)
    grow_old(Path(path) for path in made.files())
    return made


def test_what_is_old_and_unreferenced_goes_and_nothing_else(table: MaintainedTable) -> None:
    before = table.files()
    planted = {table.plant("data/compact-orphan.parquet"), table.plant("metadata/compact-failed.avro")}
    young = table.plant("data/upload.parquet", days_old=0.04)

    dry = sweep(table, dry_run=True)
    assert set(map(normalise, dry.files_planned)) == planted
    assert dry.files_deleted == ()
    assert planted <= table.files()

    outcome = sweep(table)
    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, "removed 2 orphan file(s)")
    assert set(map(normalise, outcome.files_deleted)) == planted
    assert table.files() == before | {young}
    assert outcome.metrics["remove_orphans.files_too_young"] == 1
    assert sweep(table).summary == "removed 0 orphan file(s)"


def test_a_reference_in_another_spelling_protects_its_file(table: MaintainedTable) -> None:
    """``file:/``, bare paths, percent-encoding: whatever the writer put into the metadata log."""
    plain = table.plant("metadata/a b.metadata.json", metadata_of(table))
    other = table.plant("metadata/twin.metadata.json", metadata_of(table))

    def log(document: dict[str, Any]) -> None:
        document["metadata-log"] += [
            {"timestamp-ms": 1, "metadata-file": f"file://{quote(plain)}"},
            {"timestamp-ms": 1, "metadata-file": f"file:{other}"},
        ]

    table.rewrite_document(log)
    assert sweep(table).summary == "removed 0 orphan file(s)"
    assert {plain, other} <= table.files()


def test_a_reference_under_another_host_is_refused(table: MaintainedTable) -> None:
    orphan = table.plant("data/f.parquet")

    def log(document: dict[str, Any]) -> None:
        document["metadata-log"].append({"timestamp-ms": 1, "metadata-file": f"hdfs://host{orphan}"})

    table.rewrite_document(log)
    assert_refused(table, f"hdfs://host{orphan}")


class TestDamagedMetadata:
    """A metadata file that cannot be parsed and that no log names (rule 230)."""

    def test_it_stays_and_is_named_and_orphans_go(self, table: MaintainedTable) -> None:
        torn = table.plant("metadata/torn.metadata.json", metadata_of(table)[:50])
        orphan = table.plant("data/orphan.parquet")
        outcome = sweep(table)
        assert (outcome.status, {*map(normalise, outcome.files_deleted)}) == (Status.SUCCEEDED, {orphan})
        assert f"file://{torn} cannot be parsed, and stay(s): if no table" in outcome.summary
        assert torn in table.files()

    def test_one_that_is_newer_than_the_table_may_be_of_a_newer_state(self, table: MaintainedTable) -> None:
        """Of which the files are newer than the entry's state, too."""
        updated_ms = table.metadata.last_updated_ms - 5 * 86_400_000
        table.rewrite_document(lambda document: document.update({"last-updated-ms": updated_ms}))
        torn = table.plant("metadata/00009-torn.metadata.json", b"{", days_old=4)
        newer, older = table.plant("data/newer.parquet", days_old=4), table.plant("data/older.parquet", days_old=6)
        outcome = sweep(table)
        assert {*map(normalise, outcome.files_deleted)} == {older}
        assert "with all that is newer than the catalog's entry" in outcome.summary
        assert {torn, newer} <= table.files()

    def test_the_folder_of_a_table_that_it_may_be_of_is_left_alone(self, table: MaintainedTable) -> None:
        kept = {table.plant(f"data/x/{name}", b"{") for name in ("metadata/v1.metadata.json", "data/live.parquet")}
        orphan = table.plant("data/orphan.parquet")
        outcome = sweep(table)
        assert {*map(normalise, outcome.files_deleted)} == {orphan}
        assert kept <= table.files()

    def test_one_of_a_table_around_this_one_is_refused(self, table: MaintainedTable) -> None:
        assert_refused(table, table.plant("v1.metadata.json", b"{"), "may be of a table around")

    def test_one_that_the_store_does_not_let_us_read_is_refused(
        self, table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, read = table.plant("metadata/denied.metadata.json", b"{"), Storage.read

        def denied(self: Storage, asked: str) -> bytes:
            if "denied" in asked:
                raise StorageError(f"{asked} cannot be read: access denied")
            return read(self, asked)

        monkeypatch.setattr(Storage, "read", denied)
        assert_refused(table, path, "access denied")


def test_statistics_files_stay(table: MaintainedTable) -> None:
    puffin, partition = table.plant("metadata/stats.puffin"), table.plant("data/partition-stats.parquet")
    head = table.metadata.current_snapshot
    assert head is not None

    def register(document: dict[str, Any]) -> None:
        common = {"snapshot-id": head.snapshot_id, "file-size-in-bytes": 1}
        document["statistics"] = [
            {**common, "statistics-path": f"file://{puffin}", "file-footer-size-in-bytes": 1, "blob-metadata": []}
        ]
        document["partition-statistics"] = [{**common, "statistics-path": f"file://{partition}"}]

    table.rewrite_document(register)
    table.plant("data/bait.parquet")
    assert sweep(table).summary == "removed 1 orphan file(s)"
    assert {puffin, partition} <= table.files()


def test_old_metadata_files_that_no_log_mentions(table: MaintainedTable) -> None:
    """Newer than the oldest snapshot: the log may be incomplete.  Older: nothing can need it."""
    newer = table.plant("metadata/00001-lost.metadata.json", metadata_of(table), days_old=-1)
    older = table.plant("metadata/00000-old.metadata.json", metadata_of(table), days_old=20)
    hint = table.plant("metadata/version-hint.text", b"3")
    outcome = sweep(table, orphan_older_than_hours="0")
    assert set(map(normalise, outcome.files_deleted)) == {older}
    assert {newer, hint} <= table.files()


def test_metadata_newer_than_the_oldest_snapshot_outlives_any_grace_period(table: MaintainedTable) -> None:
    def age(document: dict[str, Any]) -> None:
        document["snapshots"][0]["timestamp-ms"] -= 20 * 86_400_000

    table.rewrite_document(age)
    lost = table.plant("metadata/00001-lost.metadata.json", metadata_of(table), days_old=10)
    outcome = sweep(table)
    assert outcome.metrics["remove_orphans.files_protected"] == 1
    assert lost in table.files()


def test_an_old_tag_keeps_only_metadata_that_somebody_names(table: MaintainedTable) -> None:
    """A pin, a log, another head; nobody knows the others any more, though they are newer than the tagged snapshot."""
    days_ms = 86_400_000

    def tag(document: dict[str, Any]) -> None:
        old, now = dict(document["snapshots"][0]), document["snapshots"][-1]
        document["snapshots"] = [old | {"timestamp-ms": old["timestamp-ms"] - 200 * days_ms}, now]
        document["refs"]["audit"] = {"type": "tag", "snapshot-id": old["snapshot-id"]}
        now["parent-snapshot-id"] = 99
        document["snapshot-log"] = document["snapshot-log"][-1:]
        document["metadata-log"].insert(0, {"metadata-file": logged, "timestamp-ms": past["last-updated-ms"]})

    past: dict[str, Any] = {"metadata-log": [], "last-updated-ms": table.metadata.last_updated_ms - 20 * days_ms}
    logged, pinned, of_head, lost = (
        f"file://{table.plant(f'metadata/{name}.metadata.json', metadata_of(table, **past), days_old=20)}"
        for name in ("00000-logged", "00000-pinned", "00000-of-head", "00000-lost")
    )
    table.rewrite_document(tag)
    now = table.metadata
    log = [
        {"metadata-file": of_head, "timestamp-ms": past["last-updated-ms"]},
        {"metadata-file": table.metadata_location, "timestamp-ms": now.last_updated_ms},
    ]
    next_head = metadata_of(table, **{"metadata-log": log, "last-updated-ms": now.last_updated_ms + 1})
    crashed = table.plant("metadata/00003-crashed.metadata.json", next_head)
    grow_old(Path(path) for path in table.files() if "metadata" in path)
    head = table.metadata.current_snapshot
    assert head is not None
    identity = identity_of(table.catalog, table.loaded)
    table.state.add_pin(
        Pin(identity=identity, name="reader", snapshot_id=head.snapshot_id, metadata_location=pinned, expires_ms=2**62)
    )
    outcome = sweep(table)
    gone = {normalise(path) for path in outcome.files_deleted}
    assert normalise(lost) in gone
    kept = (logged, pinned, of_head, crashed, table.metadata_location)
    assert not {normalise(path) for path in kept} & gone


def test_protected_prefixes_and_pinned_metadata_stay(table: MaintainedTable) -> None:
    kept, gone = table.plant("data/keep/f.parquet"), table.plant("data/keeper/f.parquet")
    pinned = table.plant("metadata/00000-pinned.metadata.json", metadata_of(table), days_old=20)
    metadata = table.metadata
    assert metadata.current_snapshot is not None
    identity = TableIdentity(table.catalog.name, table.catalog.warehouse, NAME, metadata.uuid or "")
    table.state.add_pin(
        Pin(
            identity=identity,
            name="reader",
            snapshot_id=metadata.current_snapshot.snapshot_id,
            metadata_location=f"file://{pinned}",
            expires_ms=2**62,
        )
    )
    outcome = sweep(table, orphan_protected_prefixes=f"{metadata.location}/data/keep")
    assert set(map(normalise, outcome.files_deleted)) == {gone}
    assert {kept, pinned} <= table.files()
    table.state.remove_pin(identity, "reader")
    assert sweep(table).files_deleted == (f"file://{kept}", f"file://{pinned}")


def manifest_of_oldest_snapshot(table: MaintainedTable) -> Path:
    oldest = next(iter(table.metadata.snapshots.values()))
    return Path(normalise(table.reader.manifests(oldest)[0].manifest_path))


def list_of_oldest_snapshot(table: MaintainedTable) -> Path:
    oldest = next(iter(table.metadata.snapshots.values()))
    return Path(normalise(oldest.manifest_list or ""))


@pytest.mark.parametrize("which", [manifest_of_oldest_snapshot, list_of_oldest_snapshot])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-40])])
def test_references_that_cannot_be_read_are_refused(
    table: MaintainedTable, which: Callable[[MaintainedTable], Path], damage: Callable[[Path], object]
) -> None:
    path = which(table)
    damage(path)
    assert_refused(table, str(path))
    expiry = table.run(Operation.EXPIRE_SNAPSHOTS)
    if which is manifest_of_oldest_snapshot:
        # The kept snapshot lists it too: whatever it holds stays, and it need not be opened.
        assert {Path(file).name.split("-")[0] for file in expiry.files_deleted} == {"snap"}
    else:
        assert expiry.status is Status.REFUSED
        assert str(path) in (expiry.reason or "")
        assert len(table.metadata.snapshots) == 2


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path"])
def test_paths_outside_the_location_are_not_swept(table: MaintainedTable, tmp_path: Path, key: str) -> None:
    """They may be shared: another table's files there look like our orphans."""
    shared = tmp_path / "shared"
    shared.mkdir()
    theirs = shared / "of-another-table.parquet"
    theirs.write_bytes(b"x")
    grow_old([theirs])
    table.table.transaction().set_properties({key: shared.as_uri()}).commit_transaction()
    table.append(99)
    outcome = sweep(table)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["remove_orphans.locations_not_swept"] == 1
    assert theirs.exists()
    table.table.transaction().set_properties({key: tmp_path.as_uri()}).commit_transaction()  # even above it
    assert sweep(table).status is Status.SUCCEEDED
    assert theirs.exists()
