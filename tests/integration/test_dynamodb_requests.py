"""Requests to DynamoDB that come twice, meet others, are left over or cannot succeed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.dynamodb.table import DynamoTable, delete_all, get_all, put_all
from icekeeper.state.leases import Lease
from icekeeper.state.store import LoadState, MaintenanceRequest
from local_stack.moto_server import MotoServer
from support.state_stores import IDENTITY, LOAD, a_table, lost_answers, stored


@pytest.fixture
def table(moto_dynamodb: MotoServer) -> DynamoTable:
    return a_table(moto_dynamodb)


def test_a_request_is_claimed_although_the_answer_was_lost(table: DynamoTable) -> None:
    """Else nobody would act on it: it is gone, and whoever took it would be told that another one had."""
    requests = DynamoStateStore(table).requests
    request = MaintenanceRequest(identity=IDENTITY, requested_ms=5)
    requests.file(request)
    with lost_answers(table, "TransactWriteItems") as sent:
        assert requests.claim(request) is True
    assert len(sent) == 2
    assert sent[0] == sent[1], "with the same token"


def test_a_lease_is_taken_renewed_and_released_although_answers_were_lost(table: DynamoTable) -> None:
    leases = DynamoStateStore(table).leases
    with lost_answers(table, "TransactWriteItems"):
        lease = leases.acquire("fleet", "a", now_ms=0, ttl_ms=100)
    assert lease == Lease(key="fleet", holder="a", expires_ms=100)
    with lost_answers(table, "TransactWriteItems"):
        assert leases.renew(lease, now_ms=50, ttl_ms=100).expires_ms == 150
    with lost_answers(table, "TransactWriteItems"):
        assert leases.release(lease) is True


def test_a_record_is_changed_once_although_answers_were_lost(table: DynamoTable) -> None:
    staging = DynamoStateStore(table).staging
    with lost_answers(table, "TransactWriteItems", count=2):
        before = staging.stage(LOAD, ["s3://b/1", "s3://b/2"])
    assert before.file_count == 2
    with lost_answers(table, "TransactWriteItems"):
        assert staging.change(before, replace(before, state=LoadState.FAILED)) is True
    with lost_answers(table, "TransactWriteItems"):
        assert staging.forget(replace(before, state=LoadState.FAILED)) is True
    assert stored(table) == []


class Crowded:
    """A client whose transactions are cancelled or found running for a while; one of the latter has landed."""

    def __init__(self, client: Any, codes: list[str]) -> None:
        self._client = client
        self._codes = codes
        self.get_item, self.query, self.scan, self.put_item = (
            client.get_item,
            client.query,
            client.scan,
            client.put_item,
        )
        self.meta = client.meta

    def transact_write_items(self, **request: Any) -> Any:
        if not self._codes:
            return self._client.transact_write_items(**request)
        code = self._codes.pop()
        if code == "TransactionInProgressException":
            self._client.transact_write_items(**request)
            raise ClientError({"Error": {"Code": code, "Message": ""}}, "TransactWriteItems")
        answer = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": [{"Code": code}]}
        raise ClientError(answer, "TransactWriteItems")


@pytest.mark.parametrize(
    "codes",
    [["TransactionConflict"] * 3, ["ThrottlingError"], ["TransactionInProgressException"]],
    ids=["conflict", "throttled", "running"],
)
def test_a_write_that_met_others_is_tried_again(table: DynamoTable, codes: list[str]) -> None:
    DynamoStateStore(table).requests.file(MaintenanceRequest(identity=IDENTITY, requested_ms=5))
    pauses: list[float] = []
    count = len(codes)
    crowded = DynamoTable(Crowded(table.client, codes), table.name, sleep=pauses.append)
    assert DynamoStateStore(crowded).requests.claim(MaintenanceRequest(identity=IDENTITY, requested_ms=5)) is True
    assert len(pauses) == count


@pytest.mark.parametrize(("code", "count"), [("TransactionConflict", 1000), ("ValidationError", 1)])
def test_a_write_that_cannot_succeed_fails(table: DynamoTable, code: str, count: int) -> None:
    crowded = DynamoTable(Crowded(table.client, [code] * count), table.name, sleep=lambda _: None)
    with pytest.raises(StorageError, match=f"^the state table {table.name} "):
        DynamoStateStore(crowded).leases.acquire("fleet", "a", now_ms=0, ttl_ms=1)
    assert stored(table) == []


class HalfDeaf:
    """A client that takes only the first item of a batch, as often as it has patience."""

    def __init__(self, client: Any, patience: int) -> None:
        self._client = client
        self._patience = patience
        self.meta = client.meta

    def batch_write_item(self, *, RequestItems: dict[str, Any]) -> Any:  # noqa: N803 - boto3's name
        ((name, wanted),) = RequestItems.items()
        count = self._count()
        answer = self._client.batch_write_item(RequestItems={name: wanted[:count]})
        return {**answer, "UnprocessedItems": {name: wanted[count:]} if wanted[count:] else {}}

    def batch_get_item(self, *, RequestItems: dict[str, Any]) -> Any:  # noqa: N803 - boto3's name
        ((name, wanted),) = RequestItems.items()
        keys, count = wanted["Keys"], self._count()
        answer = self._client.batch_get_item(RequestItems={name: {**wanted, "Keys": keys[:count]}})
        return {**answer, "UnprocessedKeys": {name: {**wanted, "Keys": keys[count:]}} if keys[count:] else {}}

    def _count(self) -> int:
        self._patience -= 1
        return 1 if self._patience >= 0 else 100


def test_what_a_batch_left_over_is_sent_again(table: DynamoTable) -> None:
    pauses: list[float] = []
    keys = [("p", f"{number:03d}") for number in range(60)]
    for patience in (3, 1000):
        deaf = DynamoTable(HalfDeaf(table.client, patience), table.name, sleep=pauses.append)
        few = keys if patience == 3 else keys[:20]
        put_all(deaf, ({"pk": pk, "sk": sk} for pk, sk in few))
        assert sorted(item["sk"] for item in get_all(deaf, few)) == [sk for _, sk in few]
        delete_all(deaf, few[1:])
        assert [item["sk"] for item in table.query("p")] == ["000"]
    assert pauses
    assert max(pauses) <= 1.0


def test_a_table_that_does_not_keep_up_says_so(table: DynamoTable) -> None:
    deaf = DynamoTable(HalfDeaf(table.client, 1000), table.name, sleep=lambda _: None)
    with pytest.raises(StorageError, match="does not keep up: items were left unread"):
        list(get_all(deaf, [("p", str(number)) for number in range(90)]))
