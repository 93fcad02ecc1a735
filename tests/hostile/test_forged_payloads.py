"""Forged payloads, documents and requests."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import PolicyError
from icekeeper.model import TableName
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.events import DetectEvent, Item, MachineInput, TableEvent, parse_event
from icekeeper.pipeline.glue_job import run_job
from icekeeper.state.requests import MAX_SETTINGS, MaintenanceRequest, requested_table
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import StateStore
from local_stack.moto_server import MotoServer
from support.maintained_table import new_table
from support.pipeline_deployment import RUN, Pipeline
from support.state_stores import IDENTITY, a_table, stored

# Functions and jobs called with malformed names, or with keys and documents of another run.

NOW = "2026-11-27T06:00:00Z"
ITEM = {"catalog": "lake", "warehouse": "w", "table": "ns.t", "uuid": "u", "location": "s3://lake/t"}
KEYS = [
    "runs/run-1/../../config/policy.json",
    "config/policy.json",
    "runs/run-2/" + "0" * 32 + "/plan.json",
    "runs/run-1/" + "0" * 32 + "/../plan.json",
    "s3://mine/plan.json",
    "/etc/plan.json",
    "",
]
"""Keys that no state of run-1 has returned."""


@pytest.fixture
def pipeline(local_catalog: SqlCatalog, tmp_path: Path) -> Pipeline:
    table = new_table(local_catalog, tmp_path, appends=2)
    return Pipeline(table, tmp_path)


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "a\\b", "a b", "a\nb", "a\x00b", "\x9b2J", "r" * 81])
def test_a_malformed_run_id_is_refused(run_id: str) -> None:
    for model, event in ((DetectEvent, {"started": NOW, "input": {}}), (TableEvent, {"started_ms": 1, "item": ITEM})):
        with pytest.raises(PolicyError, match=r"^malformed event: run_id: write 1 to 80 characters"):
            parse_event(model, {"run_id": run_id, **event})
    assert parse_event(DetectEvent, {"run_id": "größe-1.2_3", "started": NOW, "input": {}}).run_id == "größe-1.2_3"


@pytest.mark.parametrize(
    "forged",
    [
        {"table": "ns.\x1b[31mt"},
        {"table": "ns." + "t" * 5_000},
        {"table": "t"},
        {"table": ["ns.t"]},
        {"table": "ns.t", "catalog": "\ud800"},
        {"table": "ns.t", "settings": {"where": "\udfff"}},
        {"table": "ns.t", "settings": {"where": {"$ne": 1}}},
        {"table": "ns.t", "settings": [["where", "k = 1"]]},
        {"table": "ns.t", "operations": ["all"]},
        {"table": "ns.t", "wait": "for ever"},
        {"table": "ns.t", "settings": {"max_concurrent_jobs": "1000"}},
        {"table": "ns.t", "rebuild": True},
        {"settings": {"table_filter": "x" * 20_000}},
        "ns.t",
        [],
        None,
    ],
    ids=lambda forged: ascii(forged)[:60],
)
def test_a_malformed_machine_input_is_refused(forged: Any) -> None:
    with pytest.raises(PolicyError, match=r"^malformed event: input") as caught:
        parse_event(DetectEvent, {"run_id": "r", "started": NOW, "input": forged})
    assert len(str(caught.value)) < 21_000


@pytest.mark.parametrize("name", ["catalog", "warehouse", "uuid", "location", "table"])
def test_an_item_that_cannot_be_a_key_is_refused(name: str) -> None:
    with pytest.raises(PolicyError, match=r"^malformed event: "):
        parse_event(Item, {**ITEM, name: "ns.\ud800"})
    with pytest.raises(PolicyError, match=r"^malformed event: "):
        parse_event(Item, {**ITEM, "table": "t"})


@pytest.mark.parametrize("started", ["", "soon", "2026-11-27", "2026-11-27T06:00:00", [], {}, None])
def test_a_malformed_start_time_is_refused(started: Any) -> None:
    with pytest.raises(PolicyError, match=r"^malformed event: started: "):
        parse_event(DetectEvent, {"run_id": "r", "started": started, "input": {}})
    for began_ms in (-1, 10**30, "x", None):
        with pytest.raises(PolicyError, match=r"^malformed event: started_ms: "):
            parse_event(TableEvent, {"run_id": "r", "started_ms": began_ms, "item": ITEM})


def test_a_job_reads_only_the_work_of_its_run(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    """It refuses before Spark starts."""
    state = pipeline.environment["ICEKEEPER_STATE"]
    arguments = ["--run-id", RUN, "--control-bucket", str(pipeline.control), "--state", state]
    for key in KEYS:
        assert run_job(["--work-key", key, "--work-digest", "0" * 64, *arguments], "compact_data_files") == 1
        assert f"OperationRefused: {key!r} is not the compaction work of run run-1" in caplog.text


def test_a_job_refuses_work_that_changed_after_it_was_gathered(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """The work contains the deployment's settings; the job checks its digest."""
    pipeline.begin()
    work = pipeline.gather()["compaction"]
    state = pipeline.environment["ICEKEEPER_STATE"]
    arguments = ["--run-id", RUN, "--control-bucket", str(pipeline.control), "--state", state]
    path = pipeline.control / work["key"]
    path.write_text(path.read_text().replace('"ICEKEEPER_TABLE_SETTINGS":"all"', '"ICEKEEPER_TABLE_SETTINGS":"any"'))
    command = ["--work-key", work["key"], "--work-digest", work["digest"], *arguments]
    assert run_job(command, "compact_data_files") == 1
    assert "is not the document that this run wrote (its digest differs); start another run" in caplog.text
    assert run_job(command, "rewrite_manifests") == 1
    assert "is not the manifests work of run run-1" in caplog.text


def test_the_plan_of_another_table_changes_nothing(pipeline: Pipeline) -> None:
    """A writer of the control bucket cannot redirect a pass: every step loads its table by identity."""
    item, _ = pipeline.begin()
    other = item.model_copy(update={"uuid": "another"})
    moved = pipeline.control / table_folder(RUN, other.identity.spelling)
    shutil.copytree(pipeline.control / table_folder(RUN, item.identity.spelling), moved)
    before = pipeline.table.files()
    outcome = pipeline.run(other, "expire_snapshots")
    assert outcome == {
        "expire_snapshots": "left to a later run: ns.t was replaced by another table since it was planned"
    }
    assert pipeline.table.files() == before


def test_the_machine_input_has_exactly_these_fields() -> None:
    """A caller may forge every field: list a new field here only if it is harmless."""
    fields = {"table", "tables", "catalog", "operations", "settings", "wait", "in_job"}
    assert set(MachineInput.model_fields) == fields


@pytest.mark.parametrize("name", ["ns.größe 1/2", "ns.a\\b", "ns.%2e%2e%2fconfig", "ns." + "t" * 4_000, "ns.-rf"])
def test_a_requested_table_name_is_not_part_of_a_key(name: str) -> None:
    item = parse_event(Item, {**ITEM, "table": parse_event(MachineInput, {"table": name}).table})
    assert re.fullmatch(r"runs/r/[0-9a-f]{32}", table_folder("r", item.identity.spelling))


def test_an_item_with_another_location_is_another_table(pipeline: Pipeline) -> None:
    """It would have another lease, so that a second pass could run beside the first."""
    item, plan = pipeline.begin()
    forged = item.model_copy(update={"location": f"{item.location}/elsewhere"})
    pipeline.documents(forged).write_plan(plan)
    assert pipeline.run(forged, "expire_snapshots") == {
        "expire_snapshots": "left to a later run: ns.t was replaced by another table since it was planned"
    }
    again = pipeline.plan(forged)
    assert (again.needless, again.routes) == ("ns.t was dropped or replaced since it was detected", {})


# Forged records among the requests are skipped and delay no other request.

HONEST = MaintenanceRequest(
    identity=replace(IDENTITY, uuid="uuid-2"), requested_ms=9, settings={"operations": "compact", "where": "k = 'ü'"}
)
VICTIM = MaintenanceRequest(identity=IDENTITY, requested_ms=1, settings={})

FORGED: dict[str, dict[str, Any]] = {
    "time as text": {"requested_ms": "soon"},
    "time of another age": {"requested_ms": 10**30},
    "time before all others": {"requested_ms": -1},
    "settings nested to the limit": {"settings": "[" * 15_000 + "]" * 1_000},
    "settings that are no texts": {"settings": json.dumps({"operations": {"all": True}})},
    "settings in a list": {"settings": "[]"},
    "settings without end": {"settings": json.dumps({"where": "x" * MAX_SETTINGS})},
    "settings that no claim finds": {"settings": '{"b": "1", "a": "2"}'},
    "settings with half a character": {"settings": json.dumps({"where": "\ud800"})},
    "no table name": {"table_name": "t"},
    "escape sequence": {"table_name": "ns.\x1b[2Jt"},
    "line break": {"table_name": "ns.t\nerror: all tables lost"},
    "very long": {"table_name": "ns." + "t" * 5_000},
    "warehouse that fills the memory": {"warehouse": "w" * 100_000},
    "another table": {"uuid": "uuid-of-a-victim"},
}
"""Attributes of forged records, which replace those of an honest record."""


REQUIRED = ("settings", "requested_ms", "table_name", "uuid", "catalog", "location")


def test_a_forged_item_stops_no_other_request(moto_server: MotoServer, caplog: pytest.LogCaptureFixture) -> None:
    """A malformed record among the requests is skipped; the other requests are read
    (rule: bad-state-items-stop-readers)."""
    table = a_table(moto_server)
    store = StateStore(table)
    store.requests.file(VICTIM)
    (item,) = stored(table)
    store.requests.file(HONEST)
    for name, values in FORGED.items():
        caplog.clear()
        kinds = {key: {"N": str(value)} if isinstance(value, int) else {"S": value} for key, value in values.items()}
        table.client.put_item(TableName=table.name, Item={**item, **kinds})
        assert store.requests.pending() == (HONEST,), name
        (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        place = f"the item requests#all / {item['sk']['S']} of the state table is "
        assert message.startswith(f"a request is skipped: {place}"), name
        store.requests.file(VICTIM)  # an honest request replaces it
        assert store.requests.pending() == (VICTIM, HONEST), name
    for missing in REQUIRED:
        table.client.put_item(TableName=table.name, Item={key: item[key] for key in item if key != missing})
        assert store.requests.pending() == (HONEST,), missing


def test_a_forged_row_stops_no_other_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, (name, values) in enumerate(FORGED.items()):
        caplog.clear()
        store = SqliteStateStore(tmp_path / f"{number}.db")
        store.requests.file(VICTIM)
        with sqlite3.connect(store.path) as connection:
            ((item,),) = connection.execute("SELECT attributes FROM items")
            connection.execute("UPDATE items SET attributes = ?", (json.dumps({**json.loads(item), **values}),))
        store.requests.file(HONEST)
        assert store.requests.pending() == (HONEST,), name
        (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        place = f"the item requests#all / {IDENTITY.lease_key} of the state file {store.path} is "
        assert message.startswith(f"a request is skipped: {place}"), name


@pytest.mark.parametrize("name", ["t", ".t", "ns..t", "ns.", "ns.\x00", "ns.\u202et", "ns.\u2028t", "n\ud800s.t"])
def test_a_malformed_requested_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="table name"):
        requested_table(name)


def test_a_valid_requested_name_is_parsed() -> None:
    assert requested_table("ns.größe 1/2") == TableName(("ns",), "größe 1/2")
