"""A run that began before an upgrade: its definition stays, so new functions get events of the version before.

What stands here is what version 0.1.0 sends and expects.  It is written out, not imported: a change of the code must
not change it.  A later version adds its own beside it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from icekeeper.errors import PlanStale, StorageError
from icekeeper.pipeline import glue_job
from icekeeper.pipeline.control_bucket import read_plan
from icekeeper.pipeline.events import (
    DetectEvent,
    LeaseEvent,
    OperationEvent,
    PlanEvent,
    ReportRunEvent,
    ReportTableEvent,
    parse_event,
)
from icekeeper.policy import Operation
from support.table_functions import RUN, Functions

ITEM = {
    "catalog": "lake",
    "warehouse": "arn:aws:s3tables:eu-central-1:123456789012:bucket/lake",
    "table": "sales.orders",
    "uuid": "0c1b7d4e-7a53-4a55-9a0a-3f0f6c1d2e9b",
    "location": "s3://lake/sales/orders",
    "reasons": ["small_files"],
    "priority": 1.0,
    "forced": False,
    "settings": {"min_input_files": "2"},
    "wait": False,
    "schedules": ["nightly"],
    "only_schedules": False,
    "detected_ms": 1_790_000_000_000,
}
ROUTES = {
    **dict.fromkeys(("expire_partitions", "compact", "expire_snapshots", "clean_staged"), "function"),
    **dict.fromkeys(("remove_orphans", "rewrite_manifests"), "glue"),
    **dict.fromkeys(("rewrite_position_deletes", "compute_statistics"), "none"),
}
PLAN = {"bucket": "control", "key": "runs/r/t/plan-1.json", "digest": "0" * 64, "attempt": 1, "routes": ROUTES}
FAILURE = {"Error": "States.TaskFailed", "Cause": '{"ErrorMessage": "SystemExit: 1"}'}
RESULT = {"table": "sales.orders", "status": "succeeded", "summary": "compact: done"}
MACHINE = {"table": "sales.orders", "catalog": "lake", "operations": "all", "settings": {}, "wait": True}
EVENTS: list[tuple[type[Any], dict[str, Any]]] = [
    (DetectEvent, {"run_id": "r", "input": {}}),
    (DetectEvent, {"run_id": "r", "input": {**MACHINE, "schedule": "nightly"}}),
    (LeaseEvent, {"run_id": "r", "item": ITEM, "action": "acquire"}),
    (LeaseEvent, {"run_id": "r", "item": ITEM, "action": "release"}),
    (PlanEvent, {"run_id": "r", "item": ITEM, "attempt": 2}),
    *((OperationEvent, {"run_id": "r", "item": ITEM, "plan": PLAN, "operation": step}) for step in ROUTES),
    (ReportTableEvent, {"run_id": "r", "item": ITEM, "plan": PLAN, "failures": {"compact": FAILURE}}),
    (ReportTableEvent, {"run_id": "r", "item": ITEM, "plan": None, "failures": {"lease": FAILURE}}),
    (ReportRunEvent, {"run_id": "r", "tables": [RESULT, {"Input": "{}", "Status": "FAILED"}]}),
    (ReportRunEvent, {"run_id": "r", "failure": FAILURE}),
]
OF_A_STEP = frozenset({"status", "summary"})
ANSWERS = {
    "detect_forced": {"run_id", "proposals", "reason", "forced"},
    "lease_acquire": {"holder", "expires_ms"},
    "plan": {"bucket", "key", "digest", "attempt", "routes"},
    **dict.fromkeys(("expire_partitions", "compact_small", "expire_snapshots"), OF_A_STEP),
    "list_orphans": {"status", "summary", "count"},
    **dict.fromkeys(("remove_orphans", "rewrite_manifests", "clean_staged"), OF_A_STEP),
    "report_table": {"table", "status", "summary"},
    "report_run": {"status", "summary"},
}
"""What each state takes out of the answer of its function; one that is missing fails the state."""
DOCUMENT = {
    "run_id": "r",
    "item": ITEM,
    "attempt": 1,
    "requested_ms": None,
    "started_ms": 1_790_000_000_000,
    "planned_ms": 1_790_000_000_001,
    "metadata_location": "s3://lake/sales/orders/metadata/v1.metadata.json",
    "needless": "",
    "head_id": 7,
    "fingerprint": "f",
    "environment": {"ICEKEEPER_OPERATIONS": "all"},
    "routes": ROUTES,
    "outcomes": {},
    "compaction": {"files": 5},
    "schedules": {"nightly": {"operations": ["compact"], "interval_ms": 86_400_000, "fingerprint": "g"}},
}


@pytest.mark.parametrize(("model", "event"), EVENTS, ids=lambda value: getattr(value, "__name__", ""))
def test_events_of_the_version_before_are_understood(model: type[Any], event: dict[str, Any]) -> None:
    """(rule 148)"""
    parsed = parse_event(model, event)
    assert parsed.run_id == "r"
    if "item" in event:
        assert {name: value for name, value in parsed.item.model_dump(mode="json").items() if name in ITEM} == ITEM


def test_a_plan_of_the_version_before_is_read_or_made_again() -> None:
    """(rule 148): a plan that cannot be read makes its step plan again, whatever changed in it."""
    assert read_plan(DOCUMENT).routes == ROUTES
    for changed in ({**DOCUMENT, "of_a_later_version": 1}, {k: v for k, v in DOCUMENT.items() if k != "fingerprint"}):
        with pytest.raises(PlanStale, match="another version of Icekeeper"):
            read_plan(changed)


def test_functions_answer_what_the_definition_before_takes_out(functions: Functions) -> None:
    """(rule 148)"""
    answers: dict[str, Any] = {}
    wanted = {"table": "ns.t", "catalog": "local"}
    answers["detect_forced"] = functions.send("detect_forced", input=wanted)
    (functions.item,) = json.loads(
        (functions.control / answers["detect_forced"].result["proposals"]["key"]).read_text()
    )
    answers["lease_acquire"] = functions.send("lease_acquire")
    answers["plan"] = functions.send("plan")
    functions.plan = answers["plan"].result
    for name in ANSWERS.keys() - answers.keys() - {"report_table", "report_run"}:
        answers[name] = functions.send(name)
    answers["report_table"] = functions.send("report_table", failures={})
    answers["report_run"] = functions.send("report_run", tables=[answers["report_table"].result])

    for name, fields in ANSWERS.items():
        assert answers[name].result.keys() >= fields, name
    assert answers["detect_forced"].result["proposals"].keys() >= {"bucket", "key", "count"}


def test_a_job_takes_the_arguments_of_the_definition_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """(rule 148): one that it misses would end it before it could say why."""
    taken = []

    def stop(given: Any) -> Any:
        taken.append(given)
        raise StorageError("stopped here")

    monkeypatch.setattr(glue_job, "_open", stop)
    monkeypatch.setattr(glue_job, "_leave_behind", lambda *_: None)
    named = {"plan-key": "k", "plan-digest": "d", "operation": "compact", "run-id": RUN}
    named |= {"control-bucket": "control", "state": "dynamodb://state"}
    arguments = [part for name, value in named.items() for part in (f"--{name}", value)]

    assert glue_job.run_job(arguments, frozenset({Operation.COMPACT})) == 1
    assert [given.operation for given in taken] == ["compact"]
