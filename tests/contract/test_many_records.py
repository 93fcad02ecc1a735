"""What every store does with many records at once: more than a request of DynamoDB takes, and one thing twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from icekeeper.model import TableName
from icekeeper.policy.due import FIRST_SWEEP
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.store import LakeStats, ScheduleRun
from local_stack.moto_server import MotoServer
from support.state_stores import IDENTITY, OpenStore, a_table

MANY = [replace(IDENTITY, table=TableName(("ns",), f"t{n:02d}"), uuid=f"uuid-{n:02d}") for n in range(60)]


def due(due_ms: int) -> ScheduleRun:
    return ScheduleRun(
        schedule=FIRST_SWEEP, counted_ms=due_ms, finished_ms=0, snapshot_id=None, fingerprint="", idle=False
    )


RUNS = [
    (MANY[0], due(0)),
    (replace(MANY[0], catalog="other"), due(99)),  # a table that two catalogs list
    (MANY[1], replace(due(7), schedule="n")),
    *((one, due(n)) for n, one in enumerate(MANY[1:], 1)),
]
STATS = [LakeStats(identity=one, observed_ms=n, snapshot_id=n, counters={"lake_refs": n}) for n, one in enumerate(MANY)]


def test_the_stats_of_many_tables_are_recorded_at_once(open_store: OpenStore) -> None:
    """(rule 154)"""
    first, *others = STATS
    later = replace(first, observed_ms=99)
    open_store().lake_stats.record(first, later, *others)
    open_store().lake_stats.record()
    assert [*open_store().lake_stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)] == [later, *others]


def test_the_turns_of_many_tables_are_recorded_at_once(open_store: OpenStore) -> None:
    """(rule 154)"""
    open_store().schedules.record_all(RUNS)
    open_store().schedules.record_all([])
    found = [open_store().schedules.of_table(MANY[n]) for n in (0, 1, 30, 59)]
    assert found == [
        {FIRST_SWEEP: due(99)},
        {FIRST_SWEEP: due(1), "n": replace(due(7), schedule="n")},
        {FIRST_SWEEP: due(30)},
        {FIRST_SWEEP: due(59)},
    ]


def test_a_request_takes_25_records_and_none_twice(moto_dynamodb: MotoServer) -> None:
    """(rule 154) DynamoDB refuses a request that names a key twice; moto does only where all of an item is the same."""
    table = a_table(moto_dynamodb)
    store, asked = DynamoStateStore(table), []

    def note(params: dict[str, Any], **_: object) -> None:
        asked.append(
            [
                (one["PutRequest"]["Item"]["pk"]["S"], one["PutRequest"]["Item"]["sk"]["S"])
                for one in params["RequestItems"][table.name]
            ]
        )

    event = "provide-client-params.dynamodb.BatchWriteItem"
    table.client.meta.events.register(event, note)
    try:
        store.lake_stats.record(STATS[0], *STATS)
        store.schedules.record_all(RUNS)
    finally:
        table.client.meta.events.unregister(event, note)  # others use the client, too
    assert [len(set(keys)) for keys in asked] == [25, 25, 10, 25, 25, 11]
