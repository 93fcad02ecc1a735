"""One pass at a time over a table: the lease (rule: lost-lease-changes-nothing)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.maintenance.run_pass import PASS_LEASE_MS, Turn
from icekeeper.model import TableName
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.leases import Lease, LeaseStore
from icekeeper.state.open import open_state
from icekeeper.state.sqlite.store import SqliteStateStore
from support.command import CATALOG, Answer, Command, local_path, one_sentence
from support.maintained_table import grow_old, outcome_of, same_clock
from support.moments import Moment, at
from support.readers import duckdb_rows
from support.state_stores import newest_look

NAME = TableName(("ns",), "t")
SETTINGS = {
    "min_input_files": "2",
    "max_snapshots_to_keep": "1",
    "snapshot_retention_hours": "0",
    "orphan_older_than_hours": "24",
}


def key_of(runtime: Runtime) -> str:
    return identity_of(runtime.catalog, runtime.catalog.load(NAME)).lease_key


def current(runtime: Runtime) -> Lease | None:
    return runtime.state.leases.current(key_of(runtime), now_ms=runtime.clock())


def take_over(leases: LeaseStore, key: str) -> None:
    """Take the lease as another run does after it has expired."""
    found = leases.current(key, now_ms=system_clock())
    assert found is not None, "the pass holds no lease"
    leases.release(found)
    leases.acquire(key, "another run", now_ms=system_clock(), ttl_ms=HOUR_MS)


@pytest.fixture
def runtime(command: Command) -> Runtime:
    command.table()
    return Runtime.open(CATALOG)


def test_a_pass_holds_the_lease_for_minutes_and_releases_it(runtime: Runtime) -> None:
    seen: list[Lease | None] = []
    runtime.maintain(NAME, SETTINGS, LocalEngine(1), dry_run=True, progress=lambda *_: seen.append(current(runtime)))
    assert set(seen) <= {None}  # a dry run takes no lease
    assert current(runtime) is None
    seen.clear()
    runtime.maintain(NAME, SETTINGS, LocalEngine(1), progress=lambda *_: seen.append(current(runtime)))
    assert seen
    for lease in seen:
        assert lease is not None
        assert lease.holder.startswith("icekeeper maintain on ")
        assert lease.name == "ns.t"
        assert 0 < lease.expires_ms - system_clock() <= PASS_LEASE_MS <= 5 * 60_000
    assert current(runtime) is None


def test_a_second_pass_is_refused_and_names_the_holder_of_the_lease(command: Command, runtime: Runtime) -> None:
    before = command.contents()
    runtime.state.leases.acquire(key_of(runtime), "run-1", now_ms=runtime.clock(), ttl_ms=60_000)
    answer = command("maintain", "ns.t", "--engine", "local", "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "LeaseHeld"
    assert answer.json["error"]["message"].startswith("ns.t is leased by run-1 until ")
    assert answer.json["error"]["message"].endswith("; nothing was begun; --wait 10m waits for it")
    assert command("maintain", "ns.t", "--engine", "local", "--dry-run").code == 0
    waited = command("maintain", "ns.t", "--engine", "local", "--wait", "1s")
    assert waited.code == 1
    assert waited.err.startswith("waiting: ns.t is leased by run-1 until ")
    assert "also after waiting for 1 s; nothing was begun" in one_sentence(waited.err.splitlines()[1])
    assert command.contents() == before
    assert command("maintain", "ns.t", "--wait", "soon").code == 2


def test_a_second_pass_waits_and_plans_with_the_table_after_the_first_pass(command: Command) -> None:
    table = command.table()
    messages: list[str] = []
    runtime = Runtime(Runtime.open(CATALOG).catalog, Runtime.open(CATALOG).state, sleep=lambda _: end_of_the_first())
    lease = runtime.state.leases.acquire(key_of(runtime), "run-1", now_ms=runtime.clock(), ttl_ms=HOUR_MS)

    def end_of_the_first() -> None:
        with table.transaction() as change:
            change.set_properties({"icekeeper.maintenance_enabled": "false"})
        assert runtime.state.leases.release(lease)

    outcome = runtime.maintain(NAME, {}, LocalEngine(1), turn=Turn(wait_ms=60_000, notify=messages.append))
    assert len(messages) == 1
    assert messages[0].startswith("waiting: ns.t is leased by run-1 until ")
    assert {part.reason for part in outcome.operations} == {
        "maintenance is disabled (table property icekeeper.maintenance_enabled)"
    }


def lost_during(runtime: Runtime, what: str) -> PassOutcome:
    """Run a pass that loses its lease at the first progress of ``what``."""
    key, is_lost = key_of(runtime), [False]

    def lose(progress: str, done: int, total: int) -> None:
        if what in progress and not is_lost[0]:
            is_lost[0] = True
            take_over(runtime.state.leases, key)

    outcome = runtime.maintain(NAME, SETTINGS, LocalEngine(1), progress=lose)
    assert is_lost[0]
    return outcome


def test_a_pass_that_loses_its_lease_commits_and_deletes_nothing_more(command: Command, runtime: Runtime) -> None:
    before, rows = command.contents(), duckdb_rows(runtime.catalog.load(NAME).metadata_location)
    outcome = lost_during(runtime, "compact")
    assert {part.status for part in outcome.operations} == {Status.REFUSED}
    assert {"another run took it" in (part.reason or "") for part in outcome.operations} == {True}
    assert command.contents() == before, "its own outputs are gone too"
    assert duckdb_rows(runtime.catalog.load(NAME).metadata_location) == rows
    lease = current(runtime)
    assert lease is not None
    assert lease.holder == "another run", "which is not ours to give back"
    seen = newest_look(runtime.state, identity_of(runtime.catalog, runtime.catalog.load(NAME)))
    assert seen is not None
    assert not seen.is_done


def test_the_lease_is_checked_before_every_batch_of_deletions(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has two files; the lease is lost after the first batch, so no second batch follows."""
    monkeypatch.setattr("icekeeper.deletion.delete._BATCH", 2)
    monkeypatch.setattr("icekeeper.deletion.delete._IN_FLIGHT", 1)
    outcome = outcome_of(lost_during(runtime, "expire_snapshots: files"), Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.REFUSED
    files = list(Path(command_folder(runtime)).rglob("*.avro"))
    assert files
    healthy = Runtime(
        runtime.catalog, runtime.state, clock=lambda: system_clock() + 2 * HOUR_MS, store_clock=same_clock
    )
    again = outcome_of(healthy.maintain(NAME, SETTINGS, LocalEngine(1)), Operation.EXPIRE_SNAPSHOTS)
    assert again.status is Status.SUCCEEDED, "the next pass finishes the rest"
    assert len(list(Path(command_folder(runtime)).rglob("*.avro"))) < len(files)


def command_folder(runtime: Runtime) -> str:
    return runtime.catalog.load(NAME).metadata.location.removeprefix("file://")


# ``icekeeper orphans --bucket`` deletes from a table under the table's lease (rule: lost-lease-changes-nothing).

Key = Callable[[str], str]


@pytest.fixture
def key(command: Command) -> Key:
    """The key of a table's lease; tables ``ns.a`` and ``ns.b`` each have an old orphan."""
    for name in ("ns.a", "ns.b"):
        (local_path(command.table(name, appends=1).location()) / "data" / "o.parquet").write_bytes(b"x")
    grow_old(path for path in command.warehouse.rglob("*") if path.is_file())
    catalog = open_catalog(CATALOG)
    return lambda name: identity_of(catalog, catalog.load(TableName.parse(name))).lease_key


def sweep(command: Command, *more: str) -> Answer:
    bucket = ("--bucket", command.warehouse.as_uri())
    return command("orphans", *bucket, "--set", "orphan_older_than_hours=72", "--json", *more)


def orphans(command: Command) -> list[str]:
    return sorted(str(path.relative_to(command.warehouse)) for path in command.warehouse.rglob("o.parquet"))


def test_a_leased_table_is_left_out_and_the_others_are_swept(command: Command, key: Key) -> None:
    leases, now_ms = open_state(os.environ).leases, system_clock()
    held = leases.acquire(key("ns.a"), "icekeeper run on desk", now_ms=now_ms, ttl_ms=HOUR_MS, name="ns.a")
    planned = sweep(command, "--dry-run").json["tables"]
    assert [len(item["files"]["planned"]) for item in planned] == [1, 1], "a dry run needs no lease"
    answer = sweep(command)
    assert (answer.code, answer.json["status"]) == (0, "succeeded")
    first, second = answer.json["tables"]
    assert first["status"] == "skipped"
    assert first["reason"].startswith("another run maintains the table: ns.a is leased by icekeeper run on desk until ")
    assert (second["status"], second["orphans_removed"]) == ("succeeded", 1)
    assert orphans(command) == ["ns/a/data/o.parquet"]
    assert leases.release(held), "it was not touched"


def test_a_table_is_leased_while_its_orphans_are_deleted(command: Command, key: Key) -> None:
    leases, seen = open_state(os.environ).leases, list[Lease | None]()

    def look() -> None:
        seen.extend(leases.current(key(name), now_ms=system_clock()) for name in ("ns.a", "ns.b"))

    with at(Moment.AFTER_DELETION, look):
        assert sweep(command).code == 0
    holder, other = seen
    assert holder is not None
    assert holder.holder.startswith("icekeeper orphans on ")
    assert other is None, "only the table that is at work"
    assert orphans(command) == []
    assert [leases.current(key(name), now_ms=system_clock()) for name in ("ns.a", "ns.b")] == [None, None]


def test_a_sweep_that_loses_its_lease_deletes_nothing_more(command: Command, key: Key) -> None:
    """Another run takes the lease before the first batch of deletions (rule: lost-lease-changes-nothing)."""
    leases = open_state(os.environ).leases

    def take() -> None:
        (mine,) = (item for name in ("ns.a", "ns.b") if (item := leases.current(key(name), now_ms=system_clock())))
        assert leases.release(mine)
        leases.acquire(mine.key, "another", now_ms=system_clock(), ttl_ms=HOUR_MS, name=mine.name)

    with at(Moment.DELETION_DECIDED, take):
        answer = sweep(command)
    assert sorted(item["status"] for item in answer.json["tables"]) == ["refused", "succeeded"]
    assert len(orphans(command)) == 1


def test_deleted_files_are_reported_although_the_journal_cannot_be_written(
    command: Command, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed write of the journal is a warning; the answer still lists the deleted files."""

    def broken(*_: object) -> None:
        raise StorageError("the state is full")

    monkeypatch.setattr(SqliteStateStore, "record_pass", broken)
    answer = sweep(command)
    assert (answer.code, [item["orphans_removed"] for item in answer.json["tables"]]) == (0, [1, 1])
    assert answer.json["warnings"] == [
        f"{name}: cannot record the pass: the state is full" for name in ("ns.a", "ns.b")
    ]
    assert orphans(command) == []
