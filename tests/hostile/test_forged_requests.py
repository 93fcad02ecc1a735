"""Records among the requests that nobody filed with Icekeeper: passed over, and no other request waits for them."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.model import TableName
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import MAX_SETTINGS, MaintenanceRequest, requested_table
from local_stack.moto_server import MotoServer
from support.state_stores import IDENTITY, a_table, stored

HONEST = MaintenanceRequest(
    identity=replace(IDENTITY, uuid="uuid-2"), requested_ms=9, settings={"operations": "compact", "where": "k = 'ü'"}
)
VICTIM = MaintenanceRequest(identity=IDENTITY, requested_ms=1, settings={})

FORGED: dict[str, dict[str, Any]] = {
    "time as text": {"requested_ms": "soon"},
    "time of another age": {"requested_ms": 10**30},
    "time before all others": {"requested_ms": -1},
    "settings nested to the limit": {"settings": "[" * 15_000 + "]" * 1_000},
    "settings that are no texts": {"settings": json.dumps({"operations": {"all": True}})},
    "settings in a list": {"settings": "[]"},
    "settings without end": {"settings": json.dumps({"where": "x" * MAX_SETTINGS})},
    "settings that no claim finds": {"settings": '{"b": "1", "a": "2"}'},
    "settings with half a character": {"settings": json.dumps({"where": "\ud800"})},
    "no table name": {"table_name": "t"},
    "escape sequence": {"table_name": "ns.\x1b[2Jt"},
    "line break": {"table_name": "ns.t\nerror: all tables lost"},
    "very long": {"table_name": "ns." + "t" * 5_000},
    "warehouse that fills the memory": {"warehouse": "w" * 100_000},
    "another table": {"uuid": "uuid-of-a-victim"},
}
"""What a forged record says in place of what an honest one does."""


@pytest.mark.parametrize("values", FORGED.values(), ids=FORGED)
def test_a_forged_item_stops_no_other_request(
    moto_server: MotoServer, values: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    table = a_table(moto_server)
    store = DynamoStateStore(table)
    store.requests.file(VICTIM)
    (item,) = stored(table)
    kinds = {name: {"N": str(value)} if isinstance(value, int) else {"S": value} for name, value in values.items()}
    table.client.put_item(TableName=table.name, Item={**item, **kinds})
    store.requests.file(HONEST)
    assert store.requests.pending() == (HONEST,)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told.startswith(
        f"a request is passed over: the item requests#all / {item['sk']['S']} of the state table is "
    )
    store.requests.file(VICTIM)  # an honest one takes its place
    assert store.requests.pending() == (VICTIM, HONEST)


@pytest.mark.parametrize("lacking", ["settings", "requested_ms", "table_name", "uuid", "catalog", "location"])
def test_an_item_that_lacks_something_stops_no_other_request(moto_server: MotoServer, lacking: str) -> None:
    table = a_table(moto_server)
    store = DynamoStateStore(table)
    store.requests.file(VICTIM)
    (item,) = stored(table)
    table.client.put_item(TableName=table.name, Item={name: item[name] for name in item if name != lacking})
    store.requests.file(HONEST)
    assert store.requests.pending() == (HONEST,)


@pytest.mark.parametrize("values", FORGED.values(), ids=FORGED)
def test_a_forged_row_stops_no_other_request(
    tmp_path: Path, values: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStateStore(tmp_path / "state.db")
    store.requests.file(VICTIM)
    ((name, value),) = values.items()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        value = str(value) if isinstance(value, int) and value > 2**63 else value
        connection.execute(f"UPDATE requests SET {name} = ?", (value,))
    store.requests.file(HONEST)
    assert store.requests.pending() == (HONEST,)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told.startswith(f"a request is passed over: the row {IDENTITY.lease_key} of the table requests is damaged (")


@pytest.mark.parametrize("name", ["t", ".t", "ns..t", "ns.", "ns.\x00", "ns.\u202et", "ns.\u2028t", "n\ud800s.t"])
def test_no_request_is_for_such_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="table name"):
        requested_table(name)


def test_honest_names_are_what_they_are() -> None:
    assert requested_table("ns.größe 1/2") == TableName(("ns",), "größe 1/2")
