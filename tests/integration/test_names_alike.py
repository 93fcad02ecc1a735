"""Two tables of one catalog whose names read alike: ``victim`` / ``x.t`` and ``victim.x`` / ``t`` (rule 294)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from pyiceberg.table import Table

from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.state.claims import CutOff, CutWork
from icekeeper.state.open import open_state
from support.command import CATALOG, EVERYTHING_IS_OLD, Command
from support.readers import pyiceberg_rows
from support.served import files_of, grow_old_in_history, ids

SWEEP = ("--operations", "expire_snapshots,remove_orphans", *EVERYTHING_IS_OLD, "--set", "orphan_max_delete_ratio=1")
RUN = ("run", "--once", "--engine", "local", "--set", "operations=compute_statistics")


@pytest.fixture
def owner(command: Command) -> Table:
    """A table that has overwritten the rows that a guest took in."""
    command.catalog.create_namespace("victim")
    return command.table("victim.owner", appends=2)


@pytest.fixture
def guest(command: Command, owner: Table) -> Table:
    """``victim.x`` / ``t``, which took in the owner's files; beside it a tenant's table that is called alike."""
    command.catalog.create_namespace("victim.x")
    guest = command.table("victim.x.t", appends=1)
    guest.add_files(files_of(owner))
    twin = command.table("ns.twin", appends=1).metadata_location
    with closing(sqlite3.connect(command.database)) as connection, connection:
        connection.execute(
            "UPDATE iceberg_tables SET table_namespace = 'victim', table_name = 'x.t' WHERE metadata_location = ?",
            (twin,),
        )
    owner.overwrite(owner.scan().to_arrow())
    grow_old_in_history(owner)
    return guest


def test_none_makes_the_other_ones_files_forgotten(command: Command, owner: Table, guest: Table) -> None:
    rows = ids(guest)
    for _ in range(3):  # whichever was recorded last
        command(*RUN)
        answer = command("maintain", "victim.owner", *SWEEP, "--json")
        assert {one["status"] for one in answer.json["operations"]} <= {"succeeded", "skipped"}
        assert sorted(row["id"] for row in pyiceberg_rows(guest.metadata_location)) == rows
    assert len(owner.refresh().snapshots()) == 1


def test_none_makes_the_other_one_wait(command: Command, guest: Table) -> None:
    warehouse = command.properties["warehouse"]
    entry = CATALOG, warehouse, TableName(("victim",), "x.t").key
    cut = CutOff(entry=entry, work=CutWork.LOOK, times=1, cut_ms=system_clock(), why="it hangs")
    open_state(os.environ).cut_offs.record(cut)
    assert command(*RUN).out.count("victim.x.t failed: not looked at: it hangs") == 1
