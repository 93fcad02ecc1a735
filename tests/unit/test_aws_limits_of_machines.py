"""What AWS Step Functions refuses and moto lets pass (platform 59)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local_stack.limits.state_machines import refused_by_step_functions
from local_stack.wire import HttpAnswer, WireRequest
from support.state_machine import load_machine


def asked(target: str, document: Any) -> HttpAnswer | None:
    headers = {"x-amz-target": f"AWSStepFunctions.{target}"}
    return refused_by_step_functions(WireRequest("states", "POST", "/", "", headers, json.dumps(document).encode()))


def machine(**states: Any) -> HttpAnswer | None:
    definition = {"StartAt": next(iter(states)), "States": states}
    return asked("CreateStateMachine", {"name": "m", "definition": json.dumps(definition)})


def mapped(inside: str = "Inside", mode: str = "DISTRIBUTED", **fields: Any) -> dict[str, Any]:
    processor = {"ProcessorConfig": {"Mode": mode}, "StartAt": inside, "States": {inside: {"Type": "Succeed"}}}
    return {"Type": "Map", "ItemProcessor": processor, "End": True, **fields}


def test_ours_is_taken() -> None:
    definition = json.dumps(load_machine().definition)
    assert asked("CreateStateMachine", {"name": "stack-maintain-tables", "definition": definition}) is None


@pytest.mark.parametrize("name", ["n" * 81, "", "two words", "a:b", "a/b", "a\tb"])
@pytest.mark.parametrize("target", ["StartExecution", "CreateStateMachine"])
def test_names_are_short_and_plain(name: str, target: str) -> None:
    refused = asked(target, {"name": name})
    assert refused is not None
    assert b"InvalidName" in refused.body
    assert asked(target, {"name": "n" * 80}) is None


def test_an_execution_may_be_named_by_aws_and_its_input_is_no_longer_than_any_payload() -> None:
    assert asked("StartExecution", {"input": "x" * 262_144}) is None
    assert asked("StartExecution", {"input": "x" * 262_145}) is not None


@pytest.mark.parametrize(
    "states",
    [
        {"n" * 81: {"Type": "Succeed"}},
        {"A": mapped("A")},  # a name is unique in the whole machine
        {"A": mapped("B", Label="l" * 41)},
        {"A": mapped("B", Label="a label")},
        {"A": mapped("B", Label="same"), "C": mapped("D", Label="same")},
        {"A": mapped("B", MaxConcurrency=10_001)},
        {"A": mapped("B", "INLINE", MaxConcurrency=41)},
        {"A": {"Type": "Parallel", "Branches": [{"States": {"B": {}}}, {"States": {"B": {}}}]}},
    ],
)
def test_what_is_no_definition(states: dict[str, Any]) -> None:
    refused = machine(**states)
    assert refused is not None
    assert b"InvalidDefinition" in refused.body


def test_what_is_one() -> None:
    assert (
        machine(A=mapped("B", Label="l" * 40, MaxConcurrency=10_000), C=mapped("D", "INLINE", MaxConcurrency=40))
        is None
    )


def test_a_definition_is_no_longer_than_a_megabyte() -> None:
    assert machine(A={"Type": "Succeed", "Comment": "x" * 2**20}) is not None
