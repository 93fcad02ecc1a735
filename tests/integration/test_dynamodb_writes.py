"""Conditional writes of the state table whose answer is lost or late (rule 159)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.errors import LeaseLost
from icekeeper.state.dynamodb.items import Item
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.dynamodb.table import DynamoTable
from local_stack.moto_server import MotoServer
from support.state_stores import a_table, counted, lost_answers


@pytest.fixture
def table(moto_dynamodb: MotoServer) -> DynamoTable:
    return a_table(moto_dynamodb)


def one_more(calls: list[Any]) -> Any:
    def decide(found: Item | None) -> Item:
        calls.append(found)
        return {"count": 1 if found is None else found["count"] + 1}

    return decide


def test_an_item_that_is_made_is_a_transaction_and_one_that_is_replaced_a_single_write(table: DynamoTable) -> None:
    with counted(table) as asked:
        table.change("p", "s", one_more([]))
        table.change("p", "s", one_more([]))
        table.change("p", "s", lambda found: {})
    assert asked == ["GetItem", "TransactWriteItems", "GetItem", "PutItem", "GetItem", "TransactWriteItems"]


def test_a_replacement_is_counted_once_although_its_answer_was_lost(table: DynamoTable) -> None:
    calls: list[Any] = []
    table.change("p", "s", one_more([]))
    with lost_answers(table, "PutItem") as sent:
        assert table.change("p", "s", one_more(calls)) is True
    assert (len(sent), len(calls)) == (2, 1)
    assert (table.get("p", "s") or {})["count"] == 2


def test_a_replacement_that_another_one_forestalled_is_decided_anew(table: DynamoTable) -> None:
    table.change("p", "s", one_more([]))
    calls: list[Any] = []

    def forestalled(found: Item | None) -> Item:
        if not calls:
            table.change("p", "s", one_more([]))
        calls.append(found)
        assert found is not None
        return {"count": found["count"] + 1}

    assert table.change("p", "s", forestalled) is True
    assert len(calls) == 2
    assert (table.get("p", "s") or {})["count"] == 3


def test_a_lease_is_prolonged_once_although_the_answer_was_lost(table: DynamoTable) -> None:
    leases = DynamoStateStore(table).leases
    lease = leases.acquire("fleet", "a", now_ms=0, ttl_ms=100, name="ns.t")
    with lost_answers(table, "UpdateItem") as sent, counted(table) as asked:
        assert leases.renew(lease, now_ms=50, ttl_ms=100).expires_ms == 150
    assert (len(sent), asked) == (2, ["UpdateItem"])
    held = leases.current("fleet", now_ms=149)
    assert held is not None
    assert (held.holder, held.name) == ("a", "ns.t")


def test_prolonging_never_shortens_and_a_lease_of_another_one_is_lost(table: DynamoTable) -> None:
    leases = DynamoStateStore(table).leases
    lease = leases.acquire("fleet", "a", now_ms=0, ttl_ms=100)
    assert leases.renew(lease, now_ms=0, ttl_ms=10).expires_ms == 100
    leases.acquire("fleet", "b", now_ms=100, ttl_ms=100)
    with pytest.raises(LeaseLost, match="b took it"):
        leases.renew(lease, now_ms=100, ttl_ms=500)
    with pytest.raises(LeaseLost, match="it was released"):
        leases.renew(replace(lease, key="another"), now_ms=0, ttl_ms=1)


def test_a_request_that_lands_late_makes_no_item_again(table: DynamoTable) -> None:
    """The first request reaches DynamoDB behind its repetition, when the lease has been given back."""
    leases = DynamoStateStore(table).leases
    with lost_answers(table, "TransactWriteItems") as sent:
        lease = leases.acquire("fleet", "a", now_ms=0, ttl_ms=1_000_000)
    assert leases.release(lease)
    request = json.loads(sent[0])
    table.client.transact_write_items(
        TransactItems=request["TransactItems"], ClientRequestToken=request["ClientRequestToken"]
    )
    assert leases.current("fleet", now_ms=0) is None
