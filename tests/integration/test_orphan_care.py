"""Orphans that wait for further sightings, shares too large, staged loads, folders, and a clock that runs backwards."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.model import TableName
from icekeeper.operations.orphans import orphan_rules as plan
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.store import LoadState, Pin, StagedLoad
from icekeeper.storage.paths import normalise
from support.maintained_table import DAY_S, ID_AND_PART, MaintainedTable, grow_old, new_table, sweep
from support.tables import new_document


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Two appends, every file ten days old."""
    made = new_table(local_catalog, tmp_path)
    made.fill(2)
    grow_old(Path(path) for path in made.files())
    return made


def deleted(outcome: OperationOutcome) -> set[str]:
    return set(map(normalise, outcome.files_deleted))


# -- quarantine


def test_an_orphan_goes_when_enough_passes_have_seen_it(table: MaintainedTable) -> None:
    orphan = table.plant("data/orphan.parquet")
    for number in (1, 2):
        outcome = sweep(table, orphan_min_sightings="3", run_id=f"run-{number}")
        assert (outcome.files_planned, outcome.metrics["remove_orphans.files_quarantined"]) == ((), 1)
        assert outcome.metrics["remove_orphans.orphan_bytes"] == 0
    late = table.plant("data/seen-later.parquet")
    outcome = sweep(table, orphan_min_sightings="3", run_id="run-3")
    assert deleted(outcome) == {orphan}
    assert outcome.metrics["remove_orphans.files_quarantined"] == 1
    assert late in table.files()
    assert [normalise(entry.path) for entry in sightings(table)] == [late]


def sightings(table: MaintainedTable) -> list[Any]:
    return list(table.state.quarantine.sightings(identity_of(table.catalog, table.loaded)))


def test_one_run_counts_once_and_a_dry_run_not_at_all(table: MaintainedTable) -> None:
    orphan = table.plant("data/orphan.parquet")
    for _ in range(3):
        assert sweep(table, orphan_min_sightings="2", run_id="run-1").files_planned == ()
    for _ in range(3):
        dry = sweep(table, orphan_min_sightings="2", run_id="dry", dry_run=True)
        assert {normalise(path) for path in dry.files_planned} == {orphan}
    assert [entry.count for entry in sightings(table)] == [1]
    assert deleted(sweep(table, orphan_min_sightings="2", run_id="run-2")) == {orphan}
    assert sightings(table) == []


def test_a_file_that_is_no_orphan_in_between_starts_anew(table: MaintainedTable) -> None:
    """Written again meanwhile, so young, or referenced for a while."""
    path = table.plant("data/orphan.parquet")
    sweep(table, orphan_min_sightings="2", run_id="run-1")
    table.plant("data/orphan.parquet", days_old=0)
    sweep(table, orphan_min_sightings="2", run_id="run-2")
    assert sightings(table) == []
    grow_old([Path(path)])
    assert deleted(sweep(table, orphan_min_sightings="2", run_id="run-3")) == set()
    assert deleted(sweep(table, orphan_min_sightings="2", run_id="run-4")) == {path}


def test_a_pass_without_quarantine_ends_what_was_counted(table: MaintainedTable) -> None:
    orphan = table.plant("data/orphan.parquet")
    sweep(table, orphan_min_sightings="3", run_id="run-1")
    sweep(table, orphan_older_than_hours="999999", run_id="run-2")
    assert sightings(table) == []
    assert deleted(sweep(table, run_id="run-3")) == {orphan}
    assert sightings(table) == []


def test_a_refused_pass_has_seen_nothing(table: MaintainedTable) -> None:
    table.plant("data/orphan.parquet")
    theirs = new_document(f"{table.metadata.location}/x", 2, **{"table-uuid": "3f3f0000-0000-0000-0000-0000000000aa"})
    table.plant("x/metadata/v1.metadata.json", json.dumps(theirs).encode())
    assert sweep(table, orphan_min_sightings="2").status is Status.REFUSED
    assert sightings(table) == []


# -- shares


def test_more_than_the_share_that_somebody_set_is_refused(table: MaintainedTable) -> None:
    listed = len(table.files()) + 2
    orphans = {table.plant("data/a.parquet"), table.plant("data/b.parquet")}
    outcome = sweep(table, orphan_max_delete_ratio="0.1")
    assert outcome.status is Status.REFUSED
    assert f"2 of {listed} listed files are orphans" in (outcome.reason or "")
    assert "orphan_max_delete_ratio 0.1 (--set)" in (outcome.reason or "")
    assert orphans <= table.files()
    assert sweep(table, orphan_max_delete_ratio="0.1", dry_run=True).status is Status.REFUSED
    assert deleted(sweep(table)) == orphans


def test_the_default_share_holds_for_many(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FEW_ORPHANS", 20)
    for number in range(21):
        table.plant(f"data/{number}.parquet")
    assert sweep(table).status is Status.REFUSED
    assert len(sweep(table, orphan_max_delete_ratio="1").files_deleted) == 21


# -- staged loads


def stage(table: MaintainedTable, state: LoadState, *files: str, prefixes: tuple[str, ...] = ()) -> None:
    identity = identity_of(table.catalog, table.loaded)
    load = StagedLoad(identity=identity, name=state.value, state=state, prefixes=prefixes, changed_ms=1)
    table.state.staging.stage(load, files)


@pytest.mark.parametrize("state", [LoadState.PENDING, LoadState.ADOPTED])
def test_staged_files_and_folders_are_left_alone(table: MaintainedTable, state: LoadState) -> None:
    staged = table.plant("data/staged.parquet")
    in_folder, orphan = table.plant("data/load-1/f.parquet"), table.plant("data/load-10/f.parquet")
    stage(table, state, f"file:{staged}", prefixes=(f"{table.metadata.location}/data/load-1",))
    outcome = sweep(table)
    assert deleted(outcome) == {orphan}
    assert {staged, in_folder} <= table.files()
    assert outcome.metrics["remove_orphans.files_protected"] == 2


# -- protected metadata


def test_a_stray_metadata_file_is_refused_until_it_is_protected(table: MaintainedTable) -> None:
    stray, orphan = table.plant("stray.metadata.json", b"no json"), table.plant("data/orphan.parquet")
    refusal = sweep(table)
    assert refusal.status is Status.REFUSED
    assert stray in (refusal.reason or "")
    assert "orphan_protected_prefixes" in (refusal.reason or "")
    assert deleted(sweep(table, orphan_protected_prefixes=stray)) == {orphan}
    assert stray in table.files()


def test_a_table_created_again_in_place_is_not_swept_until_its_metadata_is_protected(
    table: MaintainedTable,
) -> None:
    old = {path for path in table.files() if path.endswith(".metadata.json")}
    others = table.files() - old
    location = table.metadata.location
    table.pyiceberg.drop_table("ns.t")
    table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=location)
    left_out = sweep(table)
    assert left_out.status is Status.SKIPPED
    assert "dropped" in (left_out.reason or "")
    # Whoever may write the table does not decide that the other one's data are orphans (rule 263).
    with table.pyiceberg.load_table("ns.t").transaction() as change:
        change.set_properties({"icekeeper.orphan_protected_prefixes": ",".join(old)})
    still = sweep(table)
    assert still.status is Status.SKIPPED
    told = "orphan_protected_prefixes, which for this counts only from the deployment, a policy file or --set: its data"
    assert told in (still.reason or "")
    assert others <= table.files()
    assert deleted(sweep(table, orphan_protected_prefixes=",".join(old))) == others


# -- folders


def folder_of(table: MaintainedTable, relative: str, *, days_old: float = 10) -> Path:
    path = table.folder / relative
    path.mkdir(parents=True, exist_ok=True)
    grow_old([path], days_old)
    return path


def test_folders_that_became_empty_go_with_their_files(table: MaintainedTable) -> None:
    table.plant("data/day=1/hour=1/orphan.parquet")
    table.plant("data/day=2/orphan.parquet")
    table.plant("data/day=2/young.parquet", days_old=0)
    for relative in ("data/day=1/hour=1", "data/day=1", "data/day=2", "data", "metadata"):
        folder_of(table, relative)
    outcome = sweep(table)
    assert outcome.metrics["remove_orphans.folders_removed"] == 2
    assert sorted(os.listdir(table.folder / "data"))[-1:] == ["day=2"]
    assert not (table.folder / "data/day=1").exists()


def test_empty_folders_go_when_nobody_touched_them_for_the_grace_period(table: MaintainedTable) -> None:
    old, young = folder_of(table, "data/day=1"), folder_of(table, "data/day=2", days_old=1)
    kept, hidden = folder_of(table, "keep"), folder_of(table, "_delta_log")
    staged = folder_of(table, "data/_temporary")
    roots = [folder_of(table, name) for name in ("data", "metadata")]
    outcome = sweep(table, orphan_protected_prefixes=kept.as_uri())
    assert (outcome.metrics["remove_orphans.folders_removed"], old.exists()) == (1, False)
    assert all(folder.exists() for folder in (young, kept, hidden, staged, *roots))


def test_a_folder_that_a_writer_has_just_used_stays(table: MaintainedTable) -> None:
    """It may be about to write the next file there."""
    table.plant("data/day=1/orphan.parquet")
    assert sweep(table).metrics["remove_orphans.orphans_removed"] == 1
    assert (table.folder / "data/day=1").exists()  # the test has just planted a file in it


def test_the_folders_of_a_table_that_lost_everything_stay(table: MaintainedTable) -> None:
    roots = [table.folder, folder_of(table, "data"), folder_of(table, "metadata")]
    table.table.transaction().set_properties(
        {"write.data.path": f"{table.metadata.location}/files"}
    ).commit_transaction()
    mine = folder_of(table, "files")
    sweep(table)
    assert all(folder.exists() for folder in (*roots, mine))


def test_an_empty_folder_of_a_nested_table_stays(table: MaintainedTable) -> None:
    table.create_beside("ns.nested", f"{table.metadata.location}/sub")
    theirs = folder_of(table, "sub/data")
    assert sweep(table).status is Status.SUCCEEDED
    assert theirs.exists()


def test_a_dry_run_removes_no_folder(table: MaintainedTable) -> None:
    empty = folder_of(table, "data/day=1")
    sweep(table, dry_run=True)
    assert empty.exists()


# -- the clock


def test_a_clock_that_runs_backwards_makes_everything_young(table: MaintainedTable) -> None:
    """Now lies before the times of all files."""
    orphan, folder = table.plant("data/orphan.parquet"), folder_of(table, "data/day=1")
    outcome = sweep(table, clock=lambda: int((time.time() - 30 * DAY_S) * 1000), orphan_older_than_hours="0")
    assert outcome.files_planned == ()
    assert outcome.metrics["remove_orphans.files_too_young"] > 0
    assert orphan in table.files()
    assert folder.exists()


# -- what is remembered of a second entry


def test_pins_and_staged_loads_of_a_second_entry_hold_too(table: MaintainedTable) -> None:
    """They are remembered under the other name of the same table."""
    table.pyiceberg.register_table("ns.again", table.loaded.metadata_location)
    again = table.catalog.load(TableName(("ns",), "again"))
    identity = identity_of(table.catalog, again)
    staged, orphan = table.plant("data/staged.parquet"), table.plant("data/orphan.parquet")
    pinned = table.plant(
        "metadata/00000-pinned.metadata.json", json.dumps(again.metadata.document).encode(), days_old=20
    )
    table.state.staging.stage(StagedLoad(identity=identity, name="load", changed_ms=1), [staged])
    head = again.metadata.current_snapshot
    assert head is not None
    table.state.add_pin(
        Pin(
            identity=identity,
            name="reader",
            snapshot_id=head.snapshot_id,
            metadata_location=f"file://{pinned}",
            expires_ms=2**62,
        )
    )
    assert deleted(sweep(table)) == {orphan}
    assert {staged, pinned} <= table.files()


def test_a_pass_with_orphans_in_quarantine_is_not_idle(table: MaintainedTable) -> None:
    """Another pass finds more to do: detection must not take the table for one that waits for news."""
    table.plant("data/orphan.parquet")
    assert not table.maintain("remove_orphans", orphan_min_sightings="2").is_idle
    assert table.maintain("remove_orphans", orphan_older_than_hours="999").is_idle
