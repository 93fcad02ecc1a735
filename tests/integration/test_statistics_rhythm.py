"""Statistics over a real table: proposed when they are missing or old, read anew by no pass that nobody asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.maintenance.table_lease import Turn
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.report.outcome import OperationOutcome
from icekeeper.state.store import MaintenanceRequest
from support.maintained_table import NAME, MaintainedTable, new_table
from support.pipeline_deployment import Pipeline

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


def test_the_pipeline_starts_no_job_for_statistics_that_are_not_due(table: MaintainedTable, tmp_path: Path) -> None:
    computed(table)
    table.table.delete("id = 1001")
    pipeline = Pipeline(table, tmp_path)
    (item,) = pipeline.detect(table="ns.t")[1]
    for is_proposed, route in ((False, "function"), (True, "none")):
        run_id = f"run-{route}"
        told = item.model_copy(update={"forced": not is_proposed, "detected_ms": 2**43})
        acquire_table_lease(pipeline.deployment, run_id, told)
        pipeline.deployment.state.requests.file(MaintenanceRequest(identity=item.identity, requested_ms=1, settings={}))
        assert pipeline.plan(told, run_id).routes["compute_statistics"] == route
        release_table_lease(pipeline.deployment, run_id, told)
    reason = pipeline.document(item, "plan.json", "run-none")["outcomes"]["compute_statistics"]["reason"]
    assert reason.startswith("9 rows changed since statistics were computed, 4.41 % of 204")


def test_a_schedule_that_names_statistics_computes_them_in_each_turn(table: MaintainedTable) -> None:
    nightly = {"schedules.nightly.interval": "24h", "schedules.nightly.operations": "compute_statistics"}
    for rows in (205, 204):
        turn = Turn(is_proposed=True)
        done = table.runtime.maintain(NAME, nightly, LocalEngine(1), schedule="nightly", turn=turn)
        assert [one.summary for one in done.operations] == [f"computed statistics of 2 column(s) over {rows} row(s)"]
        table.table.delete("id = 1001")
