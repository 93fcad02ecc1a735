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
from support.state_tables import a_table

IDENTITY = TableIdentity("C", "s3://bucket/", TableName(("ns", "sub"), "t"), "uuid-1", "s3://bucket/ns/sub/t")
WITHOUT_UUID = replace(IDENTITY, uuid="")
SPELLINGS: Mapping[str, TableIdentity] = {
    "catalog": replace(IDENTITY, catalog="D"),
    "warehouse": replace(IDENTITY, warehouse="s3://bucket"),
    "renamed": replace(IDENTITY, table=TableName(("ns",), "renamed")),
    "case": replace(IDENTITY, catalog="c", table=TableName(("NS", "SUB"), "T")),
    "uuid in upper case": replace(IDENTITY, uuid="UUID-1"),
}
"""The same table, as others may call it."""
COPY = replace(IDENTITY, location="s3://backup/t")
"""One that shares its UUID, or the table itself after it has moved."""
OTHERS: Mapping[str, TableIdentity] = {
    "created anew": replace(IDENTITY, uuid="uuid-2"),
    "without a UUID": WITHOUT_UUID,
}
"""Other tables of the same name and place."""

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
