"""How often a task is tried again, by the name of its error; leases and tasks outlast the wait for a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper.pipeline.run_leases import table_lease_ttl_ms
from icekeeper.policy import Policy
from support.stack_template import DOCUMENT, JOBS, PARAMETERS
from support.state_machine import tasks

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
    """Each attempt may take fifteen minutes, and ends as the first one did (platform 57)."""
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
    """Glue's throttle has the name of Glue's base exception (platform 57); a job that failed is begun once more."""
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
