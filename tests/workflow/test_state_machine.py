"""The definition of template.yaml, executed; functions and jobs are stand-ins that tell what they were asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from icekeeper.errors import OperationRefused, PlanStale
from local_stack.pace import PACE
from local_stack.stack import LocalStack
from support.lambda_functions import sample
from support.scripted_pipeline import FUNCTION_STEPS, JOB_STEPS, ROUTES, ScriptedPipeline
from support.whole_pass import WHOLE_PASS, failing


def test_a_pass_takes_the_operations_in_canonical_order(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    execution = scripted_stack.run(name="run-happy")
    assert execution.status == "SUCCEEDED"
    assert execution.names == [
        *("Detect", "AnyProposals", "MaintainTables", "LeftToWave", "AnyLeftToWave", "Report", "HowItWent", "Done")
    ]
    assert script.steps == WHOLE_PASS
    assert execution.child.output == {"table": "ns.t", "status": "succeeded", "summary": "all well"}
    assert script.event_of("report_run") == {
        "run_id": "run-happy",
        "tables": [execution.child.output],
        "earlier": [],
        "in_one_call": [],
    }
    assert script.leases == {}


def test_every_step_gets_what_the_contract_says(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    scripted_stack.run(name="run-contract")
    item = {
        "catalog": "C",
        "warehouse": "s3://lake/",
        "table": "ns.t",
        "uuid": "uuid of ns.t",
        "location": "s3://lake/ns.t",
        "reasons": ["it needs it"],
        "priority": 0.5,
        "forced": False,
        "settings": {},
        "wait": False,
    }
    plan = {
        "bucket": script.bucket,
        "key": "runs/run-contract/ns.t/plan.json",
        "digest": "0" * 64,
        "attempt": 1,
        "routes": ROUTES,
    }
    assert script.event_of("detect") == {"run_id": "run-contract", "input": {}}
    assert script.event_of("lease") == {"action": "acquire", "run_id": "run-contract", "item": item}
    assert script.event_of("plan") == {
        "run_id": "run-contract",
        "item": item,
        "attempt": 1,
        "waves": True,
    }
    for operation in FUNCTION_STEPS:
        assert script.event_of(operation) == {
            "run_id": "run-contract",
            "item": item,
            "plan": plan,
            "operation": operation,
        }
    assert script.event_of("list_orphans") == script.event_of("remove_orphans")
    assert script.event_of("report") == {"run_id": "run-contract", "item": item, "plan": plan, "failures": {}}
    assert script.event_of("release") == {"action": "release", "run_id": "run-contract", "item": item}


def test_jobs_get_the_plan_by_reference(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.routes = {**ROUTES, **dict.fromkeys(JOB_STEPS, "glue")}
    scripted_stack.run(name="run-jobs")
    done = [step for step in script.steps if step.removeprefix("job:") in FUNCTION_STEPS]
    assert done == [f"job:{name}" if name in JOB_STEPS else name for name in FUNCTION_STEPS]
    assert "list_orphans" not in script.steps
    for operation in JOB_STEPS:
        handed = script.event_of(f"job:{operation}")
        assert {key: value for key, value in handed.items() if key in _CONTRACT} == {
            "--plan-key": "runs/run-jobs/ns.t/plan.json",
            "--plan-digest": "0" * 64,
            "--operation": operation,
            "--run-id": "run-jobs",
            "--control-bucket": script.bucket,
            "--state": f"dynamodb://{scripted_stack.template.name('StateTable')}?region=us-east-1",
        }


_CONTRACT = {"--plan-key", "--plan-digest", "--operation", "--run-id", "--control-bucket", "--state"}


def test_what_needs_no_work_is_not_called(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.routes = dict.fromkeys(ROUTES, "none")
    assert scripted_stack.run().status == "SUCCEEDED"
    assert script.steps == ["detect", "lease", "plan", "report", "release", "report_run"]


def test_without_orphans_nothing_is_removed(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.orphans = 0
    scripted_stack.run()
    assert [step for step in script.steps if step != "remove_orphans"] == script.steps
    assert "list_orphans" in script.steps


def test_without_proposals_the_run_ends_and_says_why(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = ()
    execution = scripted_stack.run()
    assert (execution.status, script.steps) == ("SUCCEEDED", ["detect"])
    assert execution.output["reason"] == "0 table(s) need maintenance"


def test_a_table_that_others_maintain_is_left_alone(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.leases["ns.t"] = "another run"
    execution = scripted_stack.run()
    assert script.steps == ["detect", "lease", "report_run"]
    assert execution.child.output == {
        "table": "ns.t",
        "status": "refused",
        "summary": "another run maintains the table now",
    }
    assert script.leases == {"ns.t": "another run"}


def test_a_forced_pass_waits_for_its_turn_when_asked(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.leases["ns.t"] = "another run"
    looks: Iterator[int] = iter(range(100))

    def free_at_the_third(event: Any) -> None:
        if next(looks) == 2:
            script.leases.clear()

    script.happening["lease"] = free_at_the_third
    execution = scripted_stack.run({"table": "ns.t", "wait": True})
    assert script.steps == ["detect", "lease", "lease", *WHOLE_PASS[1:]]
    assert execution.child.names.count("WaitForTurn") == 2
    assert list(PACE.waits) == [30, 30]
    assert execution.child.output["status"] == "succeeded"


def test_a_stale_plan_is_made_again_and_ends_well(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.happening["expire_snapshots"] = failing(PlanStale("the policy changed"), PlanStale("and again"))
    execution = scripted_stack.run()
    assert [call.event["attempt"] for call in script.calls if call.step == "plan"] == [1, 2, 3]
    assert script.event_of("expire_snapshots")["plan"]["attempt"] == 3
    assert execution.child.output["status"] == "succeeded"
    assert script.event_of("report")["failures"] == {}


def test_a_table_that_makes_every_plan_stale_is_given_up(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    """How often is the plan function's to say; what it raises ends the pass."""

    def give_up(event: Any) -> None:
        if event["attempt"] > 3:
            raise OperationRefused("the table moved away from three plans")

    script.happening["plan"] = give_up
    script.happening["compact"] = failing(PlanStale("again"))
    scripted_stack.run()
    assert [call.event["attempt"] for call in script.calls if call.step == "plan"] == [1, 2, 3, 4]
    assert script.event_of("report")["failures"]["plan"]["Error"] == "OperationRefused"
    assert script.steps[-3:] == ["report", "release", "report_run"]


def test_a_forced_pass_takes_its_table_its_operations_and_its_settings(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    asked = {"table": "ns.other", "catalog": "D", "operations": "compact", "settings": {"min_input_files": "2"}}
    execution = scripted_stack.run(asked)
    assert script.event_of("detect")["input"] == asked
    item = script.event_of("plan")["item"]
    assert (item["table"], item["catalog"], item["forced"], item["settings"]) == (
        "ns.other",
        "D",
        True,
        {"min_input_files": "2"},
    )
    assert execution.child.output["table"] == "ns.other"


def test_a_second_start_for_the_same_table_is_refused(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def hold(event: Any) -> None:
        begun.set()
        assert may_go_on.wait(20)

    script.happening["compact"] = hold
    first = scripted_stack.start({"table": "ns.t"})
    assert begun.wait(20)
    second = scripted_stack.run({"table": "ns.t"})
    may_go_on.set()
    assert second.child.output["status"] == "refused"
    assert (second.status, second.error) == ("FAILED", "LeaseHeld")
    assert scripted_stack.wait(first).child.output["status"] == "succeeded"


def test_of_100_tables_never_more_than_four_are_at_work(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = tuple(f"ns.t{number:03}" for number in range(100))
    script.routes = {**dict.fromkeys(ROUTES, "none"), "compact": "function"}
    script.own_routes = {table: {"rewrite_manifests": "glue"} for table in script.tables[::10]}
    broken = "ns.t017"

    four = threading.Barrier(4)

    def meet(event: Any) -> None:
        if event["item"]["table"] in script.tables[:4]:
            four.wait(20)

    def fail_for_one(event: Any) -> None:
        if event["item"]["table"] == broken:
            raise OperationRefused("this one only")

    script.happening |= {"plan": meet, "compact": fail_for_one}
    execution = scripted_stack.run(timeout_s=60)
    assert execution.status == "SUCCEEDED"
    assert [child.output["table"] for child in execution.children] == list(script.tables)
    assert {child.output["table"] for child in execution.children if child.output["status"] != "succeeded"} == {broken}
    assert 2 <= script.most_at_once <= 4  # how many meet is up to the machine's load; the limit is not
    assert script.steps.count("job:rewrite_manifests") == 10
    assert execution.largest_payload < 64 * 1024
    begun = [call.table for call in script.calls if call.step == "lease"]
    assert set(begun[:4]) == set(script.tables[:4])  # in the order of need


@pytest.mark.parametrize("name", ["machine_schedule", "machine_forced", "machine_forced_wait"])
def test_a_sample_of_events_starts_a_run(scripted_stack: LocalStack, script: ScriptedPipeline, name: str) -> None:
    execution = scripted_stack.run(sample(name))
    assert execution.status == "SUCCEEDED"
    assert execution.child.input["item"]["table"] == sample(name).get("table", "ns.t")
    assert execution.child.input["item"]["wait"] is sample(name).get("wait", False)
