"""A state table that an earlier version wrote, and perhaps still writes: what it holds protects at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pytest
from botocore.exceptions import ClientError

from icekeeper.clock import HOUR_MS, ServerClock
from icekeeper.errors import LeaseHeld, StorageError
from icekeeper.model import TableName
from icekeeper.state.dynamodb import earlier as earlier_module
from icekeeper.state.dynamodb.items import Item, named_key
from icekeeper.state.dynamodb.path_lists import write_paths
from icekeeper.state.dynamodb.store import DynamoStateStore
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import Lease
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.staging import LoadState
from icekeeper.state.store import LastSeen, Pin
from local_stack.moto_server import MotoServer
from support.state_tables import a_table

NOW_MS = 1_767_225_600_000
WEEK_MS = 7 * 24 * HOUR_MS
NOW = TableIdentity("lake", "s3://b", TableName(("ns",), "t"), "u1", "s3://b/ns/t")
RENAMED = replace(NOW, table=TableName(("ns",), "renamed"))
NAMES, ALIAS = ("lake", "s3://b", "ns.t", "u1"), ("alias", "s3://b/", "NS.T", "U1")
FAR_MS = NOW_MS + 60 * WEEK_MS


@dataclass
class Upgrade:
    """One table, its clock, and an earlier version that writes it."""

    table: DynamoTable
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        # A server clock that has heard nothing: the table's time is ours.
        table = self.table
        self.table = DynamoTable(table.client, table.name, clock=lambda: self.now_ms, server_clock=ServerClock())

    def store(self) -> DynamoStateStore:
        """As another process opens it."""
        return DynamoStateStore(self.table)

    def wrote(self, part: str, sk: str, names: Sequence[str] = NAMES, **fields: Any) -> None:
        self.table.put({"pk": earlier_key(part, names), "sk": sk, **fields})

    def pinned(self, name: str, snapshot_id: int, names: Sequence[str] = NAMES) -> None:
        pin = {"snapshot_id": snapshot_id, "metadata_location": "m", "until_ms": FAR_MS, "kind": "reader"}
        self.wrote("table", f"now#pin#{name}", names, name=name, **pin)

    def staged(self, name: str, path: str, names: Sequence[str] = NAMES) -> None:
        load = {"origin": "user", "state": "pending", "prefixes": "[]", "changed_ms": 1, "file_count": 1, "turn": 1}
        self.wrote("table", f"now#load#{name}", names, name=name, list_id=f"list-{path}", **load)
        write_paths(self.table, f"list-{path}", [path])

    def saw(self, seen_ms: int, names: Sequence[str] = NAMES) -> None:
        self.wrote("table", "now#seen", names, snapshot_id=1, fingerprint="f", seen_ms=seen_ms, idle=True)

    def leased(self, holder: str, until_ms: int) -> None:
        self.wrote("lease", "lease", holder=holder, until_ms=until_ms, expires_s=until_ms // 1000)


def earlier_key(kind: str, names: Sequence[str]) -> str:
    return named_key(kind, json.dumps(names))


@pytest.fixture
def upgrade(moto_dynamodb: MotoServer) -> Upgrade:
    return Upgrade(a_table(moto_dynamodb))


def asked(store: DynamoStateStore, upgrade: Upgrade, identity: TableIdentity) -> list[str]:
    """The requests that detection makes for one table."""
    made: list[str] = []

    def note(model: Any, **_: Any) -> None:
        made.append(model.name)

    events = upgrade.table.client.meta.events
    events.register("before-call.dynamodb", note)
    store.glance(identity, now_ms=0)
    events.unregister("before-call.dynamodb", note)
    return made


def test_pins_and_loads_protect_under_every_name(upgrade: Upgrade) -> None:
    upgrade.pinned("reader", 5)
    upgrade.pinned("other", 6, ALIAS)
    upgrade.staged("load", "s3://b/ns/t/1")
    store = upgrade.store()
    assert [pin.snapshot_id for pin in store.pins(RENAMED, now_ms=NOW_MS)] == [6, 5]
    assert [pin.name for pin in store.glance(RENAMED, now_ms=NOW_MS).pins] == ["other", "reader"]
    (load,) = store.staging.loads(RENAMED)
    assert list(chain.from_iterable(store.staging.files(RENAMED, "load"))) == ["s3://b/ns/t/1"]
    more = store.staging.stage(replace(load, state=LoadState.PENDING), ["s3://b/ns/t/2"])
    assert more.file_count == 2
    assert store.staging.loads(RENAMED) == (more,), "one load, wherever its record lies"
    failed = replace(more, state=LoadState.FAILED)
    assert store.staging.change(more, failed) is True
    assert store.staging.forget(failed) is True
    assert store.remove_pin(RENAMED, "reader") is True
    assert [pin.name for pin in upgrade.store().pins(NOW, now_ms=NOW_MS)] == ["other"]
    assert upgrade.store().staging.loads(NOW) == ()


def test_what_an_earlier_version_writes_later_protects_too(upgrade: Upgrade) -> None:
    """Under the name that the table has; one that was written under another name is found by the next scan."""
    upgrade.saw(NOW_MS)
    store = upgrade.store()
    assert store.pins(NOW, now_ms=NOW_MS) == ()
    upgrade.pinned("later", 7)
    upgrade.pinned("alias", 8, ALIAS)
    assert [pin.name for pin in store.pins(NOW, now_ms=NOW_MS)] == ["later"]
    upgrade.now_ms += WEEK_MS
    assert [pin.name for pin in upgrade.store().pins(NOW, now_ms=NOW_MS)] == ["alias", "later"]


def test_a_running_lease_excludes_and_goes_on(upgrade: Upgrade) -> None:
    upgrade.leased("run-1", NOW_MS + 1000)
    leases = upgrade.store().leases
    with pytest.raises(LeaseHeld, match=r"^ns.t is leased by run-1 until"):
        leases.acquire(RENAMED.key, "run-2", now_ms=NOW_MS, ttl_ms=1)
    renewed = upgrade.store().leases.renew(Lease(key=NOW.key, holder="run-1", expires_ms=0), now_ms=NOW_MS, ttl_ms=2000)
    assert renewed.expires_ms == NOW_MS + 2000
    assert leases.release(renewed) is True


def test_a_lease_that_ran_out_bars_nobody(upgrade: Upgrade) -> None:
    upgrade.leased("run-1", NOW_MS - 1)
    assert upgrade.store().leases.acquire(NOW.key, "run-2", now_ms=NOW_MS, ttl_ms=1).holder == "run-2"


def test_requests_are_found_and_claimed_once(upgrade: Upgrade) -> None:
    fields = {"table_name": "ns.t", "uuid": "u1", "requested_ms": 5, "settings": '{"operations": "compact"}'}
    upgrade.wrote("requests", json.dumps(NAMES), NAMES[:2], **fields)
    (request,) = upgrade.store().requests.pending()
    assert request.identity == replace(NOW, location="")
    assert upgrade.store().requests.claim(replace(request, identity=RENAMED)) is True
    assert upgrade.store().requests.pending() == ()


def test_memory_is_that_of_the_table_that_was_called_so(upgrade: Upgrade) -> None:
    upgrade.saw(NOW_MS)
    upgrade.wrote("table", "clustering#x#1", snapshot_id=1)
    upgrade.wrote("table", "deletions#d", name="d", list_id="list-d")
    write_paths(upgrade.table, "list-d", ["s3://b/ns/t/x"])
    journal: dict[str, Any] = {
        "started_ms": 1,
        "status": "succeeded",
        "summary": "",
        "metrics": "{}",
        "engine": "local",
    }
    upgrade.wrote("table", "pass#r", run_id="r", finished_ms=2, **journal)
    store = upgrade.store()
    seen = LastSeen(snapshot_id=1, fingerprint="f", finished_ms=NOW_MS, idle=True)
    assert (store.last_seen(NOW), store.glance(NOW, now_ms=0).last_seen) == (seen, seen)
    assert [record.run_id for record in store.history(NOW)] == ["r"]
    assert store.pending_deletions.lists(NOW) == ("d",)
    assert list(store.pending_deletions.paths(NOW, "d")) == [["s3://b/ns/t/x"]]
    assert (store.last_seen(RENAMED), store.pending_deletions.lists(RENAMED)) == (None, ())
    store.pending_deletions.forget(NOW, "d")
    assert upgrade.store().pending_deletions.lists(NOW) == ()


def test_in_the_end_a_table_is_one_partition(upgrade: Upgrade) -> None:
    upgrade.saw(NOW_MS - 1)
    upgrade.pinned("reader", 5)
    upgrade.pinned("reader", 6, ALIAS)
    upgrade.staged("load", "s3://b/ns/t/1")
    assert len(asked(upgrade.store(), upgrade, NOW)) > 3, "while an earlier version may still write"
    upgrade.now_ms += WEEK_MS
    settled = upgrade.store()
    settled.remember(NOW, LastSeen(snapshot_id=2, fingerprint="g", finished_ms=upgrade.now_ms, idle=False))
    assert asked(settled, upgrade, NOW) == ["Query"]
    afterwards = upgrade.store()
    afterwards.leases.current("fleet", now_ms=0)
    assert asked(afterwards, upgrade, NOW) == ["Query"]
    pins = {pin.name: pin.snapshot_id for pin in afterwards.pins(RENAMED, now_ms=NOW_MS)}
    assert sorted(pins) == ["reader", "reader-2"]
    assert sorted(pins.values()) == [5, 6]
    assert [load.name for load in afterwards.staging.loads(RENAMED)] == ["load"]
    assert list(chain.from_iterable(afterwards.staging.files(RENAMED, "load"))) == ["s3://b/ns/t/1"]
    assert list(upgrade.table.query(earlier_key("table", NAMES))) == []


def test_while_an_earlier_version_runs_it_is_waited_for(upgrade: Upgrade) -> None:
    upgrade.saw(NOW_MS - 1)
    upgrade.store().pins(NOW, now_ms=0)
    upgrade.now_ms += WEEK_MS
    upgrade.saw(upgrade.now_ms - 1)
    upgrade.store().remember(NOW, LastSeen(snapshot_id=2, fingerprint="g", finished_ms=upgrade.now_ms, idle=False))
    upgrade.pinned("from a laptop", 9)
    assert [pin.snapshot_id for pin in upgrade.store().pins(NOW, now_ms=NOW_MS)] == [9]


def test_a_new_state_costs_one_look_per_store(upgrade: Upgrade) -> None:
    upgrade.store().pins(NOW, now_ms=0)
    upgrade.now_ms += 2 * WEEK_MS
    assert asked(upgrade.store(), upgrade, NOW) == ["Query", "Query"]


def test_many_that_open_it_at_once_lose_nothing(upgrade: Upgrade) -> None:
    for number in range(5):
        upgrade.pinned(f"p{number}", number, (f"alias-{number}", *NAMES[1:]))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: len(upgrade.store().pins(RENAMED, now_ms=NOW_MS)), range(4)))
    assert found == [5] * 4


def test_an_interrupted_scan_goes_on_where_it_was(upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_module, "_PAGES_PER_MARK", 1)
    for number in range(4):
        upgrade.pinned(f"p{number}", number, (f"alias-{number}", *NAMES[1:]))
    scan, client = upgrade.table.client.scan, upgrade.table.client
    starts: list[Item | None] = []

    def one_by_one(**request: Any) -> Any:
        starts.append(request.get("ExclusiveStartKey"))
        if len(starts) == 3:
            raise KeyboardInterrupt
        return scan(**request, Limit=1)

    monkeypatch.setattr(client, "scan", one_by_one)
    with pytest.raises(KeyboardInterrupt):
        upgrade.store().pins(RENAMED, now_ms=NOW_MS)
    assert len(upgrade.store().pins(RENAMED, now_ms=NOW_MS)) == 4
    assert starts[:2] == [None, starts[1]]
    assert starts[3] == starts[2], "not from the beginning"


def test_a_pin_is_moved_whole(upgrade: Upgrade) -> None:
    upgrade.pinned("p", 5)
    upgrade.store().pins(NOW, now_ms=0)
    upgrade.now_ms += WEEK_MS
    store = upgrade.store()
    before = store.pins(NOW, now_ms=NOW_MS)
    store.remember(NOW, LastSeen(snapshot_id=2, fingerprint="g", finished_ms=1, idle=False))
    expected = Pin(identity=NOW, name="p", snapshot_id=5, metadata_location="m", expires_ms=FAR_MS)
    assert before == store.pins(NOW, now_ms=NOW_MS) == upgrade.store().pins(NOW, now_ms=NOW_MS) == (expected,)


def test_one_who_may_not_look_through_the_state_is_told_who_may(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is not known what protects; later scans may wait for somebody else."""

    def denied(**_: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "Scan")

    upgrade.pinned("p", 5)
    with monkeypatch.context() as patch:
        patch.setattr(upgrade.table.client, "scan", denied)
        store = upgrade.store()
        store.requests.file(MaintenanceRequest(identity=NOW, requested_ms=1))
        with pytest.raises(StorageError, match=r"^the state must be looked through once .*dynamodb:Scan"):
            store.pins(NOW, now_ms=NOW_MS)
    assert [pin.name for pin in store.pins(RENAMED, now_ms=NOW_MS)] == ["p"]
    upgrade.now_ms += WEEK_MS
    monkeypatch.setattr(upgrade.table.client, "scan", denied)
    assert [pin.name for pin in upgrade.store().pins(RENAMED, now_ms=NOW_MS)] == ["p"]
