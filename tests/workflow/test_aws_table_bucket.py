"""The stack over a table bucket as on AWS, which may maintain its tables itself and neither lists nor deletes objects
(rule: least-privilege-roles)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.retries.standard import ExponentialBackoff

from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.pipeline.events import Item
from icekeeper.policy.ownership import OWNED_FOR_ALL_TABLES
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from local_stack import moto_s3tables
from local_stack.executions import Execution
from local_stack.limits.faults import FAULTS
from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack
from support.aws_table_bucket import runtime_of_table_bucket
from support.local_lake import POLICY_FILE

TABLE = TableName.parse("ns.t")
COMPACTION, SNAPSHOTS, FILES = (built_in.value for built_in in BuiltIn)
NO_DELETES = "no position delete files eligible for merging"

DONE = ("succeeded", None)
ALL_ON: tuple[dict[str, Any], dict[str, Any]] = (
    {},
    {},
)  # of the table, of the bucket; maintenance that is not named is on
ALL_OFF = ({COMPACTION: {"status": "disabled"}, SNAPSHOTS: {"status": "disabled"}}, {FILES: {"status": "disabled"}})


@pytest.fixture
def bucket(scripted_stack: LocalStack, tmp_path: Path) -> Iterator[Runtime]:
    """``ns.t`` with six small files, in a table bucket that the stack is deployed for."""
    moto_s3tables.PUTS.clear()  # of other stacks
    runtime = runtime_of_table_bucket(scripted_stack.moto, tmp_path, appends=6)
    scripted_stack.start_afresh()
    scripted_stack.put_control("config/pyiceberg.yaml", "")
    scripted_stack.put_control("config/policy.yaml", POLICY_FILE)
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": runtime.catalog.id.warehouse})
    yield runtime
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": ""})
    moto_s3tables.ANSWERS.clear()
    moto_s3tables.PUTS.clear()


def answers(bucket: Runtime, of_table: Mapping[str, Any], of_bucket: Mapping[str, Any]) -> None:
    moto_s3tables.ANSWERS[bucket.catalog.id.warehouse, "ns", "t"] = dict(of_table)
    moto_s3tables.ANSWERS[(bucket.catalog.id.warehouse,)] = dict(of_bucket)


def alarms(stack: LocalStack) -> list[str]:
    """The alarms of the template that fire on the metrics of its functions."""
    firing = []
    for logical_id, alarm in stack.template.resources("AWS::CloudWatch::Alarm"):
        if "MetricName" not in alarm:
            continue  # an expression over metrics of AWS
        dimensions = {item["Name"]: item["Value"] for item in alarm["Dimensions"]}
        name, value = alarm["MetricName"], 0.0
        if alarm["Namespace"] == "Icekeeper":
            value = sum(m.value for m in stack.metrics if m.name == name and m.dimensions == dimensions)
        if value > float(alarm["Threshold"]):
            firing.append(logical_id)
    return firing


def test_a_pass_does_what_the_bucket_allows_and_no_alarm_fires(scripted_stack: LocalStack, bucket: Runtime) -> None:
    """Icekeeper takes over what the bucket has enabled."""
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    ownership: icekeeper\n")
    state = open_state({"ICEKEEPER_STATE": f"dynamodb://{scripted_stack.template.name('StateTable')}"})
    answers(bucket, *ALL_ON)
    execution = scripted_stack.run({"table": "ns.t"})
    assert (execution.status, execution.output["report"]["status"]) == ("SUCCEEDED", "succeeded")
    assert alarms(scripted_stack) == []
    record, *_ = state.history(Item.model_validate(execution.children[0].input["item"]).identity)
    assert (record.run_id, record.status) == (execution.name, "succeeded")
    assert bucket.verify(TABLE).problems == ()
    parts = scripted_stack.document_of_pass(execution, "pass.json")["operations"]
    assert {part["operation"]: (part["status"], part["reason"]) for part in parts} == {
        "compact": DONE,
        "rewrite_position_deletes": ("skipped", NO_DELETES),
        "expire_snapshots": DONE,
        "remove_orphans": ("skipped", OWNED_FOR_ALL_TABLES),
        "rewrite_manifests": DONE,
    }
    assert [kind for _, kind, _ in moto_s3tables.PUTS] == [COMPACTION, SNAPSHOTS]


def test_the_alarms_fire_on_a_failed_pass(
    scripted_stack: LocalStack, bucket: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(bucket, *ALL_OFF)

    def drop(event: Any) -> None:
        client = scripted_stack.moto.client("s3tables")
        tables = client.list_tables(tableBucketARN=bucket.catalog.id.warehouse)["tables"]
        if tables:
            client.delete_table(tableBucketARN=bucket.catalog.id.warehouse, namespace="ns", name="t")

    monkeypatch.setattr(scripted_stack.functions["commit"], "before", drop)
    execution = scripted_stack.run({})
    assert execution.error == "PassesFailed"
    assert alarms(scripted_stack) == ["RunsFailedAlarm"]


# Passes under refusals and faults of AWS (rule: least-privilege-roles, platform: moto-lets-pass).


def test_a_pass_survives_late_rights_throttling_and_the_lost_answer_of_its_commit(
    scripted_stack: LocalStack, bucket: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IAM is eventually consistent: a new right may not hold yet.  In the next run every ninth request is throttled and
    the answer of the commit is lost: the run finds the commit and does not repeat it."""
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.01)
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    ownership: icekeeper\n")

    def compact() -> tuple[Execution, int]:
        """Run the pipeline, verify the table, and count its compactions."""
        execution = scripted_stack.run({"table": "ns.t", "operations": "compact"})
        assert bucket.verify(TABLE).problems == ()
        snapshots = bucket.catalog.load(TABLE).metadata.snapshots.values()
        return execution, sum(item.summary["operation"] == "replace" for item in snapshots)

    with scripted_stack.rights.without("CommitTableBucketsPolicy", "s3tables:PutTableData"):
        execution, rewrites = compact()
    assert (execution.error, rewrites) == ("PassesFailed", 0)
    assert {item.need.action for item in DENIED} == {"s3tables:PutTableData"}
    DENIED.clear()
    with FAULTS.throttling(9), FAULTS.losing_an_answer("PUT", "/metadata-location"):
        execution, rewrites = compact()
    assert FAULTS.throttles > 10
    assert FAULTS.lost == 1
    assert (execution.output["report"]["status"], rewrites) == ("succeeded", 1)


def test_a_missing_key_is_a_403_without_the_right_to_list(scripted_stack: LocalStack) -> None:
    """Only with the right to list the control bucket is its configuration optional."""
    scripted_stack.start_afresh()
    name = scripted_stack.template.name("ControlBucket")
    for key in ("config/policy.yaml", "config/pyiceberg.yaml"):
        scripted_stack.moto.client("s3").delete_object(Bucket=name, Key=key)
    assert scripted_stack.run({}).names == ["Detect", "AnyTables", "NothingToDo"]
    scripted_stack.start_cold()
    with scripted_stack.rights.without("RunPolicy", "s3:ListBucket"):
        execution = scripted_stack.run({})
    assert execution.error == "ReportFailed"  # the report cannot be read either
    assert "cannot be accessed: access is denied to these credentials" in execution.visits[0].errors[0][1]
    assert {item.need.action for item in DENIED} == {"s3:ListBucket"}
    DENIED.clear()
