"""A pin ends by the clock of the table's store, whatever the machines say that set and read it (rule 94)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import add_pin
from icekeeper.machine.clock import HOUR_MS, Clock
from icekeeper.pass_context.stores import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import NAME, MaintainedTable, ahead, new_table, store_at

NOW_H = 100  # the table's snapshots are so many hours old by its store


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


def first_snapshot_stays(table: MaintainedTable, clock: Clock, store_h: float) -> bool:
    """After an expiry that takes all but pinned and current snapshots, by a machine and a store with these clocks."""
    first = next(iter(table.metadata.snapshots))
    outcome = table.run(
        Operation.EXPIRE_SNAPSHOTS,
        clock=clock,
        store_clock=store_at(ahead(store_h)),
        snapshot_retention_hours="4",
        max_snapshots_to_keep="1",
    )
    assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED)
    return first in table.metadata.snapshots


@pytest.mark.parametrize("setter_h", [-5, 5])
def test_a_pin_holds_where_the_clocks_of_setter_and_reader_are_wrong(table: MaintainedTable, setter_h: float) -> None:
    """Two hours by the store: one machine is behind by more than that, the other ahead by more than that."""
    handle = TableHandle(table.catalog, NAME, table.state, ahead(NOW_H + setter_h), store_clock=store_at(ahead(NOW_H)))
    first = next(iter(table.metadata.snapshots))
    add_pin(handle, snapshot=str(first), ttl_ms=2 * HOUR_MS, name="reader")
    assert first_snapshot_stays(table, ahead(NOW_H + 3.5), NOW_H + 1)
    assert not first_snapshot_stays(table, ahead(NOW_H), NOW_H + 3)
