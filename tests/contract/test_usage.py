"""What every store of usage does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from icekeeper.state.store import HourOfUse, hour_of
from support.state_stores import OpenStore


def test_nothing_was_used_at_first(open_store: OpenStore) -> None:
    assert open_store().usage.between("2026-01-01T00", "2026-12-31T23") == ()


def test_what_is_used_within_an_hour_adds_up(open_store: OpenStore) -> None:
    usage = open_store().usage
    usage.add(HourOfUse("2026-11-22T15", {"lambda_calls": 1, "lambda_mb_ms": 2**52}, frozenset({"TablesScanned"})))
    open_store().usage.add(HourOfUse("2026-11-22T15", {"lambda_calls": 2, "store_gets": 7}))
    usage.add(HourOfUse("2026-11-22T15", {}, frozenset({"TablesScanned", "PassesFailed"})))
    assert open_store().usage.between("2026-11-22T15", "2026-11-22T15") == (
        HourOfUse(
            "2026-11-22T15",
            {"lambda_calls": 3, "lambda_mb_ms": 2**52, "store_gets": 7},
            frozenset({"TablesScanned", "PassesFailed"}),
        ),
    )


def test_hours_are_told_in_order_and_no_others(open_store: OpenStore) -> None:
    usage = open_store().usage
    hours = ["2025-12-31T23", "2026-01-01T00", "2026-02-28T23", "2026-03-01T00", "2026-03-01T01"]
    for number, hour in enumerate(hours):
        usage.add(HourOfUse(hour, {"lambda_calls": number + 1}))
    found = usage.between("2026-01-01T00", "2026-03-01T00")
    assert [(one.hour, one.amounts) for one in found] == [
        (hour, {"lambda_calls": number + 1}) for number, hour in list(enumerate(hours))[1:4]
    ]


def test_many_may_add_at_once(open_store: OpenStore) -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: open_store().usage.add(HourOfUse("2026-11-22T15", {"a": 1})), range(20)):
            pass
    assert open_store().usage.between("2026-11-22T15", "2026-11-22T15")[0].amounts == {"a": 20}


def test_nothing_used_is_no_request_that_fails(open_store: OpenStore) -> None:
    open_store().usage.add(HourOfUse("2026-11-22T15", {}))
    assert open_store().usage.between("2026-11-22T15", "2026-11-22T15") == ()


def test_an_hour_is_told_in_utc() -> None:
    assert hour_of(1_795_361_459_999) == "2026-11-22T15"
    assert hour_of(1_795_359_600_000 - 1) == "2026-11-22T14"
