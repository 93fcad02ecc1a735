"""State tables in moto's DynamoDB, each a fresh one."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

from icekeeper.state.dynamodb.items import create_table
from icekeeper.state.dynamodb.table import DynamoTable
from local_stack.moto_server import REGION, MotoServer

_numbers = itertools.count(1)


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
