"""``icekeeper orphans --bucket`` deletes from a table under the table's lease, as every pass does (rule 70)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.state.leases import Lease
from icekeeper.state.open import open_state
from icekeeper.state.sqlite.store import SqliteStateStore
from support.command import CATALOG, Answer, Command, local_path
from support.maintained_table import grow_old
from support.moments import Moment, at

Key = Callable[[str], str]


@pytest.fixture
def key(command: Command) -> Key:
    """The key of a table's lease; tables ``ns.a`` and ``ns.b`` have an old orphan each."""
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


def test_a_table_at_work_is_left_out_and_the_others_are_swept(command: Command, key: Key) -> None:
    leases, now_ms = open_state(os.environ).leases, system_clock()
    held = leases.acquire(key("ns.a"), "icekeeper run on desk", now_ms=now_ms, ttl_ms=HOUR_MS, name="ns.a")
    planned = sweep(command, "--dry-run").json["tables"]
    assert [len(one["files"]["planned"]) for one in planned] == [1, 1], "a dry run needs no lease"
    answer = sweep(command)
    assert (answer.code, answer.json["status"]) == (0, "succeeded")
    first, second = answer.json["tables"]
    assert first["status"] == "skipped"
    assert first["reason"].startswith("it is left to the run at work: ns.a is leased by icekeeper run on desk until ")
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


def test_who_loses_the_lease_deletes_nothing_more(command: Command, key: Key) -> None:
    """Rule 70: another run took the table after it was looked at, before its first batch of deletions."""
    leases = open_state(os.environ).leases

    def take() -> None:
        (mine,) = (one for name in ("ns.a", "ns.b") if (one := leases.current(key(name), now_ms=system_clock())))
        assert leases.release(mine)
        leases.acquire(mine.key, "another", now_ms=system_clock(), ttl_ms=HOUR_MS, name=mine.name)

    with at(Moment.DELETION_RECORDED, take):
        answer = sweep(command)
    assert sorted(one["status"] for one in answer.json["tables"]) == ["refused", "succeeded"]
    assert len(orphans(command)) == 1


def test_what_was_deleted_is_told_although_the_journal_cannot_be_written(
    command: Command, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole answer was lost: one error instead of what went from every table."""

    def broken(*_: object) -> None:
        raise StorageError("the state is full")

    monkeypatch.setattr(SqliteStateStore, "record_pass", broken)
    answer = sweep(command)
    assert (answer.code, [one["orphans_removed"] for one in answer.json["tables"]]) == (0, [1, 1])
    assert answer.json["warnings"] == [
        f"{name}: the pass could not be recorded: the state is full" for name in ("ns.a", "ns.b")
    ]
    assert orphans(command) == []
