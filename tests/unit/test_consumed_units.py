"""Request units of DynamoDB are counted as its answers tell them."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from icekeeper.machine.metering import Amount, Meter
from icekeeper.state.dynamodb.table import count_consumed

KEY = {"pk": {"S": "a"}, "sk": {"S": "b"}}
ACTION = {"Delete": {"TableName": "t", "Key": KEY}}


@pytest.mark.parametrize(
    ("operation", "asked", "answer", "counted"),
    [
        ("get_item", {"Key": KEY}, {"CapacityUnits": 0.5}, {Amount.STATE_READ_UNITS: 500}),
        ("delete_item", {"Key": KEY}, {"CapacityUnits": 3.0}, {Amount.STATE_WRITE_UNITS: 3000}),
        ("delete_item", {"Key": KEY}, None, {Amount.STATE_WRITE_UNITS: 1000}),
        (
            "transact_write_items",
            {"TransactItems": [ACTION]},
            [{"CapacityUnits": 4.0}],
            {Amount.STATE_WRITE_UNITS: 4000},
        ),
        ("transact_write_items", {"TransactItems": [ACTION]}, None, {Amount.STATE_WRITE_UNITS: 2000}),
    ],
)
def test_what_an_answer_tells_is_counted(
    operation: str, asked: dict[str, Any], answer: Any, counted: dict[Amount, int]
) -> None:
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    client, meter = boto3.client("dynamodb", region_name="eu-west-1", **keys), Meter()
    count_consumed(client, meter)
    table = {} if operation.startswith("transact") else {"TableName": "t"}
    sent: list[dict[str, Any]] = []
    client.meta.events.register("before-parameter-build.dynamodb", lambda params, **_: sent.append(dict(params)))
    with Stubber(client) as stub:
        stub.add_response(operation, {} if answer is None else {"ConsumedCapacity": answer})
        getattr(client, operation)(**table, **asked)
    assert sent == [{**table, **asked, "ReturnConsumedCapacity": "TOTAL"}]
    assert meter.take() == counted


def test_an_error_counts_for_nothing() -> None:
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    client, meter = boto3.client("dynamodb", region_name="eu-west-1", **keys), Meter()
    count_consumed(client, meter)
    with Stubber(client) as stub:
        stub.add_client_error("get_item", "ThrottlingException")
        with pytest.raises(client.exceptions.ClientError):
            client.get_item(TableName="t", Key=KEY)
    assert meter.take() == {}
