"""Orphan removal on a real local table: which files it deletes and which it must keep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.operations.orphans import orphan_rules as plan
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.identity import TableIdentity
from icekeeper.state.staging import LoadState, StagedLoad
from icekeeper.state.store import Pin
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import DeleteReport, Storage
from support.maintained_table import (
    DAY_S,
    ID_AND_PART,
    NAME,
    MaintainedTable,
    assert_refused,
    grow_old,
    metadata_of,
    new_table,
    sweep,
)

DAY_MS = DAY_S * 1000
METRIC = "remove_orphans."


def deleted(outcome: OperationOutcome) -> set[str]:
    return set(map(normalise, outcome.files_deleted))


def identity(table: MaintainedTable, name: str = "t") -> TableIdentity:
    return identity_of(table.catalog, table.catalog.load(TableName(NAME.namespace, name)))


def pin(table: MaintainedTable, path: str, name: str = "t") -> None:
    """Pin a metadata file under the table's entry with this name."""
    head = table.metadata.current_snapshot
    assert head is not None
    table.state.add_pin(
        Pin(
            identity=identity(table, name),
            name="reader",
            snapshot_id=head.snapshot_id,
            metadata_location=f"file://{path}",
            expires_ms=2**62,
        )
    )


def stage(
    table: MaintainedTable, *files: str, state: LoadState = LoadState.PENDING, name: str = "t", prefix: str = ""
) -> None:
    prefixes = (f"{table.metadata.location}/{prefix}",) if prefix else ()
    load = StagedLoad(identity=identity(table, name), name=state.value, state=state, prefixes=prefixes, changed_ms=1)
    table.state.staging.stage(load, files)


def test_a_sweep_deletes_exactly_the_old_and_unreferenced_files(old_table: MaintainedTable) -> None:
    """The oldest snapshot is 15 days old; planted files are 20 days old unless their line states another age."""
    table = old_table
    before = table.files()

    def plant(name: str, data: bytes = b"x", *, days_old: float = 20) -> str:
        return table.plant(name, data, days_old=days_old)

    document = metadata_of(table)
    logged = [plant(f"metadata/{name}.metadata.json", document) for name in ("a b", "twin")]
    statistics, of_partitions = plant("metadata/stats.puffin"), plant("data/partition-stats.parquet")
    staged, adopted = plant("data/staged.parquet"), plant("data/adopted.parquet")
    of_adopted = {adopted, plant("data/load-2/f.parquet")}
    of_loads = {staged, plant("data/load-1/f.parquet"), *of_adopted}
    newer = plant("metadata/00001-lost.metadata.json", document, days_old=10)  # newer than the oldest snapshot
    by_prefix, pinned = plant("data/keep/f.parquet"), plant("metadata/00000-pinned.metadata.json", document)
    young = plant("data/upload.parquet", days_old=0.04)
    hint = plant("metadata/version-hint.text", b"3")
    orphans = {
        *(plant("data/compact-orphan.parquet"), plant("metadata/compact-failed.avro"), plant("data/keeper/f.parquet")),
        *(plant("data/load-10/f.parquet"), plant("metadata/00000-old.metadata.json", document)),
    }

    def change(document: dict[str, Any]) -> None:
        document["snapshots"][0]["timestamp-ms"] -= 15 * DAY_MS
        document["metadata-log"] += [
            {"timestamp-ms": 1, "metadata-file": f"file://{quote(logged[0])}"},
            {"timestamp-ms": 1, "metadata-file": f"file:{logged[1]}"},
        ]
        common = {"snapshot-id": document["current-snapshot-id"], "file-size-in-bytes": 1}
        document["statistics"] = [
            {**common, "statistics-path": f"file://{statistics}", "file-footer-size-in-bytes": 1, "blob-metadata": []}
        ]
        document["partition-statistics"] = [{**common, "statistics-path": f"file://{of_partitions}"}]

    table.rewrite_document(change)
    stage(table, f"file:{staged}", prefix="data/load-1")
    stage(table, f"file:{adopted}", prefix="data/load-2", state=LoadState.ADOPTED)
    pin(table, pinned)
    keep = {"orphan_protected_prefixes": f"{table.metadata.location}/data/keep"}

    dry = sweep(table, dry_run=True, **keep)
    assert set(map(normalise, dry.files_planned)) == orphans
    assert dry.files_deleted == ()
    assert orphans <= table.files()

    outcome = sweep(table, **keep)
    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, "removed 5 orphan file(s)")
    assert deleted(outcome) == orphans
    kept = {*logged, statistics, of_partitions, young, hint, *of_loads, newer, by_prefix, pinned}
    assert table.files() == before | kept
    assert outcome.metrics[f"{METRIC}files_too_young"] == 1
    assert outcome.metrics[f"{METRIC}files_protected"] == len({*of_loads, newer, by_prefix})
    assert deleted(sweep(table, **keep)) == of_adopted  # a pass drops the record of an adopted load once it is old
    assert sweep(table, **keep).summary == "removed 0 orphan file(s)"

    table.state.remove_pin(identity(table), "reader")
    assert sweep(table).files_deleted == (f"file://{by_prefix}", f"file://{pinned}")


def test_a_reference_under_another_host_is_refused(old_table: MaintainedTable) -> None:
    """(rule: any-spelling-protects)"""
    orphan = old_table.plant("data/f.parquet")

    def log(document: dict[str, Any]) -> None:
        document["metadata-log"].append({"timestamp-ms": 1, "metadata-file": f"hdfs://host{orphan}"})

    old_table.rewrite_document(log)
    assert_refused(old_table, f"hdfs://host{orphan}")


def test_a_damaged_metadata_file_that_no_log_names_is_kept(
    old_table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of its possible table is kept, too; the sweep is refused if that may be a table around this table."""
    table, read = old_table, Storage.read
    torn = table.plant("metadata/torn.metadata.json", metadata_of(table)[:50])
    nested = {table.plant(f"data/x/{name}", b"{") for name in ("metadata/v1.metadata.json", "data/live.parquet")}
    orphan = table.plant("data/orphan.parquet")
    outcome = sweep(table)
    assert (outcome.status, deleted(outcome)) == (Status.SUCCEEDED, {orphan})
    assert f"file://{torn}" in outcome.summary
    assert "cannot be parsed and stay(s): if no table" in outcome.summary
    assert {torn, *nested} <= table.files()

    around = Path(table.plant("v1.metadata.json", b"{"))
    assert_refused(table, str(around), "may belong to a table whose location contains")
    around.unlink()

    def denied(self: Storage, path: str) -> bytes:
        if "denied" in path:
            raise StorageError(f"{path} cannot be read: access denied")
        return read(self, path)

    monkeypatch.setattr(Storage, "read", denied)
    assert_refused(table, table.plant("metadata/denied.metadata.json", b"{"), "access denied")


def test_a_damaged_metadata_file_newer_than_the_table_keeps_all_newer_files(old_table: MaintainedTable) -> None:
    """It may belong to a newer state that needs them."""
    updated_ms = old_table.metadata.last_updated_ms - 5 * DAY_MS
    old_table.rewrite_document(lambda document: document.update({"last-updated-ms": updated_ms}))
    torn = old_table.plant("metadata/00009-torn.metadata.json", b"{", days_old=4)
    newer, older = old_table.plant("data/newer.parquet", days_old=4), old_table.plant("data/older.parquet", days_old=6)
    outcome = sweep(old_table)
    assert deleted(outcome) == {older}
    assert "with all files that are newer than the table's metadata in the catalog" in outcome.summary
    assert {torn, newer} <= old_table.files()


def test_an_old_tag_keeps_only_the_metadata_files_that_something_names(old_table: MaintainedTable) -> None:
    """A pin, a log or another head names them; others are removed, although newer than the tagged snapshot."""
    table = old_table

    def tag(document: dict[str, Any]) -> None:
        old, now = dict(document["snapshots"][0]), document["snapshots"][-1]
        document["snapshots"] = [old | {"timestamp-ms": old["timestamp-ms"] - 200 * DAY_MS}, now]
        document["refs"]["audit"] = {"type": "tag", "snapshot-id": old["snapshot-id"]}
        now["parent-snapshot-id"] = 99
        document["snapshot-log"] = document["snapshot-log"][-1:]
        document["metadata-log"].insert(
            0, {"metadata-file": f"file://{logged}", "timestamp-ms": past["last-updated-ms"]}
        )

    past: dict[str, Any] = {"metadata-log": [], "last-updated-ms": table.metadata.last_updated_ms - 20 * DAY_MS}
    logged, pinned, of_head, lost = (
        table.plant(f"metadata/00000-{name}.metadata.json", metadata_of(table, **past), days_old=20)
        for name in ("logged", "pinned", "of-head", "lost")
    )
    table.rewrite_document(tag)
    now = table.metadata
    log = [
        {"metadata-file": f"file://{of_head}", "timestamp-ms": past["last-updated-ms"]},
        {"metadata-file": table.metadata_location, "timestamp-ms": now.last_updated_ms},
    ]
    next_head = metadata_of(table, **{"metadata-log": log, "last-updated-ms": now.last_updated_ms + 1})
    crashed = table.plant("metadata/00003-crashed.metadata.json", next_head)
    grow_old(Path(path) for path in table.files() if "metadata" in path)
    pin(table, pinned)
    gone = deleted(sweep(table))
    assert lost in gone
    assert not {logged, pinned, of_head, crashed, normalise(table.metadata_location)} & gone


def manifest_of_oldest_snapshot(table: MaintainedTable) -> Path:
    oldest = next(iter(table.metadata.snapshots.values()))
    return Path(normalise(table.reader.manifests(oldest)[0].manifest_path))


def list_of_oldest_snapshot(table: MaintainedTable) -> Path:
    oldest = next(iter(table.metadata.snapshots.values()))
    return Path(normalise(oldest.manifest_list or ""))


@pytest.mark.parametrize("which", [manifest_of_oldest_snapshot, list_of_oldest_snapshot])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-40])])
def test_unreadable_references_refuse_the_sweep(
    old_table: MaintainedTable, which: Callable[[MaintainedTable], Path], damage: Callable[[Path], object]
) -> None:
    path = which(old_table)
    damage(path)
    assert_refused(old_table, str(path))
    expiry = old_table.run(Operation.EXPIRE_SNAPSHOTS)
    if which is manifest_of_oldest_snapshot:
        # The kept snapshot lists it, too: all of its files are kept, so it need not be opened.
        assert {Path(file).name.split("-")[0] for file in expiry.files_deleted} == {"snap"}
    else:
        assert expiry.status is Status.REFUSED
        assert str(path) in (expiry.reason or "")
        assert len(old_table.metadata.snapshots) == 2


@pytest.mark.parametrize("key", ["write.data.path", "write.metadata.path"])
def test_paths_outside_the_location_are_not_swept(local_catalog: SqlCatalog, tmp_path: Path, key: str) -> None:
    """They may be shared: another table's files there look like orphans of this table."""
    table, shared = new_table(local_catalog, tmp_path, allowed=tmp_path), tmp_path / "shared"
    shared.mkdir()
    theirs = shared / "of-another-table.parquet"
    theirs.write_bytes(b"x")
    grow_old([theirs])
    table.table.transaction().set_properties({key: shared.as_uri()}).commit_transaction()
    table.append(99)
    outcome = sweep(table)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics[f"{METRIC}locations_not_swept"] == 1
    assert theirs.exists()
    table.table.transaction().set_properties({key: tmp_path.as_uri()}).commit_transaction()  # also above the location
    assert sweep(table).status is Status.SUCCEEDED
    assert theirs.exists()


def test_too_large_a_share_is_refused(old_table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting limits the share, or the default if there are many orphans."""
    listed = len(old_table.files()) + 2
    orphans = {old_table.plant("data/a.parquet"), old_table.plant("data/b.parquet")}
    outcome = sweep(old_table, orphan_max_delete_ratio="0.1")
    assert outcome.status is Status.REFUSED
    assert f"2 of {listed} listed files are orphans" in (outcome.reason or "")
    assert "orphan_max_delete_ratio 0.1 (this call)" in (outcome.reason or "")
    assert orphans <= old_table.files()
    assert sweep(old_table, orphan_max_delete_ratio="0.1", dry_run=True).status is Status.REFUSED
    assert deleted(sweep(old_table)) == orphans

    monkeypatch.setattr(plan, "FEW_ORPHANS", 20)
    many = {old_table.plant(f"data/{number}.parquet") for number in range(21)}
    assert sweep(old_table).status is Status.REFUSED
    assert deleted(sweep(old_table, orphan_max_delete_ratio="1")) == many


def test_a_table_created_again_in_place_is_not_swept_until_its_metadata_is_protected(
    old_table: MaintainedTable,
) -> None:
    old = {path for path in old_table.files() if path.endswith(".metadata.json")}
    others = old_table.files() - old
    location = old_table.metadata.location
    old_table.pyiceberg.drop_table("ns.t")
    old_table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=location)
    left_out = sweep(old_table)
    assert left_out.status is Status.SKIPPED
    assert "dropped" in (left_out.reason or "")
    # A writer of the table cannot decide that the other table's data files are orphans
    # (rule: unknown-metadata-stops-sweeps).
    with old_table.pyiceberg.load_table("ns.t").transaction() as change:
        change.set_properties({"icekeeper.orphan_protected_prefixes": ",".join(old)})
    still = sweep(old_table)
    assert still.status is Status.SKIPPED
    reason = (
        "orphan_protected_prefixes, which for this counts only from the deployment, a policy file or the call: its data"
    )
    assert reason in (still.reason or "")
    assert others <= old_table.files()
    assert deleted(sweep(old_table, orphan_protected_prefixes=",".join(old))) == others


def test_pins_and_staged_loads_under_another_name_of_a_table_apply(old_table: MaintainedTable) -> None:
    old_table.pyiceberg.register_table("ns.again", old_table.loaded.metadata_location)
    staged, orphan = old_table.plant("data/staged.parquet"), old_table.plant("data/orphan.parquet")
    pinned = old_table.plant("metadata/00000-pinned.metadata.json", metadata_of(old_table), days_old=20)
    stage(old_table, staged, name="again")
    pin(old_table, pinned, name="again")
    assert deleted(sweep(old_table)) == {orphan}
    assert {staged, pinned} <= old_table.files()


# Empty folders are removed.


def folder_of(table: MaintainedTable, relative: str, *, days_old: float = 10) -> Path:
    path = table.folder / relative
    path.mkdir(parents=True, exist_ok=True)
    grow_old([path], days_old)
    return path


def test_empty_folders_are_removed_once_unchanged_for_the_grace_period(old_table: MaintainedTable) -> None:
    """A writer that has just used a folder may be about to write the next file there."""
    table = old_table
    table.plant("data/day=1/hour=1/orphan.parquet")
    table.plant("data/day=2/orphan.parquet")
    table.plant("data/day=2/young.parquet", days_old=0)
    table.plant("data/day=5/orphan.parquet")  # the folder's time is that of this write
    gone = [folder_of(table, f"data/{name}") for name in ("day=1/hour=1", "day=1", "day=3")]
    kept = [
        *(folder_of(table, "keep"), folder_of(table, "_delta_log"), folder_of(table, "data/_temporary")),
        *(folder_of(table, "data/day=2"), folder_of(table, "data/day=4", days_old=1), table.folder / "data/day=5"),
        *(folder_of(table, "files"), folder_of(table, "metadata"), folder_of(table, "data"), table.folder),
    ]
    files = {"write.data.path": f"{table.metadata.location}/files"}  # the table's own folder, though empty
    table.table.transaction().set_properties(files).commit_transaction()
    keep = {"orphan_protected_prefixes": (table.folder / "keep").as_uri()}
    sweep(table, dry_run=True, **keep)
    assert all(folder.exists() for folder in (*gone, *kept))
    outcome = sweep(table, **keep)
    assert outcome.metrics[f"{METRIC}orphans_removed"] == 3
    assert [folder for folder in gone if folder.exists()] == []
    assert [folder for folder in kept if not folder.exists()] == []
    assert outcome.metrics[f"{METRIC}folders_removed"] == 3


def test_a_clock_that_runs_backwards_makes_everything_young(old_table: MaintainedTable) -> None:
    """The current time is before the times of all files."""
    orphan, folder = old_table.plant("data/orphan.parquet"), folder_of(old_table, "data/day=1")
    outcome = sweep(old_table, clock=lambda: int((time.time() - 30 * DAY_S) * 1000), orphan_older_than_hours="0")
    assert outcome.files_planned == ()
    assert outcome.metrics[f"{METRIC}files_too_young"] > 0
    assert orphan in old_table.files()
    assert folder.exists()


# Files that cannot be deleted: the report has the store's reason, and an operation that deletes none of them fails.

EXPIRE = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1"}


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Endings of names whose files the store does not delete."""
    original, endings = Storage.delete, [""]

    def delete(self: Storage, paths: Iterable[str], *, links: bool = True) -> DeleteReport:
        given = list(paths)
        stuck = {path: "is locked" for path in given if path.endswith(tuple(endings))}
        return DeleteReport(original(self, [path for path in given if path not in stuck]).deleted, stuck)

    monkeypatch.setattr(Storage, "delete", delete)
    return endings


def test_files_that_cannot_be_deleted_wait_for_the_next_pass(three_appends: MaintainedTable, locked: list[str]) -> None:
    """The snapshots have expired, which is a success; a later pass that only has to delete the files fails."""
    table = three_appends
    kept, removed = table.plant("data/a.parquet"), table.plant("data/b.parquet")
    failed = sweep(table)
    assert (failed.status, failed.metrics[f"{METRIC}files_failed"]) == (Status.FAILED, 2)
    assert failed.reason is not None
    assert failed.reason.startswith("2 file(s) could not be deleted and remain for the next pass: ")
    locked[:] = ["a.parquet"]
    outcome = sweep(table)
    reason = f"1 file(s) could not be deleted and remain for the next pass: file://{kept} is locked"
    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, f"removed 1 orphan file(s); {reason}")
    assert {kept, removed} & table.files() == {kept}

    locked[:] = [""]
    expired = table.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    freed = expired.metrics["expire_snapshots.files_failed"]
    assert (expired.status, freed > 0) == (Status.SUCCEEDED, True)
    reason = f"{freed} file(s) could not be deleted and remain for the next pass: "
    assert expired.summary.startswith(f"expired 2 snapshot(s), deleted 0 unreferenced file(s); {reason}")
    again = table.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    assert (again.status, again.metrics["expire_snapshots.files_failed"]) == (Status.FAILED, freed)
    assert again.reason is not None
    assert again.reason.startswith(reason)
    locked[:] = ["nothing"]
    last = table.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    assert last.summary == f"deleted {freed} file(s) that an interrupted run left behind"
    assert table.unreferenced() == {kept}
