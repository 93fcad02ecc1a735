"""Another table shares files with ours, and its catalog entry is older than its newest head."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.readers import pyiceberg_rows
from support.served import age_everything, files_of, maintain, second_catalog


@dataclass(frozen=True, slots=True)
class Guest:
    """``ns.guest`` of some catalog."""

    catalog: SqlCatalog
    database: Path
    table: Table

    def lose(self, changes: Callable[[], object]) -> str:
        """Let its catalog's database come back from a backup made before the changes; the newest metadata file."""
        backup = self.database.with_suffix(".backup")
        shutil.copy(self.database, backup)
        changes()
        newest = self.table.refresh().metadata_location
        shutil.copy(backup, self.database)
        return newest


@pytest.fixture
def owner(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Three appends."""
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


@pytest.fixture(params=["same catalog", "other catalog"])
def guest(request: pytest.FixtureRequest, owner: MaintainedTable, tmp_path: Path) -> Guest:
    """It has taken in one file of the owner, and a pass has looked at it."""
    is_here = request.param == "same catalog"
    catalog = owner.pyiceberg if is_here else second_catalog(tmp_path)
    table = catalog.create_table("ns.guest", schema=ID_AND_PART)
    table.add_files(files_of(owner.table)[:1])
    maintain(owner, catalog, "ns.guest", operations="compact", min_input_files="9")
    return Guest(catalog, tmp_path / ("catalog.db" if is_here else "other.db"), table)


def rows(location: str) -> list[int]:
    return sorted(row["id"] for row in pyiceberg_rows(location))


def compact_away(owner: MaintainedTable) -> None:
    """The owner's files of now are needed by its old snapshots alone."""
    maintain(owner, owner.pyiceberg, "ns.t", operations="compact")


@pytest.mark.parametrize("operation", [Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS])
def test_what_one_newer_state_of_a_guest_needs_is_spared(
    owner: MaintainedTable, guest: Guest, operation: Operation
) -> None:
    """It may be of a swap that crashed."""
    second = files_of(owner.table)[1:2]
    newest = guest.lose(lambda: guest.table.add_files(second))
    before = rows(newest)
    compact_away(owner)
    orphan = owner.plant("data/orphan.parquet")
    age_everything(owner)
    outcomes = maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog, operations=operation.value)
    assert outcomes[operation.value].status is Status.SUCCEEDED
    assert rows(newest) == before
    assert Path(orphan).exists() == (operation is not Operation.REMOVE_ORPHANS)
    maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog)
    age_everything(owner)
    maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog)
    assert rows(newest) == before


@pytest.mark.parametrize("operation", [Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS])
def test_nothing_goes_while_a_guest_has_a_newer_head(
    owner: MaintainedTable, guest: Guest, operation: Operation
) -> None:
    second, third = files_of(owner.table)[1:]

    def go_on() -> None:
        guest.table.add_files([second])
        guest.table.add_files([third])

    newest = guest.lose(go_on)
    before = rows(newest)
    compact_away(owner)
    owner.plant("data/orphan.parquet")
    age_everything(owner)
    there = owner.files()
    outcome = maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog, operations=operation.value)[operation]
    assert outcome.status is Status.REFUSED
    assert newest.rpartition("/")[2] in str(outcome.reason)
    assert "ns.guest" in str(outcome.reason)
    assert "point the entry at the newest metadata file" in str(outcome.reason)
    assert {path for path in there if path.endswith((".parquet", ".avro"))} <= owner.files()
    assert rows(newest) == before


def test_a_stale_second_entry_of_a_guest_stops_nothing(owner: MaintainedTable, guest: Guest) -> None:
    """Its other entry is at the newest head, and what that needs is known."""
    stale = guest.catalog.register_table("ns.stale", guest.table.refresh().metadata_location)
    maintain(owner, guest.catalog, "ns.stale", operations="compact", min_input_files="9")
    for path in files_of(owner.table)[1:]:
        guest.table.add_files([path])
    outcomes = maintain(owner, owner.pyiceberg, "ns.t", served=guest.catalog)
    assert outcomes["expire_snapshots"].status is Status.SUCCEEDED
    assert outcomes["remove_orphans"].status is Status.SUCCEEDED
    assert rows(guest.table.refresh().metadata_location) == [0, 1, 10, 11, 20, 21]
    assert rows(stale.metadata_location) == [20, 21]
