"""Executions of the deployed state machine, started and followed from outside through AWS Step Functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.aws.session import client_config, session_of
from icekeeper.aws.settings import AwsIdentity
from icekeeper.catalogs.aws_service import AWS_ERRORS, error_code
from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.pipeline.events import Failure, TableResult
from icekeeper.storage.failures import describe_failure

RUNNING = frozenset({"RUNNING", "PENDING_REDRIVE"})
# Step Functions API reference, StartExecution, "Errors".
_MISSING = frozenset({"ExecutionDoesNotExist", "InvalidArn", "StateMachineDoesNotExist"})
_DENIED = frozenset({"AccessDenied", "AccessDeniedException"})


def region_of(arn: str) -> str:
    """The region in the ARN of a state machine, which may name a version or alias; raises PolicyError if it is none."""
    match = re.fullmatch(r"arn:aws[a-z-]*:states:([a-z0-9-]+):[0-9]{12}:stateMachine:[^:\s]{1,80}(:[^:\s]+)?", arn)
    if match is None:
        raise PolicyError(
            f"'{arn}' is not the ARN of a state machine, arn:aws:states:REGION:ACCOUNT:stateMachine:NAME: "
            "take the stack's output StateMachineArn"
        )
    return match.group(1)


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution as AWS describes it; ``result`` is that of its only table, if the output contains it."""

    status: str
    result: TableResult | None = None
    failure: Failure | None = None

    @property
    def is_running(self) -> bool:
        return self.status in RUNNING


class StateMachine:
    """A deployed state machine; nothing is sent before the first call."""

    def __init__(self, arn: str, client: Any) -> None:
        self.arn = arn
        self._client = client

    @classmethod
    def open(cls, arn: str, profile: str | None = None) -> StateMachine:
        """A client with the credentials of an AWS profile, else boto3's own, in the region of the ARN.

        Raises:
            PolicyError: the ARN is malformed.
            StorageError: boto3's own settings cannot be used.
        """
        region = region_of(arn := arn.strip())
        try:
            session = session_of(AwsIdentity(profile=profile), region)
            client = session.client("stepfunctions", config=client_config({}))
        except (*AWS_ERRORS, ValueError) as error:
            raise StorageError(f"AWS Step Functions cannot be used: {error}") from error
        return cls(arn, client)

    def start(self, name: str, machine_input: Mapping[str, Any]) -> str:
        """Start an execution and return its ARN; a repetition with the same name and input does not start another
        execution.

        Raises:
            PolicyError: the state machine does not exist.
            StorageError: AWS refuses, or does not answer.
        """
        try:
            answer = self._client.start_execution(
                stateMachineArn=self.arn, name=name, input=json.dumps(machine_input, ensure_ascii=False)
            )
        except AWS_ERRORS as error:
            raise self._error(error, "start a run of", "states:StartExecution") from error
        return str(answer["executionArn"])

    def describe(self, execution: str) -> Execution:
        """Status, result and failure of an execution.

        Raises:
            PolicyError: the execution does not exist.
            StorageError: AWS refuses, or does not answer.
        """
        try:
            answer = self._client.describe_execution(executionArn=execution)
        except AWS_ERRORS as error:
            raise self._error(error, "follow a run of", "states:DescribeExecution") from error
        failure = None
        if "error" in answer or "cause" in answer:
            failure = Failure(Error=answer.get("error") or "Unknown", Cause=answer.get("cause") or "")
        return Execution(answer["status"], _result(answer.get("output")), failure)

    def is_denied(self, error: MaintenanceError) -> bool:
        """Whether an error of these methods means missing rights or a missing state machine, so that no retry helps."""
        return isinstance(error, PolicyError) or _code(error.__cause__) in _DENIED

    def _error(self, error: Exception, what: str, right: str) -> MaintenanceError:
        if _code(error) in _MISSING:
            return PolicyError(f"state machine {self.arn} does not exist: take the stack's output StateMachineArn")
        if _code(error) in _DENIED:
            return StorageError(f"no permission to {what} {self.arn}: {right} is required")
        described = describe_failure(error, self._client.meta.endpoint_url)
        return StorageError(f"AWS Step Functions {described}")


def _result(output: str | None) -> TableResult | None:
    """Parse a run's output: the result of the only table of a forced run; ``None`` if the output has no result
    yet."""
    try:
        (result,) = json.loads(output or "null")["report"]["tables"]
        return TableResult.model_validate(result)
    except (ValueError, TypeError, KeyError):  # not yet, or the run never reached the table
        return None


def _code(error: BaseException | None) -> str:
    return error_code(error) if isinstance(error, ClientError) else ""
