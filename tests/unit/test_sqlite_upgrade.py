"""A state file of version 8, which knew tables by their names: everything is carried over, and still protects."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from icekeeper.errors import LeaseHeld
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.quarantine import Sighting
from icekeeper.state.sqlite.schema import upgrade
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.staging import LoadState

NOW = TableIdentity("lake", "file:///w", TableName(("ns",), "t"), "u1", "/w/ns/t")
RENAMED = replace(NOW, catalog="alias", table=TableName(("ns",), "renamed"))
OLD, ALIAS, V1 = ("lake", "file:///w", "ns.t", "U1"), ("alias", "x", "ns.t", "u1"), ("lake", "file:///w", "ns.v1", "")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStateStore:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        upgrade(connection, 0, to=8)

        def add(table: str, names: tuple[str, ...], *values: object) -> None:
            row = (*names, *values)
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

        for names, snapshot_id, expires_ms in ((OLD, 5, 100), (ALIAS, 6, 90), (V1, 7, 100)):
            add("pins", names, "reader", snapshot_id, "m", expires_ms, "reader", None)
        for names in (OLD, ALIAS, V1):
            add("staged_loads", names, "load", "user", "pending", "[]", 1, None, 2)
            add("staged_files", names, "load", 0, json.dumps([f"/{names[0]}/1"]))
            add("staged_files", names, "load", 1, json.dumps([f"/{names[0]}/2"]))
        for names, run_id in ((OLD, "r1"), (ALIAS, "r2")):
            add("passes", names, run_id, 1, 2, "succeeded", "", "{}", "local")
            add("last_seen", names, 5, run_id, 1, 1)
            add("clusterings", names, "sort(1)", 5)
            add("quarantine", names, "/w/ns/t/o", 2, 1, run_id)
            add("pending_deletions", names, run_id, 0, json.dumps(["/w/ns/t/x"]))
            add("requests", names, 5 if run_id == "r1" else 9, "{}")
            add("lake_stats", names, 1, 5, "{}", "{}", "{}")
            add("leases", (json.dumps(names),), run_id, 100 if run_id == "r1" else 50)
        add("leases", ("fleet",), "r1", 100)
    return SqliteStateStore(path)


def test_pins_and_loads_protect_under_every_name(store: SqliteStateStore) -> None:
    """Two names of a table may each have had a pin and a load of one name: both stay."""
    pins = {pin.name: pin.snapshot_id for pin in store.pins(RENAMED, now_ms=0)}
    assert pins == {"reader": 5, "reader-2": 6}
    loads = store.staging.loads(RENAMED)
    assert [(load.name, load.state, load.file_count) for load in loads] == [
        ("load", LoadState.PENDING, 2),
        ("load-2", LoadState.PENDING, 2),
    ]
    files = [list(chain.from_iterable(store.staging.files(RENAMED, load.name))) for load in loads]
    assert sorted(files) == [["/alias/1", "/alias/2"], ["/lake/1", "/lake/2"]]


def test_of_two_runs_over_one_table_one_has_the_lease(store: SqliteStateStore) -> None:
    with pytest.raises(LeaseHeld, match=r"^ns.t is leased by r1 until"):
        store.leases.acquire(RENAMED.key, "new", now_ms=60, ttl_ms=1)
    with pytest.raises(LeaseHeld, match=r"^fleet is leased by r1 until"):
        store.leases.acquire("fleet", "new", now_ms=60, ttl_ms=1)


def test_memory_is_that_of_the_table_that_was_called_so(store: SqliteStateStore) -> None:
    seen = store.last_seen(NOW)
    assert seen is not None
    assert seen.fingerprint == "r1"
    assert [record.run_id for record in store.history(NOW)] == ["r1"]
    assert store.clustered_snapshots(NOW, "sort(1)") == {5}
    assert store.pending_deletions.lists(NOW) == ("r1",)
    assert list(store.pending_deletions.paths(NOW, "r1")) == [["/w/ns/t/x"]]
    copy = replace(RENAMED, location="/elsewhere")
    assert (store.last_seen(copy), store.history(copy), store.pending_deletions.lists(copy)) == (None, (), ())


def test_the_quarantine_counts_on(store: SqliteStateStore) -> None:
    ledger = store.quarantine
    assert ledger.counts(NOW, "r3", ["/w/ns/t/o"]) == {"/w/ns/t/o": 2}
    ledger.see(NOW, "r3", ["/w/ns/t/o"], now_ms=5)
    assert list(ledger.sightings(NOW)) == [Sighting("/w/ns/t/o", 3, 1, "r3")]
    ledger.forget_unseen(NOW, "r4")
    assert list(ledger.sightings(NOW)) == []


def test_the_newest_request_of_a_table_stays(store: SqliteStateStore) -> None:
    (request,) = store.requests.pending()
    assert (request.identity.catalog, request.requested_ms) == ("alias", 9)
    assert request.identity.is_same_table(NOW)
    assert store.requests.claim(request) is True


def test_a_table_without_a_uuid_keeps_what_was_held_for_its_name(store: SqliteStateStore) -> None:
    v1 = TableIdentity("lake", "file:///w", TableName(("ns",), "v1"), "", "/w/ns/v1")
    assert [pin.snapshot_id for pin in store.pins(v1, now_ms=0)] == [7]
    (load,) = store.staging.loads(v1)
    more = store.staging.stage(load, ["/lake/3"])
    assert more.file_count == 3
    assert store.staging.loads(v1) == (more,)
    assert len(list(chain.from_iterable(store.staging.files(v1, "load")))) == 3
    assert store.remove_pin(v1, "reader") is True
    assert store.staging.forget(more) is True
    assert (store.pins(v1, now_ms=0), store.staging.loads(v1)) == ((), ())


def test_health_is_kept_by_catalog(store: SqliteStateStore) -> None:
    assert [stats.identity.uuid for stats in store.lake_stats.of_catalog("lake", "file:///w")] == ["u1"]
