"""Pins while others are at work on the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import add_pin, list_pins, remove_pin
from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import CommitStateUnknown, OperationRefused
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.stores import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import Pin, PinKind
from icekeeper.storage.paths import normalise
from support.maintained_table import NAME, MaintainedTable, new_table
from support.moments import Moment, at
from support.readers import canonical, duckdb_rows, pyiceberg_rows
from support.scripted_catalog import ScriptedCatalog, once


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(4)
    return made


def handle_of(table: MaintainedTable, **more: Any) -> TableHandle:
    given = {"catalog": table.catalog, "state": table.state, "clock": system_clock, **more}
    return TableHandle(table=NAME, sleep=table.waits.append, **given)


def test_a_snapshot_that_expires_while_it_is_pinned_is_not_pinned(table: MaintainedTable) -> None:
    """The expiry read the pins before this one was there, and committed before anybody looked again."""
    first = next(iter(table.metadata.snapshots))
    location = table.loaded.metadata_location
    with (
        at(Moment.PIN_RECORDED, lambda: table.run(Operation.EXPIRE_SNAPSHOTS)),
        mock.patch.object(SqliteStateStore, "pins", return_value=()),
        pytest.raises(OperationRefused) as caught,
    ):
        add_pin(handle_of(table), snapshot=str(first), ttl_ms=HOUR_MS)
    assert str(caught.value) == f"snapshot {first} expired while it was being pinned; pin a newer one"
    assert list_pins(handle_of(table)) == ()
    assert location != table.loaded.metadata_location


def test_an_expiry_that_read_the_pins_too_early_deletes_nothing_that_is_pinned(table: MaintainedTable) -> None:
    """Pinned between its plan and its commit: the snapshot is gone from the table, but not from its pinned metadata."""
    first = next(iter(table.metadata.snapshots))
    rows = canonical(pyiceberg_rows(table.loaded.metadata_location, first))
    pins: list[Pin] = []

    def pin() -> None:
        pins.append(add_pin(handle_of(table), snapshot=str(first), ttl_ms=HOUR_MS))

    table.run(Operation.COMPACT)
    with at(Moment.BEFORE_COMMIT, pin):
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.SUCCEEDED
    assert list(table.metadata.snapshots) == [table.metadata.refs["main"].snapshot_id]
    assert canonical(duckdb_rows(pins[0].metadata_location, first)) == rows
    assert table.unreferenced() != set()
    assert table.run(Operation.REMOVE_ORPHANS, dry_run=True).files_planned == ()
    table.run(Operation.REMOVE_ORPHANS)
    assert canonical(duckdb_rows(pins[0].metadata_location, first)) == rows
    remove_pin(handle_of(table), pins[0].name)
    table.run(Operation.REMOVE_ORPHANS)
    assert table.unreferenced() == set()


def test_a_pinned_snapshot_that_cannot_be_followed_stops_every_deletion(table: MaintainedTable) -> None:
    first = next(iter(table.metadata.snapshots))
    pin = add_pin(handle_of(table), snapshot=str(first), ttl_ms=HOUR_MS)
    orphan = table.plant("data/orphan.parquet")
    with mock.patch.object(SqliteStateStore, "pins", return_value=()):
        table.run(Operation.EXPIRE_SNAPSHOTS)
    Path(normalise(pin.metadata_location)).unlink()
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert outcome.status is Status.REFUSED
    assert outcome.reason is not None
    assert outcome.reason.startswith(f"what pin '{pin.name}' holds cannot be told, so nothing was deleted: ")
    assert orphan in table.files()


@pytest.mark.parametrize("kind", [PinKind.READER, PinKind.JOB])
def test_delete_after_commit_spares_pinned_metadata(tmp_path: Path, kind: PinKind) -> None:
    """The pointer catalogs delete what falls off the metadata log, as Iceberg-Java does, but not what is pinned."""
    folder = tmp_path / "warehouse"
    folder.mkdir()
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=folder.as_uri())
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    table = new_table(catalog, tmp_path, properties=properties)
    table.append(1)
    loaded = table.loaded
    location = loaded.metadata_location
    assert loaded.metadata.current_snapshot is not None
    table.state.add_pin(
        Pin(
            identity=identity_of(table.catalog, loaded),
            name="p",
            snapshot_id=loaded.metadata.current_snapshot.snapshot_id,
            metadata_location=location,
            expires_ms=2**62,
            kind=kind,
        )
    )
    commits: list[str] = []
    for days in range(2, 6):
        table.append(days)
        table.run(Operation.COMPACT, rewrite_all="true")
        commits.append(table.loaded.metadata_location)
    assert Path(normalise(location)).exists()
    assert [Path(normalise(path)).exists() for path in commits] == [False] * 3 + [True]
    catalog.close()


def test_a_tag_of_unknown_outcome_leaves_the_pin(table: MaintainedTable) -> None:
    """Perhaps it landed; then removing the pin removes it, too."""

    def lose_the_answer() -> None:
        raise CommitStateUnknown("the answer got lost")

    class Silent(ScriptedCatalog):
        def load(self, table: TableName) -> Any:
            if self.commits:
                raise CommitStateUnknown("nobody answers")
            return super().load(table)

    catalog = Silent(table.catalog, after_commit=once(lose_the_answer))
    with pytest.raises(CommitStateUnknown):
        add_pin(handle_of(table, catalog=catalog), snapshot="current", ttl_ms=HOUR_MS, name="N", with_tag=True)
    assert [pin.tag for pin in list_pins(handle_of(table))] == ["N"]
    assert "N" in table.metadata.refs
    remove_pin(handle_of(table), "N")
    assert "N" not in table.metadata.refs
    assert list_pins(handle_of(table)) == ()
