"""The state machine's definition: retries, time limits and map outputs; workflow tests execute it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper import errors
from support.stack_template import DOCUMENT, JOBS, PARAMETERS
from support.stack_template import MACHINE as IN_TEMPLATE
from support.state_machine import DEFINITION, LEVELS, MACHINE, tasks

TASKS = dict(tasks())
LAMBDA_ERRORS = {
    *("Lambda.ServiceException", "Lambda.AWSLambdaException", "Lambda.SdkClientException"),
    *("Lambda.TooManyRequestsException", "Lambda.ClientExecutionTimeoutException"),
}
KILLED = {"Runtime.ExitError", "Runtime.OutOfMemory", "Lambda.Unknown"}
BUSY = {"TableBusy", "FleetBusy"}
NO_CAPACITY = ["Glue.ConcurrentRunsExceededException", "Glue.ResourceNumberLimitExceededException"]
TABLE_STATES = {name for label, level in LEVELS.items() if label != MACHINE.name for name in level.states}
# AWS Glue developer guide, "AWS Glue job run statuses": a queued run without capacity fails after this time.
QUEUED_S = 15 * 60
FLEX_WAITS_S = 20 * 60
# Spark's start in Glue, and the delay until the state machine notices the end of a run.
START_S = 10 * 60


def test_the_definition_equals_the_output_of_its_source() -> None:
    """``make definition`` writes the definition."""
    command = [sys.executable, "-m", "state_machine"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=DEFINITION.parents[1]).stdout
    assert DEFINITION.read_text() == output


def test_a_child_execution_returns_no_output() -> None:
    """Outcomes are stored as documents, because the outputs of all children of a map must fit one payload."""
    for label, level in LEVELS.items():
        for name, state in level.states.items():
            if level.name != MACHINE.name and (state["Type"] == "Succeed" or state.get("End")):
                assert state["OutputPath"] is None, (label, name)
    for name, state in MACHINE.states.items():
        if state["Type"] == "Map":
            assert (state["ResultPath"], state["Label"]) == (None, name)
            # moto requires a float.
            assert state["ToleratedFailurePercentage"] == 100.0
            assert state["ItemProcessor"]["ProcessorConfig"] == {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}


@pytest.mark.parametrize(("name", "state"), TASKS.items(), ids=TASKS)
def test_every_task_is_bounded_retried_by_name_and_caught(name: str, state: Mapping[str, Any]) -> None:
    assert state["TimeoutSeconds"] > 0
    (caught,) = state["Catch"]
    assert caught["ErrorEquals"] == ["States.TaskFailed", "States.Timeout"]
    # Only Detect may replace the state's data, because there is no earlier data.
    assert (state.get("ResultPath", "$") == "$") == (caught["ResultPath"] == "$") == (name == "Detect")
    for retry in state["Retry"]:
        if not BUSY & set(retry["ErrorEquals"]):
            assert retry["JitterStrategy"] == "FULL"
            assert retry["BackoffRate"] > 1
            assert 0 < retry["MaxAttempts"] <= 12


@pytest.mark.parametrize("kind", ["lambda", "glue"])
def test_all_tasks_retry_the_same_errors_in_the_same_way(kind: str) -> None:
    seen: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for name, state in tasks(kind):
        for retry in state["Retry"]:
            assert seen.setdefault(tuple(retry["ErrorEquals"]), retry) == retry, name


def test_a_function_is_retried_for_failures_of_lambda_and_for_temporary_errors() -> None:
    transient = {"StorageError", "CommitConflict", "CommitStateUnknown"}
    assert transient | BUSY <= errors.ERROR_NAMES
    for name, state in tasks("lambda"):
        found = [set(retry["ErrorEquals"]) for retry in state["Retry"]]
        expected = [LAMBDA_ERRORS, KILLED, transient, {"IdempotencyAlreadyInProgressError"}]
        assert found == [*expected, *([BUSY] if name in TABLE_STATES else [])], name
        # Retries outlast a first attempt: full jitter halves each pause on average, and a killed attempt blocks
        # others for 15 minutes.
        retry = state["Retry"][3]
        assert sum(pauses(retry)) / 2 > 1.5 * 900, name


def test_waiting_for_a_table_leaves_the_machine_time_for_its_pass() -> None:
    """A run that does not wait ends with ``LeaseHeld``, which is not retried."""
    busy = [retry for _, state in tasks("lambda") for retry in state["Retry"][4:]]
    assert len(busy) == len([name for name in TASKS if name in TABLE_STATES])
    for retry in busy:
        assert retry == {
            "ErrorEquals": ["TableBusy", "FleetBusy"],
            "IntervalSeconds": 30,
            "MaxAttempts": 960,
            "BackoffRate": 1,
        }
    assert MACHINE.definition["TimeoutSeconds"] - 960 * 30 == 4 * 3600


def pauses(retry: Mapping[str, Any]) -> list[float]:
    """The longest pauses of a retry."""
    begin, rate, longest = (float(retry[key]) for key in ("IntervalSeconds", "BackoffRate", "MaxDelaySeconds"))
    return [min(begin * rate**number, longest) for number in range(retry["MaxAttempts"])]


def test_a_failed_job_is_retried_once_and_a_throttled_start_several_times() -> None:
    """Glue's throttle has the name of its base exception (platform: vague-lambda-glue-failures).  Gather chooses
    the number of workers and their type (platform: glue-flex-waits)."""
    for name, state in tasks("glue"):
        assert [(retry["ErrorEquals"], retry["MaxAttempts"]) for retry in state["Retry"]] == [
            (["Glue.AWSGlueException"], 6),
            (NO_CAPACITY, 10),
            (["States.TaskFailed"], 1),
        ], name
        workers, kind = (state["Parameters"][key] for key in ("NumberOfWorkers.$", "WorkerType.$"))
        assert kind == workers.replace(".workers", ".worker_type"), name
    for script, (_, job) in JOBS.items():
        # Glue queues only jobs without its own retries.
        assert (job["JobRunQueuingEnabled"], job["MaxRetries"]) == (True, 0), script


def test_a_task_outlasts_a_job_that_waits_for_capacity() -> None:
    """For every allowed job timeout, with FLEX's wait, the queue and the start (platform: glue-flex-waits)."""
    times = DOCUMENT["Mappings"]["JobTimes"]
    assert list(times) == PARAMETERS["JobTimeoutMinutes"]["AllowedValues"]
    for minutes, seconds in times.items():
        job_s = int(minutes) * 60
        assert seconds == {"Policy": job_s, "Task": job_s + FLEX_WAITS_S + QUEUED_S + START_S}, minutes
    assert {state["TimeoutSeconds"] for _, state in tasks("glue")} == {times["60"]["Task"]}
    seconds_by_minutes = {"Fn::FindInMap": ["JobTimes", {"Ref": "JobTimeoutMinutes"}, "Task"]}
    assert IN_TEMPLATE["DefinitionSubstitutions"]["JobTaskSeconds"] == seconds_by_minutes


def test_expiry_waits_for_a_late_wave_as_long_as_its_comment_states() -> None:
    """state_machine/line.py: 3.5 hours for two attempts, and half an hour for each if Glue has no capacity."""
    wave = MACHINE.states["CompactDataFiles"]
    assert 2 * wave["TimeoutSeconds"] == 3.5 * 3600
    (busy,) = (retry for retry in wave["Retry"] if retry["ErrorEquals"] == NO_CAPACITY)
    assert 0.5 * 3600 < sum(pauses(busy)) < 0.55 * 3600
    # The longest jobs leave time for the later stages.
    longest_s = 2 * DOCUMENT["Mappings"]["JobTimes"]["120"]["Task"]
    assert MACHINE.definition["TimeoutSeconds"] - longest_s > 6 * 3600
