"""Who needs a file, asked by the pipeline's functions and jobs as by the command."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.pipeline.events import Item, OperationEvent, PlanReference, parse_event
from icekeeper.pipeline.glue_job import run_job
from icekeeper.pipeline.run_step import list_orphans
from icekeeper.policy import Operation
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from support.maintained_table import ID_AND_PART
from support.pipeline_deployment import RUN, Pipeline
from support.served import ids


def steps(pipeline: Pipeline, item: Item, plan: PlanReference, *operations: str) -> dict[str, str]:
    return {step: str(pipeline.run(item, plan, step)["status"]) for step in operations}


def test_expiry_spares_the_files_of_a_guest_in_another_catalog(pipeline: Pipeline, tmp_path: Path) -> None:
    """Its catalog is served by the same deployment; a pass over it has been made from a laptop."""
    properties = {"uri": f"sqlite:///{tmp_path / 'other.db'}", "warehouse": (tmp_path / "other").as_uri()}
    other = SqlCatalog("other", **properties)
    other.create_namespace("ns")
    guest = other.create_table("ns.guest", schema=ID_AND_PART)
    guest.add_files([task.file.file_path for task in pipeline.table.table.scan().plan_files()])
    before = ids(guest)
    with (tmp_path / "pyiceberg.yaml").open("a") as configured:
        configured.write("  other:\n    type: sql\n")
        configured.writelines(f"    {key}: {value}\n" for key, value in properties.items())
    laptop = Runtime(
        open_catalog("other", {"type": "sql", **properties}), open_state(pipeline.environment), environment={}
    )
    laptop.maintain(TableName.parse("ns.guest"), {"operations": "compact", "min_input_files": "99"}, LocalEngine(1))
    item, plan = pipeline.begin(catalog="local")
    assert steps(pipeline, item, plan, "compact", "expire_snapshots") == {
        "compact": "succeeded",
        "expire_snapshots": "succeeded",
    }
    assert ids(guest) == before == ids(pipeline.table.table)


def test_the_functions_of_a_run_share_one_look_at_the_other_tables(pipeline: Pipeline, loads: Counter[str]) -> None:
    """Each function has a process of its own, so it is the state that tells (rule 220)."""
    pipeline.table.pyiceberg.create_table("ns.quiet", schema=ID_AND_PART)
    item, plan = pipeline.begin()
    for step in ("compact", "expire_snapshots", "remove_orphans"):
        pipeline.table.plant("data/orphan.parquet")
        pipeline.deployment = pipeline.open()
        assert steps(pipeline, item, plan, step) == {step: "succeeded"}
    assert loads["ns.quiet"] == 1


@pytest.mark.parametrize("by_job", [False, True], ids=["function", "job"])
def test_the_bound_of_the_deployment_holds_in_functions_and_jobs(pipeline: Pipeline, *, by_job: bool) -> None:
    bound = f"{pipeline.table.folder.parent.parent.as_uri()}/{{namespace}}/t/metadata"
    pipeline.deployment = pipeline.open(**{ALLOWED_PREFIXES: f"local={bound}"})
    item, plan = pipeline.begin()
    if by_job:
        arguments = {"plan-key": plan.key, "plan-digest": plan.digest, "operation": "compact", "run-id": RUN}
        arguments |= {"control-bucket": str(pipeline.control), "state": pipeline.environment["ICEKEEPER_STATE"]}
        given = [part for name, value in arguments.items() for part in (f"--{name}", value)]
        assert run_job(given, frozenset({Operation.COMPACT})) == 0
        assert pipeline.document(item, "compact.json")["status"] == "refused"
    else:
        assert steps(pipeline, item, plan, "compact") == {"compact": "refused"}
    assert "ns/t lies outside file:///" in pipeline.document(item, "compact.json")["reason"]


def test_an_entry_that_is_out_of_date_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "catalog.db", tmp_path / "backup.db")
    for number in (100, 101):
        pipeline.table.append(number)
    newest = pipeline.table.loaded.metadata_location
    rows = sorted(row["id"] for row in pyiceberg_rows(newest))
    shutil.copy(tmp_path / "backup.db", tmp_path / "catalog.db")
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    answer = list_orphans(pipeline.deployment, event, LocalEngine(1))
    assert (answer["status"], answer["count"]) == ("refused", 0)
    assert steps(pipeline, item, plan, "expire_snapshots") == {"expire_snapshots": "refused"}
    assert sorted(row["id"] for row in pyiceberg_rows(newest)) == rows
