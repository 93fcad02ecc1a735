"""What DynamoDB promises and moto's does not: requests that happen one after the other, and tokens of transactions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock
from typing import Any

import pytest
from moto.core.responses import ActionResult
from moto.dynamodb.responses import DynamoHandler

from icekeeper.state.dynamodb.table import DynamoTable, create_table
from support.moto_server import REGION, MotoServer

__all__ = ["a_table", "dynamodb_that_keeps_its_promises", "state_address"]

_numbers = itertools.count(1)


@contextmanager
def dynamodb_that_keeps_its_promises() -> Iterator[None]:
    """While it lasts, moto's threads take turns, and a transaction that comes again with its token is not repeated."""
    lock = RLock()
    landed: set[str] = set()
    take_turns, transact = DynamoHandler.call_action, DynamoHandler.transact_write_items

    def call_action(handler: DynamoHandler) -> Any:
        with lock:
            return take_turns(handler)

    def transact_write_items(handler: DynamoHandler) -> ActionResult:
        token = handler.body.get("ClientRequestToken")
        if token in landed:
            return ActionResult({})
        answer = transact(handler)
        landed.add(token)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DynamoHandler, "call_action", call_action)
        patch.setattr(DynamoHandler, "transact_write_items", transact_write_items)
        yield


@lru_cache
def _client(server: MotoServer) -> Any:
    return server.client("dynamodb")


def a_table(server: MotoServer) -> DynamoTable:
    """A fresh table, as the stack's template makes it."""
    name = f"state-{next(_numbers)}"
    create_table(_client(server), name)
    return DynamoTable(_client(server), name)


def state_address(server: MotoServer, table: DynamoTable) -> str:
    """What ``ICEKEEPER_STATE`` says to mean it."""
    return f"dynamodb://{table.name}?region={REGION}&endpoint={server.endpoint}"
