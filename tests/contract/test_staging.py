"""What every state store remembers about staged loads; parametrised over all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import pytest

from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LoadOrigin, LoadState, StagedLoad, StagingStore
from icekeeper.state.table_memory import TableMemory
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, OpenStore


def a_load(name: str = "L", identity: TableIdentity = IDENTITY) -> StagedLoad:
    return StagedLoad(identity=identity, name=name, prefixes=("s3://bucket/t/in",), changed_ms=2**40)


def paths(store: StagingStore, name: str = "L", identity: TableIdentity = IDENTITY) -> list[str]:
    return list(chain.from_iterable(store.files(identity, name)))


def test_an_empty_store_knows_no_loads(open_store: OpenStore) -> None:
    store = open_store().staging
    assert store.loads(IDENTITY) == ()
    assert paths(store) == []
    assert store.change(a_load(), a_load()) is False
    assert store.forget(a_load()) is False


def test_a_load_is_recorded_with_its_files_in_order(open_store: OpenStore) -> None:
    files = ["s3://bucket/t/b", "s3://bucket/t/ä b%20?#", "s3://bucket/t/a"]
    recorded = open_store().staging.stage(a_load(), iter(files))
    assert recorded == replace(a_load(), file_count=3)
    assert open_store().staging.loads(IDENTITY) == (recorded,)
    assert paths(open_store().staging) == files


def test_staging_again_adds_files_and_replaces_the_rest(open_store: OpenStore) -> None:
    store = open_store().staging
    store.stage(a_load(), ["s3://bucket/t/a"])
    later = replace(a_load(), prefixes=(), changed_ms=2**41, origin=LoadOrigin.JOB, expires_ms=2**42)
    assert store.stage(later, ["s3://bucket/t/b"]) == replace(later, file_count=2)
    assert store.loads(IDENTITY) == (replace(later, file_count=2),)
    assert paths(store) == ["s3://bucket/t/a", "s3://bucket/t/b"]


def test_loads_come_by_name(open_store: OpenStore) -> None:
    store = open_store().staging
    for name in ("b", "c", "a"):
        store.stage(a_load(name), [f"s3://bucket/t/{name}"])
    assert [load.name for load in store.loads(IDENTITY)] == ["a", "b", "c"]
    assert paths(store, "c") == ["s3://bucket/t/c"]


@pytest.mark.parametrize(
    "elsewhere",
    [{"state": LoadState.FAILED}, {"changed_ms": 5}, {"expires_ms": 5}, {"file_count": 7}],
    ids=["state", "time", "lease", "files"],
)
def test_a_record_that_changed_meanwhile_is_neither_changed_nor_forgotten(
    open_store: OpenStore, elsewhere: dict[str, object]
) -> None:
    """Whoever decided on what a record said must not act when it says something else by now."""
    store = open_store().staging
    recorded = store.stage(a_load(), ["s3://bucket/t/a"])
    stale = replace(recorded, **elsewhere)  # type: ignore[arg-type]
    assert store.change(stale, replace(stale, state=LoadState.ADOPTED)) is False
    assert store.forget(stale) is False
    assert store.loads(IDENTITY) == (recorded,)
    assert paths(store) == ["s3://bucket/t/a"]


def test_a_record_can_be_changed_and_forgotten_as_it_was_read(open_store: OpenStore) -> None:
    store = open_store().staging
    before = store.stage(a_load(), ["s3://bucket/t/a"])
    after = replace(before, state=LoadState.FAILED, changed_ms=7, expires_ms=9)
    assert store.change(before, after) is True
    assert open_store().staging.loads(IDENTITY) == (after,)
    assert paths(store) == ["s3://bucket/t/a"]
    assert store.forget(after) is True
    assert store.loads(IDENTITY) == ()
    assert paths(store) == []


def test_a_hundred_thousand_files_come_some_at_a_time(open_store: OpenStore) -> None:
    store = open_store().staging
    files = [f"s3://bucket/warehouse/ns/t/data/part={n % 100}/0000{n}-of-load.parquet" for n in range(100_000)]
    store.stage(a_load("other"), files[:10])
    assert store.stage(a_load(), (path for path in files)).file_count == 100_000
    chunks = list(open_store().staging.files(IDENTITY, "L"))
    assert max(map(len, chunks)) <= 1000
    assert list(chain.from_iterable(chunks)) == files
    assert store.forget(replace(a_load(), file_count=100_000)) is True
    assert paths(store) == []
    assert paths(store, "other") == files[:10]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_tables_share_no_loads(open_store: OpenStore, other: TableIdentity) -> None:
    store = open_store().staging
    recorded = store.stage(a_load(), ["s3://bucket/t/a"])
    assert store.loads(other) == ()
    assert paths(store, "L", other) == []
    assert store.forget(replace(recorded, identity=other)) is False
    assert store.loads(IDENTITY) == (recorded,)


@pytest.mark.parametrize("called", [*SPELLINGS.values(), COPY], ids=[*SPELLINGS, "moved"])
def test_a_load_is_the_tables_whatever_it_is_called_and_wherever_it_moved(
    open_store: OpenStore, called: TableIdentity
) -> None:
    store = open_store().staging
    before = store.stage(a_load(), ["s3://bucket/t/a"])
    assert store.loads(called) == (replace(before, identity=called),)
    more = store.stage(a_load(identity=called), ["s3://bucket/t/b"])
    assert more.file_count == 2
    assert paths(store) == paths(store, identity=called) == ["s3://bucket/t/a", "s3://bucket/t/b"]
    failed = replace(more, state=LoadState.FAILED)
    assert store.change(more, failed) is True
    assert store.loads(IDENTITY) == (replace(failed, identity=IDENTITY),)
    assert store.forget(failed) is True
    assert (store.loads(IDENTITY), paths(store)) == ((), [])


def test_many_writers_at_once_lose_no_files(open_store: OpenStore) -> None:
    def write(number: int) -> None:
        open_store().staging.stage(a_load(), [f"s3://bucket/t/{number}-{i}" for i in range(5)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    store = open_store().staging
    assert sorted(paths(store)) == sorted(f"s3://bucket/t/{number}-{i}" for number in range(40) for i in range(5))
    assert store.loads(IDENTITY)[0].file_count == 200


def test_what_is_pending_or_adopted_is_protected_and_a_dead_job_is_not(open_store: OpenStore) -> None:
    store, now_ms = open_store(), 1_000
    memory = TableMemory(store, IDENTITY, lambda: now_ms)
    for name, state, expires_ms in (
        ("pending", LoadState.PENDING, None),
        ("adopted", LoadState.ADOPTED, None),
        ("failed", LoadState.FAILED, None),
        ("running", LoadState.PENDING, 1_001),
        ("dead", LoadState.PENDING, 1_000),
    ):
        load = replace(a_load(name), prefixes=(f"s3://bucket/t/{name}",), state=state, expires_ms=expires_ms)
        store.staging.stage(load, [f"s3://bucket/t/file-{name}"])
    kept = ("adopted", "pending", "running")
    assert memory.staged_paths() == tuple(
        path for name in kept for path in (f"s3://bucket/t/{name}", f"s3://bucket/t/file-{name}")
    )
    failures = {load.name: load.failed_since(now_ms) for load in memory.staged_loads()}
    assert failures == {"adopted": None, "dead": 1_000, "failed": 2**40, "pending": None, "running": None}
