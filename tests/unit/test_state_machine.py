"""The state machine's definition: order, ways, retries, and what each task sends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper import errors
from icekeeper.operation_facts import STEP_FACTS, Stage, operations_of_job
from icekeeper.pipeline import events
from icekeeper.pipeline.gather import JOB_STAGES
from support.stack_template import DOCUMENT, JOBS, PARAMETERS
from support.state_machine import DEFINITION, LEVELS, MACHINE, Machine, fields, payload, tasks

TASKS = dict(tasks())

# One straight line: stages in their order, each behind a choice; in the maps every function in canonical order.


def stage_choices() -> dict[str, str]:
    """The state of each stage by its choice, as they follow each other when no stage has work."""
    found, name = {}, str(MACHINE.states["Gather"]["Next"])
    while name != "Report":
        (case,) = MACHINE.states[name]["Choices"]
        found[name], name = case["Next"], MACHINE.states[name]["Default"]
    return found


def test_the_states_are_written_in_the_order_in_which_they_follow_each_other() -> None:
    """As somebody reads it in the console: from the top to the bottom; only what failed is reported again."""
    names = list(MACHINE.states)
    back = [(name, way) for name in names for way in MACHINE.next_states(name) if names.index(way) < names.index(name)]
    assert back == [("HowItWent", "Report")]
    for level in LEVELS.values():
        order = list(level.states)
        if level is not MACHINE and level.name != MACHINE.name:
            ways = [(order.index(name), order.index(way)) for name in order for way in level.next_states(name)]
            assert all(before < after for before, after in ways), level.name


def test_each_stage_is_skipped_without_work_and_followed_by_the_next_whatever_happens() -> None:
    choices = stage_choices()
    after = [*list(choices)[1:], "Report"]
    assert len(choices) == len(Stage)
    for stage, (choice, name), then in zip(Stage, choices.items(), after, strict=True):
        (case,) = MACHINE.states[choice]["Choices"]
        assert case == {"Variable": f"$.stages.{stage.value}.count", "NumericGreaterThan": 0, "Next": name}
        state = MACHINE.states[name]
        (caught,) = state["Catch"]
        assert {"States.TaskFailed", "States.Timeout"} <= set(caught["ErrorEquals"])
        assert (caught["ResultPath"], caught["Next"]) == (f"$.jobs.{stage.value}", then)
        assert (state["ResultPath"], state["Next"]) == (None, then)


def test_stages_come_in_the_canonical_order_of_their_functions_and_jobs() -> None:
    assert list(stage_choices().values()) == [
        *("CompactSmallTables", "CompactDataFiles", "ExpireAndSweep"),
        *("RemoveLargeOrphans", "RewriteLargeManifests", "CleanStaged"),
    ]
    functions = list(dict.fromkeys(step.function for step in STEP_FACTS))
    called = [
        state["Parameters"]["FunctionName"]
        for label in ("CompactSmallTables", "ExpireAndSweep")
        for state in LEVELS[label].states.values()
        if state["Type"] == "Task"
    ]
    named = [f"{''.join(part.title() for part in function.split('_'))}Function" for function in functions]
    assert [*called, "CleanStagedFunction"] == [
        *named[:3],
        "ListOrphansFunction",
        *named[3:],
    ]


def test_each_job_is_that_of_its_stage_and_takes_its_work_from_there() -> None:
    found = {}
    for name, state in tasks("glue"):
        sent = state["Parameters"]
        (stage,) = {text.split(".")[2] for text in (sent["NumberOfWorkers.$"], sent["Arguments"]["--work-key.$"])}
        found[stage] = sent["JobName"]
        assert fields(sent["Arguments"]) == {
            *("--work-key", "--work-digest", "--run-id", "--control-bucket", "--state"),
        }, name
        # By which Gather reckons; FLEX is to be had with G.1X and G.2X only (platform: glue-flex-waits).
        assert sent["WorkerType"] == "G.1X", name
    assert found == {
        step.job.stage.value: f"{''.join(part.title() for part in step.job.script.split('_'))}Job"
        for step in STEP_FACTS
        if step.job is not None
    }
    assert list(found) == [stage.value for stage in JOB_STAGES]
    assert all(operations_of_job(script) for script in JOBS)


def test_a_child_returns_nothing_however_it_ends() -> None:
    """Outcomes are documents: what a map's children return together must fit one payload."""
    for label, level in LEVELS.items():
        for name, state in level.states.items():
            if level.name != MACHINE.name and (state["Type"] == "Succeed" or state.get("End")):
                assert state["OutputPath"] is None, (label, name)
    for name, state in MACHINE.states.items():
        if state["Type"] == "Map":
            assert (state["ResultPath"], state["Label"]) == (None, name)
            # moto knows it as a fraction only.
            assert state["ToleratedFailurePercentage"] == 100.0
            assert state["ItemProcessor"]["ProcessorConfig"] == {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}


# The field names of every payload are those that the functions accept, and what they demand is there.


def test_every_task_sends_what_its_function_accepts() -> None:
    models: dict[str, Any] = {
        "Detect": events.DetectEvent,
        "Gather": events.RunEvent,
        "CleanStaged": events.RunEvent,
        "Report": events.ReportEvent,
    }
    for name, state in tasks("lambda"):
        model = models.get(name, events.TableEvent)
        required = {field for field, about in model.model_fields.items() if about.is_required()}
        listed = {"listed"} if name == "RemoveOrphans" else set()
        assert required | listed == fields(payload(state)) - {"state"}, name
    assert fields(payload(MACHINE.states["Report"])) == {"run_id", "state"}


def test_the_report_gets_the_run_by_its_name_and_all_that_is_known() -> None:
    """The input may hold anything but the run's name."""
    assert payload(MACHINE.states["Report"]) == {"run_id.$": "$$.Execution.Name", "state.$": "$"}
    (caught,) = MACHINE.states["Detect"]["Catch"]
    assert (caught["ResultPath"], caught["Next"]) == ("$", "NotDetected")
    assert MACHINE.states["NotDetected"]["Parameters"] == {"failure.$": "$", "input.$": "$$.Execution.Input"}
    for name in ("PlanTables", "Gather"):
        (caught,) = MACHINE.states[name]["Catch"]
        assert (caught["ResultPath"], caught["Next"]) == ("$.failure", "Report"), name


def test_the_definition_is_what_its_source_gives() -> None:
    """``make definition`` writes it; nobody edits it."""
    command = [sys.executable, "-m", "state_machine"]
    given = subprocess.run(command, capture_output=True, text=True, check=True, cwd=DEFINITION.parents[1]).stdout
    assert DEFINITION.read_text() == given


# Every way through the state machine ends, and every task is bounded, retried by name, and its failure caught.

TYPES = {"Task", "Choice", "Pass", "Map", "Succeed", "Fail"}

LAMBDA_ERRORS = {
    "Lambda.ServiceException",
    "Lambda.AWSLambdaException",
    "Lambda.SdkClientException",
    "Lambda.TooManyRequestsException",
    "Lambda.ClientExecutionTimeoutException",
}
KILLED = {"Runtime.ExitError", "Runtime.OutOfMemory", "Lambda.Unknown"}
BUSY = {"TableBusy", "FleetBusy"}
OURS = errors.ERROR_NAMES | {"IdempotencyAlreadyInProgressError"}
OF_STEP_FUNCTIONS = {
    "States.TaskFailed",
    "States.Timeout",
    "States.ItemReaderFailed",
    "States.ExceedToleratedFailureThreshold",
}
NO_CAPACITY = ["Glue.ConcurrentRunsExceededException", "Glue.ResourceNumberLimitExceededException"]
KNOWN_ERRORS = LAMBDA_ERRORS | KILLED | OURS | OF_STEP_FUNCTIONS | {"Glue.AWSGlueException", *NO_CAPACITY}
OF_TABLES = {name for label, level in LEVELS.items() if label != MACHINE.name for name in level.states}


@pytest.mark.parametrize("level", LEVELS.values(), ids=lambda level: level.name)
class TestEveryWay:
    def test_leads_to_states_that_exist_and_to_each_of_them(self, level: Machine) -> None:
        start = level.definition["StartAt"]
        assert {start, *level.after(start)} == set(level.states)
        for name in level.states:
            assert set(level.next_states(name)) <= set(level.states), name

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


@pytest.mark.parametrize(("name", "state"), TASKS.items(), ids=TASKS)
def test_every_task_is_bounded_retried_by_name_and_caught(name: str, state: Mapping[str, Any]) -> None:
    assert state["TimeoutSeconds"] > 0
    (caught,) = state["Catch"]
    assert caught["ErrorEquals"] == ["States.TaskFailed", "States.Timeout"]
    # Only Detect may replace the state's data, where there is nothing yet to keep.
    assert (state.get("ResultPath", "$") == "$") == (caught["ResultPath"] == "$") == (name == "Detect")
    retried = [error for retry in state["Retry"] for error in retry["ErrorEquals"]]
    assert len(retried) == len(set(retried))
    assert set(retried) <= KNOWN_ERRORS
    # In a function these would be anything at all; Glue knows no other name.
    assert ("States.TaskFailed" in retried) == ("glue" in state["Resource"])
    assert "States.Timeout" not in retried
    for retry in state["Retry"]:
        if not BUSY & set(retry["ErrorEquals"]):
            assert retry["JitterStrategy"] == "FULL"
            assert retry["BackoffRate"] > 1
            assert 0 < retry["MaxAttempts"] <= 12


class TestRetries:
    @pytest.mark.parametrize("kind", ["lambda", "glue"])
    def test_are_alike_wherever_they_name_the_same_errors(self, kind: str) -> None:
        seen: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for name, state in tasks(kind):
            for retry in state["Retry"]:
                assert seen.setdefault(tuple(retry["ErrorEquals"]), retry) == retry, name

    def test_a_function_is_retried_for_lambda_itself_and_for_what_passes(self) -> None:
        for name, state in tasks("lambda"):
            service, killed, passing, first, *busy = (set(retry["ErrorEquals"]) for retry in state["Retry"])
            assert (service, killed) == (LAMBDA_ERRORS, KILLED), name
            assert passing == {"StorageError", "CommitConflict", "CommitStateUnknown"}, name
            assert first == {"IdempotencyAlreadyInProgressError"}, name
            assert busy == ([BUSY] if name in OF_TABLES else []), name

    def test_who_waits_for_a_table_leaves_the_machine_time_for_its_pass(self) -> None:
        """``LeaseHeld``, of who does not wait, is an answer."""
        busy = [retry for _, state in tasks("lambda") for retry in state["Retry"][4:]]
        assert len(busy) == len([name for name in TASKS if name in OF_TABLES])
        for retry in busy:
            assert retry == {
                "ErrorEquals": ["TableBusy", "FleetBusy"],
                "IntervalSeconds": PARAMETERS["LeaseWaitSeconds"]["Default"],
                "MaxAttempts": 960,
                "BackoffRate": 1,
            }
        longest_s = 960 * PARAMETERS["LeaseWaitSeconds"]["MaxValue"]
        assert MACHINE.definition["TimeoutSeconds"] - longest_s == 4 * 3600

    def test_waiting_for_a_first_attempt_outlasts_it(self) -> None:
        """Full jitter takes half of each pause on average; a killed attempt bars others for 15 minutes."""
        for name, state in tasks("lambda"):
            retry = state["Retry"][3]
            pauses = [
                min(retry["IntervalSeconds"] * retry["BackoffRate"] ** count, retry["MaxDelaySeconds"])
                for count in range(retry["MaxAttempts"])
            ]
            assert sum(pauses) / 2 > 1.5 * 900, name


# How often a task is tried again, by the name of its error; and how long a job's task waits.

# AWS Glue developer guide, "AWS Glue job run statuses": a queued run that gets no capacity fails after so long.
QUEUED_S = 15 * 60
FLEX_WAITS_S = 20 * 60
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


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        # Each attempt may take fifteen minutes, and ends as the first one did (platform: vague-lambda-glue-failures).
        (KILLED, 1),
        # A function that surely ran out of time does so again.
        ({"Sandbox.Timedout", "States.Timeout"}, 0),
        # What Lambda itself could not do is asked again.
        (LAMBDA_ERRORS, 4),
        ({"LeaseHeld", "LeaseLost", "OperationRefused", "PolicyError"}, 0),
    ],
    ids=["killed", "timed out", "of Lambda", "an answer"],
)
def test_a_function_is_tried_again(errors: set[str], expected: int) -> None:
    for name, state in tasks("lambda"):
        assert {attempts(state, error) for error in errors} == {expected}, name


def test_a_throttled_start_of_a_job_is_no_failure_of_the_job() -> None:
    """Glue's throttle has the name of Glue's base exception (platform: vague-lambda-glue-failures); a job that failed
    is begun once more."""
    for name, state in tasks("glue"):
        names = [["Glue.AWSGlueException"], NO_CAPACITY, ["States.TaskFailed"]]
        assert [retry["ErrorEquals"] for retry in state["Retry"]] == names, name
        assert attempts(state, "Glue.AWSGlueException") == 6, name
        assert attempts(state, "Glue.ConcurrentRunsExceededException") == 10, name
        assert attempts(state, "Glue.ResourceNumberLimitExceededException") == 10, name
        assert attempts(state, "States.TaskFailed") == 1, name


def test_runs_that_find_no_capacity_are_queued_by_glue() -> None:
    """Only of jobs that Glue itself does not repeat."""
    for script, (_, job) in JOBS.items():
        assert (job["JobRunQueuingEnabled"], job["MaxRetries"]) == (True, 0), script


def test_a_task_outlasts_its_job_that_waits_for_capacity_is_queued_and_starts() -> None:
    """Whatever the job's time (platform: glue-flex-waits)."""
    times = DOCUMENT["Mappings"]["JobTimes"]
    assert list(times) == PARAMETERS["JobTimeoutMinutes"]["AllowedValues"]
    for minutes, seconds in times.items():
        job_s = int(minutes) * 60
        assert seconds == {"Policy": job_s, "Task": job_s + FLEX_WAITS_S + QUEUED_S + START_S}, minutes
    assert {state["TimeoutSeconds"] for _, state in tasks("glue")} == {times["60"]["Task"]}


def test_expiry_waits_for_a_late_wave_as_long_as_is_written() -> None:
    """state_machine/line.py: 3.5 hours for two attempts, and half an hour for each where Glue has no place."""
    wave = MACHINE.states["CompactDataFiles"]
    assert 2 * wave["TimeoutSeconds"] == 3.5 * 3600
    assert 0.5 * 3600 < longest_wait_s(wave, NO_CAPACITY[0]) < 0.55 * 3600
    # With the longest jobs there is still time for the stages behind it.
    longest_s = 2 * DOCUMENT["Mappings"]["JobTimes"]["120"]["Task"]
    assert MACHINE.definition["TimeoutSeconds"] - longest_s > 6 * 3600
