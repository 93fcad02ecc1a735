"""Orphan removal on a real local table: what it deletes, and what it must leave."""

from __future__ import annotations

import json
import os
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

# Orphan removal on a real local table, with every danger planted that we know of.


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
    """A reference to the same path under another bucket or host is refused (rule: refuse-same-path-elsewhere)."""
    orphan = table.plant("data/f.parquet")

    def log(document: dict[str, Any]) -> None:
        document["metadata-log"].append({"timestamp-ms": 1, "metadata-file": f"hdfs://host{orphan}"})

    table.rewrite_document(log)
    assert_refused(table, f"hdfs://host{orphan}")


class TestDamagedMetadata:
    """A metadata file that cannot be parsed and that no log names."""

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
    """A table needs what its snapshots, refs, logs and statistics name (rule: what-a-table-needs)."""
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
    identity = TableIdentity(table.catalog.id, NAME, metadata.uuid or "")
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


# Shares too large, staged loads, folders, and a clock that runs backwards.


def deleted(outcome: OperationOutcome) -> set[str]:
    return set(map(normalise, outcome.files_deleted))


# -- shares


def test_more_than_the_share_that_somebody_set_is_refused(old_table: MaintainedTable) -> None:
    listed = len(old_table.files()) + 2
    orphans = {old_table.plant("data/a.parquet"), old_table.plant("data/b.parquet")}
    outcome = sweep(old_table, orphan_max_delete_ratio="0.1")
    assert outcome.status is Status.REFUSED
    assert f"2 of {listed} listed files are orphans" in (outcome.reason or "")
    assert "orphan_max_delete_ratio 0.1 (--set)" in (outcome.reason or "")
    assert orphans <= old_table.files()
    assert sweep(old_table, orphan_max_delete_ratio="0.1", dry_run=True).status is Status.REFUSED
    assert deleted(sweep(old_table)) == orphans


def test_the_default_share_holds_for_many(old_table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FEW_ORPHANS", 20)
    for number in range(21):
        old_table.plant(f"data/{number}.parquet")
    assert sweep(old_table).status is Status.REFUSED
    assert len(sweep(old_table, orphan_max_delete_ratio="1").files_deleted) == 21


# -- staged loads


def stage(old_table: MaintainedTable, state: LoadState, *files: str, prefixes: tuple[str, ...] = ()) -> None:
    identity = identity_of(old_table.catalog, old_table.loaded)
    load = StagedLoad(identity=identity, name=state.value, state=state, prefixes=prefixes, changed_ms=1)
    old_table.state.staging.stage(load, files)


@pytest.mark.parametrize("state", [LoadState.PENDING, LoadState.ADOPTED])
def test_staged_files_and_folders_are_left_alone(old_table: MaintainedTable, state: LoadState) -> None:
    staged = old_table.plant("data/staged.parquet")
    in_folder, orphan = old_table.plant("data/load-1/f.parquet"), old_table.plant("data/load-10/f.parquet")
    stage(old_table, state, f"file:{staged}", prefixes=(f"{old_table.metadata.location}/data/load-1",))
    outcome = sweep(old_table)
    assert deleted(outcome) == {orphan}
    assert {staged, in_folder} <= old_table.files()
    assert outcome.metrics["remove_orphans.files_protected"] == 2


# -- protected metadata


def test_a_stray_metadata_file_is_refused_until_it_is_protected(old_table: MaintainedTable) -> None:
    stray, orphan = old_table.plant("stray.metadata.json", b"no json"), old_table.plant("data/orphan.parquet")
    refusal = sweep(old_table)
    assert refusal.status is Status.REFUSED
    assert stray in (refusal.reason or "")
    assert "orphan_protected_prefixes" in (refusal.reason or "")
    assert deleted(sweep(old_table, orphan_protected_prefixes=stray)) == {orphan}
    assert stray in old_table.files()


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
    # Whoever may write the table does not decide that the other one's data are orphans
    # (rule: unknown-metadata-stops-sweeps).
    with old_table.pyiceberg.load_table("ns.t").transaction() as change:
        change.set_properties({"icekeeper.orphan_protected_prefixes": ",".join(old)})
    still = sweep(old_table)
    assert still.status is Status.SKIPPED
    told = "orphan_protected_prefixes, which for this counts only from the deployment, a policy file or --set: its data"
    assert told in (still.reason or "")
    assert others <= old_table.files()
    assert deleted(sweep(old_table, orphan_protected_prefixes=",".join(old))) == others


# -- folders


def folder_of(old_table: MaintainedTable, relative: str, *, days_old: float = 10) -> Path:
    path = old_table.folder / relative
    path.mkdir(parents=True, exist_ok=True)
    grow_old([path], days_old)
    return path


def test_folders_that_became_empty_go_with_their_files(old_table: MaintainedTable) -> None:
    old_table.plant("data/day=1/hour=1/orphan.parquet")
    old_table.plant("data/day=2/orphan.parquet")
    old_table.plant("data/day=2/young.parquet", days_old=0)
    for relative in ("data/day=1/hour=1", "data/day=1", "data/day=2", "data", "metadata"):
        folder_of(old_table, relative)
    outcome = sweep(old_table)
    assert outcome.metrics["remove_orphans.folders_removed"] == 2
    assert sorted(os.listdir(old_table.folder / "data"))[-1:] == ["day=2"]
    assert not (old_table.folder / "data/day=1").exists()


def test_empty_folders_go_when_nobody_touched_them_for_the_grace_period(old_table: MaintainedTable) -> None:
    old, young = folder_of(old_table, "data/day=1"), folder_of(old_table, "data/day=2", days_old=1)
    kept, hidden = folder_of(old_table, "keep"), folder_of(old_table, "_delta_log")
    staged = folder_of(old_table, "data/_temporary")
    roots = [folder_of(old_table, name) for name in ("data", "metadata")]
    outcome = sweep(old_table, orphan_protected_prefixes=kept.as_uri())
    assert (outcome.metrics["remove_orphans.folders_removed"], old.exists()) == (1, False)
    assert all(folder.exists() for folder in (young, kept, hidden, staged, *roots))


def test_a_folder_that_a_writer_has_just_used_stays(old_table: MaintainedTable) -> None:
    """It may be about to write the next file there."""
    old_table.plant("data/day=1/orphan.parquet")
    assert sweep(old_table).metrics["remove_orphans.orphans_removed"] == 1
    assert (old_table.folder / "data/day=1").exists()  # the test has just planted a file in it


def test_the_folders_of_a_table_that_lost_everything_stay(old_table: MaintainedTable) -> None:
    roots = [old_table.folder, folder_of(old_table, "data"), folder_of(old_table, "metadata")]
    old_table.table.transaction().set_properties(
        {"write.data.path": f"{old_table.metadata.location}/files"}
    ).commit_transaction()
    mine = folder_of(old_table, "files")
    sweep(old_table)
    assert all(folder.exists() for folder in (*roots, mine))


def test_an_empty_folder_of_a_nested_table_stays(old_table: MaintainedTable) -> None:
    old_table.create_beside("ns.nested", f"{old_table.metadata.location}/sub")
    theirs = folder_of(old_table, "sub/data")
    assert sweep(old_table).status is Status.SUCCEEDED
    assert theirs.exists()


def test_stray_metadata_in_the_folder_of_a_nested_table_stops_nothing(old_table: MaintainedTable) -> None:
    nested = old_table.create_beside("ns.nested", f"{old_table.metadata.location}/sub")
    text = Path(normalise(nested.metadata_location)).read_text()
    other = text.replace(str(nested.metadata.table_uuid), "0c9e4b1e-3b07-4f5a-9a1d-2f6f7e1c8a55")
    stray = old_table.plant("sub/metadata/00009-stray.metadata.json", other.encode())
    orphan = old_table.plant("data/orphan.parquet")
    outcome = sweep(old_table)
    assert (outcome.status, set(map(normalise, outcome.files_deleted))) == (Status.SUCCEEDED, {orphan})
    assert stray in old_table.files()


def test_a_dry_run_removes_no_folder(old_table: MaintainedTable) -> None:
    empty = folder_of(old_table, "data/day=1")
    sweep(old_table, dry_run=True)
    assert empty.exists()


# -- the clock


def test_a_clock_that_runs_backwards_makes_everything_young(old_table: MaintainedTable) -> None:
    """Now lies before the times of all files."""
    orphan, folder = old_table.plant("data/orphan.parquet"), folder_of(old_table, "data/day=1")
    outcome = sweep(old_table, clock=lambda: int((time.time() - 30 * DAY_S) * 1000), orphan_older_than_hours="0")
    assert outcome.files_planned == ()
    assert outcome.metrics["remove_orphans.files_too_young"] > 0
    assert orphan in old_table.files()
    assert folder.exists()


# -- what is remembered of a second entry


def test_pins_and_staged_loads_of_a_second_entry_hold_too(old_table: MaintainedTable) -> None:
    """They are remembered under the other name of the same table."""
    old_table.pyiceberg.register_table("ns.again", old_table.loaded.metadata_location)
    again = old_table.catalog.load(TableName(("ns",), "again"))
    identity = identity_of(old_table.catalog, again)
    staged, orphan = old_table.plant("data/staged.parquet"), old_table.plant("data/orphan.parquet")
    pinned = old_table.plant(
        "metadata/00000-pinned.metadata.json", json.dumps(again.metadata.document).encode(), days_old=20
    )
    old_table.state.staging.stage(StagedLoad(identity=identity, name="load", changed_ms=1), [staged])
    head = again.metadata.current_snapshot
    assert head is not None
    old_table.state.add_pin(
        Pin(
            identity=identity,
            name="reader",
            snapshot_id=head.snapshot_id,
            metadata_location=f"file://{pinned}",
            expires_ms=2**62,
        )
    )
    assert deleted(sweep(old_table)) == {orphan}
    assert {staged, pinned} <= old_table.files()


# Files that cannot be deleted are told with the store's reason, and an operation that deleted none of them failed.

EXPIRE = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1"}


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Endings of names that the store deletes no file of."""
    original, endings = Storage.delete, [""]

    def delete(self: Storage, paths: Iterable[str]) -> DeleteReport:
        asked = list(paths)
        stuck = {path: "is locked" for path in asked if path.endswith(tuple(endings))}
        return DeleteReport(original(self, [path for path in asked if path not in stuck]).deleted, stuck)

    monkeypatch.setattr(Storage, "delete", delete)
    return endings


def test_orphans_that_stay(three_appends: MaintainedTable, locked: list[str]) -> None:
    stays, goes = three_appends.plant("data/a.parquet"), three_appends.plant("data/b.parquet")
    in_vain = sweep(three_appends)
    assert (in_vain.status, in_vain.metrics["remove_orphans.files_failed"]) == (Status.FAILED, 2)
    assert in_vain.reason is not None
    assert in_vain.reason.startswith("2 file(s) could not be deleted and wait for the next pass: ")
    locked[:] = ["a.parquet"]
    outcome = sweep(three_appends)
    told = f"1 file(s) could not be deleted and wait for the next pass: file://{stays} is locked"
    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, f"removed 1 orphan file(s); {told}")
    assert {stays, goes} & three_appends.files() == {stays}


def test_files_of_expired_snapshots_that_stay(three_appends: MaintainedTable, locked: list[str]) -> None:
    """The snapshots are gone, which is a success; a later pass that only had the files to delete failed."""
    outcome = three_appends.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    freed = outcome.metrics["expire_snapshots.files_failed"]
    assert (outcome.status, freed > 0) == (Status.SUCCEEDED, True)
    told = f"{freed} file(s) could not be deleted and wait for the next pass: "
    assert outcome.summary.startswith(f"expired 2 snapshot(s), deleted 0 unreferenced file(s); {told}")
    again = three_appends.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    assert (again.status, again.metrics["expire_snapshots.files_failed"]) == (Status.FAILED, freed)
    assert again.reason is not None
    assert again.reason.startswith(told)
    locked[:] = ["nothing"]
    last = three_appends.run(Operation.EXPIRE_SNAPSHOTS, **EXPIRE)
    assert last.summary == f"deleted {freed} file(s) that an interrupted run left behind"
    assert three_appends.unreferenced() == set()
