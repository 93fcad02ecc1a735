"""A deployed stack, read through AWS: its outputs, its runs, and the logs and documents of its functions and jobs."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import boto3

_PAUSE_S = 5.0
_OF_TABLE_BUCKETS = ("icebergCompaction", "icebergSnapshotManagement")


@dataclass(frozen=True, slots=True)
class Run:
    """A run over one table that has ended."""

    run_id: str
    status: str
    """The status in Step Functions: ``SUCCEEDED``, ``FAILED``, …"""
    sentence: str
    """The summary of the table's pass, or why there is no pass."""
    operations: Mapping[str, Mapping[str, Any]]
    """The outcome of each operation, from the control bucket."""
    routes: Mapping[str, str]
    """Where each step was planned to run: ``function`` or ``glue``."""


class DeployedStack:
    """One stack; ``sleep`` is called between two polls."""

    def __init__(self, name: str, session: boto3.Session, sleep: Callable[[float], object] = time.sleep) -> None:
        """Read the stack's outputs and parameters.

        Raises:
            BotoCoreError, ClientError: there is no such stack, or it must not be read.
        """
        self._session = session
        self._sleep = sleep
        self._log_group = f"/aws/lambda/{name}"
        (described,) = session.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        self.outputs = {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", ())}
        self.parameters = {param["ParameterKey"]: param["ParameterValue"] for param in described.get("Parameters", ())}

    @property
    def table_bucket(self) -> str | None:
        """The first table bucket that the stack serves by its name."""
        buckets = self.parameters.get("TableBucketArns", "").split(",")
        return next((arn.strip() for arn in buckets if arn.strip() and "*" not in arn), None)

    def switch_off_bucket_maintenance(self, bucket: str, namespace: str, table: str) -> str:
        """Switch off a table bucket's own compaction and snapshot expiry for a table; return a sentence about the
        others.

        With ``Ownership=auto`` the stack leaves both to the bucket.
        """
        client = self._session.client("s3tables", region_name=bucket.split(":")[3])
        found = client.get_table_maintenance_configuration(tableBucketARN=bucket, namespace=namespace, name=table)
        kinds = [kind for kind in _OF_TABLE_BUCKETS if found["configuration"].get(kind, {}).get("status") == "enabled"]
        for kind in _OF_TABLE_BUCKETS:
            client.put_table_maintenance_configuration(
                tableBucketARN=bucket, namespace=namespace, name=table, type=kind, value={"status": "disabled"}
            )
        ownership = self.parameters.get("Ownership", "")
        verb = "Icekeeper takes over" if ownership == "icekeeper" else "the bucket keeps"
        return f"with Ownership={ownership} {verb} {' and '.join(kinds) or 'nothing'} of its other tables"

    def run(self, machine_input: Mapping[str, Any], *, limit_s: float) -> Run:
        """Run the state machine over one table, and wait for its end.

        Raises:
            TimeoutError: the run has not ended after ``limit_s``.
        """
        client, run_id = self._session.client("stepfunctions"), f"smoke-{uuid.uuid4()}"
        machine = self.outputs["StateMachineArn"]
        started = client.start_execution(stateMachineArn=machine, name=run_id, input=json.dumps(machine_input))
        arn = started["executionArn"]
        for _ in self._looks(limit_s):
            described = client.describe_execution(executionArn=arn)
            if described["status"] not in ("RUNNING", "PENDING_REDRIVE"):
                break
        else:
            raise TimeoutError(f"the run {run_id} has not ended after {limit_s:g} s; open it in the console")
        report = self._document(f"runs/{run_id}/report.json") or {}
        sentence = str(described.get("cause") or report.get("summary") or described["status"])
        passed, plan = (self._document_of_table(run_id, name) or {} for name in ("pass.json", "plan.json"))
        sentence = str(passed.get("summary") or sentence)
        operations = {document["operation"]: document for document in passed.get("operations", ())}
        return Run(run_id, described["status"], sentence, operations, plan.get("routes", {}))

    def lines_of_run(self, run_id: str, *, limit_s: float) -> list[str]:
        """The log lines of functions about a run; CloudWatch may need some seconds until it shows any."""
        client, found = self._session.client("logs"), list[str]()
        for _ in self._looks(limit_s):
            found = list(_lines(client, self._log_group, run_id))
            if found:
                break
        return found

    def has_metric(self, name: str, *, limit_s: float) -> bool:
        """Whether CloudWatch has this metric in Icekeeper's namespace; a new metric is listed after minutes."""
        client = self._session.client("cloudwatch")
        return any(client.list_metrics(Namespace="Icekeeper", MetricName=name)["Metrics"] for _ in self._looks(limit_s))

    def _document(self, key: str) -> dict[str, Any] | None:
        client = self._session.client("s3")
        try:
            found = client.get_object(Bucket=self.outputs["ControlBucketName"], Key=key)
        except client.exceptions.NoSuchKey:
            return None
        document: dict[str, Any] = json.loads(found["Body"].read())
        return document

    def _document_of_table(self, run_id: str, name: str) -> dict[str, Any] | None:
        """The run's only document of this name: it has one table, whose folder has a name of its own."""
        pages = self._session.client("s3").get_paginator("list_objects_v2")
        listed = pages.paginate(Bucket=self.outputs["ControlBucketName"], Prefix=f"runs/{run_id}/")
        keys = [item["Key"] for page in listed for item in page.get("Contents", ()) if item["Key"].endswith(f"/{name}")]
        return self._document(keys[0]) if keys else None

    def _looks(self, limit_s: float) -> Iterator[None]:
        """Yields whenever it is time to poll, the last time at the limit."""
        for _ in range(max(1, round(limit_s / _PAUSE_S))):
            yield
            self._sleep(_PAUSE_S)
        yield


def _lines(client: Any, group: str, run_id: str) -> Iterator[str]:
    pages = client.get_paginator("filter_log_events")
    try:
        for page in pages.paginate(logGroupName=group, filterPattern=f'"{run_id}"'):
            yield from (event["message"] for event in page["events"])
    except client.exceptions.ResourceNotFoundException:
        return  # the function was never called
