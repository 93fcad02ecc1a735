"""The state in DynamoDB: requests, conditional writes, limits, and damaged items."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from botocore.exceptions import ClientError

from icekeeper.errors import LeaseHeld, StorageError
from icekeeper.machine.clock import HOUR_MS, ServerClock, system_clock
from icekeeper.model import CatalogId, TableName
from icekeeper.state import item_layout
from icekeeper.state.dynamodb.table import DynamoTable, open_table
from icekeeper.state.findings import FileFinding
from icekeeper.state.identity import TableAddress, TableIdentity
from icekeeper.state.items import Item
from icekeeper.state.leases import Lease
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.staging import LoadState, StagedLoad
from icekeeper.state.store import PassRecord, StateStore
from local_stack.moto_server import REGION, MotoServer
from support.proxies import requests_of
from support.state_stores import IDENTITY, LOAD, PIN, a_table, look, lost_answers, remember, stored

# Items of the state table that were changed by hand: the error names the item
# (rule: bad-state-items-stop-readers).  ``test_sqlite_state`` damages every attribute; both stores decode items alike.


@pytest.mark.parametrize(
    ("name", "value", "what", "read"),
    [
        ("until_ms", {"M": {}}, "its until_ms is not a whole number", lambda store: store.pins(IDENTITY, now_ms=0)),
        ("kind", None, "it has no kind", lambda store: store.glance(IDENTITY, now_ms=0)),
        ("kind", {"S": "[" * 5_000}, "'[[[", lambda store: store.pins(IDENTITY, now_ms=0)),
        ("paths", {"S": "~"}, "its paths is not binary", lambda store: list(store.staging.files(IDENTITY, LOAD.name))),
    ],
)
def test_a_torn_item_is_reported_with_its_key(
    table: DynamoTable, name: str, value: Any, what: str, read: Callable[[StateStore], Any]
) -> None:
    store = StateStore(table)
    store.add_pin(PIN)
    store.staging.stage(LOAD, ["s3://b/f"])
    (item,) = (item for item in stored(table) if name in item)
    beside = {"price": {"N": "1.5"}, "tags": {"L": [{"S": "x"}]}, "none": {"NULL": True}}  # attributes of other tools
    table.client.put_item(TableName=table.name, Item={**item, **beside})
    assert read(store)
    changed = {**item, name: value}
    table.client.put_item(TableName=table.name, Item={key: given for key, given in changed.items() if given})
    with pytest.raises(StorageError) as caught:
        read(store)
    message = str(caught.value)
    assert message.startswith(f"the item {item['pk']['S']} / {item['sk']['S']} of the state table is damaged (")
    assert what in message
    assert "restore it from a backup, or delete it" in message


# Requests to DynamoDB that are repeated, conflict, are unprocessed or cannot succeed.


@pytest.fixture
def table(moto_dynamodb: MotoServer) -> DynamoTable:
    return a_table(moto_dynamodb)


def test_writes_count_although_their_answers_were_lost(table: DynamoTable) -> None:
    """A claim that counts as failed would leave its request without a run."""
    store = StateStore(table)
    request = MaintenanceRequest(identity=IDENTITY, requested_ms=5)
    store.requests.file(request)
    with lost_answers(table, "TransactWriteItems") as sent:
        assert store.requests.claim(request) is True
    assert len(sent) == 2
    assert sent[0] == sent[1], "with the same token"

    with lost_answers(table, "TransactWriteItems"):
        lease = store.leases.acquire("fleet", "a", now_ms=0, ttl_ms=100)
    assert lease == Lease(key="fleet", holder="a", expires_ms=100)
    with lost_answers(table, "TransactWriteItems"):
        assert store.leases.renew(lease, now_ms=50, ttl_ms=100).expires_ms == 150
    with lost_answers(table, "TransactWriteItems"):
        assert store.leases.release(lease) is True

    staging = store.staging
    with lost_answers(table, "TransactWriteItems", count=2):
        before = staging.stage(LOAD, ["s3://b/1", "s3://b/2"])
    assert before.file_count == 2
    with lost_answers(table, "TransactWriteItems"):
        assert staging.change(before, replace(before, state=LoadState.FAILED)) is True
    with lost_answers(table, "TransactWriteItems"):
        assert staging.forget(replace(before, state=LoadState.FAILED)) is True
    assert stored(table) == []


class Crowded:
    """A client whose first transactions are cancelled, or land but are reported as in progress."""

    def __init__(self, client: Any, codes: list[str]) -> None:
        self._client = client
        self._codes = codes
        self.get_item, self.query, self.scan, self.put_item = (
            client.get_item,
            client.query,
            client.scan,
            client.put_item,
        )
        self.meta = client.meta

    def transact_write_items(self, **request: Any) -> Any:
        if not self._codes:
            return self._client.transact_write_items(**request)
        code = self._codes.pop()
        if code == "TransactionInProgressException":
            self._client.transact_write_items(**request)
            raise ClientError({"Error": {"Code": code, "Message": ""}}, "TransactWriteItems")
        answer = {"Error": {"Code": "TransactionCanceledException"}, "CancellationReasons": [{"Code": code}]}
        raise ClientError(answer, "TransactWriteItems")


def test_a_conflicting_write_is_retried_and_an_invalid_write_fails(table: DynamoTable) -> None:
    request = MaintenanceRequest(identity=IDENTITY, requested_ms=5)
    for codes in (["TransactionConflict"] * 3, ["ThrottlingError"], ["TransactionInProgressException"]):
        StateStore(table).requests.file(request)
        pauses: list[float] = []
        count = len(codes)
        crowded = DynamoTable(Crowded(table.client, codes), table.name, sleep=pauses.append)
        assert StateStore(crowded).requests.claim(request) is True
        assert len(pauses) == count
    for code, count in (("TransactionConflict", 1000), ("ValidationError", 1)):
        crowded = DynamoTable(Crowded(table.client, [code] * count), table.name, sleep=lambda _: None)
        with pytest.raises(StorageError, match=f"^the state table {table.name} "):
            StateStore(crowded).leases.acquire("fleet", "a", now_ms=0, ttl_ms=1)
        assert stored(table) == []


class HalfDeaf:
    """A client that processes only the first item of its first ``patience`` batches."""

    def __init__(self, client: Any, patience: int) -> None:
        self._client = client
        self._patience = patience
        self.meta = client.meta

    def batch_write_item(self, *, RequestItems: dict[str, Any]) -> Any:  # noqa: N803 - boto3's name
        ((name, wanted),) = RequestItems.items()
        count = self._count()
        answer = self._client.batch_write_item(RequestItems={name: wanted[:count]})
        return {**answer, "UnprocessedItems": {name: wanted[count:]} if wanted[count:] else {}}

    def _count(self) -> int:
        self._patience -= 1
        return 1 if self._patience >= 0 else 100


def test_unprocessed_items_of_a_batch_are_sent_again(table: DynamoTable) -> None:
    pauses: list[float] = []
    keys = [f"{number:03d}" for number in range(60)]
    for patience in (3, 1000):
        deaf = DynamoTable(HalfDeaf(table.client, patience), table.name, sleep=pauses.append)
        few = keys if patience == 3 else keys[:20]
        deaf.put_all({"pk": "p", "sk": sk} for sk in few)
        assert [item["sk"] for item in table.query("p")] == few
        deaf.delete_all("p", few[1:])
        assert [item["sk"] for item in table.query("p")] == ["000"]
    assert pauses
    assert max(pauses) <= 1.0


# The DynamoDB state store: its limits, the items that TTL removes, and the clock of leases.

DAY_MS = 24 * HOUR_MS
JOURNALED = PassRecord(
    identity=IDENTITY, run_id="r", started_ms=0, finished_ms=1, status="succeeded", summary="", engine="local"
)


def test_a_journal_entry_and_a_glance_take_one_request_each(table: DynamoTable) -> None:
    """Only the table's own journal is in the index, which costs another write (docs/costs.md)."""
    store = StateStore(table)
    store.require_writable()
    assert stored(table) == [], "asking whether it can be written records nothing"
    with requests_of(table.client) as calls_sent:
        store.record_pass(JOURNALED)
    assert calls_sent == ["BatchWriteItem"]
    assert sorted(("finished_ms" in item, item["pk"]["S"].partition("#")[0]) for item in stored(table)) == [
        (False, "passes"),
        (True, "copy"),
    ]
    store.add_pin(PIN)
    remember(store, IDENTITY, look(1))
    store.staging.stage(LOAD, ["s3://b/1"])
    store.record_clustering(IDENTITY, 1, "sort(1)")
    with requests_of(table.client) as calls_sent:
        glance = store.glance(IDENTITY, now_ms=0)
    assert calls_sent == ["Query"]
    assert (len(glance.pins), len(glance.loads)) == (1, 1)


def test_a_long_summary_is_cut_and_a_path_that_is_not_text_is_refused(table: DynamoTable) -> None:
    store = StateStore(table)
    store.record_pass(replace(JOURNALED, status="failed", summary="compact: 🧊" * 100_000))
    (entry,) = store.history(IDENTITY)
    assert (entry.status, entry.summary[:10], len(entry.summary)) == ("failed", "compact: 🧊", 50_000)
    file = FileFinding(path="\udcff", why="w", schema_digest="d", tried_ms=1)
    with pytest.raises(StorageError) as caught:
        store.findings.record(IDENTITY, [file])
    assert str(caught.value).endswith("#\\udcff' is not text that the state can store")


def test_long_paths_are_cut_into_parts_that_fit(table: DynamoTable) -> None:
    """A thousand incompressible keys of S3's maximum length are more than an item may hold."""
    chance = random.Random(5)
    paths = ["".join(chance.choices(string.printable, k=1024)) for _ in range(1000)]
    staging = StateStore(table).staging
    staging.stage(LOAD, paths)
    parts = [item["paths"]["B"] for item in stored(table) if "paths" in item]
    assert len(parts) > 1
    assert max(map(len, parts)) < 400_000 - 2048 - 1024
    assert list(chain.from_iterable(staging.files(IDENTITY, "L"))) == paths


def test_files_of_a_removed_or_replaced_record_do_not_count_for_a_later_record(table: DynamoTable) -> None:
    """Otherwise the new record would claim files that it does not protect; the caller stages the load again."""
    staging = StateStore(table).staging
    begun: list[StagedLoad] = []

    def removed() -> Iterator[str]:
        yield "s3://b/1"
        begun.extend(staging.loads(IDENTITY))
        assert staging.forget(begun[0]) is True

    with pytest.raises(StorageError) as caught:
        staging.stage(LOAD, removed())
    assert str(caught.value) == "the record L was removed while its files were recorded: stage it again"
    assert begun == [LOAD], "it protects its folders from the first moment"
    assert stored(table) == []

    def replaced() -> Iterator[str]:
        yield "s3://b/1"
        assert staging.forget(LOAD) is True
        staging.stage(LOAD, ["s3://b/2"])

    with pytest.raises(StorageError, match="stage it again"):
        staging.stage(LOAD, replaced())
    assert staging.loads(IDENTITY) == (replace(LOAD, file_count=1),)
    assert list(staging.files(IDENTITY, "L")) == [["s3://b/2"]]


def test_a_load_that_is_recorded_in_part_protects_its_recorded_files(
    table: DynamoTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_layout, "_PATHS_PER_PART", 1)
    staging = StateStore(table).staging
    paths = [f"s3://b/{number}" for number in range(30)]

    def files() -> Iterator[str]:
        yield from paths
        raise StorageError("the list of files cannot be read")

    with pytest.raises(StorageError):
        staging.stage(LOAD, files())
    assert staging.loads(IDENTITY) == (LOAD,)
    assert list(chain.from_iterable(staging.files(IDENTITY, "L"))) == paths[:25], "in batches of 25"


def test_names_longer_than_a_key_are_kept_apart(table: DynamoTable) -> None:
    store = StateStore(table)
    long = TableIdentity(CatalogId("C", "w" * 3000), TableName(("ns",), "t" * 2000), "u")
    other = replace(long, uuid="v")
    paths = [f"s3://bucket/{'ä' * 900}/{number}" for number in range(3)]
    for number, path in enumerate(paths):
        store.findings.record(long, [FileFinding(path=path, why="w", schema_digest="d", tried_ms=number)])
    assert {path: item.tried_ms for path, item in store.findings.of_table(long).items()} == {
        path: number for number, path in enumerate(paths)
    }
    assert store.findings.of_table(other) == {}
    for identity in (long, other):
        store.requests.file(MaintenanceRequest(identity=identity, requested_ms=1))
        store.leases.acquire(identity.lease_key, identity.uuid, now_ms=0, ttl_ms=1)
    assert [request.identity for request in store.requests.pending()] == [long, other]


def about(item: Item) -> str:
    """The kinds in the keys of an item, and its name if it has any."""
    if item["pk"]["S"].startswith("passes#"):
        return "passes of an hour"
    kinds = (item[key]["S"].partition("#")[0] for key in ("pk", "sk"))
    return " ".join([*kinds, *item.get("name", {}).values()])


def test_ttl_removes_no_record_that_is_still_needed(table: DynamoTable) -> None:
    """TTL removes records that expired long ago by the caller's and by the server's clock; the others have no TTL."""
    now_ms = 1_767_225_600_000
    clocked = DynamoTable(table.client, table.name, clock=lambda: now_ms, server_clock=ServerClock())
    store = StateStore(clocked)
    later_ms = now_ms + 900 * DAY_MS
    store.add_pin(PIN)
    store.add_pin(replace(PIN, name="q", expires_ms=later_ms))
    store.leases.acquire("old", "a", now_ms=0, ttl_ms=1)
    store.leases.acquire("new", "a", now_ms=later_ms, ttl_ms=1000)
    store.record_pass(JOURNALED)
    store.staging.stage(LOAD, ["s3://b/1"])
    remember(store, IDENTITY, look(1))
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
        "passes of an hour": 400 * DAY_MS,
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


def test_an_error_names_a_missing_state_table(moto_dynamodb: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    store = StateStore(open_table(TableAddress("nowhere", REGION, moto_dynamodb.endpoint)))
    for call in (
        store.require_writable,
        lambda: store.pins(IDENTITY, now_ms=0),
        lambda: store.add_pin(PIN),
        lambda: store.leases.acquire("fleet", "a", now_ms=0, ttl_ms=1),
        lambda: store.staging.stage(LOAD, ["x"]),
        lambda: store.pending_deletions.expect(IDENTITY, "r", ["x"]),
    ):
        with pytest.raises(StorageError) as caught:
            call()
        assert str(caught.value) == (
            f"the state table nowhere does not exist in {REGION}: deploy the stack that creates it, or correct "
            "ICEKEEPER_STATE"
        )


def test_a_wrong_clock_neither_takes_other_leases_nor_loses_its_own(table: DynamoTable) -> None:
    """The clock of DynamoDB, from its answers, decides when a lease expires."""
    for name, ahead_ms in (("ahead", 4 * DAY_MS), ("behind", -4 * DAY_MS)):

        def wrong_now_ms(ahead_ms: int = ahead_ms) -> int:
            return system_clock() + ahead_ms

        right = StateStore(DynamoTable(table.client, table.name)).leases
        wrong = StateStore(DynamoTable(table.client, table.name, clock=wrong_now_ms)).leases
        first, second = f"{name}-a", f"{name}-b"
        right.acquire(first, "right", now_ms=system_clock(), ttl_ms=HOUR_MS)
        with pytest.raises(LeaseHeld):
            wrong.acquire(first, "wrong", now_ms=wrong_now_ms(), ttl_ms=HOUR_MS)
        assert wrong.current(first, now_ms=wrong_now_ms()) is not None
        lease = wrong.acquire(second, "wrong", now_ms=wrong_now_ms(), ttl_ms=HOUR_MS)
        assert abs(lease.expires_ms - HOUR_MS - system_clock()) < 60_000
        assert abs(wrong.renew(lease, now_ms=wrong_now_ms(), ttl_ms=HOUR_MS).expires_ms - lease.expires_ms) < 60_000
        with pytest.raises(LeaseHeld):
            right.acquire(second, "right", now_ms=system_clock(), ttl_ms=HOUR_MS)


# Conditional writes of the state table whose answer is lost or late (rule: repeated-writes-count-once).


def add_to_count(calls: list[Any]) -> Any:
    def decide(found: Item | None) -> Item:
        calls.append(found)
        return {"count": 1 if found is None else found["count"] + 1}

    return decide


def test_a_replacement_is_one_write_and_counts_once_if_its_answer_is_lost(table: DynamoTable) -> None:
    """Creating or removing an item takes a transaction."""
    with requests_of(table.client) as calls_sent:
        table.change("p", "s", add_to_count([]))
        table.change("p", "s", add_to_count([]))
        table.change("p", "s", lambda found: {})
    assert calls_sent == ["GetItem", "TransactWriteItems", "GetItem", "PutItem", "GetItem", "TransactWriteItems"]

    calls: list[Any] = []
    table.change("p", "s", add_to_count([]))
    with lost_answers(table, "PutItem") as sent:
        assert table.change("p", "s", add_to_count(calls)) is True
    assert (len(sent), len(calls)) == (2, 1)
    assert (table.get("p", "s") or {})["count"] == 2

    def increment(found: Item | None) -> Item:
        if len(calls) == 1:
            table.change("p", "s", add_to_count([]))
        calls.append(found)
        assert found is not None
        return {"count": found["count"] + 1}

    assert table.change("p", "s", increment) is True
    assert len(calls) == 3, "another replacement came first: it is decided anew"
    assert (table.get("p", "s") or {})["count"] == 4


def test_a_lease_is_extended_by_one_request_although_its_answer_was_lost(table: DynamoTable) -> None:
    leases = StateStore(table).leases
    lease = leases.acquire("fleet", "a", now_ms=0, ttl_ms=100)
    with lost_answers(table, "UpdateItem") as sent, requests_of(table.client) as calls_sent:
        assert leases.renew(lease, now_ms=50, ttl_ms=100).expires_ms == 150
    assert (len(sent), calls_sent) == (2, ["UpdateItem"])


def test_a_late_request_does_not_restore_a_released_lease(table: DynamoTable) -> None:
    """The first request reaches DynamoDB after its retry, when the lease has been released."""
    leases = StateStore(table).leases
    with lost_answers(table, "TransactWriteItems") as sent:
        lease = leases.acquire("fleet", "a", now_ms=0, ttl_ms=1_000_000)
    assert leases.release(lease)
    request = json.loads(sent[0])
    table.client.transact_write_items(
        TransactItems=request["TransactItems"], ClientRequestToken=request["ClientRequestToken"]
    )
    assert leases.current("fleet", now_ms=0) is None
