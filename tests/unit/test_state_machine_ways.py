"""Every way through the state machine ends, and every task is bounded, retried by name, and its failure caught."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper import errors
from support.state_machine import LEVELS, Machine, tasks

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
