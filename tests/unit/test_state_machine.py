"""The state machine's operations come in order, send what functions accept, and a run is told however it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper.pipeline import events
from icekeeper.pipeline.one_call import RestEvent
from icekeeper.pipeline.wave import WaveEvent
from icekeeper.policy import Operation
from local_stack.moto_server import MotoServer
from support.state_machine import CHILD, DEFINITION, MACHINE, fields, job_tasks, payload, tasks

OF_PLAN = {"GatherWave": WaveEvent, "TakeUpRest": RestEvent}
OPERATIONS = [*(str(operation) for operation in Operation), "clean_staged"]
"""In canonical order; files of failed loads last, when nothing can adopt them any more."""


class TestOperations:
    def test_come_in_canonical_order(self) -> None:
        order, state = [], CHILD.states["Plan"]["Next"]
        while state != "ReportTable":
            choice = CHILD.states[state]
            (operation,) = {case["Variable"].removeprefix("$.plan.routes.") for case in choice["Choices"]}
            order.append(operation)
            state = choice["Default"]

        assert order == OPERATIONS

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_each_is_followed_by_the_next_whatever_happens(self, operation: str) -> None:
        (choice,) = (
            state
            for state in CHILD.states.values()
            if state["Type"] == "Choice" and state["Choices"][0].get("Variable") == f"$.plan.routes.{operation}"
        )
        own = [
            name
            for name, state in tasks()
            if operation in (self.sent(state).get(k) for k in ("operation", "--operation"))
        ]
        assert {case["Next"] for case in choice["Choices"]} - {"LeaveToWave"} <= set(own)
        for name in own:
            state = CHILD.states[name]
            failed = state["Catch"][-1]
            assert failed["ErrorEquals"] == ["States.TaskFailed", "States.Timeout"]
            assert failed["ResultPath"] == f"$.failures.{operation}"
            assert failed["Next"] == choice["Default"]
            assert state["ResultPath"] == f"$.outcomes.{operation}"
            assert state["Next"] in {choice["Default"], "AnyOrphans"}

    @staticmethod
    def sent(state: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = state["Parameters"].get("Arguments") or payload(state)
        return found

    def test_a_stale_plan_is_made_anew_by_every_function_that_follows_one(self) -> None:
        for name, state in tasks("lambda"):
            caught = [catch for catch in state["Catch"] if catch["ErrorEquals"] == ["PlanStale"]]
            assert [catch["Next"] for catch in caught] == (["PlanAgain"] if "operation" in payload(state) else []), name

    def test_those_that_may_be_large_have_a_job(self) -> None:
        jobs = {
            state["Parameters"]["Arguments"]["--operation"]: state["Parameters"]["JobName"] for _, state in job_tasks()
        }

        assert jobs == {
            "compact": "CompactDataFilesJob",
            "rewrite_position_deletes": "CompactDataFilesJob",
            "compute_statistics": "CompactDataFilesJob",
            "remove_orphans": "RemoveOrphansJob",
            "rewrite_manifests": "RewriteManifestsJob",
        }

    def test_orphans_are_listed_before_they_are_removed(self) -> None:
        assert CHILD.next_states("AnyOrphans") == ["RouteRewriteManifests", "RemoveOrphans"]
        before = [name for name in CHILD.states if "RemoveOrphans" in CHILD.next_states(name)]
        assert before == ["AnyOrphans"]
        assert [name for name in CHILD.states if "AnyOrphans" in CHILD.next_states(name)] == ["ListOrphans"]

    def test_a_large_plan_travels_by_reference(self) -> None:
        for name, state in job_tasks():
            assert fields(state["Parameters"]["Arguments"]) == {
                "--plan-key",
                "--plan-digest",
                "--operation",
                "--run-id",
                "--control-bucket",
                "--state",
                "--workers",
                "--worker-type",
            }, name


class TestWhatIsSent:
    """The field names of every payload are those that the functions accept, and what they demand is there."""

    @pytest.mark.parametrize(
        ("function", "model"),
        [
            ("DetectFunction", events.DetectEvent),
            ("LeaseFunction", events.LeaseEvent),
            ("PlanFunction", events.PlanEvent),
        ],
    )
    def test_to_one_function(self, function: str, model: Any) -> None:
        for name, state in tasks("lambda"):
            if state["Parameters"]["FunctionName"] == function and name not in OF_PLAN:
                self.check(name, payload(state), model)

    def test_to_the_plan_for_many_tables(self) -> None:
        for name, model in OF_PLAN.items():
            self.check(name, payload(MACHINE.states[name]), model)

    def test_to_every_operation(self) -> None:
        for name, state in tasks("lambda"):
            if "operation" in payload(state):
                self.check(name, payload(state), events.OperationEvent)

    def test_to_the_report(self) -> None:
        self.check("ReportTable", payload(CHILD.states["ReportTable"]), events.ReportTableEvent)
        for name in ("Report", "ReportUnread"):
            self.check(name, payload(MACHINE.states[name]), events.ReportRunEvent)

    @staticmethod
    def check(name: str, sent: Mapping[str, Any], model: Any) -> None:
        required = {field for field, about in model.model_fields.items() if about.is_required()}
        assert required <= fields(sent) <= set(model.model_fields), name


class TestTheRun:
    def test_is_told_when_its_proposals_cannot_be_read(self) -> None:
        caught = MACHINE.states["MaintainTables"]["Catch"]

        assert [(catch["ResultPath"], catch["Next"]) for catch in caught] == [
            ("$.failed", "ReportUnread"),
            ("$.failed", "ResultsTooLong"),
        ]
        assert {"States.ItemReaderFailed", "States.TaskFailed", "States.Timeout"} <= set(caught[0]["ErrorEquals"])
        assert payload(MACHINE.states["ReportUnread"])["failure.$"] == "$.failed"
        assert MACHINE.states["ReportUnread"]["Next"] == "WhatFailed"
        assert MACHINE.next_states("WhatFailed") == ["DetectionFailed", "TablesNotRead"]
        for name in ("DetectionFailed", "TablesNotRead"):
            assert MACHINE.states[name]["Type"] == "Fail"

    def test_is_told_when_detection_fails(self) -> None:
        caught = MACHINE.states["Detect"]["Catch"]

        assert [(catch["ResultPath"], catch["Next"]) for catch in caught] == [("$.failed", "ReportUnread")]
        # The input may hold anything but the run's name.
        assert payload(MACHINE.states["ReportUnread"])["run_id.$"] == "$$.Execution.Name"

    def test_is_reported_when_the_results_are_too_long_together(self) -> None:
        """moto ends an execution whose Map has too much to say before any Catch is asked, so this is not run."""
        caught = MACHINE.states["MaintainTables"]["Catch"][1]
        state = MACHINE.states[caught["Next"]]

        assert caught["ErrorEquals"] == ["States.DataLimitExceeded"]  # which no other name stands for
        assert (state["Type"], state["Result"], state["ResultPath"]) == ("Pass", [], "$.tables")
        assert state["Next"] == "Report"

    def test_is_reported_alike_either_way(self) -> None:
        told, unread = MACHINE.states["Report"], MACHINE.states["ReportUnread"]
        for key in ("Retry", "Catch", "TimeoutSeconds", "ResultSelector", "ResultPath"):
            assert told[key] == unread[key], key

    def test_one_table_that_fails_never_stops_the_others(self) -> None:
        mapped = MACHINE.states["MaintainTables"]

        # moto knows it as a fraction only.
        assert mapped["ToleratedFailurePercentage"] == 100.0
        assert mapped["ItemProcessor"]["ProcessorConfig"] == {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}

    def test_a_lease_that_was_taken_is_given_back(self) -> None:
        """Between Lease and the end there is no way around a release, but for a turn that never came.

        The call that carries out a whole pass gives it back itself.
        """
        ends = {name for name in CHILD.states if not CHILD.next_states(name)}
        without = {name: set(CHILD.next_states(name)) - {"Release", "LeaveToWave"} for name in CHILD.states}
        reached, todo = set(), ["Plan"]
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo.extend(without[name])

        assert ends == {"NoSlot", "NotOurTurn", "PassDone", "TableDone", "WaitsForWave"}
        assert not reached & ends


def test_the_definition_is_what_its_source_gives() -> None:
    """``make definition`` writes it; nobody edits it."""
    command = [sys.executable, "-m", "state_machine"]
    given = subprocess.run(command, capture_output=True, text=True, check=True, cwd=DEFINITION.parents[1]).stdout
    assert DEFINITION.read_text() == given


def test_step_functions_accepts_it(moto_server: MotoServer) -> None:
    client = moto_server.client("stepfunctions")
    made = client.create_state_machine(
        name=f"maintain-{uuid.uuid4()}",
        roleArn="arn:aws:iam::123456789012:role/role",
        definition=json.dumps(MACHINE.definition),
    )
    described = client.describe_state_machine(stateMachineArn=made["stateMachineArn"])

    assert json.loads(described["definition"]) == MACHINE.definition
