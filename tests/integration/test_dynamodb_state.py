"""What is particular to the DynamoDB state store: its limits, what TTL may take, and whose clock counts."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest

from icekeeper.errors import LeaseHeld, StorageError
from icekeeper.machine.clock import HOUR_MS, ServerClock, system_clock
from icekeeper.model import TableName
from icekeeper.state.dynamodb import table as dynamodb_path_lists
from icekeeper.state.dynamodb.items import Item
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.dynamodb.table import DynamoTable, open_table
from icekeeper.state.identity import TableAddress, TableIdentity
from icekeeper.state.store import LakeStats, LastSeen, MaintenanceRequest, PassRecord, StagedLoad
from local_stack.moto_server import REGION, MotoServer
from support.state_stores import IDENTITY, LOAD, PIN, a_table, counted, stored

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def table(moto_dynamodb: MotoServer) -> DynamoTable:
    return a_table(moto_dynamodb)


def test_a_look_at_a_table_is_one_query(table: DynamoTable) -> None:
    store = DynamoStateStore(table)
    store.add_pin(PIN)
    store.remember(IDENTITY, LastSeen(snapshot_id=1, fingerprint="f", finished_ms=1, idle=True))
    store.staging.stage(LOAD, ["s3://b/1"])
    store.record_clustering(IDENTITY, 1, "sort(1)")
    with counted(table) as asked:
        glance = store.glance(IDENTITY, now_ms=0)
    assert asked == ["Query"]
    assert (len(glance.pins), len(glance.loads)) == (1, 1)


def test_a_catalogs_stats_are_read_a_megabyte_at_a_time(table: DynamoTable) -> None:
    store = DynamoStateStore(table).lake_stats
    for number in range(30):
        identity = replace(IDENTITY, table=TableName(("ns",), f"t{number:02d}"))
        policy = {"where": "x" * 60_000}
        store.record(LakeStats(identity=identity, observed_ms=1, snapshot_id=None, counters={}, policy=policy))
    with counted(table) as asked:
        assert len(list(store.of_catalog(IDENTITY.catalog, IDENTITY.warehouse))) == 30
    assert asked == ["Query", "Query"]


def test_long_paths_are_cut_into_parts_that_fit(table: DynamoTable) -> None:
    """A thousand keys as long as S3 allows, which nothing compresses, are more than an item may hold."""
    chance = random.Random(5)
    paths = ["".join(chance.choices(string.printable, k=1024)) for _ in range(1000)]
    staging = DynamoStateStore(table).staging
    staging.stage(LOAD, paths)
    parts = [item["paths"]["B"] for item in stored(table) if "paths" in item]
    assert len(parts) > 1
    assert max(map(len, parts)) < 400_000 - 2048 - 1024
    assert list(chain.from_iterable(staging.files(IDENTITY, "L"))) == paths


def test_a_pass_with_very_much_to_tell_comes_into_the_journal(table: DynamoTable) -> None:
    store = DynamoStateStore(table)
    store.record_pass(
        PassRecord(
            identity=IDENTITY,
            run_id="r",
            started_ms=0,
            finished_ms=1,
            status="failed",
            summary="compact: 🧊" * 100_000,
            engine="local",
        )
    )
    (entry,) = store.history(IDENTITY)
    assert (entry.status, entry.summary[:10], len(entry.summary)) == ("failed", "compact: 🧊", 50_000)


def test_what_is_written_behind_a_removed_record_protects_no_later_one(table: DynamoTable) -> None:
    """The record goes while files are recorded: whoever records them is told, and the next record begins empty."""
    staging = DynamoStateStore(table).staging
    begun: list[StagedLoad] = []

    def files() -> Iterator[str]:
        yield "s3://b/1"
        begun.extend(staging.loads(IDENTITY))
        assert staging.forget(begun[0]) is True

    with pytest.raises(StorageError) as caught:
        staging.stage(LOAD, files())
    assert str(caught.value) == "the record L was removed while its files were recorded: stage it again"
    assert begun == [LOAD], "it protects its folders from the first moment"
    assert stored(table) == []
    assert staging.stage(LOAD, ["s3://b/2"]).file_count == 1
    assert list(staging.files(IDENTITY, "L")) == [["s3://b/2"]]


def test_files_of_a_record_that_was_replaced_are_not_counted_for_the_new_one(table: DynamoTable) -> None:
    """Else the new record would claim files that it does not protect."""
    staging = DynamoStateStore(table).staging

    def files() -> Iterator[str]:
        yield "s3://b/1"
        assert staging.forget(LOAD) is True
        staging.stage(LOAD, ["s3://b/2"])

    with pytest.raises(StorageError, match="stage it again"):
        staging.stage(LOAD, files())
    assert staging.loads(IDENTITY) == (replace(LOAD, file_count=1),)
    assert list(staging.files(IDENTITY, "L")) == [["s3://b/2"]]


def test_a_load_whose_files_could_not_all_be_recorded_protects_those_that_were(
    table: DynamoTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_path_lists, "_PATHS_PER_PART", 1)
    staging = DynamoStateStore(table).staging
    paths = [f"s3://b/{number}" for number in range(30)]

    def files() -> Iterator[str]:
        yield from paths
        raise StorageError("the list of files cannot be read")

    with pytest.raises(StorageError):
        staging.stage(LOAD, files())
    assert staging.loads(IDENTITY) == (LOAD,)
    assert list(chain.from_iterable(staging.files(IDENTITY, "L"))) == paths[:25], "in batches of 25"


def test_names_longer_than_a_key_may_be_are_kept_apart(table: DynamoTable) -> None:
    store = DynamoStateStore(table)
    long = TableIdentity("C", "w" * 3000, TableName(("ns",), "t" * 2000), "u")
    other = replace(long, uuid="v")
    paths = [f"s3://bucket/{'ä' * 900}/{number}" for number in range(3)]
    store.quarantine.see(long, "run-1", paths, now_ms=1)
    assert store.quarantine.counts(long, "run-2", [*paths, f"{paths[0]}0"]) == dict.fromkeys(paths, 1)
    assert store.quarantine.counts(other, "run-2", paths) == {}
    store.quarantine.forget(long, paths[1:])
    assert [entry.path for entry in store.quarantine.sightings(long)] == paths[:1]
    for identity in (long, other):
        store.requests.file(MaintenanceRequest(identity=identity, requested_ms=1))
        store.leases.acquire(identity.lease_key, identity.uuid, now_ms=0, ttl_ms=1)
    assert [request.identity for request in store.requests.pending()] == [long, other]


def test_a_path_that_is_no_text_is_refused(table: DynamoTable) -> None:
    with pytest.raises(StorageError) as caught:
        DynamoStateStore(table).quarantine.see(IDENTITY, "run-1", ["\udcff"], now_ms=1)
    assert str(caught.value) == "'/\\udcff' is no text that DynamoDB can keep"


def about(item: Item) -> str:
    """The kinds in its keys, and its name if it has one."""
    kinds = (item[key]["S"].partition("#")[0] for key in ("pk", "sk"))
    return " ".join([*kinds, *item.get("name", {}).values()])


def test_what_decides_anything_never_vanishes_early(table: DynamoTable) -> None:
    """TTL takes what is long past by both clocks, the caller's and the wall's; the rest has none."""
    now_ms = 1_767_225_600_000
    clocked = DynamoTable(table.client, table.name, clock=lambda: now_ms, server_clock=ServerClock())
    store = DynamoStateStore(clocked)
    later_ms = now_ms + 900 * DAY_MS
    store.add_pin(PIN)
    store.add_pin(replace(PIN, name="q", expires_ms=later_ms))
    store.leases.acquire("old", "a", now_ms=0, ttl_ms=1)
    store.leases.acquire("new", "a", now_ms=later_ms, ttl_ms=1000)
    store.record_pass(
        PassRecord(
            identity=IDENTITY, run_id="r", started_ms=0, finished_ms=1, status="succeeded", summary="", engine="local"
        )
    )
    store.staging.stage(LOAD, ["s3://b/1"])
    store.remember(IDENTITY, LastSeen(snapshot_id=1, fingerprint="f", finished_ms=1, idle=True))
    store.record_clustering(IDENTITY, 1, "sort(1)")
    store.requests.file(MaintenanceRequest(identity=IDENTITY, requested_ms=1))
    kept = {
        about(item): int(item["expires_s"]["N"]) * 1000 - now_ms if "expires_s" in item else None
        for item in stored(table)
    }
    leases = {item["until_ms"]["N"]: item["expires_s"]["N"] for item in stored(table) if item["sk"]["S"] == "lease"}
    assert kept.pop("lease lease") is not None
    assert kept == {
        "table now p": 7 * DAY_MS,
        "table now q": 907 * DAY_MS,
        "copy pass": 400 * DAY_MS,
        "table now L": None,
        "paths 000000001": None,
        "table now": None,
        "copy clustering": None,
        f"requests {IDENTITY.lease_key}": None,
    }
    assert leases == {
        "1": str((now_ms + DAY_MS) // 1000),
        str(later_ms + 1000): str((later_ms + 1000 + DAY_MS) // 1000),
    }


def test_asking_whether_it_can_be_written_records_nothing(table: DynamoTable) -> None:
    DynamoStateStore(table).require_writable()
    assert stored(table) == []


def test_a_table_that_is_not_there_is_named(moto_dynamodb: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    store = DynamoStateStore(open_table(TableAddress("nowhere", REGION, moto_dynamodb.endpoint)))
    for ask in (
        store.require_writable,
        lambda: store.pins(IDENTITY, now_ms=0),
        lambda: store.add_pin(PIN),
        lambda: store.leases.acquire("fleet", "a", now_ms=0, ttl_ms=1),
        lambda: store.staging.stage(LOAD, ["x"]),
        lambda: store.quarantine.see(IDENTITY, "r", ["x"], now_ms=0),
    ):
        with pytest.raises(StorageError) as caught:
            ask()
        assert str(caught.value) == (
            f"the state table nowhere does not exist in {REGION}: deploy the stack that creates it, or correct "
            "ICEKEEPER_STATE"
        )


@pytest.mark.parametrize("ahead_ms", [4 * 24 * HOUR_MS, -4 * 24 * HOUR_MS])
def test_a_wrong_clock_neither_takes_leases_of_others_nor_loses_its_own(table: DynamoTable, ahead_ms: int) -> None:
    """When a lease runs out, the table's own clock says, with the answer that shows it."""

    def wrong_now_ms() -> int:
        return system_clock() + ahead_ms

    right = DynamoStateStore(DynamoTable(table.client, table.name)).leases
    wrong = DynamoStateStore(DynamoTable(table.client, table.name, clock=wrong_now_ms)).leases
    right.acquire("a", "right", now_ms=system_clock(), ttl_ms=HOUR_MS)
    with pytest.raises(LeaseHeld):
        wrong.acquire("a", "wrong", now_ms=wrong_now_ms(), ttl_ms=HOUR_MS)
    assert wrong.current("a", now_ms=wrong_now_ms()) is not None
    lease = wrong.acquire("b", "wrong", now_ms=wrong_now_ms(), ttl_ms=HOUR_MS)
    assert abs(lease.expires_ms - HOUR_MS - system_clock()) < 60_000
    assert abs(wrong.renew(lease, now_ms=wrong_now_ms(), ttl_ms=HOUR_MS).expires_ms - lease.expires_ms) < 60_000
    with pytest.raises(LeaseHeld):
        right.acquire("b", "right", now_ms=system_clock(), ttl_ms=HOUR_MS)
