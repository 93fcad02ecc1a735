"""What every state store does; parametrised over all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import UNTIL_REMOVED_MS, Glance, LastSeen, LoadState, PassRecord, Pin, PinKind, StagedLoad
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, WITHOUT_UUID, OpenStore

BIG_SNAPSHOT_ID = 2**63 - 1


def a_pass(run_id: str, finished_ms: int, identity: TableIdentity = IDENTITY) -> PassRecord:
    return PassRecord(
        identity=identity,
        run_id=run_id,
        started_ms=finished_ms - 5,
        finished_ms=finished_ms,
        status="succeeded",
        summary="compact: compacted 15 files into 3 (across 3 bins)",
        metrics={"compact.files_merged": 15, "compact.ratio": 0.5},
        engine="local",
    )


def a_pin(name: str, expires_ms: int, identity: TableIdentity = IDENTITY) -> Pin:
    return Pin(
        identity=identity,
        name=name,
        snapshot_id=BIG_SNAPSHOT_ID,
        metadata_location="s3://bucket/t/metadata/v1.metadata.json",
        expires_ms=expires_ms,
        kind=PinKind.JOB,
    )


def seen(finished_ms: int, *, idle: bool = True) -> LastSeen:
    return LastSeen(snapshot_id=BIG_SNAPSHOT_ID, fingerprint="f", finished_ms=finished_ms, idle=idle)


def test_an_empty_store_knows_nothing(open_store: OpenStore) -> None:
    store = open_store()
    assert store.history(IDENTITY) == ()
    assert store.pins(IDENTITY, now_ms=0) == ()
    assert store.last_seen(IDENTITY) is None
    assert store.remove_pin(IDENTITY, "p") is False


def test_the_journal_returns_passes_newest_first(open_store: OpenStore) -> None:
    for record in (a_pass("b", 20), a_pass("c", 30), a_pass("a", 10)):
        open_store().record_pass(record)
    assert open_store().history(IDENTITY) == (a_pass("c", 30), a_pass("b", 20), a_pass("a", 10))
    assert open_store().history(IDENTITY, limit=1) == (a_pass("c", 30),)


def test_recording_a_run_again_replaces_its_record(open_store: OpenStore) -> None:
    """A retried report must not show one pass twice."""
    store = open_store()
    store.record_pass(a_pass("a", 10))
    store.record_pass(replace(a_pass("a", 10), status="partial"))
    assert store.history(IDENTITY) == (replace(a_pass("a", 10), status="partial"),)


def test_pins_hold_until_they_expire(open_store: OpenStore) -> None:
    """``expires_ms`` is the first millisecond at which a pin no longer holds."""
    store = open_store()
    store.add_pin(a_pin("late", 200))
    store.add_pin(a_pin("early", 100))
    assert open_store().pins(IDENTITY, now_ms=99) == (a_pin("early", 100), a_pin("late", 200))
    assert store.pins(IDENTITY, now_ms=100) == (a_pin("late", 200),)
    assert store.pins(IDENTITY, now_ms=200) == ()


def test_adding_a_pin_again_prolongs_it(open_store: OpenStore) -> None:
    store = open_store()
    store.add_pin(a_pin("p", 100))
    store.add_pin(replace(a_pin("p", 300), tag="p"))
    assert store.pins(IDENTITY, now_ms=0) == (replace(a_pin("p", 300), tag="p"),)


def test_a_pin_for_a_lost_ref_holds_until_it_is_removed(open_store: OpenStore) -> None:
    pin = replace(a_pin("lost:v1 ü@7", UNTIL_REMOVED_MS), kind=PinKind.LOST_REF)
    open_store().add_pin(pin)
    assert open_store().pins(IDENTITY, now_ms=UNTIL_REMOVED_MS - 1) == (pin,)
    assert open_store().remove_pin(IDENTITY, pin.name) is True


def test_a_removed_pin_is_gone(open_store: OpenStore) -> None:
    store = open_store()
    store.add_pin(a_pin("p", 100))
    assert store.remove_pin(IDENTITY, "p") is True
    assert store.pins(IDENTITY, now_ms=0) == ()
    assert store.remove_pin(IDENTITY, "p") is False


def test_the_last_pass_is_remembered_whatever_order_reports_arrive_in(open_store: OpenStore) -> None:
    store = open_store()
    store.remember(IDENTITY, seen(20))
    store.remember(IDENTITY, seen(10, idle=False))
    assert store.last_seen(IDENTITY) == seen(20)
    store.remember(IDENTITY, seen(30, idle=False))
    assert open_store().last_seen(IDENTITY) == seen(30, idle=False)


def test_clusterings_are_remembered_by_recipe_for_good(open_store: OpenStore) -> None:
    """A snapshot may be recorded twice, and under several recipes (its files are then known under each)."""
    store = open_store()
    assert store.clustered_snapshots(IDENTITY, "sort(1)") == frozenset()
    for snapshot_id, recipe in ((BIG_SNAPSHOT_ID, "sort(1)"), (4, "sort(1)"), (4, "sort(1)"), (4, "zorder(1, 2)")):
        store.record_clustering(IDENTITY, snapshot_id, recipe)
    assert open_store().clustered_snapshots(IDENTITY, "sort(1)") == {4, BIG_SNAPSHOT_ID}
    assert open_store().clustered_snapshots(IDENTITY, "zorder(1, 2)") == {4}


def test_a_table_without_snapshots_can_be_remembered(open_store: OpenStore) -> None:
    store = open_store()
    store.remember(IDENTITY, replace(seen(1), snapshot_id=None))
    assert store.last_seen(IDENTITY) == replace(seen(1), snapshot_id=None)


def test_a_glance_tells_what_detection_asks(open_store: OpenStore) -> None:
    store = open_store()
    assert store.glance(IDENTITY, now_ms=0) == Glance((), None, ())
    for name, expires_ms in (("z", 300), ("late", 200), ("early", 100)):
        store.add_pin(a_pin(name, expires_ms))
    store.remember(IDENTITY, seen(1))
    loads = tuple(
        store.staging.stage(
            StagedLoad(identity=IDENTITY, name=name, state=state, prefixes=("s3://b/in",), changed_ms=5, expires_ms=9),
            [f"s3://b/{number}" for number in range(count)],
        )
        for name, state, count in (("a", LoadState.FAILED, 3), ("b", LoadState.PENDING, 0))
    )
    store.record_pass(a_pass("run", 10))
    store.record_clustering(IDENTITY, 4, "sort(1)")
    now = Glance((a_pin("late", 200), a_pin("z", 300)), seen(1), loads)
    assert open_store().glance(IDENTITY, now_ms=100) == now
    for other in OTHERS.values():
        assert open_store().glance(other, now_ms=0) == Glance((), None, ())


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_tables_share_nothing(open_store: OpenStore, other: TableIdentity) -> None:
    store = open_store()
    store.record_pass(a_pass("a", 10))
    store.add_pin(a_pin("p", 100))
    store.remember(IDENTITY, seen(1))
    store.record_clustering(IDENTITY, 4, "sort(1)")
    assert store.clustered_snapshots(other, "sort(1)") == frozenset()
    assert store.history(other) == ()
    assert store.pins(other, now_ms=0) == ()
    assert store.last_seen(other) is None
    assert store.remove_pin(other, "p") is False
    assert store.pins(IDENTITY, now_ms=0) == (a_pin("p", 100),)


@pytest.mark.parametrize("called", SPELLINGS.values(), ids=SPELLINGS)
def test_a_table_is_the_same_whatever_it_is_called(open_store: OpenStore, called: TableIdentity) -> None:
    store = open_store()
    store.record_pass(a_pass("a", 10))
    store.add_pin(a_pin("p", 100))
    store.remember(IDENTITY, seen(1))
    store.record_clustering(IDENTITY, 4, "sort(1)")
    assert store.glance(called, now_ms=0) == Glance((a_pin("p", 100, called),), seen(1), ())
    assert store.last_seen(called) == seen(1)
    assert store.history(called) == (a_pass("a", 10, called),)
    assert store.clustered_snapshots(called, "sort(1)") == {4}
    store.add_pin(a_pin("p", 200, called))
    assert store.pins(IDENTITY, now_ms=0) == (a_pin("p", 200),), "prolonged under the other name"
    assert store.remove_pin(called, "p") is True
    assert store.pins(IDENTITY, now_ms=0) == ()


def test_a_copy_shares_what_protects_and_nothing_else(open_store: OpenStore) -> None:
    """By its UUID alone it could be the table itself, moved: too much is protected, never too little."""
    store = open_store()
    store.record_pass(a_pass("a", 10))
    store.add_pin(a_pin("p", 100))
    store.remember(IDENTITY, seen(1))
    store.record_clustering(IDENTITY, 4, "sort(1)")
    assert store.glance(COPY, now_ms=0) == Glance((a_pin("p", 100, COPY),), None, ())
    assert store.pins(COPY, now_ms=0) == (a_pin("p", 100, COPY),)
    assert (store.history(COPY), store.last_seen(COPY)) == ((), None)
    assert store.clustered_snapshots(COPY, "sort(1)") == frozenset()
    store.remember(COPY, seen(9, idle=False))
    assert (store.last_seen(IDENTITY), store.last_seen(COPY)) == (seen(1), seen(9, idle=False))


def test_a_table_without_a_uuid_is_its_location(open_store: OpenStore) -> None:
    store = open_store()
    store.add_pin(a_pin("p", 100, WITHOUT_UUID))
    store.remember(WITHOUT_UUID, seen(1))
    renamed = replace(WITHOUT_UUID, catalog="D", warehouse="w", table=TableName(("ns",), "renamed"))
    assert store.glance(renamed, now_ms=0) == Glance((a_pin("p", 100, renamed),), seen(1), ())
    elsewhere = replace(WITHOUT_UUID, location="s3://bucket/elsewhere", catalog="D")
    assert store.glance(elsewhere, now_ms=0) == Glance((), None, ())


def test_many_writers_at_once_lose_nothing(open_store: OpenStore) -> None:
    def write(number: int) -> None:
        open_store().record_pass(a_pass(f"run-{number}", number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert [record.finished_ms for record in open_store().history(IDENTITY)] == list(range(39, -1, -1))
