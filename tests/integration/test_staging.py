"""Staged loads: never deleted while a commit may name them, cleaned from the record some time after they failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import declare_load, stage_load
from icekeeper.deletion.shared_references import HeldFiles
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.store import LoadState, Pin
from icekeeper.storage.paths import normalise
from support.moments import Moment, at
from support.staged_table import StagedTable


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> StagedTable:
    return StagedTable(local_catalog, tmp_path)


@pytest.mark.parametrize("state", [LoadState.PENDING, LoadState.ADOPTED])
def test_orphan_removal_leaves_staged_files_alone(table: StagedTable, state: LoadState) -> None:
    """Modak's bound (rule 103): staged files awaiting adoption must never be deleted, however old they are."""
    staged, orphan = table.plant("data/staged.parquet"), table.plant("data/orphan.parquet")
    inside, beside = table.plant("data/load-1/a.parquet"), table.plant("data/load-10/a.parquet")
    stage_load(table.handle, "L", [f"file:{staged}"], [f"{table.metadata.location}/data/load-1/"])
    if state is LoadState.ADOPTED:
        declare_load(table.handle, "L", state)
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert set(map(normalise, outcome.files_deleted)) == {orphan, beside}
    assert outcome.metrics["remove_orphans.files_protected"] == 2
    assert {staged, inside} <= table.files()


def test_a_load_that_is_staged_after_the_listing_is_spared(table: StagedTable) -> None:
    """Files may be older than the load that adopts them: the record is read again right before every batch."""
    old, orphan = table.plant("data/old.parquet"), table.plant("data/orphan.parquet")
    with at(Moment.DELETION_RECORDED, lambda: table.stage("L", old)):
        outcome = table.run(Operation.REMOVE_ORPHANS)
    assert len(outcome.files_planned) == 2
    assert set(map(normalise, outcome.files_deleted)) == {orphan}
    assert old in table.files()


def test_expiry_spares_what_a_load_stages(table: StagedTable) -> None:
    """A file that compaction replaced is being added anew."""
    data = normalise(table.data_files()[0].file_path)
    table.run(Operation.COMPACT)
    with at(Moment.BEFORE_COMMIT, lambda: table.stage("L", data)):
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.SUCCEEDED
    assert data in set(map(normalise, outcome.files_planned)) - set(map(normalise, outcome.files_deleted))
    assert data in table.files()


def test_every_look_sees_what_was_staged_and_pinned_since(table: StagedTable) -> None:
    """The guard before each batch of deletions, also after the first."""
    memory, metadata = table.handle.memory(table.loaded), table.metadata
    held = HeldFiles(memory, table.storage.read)
    paths = [table.plant(f"data/{number}.parquet") for number in range(3)]
    for number, path in enumerate(paths):
        held.look(metadata)
        assert [held.hold(one) for one in paths] == [one in paths[:number] for one in paths]
        table.stage(f"L{number}", path)
    declare_load(table.handle, "L0", LoadState.FAILED)
    held.look(metadata)
    assert [held.hold(one) for one in paths] == [False, True, True]
    assert metadata.current_snapshot is not None
    location = f"{metadata.location}/metadata/old.metadata.json"
    assert not held.hold(location)
    snapshot_id = metadata.current_snapshot.snapshot_id
    table.state.add_pin(
        Pin(identity=memory.identity, name="p", snapshot_id=snapshot_id, metadata_location=location, expires_ms=2**62)
    )
    held.look(metadata)
    assert held.hold(normalise(location))
