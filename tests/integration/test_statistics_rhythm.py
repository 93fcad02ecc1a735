"""Statistics over a real table: proposed when they are missing or old, read anew by no pass that nobody asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.engines.local import LocalEngine
from icekeeper.maintenance.table_lease import Turn
from icekeeper.report.outcome import OperationOutcome
from support.maintained_table import NAME, MaintainedTable, new_table

COMPUTES = {"icekeeper.operations": "compute_statistics"}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path, properties=COMPUTES)
    made.append(*range(200))
    made.append(*range(1000, 1005))
    return made


def proposed(table: MaintainedTable) -> tuple[str, ...]:
    return tuple(reason for found in table.runtime.detect().proposals for reason in found.reasons)


def computed(table: MaintainedTable, *, asked: bool = False) -> OperationOutcome:
    turn = Turn(is_proposed=not asked)
    (outcome,) = table.runtime.maintain(NAME, {}, LocalEngine(1), turn=turn).operations
    return outcome


def test_a_table_that_only_needs_statistics_is_proposed_until_it_has_them(table: MaintainedTable) -> None:
    assert proposed(table) == ("2 columns have no statistics",)
    assert computed(table).summary == "computed statistics of 2 column(s) over 205 row(s)"
    assert proposed(table) == ()
    table.table.delete("id = 1001")
    assert proposed(table) == ()
    told = "9 rows changed since statistics were computed, 4.41 % of 204; statistics_min_changed_ratio is 0.1"
    assert computed(table).reason == told
    assert computed(table, asked=True).summary == "computed statistics of 2 column(s) over 204 row(s)"
    # Appended files are cheap to read, so every pass does.
    table.append(5000)
    assert proposed(table) == ()
    assert computed(table).summary == "computed statistics of 2 column(s) over 1 row(s)"
    table.append(*range(6000, 6030))
    assert proposed(table) == ("30 rows changed since statistics were computed, 12.8 % of 235",)
