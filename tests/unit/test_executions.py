"""Step Functions as a laptop sees it: ARNs, what executions say, and every refusal as one clear sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.pipeline.events import Failure, TableResult
from icekeeper.pipeline.executions import Execution, StateMachine, StateMachineArn

ARN = "arn:aws:states:eu-west-1:123456789012:stateMachine:icekeeper-maintain-tables"
EXECUTION = "arn:aws:states:eu-west-1:123456789012:execution:icekeeper-maintain-tables:request-1"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RESULT = TableResult(table="ns.t", status="partial", summary="compact failed")
DESCRIBED = {
    "executionArn": EXECUTION,
    "stateMachineArn": ARN,
    "startDate": NOON,
    "inputDetails": {"included": True},
}


class Stubbed:
    """A state machine whose AWS answers as a test says."""

    def __init__(self) -> None:
        client = boto3.client(
            "stepfunctions", region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="secret"
        )
        self.stub = Stubber(client)
        self.machine = StateMachine(StateMachineArn.parse(ARN), client)
        self.stub.activate()

    def described(self, **answer: Any) -> Execution:
        self.stub.add_response("describe_execution", {**DESCRIBED, **answer}, {"executionArn": EXECUTION})
        return self.machine.describe(EXECUTION)

    def explained(self, *events: dict[str, Any]) -> Execution | None:
        told = [{"timestamp": NOON, "id": number, **event} for number, event in enumerate(events, 1)]
        self.stub.add_response("get_execution_history", {"events": told})
        return self.machine.explain(EXECUTION)


@pytest.fixture
def stubbed() -> Stubbed:
    return Stubbed()


@pytest.mark.parametrize("arn", [ARN, f"{ARN}:live", ARN.replace("arn:aws:", "arn:aws-us-gov:")])
def test_the_region_is_that_of_the_arn(arn: str) -> None:
    assert StateMachineArn.parse(arn) == StateMachineArn(arn, "eu-west-1")


@pytest.mark.parametrize(
    "text", ["", "icekeeper", EXECUTION, ARN.replace("123456789012", "me"), f"{ARN} x", ARN.rpartition(":")[0]]
)
def test_other_texts_are_no_arns_of_state_machines(text: str) -> None:
    with pytest.raises(PolicyError, match="is not the ARN of a state machine"):
        StateMachine.open(text)


def test_a_run_is_started_by_its_name(stubbed: Stubbed) -> None:
    sent = {"stateMachineArn": ARN, "name": "request-1", "input": '{"table": "ns.zürich"}'}
    stubbed.stub.add_response("start_execution", {"executionArn": EXECUTION, "startDate": NOON}, sent)
    assert stubbed.machine.start("request-1", {"table": "ns.zürich"}) == EXECUTION


def test_an_execution_is_running_until_it_is_not(stubbed: Stubbed) -> None:
    assert stubbed.described(status="RUNNING").is_running
    done = stubbed.described(status="SUCCEEDED", output=json.dumps({"tables": [RESULT.model_dump()], "report": {}}))
    assert done == Execution("SUCCEEDED", RESULT)
    assert not done.is_running
    failed = stubbed.described(status="FAILED", error="DetectionFailed", cause="see Detect")
    assert failed == Execution("FAILED", None, Failure(Error="DetectionFailed", Cause="see Detect"))


@pytest.mark.parametrize(
    "output",
    [
        "[]",
        "null",
        '{"proposals": {"count": 0}}',
        '{"tables": []}',
        '{"tables": [null]}',
        '{"tables": [{"a": 1}]}',
        "x",
    ],
)
def test_an_output_without_the_tables_result_has_none(stubbed: Stubbed, output: str) -> None:
    assert stubbed.described(status="SUCCEEDED", output=output) == Execution("SUCCEEDED")


def test_the_newest_event_that_says_something_explains(stubbed: Stubbed) -> None:
    cause = json.dumps({"errorMessage": "no such\n catalog", "errorType": "PolicyError"})
    failed = {
        "type": "TaskFailed",
        "taskFailedEventDetails": {
            "resourceType": "lambda",
            "resource": "invoke",
            "error": "PolicyError",
            "cause": cause,
        },
    }
    exited = {
        "type": "MapStateExited",
        "stateExitedEventDetails": {"name": "MaintainTables", "output": json.dumps({"tables": [RESULT.model_dump()]})},
    }
    ended = {"type": "ExecutionFailed", "executionFailedEventDetails": {"error": "DetectionFailed"}}
    told = stubbed.explained(ended, failed)
    assert told is not None
    assert told.failure is not None
    assert told.failure.sentence == "PolicyError: no such catalog"
    assert stubbed.explained(ended, exited, failed) == Execution("FAILED", RESULT)
    assert stubbed.explained(ended) is None
    stubbed.stub.add_client_error("get_execution_history", "AccessDeniedException")
    assert stubbed.machine.explain(EXECUTION) is None


Call = Callable[[StateMachine], object]


def start(machine: StateMachine) -> object:
    return machine.start("request-1", {})


def describe(machine: StateMachine) -> object:
    return machine.describe(EXECUTION)


@pytest.mark.parametrize(
    ("call", "code", "kind", "sentence", "in_vain"),
    [
        (
            start,
            "StateMachineDoesNotExist",
            PolicyError,
            f"there is no state machine {ARN}: take the stack's output StateMachineArn",
            True,
        ),
        (
            start,
            "AccessDeniedException",
            StorageError,
            f"you may not start a run of {ARN}: ask for the right states:StartExecution",
            True,
        ),
        (
            describe,
            "AccessDeniedException",
            StorageError,
            f"you may not follow a run of {ARN}: ask for the right states:DescribeExecution",
            True,
        ),
        (
            describe,
            "ThrottlingException",
            StorageError,
            "AWS Step Functions failed with ThrottlingException: said AWS",
            False,
        ),
        (
            describe,
            "ExpiredTokenException",
            StorageError,
            "AWS Step Functions failed with ExpiredTokenException: said AWS; sign in again, or name a profile or role, "
            "whose keys are renewed",
            False,
        ),
    ],
)
def test_what_aws_refuses_is_one_sentence(
    stubbed: Stubbed, call: Call, code: str, kind: type[MaintenanceError], sentence: str, in_vain: bool
) -> None:
    method = "start_execution" if call is start else "describe_execution"
    stubbed.stub.add_client_error(method, code, "said AWS")
    with pytest.raises(MaintenanceError) as caught:
        call(stubbed.machine)
    assert (type(caught.value), str(caught.value)) == (kind, sentence)
    assert stubbed.machine.is_denied(caught.value) is in_vain


def test_without_credentials_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", raising=False)  # of a local stack of this process
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageError, match=r"^AWS Step Functions cannot be reached: no AWS credentials"):
        StateMachine.open(ARN).start("request-1", {})
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match=r"^AWS Step Functions cannot be used: The config profile \(nobody\)"):
        StateMachine.open(ARN)
