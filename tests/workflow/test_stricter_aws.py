"""A pass under what AWS refuses and does at times, at the gate of the local stack (rule 143, platform 59)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.retries.standard import ExponentialBackoff

from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from local_stack import moto_s3tables
from local_stack.limits.faults import FAULTS
from local_stack.moto_server import MotoServer
from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack
from support.aws_table_bucket import runtime_of_table_bucket
from support.local_lake import POLICY_FILE

TABLE = TableName.parse("ns.t")


@pytest.fixture
def bucket(scripted_stack: LocalStack, tmp_path: Path) -> Iterator[Runtime]:
    """``ns.t``, three small files, in a table bucket whose maintenance Icekeeper takes over."""
    runtime = runtime_of_table_bucket(scripted_stack.moto, tmp_path, appends=3)
    scripted_stack.start_afresh()
    scripted_stack.put_control("config/pyiceberg.yaml", "")
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    ownership: icekeeper\n")
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": runtime.catalog.warehouse})
    yield runtime
    scripted_stack.start_cold({"ICEKEEPER_TABLE_BUCKETS": ""})
    moto_s3tables.ANSWERS.clear()
    moto_s3tables.PUTS.clear()


def compact(stack: LocalStack) -> Any:
    return stack.run({"table": "ns.t", "operations": "compact"})


def rewrites(bucket: Runtime) -> int:
    """How many commits compacted the table, and that it is whole."""
    assert bucket.verify(TABLE).problems == ()
    snapshots = bucket.catalog.load(TABLE).metadata.snapshots.values()
    return sum(one.summary["operation"] == "replace" for one in snapshots)


def test_one_in_nine_requests_is_throttled_and_the_pass_succeeds(
    scripted_stack: LocalStack, bucket: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0.01)
    with FAULTS.throttling(9):
        execution = compact(scripted_stack)
    assert FAULTS.throttles > 10
    assert execution.child.output["status"] == "succeeded"
    assert rewrites(bucket) == 1


def test_a_commit_whose_answer_was_lost_is_found_and_not_made_again(
    scripted_stack: LocalStack, bucket: Runtime
) -> None:
    with FAULTS.losing_an_answer("PUT", "/metadata-location"):
        execution = compact(scripted_stack)
    assert FAULTS.lost == 1
    assert execution.child.output["status"] == "succeeded"
    assert rewrites(bucket) == 1


def test_rights_that_come_later_are_found_by_the_next_run(scripted_stack: LocalStack, bucket: Runtime) -> None:
    """IAM is eventually consistent: what was granted just now may not hold yet."""
    with scripted_stack.rights.without("CommitTableBucketsPolicy", "s3tables:PutTableData"):
        execution = compact(scripted_stack)
    assert execution.child.output["status"] == "failed"
    assert {one.need.action for one in DENIED} == {"s3tables:PutTableData"}
    DENIED.clear()
    assert rewrites(bucket) == 0
    assert compact(scripted_stack).child.output["status"] == "succeeded"
    assert rewrites(bucket) == 1


def test_a_key_that_is_not_there_is_a_403_to_who_may_not_list(scripted_stack: LocalStack) -> None:
    """So the right to list the control bucket is what lets its configuration be optional."""
    scripted_stack.start_afresh()
    name = scripted_stack.template.name("ControlBucket")
    for key in ("config/policy.yaml", "config/pyiceberg.yaml"):
        scripted_stack.moto.client("s3").delete_object(Bucket=name, Key=key)
    assert scripted_stack.run({}).names == ["Detect", "AnyProposals", "NothingToDo"]
    scripted_stack.start_cold()
    with scripted_stack.rights.without("RunDocumentsPolicy", "s3:ListBucket"):
        execution = scripted_stack.run({})
    assert execution.error == "ReportFailed"  # it is not told either: its report lies there
    assert "must not be accessed with these credentials" in execution.visits[0].errors[0][1]
    assert {one.need.action for one in DENIED} == {"s3:ListBucket"}
    DENIED.clear()


def test_the_gate_refuses_an_operator_too(bucket: Runtime, moto_server: MotoServer) -> None:
    """It is AWS that refuses, not a policy."""
    s3 = moto_server.client("s3")
    storage, _, key = bucket.catalog.load(TABLE).metadata_location.removeprefix("s3://").partition("/")
    for operation, arguments in (
        ("delete_object", {"Key": key}),
        ("list_objects_v2", {}),
        ("copy_object", {"Key": f"{key}.copy", "CopySource": {"Bucket": storage, "Key": key}}),
    ):
        with pytest.raises(ClientError, match="MethodNotAllowed"):
            getattr(s3, operation)(Bucket=storage, **arguments)
    s3tables = moto_server.client("s3tables")
    address = {"tableBucketARN": bucket.catalog.warehouse, "namespace": "ns", "name": "t"}
    token = s3tables.get_table_metadata_location(**address)["versionToken"]
    for location in (f"s3://{storage}/{key}.zst", f"s3://{storage}-2/1.metadata.json"):
        with pytest.raises(ClientError, match="BadRequestException"):
            s3tables.update_table_metadata_location(**address, versionToken=token, metadataLocation=location)
    state = moto_server.client("dynamodb")
    with pytest.raises(ClientError, match="reserved keyword: STATUS"):
        state.scan(TableName="any", ProjectionExpression="pk, status")
