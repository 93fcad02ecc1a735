"""Every state store, and DynamoDB's tables and requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from botocore.exceptions import ReadTimeoutError

from icekeeper.model import CatalogId, TableName
from icekeeper.state import trends
from icekeeper.state.claims import SeenHead, TableClaims
from icekeeper.state.dynamodb.table import DynamoTable, create_table
from icekeeper.state.identity import TableIdentity
from icekeeper.state.items import Item
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.staging import StagedLoad
from icekeeper.state.store import LastSeen, Pin, SeenTable, StateStore
from icekeeper.state.sweeps import SweepKind, SweepRecord
from local_stack.moto_server import REGION, MotoServer

# New state tables in moto's DynamoDB.

_numbers = itertools.count(1)


@lru_cache
def _client(server: MotoServer) -> Any:
    return server.client("dynamodb")


def a_table(server: MotoServer) -> DynamoTable:
    """A new table, as the stack's template creates it."""
    name = f"state-{next(_numbers)}"
    create_table(_client(server), name)
    return DynamoTable(_client(server), name)


def state_address(server: MotoServer, table: DynamoTable) -> str:
    """The value of ``ICEKEEPER_STATE`` for a table."""
    return f"dynamodb://{table.name}?region={REGION}&endpoint={server.endpoint}"


# Every state store, and the tables whose state the contract suites keep in it.

IDENTITY = TableIdentity(
    CatalogId("C", "s3://bucket/"), TableName(("ns", "sub"), "t"), "uuid-1", "s3://bucket/ns/sub/t"
)
WITHOUT_UUID = replace(IDENTITY, uuid="")
CALLED = replace(
    IDENTITY, catalog=CatalogId("D", "s3://bucket"), table=TableName(("NS",), "Renamed"), uuid=IDENTITY.uuid.upper()
)
"""The same table under its name in another catalog."""
COPY = replace(IDENTITY, location="s3://backup/t")
"""A table that shares the UUID, or the table itself after a move."""
OTHERS: Mapping[str, TableIdentity] = {"created anew": replace(IDENTITY, uuid="uuid-2"), "without a UUID": WITHOUT_UUID}
"""Other tables with the same name and location."""

OpenStore: TypeAlias = Callable[[], StateStore]
"""Opens the same store again, as another process does."""


def _sqlite(request: pytest.FixtureRequest) -> OpenStore:
    folder: Path = request.getfixturevalue("tmp_path")
    return lambda: SqliteStateStore(folder / "state" / "state.db")


def _dynamodb(request: pytest.FixtureRequest) -> OpenStore:
    table = a_table(request.getfixturevalue("moto_dynamodb"))
    return lambda: StateStore(table)


STORES: Mapping[str, Callable[[pytest.FixtureRequest], OpenStore]] = {"dynamodb": _dynamodb, "sqlite": _sqlite}
"""Functions that make an empty store; fixtures start servers only when needed."""


def look(finished_ms: int, *, is_done: bool = True, snapshot_id: int | None = 1) -> LastSeen:
    """The record of a pass that took no time."""
    return LastSeen(snapshot_id=snapshot_id, looked_ms=finished_ms, finished_ms=finished_ms, is_done=is_done)


def remember(store: StateStore, identity: TableIdentity, seen: LastSeen, digest: str = "d") -> None:
    """Record a pass without failed operations."""
    store.remember(identity, digest, seen, started_ms=seen.looked_ms, failed={})


def newest_look(store: StateStore, identity: TableIdentity) -> LastSeen | None:
    """The record of the last pass with any digest."""
    seen = store.seen(identity)
    return None if seen is None else max(seen.passes.values(), key=lambda item: item.finished_ms)


def looks(seen: LastSeen, digest: str = "d") -> SeenTable:
    return SeenTable(passes={digest: seen})


def sweep(kind: SweepKind, at_ms: int, *, is_impossible: bool = False) -> SweepRecord:
    return SweepRecord(kind=kind, counted_ms=at_ms, finished_ms=at_ms, is_impossible=is_impossible)


# Items in DynamoDB, lost answers, and three records.

LOAD = StagedLoad(identity=IDENTITY, name="L", changed_ms=5)
CLAIMS = TableClaims(
    catalog=CatalogId("c", "w"),
    table=IDENTITY.table,
    uuid="u",
    location="s3://b/t",
    folders=frozenset({"s3://b/t/data"}),
    data_roots=frozenset({"s3://b/t/data"}),
    seen=SeenHead(metadata_file="s3://b/t/metadata/v1.metadata.json", updated_ms=1, sequence_number=1),
)
PIN = Pin(identity=IDENTITY, name="p", snapshot_id=1, metadata_location="m", expires_ms=100)


def stored(table: DynamoTable) -> list[Item]:
    """Every item as stored in DynamoDB."""
    pages = table.client.get_paginator("scan").paginate(TableName=table.name)
    return [item for page in pages for item in page["Items"]]


@contextmanager
def lost_answers(table: DynamoTable, operation: str, count: int = 1) -> Iterator[list[bytes]]:
    """Lose the first ``count`` answers to an operation, so that boto3 sends the request again.

    Yield the bodies of all requests for the operation.
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


def trend_rows(store: trends.TrendStore, identity: TableIdentity) -> list[trends.TrendRow]:
    """All rows of a table's trend, oldest first."""
    return list(store.of_catalog([identity]).get(identity, ()))
