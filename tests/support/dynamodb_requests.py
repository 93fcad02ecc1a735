"""What reaches DynamoDB: the items of a table, answers lost on their way, operations asked for, and two records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from icekeeper.state.dynamodb.items import Item
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.store import Pin, StagedLoad
from support.state_stores import IDENTITY

LOAD = StagedLoad(identity=IDENTITY, name="L", changed_ms=5)
PIN = Pin(identity=IDENTITY, name="p", snapshot_id=1, metadata_location="m", expires_ms=100)


def stored(table: DynamoTable) -> list[Item]:
    """Every item as DynamoDB has it."""
    pages = table.client.get_paginator("scan").paginate(TableName=table.name)
    return [item for page in pages for item in page["Items"]]


@contextmanager
def lost_answers(table: DynamoTable, operation: str, count: int = 1) -> Iterator[list[bytes]]:
    """The first ``count`` answers to an operation are lost on their way, so that boto3 sends the request again.

    What is yielded are the bodies of all requests for the operation.
    """
    session = table.client._endpoint.http_session
    bodies: list[bytes] = []
    send = session.send

    def lose(request: Any) -> Any:
        answer = send(request)
        if request.headers["X-Amz-Target"].decode().endswith(f".{operation}"):
            bodies.append(request.body)
            if len(bodies) <= count:
                raise ReadTimeoutError(endpoint_url=request.url)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "send", lose)
        yield bodies


@contextmanager
def counted(table: DynamoTable) -> Iterator[list[str]]:
    """The operations that are asked of DynamoDB."""
    asked: list[str] = []

    def note(model: Any, **_: Any) -> None:
        asked.append(model.name)

    table.client.meta.events.register("before-call.dynamodb", note)
    yield asked
    table.client.meta.events.unregister("before-call.dynamodb", note)
