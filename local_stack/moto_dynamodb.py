"""Adds to moto what DynamoDB guarantees: requests are executed one after the other, and transactions have tokens."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import RLock
from types import SimpleNamespace
from typing import Any
from unittest import mock

from moto.core.responses import ActionResult
from moto.dynamodb import models
from moto.dynamodb.models.table import Table
from moto.dynamodb.responses import DynamoHandler

_NO_COPY_OF_TABLES = SimpleNamespace(deepcopy=lambda found: found if isinstance(found, Table) else copy.deepcopy(found))


@contextmanager
def dynamodb_that_keeps_its_promises() -> Iterator[None]:
    """While it lasts, moto's threads take turns, and a transaction that comes again with its token is not repeated."""
    lock = RLock()
    landed: set[str] = set()
    take_turns, transact = DynamoHandler.call_action, DynamoHandler.transact_write_items
    query_all = Table.query

    def call_action(handler: DynamoHandler) -> Any:
        with lock:
            return take_turns(handler)

    def transact_write_items(handler: DynamoHandler) -> ActionResult:
        token = handler.body.get("ClientRequestToken")
        if token in landed:
            return ActionResult({})
        # moto copies all tables, so that it can undo the first actions of a transaction whose later ones fail.
        is_single = len(handler.body["TransactItems"]) == 1
        with mock.patch.object(models, "copy", _NO_COPY_OF_TABLES) if is_single else nullcontext():
            answer = transact(handler)
        landed.add(token)
        return answer

    def query(table: Table, hash_key: Any, *given: Any, **named: Any) -> Any:
        found = table.items.get(hash_key, {}).values()  # moto sorts the items of all partitions
        with mock.patch.object(table, "all_items", partial(list, found)):
            return query_all(table, hash_key, *given, **named)

    with (
        mock.patch.object(Table, "query", query),
        mock.patch.object(DynamoHandler, "call_action", call_action),
        mock.patch.object(DynamoHandler, "transact_write_items", transact_write_items),
    ):
        yield
