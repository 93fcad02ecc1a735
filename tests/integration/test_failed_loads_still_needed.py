"""A failed load's record is no proof: what something else needs stays."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import stage_load
from icekeeper.model import TableName
from icekeeper.pass_context.stores import TableHandle
from icekeeper.policy import Operation
from icekeeper.state.store import LoadState
from icekeeper.storage.paths import normalise
from support.maintained_table import ID_AND_PART, NAME
from support.moments import Moment, at
from support.staged_table import GRACE_MS, StagedTable


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> StagedTable:
    return StagedTable(local_catalog, tmp_path)


def test_a_file_that_something_references_is_never_deleted(table: StagedTable) -> None:
    """Someone adopted it in spite of what was said; also under another spelling of its path."""
    data = [normalise(file.file_path) for file in table.data_files()]
    gone = table.plant("data/gone.parquet")
    table.stage("L", data[0], data[1].replace("/data/", "//data/"), gone, state=LoadState.FAILED)
    metadata = table.reachable()
    table.stage("all", *(path for path in sorted(metadata) if path.endswith(".avro")), state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    ids = table.ids()
    staged = table.cleaned()
    assert [normalise(path) for path in staged.files_deleted] == [gone]
    assert staged.metrics["staged.files_referenced"] == 2 + sum(path.endswith(".avro") for path in metadata)
    assert table.states() == {}
    assert table.readers_agree() == ids
    assert table.verify().ok


def test_a_file_that_is_referenced_at_the_last_moment_is_spared(table: StagedTable) -> None:
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    table.stage("L", str(adopted), state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    # To look for newer heads is the last thing that a plan does; the references were read before.
    with at(Moment.AFTER_LISTING, lambda: table.table.add_files([adopted.as_uri()])):
        staged = table.cleaned(operations="rewrite_position_deletes")
    assert staged.files_planned == (f"file://{adopted}",)
    assert staged.files_deleted == ()
    assert staged.metrics["staged.files_referenced"] == 1
    assert table.verify().ok


@pytest.mark.parametrize("moment", [Moment.OPERATIONS_DONE, Moment.MAY_DELETE_ASKED, Moment.AFTER_LISTING])
def test_a_table_created_in_the_place_of_ours_is_not_cleaned_by_our_record(table: StagedTable, moment: Moment) -> None:
    """The record is of another UUID, whatever lies at the path by now."""
    path = table.plant("data/load.parquet")
    table.stage("L", path, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    location = table.metadata.location

    def replace() -> None:
        table.pyiceberg.drop_table("ns.t")
        table.pyiceberg.create_table("ns.t", schema=ID_AND_PART, location=location)

    with at(moment, replace):
        problem = table.cleaned(operations="rewrite_position_deletes").problem
    assert "was replaced by another one" in (problem or "")
    assert Path(path).exists()


def test_a_file_that_another_load_stages_stays(table: StagedTable) -> None:
    path = table.plant("data/retried.parquet")
    table.stage("first", path, state=LoadState.FAILED)
    table.stage("second", path)
    table.clock.now_ms += GRACE_MS
    assert table.cleaned(dry_run=True).files_planned == ()
    assert table.cleaned().files_deleted == ()
    assert table.states() == {"second": LoadState.PENDING}
    assert path in table.files()


def test_what_a_table_nested_in_ours_has_is_not_ours_to_clean(table: StagedTable) -> None:
    nested = table.pyiceberg.create_table(
        "ns.nested", schema=ID_AND_PART, location=f"{table.metadata.location}/sub/nested"
    )
    other = Path(normalise(nested.location())) / "data" / "staged.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x")
    table.stage("L", str(other), state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    assert table.cleaned().files_deleted == ()
    assert other.exists()


def test_what_another_entry_of_the_same_table_references_stays(table: StagedTable) -> None:
    """Registered twice, and the other entry has moved on since."""
    source = Path(normalise(table.data_files()[0].file_path))
    adopted, gone = table.plant("data/adopted.parquet", source.read_bytes()), table.plant("data/gone.parquet")
    twin = table.pyiceberg.register_table("ns.twin", table.loaded.metadata_location)
    twin.add_files([f"file://{adopted}"])
    table.stage("L", adopted, gone, state=LoadState.FAILED)
    table.clock.now_ms += GRACE_MS
    assert [normalise(path) for path in table.cleaned(dry_run=True).files_planned] == [gone]
    assert [normalise(path) for path in table.cleaned().files_deleted] == [gone]
    assert adopted in table.files()


def test_what_a_newer_head_references_stays(table: StagedTable, tmp_path: Path) -> None:
    """The pointer database comes back from a backup that is older than the commit of the load."""
    shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
    adopted = table.plant("data/adopted.parquet", Path(normalise(table.data_files()[0].file_path)).read_bytes())
    table.stage("L", adopted, state=LoadState.FAILED)
    table.table.add_files([f"file://{adopted}"])
    table.append(90)
    shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
    table.clock.now_ms += GRACE_MS
    assert "newer head" in str(table.cleaned().problem)
    assert adopted in table.files()


@pytest.mark.parametrize("moment", ["before", "between"])
def test_what_loads_of_another_entry_stage_is_no_orphan(table: StagedTable, moment: str) -> None:
    """Each entry of the catalog has a record of its own."""
    staged, orphan = table.plant("data/staged.parquet"), table.plant("data/orphan.parquet")
    table.pyiceberg.register_table("ns.twin", table.loaded.metadata_location)
    twin = replace_name(table.handle, "twin")
    if moment == "before":
        stage_load(twin, "L", [f"file://{staged}"], ())
        outcome = table.run(Operation.REMOVE_ORPHANS)
        assert set(map(normalise, outcome.files_deleted)) == {orphan}
    table.stage("failed", staged, state=LoadState.FAILED)
    if moment == "between":
        stage_load(twin, "L", [f"file://{staged}"], ())
    table.clock.now_ms += GRACE_MS
    assert table.cleaned().files_deleted == ()
    assert staged in table.files()


def replace_name(handle: TableHandle, name: str) -> TableHandle:
    return replace(handle, table=TableName(NAME.namespace, name))
