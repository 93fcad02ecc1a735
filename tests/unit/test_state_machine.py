"""The state machine's definition: order, ways, retries, and what each task sends."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper import errors
from icekeeper.pipeline import events
from icekeeper.pipeline.one_call import RestEvent
from icekeeper.pipeline.run_leases import table_lease_ttl_ms
from icekeeper.pipeline.wave import WaveEvent
from icekeeper.policy import Operation, Policy
from local_stack.moto_server import MotoServer
from support.stack_template import DOCUMENT, JOBS, PARAMETERS
from support.state_machine import CHILD, DEFINITION, LEVELS, MACHINE, Machine, fields, job_tasks, payload, tasks

# The state machine's operations come in order, send what functions accept, and a run is told however it ends.

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


# Every way through the state machine ends, and every task is bounded, retried by name, and its failure caught.

TYPES = {"Task", "Choice", "Wait", "Pass", "Map", "Succeed", "Fail"}

LAMBDA_ERRORS = {
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    "Lambda.TooManyRequestsException",
    "Lambda.ClientExecutionTimeoutException",
}
KILLED = {"Runtime.ExitError", "Runtime.OutOfMemory", "Lambda.Unknown"}
OURS = errors.ERROR_NAMES | {"IdempotencyAlreadyInProgressError"}
OF_STEP_FUNCTIONS = {
    "States.TaskFailed",
    "States.Timeout",
    "States.ItemReaderFailed",
    "States.ExceedToleratedFailureThreshold",
    "States.DataLimitExceeded",
}
LEASES = {"Lease", "Release", "LeaveToWave", "SmallLease", "SmallHandOn"}
NO_CAPACITY = ["Glue.ConcurrentRunsExceededException", "Glue.ResourceNumberLimitExceededException"]
KNOWN_ERRORS = LAMBDA_ERRORS | KILLED | OURS | OF_STEP_FUNCTIONS | {"Glue.AWSGlueException", *NO_CAPACITY}


def handlers(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*state.get("Retry", ()), *state.get("Catch", ())]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
class TestEveryWay:
    def test_leads_to_a_state_that_exists(self, level: Machine) -> None:
        assert level.definition["StartAt"] in level.states
        for name in level.states:
            assert set(level.next_states(name)) <= set(level.states), name

    def test_is_taken_by_something(self, level: Machine) -> None:
        start = level.definition["StartAt"]

        assert {start, *level.after(start)} == set(level.states)

    def test_ends(self, level: Machine) -> None:
        for name, state in level.states.items():
            terminal = state["Type"] in {"Succeed", "Fail"} or state.get("End") is True
            if terminal:
                caught = [catch["Next"] for catch in state.get("Catch", ())]
                assert level.next_states(name) == caught, name
            else:
                ends = [way for way in level.after(name) if level.states[way].get("End") or not level.next_states(way)]
                assert ends, f"{name} never ends"

    def test_is_of_a_known_type_and_goes_one_way_only(self, level: Machine) -> None:
        for name, state in level.states.items():
            assert state["Type"] in TYPES, name
            expected = 0 if state["Type"] in {"Choice", "Succeed", "Fail"} else 1
            assert ("Next" in state) + ("End" in state) == expected, name
            assert ("Default" in state) == (state["Type"] == "Choice"), f"{name}: without Default a choice can fail"

    def test_back_is_bounded(self, level: Machine) -> None:
        """The ways back: planning anew, which Plan itself bounds, waiting, which is counted, and the rest of passes.

        No pass waits for a wave twice (``test_wave.py``).
        """
        # Without these nothing can be reached twice.
        without = Machine(
            level.name,
            {
                **level.definition,
                "States": {
                    name: state
                    for name, state in level.states.items()
                    if name not in {"PlanAgain", "CountWait", "SmallCountWait", "RestOfPasses"}
                },
            },
        )
        cut = {name: [way for way in without.next_states(name) if way in without.states] for name in without.states}
        order: list[str] = []
        while cut:
            ends = [name for name, ways in cut.items() if all(way not in cut for way in ways)]
            assert ends, f"a circle among {sorted(cut)}"
            order.extend(ends)
            for name in ends:
                del cut[name]

        assert len(order) == len(without.states)


@pytest.mark.parametrize(("name", "state"), list(tasks()), ids=[name for name, _ in tasks()])
class TestEveryTask:
    def test_is_bounded_and_its_failure_caught(self, name: str, state: Mapping[str, Any]) -> None:
        assert state["TimeoutSeconds"] > 0
        caught = [error for catch in state["Catch"] for error in catch["ErrorEquals"]]
        assert {"States.TaskFailed", "States.Timeout"} <= set(caught)

    def test_retries_and_catches_by_name(self, name: str, state: Mapping[str, Any]) -> None:
        for handler in handlers(state):
            assert set(handler["ErrorEquals"]) <= KNOWN_ERRORS
        retried = [error for retry in state["Retry"] for error in retry["ErrorEquals"]]
        assert len(retried) == len(set(retried))
        # In a function these would be anything at all; Glue knows no other name.
        assert ("States.TaskFailed" in retried) == ("glue" in state["Resource"])
        assert "States.Timeout" not in retried

    def test_backs_off_with_jitter(self, name: str, state: Mapping[str, Any]) -> None:
        for retry in state["Retry"]:
            assert retry["JitterStrategy"] == "FULL"
            assert retry["BackoffRate"] > 1
            assert 0 < retry["MaxAttempts"] <= 12

    def test_a_catch_that_matches_all_comes_last(self, name: str, state: Mapping[str, Any]) -> None:
        for catch in state["Catch"][:-1]:
            assert "States.TaskFailed" not in catch["ErrorEquals"]

    def test_keeps_its_input_beside_its_result(self, name: str, state: Mapping[str, Any]) -> None:
        """Only Detect may replace the state's data, where there is nothing yet to keep, and what ends an execution."""
        assert (state.get("ResultPath", "$") == "$") == (name == "Detect" or state.get("End") is True)
        for catch in state["Catch"]:
            assert catch["ResultPath"] != "$"


class TestRetries:
    @pytest.mark.parametrize("kind", ["lambda", "glue"])
    def test_are_alike_wherever_they_name_the_same_errors(self, kind: str) -> None:
        seen: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for name, state in tasks(kind):
            for retry in state["Retry"]:
                assert seen.setdefault(tuple(retry["ErrorEquals"]), retry) == retry, name

    def test_a_function_is_retried_for_lambda_itself_and_for_what_passes(self) -> None:
        for name, state in tasks("lambda"):
            service, killed, passing, *busy = (set(retry["ErrorEquals"]) for retry in state["Retry"])
            assert (service, killed) == (LAMBDA_ERRORS, KILLED), name
            # What is killed for want of memory is killed again, each time after 15 minutes of waiting for the first.
            assert state["Retry"][1]["MaxAttempts"] == 1, name
            assert passing == {"StorageError", "CommitConflict", "CommitStateUnknown"}, name
            assert busy in ([], [{"IdempotencyAlreadyInProgressError"}]), name

    def test_what_acts_twice_when_repeated_waits_for_its_first_attempt(self) -> None:
        """Leases are the same when taken twice."""
        waits = {name for name, state in tasks("lambda") if len(state["Retry"]) == 4}

        assert waits == {name for name, _ in tasks("lambda")} - LEASES

    def test_waiting_for_a_first_attempt_outlasts_it(self) -> None:
        """Full jitter takes half of each pause on average; a killed attempt bars others for 15 minutes."""
        for name, state in tasks("lambda"):
            for retry in state["Retry"][3:]:
                pauses = [
                    min(retry["IntervalSeconds"] * retry["BackoffRate"] ** count, retry["MaxDelaySeconds"])
                    for count in range(retry["MaxAttempts"])
                ]
                assert sum(pauses) / 2 > 1.5 * 900, name

    def test_a_glue_job_is_started_once_more_after_a_failure(self) -> None:
        for name, state in tasks("glue"):
            throttled, busy, failed = state["Retry"]
            assert (throttled["ErrorEquals"], busy["ErrorEquals"]) == (["Glue.AWSGlueException"], NO_CAPACITY), name
            assert (failed["ErrorEquals"], failed["MaxAttempts"]) == (["States.TaskFailed"], 1), name


# How often a task is tried again, by the name of its error; leases and tasks outlast the wait for a job.

# AWS Glue developer guide, "AWS Glue job run statuses": a queued run that gets no capacity fails after so long.
QUEUED_S = 15 * 60
# Spark's start in Glue, and what the state machine takes to see that a run ended.
START_S = 10 * 60


def attempts(state: Mapping[str, Any], error: str) -> int:
    """How often a task is tried again after an error: by the first retry that names it."""
    for retry in state["Retry"]:
        if error in retry["ErrorEquals"]:
            return int(retry["MaxAttempts"])
    return 0


def longest_wait_s(state: Mapping[str, Any], error: str) -> float:
    """The sum of the pauses after an error, each as long as jitter allows."""
    (retry,) = (one for one in state["Retry"] if error in one["ErrorEquals"])
    begin, rate, longest = (float(retry[key]) for key in ("IntervalSeconds", "BackoffRate", "MaxDelaySeconds"))
    return sum(min(begin * rate**number, longest) for number in range(retry["MaxAttempts"]))


@pytest.mark.parametrize("error", ["Lambda.Unknown", "Runtime.ExitError", "Runtime.OutOfMemory"])
def test_a_function_that_lacked_time_or_memory_is_tried_once_more(error: str) -> None:
    """Each attempt may take fifteen minutes, and ends as the first one did (platform: vague-lambda-glue-failures)."""
    assert {name: attempts(state, error) for name, state in tasks("lambda")} == {name: 1 for name, _ in tasks("lambda")}


@pytest.mark.parametrize("error", ["Sandbox.Timedout", "States.Timeout"])
def test_a_function_that_surely_ran_out_of_time_is_not(error: str) -> None:
    assert {attempts(state, error) for _, state in tasks("lambda")} == {0}


@pytest.mark.parametrize(
    "error",
    [
        "Lambda.TooManyRequestsException",
        "Lambda.ServiceException",
        "Lambda.AWSLambdaException",
        "Lambda.SdkClientException",
        "Lambda.ClientExecutionTimeoutException",
    ],
)
def test_what_lambda_itself_could_not_do_is_asked_again(error: str) -> None:
    assert {attempts(state, error) for _, state in tasks("lambda")} == {4}


def test_a_throttled_start_of_a_job_is_no_failure_of_the_job() -> None:
    """Glue's throttle has the name of Glue's base exception (platform: vague-lambda-glue-failures); a job that failed
    is begun once more."""
    for name, state in tasks("glue"):
        assert attempts(state, "Glue.AWSGlueException") == 6, name
        assert attempts(state, "Glue.ConcurrentRunsExceededException") == 10, name
        assert attempts(state, "Glue.ResourceNumberLimitExceededException") == 10, name
        assert attempts(state, "States.TaskFailed") == 1, name
        assert [retry["ErrorEquals"] for retry in state["Retry"]][-1] == ["States.TaskFailed"], name


def test_runs_that_find_no_capacity_are_queued_by_glue() -> None:
    """Only of jobs that Glue itself does not repeat."""
    for script, (_, job) in JOBS.items():
        assert (job["JobRunQueuingEnabled"], job["MaxRetries"]) == (True, 0), script


def test_a_task_outlasts_a_queued_run_of_its_job() -> None:
    times = DOCUMENT["Mappings"]["JobTimes"]
    assert set(times) == set(PARAMETERS["JobTimeoutMinutes"]["AllowedValues"])
    for minutes, seconds in times.items():
        assert seconds["Task"] == int(minutes) * 60 + QUEUED_S + START_S, minutes


@pytest.mark.parametrize("minutes", [15, 30, 60, 120])
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_lease_outlasts_the_longest_wait_for_a_job(minutes: int, retries: int) -> None:
    """It is prolonged when a step begins: before that the job is throttled, finds no capacity, is queued and starts."""
    policy = Policy(job_timeout_s=minutes * 60, job_retry_limit=retries)
    for name, state in tasks("glue"):
        waits_s = longest_wait_s(state, "Glue.AWSGlueException")
        waits_s += longest_wait_s(state, "Glue.ConcurrentRunsExceededException")
        longest_s = minutes * 60 + waits_s + QUEUED_S + 120  # the step before, which prolonged it when it began
        assert longest_s <= table_lease_ttl_ms(policy) / 1000, name
