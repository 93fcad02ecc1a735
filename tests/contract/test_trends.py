"""Every state store: the rows of a table's trend, their thinning, and their size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.items import Item
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import StateStore
from icekeeper.state.trends import TrendRow, TrendStore, trend_row
from local_stack.moto_server import MotoServer
from support.examples import examples
from support.state_stores import IDENTITY, OpenStore, a_table, stored, trend_rows

DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
START_MS = 2900 * WEEK_MS  # the first millisecond of a day and of a week
OTHER = replace(IDENTITY, table=TableName(("ns",), "other"), uuid="uuid-2")


def a_row(observed_ms: int) -> TrendRow:
    return TrendRow(observed_ms=observed_ms, data_files=observed_ms % 97, bytes=2**60 + 1, warnings=0)


def record(store: TrendStore, times_ms: Iterable[int], identity: TableIdentity = IDENTITY) -> None:
    before: int | None = None
    for at in times_ms:
        store.record([(identity, a_row(at), before)])
        before = at


def test_a_row_has_selected_counters_within_the_range_of_a_long() -> None:
    counters = {"lake_data_files": 15, "lake_bytes": 2**70, "lake_delete_files": -1, "lake_average_file_bytes": 7.6}
    assert trend_row(5, {**counters, "lake_refs": 3}, 2) == TrendRow(
        observed_ms=5, data_files=15, bytes=2**63 - 1, delete_files=0, average_file_bytes=8, warnings=2
    )


def test_rows_are_returned_oldest_first(open_store: OpenStore) -> None:
    assert trend_rows(open_store().trends, IDENTITY) == []
    times = [START_MS + DAY_MS * n for n in (0, 5, 30)]
    record(open_store().trends, times)
    record(open_store().trends, [START_MS], OTHER)
    assert trend_rows(open_store().trends, IDENTITY) == [*map(a_row, times)]
    open_store().trends.forget(IDENTITY)
    assert trend_rows(open_store().trends, IDENTITY) == []
    assert trend_rows(open_store().trends, OTHER) == [a_row(START_MS)]


def test_rows_are_thinned_to_days_and_weeks(open_store: OpenStore) -> None:
    """Rows twice in each of two hours a day for ten weeks: the first row of a day and, later, of a week remains."""
    times = [
        START_MS + day * DAY_MS + hour * HOUR_MS + minute
        for day in range(70)
        for hour in (3, 23)
        for minute in (1, HOUR_MS // 2)
    ]
    store = open_store().trends
    record(store, times)
    firsts = [START_MS + day * DAY_MS + 3 * HOUR_MS + 1 for day in range(70)]
    weeks = firsts[0:70:7]
    assert [row.observed_ms for row in trend_rows(store, IDENTITY)] == sorted({*weeks, *firsts[10:]})


def test_a_catalog_is_read_day_by_day_or_week_by_week(open_store: OpenStore) -> None:
    store = open_store().trends
    times = [START_MS + n * DAY_MS // 2 for n in range(140)]
    record(store, times)
    record(store, [START_MS + 65 * DAY_MS], OTHER)
    now_ms = times[-1]
    never_seen = replace(IDENTITY, uuid="uuid-3")
    both = [IDENTITY, OTHER, never_seen]
    days = store.of_catalog(both, START_MS + 60 * DAY_MS, now_ms=now_ms)
    assert {item: [row.observed_ms for row in rows] for item, rows in days.items()} == {
        IDENTITY: [START_MS + day * DAY_MS for day in range(60, 70)],
        OTHER: [START_MS + 65 * DAY_MS],
    }
    weeks = store.of_catalog([IDENTITY], 0, now_ms=now_ms)
    assert [row.observed_ms for row in weeks[IDENTITY]] == [START_MS + week * WEEK_MS for week in range(10)]
    assert store.of_catalog(both, now_ms + 1, now_ms=now_ms) == {}


@given(st.lists(st.integers(1, 40 * DAY_MS), min_size=1, max_size=60))
@settings(max_examples=examples(25), deadline=None)
def test_a_table_has_at_most_164_rows_and_the_first_of_its_newest_day(gaps_ms: list[int]) -> None:
    times, at = [], START_MS
    for gap in gaps_ms:
        at += gap
        times.append(at)
    with TemporaryDirectory() as folder:
        state = SqliteStateStore(Path(folder) / "state.db")
        with state.kept_open():
            record(state.trends, times)
            rows = trend_rows(state.trends, IDENTITY)
    assert len(rows) <= 164
    assert rows[-1] == a_row(next(at for at in times if at // DAY_MS == times[-1] // DAY_MS))


def size_of(item: Item) -> int:
    """Bytes of an item as DynamoDB counts them: names and text as UTF-8, a number as half its digits plus two."""
    return sum(
        len(name) + (len(value["S"].encode()) if "S" in value else (len(value["N"]) + 1) // 2 + 2)
        for name, value in item.items()
    )


def test_a_row_has_at_most_300_bytes_and_at_most_two_writes(moto_dynamodb: MotoServer) -> None:
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
        for at in (START_MS, START_MS + 1, START_MS + HOUR_MS, START_MS + DAY_MS, START_MS + WEEK_MS):
            store.record([(identity, TrendRow(observed_ms=at, **largest), before)])
            before = at
    finally:
        table.client.meta.events.unregister(event, note)  # other tests use the client
    assert units == [2, 1, 2]
    sizes = {size_of(item) for item in stored(table)}
    assert max(sizes) <= 300, sizes
