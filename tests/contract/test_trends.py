"""Every state store: the rows of a table's trend, their thinning, and their size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.items import Item
from icekeeper.state.store import StateStore
from icekeeper.state.trends import TrendRow, TrendStore, trend_row
from local_stack.moto_server import MotoServer
from support.state_stores import IDENTITY, OpenStore, a_table, stored, trend_rows

DAY_MS = 24 * HOUR_MS
START_MS = 20_340 * DAY_MS  # the first millisecond of a day
OTHER = replace(IDENTITY, table=TableName(("ns",), "other"), uuid="uuid-2")


def a_row(observed_ms: int) -> TrendRow:
    return TrendRow(observed_ms=observed_ms, data_files=observed_ms % 97, bytes=2**60 + 1)


def record(store: TrendStore, times_ms: Iterable[int], identity: TableIdentity = IDENTITY) -> None:
    before: int | None = None
    for at in times_ms:
        store.record([(identity, a_row(at), before)])
        before = at


def test_a_row_has_selected_counters_within_the_range_of_a_long() -> None:
    counters = {"lake_data_files": 14.6, "lake_bytes": 2**70, "lake_delete_files": -1, "lake_refs": 3}
    assert trend_row(5, counters) == TrendRow(observed_ms=5, data_files=15, bytes=2**63 - 1, delete_files=0)


def test_rows_are_returned_oldest_first(open_store: OpenStore) -> None:
    assert trend_rows(open_store().trends, IDENTITY) == []
    times = [START_MS + DAY_MS * n for n in (0, 5, 30)]
    record(open_store().trends, times)
    record(open_store().trends, [START_MS], OTHER)
    assert trend_rows(open_store().trends, IDENTITY) == [*map(a_row, times)]
    open_store().trends.forget(IDENTITY)
    assert trend_rows(open_store().trends, IDENTITY) == []
    assert trend_rows(open_store().trends, OTHER) == [a_row(START_MS)]


def test_the_first_row_of_each_of_sixty_days_is_kept(open_store: OpenStore) -> None:
    """Rows twice in each of two hours a day for ten weeks."""
    times = [
        START_MS + day * DAY_MS + hour * HOUR_MS + minute
        for day in range(70)
        for hour in (3, 23)
        for minute in (1, HOUR_MS // 2)
    ]
    store = open_store().trends
    record(store, times)
    firsts = [START_MS + day * DAY_MS + 3 * HOUR_MS + 1 for day in range(10, 70)]
    assert trend_rows(store, IDENTITY) == [*map(a_row, firsts)]


def test_an_older_row_is_kept_until_a_later_one_takes_its_place(open_store: OpenStore) -> None:
    store = open_store().trends
    record(store, [START_MS + day * DAY_MS for day in (0, 1, 200, 240)])
    assert [row.observed_ms for row in trend_rows(store, IDENTITY)] == [
        START_MS + day * DAY_MS for day in (1, 200, 240)
    ]


def test_tables_of_a_catalog_are_read_together(open_store: OpenStore) -> None:
    store = open_store().trends
    record(store, [START_MS, START_MS + DAY_MS])
    record(store, [START_MS + DAY_MS], OTHER)
    never_seen = replace(IDENTITY, uuid="uuid-3")
    assert store.of_catalog([IDENTITY, OTHER, never_seen]) == {
        IDENTITY: [a_row(START_MS), a_row(START_MS + DAY_MS)],
        OTHER: [a_row(START_MS + DAY_MS)],
    }


def size_of(item: Item) -> int:
    """Bytes of an item as DynamoDB counts them: names and text as UTF-8, a number as half its digits plus two."""
    return sum(
        len(name) + (len(value["S"].encode()) if "S" in value else (len(value["N"]) + 1) // 2 + 2)
        for name, value in item.items()
    )


def test_a_row_has_at_most_160_bytes_and_one_write(moto_dynamodb: MotoServer) -> None:
    """For the largest row of a table with a long name; a write of up to 1 KB costs one unit (docs/costs.md)."""
    table = a_table(moto_dynamodb)
    store = StateStore(table).trends
    identity = replace(
        IDENTITY, catalog=CatalogId("C", "s3://" + "w" * 500), table=TableName(("n" * 255,) * 3, "t" * 255)
    )
    largest = {each.name: 2**63 - 1 for each in fields(TrendRow) if each.name != "observed_ms"}
    units = []

    def note(params: dict[str, Any], **_: object) -> None:
        units.append(sum(len(requests) for requests in params["RequestItems"].values()))

    event = "provide-client-params.dynamodb.BatchWriteItem"
    table.client.meta.events.register(event, note)
    try:
        before = None
        for at in (START_MS, START_MS + 1, START_MS + HOUR_MS, START_MS + DAY_MS):
            store.record([(identity, TrendRow(observed_ms=at, **largest), before)])
            before = at
    finally:
        table.client.meta.events.unregister(event, note)  # other tests use the client
    assert units == [1, 1]
    sizes = {size_of(item) for item in stored(table)}
    assert max(sizes) <= 160, sizes
