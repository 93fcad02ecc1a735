"""Every state store, and whose state the contract suites keep in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from icekeeper.model import TableName
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import StateStore
from support.moto_dynamodb import a_table

__all__ = ["IDENTITY", "OTHERS", "STORES", "OpenStore"]

IDENTITY = TableIdentity("C", "s3://bucket/", TableName(("ns", "sub"), "t"), "uuid-1")
OTHERS = (
    replace(IDENTITY, catalog="D"),
    replace(IDENTITY, warehouse="s3://other/"),
    replace(IDENTITY, table=TableName(("ns",), "t")),
    replace(IDENTITY, uuid="uuid-2"),
)
"""Tables that differ from it in one thing only."""

OpenStore: TypeAlias = Callable[[], StateStore]
"""Opens the same store anew, as another process would."""


def _sqlite(request: pytest.FixtureRequest) -> OpenStore:
    folder: Path = request.getfixturevalue("tmp_path")
    return lambda: SqliteStateStore(folder / "state" / "state.db")


def _dynamodb(request: pytest.FixtureRequest) -> OpenStore:
    table = a_table(request.getfixturevalue("moto_dynamodb"))
    return lambda: DynamoStateStore(table)


STORES: Mapping[str, Callable[[pytest.FixtureRequest], OpenStore]] = {"dynamodb": _dynamodb, "sqlite": _sqlite}
"""Each makes an empty store; servers are started by fixtures, and only when they are needed."""
