"""Items of the state table that somebody changed by hand: one sentence that names the item (rule 164)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icekeeper.errors import StorageError
from icekeeper.state.claims import TableClaims
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.store import LakeStats, LastSeen, MaintenanceRequest, PassRecord
from local_stack.moto_server import MotoServer
from support.state_stores import IDENTITY, LOAD, PIN, a_table, stored

FOLDERS = frozenset({"s3://b/t/data"})
CLAIMS = TableClaims(
    catalog="c",
    warehouse="w",
    table=IDENTITY.table,
    uuid="u",
    location="s3://b/t",
    folders=FOLDERS,
    data_roots=FOLDERS,
    seen_sequence_number=1,
    seen_ms=1,
)
PASS = PassRecord(identity=IDENTITY, run_id="r", started_ms=1, finished_ms=2, status="failed", summary="", engine="")

READS: dict[str, Callable[[DynamoStateStore], Any]] = {
    "until_ms": lambda store: store.pins(IDENTITY, now_ms=0),
    "kind": lambda store: store.glance(IDENTITY, now_ms=0),
    "state": lambda store: store.staging.loads(IDENTITY),
    "prefixes": lambda store: store.glance(IDENTITY, now_ms=0),
    "list_id": lambda store: store.staging.stage(LOAD, []),
    "paths": lambda store: list(store.staging.files(IDENTITY, LOAD.name)),
    "seen_ms": lambda store: store.last_seen(IDENTITY),
    "metrics": lambda store: store.history(IDENTITY),
    "holder": lambda store: store.leases.current("k", now_ms=0),
    "folders": lambda store: list(store.claims.of_catalog("c", "w")),
    "counters": lambda store: list(store.lake_stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)),
}
"""What reads an attribute, by its name."""
BESIDE = {"until_ms": "kind", "seen_ms": "idle"}
"""What tells the item that is meant from others with such an attribute."""
DAMAGE: dict[str, Callable[[str, dict[str, Any]], None]] = {
    "missing": lambda name, item: item.pop(name),
    "of another type": lambda name, item: item.update({name: {"M": {}}}),
}
PARSED = {"kind", "state", "prefixes", "metrics", "folders", "counters"}


@pytest.fixture(scope="module")
def filled(moto_server: MotoServer) -> DynamoTable:
    table = a_table(moto_server)
    store = DynamoStateStore(table)
    store.add_pin(PIN)
    store.staging.stage(LOAD, ["s3://b/f"])
    store.remember(IDENTITY, LastSeen(snapshot_id=1, fingerprint="f", finished_ms=1, idle=True))
    store.record_pass(PASS)
    store.requests.file(MaintenanceRequest(identity=IDENTITY, requested_ms=1, settings={"a": "b"}))
    store.leases.acquire("k", "me", now_ms=0, ttl_ms=9)
    store.claims.record(CLAIMS)
    store.lake_stats.record(
        LakeStats(identity=IDENTITY, observed_ms=1, snapshot_id=1, counters={"n": 1}, warnings={}, policy={})
    )
    return table


def refused(table: DynamoTable, name: str, damage: Callable[[str, dict[str, Any]], None]) -> str:
    """What is told when the item that has the attribute is damaged so; checks that the item is named."""
    item = next(item for item in stored(table) if {name, BESIDE.get(name, name)} <= item.keys())
    changed = dict(item)
    damage(name, changed)
    table.client.put_item(TableName=table.name, Item=changed)
    try:
        with pytest.raises(StorageError) as caught:
            READS[name](DynamoStateStore(table))
    finally:
        table.client.put_item(TableName=table.name, Item=item)
    told = str(caught.value)
    assert told.startswith(f"the item {item['pk']['S']} / {item['sk']['S']} of the state table is damaged (")
    assert "restore it from a backup, or delete it" in told
    return told


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", READS)
def test_a_torn_item_is_told_with_its_key(filled: DynamoTable, name: str, damage: str) -> None:
    READS[name](DynamoStateStore(filled))
    assert name in refused(filled, name, DAMAGE[damage])


@pytest.mark.parametrize("text", ["~", "[" * 5_000], ids=["no JSON", "nested"])
@pytest.mark.parametrize("name", sorted(PARSED))
def test_text_that_says_nothing_is_told_with_its_key(filled: DynamoTable, name: str, text: str) -> None:
    assert refused(filled, name, lambda name, item: item.update({name: {"S": text}}))


def test_attributes_of_others_are_left_alone(filled: DynamoTable) -> None:
    item = next(item for item in stored(filled) if "kind" in item)
    ours = {"price": {"N": "1.5"}, "tags": {"L": [{"S": "x"}]}, "none": {"NULL": True}}
    filled.client.put_item(TableName=filled.name, Item={**item, **ours})
    assert DynamoStateStore(filled).pins(IDENTITY, now_ms=0) == (PIN,)
