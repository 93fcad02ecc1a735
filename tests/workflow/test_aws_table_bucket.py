"""A table bucket as AWS has them, and what AWS refuses at times (rule: least-privilege-roles)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.retries.standard import ExponentialBackoff
from moto.core.exceptions import JsonRESTError
from moto.s3tables.responses import S3TablesResponse

from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.pipeline.events import Item
from icekeeper.policy.ownership import OWNED, OWNED_FOR_ALL_TABLES
from icekeeper.runtime import Runtime
from icekeeper.state.open import open_state
from local_stack import moto_s3tables
from local_stack.executions import Execution
from local_stack.limits.faults import FAULTS
from local_stack.moto_server import MotoServer
from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack
from support.aws_table_bucket import runtime_of_table_bucket
from support.local_lake import POLICY_FILE

# A table bucket as AWS has them: objects are neither listed nor deleted, its own
# maintenance may be on.

TABLE = TableName.parse("ns.t")
COMPACTION, SNAPSHOTS, FILES = (built_in.value for built_in in BuiltIn)
BLIND = "objects cannot be listed in this storage; it removes unreferenced files itself"
NO_DELETES = "no position delete files eligible for merging"

DONE = ("succeeded", None)
ALL_ON: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # of the table, of the bucket; what is not said is on
ALL_OFF = (
    {COMPACTION: {"status": "disabled"}, SNAPSHOTS: {"status": "disabled"}},
    {FILES: {"status": "disabled"}},
)


def unknown(action: str) -> tuple[str, str]:
    why = "S3 Tables was refused by the store (AccessDeniedException: not authorized)"
    return "skipped", f"it is unknown whether the table bucket does this itself ({why}); allow s3tables:{action}"


@pytest.fixture
def bucket(scripted_stack: LocalStack, tmp_path: Path) -> Iterator[Runtime]:
    """``ns.t``, six small files, in a table bucket that the stack is deployed for."""
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


def endings(stack: LocalStack, execution: Execution) -> dict[str, tuple[str, str | None]]:
    """How every operation of the only table's pass ended, and the reason if it was skipped."""
    told = stack.document_of_pass(execution, "pass.json")
    return {part["operation"]: (part["status"], part["reason"]) for part in told["operations"]}


def alarms(stack: LocalStack, execution: Execution) -> list[str]:
    """The alarms of the template that fire on what this execution came to and what its functions told."""
    firing = []
    for logical_id, alarm in stack.template.resources("AWS::CloudWatch::Alarm"):
        if "MetricName" not in alarm:
            continue  # of several metrics of AWS's own
        dimensions = {one["Name"]: one["Value"] for one in alarm["Dimensions"]}
        name, value = alarm["MetricName"], 0.0
        if alarm["Namespace"] == "Icekeeper":
            value = sum(m.value for m in stack.metrics if m.name == name and m.dimensions == dimensions)
        elif alarm["Namespace"] == "AWS/States":
            value = float(name == "ExecutionsTimedOut" and execution.status == "TIMED_OUT")
        if value > float(alarm["Threshold"]):
            firing.append(logical_id)
    return firing


@pytest.mark.parametrize(
    ("configured", "ownership", "expected", "switched_off"),
    [
        pytest.param(
            ALL_OFF,
            "auto",
            {
                "compact": DONE,
                "rewrite_position_deletes": ("skipped", NO_DELETES),
                "expire_snapshots": DONE,
                "remove_orphans": ("skipped", BLIND),
                "rewrite_manifests": DONE,
            },
            [],
            id="switched off, so all is ours",
        ),
        pytest.param(
            ALL_ON,
            "auto",
            {
                "compact": ("skipped", OWNED),
                "rewrite_position_deletes": ("skipped", OWNED),
                "expire_snapshots": ("skipped", OWNED),
                "remove_orphans": ("skipped", OWNED),
                "rewrite_manifests": DONE,
            },
            [],
            id="enabled, as AWS begins",
        ),
        pytest.param(
            ALL_ON,
            "icekeeper",
            {
                "compact": DONE,
                "rewrite_position_deletes": ("skipped", NO_DELETES),
                "expire_snapshots": DONE,
                "remove_orphans": ("skipped", OWNED_FOR_ALL_TABLES),
                "rewrite_manifests": DONE,
            },
            [COMPACTION, SNAPSHOTS],
            id="enabled, and taken over",
        ),
        pytest.param(
            None,
            "icekeeper",
            {
                "compact": unknown("GetTableMaintenanceConfiguration"),
                "rewrite_position_deletes": unknown("GetTableMaintenanceConfiguration"),
                "expire_snapshots": unknown("GetTableMaintenanceConfiguration"),
                "remove_orphans": unknown("GetTableBucketMaintenanceConfiguration"),
                "rewrite_manifests": DONE,
            },
            [],
            id="not to be read, so left alone",
        ),
    ],
)
def test_a_pass_does_what_the_bucket_allows_and_no_alarm_fires(
    scripted_stack: LocalStack,
    bucket: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    configured: tuple[dict[str, Any], dict[str, Any]] | None,
    ownership: str,
    expected: dict[str, tuple[str, str | None]],
    switched_off: list[str],
) -> None:
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    ownership: {ownership}\n")
    if configured is None:
        for name in moto_s3tables.OPERATIONS:
            monkeypatch.setattr(S3TablesResponse, name, _denied)
    else:
        answers(bucket, *configured)
    execution = scripted_stack.run({})
    if not execution.children:  # a scan of metadata sees no more than what is ours; a person may still ask
        assert execution.output["reason"] == "0 of 1 table(s) need maintenance"
        assert all(status == "skipped" for name, (status, _) in expected.items() if name != "rewrite_manifests")
        execution = scripted_stack.run({"table": "ns.t"})
    assert (execution.status, execution.output["report"]["status"]) == ("SUCCEEDED", "succeeded")
    assert endings(scripted_stack, execution) == expected
    assert [kind for _, kind, _ in moto_s3tables.PUTS] == switched_off
    assert alarms(scripted_stack, execution) == []
    state = open_state({"ICEKEEPER_STATE": f"dynamodb://{scripted_stack.template.name('StateTable')}"})
    (record,) = state.history(Item.model_validate(execution.children[0].input["item"]).identity)
    assert (record.run_id, record.status) == (execution.name, "succeeded")
    assert bucket.verify(TABLE).problems == ()


def _denied(self: S3TablesResponse) -> Any:
    error = JsonRESTError("AccessDeniedException", "not authorized")
    error.code = 403
    raise error


def test_the_alarms_would_fire(scripted_stack: LocalStack, bucket: Runtime) -> None:
    """So that the silence above says something."""
    answers(bucket, *ALL_OFF)

    def drop(event: Any) -> None:
        client = scripted_stack.moto.client("s3tables")
        tables = client.list_tables(tableBucketARN=bucket.catalog.id.warehouse)["tables"]
        if tables:
            client.delete_table(tableBucketARN=bucket.catalog.id.warehouse, namespace="ns", name="t")

    scripted_stack.functions["compact_small"].before = drop
    execution = scripted_stack.run({})
    assert execution.error == "PassesFailed"
    assert alarms(scripted_stack, execution) == ["PassesFailedAlarm", "RunsFailedAlarm"]


# A pass under what AWS refuses and does at times, at the gate of the local stack
# (rule: least-privilege-roles, platform: moto-lets-pass).


@pytest.fixture
def bucket_to_take_over(scripted_stack: LocalStack, tmp_path: Path) -> Iterator[Runtime]:
    """``ns.t``, three small files, in a table bucket whose maintenance Icekeeper takes over."""
    runtime = runtime_of_table_bucket(scripted_stack.moto, tmp_path, appends=3)
    scripted_stack.start_afresh()
    scripted_stack.put_control("config/pyiceberg.yaml", "")
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    ownership: icekeeper\n")
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": runtime.catalog.id.warehouse})
    yield runtime
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": ""})
    moto_s3tables.ANSWERS.clear()
    moto_s3tables.PUTS.clear()


def compact(stack: LocalStack) -> Any:
    return stack.run({"table": "ns.t", "operations": "compact"})


def rewrites(bucket_to_take_over: Runtime) -> int:
    """How many commits compacted the table, and that it is whole."""
    assert bucket_to_take_over.verify(TABLE).problems == ()
    snapshots = bucket_to_take_over.catalog.load(TABLE).metadata.snapshots.values()
    return sum(one.summary["operation"] == "replace" for one in snapshots)


def test_one_in_nine_requests_is_throttled_and_the_pass_succeeds(
    scripted_stack: LocalStack, bucket_to_take_over: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.01)
    with FAULTS.throttling(9):
        execution = compact(scripted_stack)
    assert FAULTS.throttles > 10
    assert execution.output["report"]["status"] == "succeeded"
    assert rewrites(bucket_to_take_over) == 1


def test_a_commit_whose_answer_was_lost_is_found_and_not_made_again(
    scripted_stack: LocalStack, bucket_to_take_over: Runtime
) -> None:
    with FAULTS.losing_an_answer("PUT", "/metadata-location"):
        execution = compact(scripted_stack)
    assert FAULTS.lost == 1
    assert execution.output["report"]["status"] == "succeeded"
    assert rewrites(bucket_to_take_over) == 1


def test_rights_that_come_later_are_found_by_the_next_run(
    scripted_stack: LocalStack, bucket_to_take_over: Runtime
) -> None:
    """IAM is eventually consistent: what was granted just now may not hold yet."""
    with scripted_stack.rights.without("CommitTableBucketsPolicy", "s3tables:PutTableData"):
        execution = compact(scripted_stack)
    assert execution.error == "PassesFailed"
    assert {one.need.action for one in DENIED} == {"s3tables:PutTableData"}
    DENIED.clear()
    assert rewrites(bucket_to_take_over) == 0
    assert compact(scripted_stack).output["report"]["status"] == "succeeded"
    assert rewrites(bucket_to_take_over) == 1


def test_a_key_that_is_not_there_is_a_403_to_who_may_not_list(scripted_stack: LocalStack) -> None:
    """So the right to list the control bucket is what lets its configuration be optional."""
    scripted_stack.start_afresh()
    name = scripted_stack.template.name("ControlBucket")
    for key in ("config/policy.yaml", "config/pyiceberg.yaml"):
        scripted_stack.moto.client("s3").delete_object(Bucket=name, Key=key)
    assert scripted_stack.run({}).names == ["Detect", "AnyTables", "NothingToDo"]
    scripted_stack.start_cold()
    with scripted_stack.rights.without("RunDocumentsPolicy", "s3:ListBucket"):
        execution = scripted_stack.run({})
    assert execution.error == "ReportFailed"  # it is not told either: its report lies there
    assert "cannot be accessed: access is denied to these credentials" in execution.visits[0].errors[0][1]
    assert {one.need.action for one in DENIED} == {"s3:ListBucket"}
    DENIED.clear()


def test_the_gate_refuses_an_operator_too(bucket_to_take_over: Runtime, moto_server: MotoServer) -> None:
    """It is AWS that refuses, not a policy."""
    s3 = moto_server.client("s3")
    storage, _, key = bucket_to_take_over.catalog.load(TABLE).metadata_location.removeprefix("s3://").partition("/")
    for operation, arguments in (
        ("delete_object", {"Key": key}),
        ("list_objects_v2", {}),
        ("copy_object", {"Key": f"{key}.copy", "CopySource": {"Bucket": storage, "Key": key}}),
    ):
        with pytest.raises(ClientError, match="MethodNotAllowed"):
            getattr(s3, operation)(Bucket=storage, **arguments)
    s3tables = moto_server.client("s3tables")
    address = {"tableBucketARN": bucket_to_take_over.catalog.id.warehouse, "namespace": "ns", "name": "t"}
    token = s3tables.get_table_metadata_location(**address)["versionToken"]
    for location in (f"s3://{storage}/{key}.zst", f"s3://{storage}-2/1.metadata.json"):
        with pytest.raises(ClientError, match="BadRequestException"):
            s3tables.update_table_metadata_location(**address, versionToken=token, metadataLocation=location)
    state = moto_server.client("dynamodb")
    with pytest.raises(ClientError, match="reserved keyword: STATUS"):
        state.scan(TableName="any", ProjectionExpression="pk, status")
