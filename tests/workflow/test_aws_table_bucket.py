"""A table bucket as AWS has them (DESIGN 4): objects are neither listed nor deleted, its own maintenance may be on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icekeeper.model import TableName
from icekeeper.operations.table_handle import identity_of
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from support.aws_table_bucket import runtime_of_table_bucket
from support.local_lake import POLICY_FILE, told_metrics
from support.local_stack.stack import LocalStack

TABLE = TableName.parse("ns.t")


@pytest.fixture
def bucket(scripted_stack: LocalStack, tmp_path: Path) -> Iterator[Runtime]:
    """``ns.t`` in a table bucket that the stack is deployed for."""
    runtime = runtime_of_table_bucket(scripted_stack.moto, tmp_path, appends=6)
    scripted_stack.stand_in({}, {})
    scripted_stack.put_control("config/pyiceberg.yaml", "catalog: {}\n")
    scripted_stack.put_control("config/policy.yaml", POLICY_FILE)
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": runtime.catalog.warehouse})
    scripted_stack.forget_calls()
    yield runtime
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": ""})


def test_a_pass_skips_what_the_bucket_does_not_allow_and_no_alarm_fires(
    scripted_stack: LocalStack, bucket: Runtime
) -> None:
    execution = scripted_stack.run({})
    assert execution.status == "SUCCEEDED", execution.visits
    assert execution.child.output["status"] == "succeeded"
    identity = identity_of(bucket.catalog, bucket.catalog.load(TABLE))
    (record,) = open_state({"ICEKEEPER_STATE": f"dynamodb://{scripted_stack.template.name('StateTable')}"}).history(
        identity
    )
    assert record.status == "succeeded"
    key = execution.child.visit("Plan").output["plan"]["key"].replace("plan.json", "pass.json")
    outcomes = {part["operation"]: part for part in scripted_stack.control(key)["operations"]}
    assert outcomes["remove_orphans"]["status"] == "skipped"
    print({name: (part["status"], part["summary"]) for name, part in outcomes.items()})
    assert alarms(scripted_stack) == {}


def alarms(stack: LocalStack) -> dict[str, float]:
    """The alarms of the template that fire on what functions told: by metric and dimensions, as CloudWatch would."""
    firing = {}
    for logical_id, alarm in stack.template.resources("AWS::CloudWatch::Alarm"):
        if alarm["Namespace"] != "Icekeeper":
            continue
        dimensions = {one["Name"]: one["Value"] for one in alarm["Dimensions"]}
        total = sum(
            metric.value
            for metric in told_metrics(stack)
            if metric.name == alarm["MetricName"] and metric.dimensions == dimensions
        )
        if total > float(alarm["Threshold"]):
            firing[logical_id] = total
    return firing


def test_the_alarm_of_a_failed_pass_would_fire(scripted_stack: LocalStack, bucket: Runtime) -> None:
    """So that the silence above says something."""

    def drop(event: Any) -> None:
        client = scripted_stack.moto.client("s3tables")
        tables = client.list_tables(tableBucketARN=bucket.catalog.warehouse)["tables"]
        if tables:
            client.delete_table(tableBucketARN=bucket.catalog.warehouse, namespace="ns", name="t")

    scripted_stack.functions["compact_small"].before = drop
    scripted_stack.run({})
    assert list(alarms(scripted_stack)) == ["PassesFailedAlarm"]
